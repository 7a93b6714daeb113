//! Everything that is said to a client: an [`Answer`], and how the line protocol spells it.
//!
//! Always exactly one line, always ended by LF, appended in one go so that a push can stand between
//! answers but never inside one. Never decides who gets a line.

use std::fmt;

use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ByteRange, Change, Event, GraceState, HeldRange, ListForm, Loss, Push, Refusal, Reply, Sharing,
};
use crate::shard::Shard;
use crate::wire::json::{self, push_number};

/// Something that is said to a client, in whatever protocol it speaks.
#[derive(Clone, Copy)]
pub enum Answer<'a> {
    /// What the lock table replied.
    Reply(&'a Reply),
    /// News the client did not ask for just now.
    Push(&'a Push),
    /// Only yes: the secret was right, the daemon is there.
    Ok,
    /// The request was malformed, or came at the wrong time.
    Error,
    /// The secret was wrong, or not shown.
    ErrorAuth,
    /// The secret was right, and does not give this.
    ErrorForbidden,
    /// Another server decides, and where it is if that is known.
    NotLeader(Option<&'a str>),
    /// Who we are, and what is in force on this connection.
    Hello(Welcome<'a>),
    /// A JSON document, which the function appends: one value without a line end.
    Json(&'a dyn Fn(&mut Vec<u8>)),
}

/// What `hello` is answered. Options that concern the codec are the codec's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// Of this program.
    pub version: &'a str,
    /// The number of this life of the server.
    pub epoch: u64,
    /// Requests of this connection are refused rather than wait for themselves.
    pub detects_deadlocks: bool,
    /// What this connection is granted outlives it.
    pub keeps: bool,
    /// Which keys this server has, if there are others that have the rest.
    pub shard: Option<Shard>,
    /// How long a leader's lease is, if this server is a member of a cluster.
    pub cluster_ttl: Option<Millis>,
    /// What the client called itself.
    pub name: Option<&'a str>,
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(reply) => reply.fmt(f),
            Self::Push(push) => push.fmt(f),
            Self::Ok => f.write_str("Ok"),
            Self::Error => f.write_str("Error"),
            Self::ErrorAuth => f.write_str("ErrorAuth"),
            Self::ErrorForbidden => f.write_str("ErrorForbidden"),
            Self::NotLeader(address) => write!(f, "NotLeader({address:?})"),
            Self::Hello(welcome) => welcome.fmt(f),
            Self::Json(_) => f.write_str("Json"),
        }
    }
}

pub(super) const OK: &[u8] = b"ok\n";
pub(super) const ERROR: &[u8] = b"error\n";
/// What stands before a value.
pub(super) const VALUE_BEGIN: &[u8] = b"ok ";
pub(super) const ERROR_AUTH: &[u8] = b"error_auth\n";
pub(super) const ERROR_FORBIDDEN: &[u8] = b"error_forbidden\n";

/// Another server decides: where it is, if that is known.
#[cold]
pub(super) fn push_not_leader(out: &mut Vec<u8>, address: Option<&str>) {
    out.extend_from_slice(b"error_not_leader");
    if let Some(address) = address {
        out.push(b' ');
        out.extend_from_slice(address.as_bytes());
    }
    out.push(b'\n');
}

/// Longest line that says a [`Reply`], but for those that carry values or name somebody: `acquired`,
/// token, lease in ms, fence.
pub const REPLY_BYTES_MAX: usize = 9 + 32 + 1 + 15 + 1 + 16 + 1;

/// Longest line that carries values: what dflockd's clients still read. A part of a list that needs
/// more is answered `error`: the engine refuses it, as [`LIST_FORM`] says.
pub const VALUES_BYTES_MAX: usize = 1024 * 1024;

/// What stands around the values.
const VALUES_FRAME: [&[u8]; 2] = [b"ok [", b"]\n"];

/// How the line protocol writes a part of a list: as JSON.
pub const LIST_FORM: ListForm = ListForm {
    push: json::push_str_escaped,
    bytes_max: VALUES_BYTES_MAX - VALUES_FRAME[0].len() - VALUES_FRAME[1].len(),
};

/// Where answers carry the fence as a last field (`--wire-fence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFence {
    /// On the verbs that always had it, and wherever a connection asked for it.
    #[default]
    Auto,
    /// On every grant and renewal.
    Always,
    /// Nowhere, whatever a connection asks for: an operator who says never has a reader in
    /// between that would stumble.
    Never,
}

/// `with_fence` is asked only where there is a fence to tell. `introduced` is a client that said `hello`:
/// some answers tell it more than others read.
pub(super) fn push_reply(
    out: &mut Vec<u8>,
    reply: &Reply,
    introduced: bool,
    with_fence: impl Fn() -> bool,
) {
    match reply {
        &Reply::Granted { token, lease } => push_grant(out, b"ok ", token, lease, with_fence()),
        &Reply::Acquired { token, lease } => {
            push_grant(out, b"acquired ", token, lease, with_fence());
        }
        &Reply::Renewed { lease, fence } => {
            out.reserve(REPLY_BYTES_MAX);
            out.extend_from_slice(b"ok ");
            push_lease_and_fence(out, lease, with_fence().then_some(fence));
        }
        &Reply::Number(number) => {
            out.extend_from_slice(b"ok ");
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.push(b'\n');
        }
        &Reply::Attached {
            epoch,
            is_new,
            reclaim,
        } => {
            out.extend_from_slice(b"ok ");
            push_number(out, epoch);
            out.extend_from_slice(if is_new { b" new" } else { b" resumed" });
            if let Some(left) = reclaim.filter(|_| introduced) {
                out.push(b' ');
                push_number(out, left.0);
            }
            out.push(b'\n');
        }
        Reply::Value(value) => push_line(out, &[VALUE_BEGIN, value]),
        Reply::Popped(popped) => push_line(out, &[b"ok ", &popped.value]),
        Reply::Values(values) => push_values(out, values),
        Reply::RangeFree => out.extend_from_slice(b"ok free\n"),
        Reply::RangeHeld(held) => push_held_range(out, held),
        Reply::Cancelled => out.extend_from_slice(b"ok cancelled\n"),
        Reply::AlreadyGranted => out.extend_from_slice(b"ok granted\n"),
        &Reply::InGrace(left) => push_in_grace(out, left, introduced),
        &Reply::Grace(grace) => push_grace(out, grace),
        Reply::Queued => out.extend_from_slice(b"queued\n"),
        Reply::Done => out.extend_from_slice(OK),
        Reply::Nothing => out.extend_from_slice(b"nil\n"),
        Reply::Conflict => out.extend_from_slice(b"cas_conflict\n"),
        Reply::TimedOut => out.extend_from_slice(b"timeout\n"),
        &Reply::Refused(refusal) => out.extend_from_slice(refusal_line(refusal)),
    }
}

fn push_values(out: &mut Vec<u8>, values: &[u8]) {
    let [before, behind] = VALUES_FRAME;
    out.reserve(before.len() + values.len() + behind.len());
    out.extend_from_slice(before);
    out.extend_from_slice(values);
    out.extend_from_slice(behind);
}

#[cold]
fn push_held_range(out: &mut Vec<u8>, held: &HeldRange) {
    out.extend_from_slice(b"ok held ");
    out.extend_from_slice(sharing_word(held.mode));
    out.push(b' ');
    push_range(out, held.range);
    push_line_end(out, &[held.client.as_bytes(), held.owner.as_bytes()]);
}

/// For how long, only a client hears that said `hello`: to all others the word is a plain refusal.
#[cold]
fn push_in_grace(out: &mut Vec<u8>, left: Millis, introduced: bool) {
    out.extend_from_slice(b"error_grace");
    if introduced {
        out.push(b' ');
        push_number(out, left.0);
    }
    out.push(b'\n');
}

#[cold]
fn push_grace(out: &mut Vec<u8>, grace: GraceState) {
    let GraceState {
        left,
        expected,
        done,
    } = grace;
    out.extend_from_slice(b"ok");
    for number in [left.0, expected.into(), done.into()] {
        out.push(b' ');
        push_number(out, number);
    }
    out.push(b'\n');
}

/// `<start> <len>`.
fn push_range(out: &mut Vec<u8>, range: ByteRange) {
    push_number(out, range.start());
    out.push(b' ');
    push_number(out, range.len());
}

/// The last words of a line; one that is empty is left out, together with the blank before it.
fn push_line_end(out: &mut Vec<u8>, words: &[&[u8]]) {
    for word in words.iter().filter(|word| !word.is_empty()) {
        out.push(b' ');
        out.extend_from_slice(word);
    }
    out.push(b'\n');
}

#[inline(never)]
pub(super) fn push_welcome(out: &mut Vec<u8>, welcome: Welcome<'_>, fence: bool) {
    out.extend_from_slice(b"ok latchd/");
    out.extend_from_slice(welcome.version.as_bytes());
    out.extend_from_slice(b" epoch=");
    push_number(out, welcome.epoch);
    out.extend_from_slice(if fence { b" fence=1" } else { b" fence=0" });
    if welcome.detects_deadlocks {
        out.extend_from_slice(b" deadlock=1");
    }
    if welcome.keeps {
        out.extend_from_slice(b" keep=1");
    }
    if let Some(shard) = welcome.shard {
        out.extend_from_slice(format!(" shard={shard}").as_bytes());
    }
    if let Some(ttl) = welcome.cluster_ttl {
        out.extend_from_slice(b" cluster_ttl=");
        push_number(out, ttl.0);
    }
    if let Some(name) = welcome.name {
        out.extend_from_slice(b" name=");
        out.extend_from_slice(name.as_bytes());
    }
    out.push(b'\n');
}

#[inline(never)]
pub(super) fn push_json(out: &mut Vec<u8>, write: &dyn Fn(&mut Vec<u8>)) {
    out.extend_from_slice(b"ok ");
    write(out);
    out.push(b'\n');
}

#[inline(never)]
pub(super) fn push_push(out: &mut Vec<u8>, push: &Push) {
    match push {
        Push::Lost { key, fence, why } => {
            out.extend_from_slice(b"lost ");
            out.extend_from_slice(key.as_bytes());
            out.push(b' ');
            push_number(out, fence.0);
            out.push(b' ');
            out.extend_from_slice(loss_word(*why));
            out.push(b'\n');
        }
        Push::RangeLost {
            resource,
            range,
            owner,
            why,
        } => {
            out.extend_from_slice(b"rangelost ");
            out.extend_from_slice(resource.as_bytes());
            out.push(b' ');
            push_range(out, *range);
            push_line_end(out, &[loss_word(*why), owner.as_bytes()]);
        }
        Push::Signal { channel, payload } => {
            push_line(out, &[b"sig ", channel, b" ", payload]);
        }
        Push::Watch { event, key } => {
            push_line(out, &[b"watch ", event_word(*event), b" ", key.as_bytes()]);
        }
        Push::Leader { change, key } => {
            push_line(
                out,
                &[b"leader ", change_word(*change), b" ", key.as_bytes()],
            );
        }
    }
}

/// Writes down the words of a type once, for those who spell and for those who read them.
macro_rules! words {
    ($spell:ident, $read:ident: $type:ident { $($variant:ident = $word:literal)* }) => {
        pub(super) const fn $spell(it: $type) -> &'static [u8] {
            match it {
                $($type::$variant => $word,)*
            }
        }

        pub(super) const fn $read(word: &[u8]) -> Option<$type> {
            match word {
                $($word => Some($type::$variant),)*
                _ => None,
            }
        }
    };
}

words! {
    event_word, event: Event {
        Acquire = b"acquire"
        Release = b"release"
        Incr = b"incr"
        Decr = b"decr"
        Cset = b"cset"
        Kset = b"kset"
        Kdel = b"kdel"
        Kcas = b"kcas"
        Lpush = b"lpush"
        Rpush = b"rpush"
        Lpop = b"lpop"
        Rpop = b"rpop"
        Blpop = b"blpop"
        Brpop = b"brpop"
        Elect = b"elect"
        Resign = b"resign"
    }
}

words! {
    change_word, change: Change {
        Elected = b"elected"
        Resigned = b"resigned"
        Failover = b"failover"
    }
}

words! {
    loss_word, loss: Loss {
        Expired = b"expired"
        Broken = b"broken"
    }
}

words! {
    sharing_word, sharing: Sharing {
        Shared = b"sh"
        Exclusive = b"ex"
    }
}

fn push_line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.reserve(parts.iter().map(|part| part.len()).sum::<usize>() + 1);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.push(b'\n');
}

const fn refusal_line(refusal: Refusal) -> &'static [u8] {
    match refusal {
        Refusal::NotHolder
        | Refusal::Overflow
        | Refusal::RangeTooLong
        | Refusal::BadPattern
        | Refusal::MaxSubscriptions
        | Refusal::OtherClient
        | Refusal::UnknownClient
        | Refusal::Detached => ERROR,
        Refusal::BadRange => b"error_range\n",
        Refusal::Busy => b"error_busy\n",
        Refusal::MaxRangesOfResource | Refusal::MaxRangesOfClient | Refusal::MaxRanges => {
            b"error_limit\n"
        }
        Refusal::WrongSecret => ERROR_AUTH,
        Refusal::MaxClients => b"error_limit\n",
        Refusal::AdapterFull => b"error_max_clients\n",
        Refusal::TypeMismatch => b"error_type_mismatch\n",
        Refusal::LimitMismatch => b"error_limit_mismatch\n",
        Refusal::MaxLocks => b"error_max_locks\n",
        Refusal::MaxWaiters => b"error_max_waiters\n",
        Refusal::NotEnqueued => b"error_not_enqueued\n",
        Refusal::AlreadyEnqueued => b"error_already_enqueued\n",
        Refusal::LeaseExpired => b"error_lease_expired\n",
        Refusal::Draining => b"error_draining\n",
        Refusal::MaxKeys => b"error_max_keys\n",
        Refusal::Memory => b"error_memory\n",
        Refusal::Storage => b"error_storage\n",
        Refusal::Reclaim => b"error_reclaim\n",
        Refusal::NoGrace => b"error_no_grace\n",
        Refusal::Deadlock => b"error_deadlock\n",
        Refusal::ListFull => b"error_list_full\n",
        Refusal::CountMismatch => b"error_barrier_count_mismatch\n",
    }
}

fn push_grant(out: &mut Vec<u8>, word: &[u8], token: Token, lease: Millis, with_fence: bool) {
    out.reserve(REPLY_BYTES_MAX);
    out.extend_from_slice(word);
    out.extend_from_slice(&token.hex());
    out.push(b' ');
    push_lease_and_fence(out, lease, with_fence.then_some(token.fence));
}

/// Whole seconds as dflockd prints them; anything finer in `ms`.
#[inline]
pub(super) fn push_span(out: &mut Vec<u8>, span: Millis) {
    if span.0.is_multiple_of(1_000) {
        push_number(out, span.0 / 1_000);
    } else {
        push_number(out, span.0);
        out.extend_from_slice(b"ms");
    }
}

fn push_lease_and_fence(out: &mut Vec<u8>, lease: Millis, fence: Option<Fence>) {
    push_span(out, lease);
    if let Some(fence) = fence {
        out.push(b' ');
        push_number(out, fence.0);
    }
    out.push(b'\n');
}

//! Everything that is said to a client: an [`Answer`], and how the line protocol spells it.
//!
//! Always exactly one line, always ended by LF, appended in one go so that a push can stand between
//! answers but never inside one. Never decides who gets a line.

use std::fmt;

use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ByteRange, Change, Event, GraceState, HeldRange, Loss, Push, Refusal, Reply, Sharing, Value,
};
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

/// Longest line that says a [`Reply`], but for those that carry values or name somebody: `acquired`,
/// token, lease in ms, fence.
pub const REPLY_BYTES_MAX: usize = 9 + 32 + 1 + 15 + 1 + 16 + 1;

/// Longest line that carries values: what dflockd's clients still read. A part of a list that needs
/// more is answered `error`. The engine refuses all of those, so that the long line is not spelled in
/// vain; here it is made sure.
pub const VALUES_BYTES_MAX: usize = 1024 * 1024;

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
        &Reply::Attached { epoch, is_new } => {
            out.extend_from_slice(b"ok ");
            push_number(out, epoch);
            out.extend_from_slice(if is_new { b" new\n" } else { b" resumed\n" });
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

fn push_values(out: &mut Vec<u8>, values: &[Value]) {
    const END: &[u8] = b"]\n";
    let start = out.len();
    // At once, instead of doubling up to a megabyte; each value has its quotes and its comma.
    out.reserve(values.iter().map(|value| value.len() + 3).sum());
    out.extend_from_slice(b"ok [");
    for (index, value) in values.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"" } else { b"," });
        json::push_str_escaped(out, value);
        if out.len() - start + END.len() > VALUES_BYTES_MAX {
            out.truncate(start);
            return out.extend_from_slice(ERROR);
        }
    }
    out.extend_from_slice(END);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::types::{End, Popped};
    use crate::key::Key;
    use crate::wire::args;

    const TOKEN: Token = Token {
        fence: Fence(42),
        salt: 0x9f8e_7d6c_5b4a_3921,
    };

    fn spelled(reply: &Reply, with_fence: bool) -> String {
        let mut out = b"before\n".to_vec();
        push_reply(&mut out, reply, with_fence, || with_fence);
        let text = String::from_utf8(out).unwrap();
        text.strip_prefix("before\n").unwrap().to_owned()
    }

    #[test]
    fn grants_and_renewals_are_spelled_as_the_contract_says() {
        let lease = Millis::from_secs(33);
        let odd = Millis(1_500);
        let fence = Fence(42);
        for (reply, plain, fenced) in [
            (
                Reply::Granted {
                    token: TOKEN,
                    lease,
                },
                "ok 000000000000002a9f8e7d6c5b4a3921 33\n",
                "ok 000000000000002a9f8e7d6c5b4a3921 33 42\n",
            ),
            (
                Reply::Acquired {
                    token: TOKEN,
                    lease: odd,
                },
                "acquired 000000000000002a9f8e7d6c5b4a3921 1500ms\n",
                "acquired 000000000000002a9f8e7d6c5b4a3921 1500ms 42\n",
            ),
            (Reply::Renewed { lease, fence }, "ok 33\n", "ok 33 42\n"),
            (
                Reply::Renewed { lease: odd, fence },
                "ok 1500ms\n",
                "ok 1500ms 42\n",
            ),
        ] {
            assert_eq!(spelled(&reply, false), plain);
            assert_eq!(spelled(&reply, true), fenced);
        }
    }

    fn attached(epoch: u64, is_new: bool) -> Reply {
        Reply::Attached { epoch, is_new }
    }

    #[test]
    fn other_answers_never_carry_a_fence() {
        for (reply, line) in [
            (Reply::Queued, "queued\n"),
            (Reply::Done, "ok\n"),
            (Reply::Number(0), "ok 0\n"),
            (Reply::Number(u32::MAX.into()), "ok 4294967295\n"),
            (Reply::Number(-5), "ok -5\n"),
            (Reply::Number(i64::MIN), "ok -9223372036854775808\n"),
            (Reply::Nothing, "nil\n"),
            (Reply::Conflict, "cas_conflict\n"),
            (Reply::TimedOut, "timeout\n"),
            (Reply::Refused(Refusal::NotHolder), "error\n"),
            (
                Reply::Refused(Refusal::TypeMismatch),
                "error_type_mismatch\n",
            ),
            (
                Reply::Refused(Refusal::LimitMismatch),
                "error_limit_mismatch\n",
            ),
            (Reply::Refused(Refusal::MaxLocks), "error_max_locks\n"),
            (Reply::Refused(Refusal::MaxWaiters), "error_max_waiters\n"),
            (Reply::Refused(Refusal::NotEnqueued), "error_not_enqueued\n"),
            (
                Reply::Refused(Refusal::AlreadyEnqueued),
                "error_already_enqueued\n",
            ),
            (
                Reply::Refused(Refusal::LeaseExpired),
                "error_lease_expired\n",
            ),
            (Reply::Refused(Refusal::Draining), "error_draining\n"),
            (Reply::Refused(Refusal::MaxKeys), "error_max_keys\n"),
            (Reply::Refused(Refusal::Memory), "error_memory\n"),
            (Reply::Refused(Refusal::Storage), "error_storage\n"),
            (Reply::Refused(Refusal::Reclaim), "error_reclaim\n"),
            (Reply::Refused(Refusal::NoGrace), "error_no_grace\n"),
            (Reply::Refused(Refusal::Deadlock), "error_deadlock\n"),
            (Reply::Refused(Refusal::ListFull), "error_list_full\n"),
            (Reply::Refused(Refusal::WrongSecret), "error_auth\n"),
            (Reply::Refused(Refusal::MaxClients), "error_limit\n"),
            (Reply::Refused(Refusal::OtherClient), "error\n"),
            (Reply::Refused(Refusal::UnknownClient), "error\n"),
            (Reply::Refused(Refusal::Detached), "error\n"),
            (Reply::Refused(Refusal::BadRange), "error_range\n"),
            (Reply::Refused(Refusal::Busy), "error_busy\n"),
            (
                Reply::Refused(Refusal::MaxRangesOfResource),
                "error_limit\n",
            ),
            (Reply::Refused(Refusal::MaxRangesOfClient), "error_limit\n"),
            (Reply::Refused(Refusal::MaxRanges), "error_limit\n"),
            (Reply::RangeFree, "ok free\n"),
            (Reply::Cancelled, "ok cancelled\n"),
            (Reply::AlreadyGranted, "ok granted\n"),
            (Reply::Grace(GraceState::default()), "ok 0 0 0\n"),
            (
                Reply::Grace(GraceState {
                    left: Millis(89_999),
                    expected: u32::MAX,
                    done: 7,
                }),
                "ok 89999 4294967295 7\n",
            ),
            (attached(u64::MAX, true), "ok 18446744073709551615 new\n"),
            (attached(7, false), "ok 7 resumed\n"),
            (
                Reply::Refused(Refusal::CountMismatch),
                "error_barrier_count_mismatch\n",
            ),
            (Reply::Refused(Refusal::Overflow), "error\n"),
            (Reply::Refused(Refusal::RangeTooLong), "error\n"),
            (Reply::Refused(Refusal::BadPattern), "error\n"),
            (Reply::Refused(Refusal::MaxSubscriptions), "error\n"),
        ] {
            assert_eq!(spelled(&reply, false), line);
            assert_eq!(spelled(&reply, true), line);
            assert!(line.len() <= REPLY_BYTES_MAX, "{line}");
        }
    }

    fn held(mode: Sharing, range: (u64, u64), client: &str, owner: &str) -> Reply {
        Reply::RangeHeld(Box::new(HeldRange {
            mode,
            range: ByteRange::new(range.0, range.1).unwrap(),
            client: client.into(),
            owner: Key::from(owner.as_bytes()),
            pending: false,
        }))
    }

    #[test]
    fn a_range_in_the_way_is_told_with_its_client_and_its_owner() {
        for (reply, line) in [
            (
                held(Sharing::Shared, (0, 100), "gw/1", "bob"),
                "ok held sh 0 100 gw/1 bob\n",
            ),
            (
                held(Sharing::Exclusive, (7, 0), "#12", ""),
                "ok held ex 7 0 #12\n",
            ),
            (
                held(Sharing::Exclusive, ((1 << 53) + 1, (1 << 63) + 1), "#1", ""),
                "ok held ex 9007199254740993 9223372036854775809 #1\n",
            ),
            // Up to the last byte there can be, which is to the end.
            (
                held(Sharing::Shared, (u64::MAX, 1), "#1", "o"),
                "ok held sh 18446744073709551615 0 #1 o\n",
            ),
        ] {
            assert_eq!(spelled(&reply, false), line);
            assert_eq!(spelled(&reply, true), line);
        }
    }

    #[test]
    fn only_who_said_hello_hears_how_long_the_grace_period_lasts() {
        let reply = Reply::InGrace(Millis(1_500));
        for (introduced, line) in [(false, "error_grace\n"), (true, "error_grace 1500\n")] {
            for with_fence in [false, true] {
                let mut out = Vec::new();
                push_reply(&mut out, &reply, introduced, || with_fence);
                assert_eq!(out, line.as_bytes());
            }
        }
    }

    fn value(bytes: &[u8]) -> Value {
        bytes.into()
    }

    #[test]
    fn a_value_is_told_byte_by_byte() {
        for (bytes, line) in [
            (&b"v"[..], &b"ok v\n"[..]),
            (b"a b", b"ok a b\n"),
            (b" \ta ", b"ok  \ta \n"),
            (b"a\xff\0", b"ok a\xff\0\n"),
        ] {
            let popped = Popped {
                key: Key::from(&b"q"[..]),
                end: End::Left,
                value: value(bytes),
            };
            for reply in [Reply::Value(value(bytes)), Reply::Popped(popped)] {
                let mut out = Vec::new();
                push_reply(&mut out, &reply, true, || true);
                assert_eq!(out, line);
            }
        }
    }

    #[test]
    fn a_part_of_a_list_is_told_as_json() {
        for (values, line) in [
            (&[][..], "ok []\n"),
            (&[&b"a b"[..]], "ok [\"a b\"]\n"),
            (&[b"1", b"[2]", b","], "ok [\"1\",\"[2]\",\",\"]\n"),
            (&[b"a\"b\\\t\x01"], "ok [\"a\\\"b\\\\\\t\\u0001\"]\n"),
            (
                &[b"a\xffb", b"\xf0\x9f"],
                "ok [\"a\u{fffd}b\",\"\u{fffd}\"]\n",
            ),
            (&["clé<&>".as_bytes()], "ok [\"clé<&>\"]\n"),
        ] {
            let reply = Reply::Values(values.iter().copied().map(value).collect());
            assert_eq!(spelled(&reply, true), line);
        }
    }

    #[test]
    fn a_part_of_a_list_too_long_to_be_read_is_refused() {
        let of = |bytes: &[u8], n| spelled(&Reply::Values(vec![value(bytes); n]), false);
        // Each with its quotes and a comma, but for the last one, which has none.
        let (each, frame) = (64, b"ok []\n".len());
        let fits = (VALUES_BYTES_MAX - frame + 1) / each;
        let line = of(&[b'v'; 61], fits);
        assert!(line.starts_with("ok [") && line.len() <= VALUES_BYTES_MAX);
        assert_eq!(of(&[b'v'; 61], fits + 1), "error\n");
        let longest = of(&vec![b'v'; VALUES_BYTES_MAX - frame - 2], 1);
        assert_eq!(longest.len(), VALUES_BYTES_MAX);
        assert_eq!(of(&vec![b'v'; VALUES_BYTES_MAX - frame - 1], 1), "error\n");
        // Half a MiB of control bytes is three when escaped.
        assert_eq!(of(&[1; 65_536], 8), "error\n");
    }

    fn pushed(push: &Push) -> String {
        let mut out = Vec::new();
        push_push(&mut out, push);
        out.escape_ascii().to_string()
    }

    #[test]
    fn a_lost_lease_is_told_by_key_and_fence() {
        let push = Push::Lost {
            key: Key::from(&b"my-job"[..]),
            fence: Fence(7),
            why: Loss::Expired,
        };
        assert_eq!(pushed(&push), r"lost my-job 7 expired\n");
        let push = Push::Lost {
            key: Key::from(&b"my-job"[..]),
            fence: Fence(7),
            why: Loss::Broken,
        };
        assert_eq!(pushed(&push), r"lost my-job 7 broken\n");
    }

    #[test]
    fn a_lost_range_is_told_by_its_bytes_and_its_owner() {
        for (len, owner, why, line) in [
            (10, "", Loss::Broken, r"rangelost f 5 10 broken\n"),
            (0, "bob", Loss::Expired, r"rangelost f 5 0 expired bob\n"),
        ] {
            let push = Push::RangeLost {
                resource: Key::from(&b"f"[..]),
                range: ByteRange::new(5, len).unwrap(),
                owner: Key::from(owner.as_bytes()),
                why,
            };
            assert_eq!(pushed(&push), line);
        }
    }

    #[test]
    fn a_signal_is_told_as_it_was_sent() {
        for (payload, line) in [
            (&b"hi there"[..], r"sig evt.x hi there\n"),
            (b" \t x\xff", r"sig evt.x  \t x\xff\n"),
        ] {
            let (channel, payload) = (value(b"evt.x"), value(payload));
            assert_eq!(pushed(&Push::Signal { channel, payload }), line);
        }
    }

    #[test]
    fn a_change_is_told_by_the_word_of_its_verb() {
        for (event, word) in [
            (Event::Acquire, "acquire"),
            (Event::Release, "release"),
            (Event::Incr, "incr"),
            (Event::Decr, "decr"),
            (Event::Cset, "cset"),
            (Event::Kset, "kset"),
            (Event::Kdel, "kdel"),
            (Event::Kcas, "kcas"),
            (Event::Lpush, "lpush"),
            (Event::Rpush, "rpush"),
            (Event::Lpop, "lpop"),
            (Event::Rpop, "rpop"),
            (Event::Blpop, "blpop"),
            (Event::Brpop, "brpop"),
            (Event::Elect, "elect"),
            (Event::Resign, "resign"),
        ] {
            let key = Key::from(&b"k"[..]);
            assert_eq!(
                pushed(&Push::Watch { event, key }),
                format!(r"watch {word} k\n")
            );
        }
        for (change, word) in [
            (Change::Elected, "elected"),
            (Change::Resigned, "resigned"),
            (Change::Failover, "failover"),
        ] {
            let key = Key::from(&b"k"[..]);
            assert_eq!(
                pushed(&Push::Leader { change, key }),
                format!(r"leader {word} k\n")
            );
        }
    }

    #[test]
    fn the_longest_reply_fits_its_bound() {
        let longest = Reply::Acquired {
            token: Token {
                fence: Fence(Fence::LIMIT - 1),
                salt: u64::MAX,
            },
            lease: Millis(Millis::MAX.0 - 1),
        };
        assert_eq!(spelled(&longest, true).len(), REPLY_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn a_grant_reads_back_as_it_was_written(
            fence in 1..Fence::LIMIT,
            salt: u64,
            lease in 1..=Millis::MAX.0,
        ) {
            let token = Token { fence: Fence(fence), salt };
            let line = spelled(&Reply::Granted { token, lease: Millis(lease) }, true);
            let fields: Vec<&str> = line.trim_end().split(' ').collect();
            prop_assert_eq!(fields.len(), 4);
            prop_assert_eq!(Token::parse(fields[1].as_bytes()), Some(token));
            prop_assert_eq!(args::lease(fields[2].as_bytes()), Ok(Millis(lease)));
            prop_assert_eq!(fields[3].parse(), Ok(fence));
        }
    }
}

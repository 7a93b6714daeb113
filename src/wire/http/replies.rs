//! What the lock table's replies look like over HTTP: one match over routes, then one over replies.
//!
//! Leases as LockServer spells them, and everything else in the same manner. Never decides anything;
//! what the reply itself does not say, such as the time of day when a lease ends, is handed in as
//! [`Facts`].

use super::answer::{json, problem};
use super::base64;
use super::context::{Context, push_uuid};
use super::object::{field, flag, signed, text};
use super::problem::{self, NOT_HELD, Problem, busy};
use super::range_replies;
use super::routes::Route;
use crate::base::Token;
use crate::engine::types::{HeldRange, ListForm, Mode, Refusal, Reply};
use crate::wire::answer::VALUES_BYTES_MAX;
use crate::wire::json::push_str_escaped;

/// What an answer says and a reply does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// When the lease that was granted or renewed ends: the time of day, in milliseconds since 1970.
    pub lease_expiry_ms: u64,
    /// Who holds the key that was not granted, if somebody does.
    pub holder: Option<Holding<'a>>,
    /// How long the value that was read lives, if not for ever.
    pub ttl_ms: Option<u64>,
    /// How long the list is of which a part was read.
    pub length: u64,
    /// The range lock that is in the way of one that was not granted, if there is one.
    pub conflict: Option<Box<HeldRange>>,
    /// Whether some bytes are kept for those who held them before a restart.
    pub in_grace: bool,
}

/// Who holds a key that somebody else asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding<'a> {
    /// Its owner; empty if it has no name.
    pub owner: &'a str,
    /// When the lease ends: the time of day, in milliseconds since 1970.
    pub expiry_ms: u64,
    /// How long that is from now.
    pub left_ns: u64,
}

/// A lease, as somebody sees it who does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseShown<'a> {
    /// Its owner; empty if it has no name.
    pub owner: &'a str,
    /// The token of the grant.
    pub token: Token,
    /// Whether the whole token is told, and not only its fence: whoever has it can release.
    pub with_secret: bool,
    /// When the lease ends: the time of day, in milliseconds since 1970.
    pub expiry_ms: u64,
    /// Of the last change.
    pub version: u64,
}

/// When to ask again for what is held for so long: a quarter of it, within bounds.
#[must_use]
pub fn retry_ms(left_ns: u64) -> u64 {
    (left_ns / 4).clamp(25_000_000, 1_000_000_000) / 1_000_000
}

/// When to ask again a store that has no room.
const BUSY_RETRY_MS: u64 = 50;

/// The answer to a request that the table has replied to.
pub fn reply(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) {
    let Some(route) = context.route else {
        return problem(out, context, &UNEXPECTED);
    };
    match route {
        Route::AcquireLock | Route::AcquireSlot | Route::AcquireReadWrite => {
            acquired(out, context, reply, facts, "acquired");
        }
        Route::Elect => acquired(out, context, reply, facts, "elected"),
        Route::RenewLock | Route::RenewSlot | Route::RenewReadWrite | Route::RenewLead => {
            renewed(out, context, reply, facts);
        }
        Route::ReleaseLock | Route::ReleaseSlot | Route::ReleaseReadWrite => {
            released(out, context, reply, "released");
        }
        Route::Resign => released(out, context, reply, "resigned"),
        Route::GetCounter | Route::SetCounter | Route::AddToCounter => counted(out, context, reply),
        Route::GetValue => fetched(out, context, reply, facts),
        Route::PutValue => stored(out, context, reply),
        Route::DeleteValue => done(out, context, reply, b"{\"deleted\":true}"),
        Route::PushToList => number(out, context, reply, "length"),
        Route::PopFromList => popped(out, context, reply),
        Route::GetList => listed(out, context, reply, facts),
        Route::WaitAtBarrier => met(out, context, reply),
        Route::SendSignal => number(out, context, reply, "receivers"),
        Route::LockRange => range_replies::locked(out, context, reply, facts, "locked"),
        Route::ReclaimRange => range_replies::locked(out, context, reply, facts, "reclaimed"),
        Route::UnlockRange => range_replies::unlocked(out, context, reply),
        Route::TestRange => range_replies::tested(out, context, reply, facts),
        Route::CancelRange => range_replies::cancelled(out, context, reply),
        Route::BreakRanges | Route::BreakRangesOf => number(out, context, reply, "broken"),
        Route::RegisterClient => range_replies::registered(out, context, reply),
        Route::DetachClient => range_replies::detached(out, context, reply),
        Route::EndReclaim => range_replies::reclaim_ended(out, context, reply),
        Route::GetGrace | Route::EndGrace => range_replies::grace(out, context, reply),
        Route::BreakHold => match reply {
            Reply::Refused(Refusal::NotHolder) => problem(out, context, &NOT_HELD),
            _ => done(out, context, reply, b"{\"broken\":true}"),
        },
        _ => other(out, context, reply),
    }
}

/// A refusal that is no answer to a request.
pub fn refusal(out: &mut Vec<u8>, context: &Context<'_>, refusal: Refusal) {
    problem(out, context, &refused(refusal));
}

/// Who holds a lock or leads an election.
pub fn lease(out: &mut Vec<u8>, context: &Context<'_>, shown: Option<&LeaseShown<'_>>) {
    let word = if context.route == Some(Route::GetElection) {
        "elected"
    } else {
        "held"
    };
    json(out, context, 200, |out| {
        lock_name(out, b"{", context);
        let Some(it) = shown else {
            flag(out, word, false);
            return out.push(b'}');
        };
        flag(out, word, true);
        if !it.owner.is_empty() {
            text(out, "owner_id", it.owner);
        }
        if it.with_secret {
            lease_id(out, it.token);
        }
        field(out, "fencing_token", it.token.fence.0);
        field(out, "lease_expiry_ms", it.expiry_ms);
        field(out, "version", it.version);
        out.push(b'}');
    });
}

fn acquired(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    reply: &Reply,
    facts: &Facts<'_>,
    word: &str,
) {
    match *reply {
        Reply::Granted { token, .. } => json(out, context, 200, |out| {
            begin(out, word, true);
            lock_name(out, b",", context);
            text(out, "owner_id", context.owner);
            lease_id(out, token);
            field(out, "fencing_token", token.fence.0);
            field(out, "lease_expiry_ms", facts.lease_expiry_ms);
            push_mode(out, context);
            out.push(b'}');
        }),
        Reply::TimedOut => json(out, context, 409, |out| {
            begin(out, word, false);
            lock_name(out, b",", context);
            if let Some(holder) = facts.holder {
                if !holder.owner.is_empty() {
                    text(out, "current_owner_id", holder.owner);
                }
                field(out, "current_expiry_ms", holder.expiry_ms);
            }
            let left_ns = facts.holder.map_or(0, |it| it.left_ns);
            field(out, "recommended_retry_ms", retry_ms(left_ns));
            text(out, "reason", "HELD");
            out.push(b'}');
        }),
        Reply::Refused(Refusal::Storage) if context.is_lease => json(out, context, 409, |out| {
            begin(out, word, false);
            lock_name(out, b",", context);
            field(out, "recommended_retry_ms", BUSY_RETRY_MS);
            text(out, "reason", "BUSY_RETRY");
            out.push(b'}');
        }),
        Reply::Refused(
            refusal @ (Refusal::TypeMismatch | Refusal::LimitMismatch | Refusal::Deadlock),
        ) => {
            let Problem {
                text: why, reason, ..
            } = refused(refusal);
            json(out, context, 409, |out| {
                begin(out, word, false);
                lock_name(out, b",", context);
                text(out, "error", why);
                text(out, "reason", reason);
                out.push(b'}');
            });
        }
        _ => other(out, context, reply),
    }
}

fn renewed(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) {
    match reply {
        Reply::Renewed { .. } => json(out, context, 200, |out| {
            begin(out, "renewed", true);
            field(out, "lease_expiry_ms", facts.lease_expiry_ms);
            out.push(b'}');
        }),
        Reply::Refused(Refusal::NotHolder | Refusal::LeaseExpired) => {
            denied(out, context, 409, "renewed", "NOT_OWNER_OR_EXPIRED");
        }
        Reply::Refused(Refusal::Storage) if context.is_lease => {
            denied(out, context, 409, "renewed", "BUSY_RETRY");
        }
        _ => other(out, context, reply),
    }
}

/// A well-formed release is always answered 200, so that it can be sent again.
fn released(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, word: &str) {
    match reply {
        Reply::Done => json(out, context, 200, |out| {
            begin(out, word, true);
            out.push(b'}');
        }),
        Reply::Refused(Refusal::NotHolder | Refusal::LeaseExpired) => {
            denied(out, context, 200, word, "NOT_OWNER");
        }
        Reply::Refused(Refusal::Storage) if context.is_lease => {
            denied(out, context, 200, word, "BUSY_RETRY");
        }
        _ => other(out, context, reply),
    }
}

/// `{"renewed":false,"reason":"…"}`.
fn denied(out: &mut Vec<u8>, context: &Context<'_>, status: u16, word: &str, reason: &str) {
    json(out, context, status, |out| {
        begin(out, word, false);
        text(out, "reason", reason);
        out.push(b'}');
    });
}

fn counted(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    let value = match *reply {
        Reply::Number(value) => value,
        Reply::Done => context.number,
        _ => return other(out, context, reply),
    };
    json(out, context, 200, |out| {
        name(out, context);
        signed(out, "value", value);
        out.push(b'}');
    });
}

fn fetched(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) {
    match reply {
        Reply::Value(value) => json(out, context, 200, |out| {
            name(out, context);
            out.push(b',');
            push_value(out, value);
            if let Some(ttl_ms) = facts.ttl_ms {
                field(out, "ttl_ms", ttl_ms);
            }
            out.push(b'}');
        }),
        Reply::Nothing => problem(out, context, &NO_VALUE),
        _ => other(out, context, reply),
    }
}

fn stored(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    match reply {
        Reply::Conflict => denied(out, context, 409, "stored", "CONFLICT"),
        _ => done(out, context, reply, b"{\"stored\":true}"),
    }
}

fn popped(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    match reply {
        Reply::Popped(popped) => json(out, context, 200, |out| {
            out.push(b'{');
            push_value(out, &popped.value);
            out.push(b'}');
        }),
        Reply::Nothing | Reply::TimedOut => json(out, context, 200, |out| {
            out.extend_from_slice(b"{\"value\":null}");
        }),
        _ => other(out, context, reply),
    }
}

fn listed(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) {
    let Reply::Values(values) = reply else {
        return other(out, context, reply);
    };
    json(out, context, 200, |out| {
        name(out, context);
        field(out, "length", facts.length);
        out.extend_from_slice(b",\"values\":[");
        out.extend_from_slice(values);
        out.extend_from_slice(b"]}");
    });
}

/// How a part of a list is written over HTTP. The name and the length of the list precede it: a
/// name has 256 bytes at most, and each is escaped to six at most.
pub(super) const LIST_FORM: ListForm = ListForm {
    push: push_listed,
    bytes_max: VALUES_BYTES_MAX - 2_048,
};

fn push_listed(out: &mut Vec<u8>, value: &[u8]) {
    if str::from_utf8(value).is_ok() {
        push_str_escaped(out, value);
    } else {
        out.push(b'{');
        push_value(out, value);
        out.push(b'}');
    }
}

fn met(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    match reply {
        Reply::TimedOut => denied(out, context, 409, "met", "TIMEOUT"),
        Reply::Refused(Refusal::CountMismatch) => {
            denied(out, context, 409, "met", "COUNT_MISMATCH");
        }
        _ => done(out, context, reply, b"{\"met\":true}"),
    }
}

/// An answer that is a number.
fn number(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, title: &str) {
    let Reply::Number(number) = *reply else {
        return other(out, context, reply);
    };
    json(out, context, 200, |out| {
        out.extend_from_slice(b"{\"");
        out.extend_from_slice(title.as_bytes());
        out.extend_from_slice(b"\":");
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        out.push(b'}');
    });
}

/// An answer that says only yes.
pub(super) fn done(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, yes: &[u8]) {
    match reply {
        Reply::Done => json(out, context, 200, |out| out.extend_from_slice(yes)),
        _ => other(out, context, reply),
    }
}

/// What every route may be told, and no route has words of its own for.
pub(super) fn other(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    match reply {
        Reply::Refused(refusal) => problem(out, context, &refused(*refusal)),
        _ => problem(out, context, &UNEXPECTED),
    }
}

/// The table has replied what this route cannot be told.
const UNEXPECTED: Problem<'static> = Problem::new(
    500,
    "UNEXPECTED",
    "the server has no answer to this; report what you asked",
);

const NO_VALUE: Problem<'static> =
    Problem::new(404, "NO_VALUE", "there is no such value; store one first");

/// The problem that a refusal is.
pub(super) const fn refused(refusal: Refusal) -> Problem<'static> {
    match refusal {
        Refusal::NotHolder => Problem::new(409, "NOT_HOLDER", "the token does not hold this key"),
        Refusal::LeaseExpired => Problem::new(409, "LEASE_EXPIRED", "the lease is over"),
        Refusal::TypeMismatch => Problem::new(
            409,
            "TYPE_MISMATCH",
            "the name is in use for another kind of lock; use another name, or the other route",
        ),
        Refusal::LimitMismatch => Problem::new(
            409,
            "LIMIT_MISMATCH",
            "the semaphore has another number of slots; ask with the same limit as the others",
        ),
        Refusal::CountMismatch => Problem::new(
            409,
            "COUNT_MISMATCH",
            "the barrier is for another number of clients; ask with the same count as the others",
        ),
        Refusal::NotEnqueued => Problem::new(409, "NOT_ENQUEUED", "there is no place in the queue"),
        Refusal::AlreadyEnqueued => Problem::new(
            409,
            "ALREADY_ENQUEUED",
            "there is a place in the queue already",
        ),
        Refusal::Overflow => Problem::new(
            409,
            "OVERFLOW",
            "the sum does not fit into 64 bits; nothing was added",
        ),
        Refusal::Reclaim => Problem::new(409, "RECLAIM", "the token does not hold this key"),
        Refusal::Deadlock => Problem::new(
            409,
            "DEADLOCK",
            "everybody before this request waits for its owner; release something and ask again",
        ),
        Refusal::NoGrace => Problem::new(409, "NO_GRACE", "no grant was restored"),
        Refusal::WrongSecret => problem::WRONG_SECRET,
        Refusal::OtherClient => Problem::new(
            409,
            "OTHER_CLIENT",
            "the connection is attached to another client",
        ),
        Refusal::UnknownClient => Problem::new(
            404,
            "UNKNOWN_CLIENT",
            "there is no client of this id; register it first, and again before its time is over",
        ),
        Refusal::Detached => Problem::new(409, "DETACHED", "the client was detached"),
        Refusal::BadRange => problem::BAD_RANGE,
        Refusal::Busy => Problem::new(
            409,
            "BUSY",
            "this owner waits for other bytes already; cancel that, or wait for its end",
        ),
        Refusal::MaxRangesOfResource => busy(
            "MAX_RANGES_OF_RESOURCE",
            "there is no room for another range lock on this resource; see --max-range-locks-per-resource",
        ),
        Refusal::MaxRangesOfClient => busy(
            "MAX_RANGES_OF_CLIENT",
            "there is no room for another range lock of this client; see --max-range-locks-per-client",
        ),
        Refusal::MaxRanges => busy(
            "MAX_RANGES",
            "there is no room for another range lock; see --max-range-locks",
        ),
        Refusal::MaxClients => busy(
            "MAX_CLIENTS",
            "there is no room for another client; see --max-clients-per-adapter",
        ),
        Refusal::AdapterFull => busy(
            "MAX_CLIENTS",
            "there is no room for another client of this adapter; see --max-clients",
        ),
        Refusal::RangeTooLong => Problem::new(
            413,
            "RANGE_TOO_LONG",
            "this part of the list is longer than 1 MiB or 65,536 values; ask for a smaller one with start and stop",
        ),
        Refusal::BadPattern => Problem::new(
            400,
            "BAD_PATTERN",
            "in a pattern * must be a whole word, and > the last one",
        ),
        Refusal::MaxLocks => busy(
            "MAX_LOCKS",
            "there is no room for another lock; see --max-locks and --max-holds",
        ),
        Refusal::MaxWaiters => busy(
            "MAX_WAITERS",
            "too many wait for this key; see --max-waiters",
        ),
        Refusal::MaxKeys => busy(
            "MAX_KEYS",
            "there is no room for another key; see --max-keys",
        ),
        Refusal::ListFull => busy(
            "LIST_FULL",
            "the list is full; take something out, or see --max-list-length",
        ),
        Refusal::MaxSubscriptions => busy(
            "MAX_SUBSCRIPTIONS",
            "there are as many subscriptions as may be; see --max-subscriptions",
        ),
        Refusal::Memory => busy(
            "MEMORY",
            "so much memory is in use that nothing may grow; see --max-memory",
        ),
        Refusal::Storage => busy("STORAGE", "there is no room on disk for a change"),
        Refusal::Draining => busy(
            "DRAINING",
            "the server is shutting down and takes no new work",
        ),
    }
}

/// `{"acquired":true`.
pub(super) fn begin(out: &mut Vec<u8>, word: &str, yes: bool) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(if yes { b"\":true" } else { b"\":false" });
}

fn lock_name(out: &mut Vec<u8>, before: &[u8], context: &Context<'_>) {
    out.extend_from_slice(before);
    out.extend_from_slice(b"\"lock_name\":");
    push_str_escaped(out, context.name);
}

fn name(out: &mut Vec<u8>, context: &Context<'_>) {
    out.extend_from_slice(b"{\"name\":");
    push_str_escaped(out, context.name);
}

fn lease_id(out: &mut Vec<u8>, token: Token) {
    out.extend_from_slice(b",\"lease_id\":\"");
    push_uuid(out, [token.fence.0, token.salt]);
    out.push(b'"');
}

fn push_mode(out: &mut Vec<u8>, context: &Context<'_>) {
    match context.mode {
        Some(Mode::Slot { limit }) if !context.is_lease => field(out, "limit", limit.into()),
        Some(Mode::Slot { .. } | Mode::Lead) | None => {}
        Some(Mode::Read) => text(out, "mode", "read"),
        Some(Mode::Write) => text(out, "mode", "write"),
    }
}

/// A value as text; one that is none, in base 64 under another name.
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    if str::from_utf8(value).is_ok() {
        out.extend_from_slice(b"\"value\":");
        push_str_escaped(out, value);
    } else {
        out.extend_from_slice(b"\"value_base64\":\"");
        base64::push(out, value);
        out.push(b'"');
    }
}

#[cfg(test)]
#[path = "replies_tests.rs"]
mod tests;

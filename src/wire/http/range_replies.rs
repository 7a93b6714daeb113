//! What the replies about byte ranges, clients and the grace period look like over HTTP.
//!
//! Numbers of bytes are whole numbers of up to 64 bits, more than a double can carry exactly: readers
//! that make doubles of numbers have to take care.

use super::answer::{json, json_with};
use super::context::Context;
use super::object::{field, flag, text, title};
use super::problem::{Header, Problem};
use super::replies::{Facts, begin, done, other, refused};
use crate::base::Millis;
use crate::engine::types::{GraceState, HeldRange, Refusal, Reply};
use crate::wire::json::push_str_escaped;

pub(super) fn locked(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    reply: &Reply,
    facts: &Facts<'_>,
    word: &str,
) {
    match reply {
        Reply::Done => json(out, context, 200, |out| {
            begin_about(out, context, word, true);
            out.push(b'}');
        }),
        Reply::TimedOut => json(out, context, 409, |out| {
            begin_about(out, context, word, false);
            if let Some(conflict) = &facts.conflict {
                title(out, "conflict");
                held(out, conflict);
            }
            text(out, "reason", "HELD");
            out.push(b'}');
        }),
        Reply::Refused(Refusal::Reclaim) => not_locked(out, context, word, &NOT_PENDING),
        Reply::Refused(Refusal::NoGrace) => not_locked(out, context, word, &GRACE_IS_OVER),
        Reply::Refused(refusal @ (Refusal::Deadlock | Refusal::Busy | Refusal::Detached)) => {
            not_locked(out, context, word, &refused(*refusal));
        }
        Reply::InGrace(left) => in_grace(out, context, *left),
        _ => other(out, context, reply),
    }
}

const NOT_PENDING: Problem<'static> = Problem::new(
    409,
    "RECLAIM",
    "this owner did not hold these bytes so before the restart, or has them back already",
);

const GRACE_IS_OVER: Problem<'static> = Problem::new(
    409,
    "NO_GRACE",
    "there is nothing to have back now; lock the bytes instead",
);

fn not_locked(out: &mut Vec<u8>, context: &Context<'_>, word: &str, why: &Problem<'_>) {
    json(out, context, why.status, |out| {
        begin_about(out, context, word, false);
        text(out, "error", why.text);
        text(out, "reason", why.reason);
        out.push(b'}');
    });
}

/// The bytes are kept for those who held them before a restart. A client asks again when that is over
/// at the latest.
fn in_grace(out: &mut Vec<u8>, context: &Context<'_>, left: Millis) {
    let header = Header::RetryAfter(left.0.div_ceil(1_000).max(1));
    json_with(out, context, 503, header, |out| {
        out.extend_from_slice(b"{\"error\":");
        push_str_escaped(
            out,
            b"these bytes are kept for those who held them before the restart; ask again later",
        );
        text(out, "reason", "GRACE");
        field(out, "remaining_ms", left.0);
        out.push(b'}');
    });
}

pub(super) fn tested(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) {
    let conflict = match reply {
        Reply::RangeFree => None,
        Reply::RangeHeld(conflict) => Some(conflict),
        _ => return other(out, context, reply),
    };
    json(out, context, 200, |out| {
        begin_about(out, context, "free", conflict.is_none());
        if let Some(conflict) = conflict {
            title(out, "conflict");
            held(out, conflict);
        }
        flag(out, "in_grace", facts.in_grace);
        out.push(b'}');
    });
}

/// A cancel is always answered 200, so that it can be sent again.
pub(super) fn cancelled(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    let reason = match reply {
        Reply::Cancelled => None,
        Reply::AlreadyGranted => Some("GRANTED"),
        Reply::Nothing => Some("NOT_WAITING"),
        _ => return other(out, context, reply),
    };
    json(out, context, 200, |out| {
        begin_about(out, context, "cancelled", reason.is_none());
        if let Some(reason) = reason {
            text(out, "reason", reason);
        }
        out.push(b'}');
    });
}

pub(super) fn unlocked(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    match reply {
        Reply::Done => json(out, context, 200, |out| {
            begin_about(out, context, "unlocked", true);
            out.push(b'}');
        }),
        _ => other(out, context, reply),
    }
}

pub(super) fn registered(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    let &Reply::Attached {
        epoch,
        is_new,
        reclaim,
    } = reply
    else {
        return other(out, context, reply);
    };
    json(out, context, 200, |out| {
        out.extend_from_slice(b"{\"client\":");
        push_str_escaped(out, context.name);
        field(out, "epoch", epoch);
        text(out, "state", if is_new { "new" } else { "resumed" });
        if let Some(left) = reclaim {
            field(out, "reclaim_ms", left.0);
        }
        out.push(b'}');
    });
}

pub(super) fn detached(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    done(out, context, reply, b"{\"detached\":true}");
}

pub(super) fn reclaim_ended(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    done(out, context, reply, b"{\"done\":true}");
}

pub(super) fn grace(out: &mut Vec<u8>, context: &Context<'_>, reply: &Reply) {
    let &Reply::Grace(state) = reply else {
        return other(out, context, reply);
    };
    let GraceState {
        left,
        expected,
        done,
    } = state;
    json(out, context, 200, |out| {
        begin(out, "active", left > Millis::ZERO);
        field(out, "remaining_ms", left.0);
        field(out, "expected", expected.into());
        field(out, "done", done.into());
        out.push(b'}');
    });
}

/// `{"locked":true,"resource":"…"`.
fn begin_about(out: &mut Vec<u8>, context: &Context<'_>, word: &str, yes: bool) {
    begin(out, word, yes);
    title(out, "resource");
    push_str_escaped(out, context.name);
}

/// A range lock that is in the way.
fn held(out: &mut Vec<u8>, it: &HeldRange) {
    out.extend_from_slice(b"{\"client\":");
    push_str_escaped(out, it.client.as_bytes());
    title(out, "owner");
    push_str_escaped(out, it.owner.as_bytes());
    text(out, "mode", it.mode.word());
    field(out, "start", it.range.start());
    field(out, "len", it.range.len());
    flag(out, "pending", it.pending);
    out.push(b'}');
}

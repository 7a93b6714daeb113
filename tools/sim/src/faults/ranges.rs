//! What a server would do that is broken in one way with byte ranges: to see that the checks notice.
//!
//! The server itself is not touched. A request is changed on its way to it, or an answer on its way back,
//! or what it shows of itself.

use crate::RangeFault;
use crate::checks::seen_ranges::{Seen, SeenClient, SeenRanges, Who};
use crate::clients::connection::Connection;
use crate::clients::range_requests::RangeAsked;
use crate::clients::request::RequestKind;
use latchd::base::Millis;

/// The request as the server gets it.
pub(crate) fn altered(fault: RangeFault, kind: &RequestKind, frame: Vec<u8>) -> Vec<u8> {
    let (from, to) = match (fault, kind) {
        (RangeFault::IgnoreConflicts, RequestKind::Range(RangeAsked::Lock { .. })) => {
            ("\nex ", "\nsh ")
        }
        (RangeFault::GrantCancelled, RequestKind::Range(RangeAsked::Cancel(..))) => {
            ("rangecancel\n", "rangetest\n")
        }
        (RangeFault::ForgetDeadlocks, RequestKind::Hello) => ("deadlock=1", "deadlock=0"),
        _ => return frame,
    };
    let find = |part: &[u8]| part == from.as_bytes();
    let Some(at) = frame.windows(from.len()).position(find) else {
        return frame;
    };
    let (before, rest) = (&frame[..at], &frame[at + from.len()..]);
    [before, to.as_bytes(), rest].concat()
}

/// The answer as the client reads it.
pub(crate) fn heard(fault: RangeFault, conn: &Connection, line: Vec<u8>) -> Vec<u8> {
    let asked = match conn.open_requests.front().map(|it| &it.kind) {
        Some(RequestKind::Range(asked)) => asked,
        Some(RequestKind::Acquire { wait, .. })
            if fault == RangeFault::ReportKeyDeadlocks
                && conn.tells_deadlocks
                && *wait > Millis::ZERO
                && line == b"timeout" =>
        {
            return b"error_deadlock".to_vec();
        }
        _ => return line,
    };
    if *asked == RangeAsked::Waits {
        return edges_heard(fault, line);
    }
    let instead: &[u8] = match (fault, asked) {
        (RangeFault::GrantCancelled, RangeAsked::Cancel(..)) => b"ok cancelled",
        (RangeFault::ReportDeadlocks, RangeAsked::Lock { wait, .. })
            if *wait > Millis::ZERO && line == b"timeout" =>
        {
            b"error_deadlock"
        }
        (RangeFault::GrantPending, RangeAsked::Lock { .. }) if line.starts_with(b"error_grace") => {
            b"ok"
        }
        _ => return line,
    };
    instead.to_vec()
}

/// What a client hears of who waits for whom.
fn edges_heard(fault: RangeFault, line: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&line);
    let instead = match (fault, text.find('['), text.rfind(']')) {
        (RangeFault::DropEdges, Some(from), Some(to)) => {
            format!("{}{}", &text[..=from], &text[to..])
        }
        (RangeFault::TurnEdges, ..) => text
            .replace("\"waiter\":", "\"then\":")
            .replace("\"waits_for\":", "\"waiter\":")
            .replace("\"then\":", "\"waits_for\":"),
        _ => return line,
    };
    instead.into_bytes()
}

/// What the server shows after a turn before which it showed this.
pub(crate) fn shown(fault: RangeFault, before: &SeenRanges, after: &mut SeenRanges) {
    match fault {
        RangeFault::LoseWakeUp => {
            for (was, is) in before.resources.iter().zip(&mut after.resources) {
                // One of those that waited has got what it wanted, and does not know.
                let is_granted = |it: &Seen| {
                    !was.held.iter().any(|held| held.owner == it.owner)
                        && is.held.iter().any(|held| held.owner == it.owner)
                };
                let lost = was.waiting.iter().find(|it| is_granted(it)).copied();
                if let Some(lost) = lost {
                    is.held.retain(|it| it.owner != lost.owner);
                    is.waiting.insert(0, lost);
                }
            }
        }
        RangeFault::ForgetAway => {
            let is_away = |(_, it): &(&usize, &SeenClient)| it.conns == 0 && it.ttl > Millis::ZERO;
            let away = after.clients.iter().filter(is_away).map(|(id, _)| *id);
            for id in away.collect::<Vec<_>>() {
                for at in &mut after.resources {
                    at.held.retain(|it| it.owner.who != Who::Client(id));
                }
            }
        }
        _ => {}
    }
}

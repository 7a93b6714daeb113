//! What is said to a server about something that is held: start its lease again, let it go, and whether the server is there.

use std::time::Duration;

use super::clock;
use super::conn::Conn;
use super::error::Lost;
use super::hold::Hold;
use crate::base::Nanos;
use crate::engine::types::{Mode, Request};
use crate::wire::client::push_request;
use crate::wire::command::Command;

/// A lease is asked for again earlier by up to this part of the time, so that many clients do not
/// ask at once.
const JITTER_PART: u64 = 10;

/// So long after it was asked for, or a little earlier.
pub(super) fn renewal_time(asked_at: Nanos, every: Duration) -> Nanos {
    let every = clock::nanos(every);
    let early = clock::chance(every / JITTER_PART + 1);
    Nanos(asked_at.0.saturating_add(every - early))
}

/// Asks for the lease again.
pub(super) fn renew(conn: &mut Conn, hold: &Hold) {
    let mut frame = Vec::new();
    let request = Request::Renew {
        key: &hold.key,
        token: Some(hold.token),
        lease: Some(hold.lease()),
    };
    match push_request(&mut frame, &Command::Engine(request)) {
        Ok(verb) => conn.send(&frame, verb),
        // It was spelled when it was asked for, so this cannot be. What cannot be renewed is lost.
        Err(_) => hold.lose(Lost::Forgotten),
    }
}

/// Asks whether this server has the key at all, which binds nothing.
pub(super) fn ask_for_key(conn: &mut Conn, hold: &Hold) {
    let mut frame = Vec::new();
    match push_request(&mut frame, &Command::Who { key: &hold.key }) {
        Ok(verb) => conn.send(&frame, verb),
        Err(_) => hold.lose(Lost::Forgotten), // as above
    }
}

/// Asks whether the server is still there, and our connection with it.
pub(super) fn check(conn: &mut Conn) {
    let mut frame = Vec::new();
    // It has nothing in it that could not be said.
    if let Ok(verb) = push_request(&mut frame, &Command::Ping) {
        conn.send(&frame, verb);
    }
}

/// How a grant is let go.
pub(super) fn release_command(hold: &Hold) -> Command<'_> {
    let (key, token) = (&*hold.key, Some(hold.token));
    Command::Engine(match hold.mode {
        Mode::Lead => Request::Resign { key, token },
        _ => Request::Release { key, token },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Millis;

    #[test]
    fn every_lease_is_asked_for_again_in_its_first_third_and_not_at_once() {
        let asked_at = Nanos(1_000_000_007);
        for ms in [
            1, 2, 10, 100, 300, 999, 1_000, 1_999, 2_000, 33_000, 3_600_000,
        ] {
            let span = Millis(ms).nanos();
            for _ in 0..100 {
                let after = renewal_time(asked_at, Duration::from_nanos(span / 3));
                let after = after.since(asked_at);
                assert!(after <= span / 3, "{ms} ms: after {after} ns");
                assert!(after >= span / 10 * 3 - 1, "{ms} ms: after {after} ns");
            }
        }
        assert_eq!(renewal_time(asked_at, Duration::ZERO), asked_at);
        assert!(renewal_time(Nanos(u64::MAX), Duration::MAX) == Nanos(u64::MAX));
    }
}

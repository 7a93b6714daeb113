//! Very many locks held by one connection: taken as fast as the server answers, or so that all
//! their leases end in the same millisecond.

use std::io;

use crate::machine::rss_bytes;
use crate::run::client::Client;
use crate::run::codec::{Answer, Codec, NO_TOKEN, Request, hex};
use crate::run::keys::key_name;
use crate::servers::target::Target;
use crate::session::Session;

/// Requests on their way at once.
const WINDOW: usize = 2_000;

/// A lease longer than any scenario.
const LEASE_MS: u64 = 3_600_000;

/// Locks of one batch when all leases shall end together. A server needs a third of a millisecond
/// for them.
const PER_MS: usize = 300;

const MS: u64 = 1_000_000;

/// Time between the last batch and the end of the leases, to get ready to watch.
const SPARE_NS: u64 = 100_000_000;

/// How late in a millisecond a batch may still start.
const START_NS_MAX: u64 = 50_000;

/// The locks, held as long as this lives.
pub(crate) struct HeldLocks {
    client: Client,
    run: u16,
    pub(crate) per_s: f64,
    /// Server memory per lock, if the server was started here.
    pub(crate) bytes_each: Option<f64>,
    /// How many of the leases certainly end in the same millisecond.
    pub(crate) certain: usize,
}

impl HeldLocks {
    fn open(target: &Target) -> io::Result<Self> {
        Ok(Self {
            client: Client::connect(target)?,
            run: fastrand::u16(..),
            per_s: 0.0,
            bytes_each: None,
            certain: 0,
        })
    }

    /// Takes `count` locks, numbered from `first`.
    fn take(&mut self, first: usize, count: usize, lease_ms: u64) -> io::Result<()> {
        let mut token = NO_TOKEN;
        let run = self.run;
        let write = |at: usize, codec: &Codec, out: &mut Vec<u8>| {
            let number = first + at;
            token[..16].copy_from_slice(&hex(number as u64));
            let key = key_name("fill", run, number);
            codec.encode(Request::LockFor(&token, lease_ms), &key, out);
        };
        let fine = |answer: &Answer<'_>| matches!(answer, Answer::Ok(_));
        self.client.many(count, WINDOW, write, fine)
    }
}

/// Takes `count` locks as fast as the server grants them.
pub(crate) fn fill(session: &Session, target: &Target, count: usize) -> io::Result<HeldLocks> {
    session.say(&format!("taking {count} locks"));
    let mut held = HeldLocks::open(target)?;
    let before = target.pid.and_then(rss_bytes);
    let began = session.clock.now_ns();
    held.take(0, count, LEASE_MS)?;
    let seconds = (session.clock.now_ns() - began) as f64 / 1e9;
    held.per_s = count as f64 / seconds;
    held.bytes_each = each_bytes(before, target.pid.and_then(rss_bytes), count);
    session.say("");
    Ok(held)
}

/// The growth of memory between two looks, divided by `count`.
pub(crate) fn each_bytes(before: Option<u64>, after: Option<u64>, count: usize) -> Option<f64> {
    Some(after?.saturating_sub(before?) as f64 / count as f64)
}

/// Takes `count` locks whose leases all end in the millisecond after `end_ns`; `None` if the time
/// was not enough.
///
/// A lease counts whole milliseconds from when the server reads the request. So a batch starts when
/// a whole number of milliseconds is left. If its answers arrive before that millisecond is over,
/// the server read it in that millisecond, and all its leases end in the same one.
pub(crate) fn fill_until(
    session: &Session,
    target: &Target,
    count: usize,
    end_ns: u64,
) -> io::Result<Option<HeldLocks>> {
    session.say(&format!("taking {count} locks that end together"));
    let mut held = HeldLocks::open(target)?;
    for first in (0..count).step_by(PER_MS) {
        let batch = PER_MS.min(count - first);
        let begins_ns = loop {
            let left = end_ns.saturating_sub(session.clock.now_ns());
            if left < SPARE_NS {
                return Ok(None);
            }
            // How much of the current millisecond is over. The rest is spent in this loop, awake.
            let over = left.next_multiple_of(MS) - left;
            if over <= START_NS_MAX {
                break end_ns - left.next_multiple_of(MS);
            }
        };
        held.take(first, batch, (end_ns - begins_ns) / MS)?;
        if session.clock.now_ns() < begins_ns + MS {
            held.certain += batch;
        }
    }
    session.say("");
    Ok(Some(held))
}

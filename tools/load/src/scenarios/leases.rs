//! Many clients take one lease over HTTP in turn, and some stall while they hold it: does anybody ever
//! hold it beside another, and does the fencing token tell those who come too late?
//!
//! Every client is a thread with the library's own client (`latchd::http_client`). What certainly holds is
//! judged by this machine's clock, from both sides: a lease is held for certain from the answer that grants
//! it, and until its time is over counted from before it was asked for; it is over for certain once its
//! time has passed since that answer.

use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use latchd::http_client::{Error, Lease, LeaseClient, NotAcquired, Release};

use crate::clock::Clock;
use crate::report::figures::Figures;
use crate::report::figures::Unit::Count;
use crate::report::figures::Wanted::{AtLeast, Never, Nothing};
use crate::run::ledger::Wrong;
use crate::servers::HTTP;
use crate::servers::target::{Protocol, Target};
use crate::session::Session;

const MS: u64 = 1_000_000;
/// Between two turns of one client.
const THINK_NS: u64 = 5 * MS;
/// Before it asks again, if the server does not say.
const RETRY_NS: u64 = 20 * MS;
/// How much longer a client stalls than until its lease is over and the next one may have written.
const STALL_NS: u64 = 50 * MS;
/// A run ends when there were so many grants, however long it may take: each is kept to the end.
const GRANTS_MAX: usize = 1_000_000;

/// What the command line says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ttl_ms: u64,
    pub(crate) hold_ms: u64,
    pub(crate) jitter_ms: u64,
    /// How likely it is that a holder stalls.
    pub(crate) failrate: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ttl_ms: 800,
            hold_ms: 30,
            jitter_ms: 30,
            failrate: 0.03,
        }
    }
}

impl Shape {
    /// What makes no sense about it, if anything.
    pub(crate) fn complaint(&self) -> Option<String> {
        for (name, ms, least) in [
            ("ttl", self.ttl_ms, 1),
            ("hold", self.hold_ms, 0),
            ("jitter", self.jitter_ms, 0),
        ] {
            if !(least..=600_000).contains(&ms) {
                return Some(format!("--{name}-ms {ms}: say from {least} up to 600000"));
            }
        }
        let rate = self.failrate;
        (!(0.0..=1.0).contains(&rate)).then(|| format!("--failrate {rate}: say from 0 up to 1"))
    }
}

/// What is to be protected: takes a write unless it has seen a later token.
#[derive(Default)]
struct Resource {
    last_token: u64,
    accepted: u64,
    rejected: u64,
}

impl Resource {
    fn try_write(&mut self, token: u64) {
        match token >= self.last_token {
            true => {
                self.accepted += 1;
                self.last_token = token;
            }
            false => self.rejected += 1,
        }
    }
}

/// One lease, in nanoseconds of our clock.
#[derive(Clone, Copy, Debug)]
struct Grant {
    token: u64,
    /// Before it was asked for.
    asked_ns: u64,
    /// When the answer was there.
    granted_ns: u64,
    /// Until then it was held for certain: its release was sent, or its time may have been over.
    held_ns: u64,
}

/// What all clients have seen.
#[derive(Default)]
struct Seen {
    grants: Vec<Grant>,
    refused: u64,
    released: u64,
    /// Released although the time was over for certain.
    released_late: u64,
    errors: u64,
    first_error: Option<String>,
    resource: Resource,
}

/// One round.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let shape = session.options.leases;
    let clients = session.count(50);
    let seconds = session.options.seconds.unwrap_or(20.0);
    let Shape {
        ttl_ms,
        hold_ms,
        failrate,
        ..
    } = shape;
    figures.about(format!(
        "{clients} clients, one lease of {ttl_ms} ms held for {hold_ms} ms, {} % stall",
        failrate * 100.0
    ));
    let latchd = session.latchd(&HTTP)?;
    let url = url(&latchd.target)?;
    let clock: &Clock = &session.clock;
    let end_ns = clock.now_ns() + (seconds * 1e9) as u64;
    let lock = format!("leases-{:04x}", fastrand::u16(..));
    session.say(&format!("{clients} clients for {seconds} s"));
    let seen = Mutex::new(Seen::default());
    let broken: Vec<io::Error> = thread::scope(|scope| {
        let start = |nth: usize| {
            let player = Player {
                client: LeaseClient::new(&url).map_err(io::Error::other)?,
                owner: format!("client-{nth}"),
                lock: &lock,
                shape,
                rng: Rng::new(),
                clock,
                seen: &seen,
            };
            thread::Builder::new().spawn_scoped(scope, move || player.play(end_ns))
        };
        let threads: Vec<_> = (0..clients).map(start).collect();
        let ends = threads.into_iter().map(|started| match started {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a client has panicked"))),
            Err(error) => Err(error),
        });
        ends.filter_map(Result::err).collect()
    });
    session.say("");
    if let Some(error) = broken.into_iter().next() {
        return Err(error);
    }
    let mut seen = seen.into_inner().map_err(io::Error::other)?;
    judge(&mut seen, shape, clients, figures);
    Ok(())
}

fn url(target: &Target) -> io::Result<String> {
    match (target.protocol, target.http) {
        (Protocol::Http, _) => Ok(target.url()),
        (_, Some(address)) => Ok(format!("http://{address}")),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the plan leases is about HTTP: say --target http://host:port",
        )),
    }
}

/// One client.
struct Player<'a> {
    client: LeaseClient,
    owner: String,
    lock: &'a str,
    shape: Shape,
    rng: Rng,
    clock: &'a Clock,
    seen: &'a Mutex<Seen>,
}

impl Player<'_> {
    fn play(mut self, end_ns: u64) -> io::Result<()> {
        let ttl = Duration::from_millis(self.shape.ttl_ms);
        while self.clock.now_ns() < end_ns {
            let asked_ns = self.clock.now_ns();
            let pause_ns = match self.client.acquire_once(self.lock, &self.owner, ttl) {
                Ok(lease) => {
                    if !self.hold(&lease, asked_ns)? {
                        return Ok(());
                    }
                    THINK_NS
                }
                Err(Error::NotAcquired(refused)) => {
                    self.note(|seen| seen.refused += 1)?;
                    hint_ns(&refused)
                }
                Err(error) => {
                    self.failed(&error)?;
                    RETRY_NS
                }
            };
            self.clock.rest(pause_ns)?;
        }
        Ok(())
    }

    /// Holds the lease for a while, writes, and releases; whether there is room for another grant.
    fn hold(&mut self, lease: &Lease, asked_ns: u64) -> io::Result<bool> {
        let granted_ns = self.clock.now_ns();
        let ttl_ns = self.shape.ttl_ms * MS;
        let (hold_ns, jitter_ns) = (self.shape.hold_ms * MS, self.shape.jitter_ms * MS);
        let for_ns = match self.rng.f64() < self.shape.failrate {
            true => ttl_ns + hold_ns + jitter_ns + STALL_NS,
            false => hold_ns + self.rng.u64(0..=jitter_ns),
        };
        self.clock.rest(for_ns)?;
        let token = lease.fencing_token();
        self.note(|seen| seen.resource.try_write(token))?;
        let sent_ns = self.clock.now_ns();
        let released = match self.client.release_once(lease) {
            Ok(released) => released == Release::Released,
            Err(error) => {
                self.failed(&error)?;
                false
            }
        };
        let was_over = sent_ns > granted_ns + ttl_ns;
        self.note(|seen| {
            seen.released += u64::from(released);
            seen.released_late += u64::from(released && was_over);
            seen.grants.push(Grant {
                token,
                asked_ns,
                granted_ns,
                held_ns: sent_ns.min(asked_ns + ttl_ns),
            });
            seen.grants.len() < GRANTS_MAX
        })
    }

    fn failed(&self, error: &Error) -> io::Result<()> {
        self.note(|seen| {
            seen.errors += 1;
            seen.first_error.get_or_insert_with(|| error.to_string());
        })
    }

    fn note<T>(&self, note: impl FnOnce(&mut Seen) -> T) -> io::Result<T> {
        let seen = self.seen.lock();
        let mut seen = seen.map_err(|_| io::Error::other("another client has panicked"))?;
        Ok(note(&mut seen))
    }
}

fn hint_ns(refused: &NotAcquired) -> u64 {
    let hint = refused.recommended_retry;
    hint.map_or(RETRY_NS, |it| it.as_nanos() as u64)
}

/// Everything that must hold, and the figures.
fn judge(seen: &mut Seen, shape: Shape, clients: usize, figures: &mut Figures) {
    let twice = twice(&seen.grants);
    let disordered = disordered(&seen.grants);
    let overlapping = overlapping(&mut seen.grants);
    let is_tried = shape.failrate > 0.0 && clients > 1;
    let wrong: &mut Wrong = &mut figures.wrong;
    for (count, what) in [
        (twice, "tokens were granted twice"),
        (
            disordered,
            "tokens are not above one that was granted before they were asked for",
        ),
        (overlapping, "leases were held beside another"),
        (
            seen.released_late,
            "leases were released although their time was over",
        ),
    ] {
        if count > 0 {
            wrong.add(format!("{count} {what}"));
        }
    }
    if let Some(error) = &seen.first_error {
        wrong.add(format!("{} errors, the first: {error}", seen.errors));
    }
    if is_tried && seen.resource.rejected == 0 {
        wrong.add("nobody who stalled was told that it came too late".to_owned());
    }
    let stale = if is_tried { AtLeast(1.0) } else { Nothing };
    for (name, value, wanted) in [
        ("held by two", overlapping, Never),
        ("tokens twice", twice, Never),
        ("tokens out of order", disordered, Never),
        ("released when over", seen.released_late, Never),
        ("errors", seen.errors, Never),
        ("stale writes rejected", seen.resource.rejected, stale),
        ("writes accepted", seen.resource.accepted, Nothing),
        ("acquired", seen.grants.len() as u64, Nothing),
        ("not acquired", seen.refused, Nothing),
        ("released", seen.released, Nothing),
        ("last token", seen.resource.last_token, Nothing),
    ] {
        figures.put(name, Count, Some(value as f64), wanted);
    }
}

fn twice(grants: &[Grant]) -> u64 {
    let mut tokens: Vec<u64> = grants.iter().map(|it| it.token).collect();
    tokens.sort_unstable();
    tokens.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64
}

/// A lease that was asked for after another had been granted has a higher token.
fn disordered(grants: &[Grant]) -> u64 {
    let mut asked: Vec<&Grant> = grants.iter().collect();
    asked.sort_by_key(|it| it.asked_ns);
    let mut granted = asked.clone();
    granted.sort_by_key(|it| it.granted_ns);
    let (mut before, mut top, mut wrong) = (0, 0, 0);
    for it in asked {
        while let Some(earlier) = granted.get(before).filter(|g| g.granted_ns <= it.asked_ns) {
            top = top.max(earlier.token);
            before += 1;
        }
        wrong += u64::from(it.token <= top);
    }
    wrong
}

fn overlapping(grants: &mut [Grant]) -> u64 {
    grants.sort_by_key(|it| it.granted_ns);
    let (mut held_ns, mut wrong) = (0, 0);
    for it in grants {
        if it.granted_ns >= it.held_ns {
            continue; // over before it was known
        }
        wrong += u64::from(it.granted_ns < held_ns);
        held_ns = held_ns.max(it.held_ns);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn grant(token: u64, asked_ns: u64, granted_ns: u64, held_ns: u64) -> Grant {
        Grant {
            token,
            asked_ns,
            granted_ns,
            held_ns,
        }
    }

    #[test]
    fn two_holders_are_noticed_and_neighbours_are_not() {
        let mut right = [grant(1, 0, 2, 10), grant(2, 1, 10, 20), grant(3, 5, 30, 20)];
        assert_eq!(overlapping(&mut right), 0);
        let mut wrong = [grant(2, 1, 9, 20), grant(1, 0, 2, 10), grant(3, 3, 11, 12)];
        assert_eq!(overlapping(&mut wrong), 2);
    }

    #[test]
    fn a_token_that_does_not_grow_is_noticed_where_the_order_is_certain() {
        let unclear = [grant(2, 0, 10, 20), grant(1, 5, 30, 40)];
        assert_eq!(disordered(&unclear), 0);
        let wrong = [grant(2, 0, 10, 20), grant(1, 10, 30, 40)];
        assert_eq!(disordered(&wrong), 1);
        let same = [grant(2, 0, 10, 20), grant(2, 15, 30, 40)];
        assert_eq!((disordered(&same), twice(&same)), (1, 1));
    }

    #[test]
    fn a_late_write_is_rejected() {
        let mut resource = Resource::default();
        for token in [1, 2, 2, 1, 3] {
            resource.try_write(token);
        }
        assert_eq!((resource.accepted, resource.rejected), (4, 1));
        assert_eq!(resource.last_token, 3);
    }
}

//! Wrong secrets: the delay of each refusal, and the rate of refusals per host.
//!
//! A wrong secret takes a place for 100 ms, and is refused when they are over. While its host has
//! no place left, or all places are taken, it waits for one in silence: first come, first served,
//! the hosts in turn. It is not closed because it guessed, since a close is an answer, too; its
//! time to authenticate ends it, or it makes room as a stranger (`strangers.rs`). The right secret
//! opens at once, however many guess. This is the same for tokens and secrets of clients, at every
//! door. Never sees a secret: `auth.rs` compares, and `closing.rs` asks here how to turn away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};

use log::warn;

use crate::base::{ConnId, Millis, Nanos};
use crate::timers::TimerId;

/// How long a wrong secret takes a place, and keeps its connection from trying again.
pub(super) const DELAY: Millis = Millis(100);

/// Most places of one host, so that it is told at most 160 times a second; and of all hosts together.
const PLACES_PER_HOST_MAX: usize = 16;
const PLACES_MAX: usize = 1_024;

/// Most refusals in one turn; the others follow in the next.
pub(super) const TOLD_PER_TURN_MAX: u32 = 32;

/// Most hosts that one line of the log counts.
const HOSTS_REPORTED_MAX: usize = 1_024;

/// Least time between two lines of the log about wrong secrets.
const REPORT_EVERY: Millis = Millis(1_000);

/// Where a connection comes from, as far as guesses are counted together. Whoever has one address of
/// IPv6 usually has the whole network around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An address of IPv4.
    V4([u8; 4]),
    /// A network of IPv6: the first half of the address.
    V6([u8; 8]),
    /// A user of this machine, over a unix socket.
    User(u32),
    /// The peer was gone before it could be asked.
    Unknown,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4([a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}"),
            Self::V6(net) => {
                for pair in net.chunks(2) {
                    write!(f, "{:x}:", u16::from_be_bytes([pair[0], pair[1]]))?;
                }
                f.write_str(":/64")
            }
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Unknown => f.write_str("a lost peer"),
        }
    }
}

#[derive(Default)]
pub(super) struct Guesses {
    /// Places that are taken, in the order in which they end. The connection may be gone by then.
    taken: VecDeque<Place>,
    /// How many of them each host has; only hosts that have one.
    taken_by: BTreeMap<Host, usize>,
    /// Connections that wait for a place, in the order of their arrival; only hosts that have one.
    queues: BTreeMap<Host, BTreeSet<(u64, ConnId)>>,
    /// The host of each of them, and its number in the queue. Its socket may not know the host any
    /// more when it leaves.
    waiting: BTreeMap<ConnId, (Host, u64)>,
    /// How many have waited so far.
    arrivals: u64,
    /// The host whose connection got the last place; the next one in the order of hosts is next.
    served: Option<Host>,
    /// Wrong secrets so far, told or not.
    total: u64,
    report: Report,
    /// Due at [`Guesses::deadline`], if it is armed.
    pub(super) timer: Option<TimerId>,
}

/// A wrong secret that is being delayed.
struct Place {
    until: Nanos,
    host: Host,
    id: ConnId,
}

/// What the next line of the log will say.
#[derive(Default)]
struct Report {
    wrong: u64,
    /// At most [`HOSTS_REPORTED_MAX`].
    hosts: BTreeSet<Host>,
    latest: Option<Host>,
    not_before: Nanos,
}

impl Guesses {
    /// A connection from this host has shown a wrong secret: delays its refusal.
    pub(super) fn note_wrong(&mut self, now: Nanos, host: Host, id: ConnId) {
        self.total += 1;
        self.report.wrong += 1;
        self.report.latest = Some(host);
        if self.report.hosts.len() < HOSTS_REPORTED_MAX {
            self.report.hosts.insert(host);
        }
        self.report(now);
        if self.has_place(host) {
            return self.take_place(now, host, id);
        }
        self.arrivals += 1;
        let queue = self.queues.entry(host).or_default();
        queue.insert((self.arrivals, id));
        self.waiting.insert(id, (host, self.arrivals));
    }

    /// Whether another wrong secret from this host has a place.
    pub(super) fn has_place(&self, host: Host) -> bool {
        let of_host = self.taken_by.get(&host).copied().unwrap_or(0);
        of_host < PLACES_PER_HOST_MAX && self.taken.len() < PLACES_MAX
    }

    /// Whether the connection waits for a place.
    pub(super) fn waits(&self, id: ConnId) -> bool {
        self.waiting.contains_key(&id)
    }

    fn take_place(&mut self, now: Nanos, host: Host, id: ConnId) {
        let until = now.after(DELAY);
        self.taken.push_back(Place { until, host, id });
        *self.taken_by.entry(host).or_default() += 1;
    }

    /// The connection leaves the queue for a place. A place that it has stays taken for its time.
    pub(super) fn leave(&mut self, id: ConnId) {
        if let Some((host, number)) = self.waiting.remove(&id)
            && let Some(queue) = self.queues.get_mut(&host)
        {
            queue.remove(&(number, id));
            if queue.is_empty() {
                self.queues.remove(&host);
            }
        }
    }

    /// The next connection whose delay is over, which may be gone by now. Its place becomes free.
    pub(super) fn next_due(&mut self, now: Nanos) -> Option<ConnId> {
        let Place { host, id, .. } = self.taken.pop_front_if(|place| place.until <= now)?;
        if let Some(taken) = self.taken_by.get_mut(&host) {
            *taken -= 1;
            if *taken == 0 {
                self.taken_by.remove(&host);
            }
        }
        Some(id)
    }

    /// Gives places that are free to connections that wait for one.
    pub(super) fn fill_places(&mut self, now: Nanos) {
        self.report(now);
        while let Some((host, id)) = self.next_waiting() {
            self.served = Some(host);
            self.leave(id);
            self.take_place(now, host, id);
        }
    }

    /// The next connection that waits for a place and may have one.
    fn next_waiting(&self) -> Option<(Host, ConnId)> {
        if self.taken.len() >= PLACES_MAX {
            return None; // do not look for a host that has one
        }
        // At most 64 hosts have no place of their own while there is one in all.
        let later = self.served.map_or(Unbounded, Excluded);
        let in_turn = self.queues.range((later, Unbounded)).chain(&self.queues);
        let (&host, queue) = { in_turn }.find(|(host, _)| self.has_place(**host))?;
        let &(_, id) = queue.first()?;
        Some((host, id))
    }

    /// When a delay is over, or a line of the log is due.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let place = self.taken.front().map(|place| place.until);
        let report = (self.report.wrong > 0).then_some(self.report.not_before);
        place.into_iter().chain(report).min()
    }

    /// How many wrong secrets were shown since the start.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Logs what has gathered, if the last line was long enough ago.
    fn report(&mut self, now: Nanos) {
        let Some(latest) = self.report.latest else {
            return;
        };
        if now < self.report.not_before {
            return;
        }
        let not_before = now.after(REPORT_EVERY);
        let empty = Report {
            not_before,
            ..Report::default()
        };
        let report = mem::replace(&mut self.report, empty);
        let from = match report.hosts.len() {
            1 => latest.to_string(),
            hosts => format!("{hosts} addresses, the latest {latest}"),
        };
        let connections = super::connections(report.wrong as usize);
        warn!("{connections} did not show the secret, from {from}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(serial: u32) -> ConnId {
        ConnId { slot: 0, serial }
    }

    fn host(number: u8) -> Host {
        Host::V4([10, 0, 0, number])
    }

    /// The connections that are refused now, in order.
    fn due(guesses: &mut Guesses, now: Nanos) -> Vec<u32> {
        let due = std::iter::from_fn(|| guesses.next_due(now)).map(|it| it.serial);
        let due = due.collect();
        guesses.fill_places(now);
        due
    }

    #[test]
    fn hosts_are_written_as_an_operator_would() {
        for (host, written) in [
            (Host::V4([192, 0, 2, 1]), "192.0.2.1"),
            (
                Host::V6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 7]),
                "2001:db8:0:7::/64",
            ),
            (Host::User(1000), "user 1000"),
        ] {
            assert_eq!(host.to_string(), written);
        }
    }

    #[test]
    fn all_hosts_together_have_no_more_places_than_there_are() {
        let mut guesses = Guesses::default();
        let mut serial = 0;
        let hosts = PLACES_MAX / PLACES_PER_HOST_MAX;
        for host in (0..hosts).map(|number| host(number as u8)) {
            for _ in 0..PLACES_PER_HOST_MAX {
                serial += 1;
                guesses.note_wrong(Nanos(0), host, id(serial));
            }
        }
        assert!(!guesses.has_place(host(200)), "every place is taken");
        guesses.note_wrong(Nanos(0), host(200), id(7_000));
        assert!(guesses.waits(id(7_000)));
        let over = Nanos(0).after(DELAY);
        assert_eq!(due(&mut guesses, over).len(), PLACES_MAX);
        assert!(!guesses.waits(id(7_000)));
        assert_eq!(due(&mut guesses, over), [0; 0], "it is delayed, too");
        assert_eq!(due(&mut guesses, over.after(DELAY)), [7_000]);
    }

    #[test]
    fn hosts_take_turns_and_connections_of_a_host_keep_their_order() {
        let mut guesses = Guesses::default();
        for serial in 100..(100 + PLACES_MAX as u32) {
            let host = host(100 + (serial as usize / PLACES_PER_HOST_MAX) as u8);
            guesses.note_wrong(Nanos(0), host, id(serial));
        }
        for (serial, from) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 3)] {
            guesses.note_wrong(Nanos(0), host(from), id(serial));
        }
        let over = Nanos(0).after(DELAY);
        due(&mut guesses, over);
        assert_eq!(due(&mut guesses, over.after(DELAY)), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn connection_that_leaves_its_queue_is_not_told() {
        let mut guesses = Guesses::default();
        for serial in 0..100 {
            guesses.note_wrong(Nanos(0), host(1), id(serial));
        }
        for serial in (0..100).filter(|it| it % 2 == 0) {
            guesses.leave(id(serial));
        }
        let mut now = Nanos(0).after(DELAY);
        assert_eq!(due(&mut guesses, now).len(), PLACES_PER_HOST_MAX);
        let mut told = Vec::new();
        while guesses.deadline().is_some() {
            now = now.after(DELAY);
            told.extend(due(&mut guesses, now));
        }
        let odd: Vec<u32> = (16..100).filter(|it| it % 2 == 1).collect();
        assert_eq!(told, odd);
        assert!(guesses.queues.is_empty() && guesses.waiting.is_empty());
    }

    #[test]
    fn nothing_is_kept_of_guesses_that_are_over() {
        let mut guesses = Guesses::default();
        for number in 0..200 {
            guesses.note_wrong(Nanos(1), host(number), id(number.into()));
        }
        assert_eq!(guesses.report.hosts.len(), 199, "the first was told");
        assert_eq!(due(&mut guesses, Nanos(1).after(DELAY)).len(), 200);
        assert_eq!(guesses.deadline(), Some(Nanos(1).after(REPORT_EVERY)));
        due(&mut guesses, Nanos(1).after(REPORT_EVERY));
        assert!(guesses.taken_by.is_empty() && guesses.report.hosts.is_empty());
        assert_eq!(guesses.deadline(), None);
    }
}

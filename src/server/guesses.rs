//! Wrong secrets: how many a host is told in a while, and who has to wait for that.
//!
//! A wrong secret takes a place for 100 ms. While a host has no place left, or all places are taken,
//! further connections from there that show a wrong one are told nothing: they wait, first come,
//! first served, the hosts in turn, and one too many is closed. The right secret opens at once,
//! whoever waits: nobody who knows it pays for those who guess. Never sees a secret: `auth.rs`
//! compares, and `closing.rs` asks here how to turn away.

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

/// Most connections that wait to be told, from one host and in all. One more is closed: it guessed
/// wrong like all the others.
const WAITING_PER_HOST_MAX: usize = 64;
const WAITING_MAX: usize = 4_096;

/// Most waiting connections that are told in one turn; the others follow in the next.
pub(super) const TOLD_PER_TURN_MAX: u32 = 32;

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
    /// Places that are taken, until when and by whom, in the order in which they end.
    taken: VecDeque<(Nanos, Host)>,
    /// How many of them each host has; only hosts that have one.
    taken_by: BTreeMap<Host, usize>,
    /// Connections that wait to be told; only hosts that have one.
    queues: BTreeMap<Host, VecDeque<ConnId>>,
    /// The host of each of them. Its socket may not know it any more when it leaves.
    waiting: BTreeMap<ConnId, Host>,
    /// The host whose connection was told last; the next one in the order of hosts is next.
    told: Option<Host>,
    /// Wrong secrets so far, told or not.
    total: u64,
    report: Report,
    /// Due at [`Guesses::deadline`], if it is armed.
    pub(super) timer: Option<TimerId>,
}

/// What the next line of the log will say.
#[derive(Default)]
struct Report {
    wrong: u64,
    /// Closed without being told.
    closed: u64,
    /// As many as there are places in the time between two lines, at most.
    hosts: BTreeSet<Host>,
    latest: Option<Host>,
    not_before: Nanos,
}

impl Guesses {
    /// A wrong secret was shown.
    pub(super) fn note_wrong(&mut self) {
        self.total += 1;
    }

    /// Whether a wrong secret from this host has a place, so that its connection may be told.
    pub(super) fn has_place(&self, host: Host) -> bool {
        let of_host = self.taken_by.get(&host).copied().unwrap_or(0);
        of_host < PLACES_PER_HOST_MAX && self.taken.len() < PLACES_MAX
    }

    /// A connection is told that its secret is wrong: that takes a place, which there must be.
    pub(super) fn note_told(&mut self, now: Nanos, host: Host) {
        assert!(self.has_place(host), "more guesses than places for {host}");
        self.taken.push_back((now.after(DELAY), host));
        *self.taken_by.entry(host).or_default() += 1;
        self.report.wrong += 1;
        self.report.hosts.insert(host);
        self.report.latest = Some(host);
        self.tell(now);
    }

    /// Lets the connection wait until there is a place for its host; false if too many do.
    pub(super) fn wait(&mut self, host: Host, id: ConnId) -> bool {
        let of_host = self.queues.get(&host).map_or(0, VecDeque::len);
        if of_host >= WAITING_PER_HOST_MAX || self.waiting.len() >= WAITING_MAX {
            self.report.closed += 1;
            return false;
        }
        self.queues.entry(host).or_default().push_back(id);
        self.waiting.insert(id, host);
        true
    }

    /// The connection waits no longer.
    pub(super) fn leave(&mut self, id: ConnId) {
        if let Some(host) = self.waiting.remove(&id)
            && let Some(queue) = self.queues.get_mut(&host)
        {
            queue.retain(|it| *it != id);
            if queue.is_empty() {
                self.queues.remove(&host);
            }
        }
    }

    /// Time has passed: places become free, and what was not told yet may be told.
    pub(super) fn pass(&mut self, now: Nanos) {
        while let Some((_, host)) = self.taken.pop_front_if(|(until, _)| *until <= now) {
            if let Some(taken) = self.taken_by.get_mut(&host) {
                *taken -= 1;
                if *taken == 0 {
                    self.taken_by.remove(&host);
                }
            }
        }
        self.tell(now);
    }

    /// The next waiting connection that may be told; it waits no longer.
    pub(super) fn next(&mut self) -> Option<ConnId> {
        if self.taken.len() >= PLACES_MAX {
            return None; // do not look for a host that has one
        }
        // At most 64 hosts have no place of their own while there is one in all.
        let later = self.told.map_or(Unbounded, Excluded);
        let in_turn = self.queues.range((later, Unbounded)).chain(&self.queues);
        let (&host, queue) = { in_turn }.find(|(host, _)| self.has_place(**host))?;
        let id = *queue.front()?;
        self.told = Some(host);
        self.leave(id);
        Some(id)
    }

    /// When [`Guesses::pass`] has something to do.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let place = self.taken.front().map(|(until, _)| *until);
        let report = (self.report.wrong > 0).then_some(self.report.not_before);
        place.into_iter().chain(report).min()
    }

    /// How many wrong secrets were shown since the start.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Logs what has gathered, if the last line was long enough ago.
    fn tell(&mut self, now: Nanos) {
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
        let closed = match report.closed {
            0 => String::new(),
            closed => format!("; {closed} more were closed untold"),
        };
        let connections = super::connections(report.wrong as usize);
        warn!("{connections} did not show the secret, from {from}{closed}");
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
        let hosts = PLACES_MAX / PLACES_PER_HOST_MAX;
        for host in (0..hosts).map(|number| host(number as u8)) {
            for _ in 0..PLACES_PER_HOST_MAX {
                guesses.note_told(Nanos(0), host);
            }
        }
        assert!(!guesses.has_place(host(200)), "every place is taken");
        assert!(guesses.wait(host(200), id(1)));
        assert_eq!(guesses.next(), None);
        guesses.pass(Nanos(DELAY.nanos()));
        assert_eq!(guesses.next(), Some(id(1)));
    }

    #[test]
    fn hosts_take_turns_and_connections_of_a_host_keep_their_order() {
        let mut guesses = Guesses::default();
        for (serial, from) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 3)] {
            assert!(guesses.wait(host(from), id(serial)));
        }
        let order: Vec<u32> = std::iter::from_fn(|| guesses.next().map(|it| it.serial)).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn only_so_many_wait_and_who_leaves_makes_room() {
        let mut guesses = Guesses::default();
        let serials = 1..=(WAITING_MAX as u32);
        for serial in serials.clone() {
            let host = host((serial as usize / WAITING_PER_HOST_MAX) as u8);
            assert!(guesses.wait(host, id(serial)), "{serial}");
        }
        assert!(!guesses.wait(host(200), id(0)), "all is full");
        guesses.leave(id(1));
        assert!(guesses.wait(host(200), id(0)));
        for serial in serials.chain([0]) {
            guesses.leave(id(serial));
        }
        assert!(guesses.queues.is_empty() && guesses.waiting.is_empty());
    }

    #[test]
    fn nothing_is_kept_of_guesses_that_are_over() {
        let mut guesses = Guesses::default();
        for number in 0..200 {
            guesses.note_told(Nanos(1), host(number));
        }
        assert_eq!(guesses.report.hosts.len(), 199, "the first was told");
        guesses.pass(Nanos(1).after(DELAY));
        assert_eq!(guesses.deadline(), Some(Nanos(1).after(REPORT_EVERY)));
        guesses.pass(Nanos(1).after(REPORT_EVERY));
        assert!(guesses.taken_by.is_empty() && guesses.report.hosts.is_empty());
        assert_eq!(guesses.deadline(), None);
    }
}

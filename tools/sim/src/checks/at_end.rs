//! How a run ends, and what may be left then: nothing.
//!
//! The server keeps values without a time to live, counters that are not 0 and lists that are not
//! empty for ever. One last client takes them away, and so learns whether everything that was put
//! there is there.

use crate::Totals;
use crate::clients::actions::LOUD_GROUPS;
use crate::clients::entry_requests::OTHER_GROUPS_MAX;
use crate::clients::lock_requests::written;
use crate::clients::request::{EntryKind, EntryRequest, RequestKind};
use crate::faults::readers::ROOM_BYTES_MAX;
use crate::plan::SECRET;
use crate::simulation::Simulation;
use crate::turn::TurnSpan;
use latchd::base::Nanos;
use latchd::engine::RangeCounts;
use latchd::engine::view::Counts;
use latchd::server::{Door, Holdings};
use latchd::wire::outbox::{PUSH_BYTES_BEHIND, PUSH_BYTES_MAX};
use latchd::wire::verbs::VALUE_BYTES_MAX;

/// Most turns after a shutdown until nothing is left to do; one more, and something spins.
const FINISHING_TURNS_MAX: u32 = 10_000;

impl Simulation {
    /// Sends the last client, if it has not come yet, and says whether it has something to do.
    pub(crate) fn clean_up(&mut self) -> Result<bool, String> {
        if self.life.draining.is_some() || std::mem::replace(&mut self.has_cleaned_up, true) {
            return Ok(false);
        }
        let (requests, entries) = self.leftovers();
        let mut holdings = self.life.server.holdings();
        holdings.engine.others -= entries.min(holdings.engine.others);
        if holdings != Holdings::default() {
            return Err(format!("still there at the end: {holdings:?}"));
        }
        if requests.is_empty() {
            return Ok(false);
        }
        self.trace.say(self.now, format_args!("the last client"));
        self.connect_by(0, Door::Line);
        let number = self.connections_made;
        let mut bytes = Vec::new();
        if self.plan.settings.access.asks_for_token() {
            bytes.extend(self.note_request(number, written(RequestKind::Ok, "auth", b"_", SECRET)));
        }
        for entry_request in requests {
            let (kind, key) = entry_request.entry();
            let argument: &[u8] = if kind == EntryKind::Counter {
                b"0"
            } else {
                b""
            };
            let (verb, name) = (entry_request.verb(), self.plan.name(kind, key));
            let written = written(RequestKind::Entry(entry_request), verb, name, argument);
            bytes.extend(self.note_request(number, written));
        }
        self.send(number, &bytes);
        self.close(number);
        Ok(true)
    }

    /// The requests that take away what is left, and how many entries that is.
    fn leftovers(&self) -> (Vec<EntryRequest>, usize) {
        let view = self.life.server.engine().view(self.now);
        let (mut requests, mut entries) = (Vec::new(), 0);
        for key in 0..self.plan.entry_count(EntryKind::Counter) {
            let name = self.plan.name(EntryKind::Counter, key);
            if view.counters().any(|it| it.key == name && it.what != 0) {
                requests.push(EntryRequest::SetCount { key });
                entries += 1;
            }
        }
        for key in 0..self.plan.entry_count(EntryKind::Value) {
            let name = self.plan.name(EntryKind::Value, key);
            if view
                .values()
                .any(|it| it.key == name && it.what.ttl_ns.is_none())
            {
                requests.push(EntryRequest::Delete { key });
                entries += 1;
            }
        }
        for key in 0..self.plan.entry_count(EntryKind::List) {
            let name = self.plan.name(EntryKind::List, key);
            if let Some(list) = view.lists().find(|it| it.key == name) {
                requests.extend((0..list.what.0).map(|_| EntryRequest::Pop { key, left: true }));
                entries += 1;
            }
        }
        (requests, entries)
    }

    /// A shutdown does not wait until the last sockets are closed, which the end of the process does,
    /// nor until what their connections had is undone. Goes on with both, in no time, to see that
    /// nothing else is left, and lets clients read.
    fn finish_shutdown(&mut self) -> Result<(), String> {
        let now = self.now;
        for _ in 0..FINISHING_TURNS_MAX {
            if self.life.server.next_deadline() != Some(Nanos(0)) {
                break;
            }
            self.life.server.turn(&|| now, std::iter::empty(), 0);
        }
        self.turn += 1;
        self.life.span = TurnSpan {
            began: now,
            clock_read: now,
            ended: now,
        };
        self.check_turn()
    }

    /// How the run ends.
    pub(crate) fn check_end(&mut self) -> Result<(), String> {
        if self.is_last_stop != self.life.server.is_drained() {
            return Err("the run did not end as planned".to_owned());
        }
        if self.other.is_some() {
            return Err("two servers run at the end".to_owned());
        }
        self.check_life_end()?;
        self.check_left()?;
        self.totals.connections = u64::from(self.connections_made);
        self.trace.say(self.now, format_args!("{:?}", self.totals));
        Ok(())
    }

    /// Nobody is connected any more, and the server holds nothing.
    pub(crate) fn check_life_end(&mut self) -> Result<(), String> {
        self.check_crowd()?;
        if self.life.draining.is_some() {
            self.finish_shutdown()?;
        }
        let mut holdings = self.life.server.holdings();
        if self.life.draining.is_some() {
            // The process ends here. It may still have its own timers and idle keys, and grants, if
            // those outlive their connections.
            holdings.timers = 0;
            // Nor does it wait for those that came during the shutdown.
            let members = self.life.crowd.members.iter();
            let members = members.map(|it| (it.is_newcomer, &it.peer));
            let newcomers = self.life.connections.values();
            let newcomers = newcomers
                .map(|it| (it.is_newcomer || it.came_late, &it.peer))
                .chain(members);
            let newcomers =
                newcomers.filter(|(is_newcomer, peer)| *is_newcomer && !peer.is_closed());
            let newcomers = newcomers.count();
            if newcomers > 0 {
                holdings.connections = holdings.connections.saturating_sub(newcomers);
                holdings.buffered_bytes = 0;
                // They may listen meanwhile.
                holdings.engine.subscriptions = 0;
                holdings.engine.patterns = 0;
                // Each connection that has asked for something has an owner.
                let known = std::mem::take(&mut holdings.engine.connections).min(newcomers);
                holdings.engine.owners -= known.min(holdings.engine.owners);
            }
            holdings.engine.keys = 0;
            holdings.engine.others = 0;
            holdings.engine.timers = 0;
            // Nor does it forget clients that have no connection, with their grants and tickets.
            let clients = std::mem::take(&mut holdings.engine.clients);
            if clients > 0 {
                let clients = self.life.server.engine().view(self.now).clients();
                let held: u32 = clients.map(|it| it.held).sum();
                holdings.engine.holders -= held as usize;
                holdings.engine.tickets = 0;
            }
            holdings.engine.owners -= clients.min(holdings.engine.owners);
            if self.plan.disk.is_some() {
                // A server that stops is not a client that left: what they have is not undone.
                holdings.engine = Counts::default();
            }
        }
        if self.life.draining.is_some() && self.is_shutdown_forced() {
            // What has a name outlives its connections.
            let (holders, owners) = self.life.seen_locks.named();
            holdings.engine.holders -= holders.min(holdings.engine.holders);
            holdings.engine.owners -= owners.min(holdings.engine.owners);
            // So does what connections wanted to outlive them.
            if !self.plan.rules.auto_release || !self.life.keepers.is_empty() {
                holdings.engine.holders = 0;
                (holdings.engine.owners, holdings.engine.connections) = (0, 0);
            }
        }
        if holdings != Holdings::default() {
            return Err(format!("still there at the end: {holdings:?}"));
        }
        let ranges = self.life.server.engine().view(self.now).range_counts();
        let may_be_held =
            self.life.draining.is_some() && (self.plan.disk.is_some() || self.is_shutdown_forced());
        if !may_be_held && ranges != RangeCounts::default() {
            return Err(format!("still there at the end: {ranges:?}"));
        }
        self.life.known_entries.check_end(self.has_cleaned_up)?;
        // Those that came during a shutdown end with the process, whatever they have not read.
        for (number, conn) in self.life.connections.iter().filter(|(_, it)| it.came_late) {
            self.life
                .known_pushes
                .note_ended_unread(*number, conn.subscribes_sent);
        }
        // The server stops pushing to a client that has too much already, so what one leaves unread
        // is at most the limit and one more signal. It may have read a part of the first line.
        let signal_bytes_max = (VALUE_BYTES_MAX + 1) * (LOUD_GROUPS + OTHER_GROUPS_MAX);
        self.life
            .known_pushes
            .check_end(PUSH_BYTES_MAX + PUSH_BYTES_BEHIND + signal_bytes_max + ROOM_BYTES_MAX)?;
        self.close_books()
    }

    /// Adds up what became of the grants of this life, and notes which fences it gave.
    pub(crate) fn close_books(&mut self) -> Result<(), String> {
        let tally = self.life.server.engine().tally();
        let told = self.life.known_grants.told() as u64;
        let (done, sent) = (
            self.life.known_grants.releases_done,
            self.life.known_grants.releases_sent,
        );
        let broken = self.life.known_grants.breaks_done;
        if told > tally.grants
            || done > tally.releases
            || tally.releases > sent
            || broken > tally.breaks
            || tally.breaks > self.life.known_grants.breaks_sent
        {
            return Err(format!(
                "{tally:?}, but clients know of {told} grants, {done} releases, and \
                 tried {sent}"
            ));
        }
        // What nobody has heard of may be given again, if what would tell of it was not kept.
        let given = match self.plan.disk {
            Some(_) => self.life.known_grants.fence_max,
            None => self.life.seen_locks.fence_origin() + tally.grants,
        };
        self.fences_given = self.fences_given.max(given);
        self.totals.add(&Totals {
            grants: tally.grants,
            releases: tally.releases,
            expiries: tally.expiries,
            disconnects: tally.disconnects,
            outlived: self.life.known_grants.outlived,
            breaks: tally.breaks,
            late_ns_max: self.life.seen_locks.late_ns_max,
            late_awake_ns_max: self.life.seen_locks.late_awake_ns_max,
            values: self.life.known_entries.told_count(),
            pushes: self.life.known_pushes.count,
            members: self.life.crowd.members.len() as u64,
            ..Totals::default()
        });
        Ok(())
    }
}

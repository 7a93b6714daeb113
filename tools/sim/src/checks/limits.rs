//! The limits: nothing is beyond one, and nobody is refused for want of room where there is some.
//!
//! A client is refused at one instant of a turn, and the table is seen before the turn and after it.
//! So a refusal is judged by the most that there can have been in between: what was there before,
//! and whatever the requests of this turn can have added. What is there is counted by walking over
//! it, not taken from the counters that the server compares with its limits; memory is what clients
//! know that they stored. Whatever is not refused by its nature, such as a release, a renewal, a
//! read or a delete, is not mentioned here, so it never may be.

use std::collections::{BTreeMap, BTreeSet};

use crate::clients::connection::Connection;
use crate::clients::request::{EntryKind, EntryRequest, RequestKind};
use crate::life::Life;
use crate::plan::{HTTP_MEMORY_MAX, Plan};
use crate::simulation::Simulation;
use latchd::base::Nanos;
use latchd::engine::view::View;
use latchd::engine::{Census, Kind, Rules};

/// What the server needs at most besides what clients know that they stored or did not read: for
/// itself and its tables, and for each client.
const BESIDES_BYTES: usize = 172 * 1024;
const CLIENT_BYTES: usize = 1024;

/// How far above its bound memory may be, because the sum is looked at only after a turn.
const ABOVE_BYTES: usize = 32 * 1024;

/// The share of the bound that is set aside for connections.
const CONNECTIONS_SHARE: usize = 16;

/// All kinds of locks.
const KINDS: [usize; 3] = [Census::LOCKS, Census::SEMAPHORES, Census::RW_LOCKS];

/// One lock key after a turn.
#[derive(Clone, Debug, Default)]
struct TakenKey {
    /// It is in the table; it cannot make room for another one.
    is_known: bool,
    in_use: bool,
    is_shared: bool,
    fences: BTreeSet<u64>,
    waiters: usize,
}

/// What of each limit is taken after a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    keys: Vec<TakenKey>,
    /// Counters, values, lists and barriers, in all.
    entry_count: usize,
    /// Those whose time is not over: how long a list is, how many bytes a value has.
    entries: BTreeMap<(EntryKind, usize), usize>,
    /// Most bytes that can be stored or buffered.
    bytes_max: usize,
}

impl Taken {
    fn look(plan: &Plan, life: &Life, now: Nanos) -> Self {
        let engine = life.server.engine();
        let view = engine.view(now);
        let mut taken = Self {
            keys: vec![TakenKey::default(); plan.keys.len()],
            // As seen from the beginning of time, no value's time is over.
            entry_count: entries(engine.view(Nanos(0))).count(),
            ..Self::default()
        };
        let in_use = |kind| view.in_use(kind).map(|it| it.key());
        let in_use: BTreeSet<&[u8]> = KINDS.into_iter().flat_map(in_use).collect();
        for (seen, (name, _)) in taken.keys.iter_mut().zip(&plan.keys) {
            let Some(it) = view.key(name) else {
                continue;
            };
            *seen = TakenKey {
                is_known: true,
                in_use: in_use.contains(&name[..]),
                is_shared: it.kind() != Kind::Slots { limit: 1 },
                fences: it.holders().map(|it| it.fence.0).collect(),
                waiters: it.waiters().count(),
            };
        }
        let known: BTreeMap<(EntryKind, &[u8]), usize> = entries(view)
            .map(|(kind, name, size)| ((kind, name), size))
            .collect();
        for kind in EntryKind::ALL {
            for key in 0..plan.entry_count(kind) {
                if let Some(&size) = known.get(&(kind, plan.name(kind, key))) {
                    taken.entries.insert((kind, key), size);
                }
            }
        }
        taken.bytes_max = value_bytes(view)
            + life.known_entries.list_bytes_max()
            + life.server.holdings().buffered_bytes;
        taken
    }

    fn holds(&self) -> usize {
        self.keys.iter().map(|it| it.fences.len()).sum()
    }

    /// Nothing is beyond its limit.
    fn check(&self, rules: &Rules, was_given_back: bool) -> Result<(), String> {
        let judge = |what: &str, count: usize, limit: u32| {
            if limit != 0 && count > limit as usize {
                return Err(format!("{count} {what} where {limit} are allowed"));
            }
            Ok(())
        };
        let known = self.keys.iter().filter(|it| it.is_known).count();
        judge("keys of locks", known, rules.locks_max)?;
        for it in &self.keys {
            judge("waiters for a key", it.waiters, rules.waiters_per_key_max)?;
        }
        // Whoever waits for a key that can be shared has it together with others, when it is free.
        let shared = self.keys.iter().filter(|it| it.is_shared);
        let together: usize = shared.map(|it| it.fences.len().saturating_sub(1)).sum();
        judge("holds", self.holds() - together, rules.holds_max)?;
        if !was_given_back {
            judge("entries", self.entry_count, rules.keys_max)?;
        }
        Ok(())
    }
}

/// Counters, values, lists and barriers: how long a list is, how many bytes a value has.
fn entries(view: View<'_>) -> impl Iterator<Item = (EntryKind, &[u8], usize)> {
    let counters = view.counters().map(|it| (EntryKind::Counter, it.key, 0));
    let values = view.values();
    let values = values.map(|it| (EntryKind::Value, it.key, it.what.bytes));
    let lists = view.lists().map(|it| (EntryKind::List, it.key, it.what.0));
    let barriers = view.barriers().map(|it| (EntryKind::Barrier, it.key, 0));
    counters.chain(values).chain(lists).chain(barriers)
}

fn value_bytes(view: View<'_>) -> usize {
    view.values().map(|it| it.what.bytes).sum()
}

/// The most that can have been taken at one instant of a turn.
#[derive(Debug, Default)]
pub(crate) struct Room {
    rules: Rules,
    memory_max: usize,
    before: Taken,
    after: Taken,
    holds: usize,
    /// How many requests of this turn each key of a lock has, and each entry.
    key_requests: Vec<usize>,
    entry_requests: BTreeMap<(EntryKind, usize), usize>,
    /// What memory may be used for besides.
    besides_bytes: usize,
}

impl Room {
    /// Whether this request can have been refused with this word.
    pub(crate) fn may_refuse(&self, word: &str, kind: &RequestKind) -> bool {
        match (word, kind) {
            ("error_memory", RequestKind::Entry(request)) => {
                self.is_memory_full() && !self.fits_where_it_is(request)
            }
            ("error_memory", _) => self.is_memory_full(),
            ("error_max_locks", &RequestKind::Acquire { key, .. })
            | ("error_max_locks", &RequestKind::Enqueue { key, .. }) => {
                reaches(self.holds, self.rules.holds_max) || self.lacks_keys(key)
            }
            ("error_max_waiters", &RequestKind::Acquire { key, .. })
            | ("error_max_waiters", &RequestKind::Enqueue { key, .. }) => {
                let came = self.key_requests[key].saturating_sub(1);
                let waiters = self.before.keys[key].waiters + came;
                reaches(waiters, self.rules.waiters_per_key_max)
            }
            ("error_max_keys", RequestKind::Entry(request)) => {
                let came: usize = self.entry_requests.values().sum();
                let entries = self.before.entry_count + came.saturating_sub(1);
                reaches(entries, self.rules.keys_max) && !self.is_there_alone(request)
            }
            ("error_list_full", RequestKind::Entry(request)) => {
                let list = request.entry();
                let came = self.entry_requests.get(&list).copied().unwrap_or(0);
                let length = self.before.entries.get(&list).copied().unwrap_or(0);
                let length = length + came.saturating_sub(1);
                reaches(length, self.rules.list_length_max)
            }
            _ => false,
        }
    }

    /// Whether there is such a limit at all.
    pub(crate) fn has_limit(&self, word: &str) -> bool {
        let rules = &self.rules;
        match word {
            "error_memory" => self.memory_max != 0,
            "error_max_locks" => rules.locks_max != 0 || rules.holds_max != 0,
            "error_max_waiters" => rules.waiters_per_key_max != 0,
            "error_max_keys" => rules.keys_max != 0,
            "error_list_full" => rules.list_length_max != 0,
            _ => false,
        }
    }

    /// Whether all other keys that there may be can have been in use, and this one not known.
    fn lacks_keys(&self, key: usize) -> bool {
        let pairs = self.before.keys.iter().zip(&self.after.keys);
        let may_be_used = |(index, (before, after)): &(usize, (&TakenKey, &TakenKey))| {
            *index != key && (before.in_use || after.in_use || self.key_requests[*index] > 0)
        };
        let others = pairs.enumerate().filter(may_be_used).count();
        let (before, after) = (&self.before.keys[key], &self.after.keys[key]);
        let stays = !before.fences.is_disjoint(&after.fences);
        reaches(others, self.rules.locks_max) && !stays
    }

    /// Whether the entry was there during the whole turn, and nobody else asked for it.
    fn is_there_alone(&self, request: &EntryRequest) -> bool {
        let entry = request.entry();
        let is_there = |taken: &Taken| taken.entries.contains_key(&entry);
        let came = self.entry_requests.get(&entry).copied().unwrap_or(0);
        is_there(&self.before) && is_there(&self.after) && came <= 1
    }

    fn is_memory_full(&self) -> bool {
        let bytes = self.before.bytes_max.max(self.after.bytes_max) + self.besides_bytes;
        // A part is set aside for connections. A bound that was reached is left when some of it is
        // free again.
        let set_aside = self.memory_max / CONNECTIONS_SHARE;
        self.memory_max != 0 && bytes >= self.memory_max - set_aside - self.memory_max / 64
    }

    /// Whether it asks for no more than what is there already.
    fn fits_where_it_is(&self, request: &EntryRequest) -> bool {
        let present = self.before.entries.get(&request.entry()).copied();
        let asks_no_more = match request {
            EntryRequest::Add { .. } | EntryRequest::SetCount { .. } => true,
            EntryRequest::Put { value, ttl, .. }
            | EntryRequest::Swap {
                new: value, ttl, ..
            } => ttl.0 == 0 && present.is_some_and(|bytes| value.len() <= bytes),
            _ => false,
        };
        asks_no_more && self.is_there_alone(request)
    }
}

/// Whether there can have been as many as the limit allows; 0 is no limit.
fn reaches(count: usize, limit: u32) -> bool {
    limit != 0 && count >= limit as usize
}

/// Whether a value may have come back to its list, although there was no room, because the client
/// that popped it did not get it.
fn may_be_given_back(life: &Life) -> bool {
    let is_lost = |conn: &Connection| {
        let mut requests = conn.open_requests.iter();
        (conn.ended || conn.is_behind()) && requests.any(|it| it.kind.is_pop())
    };
    life.known_entries.was_given_back || life.connections.values().any(is_lost)
}

/// The requests that the server may have begun with in this turn.
fn fresh_requests(connections: &BTreeMap<u32, Connection>) -> impl Iterator<Item = &RequestKind> {
    let requests = connections.values().flat_map(|conn| &conn.open_requests);
    let fresh = requests.filter(|it| it.arrived.is_some() && it.begun.is_none());
    fresh.map(|it| &it.kind)
}

impl Simulation {
    /// Looks at what is taken after a turn, and says what can have been taken in it. Only where
    /// something is limited.
    pub(crate) fn look_at_limits(&mut self) -> Result<Option<Room>, String> {
        if !self.plan.has_limits() {
            return Ok(None);
        }
        let life = &mut self.life;
        let after = Taken::look(&self.plan, life, self.now);
        after.check(&self.plan.rules, may_be_given_back(life))?;
        let before = life.taken.replace(after.clone());
        let mut room = Room {
            rules: self.plan.rules.clone(),
            memory_max: self.plan.settings.memory_max,
            before: before.unwrap_or_else(|| after.clone()),
            after,
            key_requests: vec![0; self.plan.keys.len()],
            besides_bytes: BESIDES_BYTES
                + self.plan.clients * CLIENT_BYTES
                + HTTP_MEMORY_MAX * usize::from(self.plan.http_clients > 0),
            ..Room::default()
        };
        let granted = life.server.engine().tally().grants - life.seen_locks.tally().grants;
        room.holds = room.before.holds() + granted as usize;
        for kind in fresh_requests(&life.connections) {
            if let Some(key) = kind.key() {
                room.key_requests[key] += 1;
            }
            if let RequestKind::Entry(request) = kind {
                *room.entry_requests.entry(request.entry()).or_default() += 1;
            }
        }
        Ok(Some(room))
    }

    /// What clients certainly stored is not far beyond the bound on memory.
    pub(crate) fn check_memory(&self, doubt: bool) -> Result<(), String> {
        let bound = self.plan.settings.memory_max;
        if bound == 0 || doubt {
            return Ok(());
        }
        let view = self.life.server.engine().view(self.now);
        let stored = value_bytes(view) + self.life.known_entries.list_bytes_min();
        if stored > bound + ABOVE_BYTES {
            return Err(format!("{stored} bytes are stored where {bound} may be"));
        }
        Ok(())
    }

    /// A newcomer is refused for want of memory only where it is bounded, and where there are so many
    /// connections that they can have used up what is set aside for them.
    pub(crate) fn check_memory_for_newcomers(&self) -> Result<(), String> {
        let bound = self.plan.settings.memory_max;
        let connections = self.life.server.connections();
        if bound == 0 || connections * CLIENT_BYTES < bound / CONNECTIONS_SHARE {
            return Err(format!(
                "no memory for another connection beside {connections}"
            ));
        }
        Ok(())
    }

    /// Whether so much may be unread that requests wait until some of it is read: a quarter of the
    /// bound, in which buffers count that are not quite full, and popped values twice.
    pub(crate) fn is_held_up_by_unread(&self) -> bool {
        let bound = self.plan.settings.memory_max;
        bound != 0 && self.life.server.holdings().buffered_bytes >= bound / 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchd::base::Millis;
    use latchd::engine::types::Mode;

    fn acquire(key: usize) -> RequestKind {
        RequestKind::Acquire {
            key,
            mode: Mode::Slot { limit: 1 },
            wait: Millis::ZERO,
            lease: Millis(1),
        }
    }

    fn push() -> RequestKind {
        RequestKind::Entry(EntryRequest::Push {
            key: 0,
            value: "x".to_owned(),
            left: true,
        })
    }

    fn put(value: &str) -> RequestKind {
        RequestKind::Entry(EntryRequest::Put {
            key: 0,
            value: value.to_owned(),
            ttl: Millis::ZERO,
        })
    }

    fn held(fence: u64) -> TakenKey {
        TakenKey {
            is_known: true,
            in_use: true,
            fences: BTreeSet::from([fence]),
            ..TakenKey::default()
        }
    }

    /// Two keys of which the first is held, a list of two values, a value of five bytes: each limit
    /// is one more than that, and one request asks for one thing.
    fn room() -> Room {
        let taken = Taken {
            keys: vec![held(7), TakenKey::default()],
            entry_count: 2,
            entries: BTreeMap::from([((EntryKind::List, 0), 2), ((EntryKind::Value, 0), 5)]),
            bytes_max: 850,
        };
        Room {
            rules: Rules {
                locks_max: 2,
                holds_max: 2,
                waiters_per_key_max: 1,
                keys_max: 3,
                list_length_max: 3,
                ..Rules::default()
            },
            memory_max: 1_000,
            before: taken.clone(),
            after: taken,
            holds: 1,
            key_requests: vec![1, 1],
            entry_requests: BTreeMap::from([((EntryKind::List, 0), 1)]),
            besides_bytes: 50,
        }
    }

    #[test]
    fn whoever_finds_room_may_not_be_refused() {
        let room = room();
        for (word, kind) in [
            ("error_max_locks", acquire(1)),
            ("error_max_waiters", acquire(0)),
            ("error_max_keys", push()),
            ("error_list_full", push()),
            ("error_memory", push()),
            ("error_memory", acquire(1)),
        ] {
            assert!(room.has_limit(word), "{word}");
            assert!(!room.may_refuse(word, &kind), "{word}: {kind:?}");
        }
    }

    #[test]
    fn at_a_limit_and_only_there_it_is_a_reason() {
        let mut full = room();
        full.rules.holds_max = 1;
        assert!(full.may_refuse("error_max_locks", &acquire(1)));
        let mut full = room();
        full.rules.locks_max = 1;
        assert!(full.may_refuse("error_max_locks", &acquire(1)));
        // The key itself is there, so it takes no other's place.
        full.before.keys[1] = held(8);
        full.after.keys[1] = held(8);
        assert!(!full.may_refuse("error_max_locks", &acquire(1)));
        let mut full = room();
        full.before.keys[0].waiters = 1;
        assert!(full.may_refuse("error_max_waiters", &acquire(0)));
        assert!(!full.may_refuse("error_max_waiters", &acquire(1)));
        let mut full = room();
        full.before.entry_count = 3;
        assert!(full.may_refuse(
            "error_max_keys",
            &RequestKind::Entry(EntryRequest::Push {
                key: 1,
                value: String::new(),
                left: true,
            })
        ));
        assert!(!full.may_refuse("error_max_keys", &push()), "it is there");
        full.before.entries.insert((EntryKind::List, 0), 3);
        assert!(full.may_refuse("error_list_full", &push()));
    }

    #[test]
    fn at_the_bound_what_needs_no_more_is_served() {
        let mut full = room();
        full.before.bytes_max = 880;
        assert!(full.may_refuse("error_memory", &push()));
        assert!(full.may_refuse("error_memory", &acquire(1)));
        assert!(full.may_refuse("error_memory", &put("longer")));
        assert!(!full.may_refuse("error_memory", &put("short")));
    }

    #[test]
    fn nothing_is_beyond_its_limit() {
        let Room { rules, before, .. } = room();
        assert_eq!(before.check(&rules, false), Ok(()));
        let beyond = |change: fn(&mut Taken)| {
            let mut taken = before.clone();
            change(&mut taken);
            taken.check(&rules, false).is_err()
        };
        assert!(beyond(|it| it.keys = vec![held(1), held(2), held(3)]));
        assert!(beyond(|it| it.keys[0].fences = BTreeSet::from([1, 2, 3])));
        assert!(beyond(|it| it.keys[0].waiters = 2));
        assert!(beyond(|it| it.entry_count = 4));
        // Whoever waited for a shared key is granted beyond the limit.
        assert!(!beyond(|it| {
            it.keys[0].fences = BTreeSet::from([1, 2, 3]);
            it.keys[0].is_shared = true;
        }));
    }
}

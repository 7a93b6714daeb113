//! Counters and lists as clients know them, and the answers that may be given about every entry.
//!
//! No two pushes carry the same value, so each value is followed from its push to the one client
//! that was told it. A counter is the sum of what was acknowledged, give or take what never got an
//! answer. Values of the key-value store are in `values`, barriers in `barriers`. After each turn
//! the sums are compared with what the server shows of itself.

use std::collections::{BTreeMap, BTreeSet};

use super::barriers::KnownBarriers;
use super::values::KnownValue;
use crate::clients::connection::Moment;
use crate::clients::request::{EntryKind, EntryRequest};
use crate::kept::Kept;
use crate::plan::Plan;
use latchd::base::{Millis, Nanos};
use latchd::engine::view::View;
use latchd::wire::client::Told;

/// An answer about an entry, and whose it is.
pub(crate) struct EntryAnswer<'a> {
    pub(crate) conn_number: u32,
    pub(crate) request_number: u64,
    pub(crate) arrived: Moment,
    pub(crate) now: Moment,
    /// When the server last looked at the clock.
    pub(crate) clock_read: Nanos,
    /// The server had got a shutdown signal.
    pub(crate) draining: bool,
    /// There can have been no room for what was asked, if that is what the answer says.
    pub(crate) lacks_room: bool,
    /// The disk of the server may have been full.
    pub(crate) may_be_full: bool,
    pub(crate) told: Told<'a>,
    /// The same as it was read.
    pub(crate) text: &'a str,
}

/// A value that was pushed to a list.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    key: usize,
    arrived: Moment,
    /// The turn in which its push was answered.
    acked: Option<u64>,
    /// The turn in which a connection was told it, and which one.
    told: Option<(u64, u32)>,
}

/// A value that a client was told in this turn, and when that client asked for it.
#[derive(Clone, Debug)]
struct PoppedValue {
    value: String,
    asked: Moment,
}

/// A client that waited for a value or at a barrier before this turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) kind: EntryKind,
    pub(crate) key: usize,
    pub(crate) conn_number: u32,
    /// The turn since which this is certain.
    pub(crate) since: u64,
    /// It still waits.
    pub(crate) stays: bool,
}

/// How many values a list has, as far as clients know.
#[derive(Clone, Copy, Debug, Default)]
struct KnownLength {
    /// Values that were acknowledged and told to nobody.
    sure: usize,
    /// Values that were neither.
    unsure: usize,
}

#[derive(Clone, Debug, Default)]
struct KnownCounter {
    acked: i64,
    /// What arrived and has no answer, perhaps never: request → delta.
    open: BTreeMap<u64, i64>,
    /// A client set it, so sums say nothing.
    is_set: bool,
    /// For a counter that only grows: turn → the highest answer known then.
    known: BTreeMap<u64, i64>,
    /// For the same: the sums that were told, each at most once.
    sums: BTreeSet<i64>,
}

impl KnownCounter {
    /// It is what was acknowledged, give or take what never got an answer.
    fn check(&self, key: usize, value: i64) -> Result<(), String> {
        let part = |keep: fn(i64) -> bool| {
            let open = self.open.values().copied();
            self.acked + open.filter(|&delta| keep(delta)).sum::<i64>()
        };
        let (low, high) = (part(|delta| delta < 0), part(|delta| delta > 0));
        if !(low..=high).contains(&value) {
            return Err(format!("n{key} is {value}, not from {low} to {high}"));
        }
        Ok(())
    }
}

/// All named entries of one run, as clients know them.
#[derive(Debug, Default)]
pub(crate) struct KnownEntries {
    list_values: BTreeMap<String, Pushed>,
    lengths: Vec<KnownLength>,
    /// The server may have popped a value and put it back, so the order of values is not known.
    pub(crate) was_given_back: bool,
    popped_now: Vec<PoppedValue>,
    counters: Vec<KnownCounter>,
    pub(crate) values: Vec<KnownValue>,
    barriers: KnownBarriers,
}

impl KnownEntries {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            lengths: vec![KnownLength::default(); plan.entry_count(EntryKind::List)],
            counters: vec![KnownCounter::default(); plan.entry_count(EntryKind::Counter)],
            values: vec![KnownValue::default(); plan.entry_count(EntryKind::Value)],
            ..Self::default()
        }
    }

    /// The request has arrived, so from now on the server may do it.
    pub(crate) fn arrived(&mut self, number: u64, request: &EntryRequest, at: Moment) {
        match request {
            EntryRequest::Add { key, delta, .. } => {
                self.counters[*key].open.insert(number, *delta);
            }
            EntryRequest::SetCount { key } => self.counters[*key].is_set = true,
            EntryRequest::Put { key, value, ttl } => {
                self.values[*key].arrived(number, value, *ttl, at)
            }
            EntryRequest::Delete { key } => self.values[*key].arrived(number, "", Millis::ZERO, at),
            EntryRequest::Swap { key, new, ttl, .. } => {
                self.values[*key].arrived(number, new, *ttl, at);
            }
            EntryRequest::Push { key, value, .. } => {
                self.lengths[*key].unsure += 1;
                let pushed = Pushed {
                    key: *key,
                    arrived: at,
                    acked: None,
                    told: None,
                };
                self.list_values.insert(value.clone(), pushed);
            }
            _ => {}
        }
    }

    /// Compares an answer with its request.
    pub(crate) fn check_answer(
        &mut self,
        plan: &Plan,
        request: &EntryRequest,
        it: &EntryAnswer<'_>,
    ) -> Result<(), String> {
        use EntryRequest::*;
        match (request, it.told) {
            (_, Told::Nothing | Told::Conflict | Told::TimedOut | Told::Refused(_)) => {
                self.check_refusal(plan, request, it)
            }
            (
                SetCount { .. } | Put { .. } | Delete { .. } | Swap { .. } | Meet { .. },
                Told::Done,
            ) => self.done(request, it),
            (Add { .. } | Count { .. }, Told::Number(sum)) => self.counted(request, it, sum),
            (Fetch { key }, Told::Value(value)) => {
                self.values[*key].read(text_of(value)?, it.arrived)
            }
            (Push { value, .. }, Told::Number(length)) => self.pushed(plan, value, it, length),
            (Pop { key, .. } | AwaitPop { key, .. }, Told::Value(value)) => {
                self.popped(*key, text_of(value)?, it)
            }
            (Length { .. }, Told::Number(0..)) => Ok(()),
            (Range { key }, Told::Json(range)) => self.ranged(*key, text_of(range)?, it),
            _ => Err("a success that this request cannot have".to_owned()),
        }
    }

    fn done(&mut self, request: &EntryRequest, it: &EntryAnswer<'_>) -> Result<(), String> {
        match request {
            EntryRequest::Put { key, .. } | EntryRequest::Delete { key } => {
                self.values[*key].done(it.request_number, it.now);
            }
            EntryRequest::Swap { key, old, .. } => {
                return self.values[*key].swapped(it.request_number, old, it.arrived, it.now);
            }
            EntryRequest::Meet { key, count, wait } => {
                self.barriers.departed(*key, *count, *wait, it)
            }
            _ => {}
        }
        Ok(())
    }

    fn check_refusal(
        &mut self,
        plan: &Plan,
        request: &EntryRequest,
        it: &EntryAnswer<'_>,
    ) -> Result<(), String> {
        let allowed = match (it.text, request) {
            ("nil", EntryRequest::Fetch { key }) => {
                self.values[*key].read_nothing(it.arrived, it.now)?;
                true
            }
            ("nil", EntryRequest::Pop { .. }) => true,
            ("nil", EntryRequest::AwaitPop { wait, .. }) => {
                if it.clock_read < it.arrived.at.after(*wait) {
                    return Err("a wait ended before its time".to_owned());
                }
                true
            }
            ("cas_conflict", EntryRequest::Swap { key, old, .. }) => {
                self.values[*key].conflicted(it.request_number, old, it.arrived, it.now)?;
                true
            }
            ("timeout", EntryRequest::Meet { key, count, wait }) => {
                self.barriers.departed(*key, *count, *wait, it);
                true
            }
            ("error_barrier_count_mismatch", EntryRequest::Meet { .. }) => plan.mismatch_pct > 0,
            ("error_draining", EntryRequest::Meet { key, count, wait }) => {
                self.barriers.departed(*key, *count, *wait, it);
                it.draining
            }
            ("error_draining", EntryRequest::AwaitPop { .. }) => it.draining,
            // Only where clients add so much that the counter overflows.
            ("error", EntryRequest::Add { key, .. }) => *key == plan.wild_counter(),
            (
                "error_storage",
                EntryRequest::Add { .. }
                | EntryRequest::SetCount { .. }
                | EntryRequest::Put { .. }
                | EntryRequest::Swap { .. }
                | EntryRequest::Push { .. }
                | EntryRequest::Pop { .. }
                | EntryRequest::AwaitPop { .. },
            ) => it.may_be_full,
            ("error_list_full", EntryRequest::Push { .. }) => it.lacks_room,
            (
                "error_max_keys" | "error_memory",
                EntryRequest::Add { .. }
                | EntryRequest::SetCount { .. }
                | EntryRequest::Put { .. }
                | EntryRequest::Swap { .. }
                | EntryRequest::Push { .. }
                | EntryRequest::AwaitPop { .. }
                | EntryRequest::Meet { .. },
            ) => it.lacks_room,
            _ => false,
        };
        if !allowed {
            return Err("a refusal that this request cannot have".to_owned());
        }
        match request {
            EntryRequest::Add { key, .. } => {
                self.counters[*key].open.remove(&it.request_number);
            }
            EntryRequest::Put { key, .. } | EntryRequest::Swap { key, .. } => {
                self.values[*key].refused(it.request_number);
            }
            EntryRequest::Push { key, value, .. } => {
                self.lengths[*key].unsure -= 1;
                let refused = self.list_values.remove(value);
                if refused.is_some_and(|it| it.told.is_some()) {
                    return Err(format!("{value:?} was refused, and told to somebody"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    // ---- counters ----

    fn counted(
        &mut self,
        request: &EntryRequest,
        it: &EntryAnswer<'_>,
        sum: i64,
    ) -> Result<(), String> {
        let (_, key) = request.entry();
        let counter = &mut self.counters[key];
        if let EntryRequest::Add { delta, .. } = request {
            counter.open.remove(&it.request_number);
            counter.acked = counter.acked.wrapping_add(*delta);
        }
        if key != 0 || counter.is_set {
            return Ok(());
        }
        // The first counter only grows, so its answers show who was first.
        let before = counter.known.range(..=it.arrived.turn).next_back();
        let before = before.map_or(0, |(_, &sum)| sum);
        let is_new = matches!(request, EntryRequest::Count { .. })
            || sum > before && counter.sums.insert(sum);
        if !is_new || sum < before {
            return Err(format!("counted to {sum} after {before}, or twice"));
        }
        let known = counter.known.values().next_back().copied().unwrap_or(0);
        counter.known.insert(it.now.turn, known.max(sum));
        Ok(())
    }

    // ---- lists ----

    fn pushed(
        &mut self,
        plan: &Plan,
        value: &str,
        it: &EntryAnswer<'_>,
        length: i64,
    ) -> Result<(), String> {
        let length = u32::try_from(length).map_err(|_| "not a length".to_owned())?;
        let length_max = plan.rules.list_length_max;
        if length_max != 0 && length > length_max && !self.was_given_back {
            return Err(format!("a list of {length} where {length_max} are allowed"));
        }
        let pushed = self.list_values.get_mut(value).expect("it has arrived");
        pushed.acked = Some(it.now.turn);
        if pushed.told.is_none() {
            self.lengths[pushed.key].unsure -= 1;
            self.lengths[pushed.key].sure += 1;
        }
        Ok(())
    }

    fn popped(&mut self, key: usize, value: &str, it: &EntryAnswer<'_>) -> Result<(), String> {
        let Some(pushed) = self.list_values.get_mut(value).filter(|it| it.key == key) else {
            return Err(format!("{value:?} was never pushed here"));
        };
        if let Some((_, number)) = pushed.told {
            return Err(format!("{value:?} was already told to connection {number}"));
        }
        pushed.told = Some((it.now.turn, it.conn_number));
        let known = &mut self.lengths[key];
        match pushed.acked {
            Some(_) => known.sure -= 1,
            None => known.unsure -= 1,
        }
        self.popped_now.push(PoppedValue {
            value: value.to_owned(),
            asked: it.arrived,
        });
        Ok(())
    }

    fn ranged(&self, key: usize, range: &str, it: &EntryAnswer<'_>) -> Result<(), String> {
        let inner = range.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let inner = inner.ok_or("not an array")?;
        let quoted = inner.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        let mut seen = BTreeSet::new();
        for value in quoted.into_iter().flat_map(|it| it.split("\",\"")) {
            let pushed = self.list_values.get(value).filter(|it| it.key == key);
            let Some(pushed) = pushed.filter(|_| seen.insert(value)) else {
                return Err(format!("{value:?} is here twice, or was never pushed here"));
            };
            if pushed.told.is_some_and(|(turn, _)| turn <= it.arrived.turn) {
                return Err(format!("{value:?} was popped before, and is still here"));
            }
        }
        Ok(())
    }

    // ---- after a restart ----

    /// A new life of the server begins with what was kept. Unless the last one lost what it had said,
    /// that is what clients know, give or take what had no answer; `open_pops` says how many values
    /// of each list somebody may have been given without an answer. From here on it is known.
    pub(crate) fn restart(
        &mut self,
        plan: &Plan,
        kept: &Kept,
        now: Nanos,
        turn: u64,
        open_pops: Option<&[usize]>,
    ) -> Result<(), String> {
        for (key, counter) in self.counters.iter_mut().enumerate() {
            let name = plan.name(EntryKind::Counter, key);
            let value = kept.counters.get(name).copied().unwrap_or(0);
            if open_pops.is_none() {
                (counter.known, counter.sums) = Default::default();
            } else if !counter.is_set && key != plan.wild_counter() {
                counter.check(key, value)?;
            }
            counter.acked = value;
            counter.open.clear();
        }
        let at = Moment { at: now, turn };
        for (key, value) in self.values.iter_mut().enumerate() {
            let stored = kept.values.get(plan.name(EntryKind::Value, key));
            value.restart(stored, at, open_pops.is_none())?;
        }
        for key in 0..self.lengths.len() {
            let list = kept.lists.get(plan.name(EntryKind::List, key));
            let list = list.into_iter().flatten();
            self.restart_list(key, list, turn, open_pops.map(|it| it[key]))?;
        }
        self.popped_now.clear();
        self.barriers = KnownBarriers::default();
        Ok(())
    }

    fn restart_list<'v>(
        &mut self,
        key: usize,
        list: impl Iterator<Item = &'v Vec<u8>>,
        turn: u64,
        open_pops: Option<usize>,
    ) -> Result<(), String> {
        let mut there = BTreeSet::new();
        for value in list {
            let value = text_of(value)?;
            let pushed = self.list_values.get_mut(value).filter(|it| it.key == key);
            let Some(pushed) = pushed.filter(|_| there.insert(value.to_owned())) else {
                return Err(format!("{value:?} is there twice, or was never pushed"));
            };
            if let (Some((_, number)), Some(_)) = (pushed.told, open_pops) {
                return Err(format!("{value:?} is back, and connection {number} has it"));
            }
            (pushed.acked, pushed.told) = (Some(pushed.acked.unwrap_or(turn)), None);
        }
        let is_missing = |(value, it): &(&String, &Pushed)| {
            it.key == key && it.acked.is_some() && it.told.is_none() && !there.contains(*value)
        };
        let missing = self.list_values.iter().filter(is_missing).count();
        if open_pops.is_some_and(|pops| missing > pops) {
            return Err(format!("{missing} values of q{key} are lost"));
        }
        // Those that went without a word are as good as never pushed.
        self.list_values
            .retain(|value, it| it.key != key || it.told.is_some() || there.contains(value));
        self.lengths[key] = KnownLength {
            sure: there.len(),
            unsure: 0,
        };
        Ok(())
    }

    // ---- after each turn ----

    /// Compares the sums with the server's. With `doubt`, some answers are not read yet, or lost.
    pub(crate) fn after_turn(
        &mut self,
        plan: &Plan,
        view: View<'_>,
        parked: &[Parked],
        doubt: bool,
    ) -> Result<(), String> {
        self.barriers.check(parked, doubt)?;
        for (key, counter) in self.counters.iter().enumerate() {
            if counter.is_set || key == plan.wild_counter() {
                continue;
            }
            let name = plan.name(EntryKind::Counter, key);
            let value = view.counters().find(|it| it.key == name);
            let value = value.map_or(0, |it| it.what);
            counter.check(key, value)?;
        }
        for (key, known) in self.lengths.iter().enumerate() {
            let name = plan.name(EntryKind::List, key);
            let length = view.lists().find(|it| it.key == name);
            let length = length.map_or(0, |it| it.what.0);
            let sure = if doubt { 0 } else { known.sure };
            if !(sure..=known.sure + known.unsure).contains(&length) {
                return Err(format!("q{key} has {length} values, but should: {known:?}"));
            }
        }
        self.check_poppers(parked)?;
        self.check_order(doubt)
    }

    /// Nobody got a value before a client that asked earlier and still waits.
    fn check_poppers(&self, parked: &[Parked]) -> Result<(), String> {
        for it in parked
            .iter()
            .filter(|it| it.kind == EntryKind::List && it.stays)
        {
            let overtook = |told: &&PoppedValue| {
                self.list_values[&told.value].key == it.key && told.asked.turn >= it.since
            };
            if let Some(told) = self.popped_now.iter().find(overtook) {
                return Err(format!("{told:?} went past {it:?}"));
            }
        }
        Ok(())
    }

    /// The first list gives values in the order of their pushes: it is pushed to on the right and
    /// popped on the left only.
    fn check_order(&mut self, doubt: bool) -> Result<(), String> {
        for PoppedValue { value, .. } in std::mem::take(&mut self.popped_now) {
            let it = self.list_values[&value];
            if it.key != 0 || doubt || self.was_given_back {
                continue;
            }
            let is_skipped = |that: &&Pushed| {
                let before = that.acked.is_some_and(|turn| turn <= it.arrived.turn);
                that.key == 0 && that.told.is_none() && before
            };
            if let Some(that) = self.list_values.values().find(is_skipped) {
                return Err(format!("{value:?} was popped before {that:?}"));
            }
        }
        Ok(())
    }

    /// If the last client has taken everything out, every acknowledged value was told to a client.
    pub(crate) fn check_end(&self, is_cleaned_up: bool) -> Result<(), String> {
        let is_lost = |it: &&Pushed| it.acked.is_some() && it.told.is_none();
        let lost = self.list_values.iter().find(|(_, it)| is_lost(it));
        match lost.filter(|_| is_cleaned_up) {
            Some((value, it)) => Err(format!("{value:?} was lost: {it:?}")),
            None => Ok(()),
        }
    }

    /// How many bytes can be in all lists together, as far as clients know.
    pub(crate) fn list_bytes_max(&self) -> usize {
        let values = self.list_values.iter().filter(|(_, it)| it.told.is_none());
        values.map(|(value, _)| value.len()).sum()
    }

    /// How many bytes are there if every answer was read.
    pub(crate) fn list_bytes_min(&self) -> usize {
        let is_there = |it: &Pushed| it.acked.is_some() && it.told.is_none();
        let values = self.list_values.iter().filter(|(_, it)| is_there(it));
        values.map(|(value, _)| value.len()).sum()
    }

    /// How many values clients were told, for the statistics.
    pub(crate) fn told_count(&self) -> u64 {
        self.list_values
            .values()
            .filter(|it| it.told.is_some())
            .count() as u64
    }
}

fn text_of(value: &[u8]) -> Result<&str, String> {
    str::from_utf8(value).map_err(|_| "a value that is not text".to_owned())
}

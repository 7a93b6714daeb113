//! What a data directory brings back, compared with what was recorded and with what clients were
//! told.
//!
//! A life that ended leaves a beginning of its records, at least as long as what it spoke of; the
//! directory must amount to exactly that, and the engine must show it. And whatever a client was
//! told before must hold after: what it holds is held by its token for the whole lease again, what
//! it released is not, what it wrote is there. Only where the power went before an `async` life had
//! synced may something be missing. Fences never go back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::seen_ranges::Who;
use crate::data_dir::{HowItEnds, Past};
use crate::kept::{Kept, KeptOwner, KeptRange, KeptValue};
use crate::life::Life;
use crate::plan::Plan;
use crate::range_plan::OWNERS;
use crate::simulation::Simulation;
use crate::store::Opened;
use latchd::base::{Millis, Nanos};
use latchd::engine::Engine;
use latchd::store::Ending;

/// Most starts in a row that may die; one in three does.
const STARTS_MAX: u32 = 60;

/// The time of day is kept in milliseconds, so the end of a value is moved by that much, and once
/// more when it is read.
const ROUNDING_NS: u64 = 2_000_000;

impl Simulation {
    /// Begins the next life with what is in the data directory, if it comes to serve.
    pub(crate) fn restore_life(&mut self, number: u32) -> Result<Option<Box<Life>>, String> {
        let Some(opened) = self.reopen()? else {
            return Ok(None);
        };
        let kept = self.check_directory(&opened)?;
        let Opened {
            keeper, records, ..
        } = opened;
        let keeper = Rc::new(RefCell::new(keeper));
        let with = Some((Rc::clone(&keeper), &records[..]));
        let (now, wall_us) = (self.now, self.wall_us());
        let mut life = Life::begin(&mut self.rng, &self.plan, number, now, wall_us, with);
        life.begin_ranges(&self.plan, self.turn, now);
        check_shown(life.server.engine(), &kept, now)?;
        check_ranges_shown(&self.plan, &life, &kept)?;
        let data = self.data.as_mut().expect("it was just opened");
        let past = data.past.take().expect("the last life is over");
        let Past {
            mut grants,
            mut entries,
            ranges,
            ..
        } = past;
        grants.restart(&kept, past.died_at, now, self.turn, past.is_lossy)?;
        if !past.is_lossy {
            ranges.check_restored(&self.plan, &kept)?;
            if let Some(restored) = life.known_ranges.last() {
                ranges.check_not_back(restored)?;
            }
        }
        life.known_ranges.remember(ranges.remembered(), &ranges);
        self.totals.ranges_restored += life.known_ranges.locks() as u64;
        let lossless = (!past.is_lossy).then_some(&past.open_pops[..]);
        entries.restart(&self.plan, &kept, now, self.turn, lossless)?;
        (life.known_grants, life.known_entries) = (grants, entries);
        self.totals.reopened += 1;
        self.totals.restored += kept.grants.len() as u64;
        let said = (kept.grants.len(), past.is_lossy);
        self.trace.say(
            now,
            format_args!("held again: {}, lossy: {}", said.0, said.1),
        );
        data.keeper = keeper;
        data.kept = kept;
        data.lost_starts = 0;
        Ok(Some(life))
    }

    /// At the end of a run the directory is looked at once more, after one more power loss or an end
    /// in order.
    pub(crate) fn check_left(&mut self) -> Result<(), String> {
        let Some(data) = &mut self.data else {
            return Ok(());
        };
        data.disk.set_capacity(None);
        let how = match self.rng.bool() {
            true => HowItEnds::InOrder,
            false => HowItEnds::PowerLoss,
        };
        self.leave_data_dir(how);
        // A start that dies is tried again.
        for _ in 0..STARTS_MAX {
            if self.restore_life(self.life.number + 1)?.is_some() {
                return Ok(());
            }
        }
        Err(format!("not one of {STARTS_MAX} starts comes to serve"))
    }

    /// The directory has the records of the lives before, and then a beginning of those of the last
    /// one. Says what that amounts to.
    fn check_directory(&self, opened: &Opened) -> Result<Kept, String> {
        let data = self.data.as_ref().expect("it was just opened");
        let past = data.past.as_ref().expect("the last life is over");
        let old = data.keeper.borrow();
        let (epoch, before) = (opened.keeper.life.epoch, old.life.epoch);
        if epoch <= before || epoch > before + 1 + data.lost_starts {
            return Err(format!("epoch {epoch} after {before}"));
        }
        let last = opened.found.last;
        if old.is_in_doubt && !opened.keeper.life.follows_loss {
            return Err("what may be lost was forgotten before clients had their time".to_owned());
        }
        let marker = u64::from(past.is_stopping);
        let floor = past.floor(&old) + u64::from(past.is_clean);
        if last < floor || last > old.last() + marker {
            return Err(format!(
                "{last} records are there, not from {floor} to {}",
                old.last() + marker
            ));
        }
        let ending = opened.found.ending;
        let is_clean = matches!(ending, Ending::Clean(_));
        let is_known = is_clean == past.is_clean || past.is_stopping && !past.is_clean;
        if data.lost_starts == 0 && !is_known {
            return Err(format!("the last life ended {ending:?}"));
        }
        if past.is_lossy && !is_clean && !opened.keeper.life.follows_loss {
            return Err("something may be lost, and the new life does not know".to_owned());
        }
        let count = ((last - old.base) as usize).min(old.records.len());
        let mut expected = data.kept.clone();
        expected.add(&old.records[..count]);
        let found = Kept::of(&opened.records);
        self.compare(&expected, &found)?;
        if opened.found.fence_ceiling.0 < expected.fences_upto {
            return Err(format!(
                "fences up to {} may have been given out, not {}",
                expected.fences_upto, opened.found.fence_ceiling
            ));
        }
        Ok(found)
    }

    fn compare(&self, expected: &Kept, found: &Kept) -> Result<(), String> {
        if expected.grants != found.grants {
            let (expected, found) = (&expected.grants, &found.grants);
            return Err(format!("held: {found:?}, not {expected:?}"));
        }
        if expected.counters != found.counters {
            let (expected, found) = (&expected.counters, &found.counters);
            return Err(format!("counted: {found:?}, not {expected:?}"));
        }
        if expected.lists != found.lists {
            let (expected, found) = (&expected.lists, &found.lists);
            return Err(format!("listed: {found:?}, not {expected:?}"));
        }
        if expected.clients != found.clients {
            let (expected, found) = (&expected.clients, &found.clients);
            return Err(format!("clients: {found:?}, not {expected:?}"));
        }
        if expected.ranges != found.ranges {
            let (expected, found) = (&expected.ranges, &found.ranges);
            return Err(format!("ranges: {found:?}, not {expected:?}"));
        }
        let is_over = |it: &KeptValue| it.1.is_some_and(|at| at.0 <= self.now.0 + ROUNDING_NS);
        for (key, it) in &found.values {
            let Some(was) = expected.values.get(key) else {
                return Err(format!("{} is stored", key.escape_ascii()));
            };
            let is_same_time = match (was.1, it.1) {
                (None, None) => true,
                // What is over comes back to end at once, so that its end is recorded.
                (Some(_), Some(is)) if is_over(was) && is <= self.now => true,
                (Some(was), Some(is)) => was.0.abs_diff(is.0) <= ROUNDING_NS,
                _ => false,
            };
            if was.0 != it.0 || !is_same_time {
                return Err(format!("{it:?} is stored, not {was:?}"));
            }
        }
        let mut missing = expected.values.iter();
        match missing.find(|(key, it)| !found.values.contains_key(*key) && !is_over(it)) {
            Some((key, it)) => Err(format!("{} is not stored: {it:?}", key.escape_ascii())),
            None => Ok(()),
        }
    }

    /// The disk has failed, so nothing more is said, and the process ends.
    pub(crate) fn check_failed(&mut self) -> Result<(), String> {
        for (number, conn) in &mut self.life.connections {
            let reads = conn.stalled.is_none() && conn.unread_since.is_none();
            if reads && let Some(line) = conn.receive().first() {
                return Err(format!(
                    "connection {number} was told {} after the disk had failed",
                    line.escape_ascii()
                ));
            }
        }
        self.totals.disk_failures += 1;
        let how = match self.rng.bool() {
            true => HowItEnds::Killed,
            false => HowItEnds::PowerLoss,
        };
        self.crash(how)
    }

    /// What was restored is bound only to connections that have shown its token.
    pub(crate) fn check_claims(&mut self) -> Result<(), String> {
        let Life {
            known_grants,
            seen_locks,
            by_serial,
            connections,
            ..
        } = &mut *self.life;
        for (fence, key) in known_grants.unbound() {
            let Some((serial @ 1.., _)) = seen_locks.key(key).holder(fence) else {
                continue;
            };
            let number = by_serial.get(&serial).copied().unwrap_or_default();
            let conn = connections.get(&number);
            let has_left = conn.is_none_or(|conn| conn.ended || conn.has_left());
            known_grants.bind(fence, number, has_left)?;
        }
        Ok(())
    }
}

/// All ranges are there again, and pending, and so are all clients.
fn check_ranges_shown(plan: &Plan, life: &Life, kept: &Kept) -> Result<(), String> {
    let Some(seen) = life.known_ranges.last() else {
        return Ok(());
    };
    let mut shown: BTreeMap<KeptOwner, Vec<KeptRange>> = BTreeMap::new();
    for (at, name) in seen.resources.iter().zip(&plan.ranges.resources) {
        for it in &at.held {
            let Who::Client(id) = it.owner.who else {
                return Err(format!("{it:?} is restored, and of no client"));
            };
            if !it.pending {
                return Err(format!("{it:?} is restored, and not pending"));
            }
            let id = plan.ranges.ids[id].as_bytes().to_vec();
            let owner = OWNERS[it.owner.name].as_bytes().to_vec();
            let (start, end) = it.cells.bytes();
            let ranges = shown.entry([name.clone(), id, owner]).or_default();
            match ranges.last_mut() {
                // What different lives have granted is not one, though the bytes are held alike.
                Some(last) if (last.1, last.2) == (start, it.mode) => last.1 = end,
                _ => ranges.push((start, end, it.mode)),
            }
        }
    }
    if shown != kept.ranges {
        return Err(format!(
            "ranges are restored as {shown:?}, not {:?}",
            kept.ranges
        ));
    }
    let clients = seen.clients.iter().map(|(id, it)| {
        let id = plan.ranges.ids[*id].as_bytes().to_vec();
        (id, it.ttl)
    });
    let clients: BTreeMap<Vec<u8>, Millis> = clients.collect();
    if clients != kept.clients {
        return Err(format!(
            "clients are restored as {clients:?}, not {:?}",
            kept.clients
        ));
    }
    Ok(())
}

/// The engine shows what was restored, and all leases are whole.
fn check_shown(engine: &Engine, kept: &Kept, now: Nanos) -> Result<(), String> {
    let view = engine.view(now);
    for (fence, grant) in &kept.grants {
        let key = view.key(&grant.key);
        let mut holders = key.iter().flat_map(|key| key.holders());
        let holder = holders.find(|it| it.fence.0 == *fence);
        let Some(holder) = holder else {
            return Err(format!("{fence} is recorded, and not restored"));
        };
        if holder.lease_left_ns != grant.lease.nanos() || holder.conn.is_some() {
            return Err(format!("{fence} is restored as {holder:?}, not {grant:?}"));
        }
    }
    let held = engine.counts().holders;
    if held != kept.grants.len() {
        return Err(format!("{held} are restored, not {}", kept.grants.len()));
    }
    for it in view.counters().filter(|it| it.what != 0) {
        if kept.counters.get(it.key) != Some(&it.what) {
            return Err(format!("a counter is restored as {it:?}"));
        }
    }
    let lists = view.lists().map(|it| (it.key.to_vec(), it.what.0));
    let expected = kept
        .lists
        .iter()
        .map(|(key, list)| (key.clone(), list.len()));
    let (mut lists, mut expected): (Vec<_>, Vec<_>) = (lists.collect(), expected.collect());
    lists.sort();
    expected.sort();
    if lists != expected || view.counters().count() < kept.counters.len() {
        return Err(format!("lists are restored as {lists:?}, not {expected:?}"));
    }
    Ok(())
}

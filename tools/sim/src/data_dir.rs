//! The data directory of a run: what outlives the server, and what clients knew when one ended.
//!
//! A life begins on it as the daemon begins one: the shipped `store::begin`, every record into the
//! engine, then it serves. `checks::restored` says whether the directory is as it has to be.

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;

use super::checks::entries::KnownEntries;
use super::checks::grants::KnownGrants;
use super::checks::known_ranges::KnownRanges;
use super::kept::Kept;
use super::life::Life;
use super::simulation::{Scheduled, Simulation};
use super::store::{Keeper, Opened};
use crate::FaultDisk;
use latchd::base::Nanos;
use latchd::store::{Durability, OpenError};

/// A data directory.
pub(super) struct DataDir {
    pub(super) disk: FaultDisk,
    /// The keeper of the present life, or of the last one.
    pub(super) keeper: Rc<RefCell<Keeper>>,
    /// What was there when that life began.
    pub(super) kept: Kept,
    /// Starts that did not come to serve since then.
    pub(super) lost_starts: u64,
    /// How the last life ended; none while it runs.
    pub(super) past: Option<Past>,
    /// The disk is full until this.
    pub(super) full_until: Option<Nanos>,
}

/// The life that is over, and what clients knew at its end.
pub(super) struct Past {
    pub(super) died_at: Nanos,
    /// It was told to stop, and had nothing left to do but to write that it did.
    pub(super) is_stopping: bool,
    /// It ended in order: the last write says so.
    pub(super) is_clean: bool,
    /// What was acknowledged may be lost: the power went before it was synced.
    pub(super) is_lossy: bool,
    pub(super) grants: KnownGrants,
    pub(super) entries: KnownEntries,
    pub(super) ranges: KnownRanges,
    /// For each list, how many pops may have been done without an answer.
    pub(super) open_pops: Vec<usize>,
}

impl Past {
    /// Numbers up to this one must still be there.
    pub(super) fn floor(&self, keeper: &Keeper) -> u64 {
        if self.is_lossy {
            keeper.synced()
        } else {
            keeper.durable
        }
    }
}

impl Simulation {
    /// The first life begins on an empty disk, if the plan has one.
    pub(super) fn make_data_dir(&mut self) {
        let Some(plan) = self.plan.disk else {
            return;
        };
        let disk = FaultDisk::new();
        let chance = Rng::with_seed(self.rng.u64(..));
        let wall_us = self.wall_us();
        let opened = Keeper::open(disk.clone(), plan, self.sabotage, chance, self.now, wall_us);
        let opened = opened.expect("an empty disk without faults can be opened");
        let keeper = Rc::new(RefCell::new(opened.keeper));
        let kept = Some((Rc::clone(&keeper), &[][..]));
        self.life = Life::begin(&mut self.rng, &self.plan, 1, self.now, wall_us, kept);
        self.data = Some(DataDir {
            disk,
            keeper,
            kept: Kept::default(),
            lost_starts: 0,
            past: None,
            full_until: None,
        });
    }

    /// The thread of the store works while the server does other things.
    pub(super) fn step_disk(&mut self) -> Result<(), String> {
        let now = self.now;
        let Some(data) = &mut self.data else {
            return Ok(());
        };
        self.life.disk_at = None;
        let has_news = data.keeper.borrow_mut().step(now);
        if has_news {
            self.expect_turn();
        }
        self.follow_disk();
        self.check_room()
    }

    /// Notes when the store's thread has to do something next.
    pub(super) fn follow_disk(&mut self) {
        let due = self.data.as_ref().and_then(|it| it.keeper.borrow().due());
        let Some(at) = due.filter(|_| self.life.is_up) else {
            return;
        };
        let at = at.max(self.now);
        if self.life.disk_at.is_none_or(|known| at < known) {
            self.life.disk_at = Some(at);
            self.schedule(at, Scheduled::Disk(self.life.number));
        }
    }

    /// Whether everything that was decided is on the disk, and may be spoken of.
    pub(super) fn is_kept(&self) -> bool {
        let data = self.data.as_ref();
        data.is_none_or(|data| data.keeper.borrow().is_settled())
    }

    /// What is left of the life that ends now. `power` goes with it; or it ends in order.
    pub(super) fn leave_data_dir(&mut self, end: HowItEnds) {
        let Some(mut data) = self.data.take() else {
            return;
        };
        let is_async = data.keeper.borrow().life.durability == Durability::Async;
        // Of a life that followed a loss, and has not given clients their time, nothing says that it stopped.
        let is_in_doubt = self.life.server.engine().is_in_doubt();
        data.keeper.borrow_mut().is_in_doubt = is_in_doubt;
        let has_stopped = end == HowItEnds::InOrder && data.keeper.borrow_mut().stops();
        let is_clean = has_stopped && !is_in_doubt;
        if !has_stopped {
            let power = end == HowItEnds::PowerLoss;
            data.keeper.borrow_mut().die(power);
            self.totals.power_losses += u64::from(power);
        }
        self.totals.compactions += data.keeper.borrow().compactions;
        let lists = self
            .plan
            .entry_count(super::clients::request::EntryKind::List);
        let lost = |key| self.life.lost_pops.get(&key).copied().unwrap_or(0);
        let mut open_pops: Vec<usize> = (0..lists).map(lost).collect();
        for conn in self.life.connections.values() {
            for request in &conn.open_requests {
                if let Some(key) = request
                    .kind
                    .popped_list()
                    .filter(|_| request.arrived.is_some())
                {
                    open_pops[key] += 1;
                }
            }
        }
        data.past = Some(Past {
            died_at: self.now,
            is_stopping: end == HowItEnds::InOrder && !is_in_doubt,
            is_clean,
            is_lossy: is_async && end == HowItEnds::PowerLoss && !is_clean,
            grants: std::mem::take(&mut self.life.known_grants),
            entries: std::mem::take(&mut self.life.known_entries),
            ranges: std::mem::take(&mut self.life.known_ranges),
            open_pops,
        });
        data.disk.fail_sync_at(u64::MAX);
        self.data = Some(data);
    }

    /// Begins the next life, unless the start does not come to serve: then somebody tries again.
    pub(super) fn reopen(&mut self) -> Result<Option<Opened>, String> {
        let (now, sabotage) = (self.now, self.sabotage);
        let chance = Rng::with_seed(self.rng.u64(..));
        self.set_clock();
        let dies = self.rng.u8(..100);
        let power = self.rng.bool();
        let wall_us = self.wall_us();
        let (Some(data), Some(plan)) = (&mut self.data, self.plan.disk) else {
            return Ok(None);
        };
        let dies = dies < plan.dies_starting_pct;
        if dies {
            data.disk.die_at(data.disk.steps() + self.rng.u64(1..=9));
        }
        let opened = Keeper::open(data.disk.clone(), plan, sabotage, chance, now, wall_us);
        if dies && data.disk.is_dead() {
            self.trace
                .say(now, format_args!("a start dies, with the power: {power}"));
            data.lost_starts += 1;
            if power {
                data.disk.crash(&mut self.rng);
                if let Some(past) = &mut data.past {
                    past.is_lossy |= plan.durability == Durability::Async;
                }
            } else {
                data.disk.revive();
            }
            return Ok(None);
        }
        data.disk.revive();
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(OpenError::Full(why)) => {
                if data.full_until.is_none() {
                    return Err(format!("a disk with room is full: {why}"));
                }
                self.trace.say(now, format_args!("no room to start: {why}"));
                Ok(None)
            }
            Err(error) => Err(format!("the data directory cannot be opened: {error}")),
        }
    }

    /// Sometimes somebody has set the clock while no server ran.
    fn set_clock(&mut self) {
        let Some(plan) = self.plan.disk else { return };
        if self.rng.u8(..100) >= plan.clock_set_pct {
            return;
        }
        let span_us = *super::plan::pick(&mut self.rng, &[2_000, 10_000_000, 86_400_000_000]);
        let set_us = self.rng.i64(-span_us..=span_us);
        self.wall_set_us += set_us;
        self.trace
            .say(self.now, format_args!("the clock is set by {set_us} us"));
    }

    /// Room is looked for by itself.
    fn check_room(&self) -> Result<(), String> {
        let Some(data) = &self.data else {
            return Ok(());
        };
        if data.full_until.is_none() && data.keeper.borrow().is_full_for_no_reason(self.now) {
            return Err("there is room on the disk, and nobody has noticed".to_owned());
        }
        Ok(())
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowItEnds {
    InOrder,
    Killed,
    PowerLoss,
}

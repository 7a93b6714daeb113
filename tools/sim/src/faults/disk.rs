//! Faults of the disk: it fills up and gets room again, and a sync fails. What it loses when the
//! power goes, and how slow it is, is in `store`.

use crate::plan::pick;
use crate::simulation::{Scheduled, Simulation};

impl Simulation {
    /// Sometimes the disk fills up for a while, or its next sync will fail.
    pub(crate) fn perhaps_break_disk(&mut self) {
        let (Some(plan), true) = (self.plan.disk, self.life.is_up) else {
            return;
        };
        let (fills, fails) = (self.rng.u16(..1_000), self.rng.u16(..1_000));
        let until = self.within(10 * self.plan.think_ms_max);
        let left = *pick(
            &mut self.rng,
            &[0, plan.segment_bytes / 2, 3 * plan.segment_bytes],
        );
        let Some(data) = &mut self.data else { return };
        if fills < plan.full_pml && data.full_until.is_none() {
            data.disk.set_capacity(Some(data.disk.used_bytes() + left));
            data.full_until = Some(until);
            self.trace
                .say(self.now, format_args!("the disk has {left} bytes left"));
            self.schedule(until, Scheduled::Room);
        } else if fails < plan.fail_pml && !self.life.is_stopping() {
            data.disk.fail_sync_at(data.disk.steps());
            self.trace.say(self.now, format_args!("a sync will fail"));
        }
    }

    /// Somebody has made room.
    pub(crate) fn make_disk_room(&mut self) {
        self.trace.say(self.now, format_args!("the disk has room"));
        if let Some(data) = &mut self.data {
            data.disk.set_capacity(None);
            data.full_until = None;
            data.keeper.borrow_mut().has_room_since = self.now;
        }
    }
}

//! Where the protocol leaves a choice open, the model follows the engine, if its choice is allowed.

use latchd::engine::Rules;

use super::{Model, Stage, Word};

impl Model {
    /// Takes over the order in which the engine numbered the grants of the latest operation, if it
    /// is allowed. `seen` are the engine's fences by key, in the order of its holders.
    pub fn follow_fences(&mut self, seen: &[(usize, Vec<u64>)]) -> Result<(), String> {
        let grants = std::mem::take(&mut self.grants);
        let mut renamed: Vec<(u64, u64)> = Vec::new();
        for (name, theirs) in seen {
            let Some(key) = self.keys.iter().find(|it| it.name == *name) else {
                return Err(format!("key {name}: held, the model does not know it"));
            };
            let ours: Vec<u64> = key.holders.iter().map(|it| it.fence).collect();
            if ours.len() != theirs.len() {
                return Err(format!("key {name}: held by {theirs:?}, not {ours:?}"));
            }
            if theirs.windows(2).any(|two| two[0] >= two[1]) {
                return Err(format!("key {name}: fences fall: {theirs:?}"));
            }
            renamed.extend(ours.iter().copied().zip(theirs.iter().copied()));
        }
        for &(ours, theirs) in &renamed {
            let moment = |fence| {
                grants
                    .iter()
                    .find(|it| it.fence == fence)
                    .map(|it| it.moment)
            };
            // A fence of this operation may only become another of the same instant, an old one
            // only itself. Nothing is given twice, so a mapping within sets is one between sets.
            let free = moment(ours).is_some() && moment(ours) == moment(theirs);
            if ours != theirs && !free {
                return Err(format!("fence {theirs} where {ours} was due"));
            }
        }
        let mut theirs: Vec<u64> = renamed.iter().map(|it| it.1).collect();
        theirs.sort_unstable();
        if theirs.windows(2).any(|two| two[0] == two[1]) {
            return Err(format!("a fence was given twice: {theirs:?}"));
        }
        let rename = |fence: &mut u64| {
            if let Some(&(_, theirs)) = renamed.iter().find(|it| it.0 == *fence) {
                *fence = theirs;
            }
        };
        for key in &mut self.keys {
            key.holders.iter_mut().for_each(|it| rename(&mut it.fence));
            for ticket in &mut key.tickets {
                if let Stage::Held(fence) = &mut ticket.stage {
                    rename(fence);
                }
            }
        }
        for said in &mut self.said {
            if let Word::Granted { fence, .. } | Word::Acquired { fence, .. } = &mut said.word {
                rename(fence);
            }
        }
        Ok(())
    }

    /// A renewal forgets the ticket of a lease that it finds over and still there. The model ends
    /// all leases of a key together, the engine some at a time, so it may have found one that ended
    /// for the model since [`Model::expire`]. `tickets` is how many the engine has left.
    pub fn follow_renewal(&mut self, fence: u64, tickets: usize) {
        if self.ticket_count() == tickets + 1 && self.just_ended.contains(&fence) {
            for key in &mut self.keys {
                let is_of =
                    |stage| matches!(stage, Stage::Expired { fence: it, .. } if it == fence);
                key.tickets.retain(|it| !is_of(it.stage));
            }
            self.finish();
        }
    }

    /// Forgets the keys that the engine has forgotten, if it was allowed to; complains about those
    /// it should have. `expired` says whether the latest operation was [`Model::expire`].
    pub fn follow_forgetting(&mut self, known: &[usize], expired: bool) -> Result<(), String> {
        let Rules {
            gc_idle_max,
            gc_interval,
            ..
        } = self.rules;
        let (now, made_room) = (self.now, std::mem::take(&mut self.made_room));
        let mut room = usize::from(!made_room.is_empty());
        let mut wrong = None;
        self.keys.retain(|key| {
            let name = key.name;
            let (known, due) = (known.contains(&name), key.idle_since);
            let due = due.filter(|_| expired).map(|at| at.after(gc_idle_max));
            if known {
                if due.is_some_and(|due| due.after(gc_interval) <= now) {
                    wrong = Some(format!("key {name} is idle for long and still known"));
                }
            } else if room > 0 && made_room.contains(&name) {
                room -= 1;
            } else if due.is_none_or(|due| due > now) {
                wrong = Some(format!("key {name} was forgotten too early"));
            }
            known
        });
        if room > 0 {
            wrong = Some(format!("none of {made_room:?} made room"));
        }
        wrong.map_or(Ok(()), Err)
    }
}

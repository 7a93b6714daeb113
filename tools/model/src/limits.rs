//! Limits: which requests are refused, and why, when there is no room.
//!
//! - A new key needs a place among `locks_max` keys. The key that has been idle longest makes room;
//!   if none is idle, the request is refused. Idle keys are forgotten after `gc_idle_max`, and at
//!   most `gc_interval` later.
//! - Counters, values, lists and barriers share `keys_max` places. A request may be put off instead
//!   of refused, until time has passed, because an entry that is over may still have a place.
//! - While memory is short, a request that needs more memory may be refused, but no other request.
//!   The model cannot know which, and follows.
//! - While the disk is full, a request that takes room there is refused before anything else.
//! - While the server drains, nothing new is granted, and all parked requests are refused.

use latchd::base::ConnId;
use latchd::engine::types::{Effect, Refusal, Reply, Request};

use crate::{Awaits, Model};

impl Model {
    pub(crate) fn lacks_room(&self, request: &Request<'_>) -> bool {
        let is_new_hold = matches!(request, Request::Acquire { .. } | Request::Enqueue { .. });
        let is_draining = self.draining && is_new_hold;
        self.storage_full && request.takes_room() && !is_draining
    }

    /// Forgets a key that must be gone, because the other keys already fill all places.
    pub(crate) fn forget_if_full(&mut self, key: &[u8]) {
        let most = self.rules.locks_max as usize;
        let others = self
            .keys
            .iter()
            .filter(|it| !it.may_be_gone && it.name != key)
            .count();
        self.keys
            .retain(|it| it.name != key || !it.may_be_gone || most == 0 || others < most);
    }

    /// A key is about to be added.
    pub(crate) fn make_room_for_key(&mut self) -> Result<(), Refusal> {
        let most = self.rules.locks_max as usize;
        let known = self.keys.iter().filter(|it| !it.may_be_gone).count();
        let must_make_room = most != 0 && known >= most;
        if !must_make_room && !self.memory_full {
            return Ok(());
        }
        if must_make_room {
            self.keys.retain(|it| !it.may_be_gone); // or there would be too many
        }
        let candidates = self.keys.iter().filter(|it| !it.may_be_gone);
        let Some(oldest) = candidates.filter_map(|it| it.idle).min() else {
            return if must_make_room {
                Err(Refusal::MaxLocks)
            } else {
                Ok(())
            };
        };
        // Of several that are idle since the same instant, any one makes room.
        let oldest = |it: &crate::lock::LockKey| it.idle == Some(oldest) && !it.may_be_gone;
        if must_make_room && self.keys.iter().filter(|it| oldest(it)).count() == 1 {
            self.keys.retain(|it| !oldest(it));
        }
        for key in &mut self.keys {
            key.may_be_gone |= oldest(key);
        }
        Ok(())
    }

    /// Time has passed: idle keys may be forgotten from their time on, and must be a little later.
    pub(crate) fn forget_keys(&mut self) {
        let (most, late) = (self.rules.gc_idle_max, self.rules.gc_interval);
        let now = self.now;
        self.keys.retain(|it| {
            it.idle
                .is_none_or(|since| since.after(most).after(late) > now)
        });
        for key in &mut self.keys {
            key.may_be_gone |= key.idle.is_some_and(|since| since.after(most) <= now);
        }
    }

    /// Whether there is a place for another counter, value, list or barrier. If not, the request is
    /// answered here.
    pub(crate) fn has_place(&mut self, id: ConnId) -> bool {
        let (least, most) = self.named_count();
        let places = match self.rules.keys_max {
            0 => usize::MAX,
            some => some as usize,
        };
        let is_put_off = self.seen.contains(&Effect::NotYet(id));
        let is_refused = self.seen_answer(id) == Some(&Reply::Refused(Refusal::MaxKeys));
        if most < places || least < places && !is_put_off && !is_refused {
            if self.is_refused_for_memory(id) {
                self.refuse(id, Refusal::Memory);
                return false;
            }
            return true;
        }
        // The engine does not check whether an entry is over. That is found when time passes, and
        // then the request is asked again.
        match is_put_off {
            true => self.put_off(id),
            false => self.refuse(id, Refusal::MaxKeys),
        }
        false
    }

    /// How many counters, values, lists and barriers there are: at least, and at most.
    fn named_count(&self) -> (usize, usize) {
        let mut lists: Vec<&[u8]> = self.lists.keys().map(|it| &**it).collect();
        lists.extend(self.waiters.iter().filter_map(|it| match &it.what {
            Awaits::Pop { key, .. } => Some(&**key),
            _ => None,
        }));
        lists.sort_unstable();
        lists.dedup();
        let barriers = self.barriers.iter().filter(|it| it.end.is_none()).count();
        let others = self.values.len() + lists.len() + barriers;
        let certain = self
            .counters
            .values()
            .filter(|it| !self.may_be_forgotten(it))
            .count();
        (others + certain, others + self.counters.len())
    }

    /// Shutdown begins: every parked command is refused.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        let parked: Vec<_> = self
            .waiters
            .iter()
            .filter(|it| it.conn.is_some())
            .cloned()
            .collect();
        for waiter in parked {
            let conn = waiter.conn.expect("a command is parked");
            self.about = None;
            match waiter.what {
                Awaits::Hold { key, .. } => {
                    self.answer_parked(conn, Reply::Refused(Refusal::Draining));
                    self.give_up(waiter.id);
                    self.serve_later(&key, self.moment);
                }
                Awaits::Pop { .. } => {
                    self.answer_parked(conn, Reply::Refused(Refusal::Draining));
                    self.unpark(waiter.id);
                }
                Awaits::Barrier(barrier) => self.send_away_from(waiter.id, conn, barrier),
                Awaits::Range(_) => self.send_range_away(waiter.id),
            }
        }
        while let Some((key, moment)) = self.unserved.first().cloned() {
            self.about = Some(key.clone());
            self.serve(&key, moment);
        }
    }

    /// A record of an earlier run names this key.
    pub(crate) fn restore_key(&mut self, key: &[u8], mode: latchd::engine::types::Mode) {
        if !self.keys.iter().any(|it| it.name == key) {
            self.keys.push(crate::lock::LockKey::new(key, mode));
        }
    }
}

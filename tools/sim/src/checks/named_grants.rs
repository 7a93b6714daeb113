//! What clients that speak HTTP know of grants besides: leases that belong to a name, requests that are
//! sent again, and breaks.

use super::KnownGrants;
use crate::clients::connection::Moment;
use latchd::base::{Millis, Nanos};

const MS: u64 = 1_000_000;

impl KnownGrants {
    /// The last grant that was told is one that an earlier life has made.
    pub(crate) fn note_of_earlier_life(&mut self) {
        self.earlier += 1;
    }

    /// A request asked for this lease, of which a part was over when it was first told.
    pub(crate) fn note_asked(&mut self, fence: u64, lease: Millis) {
        self.grant(fence).lease_asked_max = lease;
    }

    /// What is left of a lease was told in whole milliseconds, rounded down.
    pub(crate) fn note_rounded(&mut self, fence: u64) {
        let it = self.grant(fence);
        it.deadline_max = Nanos(it.deadline_max.0.saturating_add(MS));
    }

    /// Over HTTP a release that comes after the end of the lease is refused.
    pub(crate) fn check_in_time(&self, fence: u64, since: Nanos) -> Result<(), String> {
        if self.by_fence[&fence].deadline_max() <= since {
            return Err(format!(
                "{fence} was released although its lease had passed"
            ));
        }
        Ok(())
    }

    /// An operator was told that the grant has ended.
    pub(crate) fn broken(&mut self, fence: u64, arrived: Moment, turn: u64) -> Result<(), String> {
        self.breaks_done += 1;
        let it = self.grant(fence);
        if it.over.is_some_and(|over| over <= arrived.turn) {
            return Err(format!("{fence} was broken after its end"));
        }
        it.is_end_told = true;
        it.over.get_or_insert(turn);
        Ok(())
    }

    /// An operator was told that there is no such grant.
    pub(crate) fn not_broken(&mut self, now: Nanos, fence: u64) -> Result<(), String> {
        let it = self.grant(fence);
        let is_alone = it.breaks_sent == 1 && it.releases_sent == 0;
        if is_alone && !it.owner_left && it.over.is_none() && now < it.deadline_min() {
            return Err(format!("{fence} is held, and could not be broken"));
        }
        Ok(())
    }

    /// A renewal over HTTP gives at least what was asked for, and what is left if that is more.
    pub(crate) fn check_not_shorter(
        &self,
        fence: u64,
        told: Millis,
        asked: Millis,
        (since, now): (Nanos, Nanos),
    ) -> Result<(), String> {
        let it = &self.by_fence[&fence];
        if it.told_at >= since {
            return Ok(()); // by an answer that may be about something later
        }
        if now.after(told).0.saturating_add(MS) < it.deadline_min().0 {
            return Err(format!("the renewal of {fence} made its lease shorter"));
        }
        let others = it.renewals.len() > 1;
        let end = since.after(told).0;
        if told > asked && !others && end > it.deadline_max.0 {
            return Err(format!("{fence} was renewed for {told:?}, not {asked:?}"));
        }
        Ok(())
    }

    /// The same owner was granted this for a request with the same id. What clients know of its lease
    /// must fit what is told of it now: `left`, rounded down, at some time from `since` on.
    pub(crate) fn granted_again(
        &self,
        now: Nanos,
        fence: u64,
        token: &str,
        left: Millis,
        (since, asked_after): (Nanos, u64),
    ) -> Result<(), String> {
        let it = &self.by_fence[&fence];
        if it.token != token {
            return Err(format!("{fence} has another token than before"));
        }
        if it.over.is_some_and(|turn| turn <= asked_after) {
            return Err(format!("{fence} was granted again after its end"));
        }
        if it.told_at >= since {
            return Ok(()); // by an answer that may be about something later
        }
        let high = now.after(left).0.saturating_add(MS);
        if high < it.deadline_min().0 || since.after(left) > it.deadline_max() {
            return Err(format!(
                "{fence} was told again with {left:?} left, which is not what was told before"
            ));
        }
        Ok(())
    }

    /// The request with this id was granted this, and may have been granted something before. What is
    /// still certainly held must be what it is told.
    pub(crate) fn note_ask(&mut self, id: &str, fence: u64, now: Nanos) -> Result<(), String> {
        if let Some(before) = self.asks.granted(id)
            && before < fence
            && self.by_fence[&before].is_certain(now)
        {
            return Err(format!(
                "{before} is held by the request {id:?}, which was now granted {fence}"
            ));
        }
        self.asks.note_granted(id, fence);
        Ok(())
    }

    /// A request was refused with whose id its owner certainly holds something, since before it came.
    pub(crate) fn check_ask_refused(
        &self,
        id: &str,
        arrived: Nanos,
        now: Nanos,
    ) -> Result<(), String> {
        let held = self.asks.granted(id).and_then(|it| self.by_fence.get(&it));
        if held.is_some_and(|it| it.told_at < arrived && it.is_certain(now)) {
            return Err(format!(
                "asked again for what the request {id:?} holds, and refused"
            ));
        }
        Ok(())
    }

    /// What clients certainly hold, and have held since then.
    pub(crate) fn certain_from(&self, key: usize, since: Nanos, now: Nanos) -> bool {
        let mut live = self.live[key].iter().map(|fence| &self.by_fence[fence]);
        live.any(|it| it.granted_at < since && it.is_certain(now))
    }
}

//! The grace period after a restart: restored locks are kept for their clients for a while.
//!
//! - Restored locks are *pending*: they block other owners, and belong to their owner only after it
//!   reclaims them. A lock of the same bytes by the same owner reclaims them, too.
//! - Each client has the grace period for that, or its time to live if that is longer. Locks that
//!   it has not reclaimed by then are released, and the client is notified.
//! - During the period a request for pending bytes of other owners is refused, and the refusal says
//!   for how long. A strict period refuses all new locks, until its own timer ends.
//! - The period is over for all when every client with pending locks is done, or an operator ends
//!   it.

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::GracePolicy;
use latchd::engine::types::{
    ByteRange, Effect, GraceState, Loss, OfClient, RangeGrant, Record, Refusal, Reply, Secret,
};

use super::segments::{self, Segment};
use super::{Owner, RangeWait};
use crate::{Model, Name, SessionId};

/// Under this name it is noted which record the answer to `grace` waits for.
const GRACE: &str = "grace";

/// The grace period.
pub(crate) struct Grace {
    ends: Nanos,
    /// Its timer has not ended.
    is_running: bool,
    /// The period is over, and locks that were not reclaimed are still to be released.
    is_ending: bool,
    /// All new locks are refused while it runs.
    is_strict: bool,
    /// Until when pending locks are kept for each client that has some.
    kept: Vec<(SessionId, Nanos)>,
    /// How many clients had some at first.
    expected: u32,
    /// When the time of all of them is over.
    last_ends: Nanos,
    /// How many locks were released because they were not reclaimed in time.
    released: u64,
}

/// How long until then; not nothing, because it is not over yet.
fn left(now: Nanos, until: Nanos) -> Millis {
    Millis(until.since(now).div_ceil(1_000_000).max(1))
}

impl Model {
    // ---- before clients are served ----

    /// A record of an earlier run says that bytes are locked like this, or are not locked any more.
    pub(crate) fn restore_range(&mut self, record: &Record) {
        let Record::Ranged {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } = record
        else {
            return;
        };
        let client = String::from_utf8_lossy(client.as_bytes());
        let Some(session) = self.find_client(&client) else {
            return;
        };
        let owner = Owner {
            session,
            name: owner.as_bytes().to_vec(),
        };
        let mut grant = *grant;
        if grant.id == 0 {
            grant.id = self.next_range_id(); // an earlier version has not recorded it
        }
        self.ranges.last_id = self.ranges.last_id.max(grant.id + 1);
        if grant.since == 0 {
            grant.since = self.rules.zero_ns;
        }
        self.change_held(&owner, resource.as_bytes(), |own| match mode {
            &Some(mode) => {
                let (id, since, epoch) = (grant.id, grant.since, grant.epoch);
                let new = Segment {
                    range: *range,
                    mode,
                    id,
                    since,
                    epoch,
                    pending: true,
                };
                segments::lock(own, new, id + 1);
            }
            None => segments::unlock(own, *range, grant.id),
        });
    }

    /// A record of an earlier run says that the client is gone: so are its ranges.
    pub(crate) fn restore_ranges_gone(&mut self, session: SessionId) {
        self.ranges.owners.retain(|it| it.owner.session != session);
    }

    /// Everything is restored: the grace period begins if there are locks to reclaim, or if there
    /// may have been locks that the records do not have.
    pub(crate) fn begin_grace(&mut self, may_have_lost: bool) {
        self.ranges.last_id = self.ranges.last_id.max(self.last_fence);
        let mut clients: Vec<SessionId> = self
            .ranges
            .owners
            .iter()
            .map(|it| it.owner.session)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        if clients.is_empty() && !may_have_lost {
            return;
        }
        let ends = self.now.after(self.rules.grace_period);
        let kept = clients.iter().map(|&it| {
            let ttl = self.client(it).map_or(Millis::ZERO, |it| it.ttl);
            (it, self.now.after(ttl).max(ends))
        });
        let kept: Vec<(SessionId, Nanos)> = kept.collect();
        // It is not forgotten before it has lost them.
        for &(client, until) in &kept {
            self.keep_client_until(client, until.after(Millis(1)));
        }
        self.ranges.grace = Some(Grace {
            ends,
            is_running: true,
            is_ending: false,
            is_strict: may_have_lost || self.rules.grace_policy == GracePolicy::Strict,
            expected: kept.len() as u32,
            last_ends: kept.iter().map(|it| it.1).max().unwrap_or(ends),
            kept,
            released: 0,
        });
    }

    // ---- while it lasts ----

    /// The pending locks of a session.
    fn pending_of(&self, session: SessionId) -> Vec<(Owner, Name, ByteRange)> {
        let pending = self
            .all_held()
            .filter(|it| it.0.session == session && it.2.pending);
        pending
            .map(|it| (it.0.clone(), it.1.clone(), it.2.range))
            .collect()
    }

    /// Until when pending locks of the client are kept for it; `Nanos(0)` if it has none.
    pub(crate) fn ranges_kept_until(&self, session: SessionId) -> Nanos {
        let mut kept = self.ranges.grace.iter().flat_map(|it| &it.kept);
        let until = kept.find(|it| it.0 == session).map(|it| it.1);
        until
            .filter(|_| !self.pending_of(session).is_empty())
            .unwrap_or(Nanos(0))
    }

    /// How long pending locks of the client are kept for it, as `attach` answers.
    pub(crate) fn reclaim_left(&self, session: SessionId) -> Option<Millis> {
        let until = self.ranges_kept_until(session);
        (until > Nanos(0)).then(|| left(self.now, until))
    }

    /// If a lock is refused because of the grace period: for how long at most.
    pub(super) fn withheld(&self, want: &RangeWait) -> Option<Millis> {
        let grace = self.ranges.grace.as_ref()?;
        let strict = (grace.is_strict && grace.is_running).then_some(grace.ends);
        let pending = self
            .holders_in_the_way(want)
            .into_iter()
            .filter(|it| it.1.pending);
        let kept = pending.map(|(owner, _)| self.ranges_kept_until(owner.session));
        kept.chain(strict).max().map(|until| left(self.now, until))
    }

    /// The owner has back what it held, or has it back already, in the same mode or shared.
    pub(super) fn reclaim_range(&mut self, conn: ConnId, want: RangeWait) {
        if self.ranges.grace.is_none() {
            return self.refuse(conn, Refusal::NoGrace);
        }
        let own = self.held_of(&want.owner, &want.resource);
        if !segments::covers(own, want.range, want.mode, true) {
            return self.refuse(conn, Refusal::Reclaim);
        }
        let mut after = own.to_vec();
        segments::lock(&mut after, self.new_segment(&want, 0), 0);
        if after.len() > own.len()
            && let Some(why) = self.has_no_room_to_split(want.owner.session)
        {
            return self.refuse(conn, why);
        }
        self.grant_range(&want);
        self.reply(conn, Reply::Done);
        self.serve_ranges(&want.resource);
    }

    /// A client wants nothing else back.
    pub(crate) fn reclaim_done(&mut self, conn: ConnId, client: &str, secret: Option<Secret<'_>>) {
        let session = self.meet(conn).session;
        let known = match secret {
            Some(secret) => self.speak_for(OfClient { id: client, secret }),
            None => match self.find_client(client) {
                None => Err(Refusal::UnknownClient),
                Some(known) if known == session => Ok(Some(known)),
                Some(_) => Err(Refusal::OtherClient),
            },
        };
        match known {
            Ok(Some(of)) => {
                self.release_pending(of, false);
                self.about = Some(client.as_bytes().to_vec());
                self.records.speak_of_all(client);
                self.reply(conn, Reply::Done);
            }
            Ok(None) => self.put_off(conn),
            Err(why) => self.refuse(conn, why),
        }
    }

    /// How far the grace period is. An operator may end it for all clients.
    pub(crate) fn tell_grace(&mut self, conn: ConnId, ends: bool) {
        self.meet(conn);
        if ends && let Some(grace) = &mut self.ranges.grace {
            grace.is_running = false;
            for (client, _) in grace.kept.clone() {
                self.release_pending(client, true);
            }
            self.finish_grace();
        }
        let state = self.ranges.grace.as_ref().map(|it| GraceState {
            left: left(self.now, it.last_ends),
            expected: it.expected,
            done: it.expected - self.awaited(),
        });
        self.about = Some(GRACE.into());
        self.reply(conn, Reply::Grace(state.unwrap_or_default()));
    }

    // ---- how it ends ----

    /// The number of clients that have locks to reclaim.
    fn awaited(&self) -> u32 {
        let kept = self.ranges.grace.iter().flat_map(|it| &it.kept);
        kept.filter(|it| !self.pending_of(it.0).is_empty()).count() as u32
    }

    /// Releases what a client has not reclaimed. Unless it asked for that, each loss is pushed to
    /// it.
    fn release_pending(&mut self, client: SessionId, is_late: bool) {
        for (owner, resource, range) in self.pending_of(client) {
            self.about = Some(resource.clone());
            if let Some(grace) = self.ranges.grace.as_mut().filter(|_| is_late) {
                grace.released += 1;
            }
            self.clear_range(&owner, &resource, range);
            if is_late {
                self.tell_range_lost(&owner, &resource, range, Loss::Expired);
            }
            self.serve_ranges(&resource);
        }
    }

    /// The period is over when every client that had something is done. If none had, only its timer
    /// ends it.
    pub(crate) fn end_grace_if_done(&mut self) {
        let is_done = |it: &Grace| it.expected > 0 && !it.is_ending && self.awaited() == 0;
        if self.ranges.grace.as_ref().is_some_and(is_done) {
            self.finish_grace();
        }
    }

    fn finish_grace(&mut self) {
        if let Some(grace) = self.ranges.grace.take() {
            let about = self.about.take();
            self.expect(Effect::GraceOver(grace.released));
            self.records.speak_of_all(GRACE);
            self.about = about;
        }
    }

    /// What is done when time passes, after leases and waits have ended. The time of the grace
    /// period itself may be over, and that of clients which had longer.
    pub(crate) fn end_ranges(&mut self) {
        let Some(grace) = &mut self.ranges.grace else {
            return;
        };
        if grace.is_running && grace.ends <= self.now {
            (grace.is_running, grace.is_ending) = (false, true);
            if self.awaited() == 0 {
                return self.finish_grace();
            }
        }
        let Some(grace) = &self.ranges.grace else {
            return;
        };
        let ends = grace.ends;
        let over = grace
            .kept
            .iter()
            .filter(|it| it.1 <= self.now && it.1 > ends);
        for client in over.map(|it| it.0).collect::<Vec<_>>() {
            self.release_pending(client, true);
        }
    }

    pub(super) fn is_grace_ending(&self) -> bool {
        self.ranges.grace.as_ref().is_some_and(|it| it.is_ending)
    }

    /// The time of the grace period is over, and so is that of all clients which had no longer.
    pub(super) fn go_on_ending_grace(&mut self) {
        let Some(grace) = self.ranges.grace.as_mut().filter(|it| it.is_ending) else {
            return;
        };
        let ends = grace.ends;
        let over = grace.kept.iter().filter(|it| it.1 <= ends).map(|it| it.0);
        for client in over.collect::<Vec<_>>() {
            self.release_pending(client, true);
        }
        if let Some(grace) = &mut self.ranges.grace {
            grace.is_ending = false;
        }
        if self.awaited() == 0 {
            self.finish_grace();
        }
    }

    /// The next instant at which ranges change by themselves, apart from ends of waits.
    pub(crate) fn next_range_deadline(&self) -> Option<Nanos> {
        let grace = self.ranges.grace.as_ref()?;
        let ends = grace.is_running.then_some(grace.ends);
        let kept = grace
            .kept
            .iter()
            .filter(|it| !self.pending_of(it.0).is_empty());
        kept.map(|it| it.1).chain(ends).min()
    }

    /// The client is known after a restart from now on: records its ranges as its own.
    pub(crate) fn record_ranges_of(&mut self, session: SessionId) {
        let own = self.all_held().filter(|it| it.0.session == session);
        let own = own.map(|(owner, resource, it)| (owner.clone(), resource.clone(), *it));
        for (owner, resource, it) in own.collect::<Vec<_>>() {
            let Segment {
                range,
                mode,
                id,
                since,
                epoch,
                ..
            } = it;
            let want = RangeWait {
                resource,
                owner,
                range,
                mode,
            };
            let grant = RangeGrant { id, since, epoch };
            self.record_range(&want, Some(mode), grant);
        }
    }
}

//! What a primitive may touch besides its own store: the time, the effects, and the [`Core`].
//!
//! A [`Ctx`] lives for one input, or for one timer that fired. Decides nothing.

use super::clients::Clients;
use super::conn::{ConnIndex, Conns};
use super::due::{Due, What};
use super::fence::Fences;
use super::figures::Figures;
use super::holder::{Held, Holder};
use super::owner::{OwnerIndex, Owners, Presence};
use super::queue::{Waiter, Waiters};
use super::record::Records;
use super::restore::Restored;
use super::shares::{Shares, Status};
use super::subscriptions::{Subscriptions, TOPICS, Topic};
use super::types::{Effect, Effects, Mode, Note, NoteOf, Noted, Notes, Push, Refusal, Reply};
use super::work::{self, Work};
use super::{Ends, Rules};
use crate::base::{ConnId, Nanos};
use crate::key::Key;
use crate::timers::{GroupTimers, Timers};

/// What all primitives share: connections, owners, waiters, subscriptions, timers, fences.
pub(super) struct Core {
    pub(super) rules: Rules,
    /// Leases, waits and tickets, in groups by owner.
    pub(super) timers: GroupTimers<Due>,
    /// What nobody waits for: the ends of values, and collections.
    pub(super) background: Timers<Due>,
    pub(super) conns: Conns,
    pub(super) owners: Owners,
    pub(super) clients: Clients,
    pub(super) waiters: Waiters,
    pub(super) fences: Fences,
    pub(super) ends: Ends,
    pub(super) figures: Figures,
    pub(super) subscriptions: [Subscriptions; TOPICS],
    /// How many counters, values, lists and barriers there are.
    pub(super) keys: u32,
    pub(super) draining: bool,
    /// We have begun to cut connections off: nobody is granted any more what those waited for.
    pub(super) cuts_off: bool,
    /// So much memory is in use that nothing may grow.
    pub(super) memory_full: bool,
    /// There is no room on disk for anything that grows.
    pub(super) storage_full: bool,
    /// What has to outlive the process; none if nothing does.
    pub(super) records: Option<Box<Records>>,
    /// What outlived an earlier one.
    pub(super) restored: Restored,
    /// What was done since the server last asked.
    pub(super) work: Work,
    /// How many peers have hung up so far.
    pub(super) hang_ups: u64,
    /// How many connections want what they are granted to outlive them.
    pub(super) keepers: u32,
    /// Parts of all names that have figures of their own.
    pub(super) shares: Shares,
    /// Whether ends of grants are looked at: for the log, or because there are shares.
    pub(super) heeds_ends: bool,
    /// Whether grants are looked at once they are made: for the same, or because there are keepers.
    pub(super) heeds_grants: bool,
}

impl Core {
    /// After a change of what grants are looked at for.
    pub(super) fn set_heeds(&mut self) {
        self.heeds_ends = self.rules.notes != Notes::Off || self.shares.is_on();
        self.heeds_grants = self.heeds_ends || self.keepers > 0;
    }

    /// The owner's connection is gone, and everything it left behind is undone.
    pub(super) fn lose_conn(&mut self, owner: OwnerIndex) {
        self.owners.lose_conn(owner);
        self.forget_if_done(owner);
    }

    /// Forgets an owner that is gone and owns nothing any more.
    #[inline(always)] // it is asked for with every release, and hardly ever the case
    pub(super) fn forget_if_done(&mut self, owner: OwnerIndex) {
        if self.owners.is_done(owner) {
            self.forget(owner);
        }
    }

    /// Whether a waiter can still be served: its owner is there, and the connection that would be
    /// told has not hung up.
    #[inline]
    pub(super) fn is_present(&self, waiter: u32) -> bool {
        let Waiter { conn, owner, .. } = self.waiters[waiter];
        let owner = &self.owners[owner];
        let conn = if conn == ConnIndex::NONE {
            owner.conn
        } else {
            conn
        };
        // A client that has no connection of its own may still be asked for on one that is there.
        let is_here =
            owner.is_here() || (owner.presence == Presence::Away && conn != ConnIndex::NONE);
        is_here && (conn == ConnIndex::NONE || self.conns[conn].is_present())
    }

    #[inline(never)]
    fn forget(&mut self, owner: OwnerIndex) {
        self.owners.remove(owner);
        self.timers.forget(owner.0);
        self.restored.forget_owner(owner);
    }
}

pub(super) struct Ctx<'e> {
    /// The time of the input. Leases and waits run from here.
    pub(super) now: Nanos,
    /// The instant to decide for: `now` for a request; for a timer its deadline, so that a late
    /// turn decides as a punctual one would have.
    pub(super) moment: Nanos,
    pub(super) out: &'e mut Effects,
    pub(super) core: &'e mut Core,
}

impl Ctx<'_> {
    #[inline]
    pub(super) fn reply(&mut self, conn: ConnIndex, reply: Reply) {
        self.out
            .push(Effect::Reply(self.core.conns[conn].id, reply));
    }

    pub(super) fn refuse(&mut self, conn: ConnIndex, why: Refusal) {
        if why == Refusal::MaxKeys && self.has_expired_entries() {
            return self.put_off(conn);
        }
        self.core.figures.refused(why);
        self.reply(conn, Reply::Refused(why));
    }

    /// Whether an expired value or an idle counter still takes a place, because its timer has not
    /// fired yet. Only the earliest timer is looked at: searches that are always due, and come
    /// behind what expired before them, must not put a request off for ever.
    #[cold]
    fn has_expired_entries(&self) -> bool {
        let next = self.core.background.first();
        next.is_some_and(|(at, due)| {
            at <= self.moment && matches!(due.what(), What::Value(_) | What::Counters)
        })
    }

    /// The request of this connection is not decided: the server asks again.
    #[cold]
    pub(super) fn put_off(&mut self, conn: ConnIndex) {
        self.out.push(Effect::NotYet(self.core.conns[conn].id));
    }

    pub(super) fn push(&mut self, conn: ConnIndex, push: Push) {
        let it = &self.core.conns[conn];
        if it.is_overrun() {
            self.core.conns.report(conn, self.out);
        } else {
            self.out.push(Effect::Push(it.id, push));
        }
    }

    /// Notes for the log what happened to a grant.
    #[cold]
    pub(super) fn note(&mut self, what: Noted, holder: &Holder, key: &Key) {
        let least = match what {
            Noted::Broken => Notes::Off,
            Noted::Expired { .. } => Notes::Expiries,
            Noted::Granted | Noted::Released | Noted::Disconnected => Notes::All,
        };
        if self.core.rules.notes >= least {
            let owner = &self.core.owners[holder.owner];
            self.out.push(Effect::Note(Box::new(Note {
                what,
                key: key.clone(),
                of: NoteOf::Grant(holder.token.fence),
                conn: owner.connection(),
                client: owner.client_id().map(Into::into),
                owner: owner.called().filter(|_| owner.is_named()).map(Into::into),
                user: owner.user.clone(),
            })));
        }
    }

    /// A request to hold a key was refused, or not free when it was not to wait.
    pub(super) fn note_denied(&mut self, key: &[u8], mode: Mode) {
        let held = Held::of(mode);
        self.core.figures.denied(held);
        if self.core.shares.is_on() {
            let share = self.core.shares.of_name(key);
            let shares = &mut self.core.shares;
            shares.acquired(share, held.into(), Status::Denied);
        }
    }

    /// A request for a key that is refused, or has left its queue, would have waited for itself.
    #[cold]
    pub(super) fn note_deadlock(&mut self, resource: u32, held: Held) {
        self.core.figures.deadlocked(held);
        let share = self.core.shares.of_key(resource);
        self.core.shares.denied_by_deadlock(share, held.into());
    }

    #[inline]
    pub(super) fn is_present(&self, waiter: u32) -> bool {
        self.core.is_present(waiter)
    }

    /// The connections whose subscriptions match `name`; see [`Subscriptions::recipients`].
    pub(super) fn recipients(
        &mut self,
        topic: Topic,
        name: &[u8],
        but: Option<ConnIndex>,
    ) -> Vec<ConnId> {
        let subscriptions = &mut self.core.subscriptions[topic as usize];
        let recipients = subscriptions.recipients(&mut self.core.conns, name, but, self.out);
        let looks = subscriptions.take_work();
        self.core.work.charge(looks * work::RECIPIENT);
        recipients
    }
}

//! What a primitive may touch besides itself: the time, the effects, the timers, who is connected.
//!
//! Lives for one call of one of the engine's doors. Decides nothing.

use super::conn::{ConnIndex, Conns};
use super::due::Due;
use super::fence::Fences;
use super::holder::Holder;
use super::owner::Owners;
use super::queue::{Waiter, Waiters};
use super::subscriptions::{Subscriptions, TOPICS, Topic};
use super::types::{Effect, Effects, Note, Noted, Notes, Push, Refusal, Reply};
use super::{Rules, Tally};
use crate::base::{ConnId, Nanos};
use crate::key::Key;
use crate::timers::Timers;

pub(super) struct Ctx<'e> {
    /// What the clock said when the input came. Leases and waits run from here.
    pub(super) now: Nanos,
    /// The instant being decided: `now` for a request, for a timer the deadline itself, so that a
    /// turn that comes late decides as a punctual one would have.
    pub(super) moment: Nanos,
    pub(super) out: &'e mut Effects,
    pub(super) rules: &'e Rules,
    pub(super) timers: &'e mut Timers<Due>,
    pub(super) conns: &'e mut Conns,
    pub(super) owners: &'e mut Owners,
    pub(super) waiters: &'e mut Waiters,
    pub(super) fences: &'e mut Fences,
    pub(super) tally: &'e mut Tally,
    pub(super) subscriptions: &'e mut [Subscriptions; TOPICS],
    /// How many counters, values, lists and barriers there are.
    pub(super) keys: &'e mut u32,
    pub(super) draining: bool,
}

impl Ctx<'_> {
    #[inline]
    pub(super) fn reply(&mut self, conn: ConnIndex, reply: Reply) {
        self.out.push(Effect::Reply(self.conns[conn].id, reply));
    }

    pub(super) fn refuse(&mut self, conn: ConnIndex, why: Refusal) {
        self.reply(conn, Reply::Refused(why));
    }

    pub(super) fn push(&mut self, conn: ConnIndex, push: Push) {
        let it = &self.conns[conn];
        if it.is_overrun() {
            self.conns.report(conn, self.out);
        } else {
            self.out.push(Effect::Push(it.id, push));
        }
    }

    /// Says for the log what became of a grant, if that is read.
    #[inline]
    pub(super) fn note(&mut self, what: Noted, holder: &Holder, key: &Key) {
        let least = match what {
            Noted::Expired => Notes::Expiries,
            Noted::Granted | Noted::Released | Noted::Disconnected => Notes::All,
        };
        if self.rules.notes >= least {
            self.out.push(Effect::Note(Note {
                what,
                key: key.clone(),
                fence: holder.token.fence,
                conn: self.owners[holder.owner].conn_id,
            }));
        }
    }

    /// Whether a waiter can still be served: its owner is there, and the connection that would hear of
    /// it has not hung up.
    pub(super) fn is_present(&self, waiter: u32) -> bool {
        let Waiter { conn, owner, .. } = self.waiters[waiter];
        let owner = &self.owners[owner];
        let conn = if conn == ConnIndex::NONE {
            owner.conn
        } else {
            conn
        };
        owner.is_here() && (conn == ConnIndex::NONE || self.conns[conn].is_present())
    }

    /// The connections that hear `name`; see [`Subscriptions::recipients`].
    pub(super) fn recipients(
        &mut self,
        topic: Topic,
        name: &[u8],
        but: Option<ConnIndex>,
    ) -> Vec<ConnId> {
        self.subscriptions[topic as usize].recipients(self.conns, name, but, self.out)
    }
}

//! What a primitive may touch besides itself: the time, the effects, the timers, the clients.
//!
//! Lives for one call of one of the engine's doors. Decides nothing.

use super::client::Clients;
use super::due::Due;
use super::fence::Fences;
use super::queue::Waiters;
use super::subscriptions::{Subscriptions, TOPICS, Topic};
use super::types::{Effect, Effects, Push, Refusal, Reply};
use super::{Rules, Tally};
use crate::base::{ConnId, Nanos};
use crate::timers::Timers;

pub(super) struct Ctx<'e> {
    /// What the clock said at the start of this turn. Leases and waits run from here.
    pub(super) now: Nanos,
    /// The instant being decided: `now` for a request, for a timer the deadline itself, so that a
    /// turn that comes late decides as a punctual one would have.
    pub(super) moment: Nanos,
    pub(super) out: &'e mut Effects,
    pub(super) rules: &'e Rules,
    pub(super) timers: &'e mut Timers<Due>,
    pub(super) clients: &'e mut Clients,
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
    pub(super) fn reply(&mut self, client: u32, reply: Reply) {
        self.out.push(Effect::Reply(self.clients[client].id, reply));
    }

    pub(super) fn refuse(&mut self, client: u32, why: Refusal) {
        self.reply(client, Reply::Refused(why));
    }

    pub(super) fn push(&mut self, client: u32, push: Push) {
        let it = &self.clients[client];
        if it.overrun {
            self.clients.report(client, self.out);
        } else {
            self.out.push(Effect::Push(it.id, push));
        }
    }

    /// Who hears `name`; see [`Subscriptions::recipients`].
    pub(super) fn recipients(
        &mut self,
        topic: Topic,
        name: &[u8],
        but: Option<u32>,
    ) -> Vec<ConnId> {
        self.subscriptions[topic as usize].recipients(self.clients, name, but, self.out)
    }
}

//! Elections: a lock whose holder leads, and those who want to know who does.
//!
//! `elect` is an acquire on the same keys as `l` (with `Mode::Lead`), `resign` a release; both besides
//! tell the key's observers. On the way from one leader to the next they hear `resigned` (if it let go itself),
//! `failover` (somebody in the queue took over) and `elected` (and leads), in this order. A key that is
//! lost with nobody in the queue is not reported: there is no new leader to tell of.

use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::holder::Hold;
use super::lock::{Locks, Timer};
use super::signal;
use super::subscriptions::Topic;
use super::types::{Change, Effect, Event, Noted, Push, Refusal, Reply};
use crate::base::Token;
use crate::key::Key;

impl Locks {
    pub(super) fn resign(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
    ) {
        let Some((resource, holder)) = self.find_holder(key, token) else {
            return cx.refuse(asker.conn, Refusal::NotHolder);
        };
        cx.tally.releases += 1;
        self.note(cx, Noted::Released, holder);
        let freed = self.freed_at(cx, holder);
        let (leader, hold) = (self.holders[holder].owner, self.holders[holder].hold());
        let leader_conn = cx.owners[leader].conn;
        // A leader whose lead somebody else gives up hears of it, as if it observed until then.
        let is_unaware = hold == Hold::Lead
            && leader != asker.owner
            && leader_conn != ConnIndex::NONE
            && cx.conns[leader_conn].is_here()
            && !cx.subscriptions[Topic::Observe as usize].is_subscribed(leader_conn, key, b"");
        self.remove_holder(cx, holder, Timer::Running);
        cx.reply(asker.conn, Reply::Done);
        cx.announce(Event::Resign, key);
        let (change, name) = (Change::Resigned, &self.table[resource].key);
        if is_unaware {
            let key = name.clone();
            cx.push(leader_conn, Push::Leader { change, key });
        }
        tell_observers(cx, change, name, None);
        self.grant_waiting_at(cx, resource, freed);
    }

    /// From now on; if somebody leads at this moment, that is the first thing to know.
    pub(super) fn observe(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        let resource = self.find(key);
        if let Some(resource) = resource {
            self.evict_expired(cx, resource);
        }
        let leads = resource.is_some_and(|resource| !self.table[resource].holders.is_empty());
        let observes =
            |cx: &Ctx<'_>| cx.subscriptions[Topic::Observe as usize].is_subscribed(conn, key, b"");
        let observed = observes(cx);
        signal::subscribe(cx, Topic::Observe, conn, key, b"");
        // A second time is no news.
        if leads && observes(cx) && !observed {
            let (change, key) = (Change::Elected, Key::from(key));
            cx.push(conn, Push::Leader { change, key });
        }
    }
}

/// Tells everyone who observes the key, but for one who knows already.
pub(super) fn tell_observers(cx: &mut Ctx<'_>, change: Change, key: &Key, but: Option<ConnIndex>) {
    let recipients = cx.recipients(Topic::Observe, key.as_bytes(), but);
    if !recipients.is_empty() {
        cx.out.push(Effect::Broadcast(
            recipients,
            Push::Leader {
                change,
                key: key.clone(),
            },
        ));
    }
}

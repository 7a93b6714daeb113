//! Elections: a lock whose holder is the leader, and the clients that observe it.
//!
//! `elect` is an acquire on the same keys as `l` (with `Mode::Lead`, in `lock.rs`), `resign` is a
//! release; both also tell the key's observers. From one leader to the next, observers are told
//! `resigned` (if the leader resigned), `failover` (a client in the queue took over) and `elected`
//! (it leads), in this order. A key that is lost with an empty queue is not reported, because there
//! is no new leader to tell of.

use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::holder::Held;
use super::lock::Locks;
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
        self.note(cx, Noted::Released, holder);
        let freed = self.freed_at(cx, holder);
        let (leader, held) = (self.holders[holder].owner, self.holders[holder].held());
        // If another client resigns for the leader, the leader is told as if it observed the key.
        let mut unaware = match held == Held::Lead && leader != asker.owner {
            true => cx.core.connections_of(leader),
            false => Vec::new(),
        };
        let observers = &cx.core.subscriptions[Topic::Observe as usize];
        unaware.retain(|&conn| !observers.is_subscribed(conn, key, b""));
        self.remove_holder(cx, holder);
        cx.reply(asker.conn, Reply::Done);
        cx.announce(Event::Resign, key);
        let (change, name) = (Change::Resigned, &self.table[resource].key);
        for conn in unaware {
            let key = name.clone();
            cx.push(conn, Push::Leader { change, key });
        }
        tell_observers(cx, change, name, None);
        self.grant_waiting_at(cx, resource, freed);
    }

    /// Subscribes to the key's leader. If there is one now, the first push says so.
    pub(super) fn observe(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        let resource = self.find(key);
        if let Some(resource) = resource
            && !self.evict_expired(cx, resource)
        {
            return cx.put_off(conn);
        }
        let leads = resource.is_some_and(|resource| !self.table[resource].holders.is_empty());
        let observes = |cx: &Ctx<'_>| {
            cx.core.subscriptions[Topic::Observe as usize].is_subscribed(conn, key, b"")
        };
        let observed = observes(cx);
        signal::subscribe(cx, Topic::Observe, conn, key, b"");
        // A client that observed the key before knows already.
        if leads && observes(cx) && !observed {
            let (change, key) = (Change::Elected, Key::from(key));
            cx.push(conn, Push::Leader { change, key });
        }
    }
}

/// Tells all clients that observe the key, except `but`, which knows already.
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

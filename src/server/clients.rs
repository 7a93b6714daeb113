//! What attaches to a client and detaches it, and what operators break.
//!
//! The engine decides (`engine/clients.rs`, `engine/breaking.rs`). Here a wrong secret of a client is
//! counted among those of connections, so that nobody is told faster than `guesses.rs` allows; and
//! whoever breaks something is named in the log (`audit.rs`). A client that comes back again and again
//! is told of once a minute.

use std::collections::BTreeMap;

use log::info;

use super::conn::Transport;
use super::{Due, Server};
use crate::base::{ConnId, Fence, Millis, Nanos};
use crate::engine::types::{Attach, Input, Secret};
use crate::store::Store;

/// Returns of clients are told of after this time.
const RETURNS_EVERY: Millis = Millis::from_secs(60);

/// A client that has come back less often in that time is not told of.
const RETURNS_MIN: u32 = 3;

/// Most clients whose returns are counted one by one.
const RETURNING_MAX: usize = 1_000;

/// Clients that had no connection and have come back since the last line about that.
#[derive(Default)]
pub(super) struct Returns {
    by_client: BTreeMap<Box<str>, u32>,
    total: u64,
}

impl Returns {
    /// The client that has come back most often, and how often.
    fn most(&self) -> Option<(&str, u32)> {
        let most = self.by_client.iter().max_by_key(|(_, count)| **count);
        let most = most.map(|(id, &count)| (&**id, count));
        most.filter(|&(_, count)| count >= RETURNS_MIN)
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// A client that had no connection has come back.
    #[cold]
    fn note_returned(&mut self, now: Nanos, id: &str) {
        let Self {
            returns, timers, ..
        } = self;
        if returns.total == 0 {
            timers.arm(now.after(RETURNS_EVERY), Due::Returns);
        }
        returns.total += 1;
        let has_room = returns.by_client.len() < RETURNING_MAX;
        if has_room || returns.by_client.contains_key(id) {
            *returns.by_client.entry(id.into()).or_default() += 1;
        }
    }

    /// Tells of the clients that have come back in the last minute, if one did so again and again.
    pub(super) fn tell_returns(&mut self) {
        let returns = std::mem::take(&mut self.returns);
        if let Some((id, count)) = returns.most() {
            let (clients, total) = (returns.by_client.len(), returns.total);
            info!(
                "client {id} came back {count} times within a minute; \
                 {clients} clients came back {total} times"
            );
        }
    }

    /// Serves `attach`; returns false if it is to be served again later.
    #[cold]
    pub(super) fn attach(&mut self, now: Nanos, id: ConnId, attach: Attach<'_>) -> bool {
        if self.engine.is_wrong_secret(attach.id, attach.secret) {
            return self.refuse_secret(now, id);
        }
        let returns = self.engine.view(now).client_returns();
        let is_done = self.put(now, id, Input::Attach(id, attach), false);
        if self.engine.view(now).client_returns() > returns {
            self.note_returned(now, attach.id);
        }
        is_done
    }

    /// Serves `detach`; returns false if it is to be served again later.
    #[cold]
    pub(super) fn detach(
        &mut self,
        now: Nanos,
        id: ConnId,
        client: &str,
        secret: Secret<'_>,
    ) -> bool {
        if self.engine.is_wrong_secret(client, secret) {
            return self.refuse_secret(now, id);
        }
        self.put(now, id, Input::Detach(id, client, secret), false)
    }

    pub(super) fn refuse_secret(&mut self, now: Nanos, id: ConnId) -> bool {
        let work = self.engine.take_work();
        self.charge_request(id, work);
        self.turn_away(now, id);
        true
    }

    /// Serves `break`, and says in the log who asked for it. What is ended is told there too, grant by
    /// grant.
    #[cold]
    pub(super) fn break_grants(
        &mut self,
        now: Nanos,
        id: ConnId,
        key: &[u8],
        fence: Option<Fence>,
    ) -> bool {
        self.audit_break(now, id, key, fence);
        self.put(now, id, Input::BreakAll(id, key, fence), false)
    }
}

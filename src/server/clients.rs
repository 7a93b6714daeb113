//! What attaches to a client and detaches it, and what operators break.
//!
//! The engine decides (`engine/clients.rs`, `engine/breaking.rs`). Here a wrong secret of a client is
//! counted among those of connections, so that nobody is told faster than `guesses.rs` allows; and
//! whoever breaks something is named in the log (`audit.rs`).

use super::Server;
use super::conn::Transport;
use crate::base::{ConnId, Fence, Nanos};
use crate::engine::types::{Attach, Input, Secret};
use crate::store::Store;

impl<T: Transport, S: Store> Server<T, S> {
    /// Serves `attach`; returns false if it is to be served again later.
    #[cold]
    pub(super) fn attach(&mut self, now: Nanos, id: ConnId, attach: Attach<'_>) -> bool {
        if self.engine.is_wrong_secret(attach.id, attach.secret) {
            return self.refuse_secret(now, id);
        }
        self.put(now, id, Input::Attach(id, attach), false)
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

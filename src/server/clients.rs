//! What attaches to a client and detaches it, and what operators break.
//!
//! The engine decides (`engine/clients.rs`, `engine/breaking.rs`). Here a wrong secret of a client is
//! counted among those of connections, so that nobody is told faster than `guesses.rs` allows; and
//! whoever breaks something is named in the log.

use super::Server;
use super::audit::{self, Operator};
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
        let fence_told = fence.map_or_else(|| "*".to_owned(), |fence| fence.to_string());
        self.tell_break(now, id, key, &fence_told);
        self.put(now, id, Input::BreakAll(id, key, fence), false)
    }

    /// Serves a request over HTTP to break one hold, and says in the log who asked for it; returns
    /// false if it is to be served again later.
    #[cold]
    pub(super) fn break_hold(&mut self, now: Nanos, id: ConnId, key: &[u8], fence: Fence) -> bool {
        self.tell_break(now, id, key, &fence.to_string());
        self.put(now, id, Input::Break(id, key, fence), false)
    }

    fn tell_break(&self, now: Nanos, id: ConnId, key: &[u8], fence: &str) {
        let key = key.escape_ascii().to_string();
        let about = [("key", key.as_str()), ("fence", fence)];
        audit::tell("break", &self.operator(now, id), &about);
    }

    /// Who asks on this connection, for the log.
    pub(super) fn operator(&self, now: Nanos, id: ConnId) -> Operator {
        let asked = self.engine.view(now).conn(id);
        Operator {
            client: match asked.client {
                Some(client) => client.escape_debug().to_string(),
                None => format!("#{}", id.serial),
            },
            name: asked.name.unwrap_or_default().to_owned(),
            address: self.address_of(id).unwrap_or_default(),
        }
    }
}

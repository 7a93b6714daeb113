//! What attaches to a client and detaches it, and what operators break.
//!
//! The engine decides (`engine/clients.rs`, `engine/breaking.rs`). Here a wrong secret of a client is
//! counted among those of connections, so that nobody is told faster than `guesses.rs` allows; and
//! whoever breaks something is named in the log.

use log::warn;

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
        let Operator {
            client,
            name,
            address,
        } = self.operator(now, id);
        let key_told = key.escape_ascii().to_string();
        let fence_told = fence.map_or_else(|| "*".to_owned(), |fence| fence.to_string());
        warn!(
            key = key_told, fence = fence_told, client, name, address;
            "an operator asks to break what is held"
        );
        self.put(now, id, Input::BreakAll(id, key, fence), false)
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

/// Somebody who asks for what only operators should: by the id of a client or the number of a
/// connection, by the name that was given in `hello`, and by where it comes from.
pub(super) struct Operator {
    pub(super) client: String,
    pub(super) name: String,
    pub(super) address: String,
}

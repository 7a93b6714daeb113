//! Whom connections were let in as. The server compares tokens and says the name; here it is only kept, for
//! people to see: beside everything that a connection, a named owner or a client holds and waits for.

use super::Engine;
use super::conn::{Asker, ConnIndex};
use super::ctx::Core;
use super::owner::OwnerIndex;
use super::types::User;
use crate::base::ConnId;

impl Engine {
    #[cold]
    pub(super) fn let_in(&mut self, id: ConnId, user: Option<User>) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        let own = self.core.conns[conn].own;
        self.core.owners[own].user = user;
    }

    /// Whom a connection was let in as.
    #[must_use]
    pub fn user_of(&self, id: ConnId) -> Option<&User> {
        let conn = self.core.conns.find(id)?;
        self.core.owners[self.core.conns[conn].own].user.as_ref()
    }
}

impl Core {
    /// An owner that is not the connection's own acquires something, or may from now on: it is known by whom.
    pub(super) fn note_user(&mut self, conn: ConnIndex, owner: OwnerIndex) {
        let own = self.conns[conn].own;
        if self.owners[own].user != self.owners[owner].user {
            self.owners[owner].user = self.owners[own].user.clone();
        }
    }
}

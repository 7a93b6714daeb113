//! Grants that outlive their connection, because it has asked for that: `hello keep=1`.
//!
//! Such a grant is marked when its client is told of it (`Taken::keep`), and is left alone when the
//! connection departs (`leaving.rs`): it stays with the owner of that connection, which is gone, until
//! somebody who has the token releases it or its lease ends. A place in a queue that was granted and that
//! nobody was told of is not marked, because nobody knows its token; waits and byte ranges have no lease,
//! so they end with their connection in any case. While no connection has asked for it, nothing of this
//! costs anything.

use super::Engine;
use super::arena::NONE;
use super::conn::{Asker, ConnIndex};
use super::ctx::{Core, Ctx};
use super::lock::Locks;
use super::owner::OwnerIndex;
use super::two_phase::Standing;
use super::types::Noted;
use super::work;
use crate::base::ConnId;

impl Engine {
    pub(super) fn keep(&mut self, id: ConnId, keeps: bool) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.set_keeps(conn, keeps);
    }

    /// Whether what this connection is granted outlives it.
    #[must_use]
    pub fn keeps(&self, id: ConnId) -> bool {
        let conn = self.core.conns.find(id);
        let asked = conn.is_some_and(|conn| self.core.conns[conn].keeps);
        !self.core.rules.auto_release || asked
    }
}

impl Core {
    pub(super) fn set_keeps(&mut self, conn: ConnIndex, keeps: bool) {
        let before = std::mem::replace(&mut self.conns[conn].keeps, keeps);
        match (before, keeps) {
            (false, true) => self.keepers += 1,
            (true, false) => self.keepers -= 1,
            _ => return,
        }
        self.set_heeds();
    }
}

impl Locks {
    /// A grant was made. Whoever has a ticket for it is told later, or in a moment.
    #[cold]
    pub(super) fn heed_grant(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        self.note(cx, Noted::Granted, holder);
        if self.holders[holder].ticket == NONE {
            self.keep_if_asked(cx, holder);
        }
    }

    /// A client is told what it was granted with this ticket.
    #[cold]
    pub(super) fn keep_told(&mut self, cx: &mut Ctx<'_>, ticket: u32) {
        if let Standing::Held(holder) = self.tickets[ticket].standing {
            self.keep_if_asked(cx, holder);
        }
    }

    /// Marks a grant if it belongs to a connection that wants its grants to outlive it.
    #[cold]
    pub(super) fn keep_if_asked(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let it = &mut self.holders[holder];
        let owner = &mut cx.core.owners[it.owner];
        if owner.conn != ConnIndex::NONE && cx.core.conns[owner.conn].keeps {
            it.taken.keep();
            owner.has_kept = true;
        }
    }

    /// Whether an owner that departs has more grants of this key that it loses. Where a crowd holds the
    /// key that is not looked at, if some of its grants stay: watchers may hear of each that does not.
    pub(super) fn has_more_to_release(
        &self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        resource: u32,
    ) -> bool {
        if !cx.core.owners[owner].has_kept {
            return self.holds(cx, owner, resource);
        }
        let holders = &self.table[resource].holders;
        cx.core.work.charge(work::LOOK);
        self.crowds.get(resource).is_none()
            && holders.iter(&self.holders).any(|holder| {
                let it = &self.holders[holder];
                it.owner == owner && !it.taken.is_kept()
            })
    }
}

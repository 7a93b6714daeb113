//! What clients are told to have lost: only what was theirs, and only if something has ended it.

use super::answers::AnswerCheck;
use crate::sim::clients::connection::Connection;

impl AnswerCheck<'_> {
    /// Only operators end range locks of others.
    pub(super) fn range_lost(&self, conn: &Connection, resource: &[u8]) -> Result<(), String> {
        if !conn.may_be_pushed_to {
            return Err("a push to a client that did not say hello".to_owned());
        }
        let mut names = self.plan.ranges.resources.iter();
        let resource = names.position(|it| it == resource);
        match resource.is_some_and(|it| self.known_ranges.is_broken(it)) {
            true => Ok(()),
            false => Err("bytes are lost that nobody broke".to_owned()),
        }
    }

    pub(super) fn lost(
        &mut self,
        conn: &Connection,
        fence: u64,
        is_broken: bool,
    ) -> Result<(), String> {
        if !conn.may_be_pushed_to {
            return Err("a push to a client that did not say hello".to_owned());
        }
        if self
            .known_grants
            .get(fence)
            .is_some_and(|it| it.owner != self.conn_number)
        {
            return Err(format!("{fence} was lost by another client"));
        }
        self.known_grants
            .lost(self.now, fence, self.turn, is_broken)
    }
}

//! What clients are told to have lost: only what was theirs, and only if something has ended it.

use super::answers::AnswerCheck;
use crate::clients::connection::Connection;
use crate::range_plan::{Cells, OWNERS};
use latchd::engine::types::{ByteRange, Loss};

impl AnswerCheck<'_> {
    /// Only operators end range locks of others, and the grace period those that were not had back.
    pub(super) fn range_lost(
        &self,
        conn: &Connection,
        resource: &[u8],
        (range, owner): (ByteRange, &[u8]),
        why: Loss,
    ) -> Result<(), String> {
        if !conn.may_be_pushed_to {
            return Err("a push to a client that did not say hello".to_owned());
        }
        let mut names = self.plan.ranges.resources.iter();
        let resource = names.position(|it| it == resource);
        let resource = resource.ok_or("bytes of what nobody locks")?;
        let cells = Cells::of(range).ok_or("bytes that nobody locked")?;
        let name = OWNERS.iter().position(|it| it.as_bytes() == owner);
        let name = name.ok_or("for somebody who is not known")?;
        let (known, now) = (&*self.known_ranges, self.span.clock_read);
        match why {
            Loss::Broken if !known.is_broken(resource) => {
                Err("bytes are lost that nobody broke".to_owned())
            }
            Loss::Expired if !known.may_have_expired(now, resource, name, cells) => {
                Err("bytes are lost that nobody had to have back".to_owned())
            }
            _ => Ok(()),
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

//! Refusals of a request that nobody else can have been the reason for.
//!
//! Looks at the lock table before the turn, which no other check of an answer does.

use super::answers::AnswerCheck;
use crate::clients::connection::{Connection, OpenRequest};
use crate::clients::request::RequestKind;

impl AnswerCheck<'_> {
    /// If this was the only request about its key in this turn, a refusal can be compared with the
    /// lock table before the turn: the server grants what is free, and it deals with a release
    /// before it ends the lease, even in a turn that comes late.
    pub(super) fn check_alone(
        &self,
        conn: &Connection,
        request: &OpenRequest,
        text: &str,
    ) -> Result<(), String> {
        let is_first = self.first == Some(request.number) && conn.told_since().is_none();
        let Some(key) = request
            .kind
            .key()
            .filter(|&key| is_first && self.requests_per_key[key] == 1)
        else {
            return Ok(());
        };
        let is_new = request.arrived.is_some_and(|it| it.turn + 1 == self.turn);
        match request.kind {
            RequestKind::Acquire { .. } | RequestKind::Enqueue { .. }
                if matches!(text, "timeout" | "error_max_waiters")
                    && request.begun.is_none()
                    && self.before.is_free(key, self.span.began) =>
            {
                Err("refused, although the key was free".to_owned())
            }
            RequestKind::Release {
                target: Some(fence),
                ..
            } if is_new
                && request.http.is_none()
                && self.before.is_held(key, fence)
                && self.known_grants.is_only_release(fence) =>
            {
                Err("a release that came in time was refused".to_owned())
            }
            _ => Ok(()),
        }
    }
}

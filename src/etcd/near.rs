//! Finds the member that leads etcd: what is written there need not be forwarded, and is committed sooner.
//!
//! Every answer names the term of etcd's leader. When that is another one than before, or the connection
//! is a new one, the members are asked once which of them leads, before the next call is sent. Whoever
//! leads may be out of reach for us alone; then the member that we have is kept until something changes.

use std::time::{Duration, Instant};

use super::Trouble;
use super::gateway::{Gateway, figure};
use super::http::{Connection, Request};
use super::json;
use super::stream::now;

/// Time limit of the search: a fixed part, and this many round trips to the current member. A call waits for it.
/// Each of two other members takes five: TCP, TLS, the version, its status, and its figures instead.
const FIND_WITHIN: Duration = Duration::from_millis(250);
const FIND_ROUND_TRIPS: u32 = 12;

/// What is known of etcd's leader.
#[derive(Debug, Default)]
pub(super) struct Near {
    /// The term that the last answer named; 0 if there was none yet.
    term: u64,
    /// The term in which the leader was last looked for.
    sought: u64,
}

impl Near {
    /// An answer has named this term.
    pub(super) fn note(&mut self, term: u64) {
        self.term = term;
    }

    /// The connection is lost, and the next one goes to another member. Before that has answered nobody is looked
    /// for: etcd may have no leader at all.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether the leader has to be looked for. Once only, until there is another one.
    fn is_to_be_sought(&mut self) -> bool {
        let is_new = self.term != self.sought;
        self.sought = self.term;
        is_new
    }
}

impl Gateway {
    /// The same; its calls go to the member that leads etcd, if it can be found.
    #[must_use]
    pub fn near_leader(mut self) -> Self {
        self.near = Some(Near::default());
        self
    }

    /// Changes to the member that leads etcd, if that may be another one than before.
    pub(super) fn go_near(&mut self) {
        let is_new = self.near.as_mut().is_some_and(Near::is_to_be_sought);
        let members = self.endpoints().count();
        if !is_new || members < 2 {
            return;
        }
        let far = self.open.as_ref().map(|it| it.round_trip);
        let far = far.unwrap_or_default() * FIND_ROUND_TRIPS;
        let until = now() + FIND_WITHIN + far.min(self.endpoints().connect_within() * 2);
        let mut kept = None;
        for turn in 0..members {
            let index = (self.current + turn) % members;
            let open = match turn {
                0 => self.open.take(),
                _ => None,
            };
            let Ok(mut connection) = open.map_or_else(|| self.connect_to(index, until), Ok) else {
                continue;
            };
            match self.leads(&mut connection, until) {
                Ok(true) => {
                    self.current = index;
                    self.open = Some(connection);
                    return;
                }
                Ok(false) if turn == 0 => kept = Some(connection),
                _ => {}
            }
        }
        self.open = kept;
    }

    /// Whether the member at the other end says that it leads. After an error the connection is of no use.
    fn leads(&self, connection: &mut Connection, deadline: Instant) -> Result<bool, Trouble> {
        let within = deadline.saturating_duration_since(now());
        let (_, said) = self.call_once(connection, json::STATUS, within)?;
        if said.is_reusable_on(connection)
            && let Some(leads) = json::leads(said.status, &said.body)
        {
            return Ok(leads);
        }
        // Only root may ask for it; but the figures that everybody may read say it, too.
        let unanswered = |error: std::io::Error| Trouble::Unanswered(error.to_string());
        let request = Request::get("/metrics");
        connection.send(&request, deadline).map_err(unanswered)?;
        let said = connection.receive(deadline).map_err(unanswered)?;
        connection.forget_read();
        match said.is_reusable_on(connection) {
            true => Ok(figure(&said.body, "etcd_server_is_leader") == Some(1)),
            false => Err(Trouble::Unanswered("it closes".to_owned())),
        }
    }
}

#[cfg(test)]
#[path = "near_tests.rs"]
mod tests;

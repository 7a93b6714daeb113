//! Connections that nobody uses just now, a few for each server.
//!
//! One that has been idle for long is not used again: the server closes it some time, and a request
//! that crosses that would have no answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::address::Server;
use super::clock;
use super::conn::Conn;
use super::locked;

/// Most idle connections to one server. More are closed.
const IDLE_MAX: usize = 8;

/// How long a connection may have been idle. Servers keep them for 23 seconds, if not told otherwise.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

/// Most idle connections to servers that have some keys of a part and do not lead it.
const GUESTS_MAX: usize = 16;

pub(super) struct Pool {
    idle: Vec<Mutex<Vec<Conn>>>,
}

impl Pool {
    /// For so many parts of the keys.
    pub(super) fn new(shards: usize) -> Self {
        let idle = (0..shards).map(|_| Mutex::default()).collect();
        Self { idle }
    }

    /// The one that was used last, if there is a good one: to the leader, or to the server that has a key which the
    /// leader does not have.
    pub(super) fn take(&self, shard: usize, guest: Option<&Arc<Server>>) -> Option<Conn> {
        let mut idle = locked(&self.idle[shard]);
        let limit = clock::nanos(IDLE_TIME_MAX);
        let now = clock::now();
        idle.retain(|it| now.since(it.used_at) < limit);
        let is_it = |it: &Conn| match guest {
            Some(server) => Arc::ptr_eq(&it.server, server),
            None => !it.is_guest,
        };
        while let Some(index) = idle.iter().rposition(is_it) {
            let conn = idle.remove(index);
            if conn.is_fresh() {
                return Some(conn);
            }
        }
        None
    }

    /// For whoever comes next. Closed if it is not as good as new, or if there are enough.
    pub(super) fn put(&self, conn: Conn) {
        if !conn.is_fresh() {
            return;
        }
        let mut idle = locked(&self.idle[conn.shard]);
        let limit = match conn.is_guest {
            true => GUESTS_MAX,
            false => IDLE_MAX,
        };
        let alike = idle.iter().filter(|it| it.is_guest == conn.is_guest);
        if alike.count() < limit {
            idle.push(conn);
        }
    }

    /// The oldest of all lines is of no use after a server was found to be gone.
    pub(super) fn clear(&self, shard: usize) {
        locked(&self.idle[shard]).clear();
    }
}

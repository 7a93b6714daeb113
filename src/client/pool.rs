//! Connections that nobody uses just now, a few for each server.
//!
//! One that has been idle for long is not used again: the server closes it some time, and a request
//! that crosses that would have no answer.

use std::sync::Mutex;
use std::time::Duration;

use super::clock;
use super::conn::Conn;
use super::locked;

/// Most idle connections to one server. More are closed.
const IDLE_MAX: usize = 8;

/// How long a connection may have been idle. Servers keep them for 23 seconds, if not told otherwise.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) struct Pool {
    idle: Vec<Mutex<Vec<Conn>>>,
}

impl Pool {
    pub(super) fn new(servers: usize) -> Self {
        let idle = (0..servers).map(|_| Mutex::default()).collect();
        Self { idle }
    }

    /// The one that was used last, if there is a good one.
    pub(super) fn take(&self, shard: usize) -> Option<Conn> {
        let mut idle = locked(&self.idle[shard]);
        let limit = clock::nanos(IDLE_TIME_MAX);
        let now = clock::now();
        while let Some(conn) = idle.pop() {
            if now.since(conn.used_at) < limit && conn.is_fresh() {
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
        if idle.len() < IDLE_MAX {
            idle.push(conn);
        }
    }

    /// The oldest of all lines is of no use after a server was found to be gone.
    pub(super) fn clear(&self, shard: usize) {
        locked(&self.idle[shard]).clear();
    }
}

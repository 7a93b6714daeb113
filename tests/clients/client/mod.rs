//! The client against the daemon as it is shipped: real processes, real sockets, and between them
//! proxies that stall, swallow and cut.
//!
//! Nothing sleeps: a test waits for an answer, a signal of a guard, a log line or the end of a process,
//! each for at most [`vocabulary::PATIENCE`].

#![allow(clippy::unwrap_used, missing_docs)]
// Threads play other clients; the clock measures lower bounds.
#![allow(clippy::disallowed_methods)]

mod attached;
mod follow;
mod forks;
mod front;
mod holding;
mod keeping;
mod lives;
mod looking;
mod losses;
mod peers;
mod primitives;
mod proxy;
mod searching;
mod threads;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use latchd::client::{Builder, Client};

use crate::vocabulary::Daemon;

/// A client of this daemon.
#[track_caller]
fn client(daemon: &Daemon) -> Client {
    builder(daemon).connect().unwrap()
}

fn builder(daemon: &Daemon) -> Builder {
    Client::builder(&daemon.address().to_string())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

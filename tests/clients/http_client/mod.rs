//! The client for leases over HTTP: against the real daemon, and against a server that answers what a
//! test tells it to, or nothing.
//!
//! `defects.rs` has what LockServer's own client does wrong, one test for each; `invariants.rs` what its
//! tests check, and what they should. Nothing sleeps: a test waits for an event, and of time only what
//! must hold on any machine is asserted.

#![allow(clippy::unwrap_used, missing_docs)]
// Threads play clients and servers; the clock measures lower bounds.
#![allow(clippy::disallowed_methods)]

mod acquires;
mod answers;
mod defects;
mod follow;
mod forks;
mod heartbeats;
#[cfg(feature = "tls")]
mod https;
mod invariants;
mod scripted;

use std::sync::mpsc;
use std::time::Duration;

use latchd::http_client::LeaseClient;

use crate::vocabulary::Daemon;

/// A length of time that no test sees the end of.
const FOREVER: Duration = Duration::from_secs(3_600);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A daemon with HTTP on a free port.
fn start(options: &[&str]) -> Daemon {
    let mut all = vec!["--http-port=0"];
    all.extend(options);
    Daemon::start(&all)
}

fn client(daemon: &Daemon) -> LeaseClient {
    LeaseClient::new(&url(daemon)).unwrap()
}

fn url(daemon: &Daemon) -> String {
    format!("http://{}", daemon.http_address())
}

/// Time passes, where that itself is what a test is about.
fn pass(span: Duration) {
    let (_kept, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(span).is_err());
}

//! The daemon as its users meet it: a process, its sockets, its signals, its log.
//!
//! Every test starts the real binary on a free port of loopback. Nothing sleeps: a test waits for
//! an answer, the end of a connection, a log line or the end of the process, each for at most
//! [`vocabulary::PATIENCE`]. Of time itself only lower bounds are asserted, so a slow machine makes
//! these tests slow and never red. What needs no process belongs into the scripts or the simulator.

#![allow(clippy::unwrap_used, missing_docs)]
// Threads read logs and play clients; the clock measures lower bounds.
#![allow(clippy::disallowed_methods)]

mod access;
mod auth;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod contention;
mod departures;
mod framing;
mod http;
mod http_door;
mod limits;
mod log_file;
mod logs;
mod memory;
mod push;
mod same_grant;
mod sessions;
mod settings_file;
mod signals;
mod slow;
mod start;
mod systemd;
#[cfg(feature = "tls")]
mod tls;
mod unix_socket;
mod vocabulary;

//! The words the tests are written in: a [`Daemon`] is a process, a [`Client`] is a socket, an
//! [`HttpClient`] one by the other door.
//!
//! A frame is written as one line, `l job 10 60`, and sent as three. Whatever does not happen
//! within [`PATIENCE`] fails the test, and a failed test shows the daemon's log.

mod activated;
mod client;
mod daemon;
mod http;

use std::time::Duration;

pub(crate) use activated::{Activated, with_sockets};
pub(crate) use client::{Client, End, Grant};
pub(crate) use daemon::{Daemon, latchd, latchd_with_default_ports, refusal};
pub(crate) use http::{HttpClient, Lease};
pub(crate) use latchd::wire::client::frame;

/// How long anything may take. Far more than it ever should, so that only a hang gets here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

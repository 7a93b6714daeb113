//! latchd: locks for every program on every machine.
//!
//! `net` moves bytes, `wire` gives them meaning, `engine` decides, `server` joins the three,
//! `daemon` starts it. Everything is one thread: a mio reactor owns every connection and one lock
//! table, and a request takes no lock, no atomic and no channel on its way.
//!
//! # The life of a request
//!
//! `l⏎job⏎10⏎` arrives; another client may hold `job`.
//!
//! 1. [`net::Reactor`] polls, and each event's token is a [`ConnId`](base::ConnId). It hands all
//!    events to [`server::Server::turn`], which has the whole order of a turn (`server/turn.rs`).
//! 2. The server reads the connection's bytes, then the clock (`server/serve.rs`), so that no lease
//!    is dated from before its request arrived.
//! 3. The connection's [`wire::codec::Codec`] turns the bytes into a
//!    [`Request::Acquire`](engine::types::Request), which borrows them and copies nothing.
//! 4. [`engine::Engine::apply`] decides (`engine/lock.rs`). If the key is free, the client becomes
//!    a holder with a fence and a lease, and an [`Effect::Reply`](engine::types::Effect) says so.
//!    If it is held, there is no reply yet, and the client waits in the key's queue.
//! 5. `server/deliver.rs` turns effects into bytes in outboxes.
//! 6. At the end of the turn the bytes leave through `server/gate.rs`: one write per connection.
//! 7. The reactor sleeps until the next deadline.
//!
//! A grant to a client that waited takes the same road: the holder's `r` enters at 1, and step 4
//! replies to another connection.
//!
//! # The walls
//!
//! Dependencies point downwards only, and `tests/tools/tidy.rs` checks it:
//!
//! - [`daemon`] starts and stops everything, with what [`config`] has read. Neither is on the way
//!   of a request.
//! - [`net`] has the file descriptors and the clock. It never looks inside a request.
//! - `tls` encrypts what passes between a transport and the server, and exists with the feature `tls`.
//! - [`server`] has the connections and the order of a turn. It knows neither sockets nor the
//!   clock, so that the simulator runs it as it is.
//! - [`wire`] knows no state: it is a function of bytes.
//! - [`engine`] has the lock table. It knows no socket, no clock, no log and no random order.
//! - [`timers`], [`segments`], [`keymap`], [`key`], [`shard`], [`memory`], [`histogram`], [`escape`]
//!   and [`base`] know nothing of what they are used for, and [`dashboard`] is files for a browser.
//!
//! - [`client`] is for programs that want a lock. It knows the wire and the words of the engine, has
//!   sockets and a clock of its own, and needs nothing of the daemon.
//! - [`ephemeral`] are file locks for programs that need no daemon, and know nothing of all this. The
//!   daemon guards its own files with them.
//! - [`http_client`] is a client for leases over HTTP, and knows nothing of all this either.
//!
//! - [`cli`] is the command `latch`: a client that prints.
//!
//! Everything but [`ephemeral`], [`http_client`], [`client`] and what that needs exists only with
//! the feature `daemon`. What is for developers is not in `src`: the simulator and the connection
//! in memory are in `tools/sim`, the load generator is in `tools/load`, and what checks the engine
//! from the inside is in `tools/judge`, compiled only with the feature `judge`.

// The fault disk and the model of etcd are also modules of this crate's own tests, and call it by
// its name.
#[cfg(test)]
extern crate self as latchd;

#[cfg(feature = "daemon")]
pub mod access;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod base;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(all(target_os = "linux", any(feature = "cli", feature = "daemon")))]
mod closed;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "daemon")]
pub mod dashboard;
#[cfg(any(feature = "client", feature = "http"))]
mod drift;
#[cfg(feature = "daemon")]
pub mod engine;
/// The words of the lock table, which a client needs, without the table.
#[cfg(all(feature = "client", not(feature = "daemon")))]
pub mod engine {
    pub mod types;
}
#[cfg(feature = "ephemeral")]
pub mod ephemeral;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod escape;
#[cfg(feature = "cluster")]
pub mod etcd;
#[cfg(feature = "daemon")]
pub mod fence_start;
#[cfg(feature = "daemon")]
pub mod histogram;
#[cfg(feature = "http")]
pub mod http_client;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod key;
#[cfg(feature = "daemon")]
pub mod keymap;
#[cfg(any(feature = "client", feature = "http"))]
mod maker;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod memory;
#[cfg(feature = "daemon")]
pub mod net;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod segments;
#[cfg(feature = "daemon")]
pub mod server;
#[cfg(feature = "daemon")]
pub mod sha256;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod shard;
#[cfg(feature = "daemon")]
pub mod store;
#[cfg(feature = "daemon")]
pub mod timers;
#[cfg(all(feature = "daemon", feature = "tls"))]
pub mod tls;
#[cfg(any(feature = "client", feature = "http"))]
mod uptime;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod wire;

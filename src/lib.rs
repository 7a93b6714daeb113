//! latchd: locks for every program on every machine.
//!
//! `net` moves bytes, `wire` gives them meaning, `engine` decides, `server` joins the three,
//! `daemon` starts it. Everything is one thread: a mio reactor owns every connection and one lock
//! table, and nothing on the way of a request takes a lock, an atomic or a channel.
//!
//! # The life of a request
//!
//! `l⏎job⏎10⏎` arrives; somebody else may hold `job`.
//!
//! 1. [`net::Reactor`] polls and finds a [`ConnId`](base::ConnId) in the event's token.
//! 2. [`server::Server::readable`] reads the bytes, then the clock, and has the connection's
//!    [`Codec`](wire::codec::Codec) turn them into a [`Request::Acquire`](engine::types::Request), borrowed, without a copy.
//! 3. [`engine::Engine::step`] decides. Free: a holder with a fence and a lease, and an
//!    [`Effect::Reply`](engine::types::Effect). Held: nothing is said, the client stands in line.
//! 4. The server's `deliver` turns effects into bytes in outboxes.
//! 5. [`server::Server::finish_turn`] ends what is due, goes on with whoever was answered after
//!    waiting, and sends: one write per connection.
//! 6. The reactor sleeps until the next deadline.
//!
//! A grant to somebody who waited takes the same road: the holder's `r` enters at 1, and step 3
//! replies to another client.
//!
//! # The walls
//!
//! Dependencies point downwards only, and `tests/tidy.rs` checks it: `engine` knows no socket, no
//! clock, no log and no random order; `wire` knows no state; `server` knows neither sockets nor the
//! clock, so the simulator runs it as it is; `net` never looks inside a request.
//!
//! `pipe` (a connection in memory) and `sim` (the simulator) are for developers, and exist only with
//! the feature `tools`.

pub mod base;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod key;
pub mod keymap;
pub mod net;
#[cfg(feature = "tools")]
pub mod pipe;
pub mod server;
#[cfg(feature = "tools")]
pub mod sim;
pub mod timers;
pub mod wire;

//! The server in this process, over pipes or with bytes alone: what it answers, in what order, and
//! what it costs.
//!
//! Nothing here needs a process, a socket or a clock, so nothing depends on how busy the machine
//! is. `script` holds the transcripts of `tests/scripts`; `cargo test --test server http_streams::`
//! runs one of the others. What is allocated is counted for each thread, and so for each test
//! (`tests/common/allocator.rs`).

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]

mod access;
mod after_failover;
#[path = "../common/allocator.rs"]
mod allocator;
mod backlog;
#[path = "../common/mod.rs"]
mod common;
mod crosstalk;
mod crowds;
mod golden;
mod guesses;
mod hand_over;
mod http_server;
mod http_streams;
mod http_wire;
mod memory;
mod memory_bound;
mod no_allocation;
mod not_leader;
mod push;
mod remembered;
mod script;
mod slow_reader;
#[path = "../common/source.rs"]
mod source;
mod tls_pipe;
mod turns;

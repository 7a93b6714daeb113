//! The server over HTTP: what a request is answered, when, and what it does to everybody else.
//!
//! Over pipes and with virtual time, so that every deadline is met to the nanosecond and nothing
//! sleeps; `daemon/http.rs` has what needs a process. Most of it is transcripts (`*.txt`, read by
//! `transcripts.rs`); the other files have what needs a loop, a crowd or a count. How bytes become
//! questions is in `tests/server/http_wire`.

#![allow(clippy::unwrap_used, missing_docs)]

mod crowds;
mod doors;
mod durable;
mod framing;
mod invariants;
mod ranges;
mod slow;
mod transcripts;
pub(crate) mod world;

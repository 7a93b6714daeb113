//! The clients that programs use, against the real daemon: `client` over the line protocol,
//! `http_client` over HTTP, and the examples.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "threads play clients, and the clock measures lower bounds"
)]

mod client;
mod examples;
#[path = "../common/forked.rs"]
mod forked;
mod http_client;
#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of the daemon use the rest of it"
)]
#[path = "../daemon/vocabulary/mod.rs"]
mod vocabulary;

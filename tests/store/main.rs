//! What survives: the journal in this process (`journal`, `journal_full`), and the real daemon that
//! is killed, starved and damaged (`durability`).

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "threads play clients, and the clock measures lower bounds"
)]

mod durability;
mod journal;
mod journal_full;
#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of the daemon use the rest of it"
)]
#[path = "../daemon/vocabulary/mod.rs"]
mod vocabulary;

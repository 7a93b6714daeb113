//! `latch` as people meet it: the real program, against a real daemon, with and without a terminal.
//!
//! Nothing sleeps: a test waits for output, for the end of a process or for what the daemon says, each for at most
//! [`vocabulary::PATIENCE`].

#![allow(clippy::unwrap_used, missing_docs)]
// Threads read output; the clock measures patience.
#![allow(clippy::disallowed_methods)]

mod commands;
mod documents;
mod exit_codes;
mod file;
#[path = "../clients/client/front.rs"]
#[allow(dead_code, reason = "the tests of the client use the rest of it")]
mod front;
mod kills;
mod latch;
mod loss;
mod members;
mod other_user;
mod paths;
#[path = "../clients/client/proxy.rs"]
#[allow(dead_code, reason = "the tests of the client use the rest of it")]
mod proxy;
mod ranges;
mod run;
mod screen;
mod terminal;
#[path = "../daemon/vocabulary/mod.rs"]
#[allow(dead_code, unused_imports, reason = "these tests need less of it")]
mod vocabulary;
mod windows;

//! TLS as its users meet it: the real binary, and OpenSSL, Python, curl and rustls as its clients.
//!
//! Certificates are made for each test. Nothing sleeps, and of time only lower bounds are asserted, as
//! in the tests of the daemon, whose words are used here. What a test needs that this machine does not
//! have is named, and the test is skipped.

#![allow(clippy::unwrap_used, missing_docs)]
// Threads read logs and play clients; the clock measures lower bounds.
#![allow(clippy::disallowed_methods)]

mod certificates;
mod client;
mod http;
mod peers;
mod reload;
mod start;
mod tools;

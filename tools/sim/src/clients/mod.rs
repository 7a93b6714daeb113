//! What clients do and say, and what each of them remembers of it.
//!
//! `actions` says what a client does when it acts; `request` what it may ask for; `lock_requests`
//! and `entry_requests` write that as frames of the protocol. `subscription` knows what a client
//! listens to, watches and observes. `http_requests` spells the same over HTTP, and `http_answers` cuts
//! what comes back into pieces. `connection` remembers what a client sent, what of it has
//! arrived and what came back. `crowd` is thousands of them that do one thing at once. None of them
//! checks an answer: `checks` does.

pub(super) mod actions;
pub(super) mod connection;
pub(super) mod crowd;
pub(super) mod entry_requests;
pub(super) mod http_answers;
pub(super) mod http_requests;
pub(super) mod lock_requests;
pub(super) mod range_requests;
pub(super) mod request;
pub(super) mod subscription;

//! What clients do and say, and what each of them remembers of it.
//!
//! `actions`: when a client acts, what it does. `request`: what it may ask for; `lock_requests` and
//! `entry_requests`: the same as frames of the protocol. `connection`: what was sent, what of it has
//! arrived, what came back. Never compares an answer with anything; that is for `checks`.

pub(super) mod actions;
pub(super) mod connection;
pub(super) mod entry_requests;
pub(super) mod lock_requests;
pub(super) mod request;
pub(super) mod subscription;

//! The server without a network and without time passing by itself.
//!
//! Runs the shipped `server` code over pipes in memory, at instants chosen by the caller. Never
//! touches a socket or the clock.

mod pipe;

pub use self::pipe::{Peer, Pipe, pipe};

//! Bytes ↔ meaning, in both directions: what a client wrote and what it is told, and the reverse,
//! for whoever is a client.
//!
//! Pure: a function of the bytes handed in. Never touches a socket, a clock or the lock table, so
//! all of it can be fuzzed with a byte slice. A client without the daemon has the part of it that
//! spells requests and reads answers.

#[cfg_attr(
    not(feature = "daemon"),
    expect(dead_code, reason = "a client alone reads what the daemon spells")
)]
pub mod answer;
#[cfg(feature = "daemon")]
pub mod buf;
pub mod client;
#[cfg(feature = "daemon")]
pub mod codec;
pub mod command;
#[cfg(feature = "daemon")]
pub mod http;
pub mod json;
#[cfg(feature = "daemon")]
pub mod outbox;
pub mod verbs;

mod args;
#[cfg(feature = "daemon")]
mod line;

#[cfg(test)]
#[cfg(feature = "daemon")]
mod answer_tests;
#[cfg(test)]
#[cfg(feature = "daemon")]
mod client_answer_tests;
#[cfg(test)]
#[cfg(feature = "daemon")]
mod client_tests;
#[cfg(test)]
#[cfg(feature = "daemon")]
mod framing_tests;
#[cfg(test)]
#[cfg(feature = "daemon")]
mod line_tests;
#[cfg(test)]
#[cfg(feature = "daemon")]
mod primitive_tests;

pub use self::answer::Answer;

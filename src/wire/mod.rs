//! Bytes ↔ meaning, in both directions: what a client wrote and what it is told, and the reverse,
//! for whoever is a client.
//!
//! Pure: a function of the bytes handed in. Never touches a socket, a clock or the lock table, so
//! all of it can be fuzzed with a byte slice.

pub mod answer;
pub mod buf;
pub mod client;
pub mod codec;
pub mod command;
pub mod http;
pub mod json;
pub mod need;
pub mod outbox;
pub mod verbs;

mod args;
mod line;

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod client_answer_tests;
#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod framing_tests;
#[cfg(test)]
mod line_tests;
#[cfg(test)]
mod primitive_tests;

pub use self::answer::Answer;

//! The engine by itself: time is a number, and there are no bytes.
//!
//! `lockstep` compares it with a frozen copy. `model`, `primitives` and `ranges` are random histories
//! beside naive models; `records` is what survives; the others are plain tests.
//! `cargo test --test engine ranges::` runs one of them.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]

mod clients;
mod lockstep;
mod model;
mod named_owners;
mod primitives;
mod ranges;
mod records;
#[cfg(target_os = "linux")]
mod segments_kernel;

//! The engine by itself: time is a number, and there are no bytes.
//!
//! `model` compares it with the reference model (`tools/model`), `lockstep` with a frozen copy, both on
//! random histories. `many` is what would be too much for a model; `records` is what survives; the others
//! are plain tests. `cargo test --test engine ranges::` runs one of them.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]

mod clients;
mod lockstep;
mod many;
#[cfg(target_os = "linux")]
mod model;
mod named_owners;
mod primitives;
mod ranges;
mod records;
#[cfg(target_os = "linux")]
mod segments_kernel;

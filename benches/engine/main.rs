//! What one decision costs: the engine's doors without bytes, sockets or a clock.
//!
//! `holds.rs` has every way to hold a key, `entries.rs` what is not held, `crowds.rs` what happens
//! among many, `deadlocks.rs` what it costs to find one, `ranges.rs` bytes, `work.rs` how long the engine's own count of work takes. Every bench checks what it was answered, so that none can measure a refusal.

#![allow(
    missing_docs,
    reason = "criterion's macros make functions without them"
)]

mod crowds;
mod deadlocks;
mod entries;
mod harness;
mod holds;
mod ranges;
mod work;

use criterion::{criterion_group, criterion_main};

criterion_group!(
    benches,
    holds::benches,
    entries::benches,
    crowds::benches,
    deadlocks::benches,
    ranges::benches,
    work::benches
);
criterion_main!(benches);

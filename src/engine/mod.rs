//! The lock table: pure, deterministic, infallible.

pub mod types;

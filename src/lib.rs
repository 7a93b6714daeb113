//! latchd: locks for every program on every machine.

pub mod base;
pub mod engine;
pub mod key;
pub mod wire;

//! latchd: locks for every program on every machine.

pub mod base;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod key;
pub mod keymap;
pub mod timers;
pub mod wire;

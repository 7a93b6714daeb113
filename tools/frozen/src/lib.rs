//! The lock table as it was before it was rebuilt: an exact copy of `engine` and of what it needs, without
//! the unit tests.
//!
//! Only tests use it. `tests/engine/lockstep` gives the same inputs to this copy and to the engine that ships, and
//! compares what both answer and record. Nothing here is changed, except for a defect that is mended in both.
//! The crate is deleted when the rebuilding is done.

pub mod base;
pub mod engine;
pub mod histogram;
pub mod key;
pub mod keymap;
pub mod memory;
pub mod segments;
pub mod sha256;
pub mod timers;

//! Byte ranges in numbers that are too large for a model: very long queues (`crowds.rs`), and
//! searches for deadlocks that take several turns (`searches.rs`). Everything else is compared with
//! the reference model (`tests/engine/model/ranges.rs`).

#![allow(unreachable_pub, reason = "modules of a test have no outside")]

mod crowds;
mod searches;

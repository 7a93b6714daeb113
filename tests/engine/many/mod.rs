//! The engine alone, with very many of one thing.
//!
//! Plain tests on `table.rs`: `crowds.rs`, `fair.rs`, and `deadlocks.rs`, whose numbers would be too large for
//! a model. Random scripts are compared with the reference model in `tests/engine/model`. No time passes but the
//! numbers handed in.

#![allow(unreachable_pub, reason = "modules of a test have no outside")]

mod crowds;
mod deadlocks;
mod fair;
mod table;

//! The journal against a model of it: whatever happens to the disk, what was promised is there.
//!
//! `history.rs` makes records and knows what they amount to. The other files are what happens:
//! the power goes (`power.rs`), bytes change (`damage.rs`) and are repaired (`repair.rs`), the disk is full or fails (`full.rs`),
//! files are compacted (`compaction.rs`) and made ahead (`spare.rs`), another release wrote them (`golden.rs`), and all of it in
//! a directory of the system, with its thread (`directory.rs`).

#![allow(
    clippy::unwrap_used,
    reason = "a test whose disk does not do what it should has to fail"
)]

mod compaction;
mod damage;
mod directory;
mod full;
mod golden;
mod history;
mod power;
mod repair;
mod spare;

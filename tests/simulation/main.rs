//! The simulators, which need much time and no clock: `seeds` plays the one of `tools/sim`,
//! `cluster_sim` a cluster; `latch_sim` is the command.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]

mod cluster_sim;
mod latch_sim;
mod seeds;
#[path = "../common/tool.rs"]
mod tool;

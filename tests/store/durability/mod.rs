//! What survives, tried on the real binary: killed, stopped, starved of disk, damaged, cut off.
//!
//! `crash.rs` has the loop that kills the daemon under load and a checker (`checker.rs`, `model.rs`) that
//! knows what was acknowledged and what was under way. By default it runs 100 rounds;
//!
//! ```sh
//! CRASH_ROUNDS=5000 CRASH_SEED=7 cargo test --test store durability::crash
//! ```
//!
//! runs more of them, from another seed. What needs `strace`, a mount or a loop device says so and
//! is skipped where that cannot be had, or fails if `SKIP_NOTHING` is set. Nothing sleeps, and of
//! time only lower bounds are asserted: see `tests/daemon/main.rs`, whose vocabulary is used here.

#![allow(clippy::unwrap_used, missing_docs)]
// Threads play clients; the clock measures lower bounds.
#![allow(clippy::disallowed_methods)]

mod checker;
mod crash;
mod damage;
mod directory;
mod disk_faults;
mod full_disk;
mod http;
mod model;
mod mounts;
mod power_loss;
mod ranges;
mod restart;
mod taken_away;

use std::io::Write;

/// Says what a test would need that cannot be had here. Not with `eprintln!`: nobody would see it,
/// because the output of a test that passes is not shown.
#[track_caller]
fn skip(needs: &str, why: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    let told = format!("{test} is skipped: it needs {needs}: {}", why.trim());
    assert!(std::env::var_os("SKIP_NOTHING").is_none(), "{told}");
    let _ = writeln!(std::io::stderr(), "{told}");
}

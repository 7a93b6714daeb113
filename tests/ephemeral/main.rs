//! File locks among real processes: races, crashes, forks, foreign programs, hostile files.
//!
//! `contender` is a program that does what it is told over its input; `program` starts it and talks to
//! it. The tests: `races` (what can come between any two steps), `crowds` (many at a time, for long),
//! `crashes` (`kill -9`, children, signals, other programs), `refusals` (what is no lock file), and
//! `mutants`, which breaks the library on purpose and has to see `crowds` and `races` notice.
//!
//! Nothing is timed and nothing sleeps: a test waits for what it waits for.

#![allow(
    clippy::unwrap_used,
    reason = "a test whose world does not work has to fail"
)]

mod contender;
mod crashes;
mod crowds;
mod mutants;
mod program;
mod races;
mod refusals;

/// Not a test: what the other tests start as processes of their own.
#[test]
fn contends_if_it_is_told_to() {
    if std::env::var_os(program::CONTENDS).is_some() {
        contender::main();
        std::process::exit(0); // the harness need not speak any more
    }
}

//! File locks among real processes: races, crashes, forks, foreign programs, hostile files.
//!
//! `contender` is a program that does what it is told over its input; `program` starts it and talks to
//! it. The tests: `races` (what can come between any two steps), `crowds` (many at a time, for long),
//! `kills` (`kill -9`), `crashes` (children, signals, other programs), `refusals` (what is no lock file), and
//! `mutants`, which breaks the library on purpose and has to see `crowds` and `races` notice.
//!
//! `crowds`, `kills` and `windows` run wherever the library does; for Windows tools/portable/check runs
//! them under wine, also with a mutant. The others look into `/proc`.
//!
//! Nothing is timed and nothing sleeps: a test waits for what it waits for.

#![allow(
    clippy::unwrap_used,
    reason = "a test whose world does not work has to fail"
)]

mod contender;
#[cfg(target_os = "linux")]
mod crashes;
mod crowds;
mod kills;
#[cfg(target_os = "linux")]
mod mutants;
mod program;
#[cfg(target_os = "linux")]
mod races;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(windows)]
mod windows;

/// Not a test: what the other tests start as processes of their own.
#[test]
fn contends_if_it_is_told_to() {
    if std::env::var_os(program::CONTENDS).is_some() {
        #[cfg(target_os = "linux")]
        let_signals_interrupt();
        contender::main();
        std::process::exit(0); // the harness need not speak any more
    }
}

#[cfg(target_os = "linux")]
/// From now on SIGUSR1 does nothing but end whatever the system waits for: its handler has no `SA_RESTART`.
#[allow(
    unsafe_code,
    reason = "a handler cannot be installed without; this one does nothing"
)]
fn let_signals_interrupt() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn nothing(_: i32) {}
    let handler = SigHandler::Handler(nothing);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler touches nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
}

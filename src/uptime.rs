//! The clock of both clients and of `latch`: it never goes back, and it counts the time that the machine sleeps.
//!
//! A lease runs at the server, so a laptop that wakes up must notice at once that its lease is over.
//! `CLOCK_BOOTTIME` of Linux and `CLOCK_MONOTONIC` of macOS count the time asleep. For Windows this was
//! not tried.

use std::time::Duration;

/// The time since the start of the machine, which all processes of the machine count alike.
#[cfg(unix)]
#[expect(clippy::disallowed_methods, reason = "the one clock of the clients")]
pub(crate) fn uptime() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The time since the first call. It begins late enough to count back from.
#[cfg(windows)]
#[expect(clippy::disallowed_methods, reason = "the one clock of the clients")]
pub(crate) fn uptime() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    const AT_START: Duration = Duration::from_secs(1);
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed() + AT_START
}

/// Lets this much time pass, or less. Not for what has an event to wait for.
#[cfg(all(unix, feature = "client"))]
pub(crate) fn pause(span: Duration) {
    let span = rustix::event::Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    };
    let _ = rustix::event::poll(&mut [], Some(&span)); // a signal ends it early
}

/// Lets this much time pass, or less. (Winsock cannot wait for no socket.)
#[cfg(all(windows, feature = "client"))]
pub(crate) fn pause(span: Duration) {
    use std::sync::{Condvar, Mutex};
    let nothing = Mutex::new(());
    if let Ok(guard) = nothing.lock() {
        let _ = Condvar::new().wait_timeout(guard, span);
    }
}

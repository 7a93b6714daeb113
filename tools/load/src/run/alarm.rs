//! An alarm of the system: wakes a poll at a time that is exact to some microseconds, where `poll`
//! itself counts in milliseconds.
//!
//! With it a loop that has something to do every millisecond can sleep in between, and leaves its
//! core to others.

use std::io;

use mio::{Registry, Token};

/// What the poll reports an alarm under; connections have the low numbers.
pub(crate) const ALARM: Token = Token(usize::MAX);

/// One alarm, set again and again.
#[cfg(target_os = "linux")]
pub(crate) struct Alarm(rustix::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Alarm {
    /// A new one, which that poll hears.
    pub(crate) fn new(registry: &Registry) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        use mio::Interest;
        use mio::unix::SourceFd;
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), ALARM, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Rings once, after so many nanoseconds; whatever was set before is forgotten.
    pub(crate) fn set(&self, ns: u64) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                // Zero would mean never.
                tv_nsec: (ns % 1_000_000_000).max(1) as _,
            },
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

/// Elsewhere there is none, and a run that needs it is refused.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(crate) fn new(_: &Registry) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn set(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

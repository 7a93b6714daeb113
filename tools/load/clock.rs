//! The one place that reads the clock, and what the kernel says about processor time and memory.
//!
//! Waits for nothing but time, in [`Clock::rest`]; waiting for answers is `poll`'s business.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

/// Nanoseconds since this program began to measure.
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Lets so much time pass.
    pub(crate) fn rest(&self, ns: u64) -> io::Result<()> {
        let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1));
        let until = self.now_ns() + ns;
        while let Some(left) = until.checked_sub(self.now_ns()) {
            let left = Duration::from_nanos(left.max(1_000_000));
            match poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// What a process's first thread had of its core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTime {
    /// Time it ran, user and system.
    pub(crate) ran_ns: u64,
    /// Time it could have run and somebody else did: the noise of the machine.
    pub(crate) waited_ns: u64,
}

impl CpuTime {
    /// So far, if it can be read.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        let mut fields = text.split_whitespace();
        Some(Self {
            ran_ns: fields.next()?.parse().ok()?,
            waited_ns: fields.next()?.parse().ok()?,
        })
    }

    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }
}

/// Resident memory of a process, if it can be read.
pub(crate) fn rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

//! The one place that reads the clock, and what the kernel says about processor time and memory.
//!
//! Never waits: waiting is `poll`'s business.

use std::fs;
use std::time::Instant;

/// Ticks per second of the times in `/proc/PID/stat`: what Linux promises to user space.
const TICK_NS: u64 = 10_000_000;

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
}

/// Processor time that a process has used, user and system, if it can be read.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold blanks; the numbers come after it.
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * TICK_NS)
}

/// Resident memory of a process, if it can be read.
pub(crate) fn rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

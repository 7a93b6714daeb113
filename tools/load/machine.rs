//! The machine: its cores, the processor time and memory of a process, limits.
//!
//! What cannot be read on this system is `None`, and the figures that need it are not measured.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How long the first thread of a process had its core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTime {
    /// Time it ran, user and system.
    pub(crate) ran_ns: u64,
    /// Time it was ready to run while another process had the core: the noise of the machine.
    pub(crate) waited_ns: u64,
}

impl CpuTime {
    /// Since the process started, if that can be read.
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

/// The cores that this process may use; empty where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn cores() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect()
}

/// Keeps this thread, and all processes it starts from now on, on that core.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(core: Option<usize>) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let Some(core) = core else { return Ok(()) };
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("core {core}: {error}"))
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cores() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(core: Option<usize>) -> io::Result<()> {
    match core {
        None => Ok(()),
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Raises the limit of open connections as far as the system allows.
pub(crate) fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // If that is refused, connecting will fail and say so.
    let _ = setrlimit(Resource::Nofile, all);
}

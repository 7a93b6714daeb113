//! The machine: its cores, the processor time and memory of a process, limits.
//!
//! What cannot be read on this system is `None`, and the figures that need it are not measured.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

/// What figures were measured on: cores, processor, system.
pub(crate) fn description() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    described(&cpus, &release)
}

fn described(cpus: &str, release: &str) -> String {
    let named = |name| cpus.lines().filter_map(move |line| line.strip_prefix(name));
    let mut parts = Vec::new();
    match named("processor").count() {
        0 => {}
        1 => parts.push("1 core".to_owned()),
        count => parts.push(format!("{count} cores")),
    }
    let model = named("model name")
        .next()
        .and_then(|it| it.split_once(": "));
    parts.extend(model.map(|(_, model)| model.trim().to_owned()));
    match release.trim().split('-').next().unwrap_or_default() {
        "" => parts.push(std::env::consts::OS.to_owned()),
        version => parts.push(format!("Linux {version}")),
    }
    parts.join(", ")
}

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
    status_bytes(pid, "VmRSS:")
}

/// The most resident memory that a process ever had, if it can be read.
pub(crate) fn rss_peak_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
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

/// How many files and connections this process may have open.
pub(crate) fn descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |it| it as usize)
}

/// How nice: it still gets a tenth of a core that others want as well.
const NICE: i32 = 10;

/// Lets all other processes have their core first.
pub(crate) fn be_nice() {
    // If that is refused, those who are measured find out that they are late.
    let _ = setpriority_process(None, NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_as_far_as_it_is_known() {
        let cpu = "processor\t: 0\nmodel name\t: Some CPU @ 2.80GHz\nflags: a\n";
        let two = [cpu, cpu].concat();
        let shown = described(&two, "6.18.44-cloud-amd64\n");
        assert_eq!(shown, "2 cores, Some CPU @ 2.80GHz, Linux 6.18.44");
        assert_eq!(described("processor : 0\n", "6.1"), "1 core, Linux 6.1");
        assert_eq!(described("", ""), std::env::consts::OS);
    }
}

//! `--cpu`: keeping the calling thread on one core.
//!
//! A core outside the mask that `taskset`, a container or systemd has set is refused, even where
//! the kernel would allow it.

use std::io;

/// Keeps the calling thread on core `n`. Threads started afterwards inherit this; those started
/// before do not.
///
/// # Errors
///
/// If there is no such core or this process may not use it; the message names `--cpu` and the
/// cores that can be used.
#[cfg(target_os = "linux")]
pub fn pin_to_cpu(n: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed = sched_getaffinity(None)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect();
    let refused = |kind, why: &str| {
        let cores = ranges(&allowed);
        io::Error::new(
            kind,
            format!("--cpu {n}: {why}; this process may use {cores}"),
        )
    };
    if !allowed.contains(&n) {
        return Err(refused(io::ErrorKind::InvalidInput, "no such core here"));
    }
    let mut only = CpuSet::new();
    only.set(n);
    sched_setaffinity(None, &only).map_err(|error| refused(error.kind(), &error.to_string()))
}

/// Refuses: only Linux can keep a thread on a core.
///
/// # Errors
///
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn pin_to_cpu(n: usize) -> io::Result<()> {
    let why = format!("--cpu {n}: this system cannot keep a thread on a core");
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Cores in ascending order as people and `taskset` write them: `0-3,8`.
#[cfg(target_os = "linux")]
fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::*;

    // Affinity belongs to a thread and every test has its own, so the others stay where they are.
    #[test]
    fn the_thread_stays_on_an_allowed_core_and_refuses_the_rest() {
        let mask = sched_getaffinity(None).unwrap();
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&n| mask.is_set(n)).collect();
        for n in [CpuSet::MAX_CPU, usize::MAX] {
            let says = pin_to_cpu(n).unwrap_err().to_string();
            assert!(
                says.starts_with(&format!("--cpu {n}: no such core")),
                "{says}"
            );
            assert!(
                says.ends_with(&format!("may use {}", ranges(&allowed))),
                "{says}"
            );
        }
        assert_eq!(
            sched_getaffinity(None).unwrap(),
            mask,
            "a refusal changes nothing"
        );

        let core = *allowed.last().unwrap();
        pin_to_cpu(core).unwrap();
        let now = sched_getaffinity(None).unwrap();
        assert!(now.is_set(core) && now.count() == 1);
        if let Some(&other) = allowed.iter().find(|&&n| n != core) {
            let says = pin_to_cpu(other).unwrap_err().to_string();
            assert!(says.ends_with(&format!("may use {core}")), "{says}");
        }
    }

    #[test]
    fn cores_are_written_as_ranges() {
        for (cores, written) in [
            (&[][..], ""),
            (&[5], "5"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11"),
        ] {
            assert_eq!(ranges(cores), written);
        }
    }
}

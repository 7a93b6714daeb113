//! What the system says of this process: when it began, how much of the machine it uses.
//!
//! Asked while the daemon serves, so each answer takes a few system calls whatever the daemon holds:
//! open descriptors are counted by the system and never listed. What cannot be found out is left
//! out.

use std::fs::{self, File};
use std::io::Read;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::logging::wall_clock;
use crate::server::Process;

/// Longest `/proc/self/stat`: some fifty numbers of up to twenty digits.
const STAT_BYTES_MAX: usize = 2048;

/// What the system says of this process now.
pub(super) fn figures() -> Process {
    let mut buffer = [0; STAT_BYTES_MAX];
    let usage = stat_of_this_process(&mut buffer).and_then(Usage::read);
    Process {
        start_time_s: usage.map(|it| start_time_s(it.started_ticks)),
        cpu_s: usage.map(|it| seconds(it.cpu_ticks)),
        resident_bytes: usage.map(|it| it.resident_pages.saturating_mul(page_size() as u64)),
        virtual_bytes: usage.map(|it| it.virtual_bytes),
        open_fds: open_descriptors(),
        max_fds: getrlimit(Resource::Nofile).current,
    }
}

/// Since 1970. Worked out once: the wall clock may be set later, and this must not move with it.
fn start_time_s(started_ticks: u64) -> f64 {
    static START_TIME_S: OnceLock<f64> = OnceLock::new();
    *START_TIME_S.get_or_init(|| {
        let age_s = since_boot().as_secs_f64() - seconds(started_ticks);
        wall_clock().as_secs_f64() - age_s
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the start of the process is told in time since boot; nothing is decided by it"
)]
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// Linux says how many descriptors there are as the size of their directory since version 6.2, and
/// 0 before. There can be a hundred thousand of them, and to list them would stop everyone.
fn open_descriptors() -> Option<u64> {
    let directory = fs::metadata("/proc/self/fd").ok()?;
    Some(directory.len()).filter(|count| *count > 0)
}

fn stat_of_this_process(buffer: &mut [u8]) -> Option<&str> {
    let length = File::open("/proc/self/stat").ok()?.read(buffer).ok()?;
    str::from_utf8(&buffer[..length]).ok()
}

/// The fields of `/proc/PID/stat` that are of use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    /// In user mode and in the kernel together.
    cpu_ticks: u64,
    /// Since boot.
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Usage {
    /// `1 (name) S 0 1 …`: the name may hold anything, also blanks and parentheses. The page about
    /// it counts fields from 1; the state, after the name, is the third.
    fn read(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(") ")?;
        let mut fields = after_name.split_ascii_whitespace();
        let mut last = 2;
        let mut field = |number: usize| -> Option<u64> {
            let value = fields.nth(number - last - 1)?;
            last = number;
            value.parse().ok()
        };
        Some(Self {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "2724 (a) S (b c) R 2652 2724 2652 34816 2724 4194304 131 0 0 0 \
                        1234 66 0 0 20 0 3 0 25683 3133440 512 18446744073709551615 9 9 9\n";

    #[test]
    fn fields_are_found_behind_any_name() {
        let usage = Usage {
            cpu_ticks: 1_300,
            started_ticks: 25_683,
            virtual_bytes: 3_133_440,
            resident_pages: 512,
        };
        assert_eq!(Usage::read(STAT), Some(usage));
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let cut = &STAT[..STAT.find(" 512").unwrap()];
        for text in ["", "2724 (a", "2724 (a) ", cut, &STAT.replace("1234", "x")] {
            assert_eq!(Usage::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_process_began_a_while_ago_and_uses_something() {
        let process = figures();
        let now_s = wall_clock().as_secs_f64();
        // Ticks are hundredths of a second, and a test that takes an hour has failed anyway.
        let age_s = now_s - process.start_time_s.unwrap();
        assert!((-1.0..3_600.0).contains(&age_s), "{age_s}");
        assert!(
            process
                .cpu_s
                .is_some_and(|it| (0.0..36_000.0).contains(&it))
        );
        let resident = process.resident_bytes.unwrap();
        assert!((1 << 20..1 << 36).contains(&resident), "{process:?}");
        assert!(process.virtual_bytes.unwrap() > resident, "{process:?}");
        assert_eq!(figures().start_time_s, process.start_time_s);
    }

    #[test]
    fn descriptors_are_counted() {
        let Some(before) = figures().open_fds else {
            eprintln!("skipped: this system does not count open files");
            return;
        };
        // Others open some meanwhile, but not so many.
        let opened = [(); 200].map(|()| File::open("/dev/null").unwrap());
        let after = figures().open_fds.unwrap();
        assert!(after >= before + 100, "{before} and {after}");
        assert!(
            figures()
                .max_fds
                .is_none_or(|max| max > opened.len() as u64)
        );
    }
}

//! How often and how long one tries: the only place here that reads the clock or sleeps.
//!
//! `flock` has no timeout, and a signal that interrupts it would be the whole program's. So whoever
//! waits with a timeout asks again and again, and so does whoever finds the file replaced.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::lock_file::LockPath;

/// How often one tries to lock a file that is replaced each time before one says that it is busy.
/// Who waits goes on for ever, because each time somebody else has had the lock.
const RETRIES_MAX: u32 = 64;
/// So many times one tries again at once. The usual crowd of waiters is through by then.
const RETRIES_AT_ONCE: u32 = 4;
/// How often one tries in succession to open a file that may be removed just now. After that the error is
/// one of permission: about half a second.
const PASSES_MAX: u32 = 20;
/// When a line in the log says that many want this lock.
const RETRIES_WARNED: u32 = 16;
/// The longest pause. Whoever waits with a timeout has the lock at most this long after it is free.
const PAUSE_MAX: Duration = Duration::from_millis(50);
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// What one does while somebody else holds the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Gives up.
    Try,
    /// Waits.
    Block,
    /// Waits no longer than this.
    Within(Duration),
}

/// How far we have come with one lock.
#[derive(Debug)]
pub(super) struct Patience {
    mode: Mode,
    since: Instant,
    /// How often the file was replaced.
    retries: u32,
    /// How often it was held by somebody else.
    refusals: u32,
    /// How often in succession it could not be opened.
    passes: u32,
}

impl Patience {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            since: now(),
            retries: 0,
            refusals: 0,
            passes: 0,
        }
    }

    pub(super) fn waited(&self) -> Duration {
        now().saturating_duration_since(self.since)
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries
    }

    /// Whether to wait in the kernel.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.mode, Mode::Block)
    }

    /// Somebody else holds the lock. Says whether to try again, and pauses before.
    pub(super) fn busy(&mut self) -> bool {
        self.passes = 0;
        self.refusals = self.refusals.saturating_add(1);
        let rest = self.rest().unwrap_or_default();
        if rest.is_zero() {
            return false;
        }
        // At least 1 ms, so that a crowd of those who ask does not keep the holder from its work.
        sleep(pause(self.refusals).max(PAUSE_MIN).min(rest));
        true
    }

    /// The file was replaced while we locked it. Says whether to try again, and pauses before.
    pub(super) fn replaced(&mut self, path: &LockPath) -> bool {
        self.passes = 0;
        self.retries = self.retries.saturating_add(1);
        if self.retries == RETRIES_WARNED {
            log::warn!(
                "lock file {:?} was replaced {RETRIES_WARNED} times while we waited for it: \
                 very many want it, or something else removes it",
                path.as_path()
            );
        }
        match self.mode {
            Mode::Try if self.retries >= RETRIES_MAX => return false,
            Mode::Within(_) if self.rest() == Some(Duration::ZERO) => return false,
            _ => {}
        }
        if self.retries >= RETRIES_AT_ONCE {
            sleep(pause(self.retries).min(self.rest().unwrap_or(PAUSE_MAX)));
        }
        true
    }

    /// The file cannot be opened, perhaps because its name is about to go. Says whether to try again, and
    /// pauses before.
    pub(super) fn passes(&mut self) -> bool {
        self.passes += 1;
        if self.passes >= PASSES_MAX || self.rest() == Some(Duration::ZERO) {
            return false;
        }
        sleep(pause(self.passes).min(self.rest().unwrap_or(PAUSE_MAX)));
        true
    }

    /// How much of the timeout is left; `None` if there is none.
    fn rest(&self) -> Option<Duration> {
        match self.mode {
            Mode::Within(timeout) => Some(timeout.saturating_sub(self.waited())),
            Mode::Try | Mode::Block => None,
        }
    }
}

/// Anything up to twice as long as the last time and [`PAUSE_MAX`], so that no two keep in step.
fn pause(times: u32) -> Duration {
    let most = PAUSE_MIN.saturating_mul(1 << times.min(10)).min(PAUSE_MAX);
    // Keyed anew each time: a random number without another crate.
    let chance = RandomState::new().build_hasher().finish();
    Duration::from_nanos(chance % most.as_nanos() as u64)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program without a daemon has no other clock"
)]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no event to wait for: flock has no timeout, and the file of another is gone"
)]
fn sleep(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Mutex;
    use std::thread::{self, ThreadId};

    use super::*;

    fn path() -> LockPath {
        LockPath::new("x.lock".as_ref(), true).unwrap()
    }

    #[test]
    fn who_only_tries_gives_up_at_once_and_after_64_replacements() {
        let mut patience = Patience::new(Mode::Try);
        assert!(!patience.busy());
        let path = path();
        // Without the pauses this would be a loop; with them the numbers are what counts.
        let tries = (1..).take_while(|_| patience.replaced(&path)).count();
        assert_eq!(tries as u32 + 1, RETRIES_MAX);
    }

    /// The thread of each line that this module has logged at level warn, and the line.
    struct Warnings(Mutex<Vec<(ThreadId, String)>>);

    static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

    impl log::Log for Warnings {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            if record.level() == log::Level::Warn && record.target().ends_with("::patience") {
                let line = (thread::current().id(), record.args().to_string());
                self.0.lock().unwrap().push(line);
            }
        }

        fn flush(&self) {}
    }

    /// No other unit test has a logger.
    #[test]
    fn sixteenth_replacement_of_a_wait_is_warned_of() {
        log::set_logger(&WARNINGS).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let path = path();
        let mut patience = Patience::new(Mode::Try);
        let mut warnings_after = |replacements: Range<u32>| {
            for _ in replacements {
                assert!(patience.replaced(&path));
            }
            let us = thread::current().id();
            let mut warnings = WARNINGS.0.lock().unwrap();
            let ours = warnings.extract_if(.., |(thread, _)| *thread == us);
            ours.map(|(_, line)| line).collect::<Vec<_>>()
        };
        assert_eq!(warnings_after(0..15), [""; 0]);
        let text = format!(
            "lock file {:?} was replaced 16 times while we waited for it: \
             very many want it, or something else removes it",
            path.as_path()
        );
        assert_eq!(warnings_after(15..16), [text]);
        assert_eq!(warnings_after(16..63), [""; 0]);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_after_20_tries_in_succession() {
        let mut patience = Patience::new(Mode::Block);
        let tries = |patience: &mut Patience| (1..).take_while(|_| patience.passes()).count() + 1;
        assert_eq!(tries(&mut patience), PASSES_MAX as usize);
        assert!(patience.replaced(&path()));
        assert_eq!(tries(&mut patience), PASSES_MAX as usize);
        assert!(!Patience::new(Mode::Within(Duration::ZERO)).passes());
    }

    #[test]
    fn who_waits_never_gives_up() {
        let mut patience = Patience::new(Mode::Block);
        patience.retries = u32::MAX;
        assert!(patience.replaced(&path()));
        assert!(patience.blocks());
    }

    #[test]
    fn who_waits_with_a_timeout_gives_up_when_it_is_over() {
        let mut patience = Patience::new(Mode::Within(Duration::ZERO));
        assert!(!patience.busy());
        assert!(!patience.replaced(&path()));
        let mut patience = Patience::new(Mode::Within(Duration::MAX));
        assert!(patience.busy());
        assert!(!patience.blocks());
    }

    #[test]
    fn pauses_are_random_and_bounded() {
        let pauses: Vec<_> = (0..200).map(pause).collect();
        assert!(pauses.iter().all(|it| *it < PAUSE_MAX));
        assert!(pauses[8..].iter().any(|it| *it > PAUSE_MAX / 2));
        assert!(pauses.windows(2).any(|two| two[0] != two[1]));
    }
}

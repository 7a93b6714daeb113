//! The data directory: opened and replayed at the start, looked at and mended on request.
//!
//! `store/` knows the files, `engine/` what they mean; here an operator is told what was found and
//! what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use log::{error, info, warn};

use super::{DaemonError, failed_to, print, random, wall_clock_us, wall_ms};
use crate::base::Nanos;
use crate::config::{Config, Exit};
use crate::engine::Engine;
use crate::engine::types::{Effects, Input};
use crate::net::{Clock, Remote};
use crate::store::{
    self, Clocks, Durability, Ending, Files, Found, Journal, Life, LoadError, Notice, OpenError,
    Opened, Options, Reading, Restore, SEGMENT_BYTES,
};

/// How often a long read of the directory says how far it is.
const TOLD_EVERY_NS: u64 = 1_000_000_000;

/// A data directory that is ours, and in which a life has begun.
pub(super) struct DataDir {
    dir: PathBuf,
    pub(super) journal: Journal,
    pub(super) life: Life,
    pub(super) found: Found,
    restore: Restore<Files>,
    /// How the journal wakes the loop, once there is one.
    remote: Arc<OnceLock<Remote>>,
}

impl DataDir {
    /// Takes the directory, or says who has it or what is wrong with it.
    pub(super) fn open(dir: &Path, durability: Durability) -> Result<Self, DaemonError> {
        let remote = Arc::new(OnceLock::<Remote>::new());
        let wake = {
            let remote = Arc::clone(&remote);
            move || {
                if let Some(remote) = remote.get() {
                    let _ = remote.wake(); // a loop that cannot be woken is over
                }
            }
        };
        let [salt] = random::secret().map_err(failed_to("get random numbers"))?;
        let options = Options {
            durability,
            segment_bytes: SEGMENT_BYTES,
            salt: salt as u32,
            wall_ms: Box::new(|| ms_not_before(wall_clock_us())),
            wake: Box::new(wake),
            report: Box::new(|notice| report(&notice)),
        };
        let mut told = Told::new("checking");
        let opened = Journal::open(dir, options, &mut |reading| told.note(reading));
        let Opened {
            journal,
            life,
            found,
            restore,
        } = opened.map_err(|error| cannot_open(dir, &error))?;
        let data_dir = Self {
            dir: dir.to_owned(),
            journal,
            life,
            found,
            restore,
            remote,
        };
        data_dir.tell_found();
        Ok(data_dir)
    }

    /// Brings back what was there. The leases of what was held start again when it is served.
    pub(super) fn restore(&self, engine: &mut Engine, clock: &Clock) -> Result<(), DaemonError> {
        // In this order, so that no value ends early.
        let wall_ms = wall_ms();
        let now = clock.now();
        let clocks = Clocks { now, wall_ms };
        let mut nothing = Effects::new();
        let mut told = Told::new("restoring");
        let read = self.restore.each(
            clocks,
            |record| engine.apply(now, Input::Restore(&record), &mut nothing),
            |reading| told.note(reading),
        );
        read.map_err(|error| DaemonError {
            attempt: "cannot restore what the data directory has".to_owned(),
            cause: io::Error::other(error.to_string()),
            advice: String::new(),
            exit: Exit::Storage,
        })?;
        debug_assert!(nothing.is_empty(), "restoring is not heard");
        Ok(())
    }

    /// The journal, which from now on wakes this loop.
    pub(super) fn remote(&self) -> Arc<OnceLock<Remote>> {
        Arc::clone(&self.remote)
    }

    /// Tells how the last life ended: at once, because whatever goes wrong now, the next life will
    /// say how this one ended and not that one.
    fn tell_found(&self) {
        let found = &self.found;
        if let Some(cut) = &found.cut {
            warn!(
                "{}: cut {} bytes at offset {} ({}), as a write that was not finished",
                cut.file, cut.bytes, cut.offset, cut.why
            );
        }
        match (found.ending, found.life) {
            (Ending::None | Ending::Clean(_), _) => {}
            (Ending::Unclean, Some(last)) if last.durability == Durability::Async => warn!(
                "the last run did not stop in order and had --durability async: if the machine \
                 went down with it, what was acknowledged in its last 100 ms may be lost"
            ),
            (Ending::Unclean, Some(last)) if last.follows_loss => warn!(
                "something that was acknowledged may be lost, and the last run did not stop in \
                 order, or before those who miss something had the time to say so"
            ),
            (Ending::Unclean, _) => {
                warn!("the last run did not stop in order; everything it acknowledged is here")
            }
        }
    }

    /// Tells what is there.
    pub(super) fn tell_restored(&self, engine: &Engine) {
        let (dir, epoch) = (self.dir.display(), self.life.epoch);
        if self.found.ending == Ending::None {
            info!("data directory {dir} is new: epoch {epoch}");
        } else {
            let counts = engine.counts();
            info!(
                "data directory {dir}: epoch {epoch}, {} held, {} counters, values and lists, \
                 {} range locks",
                counts.holders,
                counts.others,
                engine.view(Nanos(0)).range_counts().locks
            );
        }
        if self.life.durability == Durability::Async {
            warn!(
                "--durability async: a crash of the machine can lose the last 100 ms of what was \
                 acknowledged"
            );
        }
    }
}

/// Says now and then how far a long read is.
struct Told {
    what: &'static str,
    clock: Clock,
    next: Nanos,
}

impl Told {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            clock: Clock::system(),
            next: Nanos(TOLD_EVERY_NS),
        }
    }

    fn note(&mut self, reading: Reading) {
        let Reading {
            done_bytes,
            total_bytes,
        } = reading;
        let now = self.clock.now();
        if now >= self.next {
            self.next = Nanos(now.0 + TOLD_EVERY_NS);
            let percent = done_bytes * 100 / total_bytes.max(1);
            info!(
                "{} the data directory: {percent} % of {} MiB",
                self.what,
                total_bytes >> 20
            );
        }
    }
}

fn report(notice: &Notice) {
    match notice {
        Notice::Full(_) => {
            warn!("{notice}; changes are refused with error_storage until there is room");
        }
        Notice::NotCompacted(_) | Notice::NoSpare(_) => warn!("{notice}"),
        Notice::Failed(_) => error!("{notice}"),
        Notice::Room | Notice::Compacted(_) => info!("{notice}"),
    }
}

/// The directory cannot be used; also what `--check-config` says.
pub(super) fn cannot_open(dir: &Path, error: &OpenError) -> DaemonError {
    let (exit, advice) = match error {
        OpenError::InUse(_) => (
            Exit::DataInUse,
            "stop that daemon, or choose another --data-dir",
        ),
        OpenError::Load(LoadError::Damaged(_)) => (
            Exit::Storage,
            "restore a backup, or keep what is provably good with --repair",
        ),
        OpenError::Directory(_) => (Exit::Config, "check the path and its permissions"),
        OpenError::Full(_) => (Exit::Storage, "make room on its disk"),
        OpenError::Load(_) | OpenError::Failed(_) => (Exit::Storage, ""),
    };
    DaemonError {
        attempt: format!(
            "cannot use the data directory {} (--data-dir)",
            dir.display()
        ),
        cause: io::Error::other(error.to_string()),
        advice: advice.to_owned(),
        exit,
    }
}

/// `latchd --inspect`: shows what is in a data directory, without changing anything.
#[must_use]
pub fn inspect(dir: &Path, json: bool) -> Exit {
    match store::inspect(dir) {
        Ok(found) => {
            let text = if json { found.json() } else { found.text() };
            let exit = print(&text);
            match found.damage {
                Some(_) => Exit::Storage,
                None => exit,
            }
        }
        Err(error) => {
            eprintln!("latchd: cannot look at {}: {error}", dir.display());
            Exit::Storage
        }
    }
}

/// `latchd --repair`: keeps what is provably good, and says what was dropped.
#[must_use]
pub fn repair(dir: &Path) -> Exit {
    match store::repair(dir, wall_ms()) {
        Ok(repaired) => print(&repaired.to_string()),
        Err(error) => {
            let is_damage = matches!(error, OpenError::Load(LoadError::Damaged(_)));
            let mut error = cannot_open(dir, &error);
            if is_damage {
                "nothing can be kept of it: restore a backup".clone_into(&mut error.advice);
            }
            eprintln!("latchd: {error}");
            error.exit
        }
    }
}

/// Milliseconds when the end of a value is written down: rounded up, so that after a restart, where
/// they are rounded down, the value does not end early.
fn ms_not_before(us: u64) -> u64 {
    us.div_ceil(1_000)
}

/// What an operator set.
pub(super) fn open(config: &Config) -> Result<Option<DataDir>, DaemonError> {
    let open = |dir: &PathBuf| DataDir::open(dir, config.durability);
    config.data_dir.as_ref().map(open).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_value_is_not_written_down_early() {
        for (us, ms) in [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(ms_not_before(us), ms);
        }
    }
}

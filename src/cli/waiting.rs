//! The one line that says, while we wait on a terminal, what for and behind whom.
//!
//! It is written to standard error, over itself, and is gone when the wait is. Where standard error is no
//! terminal nothing is written at all.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::output::cut;
use super::supervise::warden::monotonic;

/// How long we wait before we say so: what is had at once flickers otherwise.
const SAID_AFTER: Duration = Duration::from_millis(150);
/// How often the line is written anew.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// A line that is there or is not.
pub(crate) struct WaitingLine {
    since: Duration,
    terminal: bool,
    shown: bool,
}

impl WaitingLine {
    pub(crate) fn new() -> Self {
        Self {
            since: monotonic(),
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// Shows what `text` says, if it is time for it. For [`task::wait`](super::task::wait).
    pub(crate) fn tick(&mut self, last: bool, text: impl FnOnce() -> String) -> Option<Duration> {
        if !self.terminal {
            return None;
        }
        if last {
            self.clear();
            return None;
        }
        let waited = monotonic().saturating_sub(self.since);
        if waited < SAID_AFTER {
            return Some(SAID_AFTER.saturating_sub(waited));
        }
        let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| size.ws_col);
        let columns = usize::from(columns.max(20));
        let waited = super::duration::short(waited.as_secs_f64());
        let text = cut(&format!("{} ({waited})", text()), columns.saturating_sub(1));
        // At once, so that nobody sees half of it.
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        self.shown = true;
        Some(EVERY)
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = io::stderr().write_all(b"\r\x1b[K");
            self.shown = false;
        }
    }
}

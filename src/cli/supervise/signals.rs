//! Signals as events that can be waited for, beside everything else that can happen.
//!
//! They are blocked and read from a descriptor, so no code of ours ever runs in the middle of other
//! code, and nothing is interrupted. What whoever started us ignores (`nohup`) stays ignored, for us and
//! for what we run.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::cli::exit::{Exit, Fail};

/// What is waited for. All others do what they always do.
const WATCHED: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// The signals of this process, from now on. To be made before any other thread is.
pub(crate) struct Signals {
    fd: SignalFd,
    /// What has been read and not been dealt with. The system keeps each signal once, so there are few.
    kept: VecDeque<Signal>,
}

impl Signals {
    pub(crate) fn watch() -> Result<Self, Fail> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let is_ignored = |signal: Signal| ignored >> (signal as u32 - 1) & 1 == 1;
        if is_ignored(Signal::SIGCHLD) {
            // Then the system would forget how our children ended. A handler that does nothing ends that.
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(Signal::SIGCHLD as i32, flag)
                .map_err(|error| Fail::system("listen for the end of a command", error))?;
        }
        let watched: SigSet = WATCHED
            .into_iter()
            .filter(|signal| *signal == Signal::SIGCHLD || !is_ignored(*signal))
            .collect();
        let failed = |error| Fail::system("listen for signals", error);
        // A process in the background may give the terminal back only if this one is blocked.
        (watched | Signal::SIGTTOU).thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&watched, flags).map_err(failed)?;
        Ok(Self {
            fd,
            kept: VecDeque::new(),
        })
    }

    /// The next signal that has come, if any has.
    pub(crate) fn next(&mut self) -> Option<Signal> {
        self.kept.pop_front().or_else(|| self.read())
    }

    fn read(&self) -> Option<Signal> {
        loop {
            let info = self.fd.read_signal().ok()??;
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                return Some(signal);
            }
        }
    }

    /// Has a signal come again: somebody else is to deal with it.
    pub(crate) fn put_back(&mut self, signal: Signal) {
        self.kept.push_back(signal);
    }

    /// Lets this signal do to us and everybody else in our process group what it would have done, had the terminal sent
    /// it: stop or end. Says whether we were stopped and are continued now; a group that nobody
    /// could continue is not stopped.
    pub(crate) fn suffer(&mut self, signal: Signal) -> bool {
        self.keep_all(); // whoever continued us before does not count
        let one = SigSet::from(signal);
        let sent = rustix_signal(signal)
            .is_some_and(|it| rustix::process::kill_current_process_group(it).is_ok());
        if sent && one.thread_unblock().is_ok() {
            // It was delivered before that returned.
            let _ = one.thread_block();
        }
        self.keep_all()
    }

    /// Ends this process the way this signal would have, so that whoever waits for us sees what it was. Comes back only
    /// if the signal ends nobody.
    pub(crate) fn die(&mut self, signal: Signal) -> Exit {
        if let Some(it) = rustix_signal(signal) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), it);
        }
        let _ = SigSet::from(signal).thread_unblock();
        Exit::signal(signal as i32)
    }

    /// Puts everything that has come aside, but for being continued: whether that was among it.
    fn keep_all(&mut self) -> bool {
        let mut continued = false;
        while let Some(signal) = self.read() {
            match signal {
                Signal::SIGCONT => continued = true,
                signal => self.kept.push_back(signal),
            }
        }
        continued
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// For a process that was started by one that [watches](Signals::watch): what is blocked there is blocked here, too,
/// and would be in whatever it becomes.
pub(crate) fn unblock() {
    let blocked: SigSet = WATCHED.into_iter().collect();
    let _ = (blocked | Signal::SIGTTOU).thread_unblock();
}

/// The signals that are ignored, one bit for each, from `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// The same signal for the other crate.
pub(crate) fn rustix_signal(signal: Signal) -> Option<rustix::process::Signal> {
    rustix::process::Signal::from_named_raw(signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tlatch\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let mask = ignored(status);
        assert_eq!(mask >> (Signal::SIGHUP as u32 - 1) & 1, 1);
        assert_eq!(mask >> (Signal::SIGPIPE as u32 - 1) & 1, 1);
        assert_eq!(mask >> (Signal::SIGINT as u32 - 1) & 1, 0);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tx"), 0);
    }
}

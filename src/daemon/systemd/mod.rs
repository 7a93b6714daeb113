//! What a service manager such as systemd says to a service, and what it wants to hear.
//!
//! It speaks through variables: where to report to, how often it wants to hear that the service is
//! alive, which sockets it has opened, which journal reads standard error. Without them nothing here
//! does anything. `manager.rs` reports, `sockets.rs` takes what was opened.

mod manager;
mod sockets;

use std::io::stderr;
use std::process;

use rustix::fs::fstat;

pub(super) use self::manager::Manager;
pub(super) use self::sockets::handed_over;

/// What the environment says about whoever manages this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supervision {
    /// `NOTIFY_SOCKET`: where it listens.
    notify_socket: Option<String>,
    /// `WATCHDOG_USEC`, if it is for this process (`WATCHDOG_PID`): the longest silence.
    watchdog_us: Option<u64>,
    /// `JOURNAL_STREAM`: device and inode of what the journal reads.
    journal_stream: Option<(u64, u64)>,
    /// `LISTEN_FDS`, if it is for this process (`LISTEN_PID`): how many sockets were opened.
    listen_fds: Option<String>,
    /// `LISTEN_FDNAMES`: what they are called.
    listen_names: Option<String>,
}

impl Supervision {
    /// `env` answers what an environment variable holds.
    #[must_use]
    pub fn read(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let said = |name: &str| env(name).filter(|text| !text.is_empty());
        let own = process::id().to_string();
        // Variables can be inherited from a parent whom they were meant for.
        let watchdog_is_ours = said("WATCHDOG_PID").is_none_or(|pid| pid == own);
        let sockets_are_ours = said("LISTEN_PID").is_some_and(|pid| pid == own);
        Self {
            notify_socket: said("NOTIFY_SOCKET"),
            watchdog_us: said("WATCHDOG_USEC")
                .filter(|_| watchdog_is_ours)
                .and_then(|text| text.parse().ok())
                .filter(|us| *us > 0),
            journal_stream: said("JOURNAL_STREAM").and_then(|text| {
                let (device, inode) = text.split_once(':')?;
                Some((device.parse().ok()?, inode.parse().ok()?))
            }),
            listen_fds: said("LISTEN_FDS").filter(|_| sockets_are_ours),
            listen_names: said("LISTEN_FDNAMES"),
        }
    }

    /// Whether the journal reads standard error. The variable alone does not say so: whoever was
    /// started by a service has it too, with a standard error of its own.
    pub(super) fn journal_reads_stderr(&self) -> bool {
        let Ok(status) = fstat(stderr()) else {
            return false;
        };
        self.journal_stream == Some((status.st_dev, status.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(env: &[(&str, &str)]) -> Supervision {
        Supervision::read(&|name| {
            let (_, text) = env.iter().find(|(set, _)| *set == name)?;
            Some((*text).to_owned())
        })
    }

    #[test]
    fn variables_for_another_process_are_not_for_us() {
        let own = process::id().to_string();
        for (pid, is_ours) in [(own.as_str(), true), ("1", false), ("", false)] {
            let read = read(&[("LISTEN_FDS", "2"), ("LISTEN_PID", pid)]);
            assert_eq!(read.listen_fds.is_some(), is_ours, "{pid}");
        }
        for (pid, is_ours) in [(own.as_str(), true), ("1", false), ("", true)] {
            let read = read(&[("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", pid)]);
            assert_eq!(read.watchdog_us.is_some(), is_ours, "{pid}");
        }
        assert_eq!(read(&[("LISTEN_FDS", "2")]).listen_fds, None);
        assert_eq!(read(&[]), Supervision::default());
    }

    #[test]
    fn nonsense_is_as_good_as_nothing() {
        for text in ["x", "-1", "0", ""] {
            assert_eq!(read(&[("WATCHDOG_USEC", text)]).watchdog_us, None);
        }
        for text in ["x", "1", "1:", ":1", "1:x", ""] {
            assert_eq!(read(&[("JOURNAL_STREAM", text)]).journal_stream, None);
        }
    }

    #[test]
    fn the_journal_reads_us_only_if_it_is_our_standard_error() {
        let status = fstat(stderr()).unwrap();
        let (device, inode) = (status.st_dev, status.st_ino);
        for (text, reads) in [
            (format!("{device}:{inode}"), true),
            (format!("{device}:{}", inode + 1), false),
            (format!("{}:{inode}", device + 1), false),
        ] {
            let read = read(&[("JOURNAL_STREAM", &text)]);
            assert_eq!(read.journal_reads_stderr(), reads, "{text}");
        }
        assert!(!read(&[]).journal_reads_stderr());
    }
}

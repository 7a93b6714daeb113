//! Reports to the service manager: that the service is ready, alive, reading its settings again,
//! stopping, and how much it holds.
//!
//! The loop has this done ([`Manager::attend`]), in its own thread, so that a loop that is stuck is
//! not reported to be alive. A report never waits: one that matters is owed until it is taken, and
//! of the others the next one says more.

use std::collections::VecDeque;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use log::warn;
use rustix::time::{ClockId, clock_gettime};

use super::Supervision;
use crate::base::{Millis, Nanos};
use crate::net::Seen;

/// How often it is looked whether there is something new to tell about what is held.
const STATUS_EVERY: Millis = Millis(5_000);

/// How long after a report was not taken it is tried again.
const TRY_AGAIN: Millis = Millis(100);

/// Most reports that are owed. Beyond that the oldest is forgotten: the newest say how it is.
const OWED_MAX: usize = 8;

/// A service manager that wants to hear of this process.
#[derive(Debug)]
pub(in crate::daemon) struct Manager {
    socket: UnixDatagram,
    /// Reports that matter and were not taken yet.
    owed: VecDeque<String>,
    watchdog: Option<Watchdog>,
    /// What was told last about what is held.
    status_told: String,
    status_next: Nanos,
    is_stopping: bool,
}

/// It wants to hear that we are alive, or else it ends us.
#[derive(Debug)]
struct Watchdog {
    /// Half of the longest silence.
    every_ns: u64,
    next: Nanos,
}

impl Manager {
    /// The manager of this process, if there is one and it can be reached.
    pub(in crate::daemon) fn connect(supervision: &Supervision) -> Option<Self> {
        let address = supervision.notify_socket.as_ref()?;
        let socket = connected(address)
            .inspect_err(|error| warn!("cannot report to {address} (NOTIFY_SOCKET): {error}"))
            .ok()?;
        Some(Self {
            socket,
            owed: VecDeque::new(),
            watchdog: supervision.watchdog_us.map(|us| Watchdog {
                every_ns: us.saturating_mul(1_000 / 2).max(1),
                next: Nanos(0),
            }),
            status_told: String::new(),
            status_next: Nanos(0),
            is_stopping: false,
        })
    }

    /// It listens, and everything is there again.
    pub(in crate::daemon) fn tell_ready(&mut self, seen: Seen) {
        self.status_told = status(seen);
        self.owe(format!("READY=1\nSTATUS={}\n", self.status_told));
    }

    /// It begins to read again what can change.
    pub(in crate::daemon) fn tell_reloading(&mut self) {
        let us = monotonic_us();
        self.owe(format!("RELOADING=1\nMONOTONIC_USEC={us}\n"));
    }

    /// It has done so, whatever came of it.
    pub(in crate::daemon) fn tell_reloaded(&mut self) {
        self.owe("READY=1\n".to_owned());
    }

    /// It stops. Told once.
    pub(in crate::daemon) fn tell_stopping(&mut self) {
        if !self.is_stopping {
            self.is_stopping = true;
            self.owe("STOPPING=1\n".to_owned());
        }
    }

    /// It could not start or go on.
    pub(in crate::daemon) fn tell_failed(&mut self, why: &str) {
        let why = why.replace('\n', " ");
        self.owe(format!("STATUS={why}\n"));
    }

    /// Tells what is to be told by now; says when to look again.
    pub(in crate::daemon) fn attend(&mut self, now: Nanos, seen: Seen) -> Nanos {
        if seen.is_draining {
            self.tell_stopping();
        }
        self.pay();
        if now >= self.status_next {
            self.status_next = now.after(STATUS_EVERY);
            let status = status(seen);
            if status != self.status_told && self.say(&format!("STATUS={status}\n")) {
                self.status_told = status;
            }
        }
        let mut next = self.status_next;
        if let Some(watchdog) = &mut self.watchdog {
            if now >= watchdog.next {
                watchdog.next = Nanos(now.0.saturating_add(watchdog.every_ns));
                // If it is not taken, the next one may be: half of the time is left.
                let _ = self.socket.send(b"WATCHDOG=1\n");
            }
            next = next.min(watchdog.next);
        }
        if self.owed.is_empty() {
            next
        } else {
            next.min(now.after(TRY_AGAIN))
        }
    }

    /// Reports something that matters, now or later.
    fn owe(&mut self, report: String) {
        if self.owed.len() == OWED_MAX {
            self.owed.pop_front();
        }
        self.owed.push_back(report);
        self.pay();
    }

    fn pay(&mut self) {
        while let Some(report) = self.owed.front() {
            if !self.say(report) {
                return;
            }
            self.owed.pop_front();
        }
    }

    /// Says whether it was taken, or never will be.
    fn say(&self, report: &str) -> bool {
        match self.socket.send(report.as_bytes()) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

fn status(seen: Seen) -> String {
    let Seen {
        held,
        waiting,
        connections,
        is_draining,
    } = seen;
    let stopping = if is_draining { "stopping: " } else { "" };
    format!("{stopping}{held} held, {waiting} waiting, {connections} connections")
}

/// A path, or a name in the abstract namespace, which begins with `@`.
fn connected(address: &str) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None if address.starts_with('/') => SocketAddr::from_pathname(address)?,
        None => {
            let why = "only paths and names that begin with @ are known";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The manager compares it with the time when it asked for a reload.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock of the whole machine is wanted, and nothing is decided by it"
)]
fn monotonic_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen = Seen {
        held: 0,
        waiting: 0,
        connections: 0,
        is_draining: false,
    };

    /// A manager that is told by hand, and what it has heard.
    fn managed(watchdog_us: Option<u64>) -> (Manager, UnixDatagram, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let hears = UnixDatagram::bind(&path).unwrap();
        hears.set_nonblocking(true).unwrap();
        let supervision = Supervision {
            notify_socket: Some(path.to_str().unwrap().to_owned()),
            watchdog_us,
            ..Supervision::default()
        };
        (Manager::connect(&supervision).unwrap(), hears, dir)
    }

    fn heard(hears: &UnixDatagram) -> Vec<String> {
        let mut reports = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(bytes) = hears.recv(&mut buffer) {
            reports.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
        reports
    }

    fn at_ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    #[test]
    fn it_is_told_that_we_are_alive_at_half_of_its_time_and_not_more_often() {
        let (mut manager, hears, _dir) = managed(Some(2_000_000));
        let mut told = Vec::new();
        for ms in (0..=4_500).step_by(100) {
            let next = manager.attend(at_ms(ms), NOTHING);
            if heard(&hears).iter().any(|report| report == "WATCHDOG=1\n") {
                told.push(ms);
                assert_eq!(next, at_ms(ms + 1_000));
            }
        }
        assert_eq!(told, [0, 1_000, 2_000, 3_000, 4_000]);
    }

    #[test]
    fn without_a_watchdog_nobody_is_told_that_we_are_alive() {
        let (mut manager, hears, _dir) = managed(None);
        let next = manager.attend(at_ms(0), NOTHING);
        assert_eq!(next, at_ms(5_000));
        assert!(!heard(&hears).concat().contains("WATCHDOG"));
    }

    #[test]
    fn what_is_held_is_told_when_it_is_another_and_every_few_seconds_at_most() {
        let (mut manager, hears, _dir) = managed(None);
        manager.tell_ready(NOTHING);
        let zero = "0 held, 0 waiting, 0 connections";
        assert_eq!(heard(&hears), [format!("READY=1\nSTATUS={zero}\n")]);
        let some = Seen {
            held: 3,
            waiting: 1,
            connections: 2,
            ..NOTHING
        };
        let told = "STATUS=3 held, 1 waiting, 2 connections\n";
        for (ms, seen, reports) in [
            (0, NOTHING, &[][..]),
            (100, some, &[]),
            (5_000, some, &[told]),
            (9_999, NOTHING, &[]),
            (10_000, some, &[]),
            (
                15_000,
                NOTHING,
                &["STATUS=0 held, 0 waiting, 0 connections\n"],
            ),
        ] {
            manager.attend(at_ms(ms), seen);
            assert_eq!(heard(&hears), reports, "{ms} ms");
        }
    }

    #[test]
    fn the_end_is_told_once() {
        let (mut manager, hears, _dir) = managed(None);
        let ending = Seen {
            is_draining: true,
            ..NOTHING
        };
        manager.attend(at_ms(0), NOTHING);
        heard(&hears);
        manager.attend(at_ms(1), ending);
        manager.attend(at_ms(2), ending);
        manager.tell_stopping();
        assert_eq!(heard(&hears), ["STOPPING=1\n"]);
    }

    #[test]
    fn reports_that_matter_wait_for_room_and_nobody_waits_for_them() {
        let (mut manager, hears, _dir) = managed(None);
        while manager.say("STATUS=filler\n") {}
        manager.tell_reloading();
        manager.tell_reloaded();
        assert_eq!(manager.owed.len(), 2);
        let next = manager.attend(at_ms(0), NOTHING);
        assert_eq!(next, at_ms(100), "it is tried again soon");
        heard(&hears);
        manager.attend(at_ms(100), NOTHING);
        let reports = heard(&hears);
        let [reloading, ready] = &reports[..] else {
            panic!("{reports:?}");
        };
        let (what, us) = reloading.split_once("\nMONOTONIC_USEC=").unwrap();
        assert_eq!((what, ready.as_str()), ("RELOADING=1", "READY=1\n"));
        assert!(us.trim_end().parse::<u64>().is_ok_and(|us| us > 0), "{us}");
    }

    #[test]
    fn a_manager_that_is_gone_costs_nothing() {
        let (mut manager, hears, _dir) = managed(Some(1));
        drop(hears);
        manager.tell_ready(NOTHING);
        manager.attend(at_ms(0), NOTHING);
        assert!(manager.owed.is_empty());
    }

    #[test]
    fn names_without_a_file_are_known_and_others_are_not() {
        let name = format!("latchd-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _hears = UnixDatagram::bind_addr(&address).unwrap();
        assert!(connected(&format!("@{name}")).is_ok());
        for bad in ["vsock:2:1234", "relative", "/nowhere/notify"] {
            assert!(connected(bad).is_err(), "{bad}");
        }
    }
}

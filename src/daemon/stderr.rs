//! Standard error, as the log writes it: a reader that does not read costs lines, never time.
//!
//! The loop logs, so a write that blocks would stop everybody. Without room the line is lost and
//! counted, and the count is told as soon as there is room again: with the next line, or when the
//! loop tries ([`catch_up`]). The descriptor itself stays as it is, because other programs write to
//! it too: see [`Way`]. There is one log in a process, so what it has lost is one figure for all.

use std::io::{self, Stderr, Write, stderr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use log::{Level, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::net::{SendFlags, send};

use super::logging;
use crate::config::LogFormat;

/// A pipe that has room takes this much at once without blocking.
const CHUNK_BYTES_MAX: usize = 4096;

/// How to write without waiting.
enum Way {
    /// To a pipe or a terminal opened once more, for us alone, so that it can be told never to
    /// block. A terminal may have room for some bytes and block at the next.
    Reopened(OwnedFd),
    /// To a socket, which can be told so with every write.
    Socket,
    /// To anything else: a file always has room, and the others are asked before each write.
    Asked,
}

/// Where the log goes, once it is open.
static OUTPUT: Mutex<Option<Output>> = Mutex::new(None);

/// Lines lost since the start, and how many of them the log has told of.
static LOST: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);

/// How many lines of the log were lost since the start.
pub(super) fn lost_lines() -> u64 {
    LOST.load(Relaxed)
}

/// Whether the log has lost lines and has not told so.
pub(super) fn is_behind() -> bool {
    LOST.load(Relaxed) != TOLD.load(Relaxed)
}

/// Tells how many lines were lost, if standard error takes it by now.
pub(super) fn catch_up() {
    if let Some(output) = &mut *lock() {
        output.tell_lost();
        output.publish();
    }
}

fn lock() -> MutexGuard<'static, Option<Output>> {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to standard error for the log.
pub(super) struct LogOutput;

impl LogOutput {
    pub(super) fn open(format: LogFormat) -> Self {
        *lock() = Some(Output::new(format));
        Self
    }
}

impl Write for LogOutput {
    /// Takes a whole line at a time, and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(output) = &mut *lock() {
            output.put_or_lose(line);
            output.publish();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Output {
    format: LogFormat,
    way: Way,
    /// Lines lost so far, and since the log last told of it.
    lost_total: u64,
    lost: u64,
    /// The last line was cut off in the middle.
    is_cut: bool,
}

impl Output {
    fn new(format: LogFormat) -> Self {
        Self {
            format,
            way: Way::of(&stderr()),
            lost_total: 0,
            lost: 0,
            is_cut: false,
        }
    }

    /// Writes a line, behind what is to be told of those before it.
    fn put_or_lose(&mut self, line: &[u8]) {
        self.tell_lost();
        if self.lost > 0 || !self.put(line) {
            self.lost += 1;
            self.lost_total += 1;
        }
    }

    /// Tells how many lines were lost, if any were and there is room.
    fn tell_lost(&mut self) {
        if self.lost > 0 && self.put(self.notice().as_bytes()) {
            self.lost = 0;
        }
    }

    /// Lets others see what was lost and what was told.
    fn publish(&self) {
        LOST.store(self.lost_total, Relaxed);
        TOLD.store(self.lost_total - self.lost, Relaxed);
    }

    /// Writes a line unless it would have to wait; says whether all of it was written.
    fn put(&mut self, line: &[u8]) -> bool {
        if self.is_cut {
            if self.way.put(b"\n").is_err() {
                return false;
            }
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.way.put(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => {
                    self.is_cut = rest.len() < line.len();
                    return false;
                }
            }
        }
        true
    }

    fn notice(&self) -> String {
        let record = |lost: std::fmt::Arguments<'_>| {
            let record = Record::builder()
                .level(Level::Warn)
                .target(module_path!())
                .args(lost)
                .build();
            logging::line(self.format, logging::wall_clock(), &record)
        };
        let lost = match self.lost {
            1 => "1 log line was".to_owned(),
            count => format!("{count} log lines were"),
        };
        record(format_args!(
            "{lost} lost: nobody read standard error, or it could not be written"
        ))
    }
}

impl Way {
    fn of(stderr: &Stderr) -> Self {
        let Ok(status) = fstat(stderr) else {
            return Self::Asked;
        };
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Socket => Self::Socket,
            FileType::Fifo | FileType::CharacterDevice => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                // This may be another user's: then it is asked.
                open("/proc/self/fd/2", flags, Mode::empty()).map_or(Self::Asked, Self::Reopened)
            }
            _ => Self::Asked,
        }
    }

    /// Writes some of the bytes, at least one. Without room, or if a file may not grow or a reader
    /// is gone, that is an error.
    fn put(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Reopened(fd) => rustix::io::write(fd, bytes)?,
            Self::Socket => send(stderr(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?,
            Self::Asked => put_if_asked(bytes)?,
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(written)
    }
}

fn put_if_asked(bytes: &[u8]) -> io::Result<usize> {
    let stderr = stderr();
    let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&now))?;
    if !asked[0].revents().contains(PollFlags::OUT) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let chunk = &bytes[..bytes.len().min(CHUNK_BYTES_MAX)];
    Ok(rustix::io::write(&stderr, chunk)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_line_is_not_lines() {
        let mut stderr = Output::new(LogFormat::Text);
        for (lost, says) in [
            (1, " 1 log line was lost: "),
            (2, " 2 log lines were lost: "),
        ] {
            stderr.lost = lost;
            let notice = stderr.notice();
            assert!(notice.contains(says), "{notice}");
        }
    }
}

//! Where the log is written: standard error or a file, without making anybody wait.
//!
//! The loop logs, so a write that blocks would stop everybody. Without room a line is lost and
//! counted, and the count is told as soon as there is room again: with the next line, or when the
//! loop tries ([`catch_up`]). Standard error stays as it is, because other programs write to it too:
//! see [`Way`]. A file has a thread that waits for it: see `log_file.rs`. There is one log in a
//! process, so what it has lost is one figure for all.

use std::fmt;
use std::fs::File;
use std::io::{self, Stderr, Write, stderr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use log::{Level, Record, log_enabled};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::net::{SendFlags, send};

use super::log_file::Queue;
use super::logging::{self, Style};

/// A pipe that has room takes this much at once without blocking.
const CHUNK_BYTES_MAX: usize = 4096;

/// How to write without waiting.
pub(super) enum Way {
    /// To a pipe or a terminal opened once more, for us alone, so that it can be told never to
    /// block. A terminal may have room for some bytes and block at the next.
    Reopened(OwnedFd),
    /// To a socket, which can be told so with every write.
    Socket,
    /// To anything else: a file always has room, and the others are asked before each write.
    Asked,
    /// To a file of our own. A thread does it.
    File(File),
}

/// Where lines go, once the log is open.
enum Sink {
    /// To standard error, at once.
    Direct(Output),
    /// To a file, by its thread.
    Queued(Arc<Queue>),
}

static SINK: Mutex<Option<Sink>> = Mutex::new(None);

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

/// Tells how many lines were lost, if the log takes it by now.
pub(super) fn catch_up() {
    match &mut *lock() {
        Some(Sink::Direct(output)) => {
            output.tell_lost();
        }
        Some(Sink::Queued(queue)) => queue.tell_lost(),
        None => {}
    }
}

/// Opens the log file again, if there is one; says whether there is.
pub(super) fn reopen() -> bool {
    let Some(queue) = queue() else {
        return false;
    };
    queue.reopen();
    true
}

/// The process ends: waits for the last lines.
pub(super) fn finish() {
    if let Some(queue) = queue() {
        queue.finish();
    }
}

/// The queue before the file, if there is one.
fn queue() -> Option<Arc<Queue>> {
    match &*lock() {
        Some(Sink::Queued(queue)) => Some(Arc::clone(queue)),
        Some(Sink::Direct(_)) | None => None,
    }
}

fn lock() -> MutexGuard<'static, Option<Sink>> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes for the log.
pub(super) struct LogOutput;

impl LogOutput {
    /// To standard error.
    pub(super) fn stderr(style: Style) -> Self {
        *lock() = Some(Sink::Direct(Output::new(style, Way::of(&stderr()))));
        Self
    }

    /// To a file.
    pub(super) fn queue(queue: Arc<Queue>) -> Self {
        *lock() = Some(Sink::Queued(queue));
        Self
    }
}

impl Write for LogOutput {
    /// Takes a whole line at a time, and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *lock() {
            Some(Sink::Direct(output)) => output.put_or_lose(line),
            Some(Sink::Queued(queue)) if !queue.push(line) => lose(1),
            Some(Sink::Queued(_)) | None => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lose(lines: u64) {
    LOST.fetch_add(lines, Relaxed);
}

/// One place to write to, and whether the last line there is whole.
pub(super) struct Output {
    style: Style,
    way: Way,
    /// The last line was cut off in the middle.
    is_cut: bool,
}

impl Output {
    pub(super) fn new(style: Style, way: Way) -> Self {
        Self {
            style,
            way,
            is_cut: false,
        }
    }

    /// From now on lines go there.
    pub(super) fn go_to(&mut self, way: Way) {
        self.way = way;
        self.is_cut = false;
    }

    /// Writes a line of level info before the queued lines and before the count of lost lines.
    pub(super) fn say_first(&mut self, message: fmt::Arguments<'_>) {
        if log_enabled!(Level::Info) {
            let line = self.line(Level::Info, message);
            lose(u64::from(!self.put(line.as_bytes()).is_empty()));
        }
    }

    /// Writes whole lines, behind what is to be told of those before them.
    pub(super) fn put_or_lose(&mut self, lines: &[u8]) {
        let rest = match self.tell_lost() {
            true => self.put(lines),
            false => lines,
        };
        lose(rest.iter().filter(|byte| **byte == b'\n').count() as u64);
    }

    /// Tells how many lines were lost, if any were; says whether that is told.
    pub(super) fn tell_lost(&mut self) -> bool {
        let lost = LOST.load(Relaxed) - TOLD.load(Relaxed);
        if lost == 0 {
            return true;
        }
        let notice = self.notice(lost);
        let is_told = self.put(notice.as_bytes()).is_empty();
        if is_told {
            TOLD.fetch_add(lost, Relaxed);
        }
        is_told
    }

    /// Writes lines unless they would have to wait; returns what was not written.
    fn put<'a>(&mut self, lines: &'a [u8]) -> &'a [u8] {
        if self.is_cut {
            if self.way.put(b"\n").is_err() {
                return lines;
            }
            self.is_cut = false;
        }
        let mut rest = lines;
        while !rest.is_empty() {
            match self.way.put(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => {
                    let written = &lines[..lines.len() - rest.len()];
                    self.is_cut = written.last().is_some_and(|byte| *byte != b'\n');
                    break;
                }
            }
        }
        rest
    }

    /// A line of the log about itself.
    fn line(&self, level: Level, message: fmt::Arguments<'_>) -> String {
        let record = Record::builder()
            .level(level)
            .target(module_path!())
            .args(message)
            .build();
        self.style.line(logging::wall_clock(), &record)
    }

    fn notice(&self, lost: u64) -> String {
        let lost = match lost {
            1 => "1 log line was".to_owned(),
            count => format!("{count} log lines were"),
        };
        let why = match self.way {
            Way::File(_) => "the log file could not be written, or not fast enough",
            Way::Reopened(_) | Way::Socket | Way::Asked => {
                "nobody read standard error, or it could not be written"
            }
        };
        self.line(Level::Warn, format_args!("{lost} lost: {why}"))
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
            Self::File(file) => (&mut &*file).write(bytes)?,
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
    use crate::config::LogFormat;

    #[test]
    fn one_lost_line_is_not_lines() {
        let style = Style {
            format: LogFormat::Text,
            has_priorities: false,
        };
        let stderr = Output::new(style, Way::Asked);
        for (lost, says) in [
            (1, " 1 log line was lost: "),
            (2, " 2 log lines were lost: "),
        ] {
            let notice = stderr.notice(lost);
            assert!(notice.contains(says), "{notice}");
        }
    }
}

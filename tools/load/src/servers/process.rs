//! The process of a server that was started here: waits until it is ready, ends it, and shows its
//! last output if it ended by itself or its run broke.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;

use crate::clock::Clock;
use crate::output::eprint;

/// How often, and in which intervals, a server is asked whether it is ready.
const TRIES: usize = 5_000;
const TRY_NS: u64 = 2_000_000;

/// How often, at most, it looks whether a server has ended after a run broke.
const END_TRIES: usize = 100;

/// How much of a server's output is read, from its beginning or its end.
const SAID_BYTES_MAX: usize = 64 * 1024;

/// How many of its last lines are shown.
const LAST_LINES: usize = 10;

/// The size of a server's output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogSize {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
}

/// The process, its output, and the socket file it leaves behind.
pub(super) struct ServerProcess {
    pub(super) program: String,
    pub(super) child: Child,
    pub(super) socket: PathBuf,
    pub(super) said: File,
    pub(super) clock: Rc<Clock>,
    /// The process whose run broke, perhaps because it ended.
    pub(super) broke: Rc<Cell<Option<u32>>>,
}

impl ServerProcess {
    /// Waits until it prints this, and returns the line.
    pub(super) fn says(&mut self, what: &str) -> io::Result<String> {
        self.until(|it| {
            let said = it.said_from(0)?;
            // A line without a line end may be incomplete.
            let mut lines = said.split_inclusive('\n').filter(|it| it.ends_with('\n'));
            Ok(lines.find(|it| it.contains(what)).map(str::to_owned))
        })
    }

    /// Waits until it accepts a connection.
    pub(super) fn listens(&mut self, port: u16) -> io::Result<()> {
        self.until(|_| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()))?;
        Ok(())
    }

    /// Asks again and again, as long as the process runs.
    fn until<T>(&mut self, ask: impl Fn(&Self) -> io::Result<Option<T>>) -> io::Result<T> {
        for _ in 0..TRIES {
            // Looked at before asking, so that what it prints at its end is still read.
            let ended = self.child.try_wait()?;
            if let Some(found) = ask(self)? {
                return Ok(found);
            }
            if ended.is_some() {
                return Err(io::Error::other("did not start"));
            }
            self.clock.rest(TRY_NS)?;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "is not ready"))
    }

    /// Its output from this offset on.
    fn said_from(&self, offset: u64) -> io::Result<String> {
        let mut bytes = vec![0; SAID_BYTES_MAX];
        let length = self.said.read_at(&mut bytes, offset)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// How much it has printed.
    pub(super) fn logged(&self) -> io::Result<LogSize> {
        let mut size = LogSize::default();
        let mut piece = vec![0; SAID_BYTES_MAX];
        loop {
            let length = self.said.read_at(&mut piece, size.bytes)?;
            if length == 0 {
                return Ok(size);
            }
            size.bytes += length as u64;
            size.lines += memchr::memchr_iter(b'\n', &piece[..length]).count() as u64;
        }
    }

    /// How it ended, if it did, and the last lines of its output.
    fn last_words(&mut self) -> io::Result<String> {
        let mut status = self.child.try_wait()?;
        for _ in 0..END_TRIES {
            // The system closes the connections of a process before it reports its end.
            if status.is_some() {
                break;
            }
            self.clock.rest(TRY_NS)?;
            status = self.child.try_wait()?;
        }
        let mut text = match status {
            Some(status) => format!("{} ended by itself: {status}", self.program),
            None => format!("{} still runs", self.program),
        };
        let length = self.said.metadata()?.len();
        let said = self.said_from(length.saturating_sub(SAID_BYTES_MAX as u64))?;
        let lines: Vec<&str> = said.lines().collect();
        if lines.is_empty() {
            text.push_str("; it said nothing");
        } else {
            text.push_str("; it said last:");
        }
        for line in lines.iter().skip(lines.len().saturating_sub(LAST_LINES)) {
            text.push_str("\n  ");
            text.push_str(line);
        }
        Ok(text)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let ended = self.child.try_wait().is_ok_and(|it| it.is_some());
        if (ended || self.broke.get() == Some(self.child.id()))
            && let Ok(words) = self.last_words()
        {
            eprint(&format!("latch-load: {words}"));
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// A file without a name: it is gone once nobody has it open. All writes append.
pub(super) fn nameless_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .append(true)
        .create_new(true)
        .open(path)?;
    fs::remove_file(path)?;
    Ok(file)
}

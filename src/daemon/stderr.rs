//! Standard error, as the log writes it: a reader that does not read costs lines, never time.
//!
//! The loop logs, so a write that blocks would stop everybody. Before each write the system is
//! asked whether there is room; without room the line is lost and counted, and the count is told as
//! soon as there is room again. The descriptor itself stays as it is: other programs write to it
//! too.

use std::io::{self, Write};

use log::{Level, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::logging;
use crate::config::LogFormat;

/// A pipe that has room takes this much at once without blocking.
const CHUNK_BYTES_MAX: usize = 4096;

pub(super) struct Stderr {
    format: LogFormat,
    /// Lines lost since the last one that was written.
    lost: u64,
    /// The last line was cut off in the middle.
    is_cut: bool,
}

impl Stderr {
    pub(super) fn new(format: LogFormat) -> Self {
        Self {
            format,
            lost: 0,
            is_cut: false,
        }
    }

    /// Writes a line unless it would have to wait; says whether all of it was written.
    fn put(&mut self, line: &[u8]) -> bool {
        if self.is_cut {
            if !put_chunk(b"\n") {
                return false;
            }
            self.is_cut = false;
        }
        for (index, chunk) in line.chunks(CHUNK_BYTES_MAX).enumerate() {
            if !put_chunk(chunk) {
                self.is_cut = index > 0;
                return false;
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

impl Write for Stderr {
    /// Takes a whole line at a time, and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lost > 0 && self.put(self.notice().as_bytes()) {
            self.lost = 0;
        }
        if self.lost > 0 || !self.put(line) {
            self.lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the bytes were written. A file that may not grow, or a pipe whose reader is gone, does
/// not take them.
fn put_chunk(chunk: &[u8]) -> bool {
    let stderr = io::stderr();
    let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let has_room =
        poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().contains(PollFlags::OUT);
    has_room && stderr.lock().write_all(chunk).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_line_is_not_lines() {
        let mut stderr = Stderr::new(LogFormat::Text);
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

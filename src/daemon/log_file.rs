//! The log in a file of its own (`--log-file`): a queue, and a thread that waits for the disk.
//!
//! A write to a file can take as long as its disk wants, above all while another file is synced
//! there, and the loop must not wait for that. So it only puts lines into a queue. A queue that is full
//! costs lines, which are counted and told of when there is room (`output.rs`), and so does a disk
//! that is full. On SIGHUP the file is opened again, by its name: whoever rotates logs renames it
//! first. A file that cannot be opened again is no reason to lose lines: the old one is kept.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use log::error;
use rustix::fs::OFlags;

use super::output::{Output, Way};

/// Most bytes that wait for the disk; a line beyond that is lost.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Of a file that is made. Its group may read it, others may not: the log tells who holds what.
const MODE: u32 = 0o640;

/// How long the end of the process waits for the last lines, if the disk does not take them.
const LAST_LINES_WAIT: Duration = Duration::from_secs(2);

/// Opens a file for the log. One that is a pipe must have a reader, and never blocks.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(MODE)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// Lines on their way to a file.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// Everything was done.
    rest: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whole lines.
    lines: Vec<u8>,
    /// Lost lines are to be told of, if they can be by now.
    is_to_tell: bool,
    /// The file is to be opened again.
    is_to_reopen: bool,
    /// The thread is at it.
    is_writing: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_to_tell && !self.is_to_reopen
    }
}

impl Queue {
    /// Begins to write to this file, which has this name.
    pub(super) fn start(mut output: Output, path: PathBuf) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let ours = Arc::clone(&queue);
        thread::Builder::new()
            .name("latchd-log".to_owned())
            .spawn(move || {
                let mut lines = Vec::new();
                loop {
                    ours.write_once(&mut output, &path, &mut lines);
                }
            })?;
        Ok(queue)
    }

    /// Takes a line, unless the queue is full.
    pub(super) fn push(&self, line: &[u8]) -> bool {
        let mut state = self.lock();
        if state.lines.len() + line.len() > QUEUE_BYTES_MAX {
            return false;
        }
        state.lines.extend_from_slice(line);
        self.work.notify_one();
        true
    }

    /// Has lost lines told of, as soon as there is room.
    pub(super) fn tell_lost(&self) {
        self.lock().is_to_tell = true;
        self.work.notify_one();
    }

    /// Has the file opened again, behind the lines that are in the queue by now.
    pub(super) fn reopen(&self) {
        self.lock().is_to_reopen = true;
        self.work.notify_one();
    }

    /// Waits until everything is written, but not for ever.
    pub(super) fn finish(&self) {
        let is_busy = |state: &mut State| state.is_writing || !state.is_idle();
        let waited = self
            .rest
            .wait_timeout_while(self.lock(), LAST_LINES_WAIT, is_busy);
        drop(waited); // what is not written by now is lost with the process
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do, and does it. `lines` is an empty buffer, to be used again.
    fn write_once(&self, output: &mut Output, path: &Path, lines: &mut Vec<u8>) {
        let waited = self.work.wait_while(self.lock(), |state| state.is_idle());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut state.lines, lines);
        let is_to_tell = mem::take(&mut state.is_to_tell);
        let is_to_reopen = mem::take(&mut state.is_to_reopen);
        state.is_writing = true;
        drop(state);
        if !lines.is_empty() {
            output.put_or_lose(lines);
            lines.clear();
        } else if is_to_tell {
            output.tell_lost();
        }
        if is_to_reopen {
            reopen(output, path);
        }
        self.lock().is_writing = false;
        self.rest.notify_all();
    }
}

fn reopen(output: &mut Output, path: &Path) {
    match open(path) {
        Ok(file) => {
            output.go_to(Way::File(file));
            output.say_first(format_args!(
                "the log file {} was opened again",
                path.display()
            ));
        }
        Err(error) => error!(
            "cannot open the log file {} again (--log-file): {error}; \
             the log goes on in the file it had",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::LogFormat;
    use crate::daemon::logging::Style;

    fn output(path: &Path) -> Output {
        let style = Style {
            format: LogFormat::Text,
            has_priorities: false,
        };
        Output::new(style, Way::File(open(path).unwrap()))
    }

    #[test]
    fn a_file_is_made_for_its_user_and_group_and_is_never_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for (line, log) in [("one\n", "one\n"), ("two\n", "one\ntwo\n")] {
            let queue = Queue::start(output(&path), path.clone()).unwrap();
            assert!(queue.push(line.as_bytes()));
            queue.finish();
            assert_eq!(fs::read_to_string(&path).unwrap(), log);
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !MODE, 0, "{mode:o}");
    }

    /// Nobody takes anything out of it.
    #[test]
    fn a_full_queue_takes_no_more() {
        let queue = Queue::default();
        let line = [b'x'; 1 << 16];
        let taken = (0..100).take_while(|_| queue.push(&line)).count();
        assert_eq!(taken, QUEUE_BYTES_MAX / line.len());
        assert!(!queue.push(b"x"));
    }

    #[test]
    fn a_file_is_opened_again_behind_what_was_logged_before() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let queue = Queue::start(output(&path), path.clone()).unwrap();
        queue.push(b"before\n");
        fs::rename(&path, &old).unwrap();
        queue.reopen();
        queue.finish();
        queue.push(b"after\n");
        queue.finish();
        assert_eq!(fs::read_to_string(&old).unwrap(), "before\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
    }

    #[test]
    fn a_pipe_without_a_reader_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(open(&path).is_err());
    }
}

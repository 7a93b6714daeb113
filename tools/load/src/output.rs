//! What this program says: results on standard output, messages on standard error.
//!
//! When the reader of a pipe has left, printing does nothing, and the exit code stays the same;
//! `println!` would panic.

use std::io::{self, Write};

/// Prints part of a report and ends its line.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a message. If that fails, there is nobody left to tell.
pub(crate) fn eprint(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{text}\n").as_bytes());
}

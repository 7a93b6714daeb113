//! What this program says: results on standard output, messages on standard error.
//!
//! A reader that has left wants no more, and is no reason to end differently: `println!` would
//! panic.

use std::io::{self, Write};

/// Part of a report, with the end of its line.
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

/// A message; where it cannot be written, nobody can be told.
pub(crate) fn eprint(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{text}\n").as_bytes());
}

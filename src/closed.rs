//! Which of the standard descriptors were closed when this process began.
//!
//! Rust's runtime opens `/dev/null` in place of a closed one before `main`, and nothing tells that one from a
//! `/dev/null` that the caller has opened for reading and writing. So [`note_closed`] runs earlier.

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "the daemon asks for its standard output only")
)]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::stdio::{stderr, stdin, stdout};

/// One bit for each descriptor.
static CLOSED: AtomicU8 = AtomicU8::new(0);

const STDIN: u8 = 0;
const STDOUT: u8 = 1;

fn standard() -> [(u8, BorrowedFd<'static>); 3] {
    [(STDIN, stdin()), (STDOUT, stdout()), (2, stderr())]
}

/// The C library calls what is in this section before it starts Rust's runtime.
#[expect(
    unsafe_code,
    reason = "a section is named by an attribute that counts as unsafe; the function is safe code"
)]
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

/// Looks at the standard descriptors. It runs before Rust's runtime and uses only system calls.
extern "C" fn note_closed() {
    for (number, fd) in standard() {
        if fcntl_getfd(fd) == Err(Errno::BADF) {
            CLOSED.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

/// Whether standard input was closed.
pub(crate) fn is_input_closed() -> bool {
    is_closed(STDIN)
}

/// Why nothing can be written to standard output: it was closed, or is open for reading only. Rust's
/// runtime takes such a write for a success.
pub(crate) fn why_no_output() -> Option<&'static str> {
    match is_closed(STDOUT) {
        true => Some("it is closed"),
        false => {
            let mode = fcntl_getfl(stdout()).ok()? & OFlags::ACCMODE;
            (mode == OFlags::RDONLY).then_some("it is open for reading only")
        }
    }
}

fn is_closed(number: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << number) != 0
}

/// Those that were closed, as a word for another `latch`, which has `/dev/null` there.
pub(crate) fn word() -> String {
    CLOSED.load(Ordering::Relaxed).to_string()
}

/// Has those of the word closed again in the program that this process becomes.
pub(crate) fn close_on_exec(word: &str) {
    let closed: u8 = word.parse().unwrap_or(0);
    for (number, fd) in standard() {
        if closed & (1 << number) != 0 {
            let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
        }
    }
}

//! latch: the command-line client. No logic.

use std::process::ExitCode;

/// Runs before Rust's runtime: only then is it known which standard descriptors the caller has closed.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "a section is named by an attribute that counts as unsafe; the function is safe code"
)]
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = latchd::cli::note_closed;

fn main() -> ExitCode {
    latchd::cli::main()
}

//! latch: the command-line client. No logic.

use std::process::ExitCode;

fn main() -> ExitCode {
    latchd::cli::main()
}

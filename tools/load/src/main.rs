//! latch-load, the program; `lib.rs` is what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    latch_load::main()
}

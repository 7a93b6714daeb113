//! The programs of `tools/` as processes. Cargo builds them as examples for `cargo test`, but not
//! for `cargo test --test NAME`: then say `cargo build --examples` first.

use std::path::Path;
use std::process::Command;

/// A tool, to be run.
pub(crate) fn tool(name: &str) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_latchd")).with_file_name("examples");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is not built: cargo build --examples",
        path.display()
    );
    Command::new(path)
}

//! A child process that ends with this program, even if this program is killed.
//!
//! This program starts itself once more. The copy asks the system for a signal when its parent
//! ends, and then becomes the server, which inherits that.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

/// The command that becomes `server`, with its arguments and variables, and ends with this process.
pub(crate) fn command(server: &Command) -> io::Result<Command> {
    let mut child = Command::new(std::env::current_exe()?);
    child
        .args(["child", "--parent", &process::id().to_string(), "--"])
        .arg(server.get_program())
        .args(server.get_args())
        .envs({ server.get_envs() }.filter_map(|(name, value)| Some((name, value?))));
    Ok(child)
}

/// Becomes that program; returns only if that fails.
pub(crate) fn become_server(parent: u32, words: &[OsString]) -> io::Result<()> {
    let [program, arguments @ ..] = words else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    follow(parent)?;
    let error = Command::new(program).args(arguments).exec();
    let what = format!("cannot start {}: {error}", program.display());
    Err(io::Error::new(error.kind(), what))
}

/// SIGTERM lets a server clean up behind it.
#[cfg(target_os = "linux")]
fn follow(parent: u32) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have ended before the request.
    match getppid() {
        Some(now) if now.as_raw_nonzero().get().unsigned_abs() == parent => Ok(()),
        _ => Err(io::Error::other("who started this has ended")),
    }
}

/// On other systems a server ends only if this program ends it.
#[cfg(not(target_os = "linux"))]
fn follow(_: u32) -> io::Result<()> {
    Ok(())
}

//! What differs between systems: terminals, names, closed descriptors, and the commands that run a command.
//!
//! `linux` has these commands and knows closed descriptors; elsewhere `absent` refuses the commands. `unix` and
//! `windows` have the rest.

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(target_os = "linux"))]
pub(crate) use self::absent::*;
#[cfg(target_os = "linux")]
pub(crate) use self::linux::*;
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;

use super::exit::Fail;

/// A thread that ends with the process.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Fail> {
    let thread = std::thread::Builder::new().spawn(work);
    thread
        .map(drop)
        .map_err(|error| Fail::system("start a thread", error))
}

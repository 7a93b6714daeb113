//! Linux, macOS and other Unix systems.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nix::unistd::{Uid, User};

/// How wide the terminal is behind standard error, if it says so.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// The name of this user in the user database, and the number.
pub(crate) fn user_names() -> Vec<OsString> {
    let uid = Uid::current();
    let in_database = User::from_uid(uid).ok().flatten();
    let name = in_database.map(|user| user.name.into());
    name.into_iter().chain([uid.to_string().into()]).collect()
}

pub(crate) fn host_name() -> OsString {
    OsStr::from_bytes(rustix::system::uname().nodename().to_bytes()).to_owned()
}

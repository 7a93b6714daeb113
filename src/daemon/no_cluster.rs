//! What stands in the place of `cluster.rs` in a daemon that was built without the feature `cluster`.

use std::io;

use super::{DaemonError, EarlyStop, SharedManager, failed_to};
use crate::config::{Config, Exit};
use crate::net::Listener;

/// Such a daemon is no member.
pub(super) fn serve(
    config: &Config,
    name: &str,
    _handed: Vec<Listener>,
    _manager: Option<SharedManager>,
    _early_stop: EarlyStop,
) -> Result<(), DaemonError> {
    check(config, name)
}

/// Says why.
pub(super) fn check(_config: &Config, name: &str) -> Result<(), DaemonError> {
    let why = format!("--cluster {name}: this latchd was built without the feature `cluster`");
    Err(DaemonError {
        exit: Exit::Config,
        ..failed_to("be a member of a cluster")(io::Error::other(why))
    })
}

/// Says why not.
pub fn reshard(config: &Config, _from: u32, _to: u32) -> Exit {
    let name = config.cluster.name.as_deref().unwrap_or_default();
    match check(config, name) {
        Ok(()) => Exit::Success,
        Err(error) => {
            eprintln!("latchd: {error}");
            error.exit
        }
    }
}

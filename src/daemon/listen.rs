//! Opening the sockets that the settings ask for, and what to say when that fails.
//!
//! `net::Listener` says what is wrong; here an operator is told what to do about it, and the
//! supervisor whether a restart can help.

use std::io::{self, ErrorKind};

use super::DaemonError;
use crate::config::{Config, Exit};
use crate::net::Listener;

/// Listens on the TCP port, and on the unix socket if there is one.
pub(super) fn listen(config: &Config) -> Result<Vec<Listener>, DaemonError> {
    let address = config.listen_addr();
    let at = format!("{address} (--host, --port)");
    let mut listeners = vec![Listener::tcp(address).map_err(failed_at(at, about_tcp))?];
    if let Some(path) = &config.unix_socket {
        let at = format!("{} (--unix-socket)", path.display());
        let unix = Listener::unix(path, config.unix_socket_mode);
        listeners.push(unix.map_err(failed_at(at, about_unix))?);
    }
    Ok(listeners)
}

/// What to say and how to end when listening there fails.
fn failed_at(
    at: String,
    about: fn(ErrorKind) -> (Exit, &'static str),
) -> impl FnOnce(io::Error) -> DaemonError {
    move |cause| {
        let (exit, advice) = about(cause.kind());
        DaemonError {
            attempt: format!("cannot listen on {at}"),
            cause,
            advice,
            exit,
        }
    }
}

fn about_tcp(kind: ErrorKind) -> (Exit, &'static str) {
    match kind {
        ErrorKind::AddrInUse => (
            Exit::InUse,
            "stop the daemon that listens there or choose another --port",
        ),
        // The network may not be up yet, so this is not a fault of the settings.
        ErrorKind::AddrNotAvailable => (
            Exit::Failure,
            "this machine has no such address: choose another --host",
        ),
        ErrorKind::PermissionDenied => (
            Exit::Failure,
            "a port below 1024 needs a privilege: choose another --port",
        ),
        _ => (Exit::Failure, ""),
    }
}

fn about_unix(kind: ErrorKind) -> (Exit, &'static str) {
    match kind {
        ErrorKind::AddrInUse => (
            Exit::InUse,
            "stop that daemon or choose another --unix-socket",
        ),
        ErrorKind::AlreadyExists => (Exit::Config, "remove it or choose another --unix-socket"),
        ErrorKind::NotFound => (
            Exit::Config,
            "create its directory or choose another --unix-socket",
        ),
        _ => (Exit::Config, "choose another --unix-socket"),
    }
}

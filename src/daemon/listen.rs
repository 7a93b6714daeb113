//! Opening the sockets that the settings ask for, and what to say when that fails.
//!
//! `net::Listener` says what is wrong; here an operator is told what to do about it, and the
//! supervisor whether a restart can help.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;

use log::warn;

use super::DaemonError;
use super::tls::TlsFiles;
use crate::config::{Config, Exit, HttpPort};
use crate::net::Listener;
use crate::server::Door;

/// Listens on the TCP ports and unix sockets of both protocols; those of the line protocol come
/// first. The ports speak TLS, if there are files for that.
pub(super) fn listen(
    config: &Config,
    tls: Option<&TlsFiles>,
) -> Result<Vec<Listener>, DaemonError> {
    let encrypted = |listener| match tls {
        Some(tls) => tls.over(listener),
        None => listener,
    };
    let mut listeners = vec![encrypted(tcp(Door::Line, config.listen_addr())?)];
    listeners.extend(unix(config, Door::Line, config.unix_socket.as_deref())?);
    listeners.extend(http_over_tcp(config)?.map(encrypted));
    listeners.extend(unix(
        config,
        Door::Http,
        config.http_unix_socket.as_deref(),
    )?);
    Ok(listeners)
}

/// A port that nobody asked for may be taken: locks matter more than the dashboard.
fn http_over_tcp(config: &Config) -> Result<Option<Listener>, DaemonError> {
    let at = |port| SocketAddr::new(config.host, port);
    match config.http_port {
        HttpPort::Off => Ok(None),
        HttpPort::Asked(port) => tcp(Door::Http, at(port)).map(Some),
        HttpPort::IfFree(port) => match tcp(Door::Http, at(port)) {
            Err(error) if error.exit == Exit::InUse => {
                warn!(
                    "HTTP is not served: {} is in use; choose another --http-port, \
                     or --http-port off if that is meant",
                    at(port)
                );
                Ok(None)
            }
            result => result.map(Some),
        },
    }
}

fn tcp(door: Door, address: SocketAddr) -> Result<Listener, DaemonError> {
    let flag = match door {
        Door::Line => "--port",
        Door::Http => "--http-port",
    };
    let failed = failed_at(format!("{address} (--host, {flag})"), flag, about_tcp);
    Listener::tcp(door, address).map_err(failed)
}

fn unix(config: &Config, door: Door, path: Option<&Path>) -> Result<Option<Listener>, DaemonError> {
    let Some(path) = path else {
        return Ok(None);
    };
    let flag = match door {
        Door::Line => "--unix-socket",
        Door::Http => "--http-unix-socket",
    };
    let failed = failed_at(format!("{} ({flag})", path.display()), flag, about_unix);
    let listener = Listener::unix(door, path, config.unix_socket_mode).map_err(failed)?;
    Ok(Some(listener))
}

/// What to say and how to end when listening there, as this option says, fails.
fn failed_at(
    at: String,
    flag: &str,
    about: fn(ErrorKind, &str) -> (Exit, String),
) -> impl FnOnce(io::Error) -> DaemonError {
    move |cause| {
        let (exit, advice) = about(cause.kind(), flag);
        DaemonError {
            attempt: format!("cannot listen on {at}"),
            cause,
            advice,
            exit,
        }
    }
}

fn about_tcp(kind: ErrorKind, flag: &str) -> (Exit, String) {
    match kind {
        ErrorKind::AddrInUse => (
            Exit::InUse,
            format!("stop the daemon that listens there or choose another {flag}"),
        ),
        // The network may not be up yet, so this is not a fault of the settings.
        ErrorKind::AddrNotAvailable => (
            Exit::Failure,
            "this machine has no such address: choose another --host".to_owned(),
        ),
        ErrorKind::PermissionDenied => (
            Exit::Failure,
            format!("a port below 1024 needs a privilege: choose another {flag}"),
        ),
        _ => (Exit::Failure, String::new()),
    }
}

fn about_unix(kind: ErrorKind, flag: &str) -> (Exit, String) {
    let (exit, first) = match kind {
        ErrorKind::AddrInUse => (Exit::InUse, "stop that daemon or "),
        ErrorKind::AlreadyExists => (Exit::Config, "remove it or "),
        ErrorKind::NotFound => (Exit::Config, "create its directory or "),
        _ => (Exit::Config, ""),
    };
    (exit, format!("{first}choose another {flag}"))
}

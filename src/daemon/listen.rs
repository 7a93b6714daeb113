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
/// first. The ports speak TLS, if there are files for that. What a service manager has opened takes
/// the place of what the settings say: if it has opened any socket of a protocol, its port is not
/// opened besides (unless it is one for HTTP that somebody asked for), and if it has opened a unix
/// socket, no other one is.
pub(super) fn listen(
    config: &Config,
    tls: Option<&TlsFiles>,
    handed: Vec<Listener>,
) -> Result<Vec<Listener>, DaemonError> {
    let has = |door| handed.iter().any(|it| it.door() == door);
    let has_port = |door| handed.iter().any(|it| it.door() == door && !it.is_unix());
    let has_unix = |door| handed.iter().any(|it| it.door() == door && it.is_unix());
    let mut listeners = Vec::new();
    if !has(Door::Line) {
        listeners.push(tcp(Door::Line, config.listen_addr())?);
    }
    if !has_unix(Door::Line) {
        listeners.extend(unix(config, Door::Line, config.unix_socket.as_deref())?);
    }
    let is_asked_for = matches!(config.http_port, HttpPort::Asked(_));
    if !has(Door::Http) || (is_asked_for && !has_port(Door::Http)) {
        listeners.extend(http_over_tcp(config)?);
    }
    if !has_unix(Door::Http) {
        let path = config.http_unix_socket.as_deref();
        listeners.extend(unix(config, Door::Http, path)?);
    }
    listeners.extend(handed);
    listeners.sort_by_key(|it| (it.door() == Door::Http, it.is_unix()));
    if let Some(tls) = tls {
        let encrypted = |it: Listener| if it.is_unix() { it } else { tls.over(it) };
        listeners = listeners.into_iter().map(encrypted).collect();
    }
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

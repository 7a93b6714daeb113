//! Sockets that the service manager has opened (socket activation): which protocol is spoken there.
//!
//! A name says so: `latchd` and `latchd-unix` speak lines, `latchd-http` and `latchd-http-unix` HTTP.
//! A socket without a name, or with that of its unit, speaks lines. Whether it is a port or a unix
//! socket is seen by looking at it.

use std::io;

use listenfd::ListenFd;

use super::Supervision;
use crate::config::Exit;
use crate::daemon::DaemonError;
use crate::net::Listener;
use crate::server::Door;

/// Most sockets that are taken; more are a mistake.
const SOCKETS_MAX: usize = 64;

const NAMES: [(&str, Door); 4] = [
    ("latchd", Door::Line),
    ("latchd-unix", Door::Line),
    ("latchd-http", Door::Http),
    ("latchd-http-unix", Door::Http),
];

/// The sockets that were opened for this process, if any were. To be called once, before there are
/// threads: what is taken is removed from the environment.
pub(in crate::daemon) fn handed_over(
    supervision: &Supervision,
) -> Result<Vec<Listener>, DaemonError> {
    let Some(count) = &supervision.listen_fds else {
        return Ok(Vec::new());
    };
    let count: usize = count
        .parse()
        .ok()
        .filter(|count| *count <= SOCKETS_MAX)
        .ok_or_else(|| cannot_take("LISTEN_FDS", "it is not a number of sockets"))?;
    let names = supervision.listen_names.as_deref();
    let names: Vec<&str> =
        names.map_or_else(|| vec![""; count], |names| names.split(':').collect());
    if names.len() != count {
        return Err(cannot_take(
            "LISTEN_FDNAMES",
            "there are more or fewer names than sockets",
        ));
    }
    let mut sockets = ListenFd::from_env();
    let mut listeners = Vec::with_capacity(count);
    for (index, name) in names.into_iter().enumerate() {
        let place = match name {
            "" => format!("socket {}", index + 1),
            name => format!("socket {} ({name:?})", index + 1),
        };
        let door = door(name).ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            cannot_take(&place, &format!("names are {names} (FileDescriptorName=)"))
        })?;
        let listener = take(&mut sockets, index, door)
            .map_err(|error| cannot_take(&place, &error.to_string()))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// What is spoken at a socket of this name. systemd calls one that nobody has named like its unit.
fn door(name: &str) -> Option<Door> {
    if name.is_empty() || name == "unknown" || name.ends_with(".socket") {
        return Some(Door::Line);
    }
    NAMES.iter().find(|row| row.0 == name).map(|row| row.1)
}

fn take(sockets: &mut ListenFd, index: usize, door: Door) -> io::Result<Listener> {
    match sockets.take_tcp_listener(index) {
        Ok(Some(socket)) => return Listener::of_tcp(door, socket),
        Ok(None) => return Err(io::Error::other("there is no such descriptor")),
        Err(_) => {} // it may be another kind
    }
    match sockets.take_unix_listener(index) {
        Ok(Some(socket)) => Listener::of_unix(door, socket),
        Ok(None) => Err(io::Error::other("there is no such descriptor")),
        Err(_) => Err(io::Error::other(
            "it is neither a TCP nor a unix stream socket",
        )),
    }
}

fn cannot_take(what: &str, why: &str) -> DaemonError {
    DaemonError {
        attempt: format!("cannot take over {what} from the service manager"),
        cause: io::Error::other(why.to_owned()),
        advice: "check the socket unit".to_owned(),
        exit: Exit::Config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_spoken() {
        for (name, spoken) in [
            ("latchd", Some(Door::Line)),
            ("latchd-unix", Some(Door::Line)),
            ("latchd-http", Some(Door::Http)),
            ("latchd-http-unix", Some(Door::Http)),
            ("", Some(Door::Line)),
            ("unknown", Some(Door::Line)),
            ("mine.socket", Some(Door::Line)),
            ("http", None),
            ("latchd-https", None),
        ] {
            assert_eq!(door(name), spoken, "{name}");
        }
    }

    #[test]
    fn numbers_and_names_have_to_fit() {
        for (count, names) in [
            ("x", None),
            ("-1", None),
            ("65", None),
            ("99999999999999999999", None),
            ("1", Some("latchd:latchd-http")),
            ("2", Some("latchd")),
        ] {
            let supervision = Supervision {
                listen_fds: Some(count.to_owned()),
                listen_names: names.map(str::to_owned),
                ..Supervision::default()
            };
            let error = handed_over(&supervision).unwrap_err();
            assert_eq!(error.exit, Exit::Config, "{count} {names:?}");
        }
    }
}

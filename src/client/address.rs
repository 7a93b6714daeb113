//! Where servers are, and which of them has a key.
//!
//! Several servers share the keys: a key belongs to the one whose place in the list is the CRC-32 of the
//! key modulo their number, as dflockd's clients have it. So all clients must have the same list in the
//! same order. In each place of it there is one server, or a cluster of several (`cluster.rs`). Never connects.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::clock;
use super::error::Error;
use super::locked;
use crate::base::Nanos;
use crate::shard::shard_of;

/// The port of the line protocol.
pub(super) const PORT: u16 = 6388;

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    /// As it was given.
    text: String,
    pub(super) door: Door,
    /// What its name was last resolved to. The renewal thread takes these and never asks for a name,
    /// because that may take long.
    known: Mutex<Vec<SocketAddr>>,
    /// When it may be resolved for the renewal thread again; never while somebody is at it.
    resolve_at: Mutex<Nanos>,
}

/// How long the renewal thread takes the addresses of a name as they are, at least.
const RESOLVE_EVERY: Duration = Duration::from_secs(2);

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(PathBuf),
}

/// One place to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    Net(SocketAddr),
    Unix(PathBuf),
}

impl Server {
    /// `host:port`, `host`, `unix:/path` or `tls://host:port`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Misuse(format!("server {text:?}: {why}"));
        let door = if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong("there is no path behind unix:"));
            }
            Door::Unix(path.into())
        } else {
            let (is_tls, rest) = match text.strip_prefix("tls://") {
                Some(rest) => (true, rest),
                None => (false, text.strip_prefix("tcp://").unwrap_or(text)),
            };
            let (host, port) = split_port(rest).ok_or_else(|| {
                wrong(
                    "not host:port, unix:/path or tls://host:port; an IPv6 address takes brackets",
                )
            })?;
            let host = host.to_owned();
            match is_tls {
                true => Door::Tls { host, port },
                false => Door::Tcp { host, port },
            }
        };
        if matches!(door, Door::Tls { .. }) && cfg!(not(feature = "tls")) {
            return Err(wrong("this program was built without TLS (feature tls)"));
        }
        Ok(Self::at(text.to_owned(), door))
    }

    fn at(text: String, door: Door) -> Self {
        // Whoever never asks for a name finds an address that needs none.
        let known = match &door {
            Door::Tcp { host, port } | Door::Tls { host, port } => host
                .parse()
                .map(|ip: IpAddr| vec![SocketAddr::from((ip, *port))]),
            Door::Unix(_) => Ok(Vec::new()),
        };
        Self {
            text,
            door,
            known: Mutex::new(known.unwrap_or_default()),
            resolve_at: Mutex::new(Nanos(0)),
        }
    }

    /// The server at `host:port`, over TLS or not, as another one has told of it.
    pub(super) fn told(address: &str, is_tls: bool) -> Option<Self> {
        let (host, port) = split_port(address)?;
        let host = host.to_owned();
        Some(match is_tls {
            true => Self::at(format!("tls://{address}"), Door::Tls { host, port }),
            false => Self::at(address.to_owned(), Door::Tcp { host, port }),
        })
    }

    /// Whether it is at this address, whatever is spoken there.
    pub(super) fn is_at(&self, address: &str) -> bool {
        match (&self.door, split_port(address)) {
            (Door::Tcp { host, port } | Door::Tls { host, port }, Some((told_host, told_port))) => {
                *port == told_port && host.eq_ignore_ascii_case(told_host)
            }
            _ => false,
        }
    }

    /// Whether nothing that is said to it leaves this machine.
    pub(super) fn is_local(&self) -> bool {
        match &self.door {
            Door::Unix(_) => true,
            Door::Tcp { host, .. } | Door::Tls { host, .. } => {
                let known = locked(&self.known);
                let is_known_so = !known.is_empty() && known.iter().all(|it| it.ip().is_loopback());
                is_known_so || is_local(host)
            }
        }
    }

    /// Where to connect to, in this order. May ask for a name, which may take long.
    pub(super) fn resolve(&self) -> io::Result<Vec<Spot>> {
        let (host, port) = match &self.door {
            Door::Unix(path) => return Ok(vec![Spot::Unix(path.clone())]),
            Door::Tcp { host, port } | Door::Tls { host, port } => (host, *port),
        };
        let found: Vec<_> = (host.as_str(), port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            ));
        }
        locked(&self.known).clone_from(&found);
        Ok(found.into_iter().map(Spot::Net).collect())
    }

    /// The same as it was last found. Never waits.
    pub(super) fn known(&self) -> Vec<Spot> {
        match &self.door {
            Door::Unix(path) => vec![Spot::Unix(path.clone())],
            _ => locked(&self.known).iter().copied().map(Spot::Net).collect(),
        }
    }

    /// Whether it has a name that should be resolved again now. Whoever is told so does it, and then says
    /// [`has_resolved`](Self::has_resolved).
    pub(super) fn begins_to_resolve(&self) -> bool {
        let is_name = match &self.door {
            Door::Tcp { host, .. } | Door::Tls { host, .. } => host.parse::<IpAddr>().is_err(),
            Door::Unix(_) => false,
        };
        let mut resolve_at = locked(&self.resolve_at);
        let begins = is_name && *resolve_at <= clock::now();
        if begins {
            *resolve_at = Nanos::NEVER;
        }
        begins
    }

    pub(super) fn has_resolved(&self) {
        *locked(&self.resolve_at) = clock::after(RESOLVE_EVERY);
    }

    pub(super) fn down(&self, why: io::Error) -> Error {
        let server = self.to_string();
        Error::Down { server, why }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether this is a name or an address of this machine, wherever it is asked for.
pub(super) fn is_local(host: &str) -> bool {
    let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost")
}

/// The host of `host:port`.
pub(super) fn host_of(address: &str) -> Option<&str> {
    split_port(address).map(|(host, _)| host)
}

/// Host and port; an address of IPv6 is in brackets, and 6388 is the port if there is none.
fn split_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return None,
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(digits) if digits.bytes().all(|it| it.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None => PORT,
    };
    let is_name = !host.is_empty() && !host.contains(|it: char| it.is_whitespace() || it == '/');
    is_name.then_some((host, port))
}

/// The place in the list of the server that has this key.
pub(super) fn shard(key: &[u8], servers: usize) -> usize {
    let count = u32::try_from(servers).unwrap_or(u32::MAX).max(1);
    shard_of(key, count) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_one_of_the_servers() {
        assert_eq!(shard(b"my-key", 3), 2);
        assert_eq!(shard(b"my-key", 1), 0);
        assert_eq!(shard(b"my-key", 0), 0);
    }

    #[test]
    fn a_name_is_resolved_again_but_not_all_the_time() {
        let server = Server::parse("localhost:7000").unwrap();
        let stale = SocketAddr::from(([192, 0, 2, 1], 7000));
        locked(&server.known).push(stale); // as it was once
        assert!(server.begins_to_resolve());
        assert!(!server.begins_to_resolve(), "somebody is at it");
        server.resolve().unwrap();
        assert!(!server.known().contains(&Spot::Net(stale)));
        server.has_resolved();
        assert!(!server.begins_to_resolve(), "it was just now");
        *locked(&server.resolve_at) = clock::now();
        assert!(server.begins_to_resolve());
        for text in ["127.0.0.1:7000", "[::1]:7000", "unix:/run/latchd.sock"] {
            assert!(!Server::parse(text).unwrap().begins_to_resolve(), "{text}");
        }
    }

    #[test]
    fn servers_are_read_in_every_spelling() {
        let tcp = |host: &str, port| {
            let host = host.to_owned();
            Door::Tcp { host, port }
        };
        for (text, door) in [
            ("localhost", tcp("localhost", 6388)),
            ("localhost:7000", tcp("localhost", 7000)),
            ("tcp://10.0.0.1:7", tcp("10.0.0.1", 7)),
            ("[::1]:7000", tcp("::1", 7000)),
            ("[::1]", tcp("::1", 6388)),
            (
                "unix:/run/latchd.sock",
                Door::Unix("/run/latchd.sock".into()),
            ),
        ] {
            assert_eq!(Server::parse(text).unwrap().door, door, "{text}");
        }
        for text in [
            "", ":1", "::1", "a:b", "a:+1", "a:65536", "a b:1", "unix:", "[::1", "[::1]7",
            "http://a",
        ] {
            assert!(Server::parse(text).is_err(), "{text:?}");
        }
    }
}

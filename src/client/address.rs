//! Where servers are, and which of them has a key.
//!
//! Several servers share the keys: a key belongs to the one whose place in the list is the CRC-32 of the
//! key modulo their number, as dflockd's clients have it. So all clients must have the same list in the
//! same order. Never connects.

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
        Ok(Self {
            text: text.to_owned(),
            door,
            known: Mutex::default(),
            resolve_at: Mutex::new(Nanos(0)),
        })
    }

    /// A list of them, separated by commas.
    pub(super) fn parse_all(text: &str) -> Result<Vec<Self>, Error> {
        text.split(',').map(|it| Self::parse(it.trim())).collect()
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
    (crc32(key) % count) as usize
}

/// CRC-32 as IEEE and zlib have it. A key is short, and is hashed once for each request.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        let crc = crc ^ u32::from(*byte);
        (0..8).fold(crc, |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0xedb8_8320,
            _ => crc >> 1,
        })
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_other_clients_look_for_them() {
        for (key, crc, of_3, of_5) in [
            ("my-key", 0xd6e3_3ac1, 2, 2),
            ("foo", 0x8c73_6521, 2, 4),
            ("a", 0xe8b7_be43, 0, 2),
            ("🔒", 0x5a41_8b00, 0, 4),
        ] {
            assert_eq!(crc32(key.as_bytes()), crc, "{key}");
            assert_eq!(shard(key.as_bytes(), 3), of_3, "{key}");
            assert_eq!(shard(key.as_bytes(), 5), of_5, "{key}");
            assert_eq!(shard(key.as_bytes(), 1), 0);
        }
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the usual check value");
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
        assert_eq!(Server::parse_all("a:1, unix:/b ,c").unwrap().len(), 3);
        assert!(Server::parse_all("a:1,,c").is_err());
    }
}

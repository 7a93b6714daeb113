//! The address of a server: `latchd://host:port`, `unix://path`, `redis://host:port` and so on.
//!
//! Parses it, connects, and hides whether a socket is TCP or unix. Knows no protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use crate::servers::tls::TlsStream;

/// How long one connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Which protocol the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// latchd's and dflockd's.
    Line,
    /// One that answers requests of latchd's sizes, see `ceiling`.
    Ceiling,
    /// Redis'.
    Resp,
    /// latchd's other door.
    Http,
}

/// Where it listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A server to load.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) protocol: Protocol,
    /// The first of them, if there are several.
    pub(crate) address: Address,
    /// The members of a cluster with `+` between them, as the client that programs use takes them.
    pub(crate) members: Option<String>,
    /// Where the same server speaks HTTP too, if it does.
    pub(crate) http: Option<SocketAddr>,
    /// latchd reads whole turns and answers at their end, so a client can prove the order of its
    /// queue; a server with many threads promises no such order. And of those with the line
    /// protocol, only latchd promises that fences grow.
    pub(crate) in_turns: bool,
    /// Whether it speaks TLS, with the certificate of `servers::tls`.
    pub(crate) is_encrypted: bool,
    /// Whether every connection has to show the secret first, see `run::codec::SECRET`.
    pub(crate) guarded: bool,
    /// The process, if it was started here: its processor time and memory can be read.
    pub(crate) pid: Option<u32>,
}

impl Target {
    /// Reads an address as people write it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("{text}: say it like latchd://127.0.0.1:6388"))?;
        let members = match (scheme, rest.split_once('+')) {
            ("latchd", Some(_)) => Some(rest.to_owned()),
            _ => None,
        };
        let rest = match &members {
            Some(members) => members.split('+').next().unwrap_or_default(),
            None => rest,
        };
        let tcp = |port: u16| {
            let whole = if rest.contains(':') {
                rest.to_owned()
            } else {
                format!("{rest}:{port}")
            };
            let mut found = whole
                .to_socket_addrs()
                .map_err(|error| format!("{text}: {error}"))?;
            let first = found.next().ok_or_else(|| format!("{text}: no address"));
            Ok::<_, String>(Address::Tcp(first?))
        };
        let (protocol, address, in_turns) = match scheme {
            "latchd" => (Protocol::Line, tcp(6388)?, true),
            "dflockd" => (Protocol::Line, tcp(6388)?, false),
            "unix" => (Protocol::Line, Address::Unix(rest.into()), true),
            "redis" => (Protocol::Resp, tcp(6379)?, false),
            "ceiling" => (Protocol::Ceiling, tcp(6389)?, false),
            "http" => (Protocol::Http, tcp(6389)?, true),
            _ => {
                return Err(format!(
                    "{text}: say latchd://, http://, unix://, dflockd://, redis:// or ceiling://"
                ));
            }
        };
        Ok(Self {
            protocol,
            address,
            members,
            http: None,
            in_turns,
            is_encrypted: false,
            guarded: false,
            pid: None,
        })
    }

    /// The name of the server.
    pub(crate) const fn name(&self) -> &'static str {
        match self.protocol {
            Protocol::Line if self.in_turns => "latchd",
            Protocol::Line => "dflockd",
            Protocol::Ceiling => "ceiling",
            Protocol::Resp => "redis",
            Protocol::Http => "http",
        }
    }

    /// The address as people write it; a unix socket is taken for latchd's.
    pub(crate) fn url(&self) -> String {
        let scheme = self.name();
        match &self.address {
            Address::Tcp(address) => format!("{scheme}://{address}"),
            Address::Unix(path) => format!("unix://{}", path.display()),
        }
    }

    /// The same server by its other door, if it has one.
    pub(crate) fn by_http(&self) -> Option<Self> {
        Some(Self {
            protocol: Protocol::Http,
            address: Address::Tcp(self.http?),
            http: None,
            ..self.clone()
        })
    }

    /// Opens a connection that never blocks.
    pub(crate) fn connect(&self) -> io::Result<Stream> {
        self.open()
            .map_err(|error| io::Error::new(error.kind(), self.unreachable(&error)))
    }

    /// Begins to open a connection that never blocks; writing succeeds once it is open.
    pub(crate) fn begin_connect(&self) -> io::Result<Stream> {
        match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(*address)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }

    fn open(&self) -> io::Result<Stream> {
        match &self.address {
            Address::Tcp(address) => {
                let stream = std::net::TcpStream::connect_timeout(address, CONNECT_MAX)?;
                stream.set_nodelay(true)?;
                if self.is_encrypted {
                    return TlsStream::open(stream).map(|it| Stream::Tls(Box::new(it)));
                }
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(TcpStream::from_std(stream)))
            }
            Address::Unix(path) => {
                let stream = StdUnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(UnixStream::from_std(stream)))
            }
        }
    }

    /// What went wrong and, unless the server was started here, what to do about it.
    fn unreachable(&self, error: &io::Error) -> String {
        let address = match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => path.display().to_string(),
        };
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::NotFound => "no such socket".to_owned(),
            io::ErrorKind::TimedOut => "no answer".to_owned(),
            _ => error.to_string(),
        };
        let advice = match self.pid {
            Some(_) => "",
            None => {
                "; start a server there or correct the address, or leave out --target, and latchd \
                 is started for you"
            }
        };
        format!("cannot reach {address}: {why}{advice}")
    }
}

/// A connection, TCP or unix, or TCP with TLS over it.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixStream),
}

impl Stream {
    /// Closes it so that its port is free at once: whoever comes and leaves very often would soon
    /// have none left.
    pub(crate) fn abandon(self) {
        let socket = match &self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Tls(stream) => SockRef::from(&stream.socket),
            Self::Unix(_) => return,
        };
        // If that is refused, it is closed as any other.
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Stream {
    fn register(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(to, token, interest),
            Self::Tls(stream) => stream.socket.register(to, token, interest),
            Self::Unix(stream) => stream.register(to, token, interest),
        }
    }

    fn reregister(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(to, token, interest),
            Self::Tls(stream) => stream.socket.reregister(to, token, interest),
            Self::Unix(stream) => stream.reregister(to, token, interest),
        }
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(from),
            Self::Tls(stream) => stream.socket.deregister(from),
            Self::Unix(stream) => stream.deregister(from),
        }
    }
}

//! The bytes of one connection to etcd: TCP, or TLS over it. Every step ends at a deadline.
//!
//! A deadline is a moment and not a pause: what is left until then is set anew before each wait, so a peer
//! that sends one byte now and then does not get more time than one that sends none. Never knows what the
//! bytes mean.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[cfg(feature = "tls")]
use super::tls::TlsStream;

/// A connection to one member.
pub(super) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects, and does not encrypt.
    pub(super) fn open(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        connect(address, deadline).map(Self::Plain)
    }

    /// Sends all of it. If this fails some of it may have been sent.
    pub(super) fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        match self {
            Self::Plain(socket) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let sent = write_some(socket, deadline, |socket| socket.write(rest))?;
                    rest = &rest[sent..];
                }
                Ok(())
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.send(bytes, deadline),
        }
    }

    /// Receives some; an error if there is nothing more to come. A timeout loses nothing.
    pub(super) fn receive(&mut self, into: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let received = match self {
            Self::Plain(socket) => read_some(socket, deadline, |socket| socket.read(into))?,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.receive(into, deadline)?,
        };
        match received {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            received => Ok(received),
        }
    }
}

pub(super) fn connect(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&address, left(deadline)?)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Reads once, and waits for it until the deadline.
pub(super) fn read_some(
    socket: &mut TcpStream,
    deadline: Instant,
    mut read: impl FnMut(&mut TcpStream) -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.set_read_timeout(Some(left(deadline)?))?;
        match read(socket) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(as_timeout(error)),
            received => return received,
        }
    }
}

/// Writes once, and waits for it until the deadline.
pub(super) fn write_some(
    socket: &mut TcpStream,
    deadline: Instant,
    mut write: impl FnMut(&mut TcpStream) -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.set_write_timeout(Some(left(deadline)?))?;
        match write(socket) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(as_timeout(error)),
            sent => return sent,
        }
    }
}

/// The time that is left; none is an error.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// A socket says that a read timed out in two ways.
fn as_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// Deadlines of calls are measured here, and nobody's lease: those are counted by whoever asks.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread that waits for a socket measures how long it waits"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

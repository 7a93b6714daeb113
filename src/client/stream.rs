//! One socket that never blocks: TCP, a unix socket, or TLS over TCP.
//!
//! Whoever waits does so in `poll`, up to a deadline of its own. Never knows what the bytes mean.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, sockopt};

use super::address::Spot;
use super::clock;
use super::sys::{self, UnixStream};
use crate::base::Nanos;

/// A connection that is silent for so long is asked whether it is still there, so often, and so
/// often in vain.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMES: u32 = 3;

/// Bytes that nobody has acknowledged for so long are the end of a connection, too: without this the kernel
/// would try for a quarter of an hour.
#[cfg(target_os = "linux")]
const UNSENT_MS_MAX: u32 = 30_000;

/// A connected socket, or one that is about to be.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::TlsStream>),
}

impl Stream {
    /// Begins to connect, and does not wait for it.
    pub(super) fn open(spot: &Spot) -> io::Result<Self> {
        match spot {
            Spot::Net(address) => {
                let family = match address.is_ipv4() {
                    true => AddressFamily::INET,
                    false => AddressFamily::INET6,
                };
                let socket = sys::open_tcp(family)?;
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_EVERY)?;
                sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_TIMES)?;
                #[cfg(target_os = "linux")]
                sockopt::set_tcp_user_timeout(&socket, UNSENT_MS_MAX)?;
                sys::begin(net::connect(&socket, address))?;
                Ok(Self::Tcp(socket))
            }
            Spot::Unix(path) => Ok(Self::Unix(sys::open_unix(path)?)),
        }
    }

    /// Whether it is connected by now; an error if it cannot be. To be asked when it is writable.
    pub(super) fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(self.as_fd())?.map_err(io::Error::from)
    }

    /// Waits until there is something to read, or room to write if that is wanted, but no longer
    /// than to the deadline.
    pub(super) fn wait(&self, writes: bool, deadline: Nanos) -> io::Result<()> {
        let wanted = match writes {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        loop {
            let left = clock::nap(deadline);
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(self, wanted)];
            match poll(&mut fds, Some(&clock::timespec(left))) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there is room to write, or an error to be had, up to now.
    pub(super) fn is_writable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self, PollFlags::OUT)];
        match poll(&mut fds, Some(&clock::timespec(Duration::ZERO))) {
            Err(Errno::INTR) => Ok(false),
            result => Ok(result? > 0),
        }
    }

    /// Whether nothing has come and the peer has not hung up, up to now.
    pub(super) fn is_quiet(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        matches!(
            poll(&mut fds, Some(&clock::timespec(Duration::ZERO))),
            Ok(0)
        )
    }

    /// Whether bytes are still to be written that are not in the caller's hands any more.
    pub(super) fn wants_write(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.wants_write(),
        }
    }
}

/// Waits until one of these has something to read, but no longer than to the deadline.
pub(super) fn wait_for_any<T: AsFd>(of: &[&T], deadline: Nanos) -> io::Result<()> {
    loop {
        let left = clock::nap(deadline);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds: Vec<_> = of
            .iter()
            .map(|it| PollFd::new(*it, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&clock::timespec(left))) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

//! A connected socket, TCP or unix, as the server's [`Transport`].

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsRawFd, RawFd};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::sockopt::socket_peercred;

use crate::server::{Host, Transport};

/// One accepted connection, without TLS.
#[derive(Debug)]
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl Transport for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn shutdown_write(&mut self) {
        // This fails if the peer has already left, and then there is nothing more to tell it.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .map_or_else(|_| "a lost peer".to_owned(), |it| it.to_string()),
            Self::Unix(_) => "a unix socket peer".to_owned(),
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(_) => self.peer(),
            Self::Unix(_) => "unix".to_owned(),
        }
    }

    fn host(&self) -> Host {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .map_or(Host::Unknown, |it| host_of(it.ip())),
            Self::Unix(stream) => {
                socket_peercred(stream).map_or(Host::Unknown, |it| Host::User(it.uid.as_raw()))
            }
        }
    }
}

impl Source for Socket {
    fn register(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(to, token, interest),
            Self::Unix(stream) => stream.register(to, token, interest),
        }
    }

    fn reregister(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(to, token, interest),
            Self::Unix(stream) => stream.reregister(to, token, interest),
        }
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(from),
            Self::Unix(stream) => stream.deregister(from),
        }
    }
}

/// An address of IPv4 is the same host also where it comes in that of IPv6.
fn host_of(address: IpAddr) -> Host {
    match address.to_canonical() {
        IpAddr::V4(address) => Host::V4(address.octets()),
        IpAddr::V6(address) => {
            let [net @ .., _, _, _, _, _, _, _, _] = address.octets();
            Host::V6(net)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_of_ipv4_or_a_network_of_ipv6() {
        for (address, host) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
            ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ] {
            assert_eq!(host_of(address.parse().unwrap()).to_string(), host);
        }
    }
}

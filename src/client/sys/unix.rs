//! Linux, macOS and other Unix systems.

use std::io;
use std::net::TcpStream;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

pub(in crate::client) use std::os::unix::net::UnixStream;

/// A socket that never blocks and that no child inherits.
pub(in crate::client) fn open_tcp(family: AddressFamily) -> io::Result<TcpStream> {
    Ok(socket(family)?.into())
}

/// Begins to connect, and does not wait for it.
pub(in crate::client) fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::UNIX)?;
    begin(net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket.into())
}

#[cfg(target_os = "linux")]
fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
    Ok(net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A process that another thread starts between the two calls inherits the socket.
#[cfg(not(target_os = "linux"))]
fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = net::socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// What the beginning of a connection has said.
pub(in crate::client) fn begin(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        // A unix socket whose backlog is full: no event says when it has room.
        Err(error) => Err(error.into()),
    }
}

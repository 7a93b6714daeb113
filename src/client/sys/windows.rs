//! Windows: sockets of Winsock. It has no unix sockets here.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fd::{AsSocket, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType};

/// A socket that never blocks and that no child inherits.
pub(in crate::client) fn open_tcp(family: AddressFamily) -> io::Result<TcpStream> {
    // Winsock has to be told once that it is used.
    static STARTED: OnceLock<Result<(), Errno>> = OnceLock::new();
    (*STARTED.get_or_init(|| net::wsa_startup().map(drop)))?;
    let inherited = TcpStream::from(net::socket(family, SocketType::STREAM, None)?);
    // Children inherit a new socket, and do not inherit the copy.
    let socket = inherited.try_clone()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// None can be had.
pub(in crate::client) fn open_unix(_path: &Path) -> io::Result<UnixStream> {
    let why = "latchd's clients have no unix sockets on Windows: use an address and a port";
    Err(io::Error::new(ErrorKind::Unsupported, why))
}

/// What the beginning of a connection has said.
pub(in crate::client) fn begin(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A socket that there is none of.
#[derive(Debug)]
pub(in crate::client) enum UnixStream {}

impl AsSocket for UnixStream {
    fn as_socket(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

impl Read for UnixStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for UnixStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}

//! Sockets that wait for peers: a TCP port, a unix socket, and which protocol is spoken there.
//! `accept.rs` decides when to accept.
//!
//! A unix socket gets its permissions before it listens. If there is already something at its path,
//! it is removed only if it is a socket that no process serves any more; nothing else is touched.
//! Of several daemons that try at the same time one gets it: see `lock_file.rs`.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use socket2::{Domain, Protocol, SockAddr, SockRef, TcpKeepalive, Type};

use super::lock_file::lock_of;
use super::{Socket, Stream};
use crate::ephemeral::Guard;
use crate::server::{Door, TransportMemory};
#[cfg(feature = "tls")]
use crate::tls::{Offer, Tls};

/// How many connections the kernel completes before we accept them; more peers have to try again.
const BACKLOG: i32 = 4096;

/// What the kernel keeps for one connection each way, about. Left alone it lets that grow to megabytes:
/// 3,000 clients that ask for values faster than they read them took all memory the system has for TCP.
/// Then it drops packets of everybody, and whoever misses one waits 200 ms until it is sent again.
const SOCKET_BUFFER_BYTES: usize = 128 * 1024;

/// How long a TCP peer may be silent before the kernel asks whether it is still there, and the time
/// between two such questions; dflockd's clients are used to this.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    /// What those who connect here speak.
    door: Door,
    kind: ListenerKind,
    /// What they are offered, if they have to speak TLS.
    #[cfg(feature = "tls")]
    offer: Option<Offer>,
}

/// Where it listens, and how.
#[derive(Debug)]
enum ListenerKind {
    /// On a TCP port.
    Tcp(TcpListener),
    /// On a path.
    Unix(UnixSocket),
}

/// A unix socket and its file, which is removed together with the socket if we have made it.
#[derive(Debug)]
struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: a file at the path that is not the one we made is not removed at the end.
    identity: Option<(u64, u64)>,
    /// Nobody else takes the path while we have it. Dropped after the file is removed.
    _lock: Option<Guard>,
}

impl Listener {
    fn new(door: Door, kind: ListenerKind) -> Self {
        Self {
            door,
            kind,
            #[cfg(feature = "tls")]
            offer: None,
        }
    }

    /// Whoever connects here from now on has to speak TLS, and is offered this.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, offer: Offer) -> Self {
        self.offer = Some(offer);
        self
    }

    /// Whether whoever connects here has to speak TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.offer.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Listens on a TCP address. Port 0 takes any free one; [`Listener`] displays the real one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn tcp(door: Door, address: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        // Every connection inherits these.
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let kind = ListenerKind::Tcp(TcpListener::from_std(socket.into()));
        Ok(Self::new(door, kind))
    }

    /// Listens on a path, with these permissions from the first moment.
    ///
    /// # Errors
    /// `AddrInUse` when a live socket is at the path, `AlreadyExists` when something else than a
    /// socket is there; otherwise what the kernel says.
    pub fn unix(door: Door, path: &Path, mode: u32) -> io::Result<Self> {
        let lock = lock_of(path)?;
        remove_dead_socket(path)?;
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        // Bound but not listening: nobody can connect before the permissions are right.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        let identity = identity(path);
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = UnixListener::from_std(socket.into());
        let kind = ListenerKind::Unix(UnixSocket {
            listener,
            path: path.to_owned(),
            identity,
            _lock: Some(lock),
        });
        Ok(Self::new(door, kind))
    }

    /// Takes over a TCP socket that somebody else has opened, and that listens.
    ///
    /// # Errors
    /// When it does not listen, or cannot be used.
    pub fn of_tcp(door: Door, socket: std::net::TcpListener) -> io::Result<Self> {
        must_listen(&SockRef::from(&socket))?;
        // Every connection inherits these.
        SockRef::from(&socket).set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_nonblocking(true)?;
        let kind = ListenerKind::Tcp(TcpListener::from_std(socket));
        Ok(Self::new(door, kind))
    }

    /// Takes over a unix socket that somebody else has opened, and that listens. Its file stays.
    ///
    /// # Errors
    /// When it does not listen, or cannot be used.
    pub fn of_unix(door: Door, socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
        must_listen(&SockRef::from(&socket))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let path = match (address.as_pathname(), address.as_abstract_name()) {
            (Some(path), _) => path.to_owned(),
            (None, Some(name)) => format!("@{}", name.escape_ascii()).into(),
            (None, None) => "a socket without a name".into(),
        };
        let kind = ListenerKind::Unix(UnixSocket {
            listener: UnixListener::from_std(socket),
            path,
            identity: None,
            _lock: None,
        });
        Ok(Self::new(door, kind))
    }

    /// Accepts the next peer, and says the number of its descriptor. What its connection keeps is
    /// counted in `memory`.
    ///
    /// # Errors
    /// `WouldBlock` when nobody is waiting; otherwise what the kernel says.
    #[cfg(feature = "tls")]
    pub fn accept(&self, memory: &TransportMemory) -> io::Result<(Stream, RawFd)> {
        let socket = self.accept_socket()?;
        let number = socket.as_raw_fd();
        let stream = match &self.offer {
            None => Stream::Plain(socket),
            Some(offer) => {
                let terms = offer.terms(self.door);
                Stream::Tls(Box::new(Tls::new(socket, terms, memory.clone())))
            }
        };
        Ok((stream, number))
    }

    /// Accepts the next peer, and says the number of its descriptor. A socket keeps nothing that
    /// counts.
    ///
    /// # Errors
    /// `WouldBlock` when nobody is waiting; otherwise what the kernel says.
    #[cfg(not(feature = "tls"))]
    pub fn accept(&self, _memory: &TransportMemory) -> io::Result<(Stream, RawFd)> {
        let socket = self.accept_socket()?;
        let number = socket.as_raw_fd();
        Ok((socket, number))
    }

    /// The number that the next descriptor of this process will have.
    pub(super) fn lowest_free_descriptor(&self) -> io::Result<RawFd> {
        Ok(fcntl_dupfd_cloexec(self.as_fd(), 0)?.as_raw_fd())
    }

    /// Whether a peer waits to be accepted. At the limit of descriptors `accept` does not say so.
    pub(super) fn has_waiting(&self) -> bool {
        let mut listener = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut listener, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            ListenerKind::Tcp(listener) => listener.as_fd(),
            ListenerKind::Unix(socket) => socket.listener.as_fd(),
        }
    }

    fn accept_socket(&self) -> io::Result<Socket> {
        match &self.kind {
            ListenerKind::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                let keep_alive = TcpKeepalive::new()
                    .with_time(KEEP_ALIVE)
                    .with_interval(KEEP_ALIVE);
                // Both fail only on a connection that has already ended; reading will show it.
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keep_alive);
                Ok(Socket::Tcp(stream))
            }
            ListenerKind::Unix(socket) => socket
                .listener
                .accept()
                .map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    /// What those who connect here speak.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door
    }

    /// Whether it is a unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        matches!(self.kind, ListenerKind::Unix(_))
    }

    /// The address of a TCP listener.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.kind {
            ListenerKind::Tcp(listener) => listener.local_addr().ok(),
            ListenerKind::Unix(_) => None,
        }
    }
}

/// As an operator would write it: `127.0.0.1:6388`, `/run/latchd.sock`.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ListenerKind::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(f),
                Err(error) => error.fmt(f),
            },
            ListenerKind::Unix(socket) => socket.path.display().fmt(f),
        }
    }
}

impl Source for Listener {
    fn register(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match &mut self.kind {
            ListenerKind::Tcp(listener) => listener.register(to, token, interest),
            ListenerKind::Unix(socket) => socket.listener.register(to, token, interest),
        }
    }

    fn reregister(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        match &mut self.kind {
            ListenerKind::Tcp(listener) => listener.reregister(to, token, interest),
            ListenerKind::Unix(socket) => socket.listener.reregister(to, token, interest),
        }
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        match &mut self.kind {
            ListenerKind::Tcp(listener) => listener.deregister(from),
            ListenerKind::Unix(socket) => socket.listener.deregister(from),
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn must_listen(socket: &SockRef<'_>) -> io::Result<()> {
    if socket.is_listener()? {
        return Ok(());
    }
    let why = "it does not listen: connections themselves (Accept=yes) cannot be taken over";
    Err(io::Error::new(ErrorKind::InvalidInput, why))
}

/// Removes a socket that a daemon left behind when it was killed.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        let why = "it exists and is not a socket";
        return Err(io::Error::new(ErrorKind::AlreadyExists, why));
    }
    // Without waiting: the one who serves it may be stopped, with a full backlog.
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => {
            let why = format!("it may be in use by a running daemon, asking failed: {error}");
            Err(io::Error::new(ErrorKind::AddrInUse, why))
        }
        Ok(_) => {
            let why = "it is in use by a running daemon";
            Err(io::Error::new(ErrorKind::AddrInUse, why))
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path)
        .ok()
        .map(|it| (it.dev(), it.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn of_many_that_try_together_one_takes_a_dead_socket() {
        const TRIES: usize = 8;
        let dir = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = dir.path().join(round.to_string());
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file behind
            let (start, end) = (Barrier::new(TRIES), Barrier::new(TRIES));
            let attempt = || {
                start.wait();
                let listener = Listener::unix(Door::Line, &path, 0o600);
                end.wait(); // nobody lets go before everybody has tried
                let has_it = listener.is_ok();
                if has_it {
                    UnixStream::connect(&path).unwrap();
                }
                has_it
            };
            let winners = thread::scope(|scope| {
                let attempts: Vec<_> = (0..TRIES).map(|_| scope.spawn(attempt)).collect();
                let results = attempts.into_iter().map(|it| it.join().unwrap());
                results.filter(|has_it| *has_it).count()
            });
            assert_eq!(winners, 1, "round {round}");
            assert_eq!(
                fs::read_dir(dir.path()).unwrap().count(),
                0,
                "files are left"
            );
        }
    }

    #[test]
    fn a_stopped_server_with_a_full_backlog_is_left_alone_without_waiting_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let _fills_the_backlog = UnixStream::connect(&path).unwrap();
        let error = Listener::unix(Door::Line, &path, 0o600).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn a_unix_socket_has_its_mode_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::unix(Door::Line, &path, 0o640).unwrap();
        assert_eq!(mode(&path), 0o640);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_socket_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file behind
        assert!(path.exists());
        Listener::unix(Door::Line, &path, 0o600).unwrap();
    }

    #[test]
    fn a_live_socket_a_file_and_a_link_are_never_touched() {
        let dir = tempfile::tempdir().unwrap();
        let live = dir.path().join("live");
        let first = Listener::unix(Door::Line, &live, 0o600).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).unwrap();
        for (path, kind) in [
            (&live, ErrorKind::AddrInUse),
            (&file, ErrorKind::AlreadyExists),
            (&link, ErrorKind::AlreadyExists),
        ] {
            let error = Listener::unix(Door::Line, path, 0o600).unwrap_err();
            assert_eq!(error.kind(), kind, "{}: {error}", path.display());
            assert!(
                fs::symlink_metadata(path).is_ok(),
                "{} is gone",
                path.display()
            );
        }
        UnixStream::connect(&live).unwrap();
        drop(first);
    }

    #[test]
    fn a_socket_that_replaced_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let ours = Listener::unix(Door::Line, &path, 0o600).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
        drop(theirs);
    }

    #[test]
    fn the_kernel_keeps_only_so_much_for_a_connection() {
        let listener = Listener::tcp(Door::Line, "127.0.0.1:0".parse().unwrap()).unwrap();
        let _peer = std::net::TcpStream::connect(listener.address().unwrap()).unwrap();
        let accepted = loop {
            match listener.accept_socket() {
                Ok(Socket::Tcp(stream)) => break stream,
                Ok(Socket::Unix(_)) => unreachable!("the listener speaks TCP"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        };
        // Linux doubles what it is told, for its own records.
        let accepted = SockRef::from(&accepted);
        for bytes in [accepted.send_buffer_size(), accepted.recv_buffer_size()] {
            assert!((SOCKET_BUFFER_BYTES..=2 * SOCKET_BUFFER_BYTES).contains(&bytes.unwrap()));
        }
    }

    #[test]
    fn what_somebody_else_has_opened_is_taken_over_if_it_listens_and_its_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let listener = Listener::of_unix(Door::Http, socket).unwrap();
        assert!(listener.is_unix() && listener.door() == Door::Http);
        assert_eq!(listener.to_string(), path.to_str().unwrap());
        drop(listener);
        assert!(path.exists());

        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener::of_tcp(Door::Line, socket).unwrap();
        assert_eq!(listener.address(), Some(address));
        let _peer = std::net::TcpStream::connect(address).unwrap();

        let bound = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        bound
            .bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into())
            .unwrap();
        assert!(Listener::of_tcp(Door::Line, bound.into()).is_err());
    }

    #[test]
    fn an_ipv6_address_is_shown_in_brackets() {
        let Ok(listener) = Listener::tcp(Door::Line, "[::1]:0".parse().unwrap()) else {
            eprintln!("skipped: this machine has no IPv6 loopback");
            return;
        };
        assert!(listener.to_string().starts_with("[::1]:"), "{listener}");
    }
}

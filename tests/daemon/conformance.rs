//! Every transcript over real sockets, TCP, unix and TLS, against the real loop on a thread of its own.
//!
//! Only the clock is ours, so `+60s` takes no time. Nothing here sleeps; whoever waits for an
//! answer that does not come fails after ten seconds.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use latchd::base::Millis;
use latchd::config::Config;
use latchd::net::{Clock, Listener, Reactor, Remote, RunError};
use latchd::server::Door;
use socket2::SockRef;
use tempfile::TempDir;

use crate::common::{self, Ending, Heard, World};

#[test]
fn every_transcript_is_held_to_over_tcp() {
    common::hold_all(|config| Sockets::new(config, Place::Tcp), false);
}

/// A client that has agreed on keys sees no difference.
#[cfg(feature = "tls")]
#[test]
fn every_transcript_is_held_to_over_tls() {
    let keys = tls::Keys::new();
    common::hold_all(
        |config| Sockets::new(config, Place::Tls(keys.clone())),
        false,
    );
}

#[test]
fn every_transcript_is_held_to_over_unix_sockets() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("latchd.sock");
    common::hold_all(
        |config| Sockets::new(config, Place::Unix(path.clone())),
        false,
    );
}

/// Longest an answer may take that has to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where to listen.
enum Place {
    Tcp,
    #[cfg(feature = "tls")]
    Tls(tls::Keys),
    Unix(PathBuf),
}

/// Where to connect to.
enum Address {
    Tcp(SocketAddr),
    #[cfg(feature = "tls")]
    Tls(SocketAddr, tls::Keys),
    Unix(PathBuf),
}

struct Sockets {
    address: Address,
    clock: Arc<AtomicU64>,
    /// The clock was moved and the loop has not been told.
    clock_moved: bool,
    remote: Remote,
    /// The loop's thread, as the system calls it.
    loop_id: i32,
    /// Says so when the loop has ended.
    ended: Receiver<Result<(), RunError>>,
    has_ended: bool,
    thread: Option<JoinHandle<()>>,
    clients: Vec<Client>,
}

struct Client {
    /// `None` after closing, or if there was nobody to connect to.
    stream: Option<Stream>,
    lines: Vec<u8>,
    /// The end was read.
    is_over: bool,
    /// The end was told.
    is_told: bool,
}

enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tls::Client>),
    Unix(UnixStream),
}

impl Sockets {
    fn new(config: &Config, place: Place) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let (config, hands) = (config.clone(), Clock::Manual(Arc::clone(&clock)));
        let (tell_start, start) = mpsc::channel();
        let (tell_end, ended) = mpsc::channel();
        // The server is made where it lives: it has nothing that another thread could use.
        let serve = move || {
            let (listener, address) = match place {
                Place::Tcp => {
                    let listener =
                        Listener::tcp(Door::Line, "127.0.0.1:0".parse().unwrap()).unwrap();
                    let address = Address::Tcp(listener.address().unwrap());
                    (listener, address)
                }
                #[cfg(feature = "tls")]
                Place::Tls(keys) => {
                    let listener =
                        Listener::tcp(Door::Line, "127.0.0.1:0".parse().unwrap()).unwrap();
                    let address = Address::Tls(listener.address().unwrap(), keys.clone());
                    (listener.with_tls(keys.offer()), address)
                }
                Place::Unix(path) => {
                    let listener = Listener::unix(Door::Line, &path, 0o600).unwrap();
                    (listener, Address::Unix(path))
                }
            };
            let server = common::server(&config);
            let reactor = Reactor::new(server, vec![listener], hands).unwrap();
            let id = rustix::thread::gettid().as_raw_pid();
            tell_start.send((reactor.remote(), address, id)).unwrap();
            let end = reactor.run().map(drop);
            // The other end is gone if the conversation has failed.
            let _ = tell_end.send(end);
        };
        let thread = thread::Builder::new()
            .name("latchd".to_owned())
            .spawn(serve)
            .unwrap();
        let (remote, address, loop_id) = start.recv_timeout(PATIENCE).unwrap();
        Self {
            address,
            clock,
            clock_moved: false,
            remote,
            loop_id,
            ended,
            has_ended: false,
            thread: Some(thread),
            clients: Vec::new(),
        }
    }

    /// Waits until the loop sleeps. Its last answer was read, but it may still be about to look at
    /// the clock to know how long to sleep: a clock moved now would wake it before the next step
    /// does.
    fn until_asleep(&self) {
        let path = format!("/proc/self/task/{}/stat", self.loop_id);
        #[expect(clippy::disallowed_methods, reason = "patience is real time")]
        let began = Instant::now();
        // The state stands behind the name, which is in parentheses. No thread, no loop to wait
        // for.
        while let Ok(stat) = fs::read_to_string(&path)
            && !stat.rsplit_once(") ").unwrap().1.starts_with('S')
        {
            assert!(began.elapsed() < PATIENCE, "the loop does not come to rest");
            thread::yield_now();
        }
    }
}

impl World for Sockets {
    fn connect(&mut self) -> usize {
        let stream = match &self.address {
            Address::Tcp(address) => TcpStream::connect(address).map(Stream::Tcp),
            #[cfg(feature = "tls")]
            Address::Tls(address, keys) => {
                tls::Client::connect(*address, keys).map(|it| Stream::Tls(Box::new(it)))
            }
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        };
        self.clients.push(Client {
            is_over: stream.is_err(),
            stream: stream.ok(),
            lines: Vec::new(),
            is_told: false,
        });
        self.clients.len() - 1
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        if let Some(stream) = &mut self.clients[client].stream {
            // Whoever was closed meanwhile will read so.
            let _ = stream.send(bytes);
        }
        // It wakes the loop, which then sees the clock too.
        self.clock_moved = false;
    }

    fn end(&mut self, client: usize, how: Ending) {
        let slot = &mut self.clients[client].stream;
        if how == Ending::HalfClose {
            slot.as_mut().unwrap().half_close();
        } else if let Some(stream) = slot.take()
            && how == Ending::Reset
        {
            stream.reset();
        }
        self.clock_moved = false;
    }

    fn pass(&mut self, span: Millis) {
        self.until_asleep();
        self.clock.fetch_add(span.nanos(), Ordering::SeqCst);
        self.clock_moved = true;
    }

    /// The loop runs by itself; only a clock that was moved has to be pointed out.
    fn turn(&mut self) {
        if self.clock_moved {
            self.remote.wake().unwrap();
            self.clock_moved = false;
        }
    }

    fn hear(&mut self, client: usize, due: bool) -> Option<Heard> {
        self.clients[client].hear(due)
    }

    fn shut_down(&mut self) {
        self.remote.stop().unwrap();
    }

    fn has_stopped(&mut self) -> bool {
        if !self.has_ended
            && let Ok(end) = self.ended.recv_timeout(PATIENCE)
        {
            end.unwrap();
            self.has_ended = true;
        }
        self.has_ended
    }

    fn finish(self) {}
}

/// Also after a failure: the next conversation needs the path of the unix socket.
impl Drop for Sockets {
    fn drop(&mut self) {
        // A second time ends it at once. Both fail only if it has ended already.
        let _ = self.remote.stop();
        let _ = self.remote.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the loop has panicked");
        }
    }
}

impl Client {
    fn hear(&mut self, due: bool) -> Option<Heard> {
        loop {
            if let Some(end) = self.lines.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.lines.drain(..=end).collect();
                return Some(Heard::Line(
                    String::from_utf8_lossy(&line[..end]).into_owned(),
                ));
            }
            if self.is_over {
                assert!(self.lines.is_empty(), "half a line: {:?}", self.lines);
                let told = std::mem::replace(&mut self.is_told, true);
                return (!told).then_some(Heard::End);
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.as_mut()?.receive(&mut bytes, due) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.lines.extend_from_slice(&bytes[..count]),
                Err(error) => match error.kind() {
                    // Not in time, or not yet.
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return None,
                    io::ErrorKind::Interrupted => {}
                    _ => self.is_over = true,
                },
            }
        }
    }
}

impl Stream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(client) => client.send(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn receive(&mut self, into: &mut [u8], wait: bool) -> io::Result<usize> {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(&*stream),
            #[cfg(feature = "tls")]
            Self::Tls(client) => SockRef::from(&client.socket),
            Self::Unix(stream) => SockRef::from(&*stream),
        };
        socket.set_nonblocking(!wait)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let received = match self {
            Self::Tcp(stream) => stream.read(into),
            #[cfg(feature = "tls")]
            Self::Tls(client) => client.receive(into),
            Self::Unix(stream) => stream.read(into),
        };
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false)?,
            #[cfg(feature = "tls")]
            Self::Tls(client) => client.socket.set_nonblocking(false)?,
            Self::Unix(stream) => stream.set_nonblocking(false)?,
        }
        received
    }

    fn half_close(&mut self) {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            #[cfg(feature = "tls")]
            Self::Tls(client) => client.half_close(),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
        .unwrap();
    }

    /// A unix socket knows no reset: there it is just closed.
    fn reset(self) {
        let stream = match &self {
            Self::Tcp(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Tls(client) => &client.socket,
            Self::Unix(_) => return,
        };
        SockRef::from(stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
}

/// A client that speaks TLS, and a server's certificate that it knows.
#[cfg(feature = "tls")]
mod tls {
    use std::io::{self, Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::sync::Arc;

    use latchd::tls::{self, Files, Offer};
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::crypto::ring;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    #[derive(Clone)]
    pub(crate) struct Keys {
        server: tls::Keys,
        client: Arc<ClientConfig>,
    }

    impl Keys {
        pub(crate) fn new() -> Self {
            let names = ["localhost".to_owned()];
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
            let (cert_pem, key_pem) = (cert.pem(), signing_key.serialize_pem());
            let files = Files {
                cert: cert_pem.as_bytes(),
                key: key_pem.as_bytes(),
                client_ca: None,
            };
            let mut roots = RootCertStore::empty();
            roots.add(cert.der().clone()).unwrap();
            let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            Self {
                server: tls::Keys::read(files, 1_800_000_000).unwrap(),
                client: Arc::new(client),
            }
        }

        pub(crate) fn offer(&self) -> Offer {
            Offer::new(self.server.clone())
        }
    }

    pub(crate) struct Client {
        pub(crate) socket: TcpStream,
        session: ClientConnection,
    }

    impl Client {
        /// Ends with the server's ticket, which says that the server, too, has finished the
        /// handshake: until then it may close this connection to make room for the next one.
        /// A connection that is closed before will read so.
        pub(crate) fn connect(address: SocketAddr, keys: &Keys) -> io::Result<Self> {
            let mut socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            let name = ServerName::try_from("localhost").unwrap();
            let mut session = ClientConnection::new(Arc::clone(&keys.client), name).unwrap();
            while session.tls13_tickets_received() == 0 {
                match session.complete_io(&mut socket) {
                    Ok((1.., _)) => {}
                    Ok((0, _)) | Err(_) => break,
                }
            }
            Ok(Self { socket, session })
        }

        pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            for part in bytes.chunks(16 * 1024) {
                self.session.writer().write_all(part)?;
                while self.session.wants_write() {
                    self.session.write_tls(&mut self.socket)?;
                }
            }
            Ok(())
        }

        pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
            loop {
                match self.session.reader().read(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
                self.session.read_tls(&mut self.socket)?;
                self.session
                    .process_new_packets()
                    .map_err(io::Error::other)?;
            }
        }

        pub(crate) fn half_close(&mut self) -> io::Result<()> {
            self.session.send_close_notify();
            self.send(b"")?;
            while self.session.wants_write() {
                self.session.write_tls(&mut self.socket)?;
            }
            self.socket.shutdown(Shutdown::Write)
        }
    }

    /// As programs do that close a connection: the end is announced.
    impl Drop for Client {
        fn drop(&mut self) {
            self.session.send_close_notify();
            let _ = self.session.write_tls(&mut self.socket);
        }
    }
}

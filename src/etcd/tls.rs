//! TLS to a member of etcd, over a socket that blocks.
//!
//! The handshake ends before anything is asked, or the deadline does: whatever goes wrong until then, nothing
//! was sent. Whom to trust and what to show is made elsewhere, of the operator's files, and may be
//! replaced at any time; connections that are open keep what they began with.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::stream::{connect, read_some, write_some};

/// Whom to trust and what to show, for connections from now on. Clones are the same.
#[derive(Clone)]
pub(super) struct Terms(Arc<Mutex<Arc<ClientConfig>>>);

impl Terms {
    pub(super) fn new(config: Arc<ClientConfig>) -> Self {
        Self(Arc::new(Mutex::new(config)))
    }

    pub(super) fn replace(&self, config: Arc<ClientConfig>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn now(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether a certificate can be for this host.
pub(super) fn is_name(host: &str) -> bool {
    ServerName::try_from(bare(host)).is_ok()
}

/// An address of IPv6 without the brackets that a URL has.
fn bare(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// A connection in TLS, behind its handshake.
pub(super) struct TlsStream {
    session: ClientConnection,
    socket: TcpStream,
}

impl TlsStream {
    /// Connects and shakes hands with the one that has a certificate for this host.
    pub(super) fn open(
        address: SocketAddr,
        host: &str,
        terms: &Terms,
        deadline: Instant,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(bare(host).to_owned());
        let name = name.map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))?;
        let session = ClientConnection::new(terms.now(), name).map_err(io::Error::other)?;
        let socket = connect(address, deadline)?;
        let mut stream = Self { session, socket };
        stream.flush(deadline)?;
        while stream.session.is_handshaking() {
            if stream.take_in(deadline)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(stream)
    }

    pub(super) fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // It takes only so much before it has to be sent.
            let taken = self.session.writer().write(rest)?;
            rest = &rest[taken..];
            self.flush(deadline)?;
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, into: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.take_in(deadline)?;
                }
                result => return result,
            }
        }
    }

    /// Receives some bytes, understands them, and sends what has to be said about them. 0: the peer has
    /// ended.
    fn take_in(&mut self, deadline: Instant) -> io::Result<usize> {
        let Self { session, socket } = self;
        let received = read_some(socket, deadline, |socket| session.read_tls(socket))?;
        if let Err(why) = session.process_new_packets() {
            let _ = self.flush(deadline); // it may want to know
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        self.flush(deadline)?;
        Ok(received)
    }

    fn flush(&mut self, deadline: Instant) -> io::Result<()> {
        let Self { session, socket } = self;
        while session.wants_write() {
            write_some(socket, deadline, |socket| session.write_tls(socket))?;
        }
        Ok(())
    }
}

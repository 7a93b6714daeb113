//! TLS for the load: a certificate for loopback, and a client's end that never blocks.
//!
//! The certificate and its key are in the repository, so they prove nothing and are good for nothing
//! else. A read that returns less than was asked for has emptied the socket, and a write counts when
//! all of its record has left, as with a socket alone.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

const CERT: &str = include_str!("loopback.pem");
const KEY: &str = include_str!("loopback.key");

/// Most plaintext of one record.
pub(crate) const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Where servers listen; the certificate is for it.
const LOOPBACK: &str = "127.0.0.1";

/// Longest part of a host name between its dots.
const LABEL_BYTES_MAX: usize = 63;

/// How long the server may be silent before both sides have agreed on keys.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// What makes latchd speak TLS.
pub(crate) const CERT_OPTION: &str = "--tls-cert";
const KEY_OPTION: &str = "--tls-key";

/// The files of a server, removed when this is dropped; a server has read them when it listens.
pub(crate) struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    pub(crate) fn write() -> io::Result<Self> {
        let name = format!("latch-load-{:016x}", fastrand::u64(..));
        let path = |it| std::env::temp_dir().join(format!("{name}-{it}.pem"));
        let (cert, key) = (path("cert"), path("key"));
        fs::write(&cert, CERT)?;
        fs::write(&key, KEY)?;
        Ok(Self { cert, key })
    }

    /// The options that name them.
    pub(crate) fn options(&self) -> [&str; 4] {
        [CERT_OPTION, text(&self.cert), KEY_OPTION, text(&self.key)]
    }
}

/// Its name is our own, so it is text; the directory's may not be, and then no server starts.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.cert);
        let _ = fs::remove_file(&self.key);
    }
}

/// A client that expects a server of this name, and tells the server so unless it is an address.
fn session(name: String) -> io::Result<ClientConnection> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = match CONFIG.get() {
        Some(config) => config,
        None => {
            let config = config().map_err(io::Error::other)?;
            CONFIG.get_or_init(|| Arc::new(config))
        }
    };
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

/// Every connection is a new acquaintance: what one costs is what is measured.
fn config() -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERT.as_bytes())?)?;
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"latchd".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// A hello: the first that a client sends, and all that some ever do.
pub(crate) fn hello() -> io::Result<Vec<u8>> {
    hello_to(LOOPBACK.to_owned())
}

/// A hello with a host name that is as long as one may be, and not one character of it is allowed.
pub(crate) fn hello_with_bad_name() -> io::Result<Vec<u8>> {
    let label = "a".repeat(LABEL_BYTES_MAX);
    let name = [&*label, &label, &label, &label[2..]].join(".");
    let mut hello = hello_to(name.clone())?;
    let at = memchr::memmem::find(&hello, name.as_bytes());
    let at = at.ok_or_else(|| io::Error::other("a hello without a name"))?;
    hello[at..at + name.len()].fill(b'!');
    Ok(hello)
}

fn hello_to(name: String) -> io::Result<Vec<u8>> {
    let mut hello = Vec::new();
    session(name)?.write_tls(&mut hello)?;
    Ok(hello)
}

/// A connection that both sides have agreed on keys for.
pub(crate) struct TlsStream {
    pub(super) socket: TcpStream,
    session: ClientConnection,
    /// So many bytes that are to be written are in a record that has not all left.
    ahead: usize,
}

impl TlsStream {
    /// Agrees on keys, and waits for that; from then on it never blocks.
    pub(super) fn open(mut socket: std::net::TcpStream) -> io::Result<Self> {
        let mut session = session(LOOPBACK.to_owned())?;
        socket.set_read_timeout(Some(HANDSHAKE_MAX))?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: TcpStream::from_std(socket),
            session,
            ahead: 0,
        })
    }

    /// The socket alone, and what has to be sent over it to say this.
    pub(crate) fn take_apart(mut self, bytes: &[u8]) -> io::Result<(TcpStream, Vec<u8>)> {
        self.session.set_buffer_limit(None);
        self.session.writer().write_all(bytes)?;
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records)?;
        }
        Ok((self.socket, records))
    }

    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        loop {
            match self.session.reader().read(&mut buf[got..]) {
                Ok(0) => return Ok(got), // no room, or the end
                Ok(count) => {
                    got += count;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(got),
                Err(error) => return Err(error),
            }
            match self.session.read_tls(&mut self.socket) {
                Ok(_) => {
                    let read = self.session.process_new_packets();
                    read.map_err(io::Error::other)?;
                }
                Err(error) if got > 0 && error.kind() == ErrorKind::WouldBlock => return Ok(got),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.ahead == 0 {
            let record = &buf[..buf.len().min(RECORD_BYTES_MAX)];
            self.ahead = self.session.writer().write(record)?;
        }
        self.push()?;
        Ok(std::mem::take(&mut self.ahead))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

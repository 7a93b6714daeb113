//! TLS over a socket that never blocks.
//!
//! The handshake runs along with the first bytes in either direction. Whom to trust is a file of
//! certificates, the system's if none is named.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::address::Door;
use super::cluster::Cluster;
use super::error::Error;

/// Where most systems have those whom everybody trusts.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A connection in TLS.
pub(super) struct TlsStream {
    session: ClientConnection,
    socket: TcpStream,
}

/// How to speak with servers over TLS; nothing if none of them does.
pub(super) fn config(
    clusters: &[Cluster],
    ca_file: Option<&Path>,
) -> Result<Option<Arc<ClientConfig>>, Error> {
    let servers = clusters.iter().flat_map(|it| &it.members);
    let hosts = servers.filter_map(|it| match &it.door {
        Door::Tls { host, .. } => Some(host),
        _ => None,
    });
    let mut is_wanted = false;
    for host in hosts {
        is_wanted = true;
        let wrong = |why| Error::Misuse(format!("tls://{host}: {why}"));
        ServerName::try_from(host.as_str()).map_err(wrong)?;
    }
    if !is_wanted {
        return Ok(None);
    }
    let path = ca_file.unwrap_or_else(|| Path::new(SYSTEM_ROOTS));
    let wrong = |why: String| Error::Misuse(format!("{}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(path).map_err(|why| wrong(why.to_string()))?;
    for certificate in found {
        let certificate = certificate.map_err(|why| wrong(why.to_string()))?;
        // Bundles of systems have some that nobody can read any more.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| wrong(why.to_string()))?;
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    Ok(Some(Arc::new(config)))
}

impl TlsStream {
    pub(super) fn new(
        config: &Arc<ClientConfig>,
        host: &str,
        socket: TcpStream,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self { session, socket })
    }

    pub(super) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// What the peer has sent is looked at, and what has to be said about it is sent.
    fn receive(&mut self) -> io::Result<()> {
        let count = self.session.read_tls(&mut self.socket)?;
        if let Err(why) = self.session.process_new_packets() {
            let _ = self.session.write_tls(&mut self.socket); // it may want to know
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        if count == 0 && self.session.is_handshaking() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

impl Read for TlsStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.receive()?,
                result => return result,
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.session.writer().write(bytes)?;
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ if count == 0 => Err(ErrorKind::WouldBlock.into()), // there is no room
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TlsStream").field(&self.socket).finish()
    }
}

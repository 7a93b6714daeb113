//! A client that speaks TLS with rustls, and can also speak it badly.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use latchd::wire::client::frame;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion,
};

use crate::tls::certificates::Pair;
use crate::vocabulary::PATIENCE;

/// What a client wants and has.
pub(crate) struct Wants<'w> {
    pub(crate) versions: &'w [&'static SupportedProtocolVersion],
    pub(crate) alpn: &'w [&'w str],
    pub(crate) pair: Option<&'w Pair>,
}

impl Default for Wants<'_> {
    fn default() -> Self {
        Self {
            versions: ALL_VERSIONS,
            alpn: &[],
            pair: None,
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was announced.
    Announced,
    /// It was not.
    Truncated,
    Reset,
}

pub(crate) fn config(ca_pem: &str, wants: &Wants<'_>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(wants.versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match wants.pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::pem_slice_iter(pair.cert.as_bytes());
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = wants.alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A connection, and what it has received and not read yet.
pub(crate) struct TlsClient {
    pub(crate) socket: TcpStream,
    pub(crate) session: ClientConnection,
    received: Vec<u8>,
}

impl TlsClient {
    /// Connects, without a word.
    #[track_caller]
    pub(crate) fn silent(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let socket = TcpStream::connect(address).expect("the daemon is there");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        Self {
            socket,
            session: ClientConnection::new(Arc::clone(config), name).unwrap(),
            received: Vec::new(),
        }
    }

    /// Connects and agrees on keys.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let mut client = Self::silent(address, config);
        client.shake_hands().expect("a handshake");
        client
    }

    /// Agrees on keys, or does not: with what the daemon says of it.
    pub(crate) fn shake_hands(&mut self) -> Result<(), String> {
        while self.session.is_handshaking() {
            let done = self.session.complete_io(&mut self.socket);
            done.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// What is to be sent for these bytes.
    pub(crate) fn encrypted(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.session.writer().write_all(bytes).unwrap();
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records).unwrap();
        }
        records
    }

    /// Sends these bytes, in as many records as they need.
    #[track_caller]
    pub(crate) fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        for part in bytes.as_ref().chunks(16 * 1024) {
            let records = self.encrypted(part);
            self.socket.write_all(&records).expect("room to write");
        }
    }

    #[track_caller]
    pub(crate) fn put(&mut self, request: &str) {
        self.raw(frame(request));
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.put(request);
        self.line()
    }

    /// The next line.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = self.until("\n");
        line.pop();
        line
    }

    /// Everything up to this text, and the text.
    #[track_caller]
    pub(crate) fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = memchr::memmem::find(&self.received, end.as_bytes()) {
                let text: Vec<u8> = self.received.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&text).into_owned();
            }
            if let Some(ending) = self.receive() {
                let shown = String::from_utf8_lossy(&self.received);
                panic!("{ending:?} before {end:?}, after {shown:?}");
            }
        }
    }

    /// Reads so many bytes, and forgets them.
    #[track_caller]
    pub(crate) fn skip(&mut self, count: usize) {
        while self.received.len() < count {
            assert_eq!(self.receive(), None, "{count} bytes");
        }
        self.received.drain(..count);
    }

    /// Reads some more; how it ended, if it did.
    #[track_caller]
    fn receive(&mut self) -> Option<End> {
        let mut bytes = [0; 16 * 1024];
        match self.session.reader().read(&mut bytes) {
            Ok(0) => return Some(End::Announced),
            Ok(count) => {
                self.received.extend_from_slice(&bytes[..count]);
                return None;
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Some(End::Truncated),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        match self.session.read_tls(&mut self.socket) {
            Ok(_) => {
                self.session.process_new_packets().expect("good records");
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(End::Reset),
            Err(error) => panic!("{error} instead of bytes"),
        }
    }

    /// Expects that nothing more is said; says how it ended.
    #[track_caller]
    pub(crate) fn end(&mut self) -> End {
        loop {
            if let Some(end) = self.receive() {
                let shown = String::from_utf8_lossy(&self.received);
                assert!(self.received.is_empty(), "before the end: {shown:?}");
                return end;
            }
        }
    }

    /// Announces that it sends no more, and does not; it still reads.
    pub(crate) fn half_close(&mut self) {
        self.announce_end();
        self.socket.shutdown(Shutdown::Write).unwrap();
    }

    /// Announces the end of what it sends, and nothing else.
    pub(crate) fn announce_end(&mut self) {
        self.session.send_close_notify();
        let records = self.encrypted(b"");
        self.socket.write_all(&records).unwrap();
    }
}

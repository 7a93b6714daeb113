//! A pipe with TLS over it: both ends have agreed on keys before anybody hears of the connection.
//!
//! To its peer it is a pipe like any other. What arrives is one record for each segment; what the server
//! writes can be read when its record is whole. The certificate and its key are in the repository, so
//! they prove nothing. Keys and contents are as random as ever, but all have the same lengths: the
//! same seed gives the same run.

use std::cell::RefCell;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{Meter, Peer, Shared, metered_pipe};
use crate::pipe::Pipe;
use latchd::server::{Door, Host, Transport, TransportMemory};
use latchd::tls::{Files, Keys, MaybeTls, Tls};

const CERT: &[u8] = include_bytes!("pipe.pem");
const KEY: &[u8] = include_bytes!("pipe.key");

/// A time at which the certificate is good, in seconds since 1970.
const NOW_S: i64 = 1_800_000_000;

/// Most flights of a handshake, and some.
const FLIGHTS_MAX: usize = 10;

/// What a peer speaks, and how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// TLS 1.2 and not 1.3.
    pub is_old: bool,
    /// It announces that it sends no more.
    pub announces_end: bool,
}

/// The peer's end of a session.
pub(super) struct Session {
    client: ClientConnection,
    dialect: Dialect,
    /// How much of a record has come that is not whole.
    half: usize,
}

/// A connection over which both ends have agreed on keys; what the server keeps of it is counted in
/// `memory`.
///
/// # Panics
/// When they do not agree.
#[must_use]
pub fn encrypted_pipe(
    name: u32,
    host: Host,
    meter: &Meter,
    door: Door,
    dialect: Dialect,
    memory: TransportMemory,
) -> (MaybeTls<Pipe>, Peer) {
    let spent_ns = meter.reset();
    let (here, peer) = metered_pipe(name, host, meter);
    peer.shared.borrow_mut().session = Some(Box::new(Session::new(dialect)));
    let mut tls = Tls::new(here, keys().terms(door), memory);
    for _ in 0..FLIGHTS_MAX {
        exchange(&peer.shared, &mut tls);
    }
    assert!(!tls.is_in_handshake(), "both ends agree on keys");
    let _ = tls.upkeep(); // nobody waited for it
    if let Some(session) = &mut peer.shared.borrow_mut().session {
        session.half = 0;
    }
    meter.reset();
    meter.spend(spent_ns);
    (MaybeTls::Tls(Box::new(tls)), peer)
}

/// One flight each way, if there is one.
fn exchange(shared: &Rc<RefCell<Shared>>, tls: &mut Tls<Pipe>) {
    {
        let shared = &mut *shared.borrow_mut();
        if let Some(session) = &mut shared.session {
            let flight = session.records();
            shared.arrived.extend(flight);
        }
    }
    match tls.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        other => panic!("{other:?} in a handshake"),
    }
    tls.flush().expect("a pipe has room");
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let files = Files {
            cert: CERT,
            key: KEY,
            client_ca: None,
        };
        Keys::read(files, NOW_S).expect("a certificate with its key")
    })
}

fn client_config(is_old: bool) -> Arc<ClientConfig> {
    static CONFIGS: OnceLock<[Arc<ClientConfig>; 2]> = OnceLock::new();
    let configs = CONFIGS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        let cert = CertificateDer::from_pem_slice(CERT).expect("a certificate");
        roots.add(cert).expect("one that can be trusted");
        [&TLS13, &TLS12].map(|version| {
            let provider = Arc::new(ring::default_provider());
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .expect("a version that there is")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.resumption = Resumption::disabled();
            Arc::new(config)
        })
    });
    Arc::clone(&configs[usize::from(is_old)])
}

impl Session {
    fn new(dialect: Dialect) -> Self {
        let name = ServerName::try_from("localhost").expect("a name");
        let client = ClientConnection::new(client_config(dialect.is_old), name);
        Self {
            client: client.expect("a session"),
            dialect,
            half: 0,
        }
    }

    /// What it has to send.
    fn records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.client.wants_write() {
            let written = self.client.write_tls(&mut records);
            written.expect("memory has room");
        }
        records
    }

    /// What is sent for these bytes.
    pub(super) fn encrypt(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.client.set_buffer_limit(None);
        let written = self.client.writer().write_all(bytes);
        written.expect("no limit");
        self.records()
    }

    /// What is sent when no more will be.
    pub(super) fn end(&mut self) -> Vec<u8> {
        if self.dialect.announces_end {
            self.client.send_close_notify();
        }
        self.records()
    }

    /// What was said with these bytes, as far as it is whole.
    pub(super) fn decrypt(&mut self, mut records: &[u8]) -> Vec<u8> {
        self.half += records.len();
        let mut plain = Vec::new();
        while !records.is_empty() {
            let read = self.client.read_tls(&mut records);
            if read.expect("memory has no faults") == 0 {
                break; // behind the announced end
            }
            let state = self.client.process_new_packets();
            let count = state.expect("good records").plaintext_bytes_to_read();
            let start = plain.len();
            plain.resize(start + count, 0);
            let read = self.client.reader().read_exact(&mut plain[start..]);
            read.expect("as much as there is");
        }
        if !plain.is_empty() {
            self.half = 0;
        }
        plain
    }

    /// How much of a record has come that is not whole.
    pub(super) fn half(&self) -> usize {
        self.half
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dialect.fmt(f)
    }
}

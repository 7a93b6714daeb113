//! What newcomers are offered: the certificate, its key, and whose certificates clients need.
//!
//! Made of the contents of the operator's files, all of it before anybody sees it: what cannot be used
//! is a [`Fault`] that says which file it is and why, and what was offered before stays. Never reads a
//! file, and never says anything of a key but that it does not fit.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ALL_VERSIONS, Error, InconsistentKeys, RootCertStore, ServerConfig};

pub use super::validity::Validity;
use crate::server::Door;

/// What those who offer a choice of protocols have to offer at each door. Whoever offers none is
/// taken to speak what the door does.
const ALPN_LINE: &[u8] = b"latchd";
const ALPN_HTTP: &[u8] = b"http/1.1";

/// Tickets that a client is given to come back with, where it may: one is enough for one connection
/// after the other. They are kept by the client; the server keeps nothing of them.
const TICKETS: usize = 1;

/// What it costs to answer a hello, without the signature, and to sign it with a key on a curve.
const EXCHANGE_NS: u64 = 150_000;
const SIGN_NS: u64 = 50_000;

/// The same with RSA of 2048 bits, whose key takes so many bytes. It grows with the third power.
const SIGN_RSA_NS: u64 = 1_000_000;
const RSA_KEY_BYTES: u64 = 1_200;

/// What it costs to end a handshake, and to look at a client's certificates besides.
const FINISH_NS: u64 = 20_000;
const VERIFY_NS: u64 = 300_000;

/// What the files say, in PEM.
#[derive(Clone, Copy, Debug)]
pub struct Files<'f> {
    /// The certificate, and those that lead from it to one that clients know.
    pub cert: &'f [u8],
    /// Its private key.
    pub key: &'f [u8],
    /// Whose certificates clients have to have, if they have to have any.
    pub client_ca: Option<&'f [u8]>,
}

/// Which of the files cannot be used, and why, as the end of a sentence about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The certificate.
    Cert(String),
    /// The key.
    Key(String),
    /// The clients' authorities.
    ClientCa(String),
}

/// What is offered at one door.
#[derive(Debug)]
pub struct Terms {
    pub(super) config: Arc<ServerConfig>,
    /// What it costs to answer a hello, and to end a handshake.
    pub(super) hello_ns: u64,
    pub(super) finish_ns: u64,
}

/// What is offered at both doors.
#[derive(Clone, Debug)]
pub struct Keys {
    line: Arc<Terms>,
    http: Arc<Terms>,
    /// How long the certificate is good for.
    pub validity: Validity,
    /// Certificates behind the first one, and of authorities, that are not good now: how many.
    pub out_of_date: usize,
}

impl Keys {
    /// What these files say, at this time in seconds since 1970.
    ///
    /// # Errors
    /// The first of them that cannot be used.
    pub fn read(files: Files<'_>, now_s: i64) -> Result<Self, Fault> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(files.cert).map_err(Fault::Cert)?;
        let validity = chain.first().and_then(|it| Validity::of(it));
        let validity = validity.ok_or_else(|| Fault::Cert("holds no certificate".to_owned()))?;
        is_good_at(validity, now_s).map_err(Fault::Cert)?;
        let key = private_key(files.key).map_err(Fault::Key)?;
        let key_bytes = key.secret_der().len() as u64;
        let mut out_of_date = chain[1..].iter().filter(|it| is_stale(it, now_s)).count();
        let verifier = match files.client_ca {
            None => None,
            Some(ca) => {
                let (verifier, stale) = verifier(ca, now_s, &provider).map_err(Fault::ClientCa)?;
                out_of_date += stale;
                Some(verifier)
            }
        };
        let config = server_config(chain, key, verifier, provider)?;
        let signs_with_rsa = key_bytes > RSA_KEY_BYTES / 2;
        let sign_ns = if signs_with_rsa {
            SIGN_RSA_NS * key_bytes.pow(3) / RSA_KEY_BYTES.pow(3)
        } else {
            SIGN_NS
        };
        let verify_ns = files.client_ca.map_or(0, |_| VERIFY_NS);
        let terms = |alpn: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![alpn.to_vec()];
            Arc::new(Terms {
                config: Arc::new(config),
                hello_ns: EXCHANGE_NS + sign_ns,
                finish_ns: FINISH_NS + verify_ns,
            })
        };
        Ok(Self {
            line: terms(ALPN_LINE),
            http: terms(ALPN_HTTP),
            validity,
            out_of_date,
        })
    }

    /// What those who come by this door are offered.
    #[must_use]
    pub fn terms(&self, door: Door) -> Arc<Terms> {
        Arc::clone(match door {
            Door::Line => &self.line,
            Door::Http => &self.http,
        })
    }
}

/// What newcomers are offered now, at both doors. Clones are the same offer; whoever has shaken hands
/// keeps what it was offered then.
#[derive(Clone, Debug)]
pub struct Offer(Arc<Mutex<Keys>>);

impl Offer {
    /// Offers this.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self(Arc::new(Mutex::new(keys)))
    }

    /// From now on this is offered instead.
    pub fn replace(&self, keys: Keys) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// What somebody is offered who comes now, by this door.
    #[must_use]
    pub fn terms(&self, door: Door) -> Arc<Terms> {
        { self.0.lock() }
            .unwrap_or_else(PoisonError::into_inner)
            .terms(door)
    }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, Fault> {
    let of_cert = |error: Error| Fault::Cert(format!("cannot be used: {error}"));
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(of_cert)?;
    let asks_for_certificates = verifier.is_some();
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let built = builder.with_single_cert(chain, key);
    let mut config = built.map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            Fault::Key("is not the key of the certificate".to_owned())
        }
        Error::InvalidCertificate(_) => of_cert(error),
        error => Fault::Key(format!("cannot be used: {error}")),
    })?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // Whoever has to show a certificate shows it each time: a ticket would let it in for hours after
    // it has run out, or after its authority has gone from the file.
    config.send_tls13_tickets = 0;
    if !asks_for_certificates {
        config.ticketer = ring::Ticketer::new().map_err(of_cert)?;
        config.send_tls13_tickets = TICKETS;
    }
    Ok(config)
}

/// Accepts clients with a certificate of one of these, and no others. Those that are out of date are
/// left out, as long as one is not.
fn verifier(
    pem: &[u8],
    now_s: i64,
    provider: &Arc<CryptoProvider>,
) -> Result<(Arc<dyn ClientCertVerifier>, usize), String> {
    let authorities = certificates(pem)?;
    let count = authorities.len();
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        if !is_stale(&authority, now_s) {
            let added = roots.add(authority);
            added.map_err(|error| format!("holds a certificate that cannot be used: {error}"))?;
        }
    }
    let stale = count - roots.len();
    if roots.is_empty() {
        return Err("holds only certificates that are out of date".to_owned());
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let verifier = builder.build().map_err(|error| error.to_string())?;
    Ok((verifier, stale))
}

pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("is no PEM file that can be read: {error}"))?;
    if found.is_empty() {
        return Err("holds no certificate (BEGIN CERTIFICATE)".to_owned());
    }
    Ok(found)
}

pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound if contains(pem, b"ENCRYPTED") => {
            "is encrypted; write it without a passphrase, readable for latchd only".to_owned()
        }
        pem::Error::NoItemsFound => "holds no private key (BEGIN PRIVATE KEY)".to_owned(),
        error => format!("is no PEM file that can be read: {error}"),
    })
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|it| it == word)
}

pub(super) fn is_stale(certificate: &CertificateDer<'_>, now_s: i64) -> bool {
    Validity::of(certificate).is_none_or(|it| is_good_at(it, now_s).is_err())
}

pub(super) fn is_good_at(validity: Validity, now_s: i64) -> Result<(), String> {
    let Validity { from_s, until_s } = validity;
    if until_s < now_s {
        let days = (now_s - until_s) / 86_400;
        return Err(format!("has expired, {days} days ago: get a new one"));
    }
    if from_s > now_s {
        let days = (from_s - now_s).div_euclid(86_400);
        return Err(format!(
            "is not valid yet, but in {days} days: check the clock of this machine"
        ));
    }
    Ok(())
}

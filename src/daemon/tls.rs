//! The files of TLS: read at the start and again on SIGHUP, and what an operator is told of them.
//!
//! `tls/keys.rs` knows what is in them. At the start what cannot be used ends the daemon, which names
//! the option; later it is an error in the log, and what was offered before is offered on.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use log::{info, warn};

use super::{DaemonError, wall_ms};
use crate::config::{Config, Exit, read_named_file};
use crate::net::Listener;
use crate::tls::{Fault, Files, Keys, Offer, Validity};

/// Longest file: bundles of all the world's authorities are shorter.
const FILE_BYTES_MAX: usize = 4 << 20;

/// A certificate that is good for fewer days than this is warned of.
const DAYS_LEFT_MIN: i64 = 14;

/// The files, and what they offered when they were last read.
pub(super) struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    offer: Offer,
}

/// What is wrong with a file, and which option named it.
pub(super) struct Wrong {
    pub(super) flag: &'static str,
    pub(super) path: PathBuf,
    pub(super) why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, path, why } = self;
        write!(f, "{flag}: {} {why}", path.display())
    }
}

impl TlsFiles {
    /// Reads the files that the settings name, if any.
    pub(super) fn open(config: &Config) -> Result<Option<Self>, DaemonError> {
        let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else {
            return Ok(None);
        };
        let client_ca = config.tls_client_ca.clone();
        let keys = read(cert, key, client_ca.as_deref()).map_err(Wrong::into_error)?;
        tell(&keys, cert);
        Ok(Some(Self {
            cert: cert.clone(),
            key: key.clone(),
            client_ca,
            offer: Offer::new(keys),
        }))
    }

    /// The same listener; whoever connects there has to speak TLS.
    pub(super) fn over(&self, listener: Listener) -> Listener {
        listener.with_tls(self.offer.clone())
    }

    /// Reads the files again: newcomers are offered what they say now. Otherwise says why they are
    /// offered what they were.
    pub(super) fn reload(&self) -> Result<(), String> {
        let keys = read(&self.cert, &self.key, self.client_ca.as_deref())
            .map_err(|wrong| wrong.to_string())?;
        tell(&keys, &self.cert);
        self.offer.replace(keys);
        Ok(())
    }
}

impl Wrong {
    pub(super) fn into_error(self) -> DaemonError {
        DaemonError {
            attempt: format!("cannot use {}", self.flag),
            cause: io::Error::other(format!("{} {}", self.path.display(), self.why)),
            advice: String::new(),
            exit: Exit::Config,
        }
    }
}

fn read(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Keys, Wrong> {
    let wrong = |flag, path: &Path, why| Wrong {
        flag,
        path: path.to_owned(),
        why,
    };
    let read = |flag, path: &Path| contents(path).map_err(|why| wrong(flag, path, why));
    let cert_pem = read("--tls-cert", cert)?;
    let key_pem = read("--tls-key", key)?;
    let client_ca_pem = match client_ca {
        Some(path) => Some(read("--tls-client-ca", path)?),
        None => None,
    };
    let files = Files {
        cert: &cert_pem,
        key: &key_pem,
        client_ca: client_ca_pem.as_deref(),
    };
    Keys::read(files, now_s()).map_err(|fault| match fault {
        Fault::Cert(why) => wrong("--tls-cert", cert, why),
        Fault::Key(why) => wrong("--tls-key", key, why),
        Fault::ClientCa(why) => wrong("--tls-client-ca", client_ca.unwrap_or(cert), why),
    })
}

/// What is in a file, or why it cannot be had, as the end of a sentence about it.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = read_named_file(path, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot be read: {error}"))?;
    match bytes.len() {
        0 => Err("is empty".to_owned()),
        length if length > FILE_BYTES_MAX => Err("is too long to be a PEM file".to_owned()),
        _ => Ok(bytes),
    }
}

/// Tells how long the certificate is good for.
fn tell(keys: &Keys, cert: &Path) {
    tell_days(keys.validity, cert);
    if keys.out_of_date > 0 {
        warn!(
            "TLS: {} more certificates in these files are out of date",
            keys.out_of_date
        );
    }
}

pub(super) fn tell_days(validity: Validity, cert: &Path) {
    let days = (validity.until_s - now_s()) / 86_400;
    let cert = cert.display();
    if days < DAYS_LEFT_MIN {
        warn!("TLS: the certificate {cert} expires in {days} days; SIGHUP reads a new one");
    } else {
        info!("TLS: the certificate {cert} is good for {days} days");
    }
}

pub(super) fn now_s() -> i64 {
    i64::try_from(wall_ms() / 1_000).unwrap_or(i64::MAX)
}

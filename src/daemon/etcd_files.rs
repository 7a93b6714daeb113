//! How this member gets in at etcd: addresses, and the files that the operator has for it. Read at the
//! start and again on SIGHUP.
//!
//! At the start what cannot be used ends the daemon, which names the option; later it is an error in the
//! log, and what was used before is used on. No password is ever said.

use std::io;
use std::path::{Path, PathBuf};

use log::warn;

use super::DaemonError;
use super::reload::More;
use crate::config::{Config, Exit, read_named_file};
use crate::etcd::{Endpoints, Password};

/// Longest password.
const PASSWORD_BYTES_MAX: usize = 4 << 10;

/// What SIGHUP calls it.
const WHAT: &str = "what etcd is shown";

/// The addresses, and the files.
pub(super) struct EtcdFiles {
    endpoints: Endpoints,
    password_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    tls: encrypted::Paths,
}

impl EtcdFiles {
    /// Reads the files that the settings name.
    pub(super) fn open(config: &Config) -> Result<Self, DaemonError> {
        let cluster = &config.cluster;
        let refused = |flag: &str, why: String| DaemonError {
            attempt: format!("cannot use {flag}"),
            cause: io::Error::other(why),
            advice: String::new(),
            exit: Exit::Config,
        };
        let endpoints = Endpoints::parse(&cluster.etcd);
        let mut endpoints = endpoints.map_err(|why| refused("--etcd", why.to_string()))?;
        if let (Some(user), Some(path)) = (&cluster.etcd_user, &cluster.etcd_password_file) {
            let password = password(path).map_err(|why| refused("--etcd-password-file", why))?;
            endpoints = endpoints.with_login(user, password);
        }
        #[cfg(feature = "tls")]
        let tls = encrypted::Paths::of(cluster);
        #[cfg(feature = "tls")]
        if endpoints.are_encrypted() {
            let config = tls.read().map_err(|wrong| wrong.into_error())?;
            endpoints = endpoints.with_tls(config);
        }
        Ok(Self {
            endpoints,
            password_file: cluster.etcd_password_file.clone(),
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// Where etcd is, and how one gets in.
    pub(super) fn endpoints(&self) -> Endpoints {
        self.endpoints.clone()
    }

    /// Warns of what everybody on the way can read.
    pub(super) fn tell(&self) {
        if self.password_file.is_some() && !self.endpoints.are_encrypted() {
            warn!("the password of --etcd-user goes to etcd unencrypted: write https:// in --etcd");
        }
    }

    /// What SIGHUP reads again, if there is anything.
    pub(super) fn into_reload(self) -> Option<More> {
        let has_files = self.password_file.is_some() || self.endpoints.are_encrypted();
        has_files.then(|| -> More { (WHAT, Box::new(move || self.reload())) })
    }

    /// All of it counts from now on, or none of it.
    fn reload(&self) -> Result<(), String> {
        let password = match &self.password_file {
            Some(path) => {
                Some(password(path).map_err(|why| format!("--etcd-password-file: {why}"))?)
            }
            None => None,
        };
        #[cfg(feature = "tls")]
        if self.endpoints.are_encrypted() {
            let config = self.tls.read().map_err(|wrong| wrong.to_string())?;
            self.endpoints.replace_tls(config);
        }
        if let Some(password) = password {
            self.endpoints.replace_password(password);
        }
        Ok(())
    }
}

/// The one line of a file. What is wrong with it is said without its text.
fn password(path: &Path) -> Result<Password, String> {
    // A line end may follow the password.
    let bytes = read_named_file(path, PASSWORD_BYTES_MAX + 2)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let wrong = |why: &str| Err(format!("{} {why}", path.display()));
    let Ok(text) = String::from_utf8(bytes) else {
        return wrong("is not valid UTF-8");
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return wrong("is empty");
    }
    if text.len() > PASSWORD_BYTES_MAX {
        return wrong("is too long for a password");
    }
    if text.contains(char::is_control) {
        return wrong("has more than one line, or a control byte in it; a password is one line");
    }
    Ok(Password::new(text.to_owned()))
}

/// What belongs to TLS.
#[cfg(feature = "tls")]
mod encrypted {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use rustls::ClientConfig;

    use super::super::tls::{Wrong, contents, now_s, tell_days};
    use crate::config::Cluster;
    use crate::tls::{Trust, TrustFault, TrustFiles};

    /// Where most systems have those whom everybody trusts.
    const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

    /// Where the files are.
    pub(super) struct Paths {
        ca: PathBuf,
        pair: Option<[PathBuf; 2]>,
    }

    impl Paths {
        pub(super) fn of(cluster: &Cluster) -> Self {
            let pair = match (&cluster.etcd_cert, &cluster.etcd_key) {
                (Some(cert), Some(key)) => Some([cert.clone(), key.clone()]),
                _ => None,
            };
            let ca = cluster.etcd_ca.clone();
            Self {
                ca: ca.unwrap_or_else(|| SYSTEM_ROOTS.into()),
                pair,
            }
        }

        /// What the files say now.
        pub(super) fn read(&self) -> Result<Arc<ClientConfig>, Wrong> {
            let wrong = |flag, path: &Path, why| Wrong {
                flag,
                path: path.to_owned(),
                why,
            };
            let read = |flag, path: &Path| contents(path).map_err(|why| wrong(flag, path, why));
            let ca = read("--etcd-ca", &self.ca)?;
            let pair = match &self.pair {
                Some([cert, key]) => Some([read("--etcd-cert", cert)?, read("--etcd-key", key)?]),
                None => None,
            };
            let files = TrustFiles {
                ca: &ca,
                pair: pair.as_ref().map(|[cert, key]| [&cert[..], &key[..]]),
            };
            // Without a pair nothing can be wrong with one.
            let [cert, key] = match &self.pair {
                Some([cert, key]) => [cert, key],
                None => [&self.ca, &self.ca],
            };
            let trust = Trust::read(files, now_s()).map_err(|fault| match fault {
                TrustFault::Ca(why) => wrong("--etcd-ca", &self.ca, why),
                TrustFault::Cert(why) => wrong("--etcd-cert", cert, why),
                TrustFault::Key(why) => wrong("--etcd-key", key, why),
            })?;
            if let Some(validity) = trust.validity {
                tell_days(validity, cert);
            }
            Ok(trust.config)
        }
    }
}

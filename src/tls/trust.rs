//! Where the daemon is a client itself: whose certificates it trusts, and what it shows.
//!
//! Made of the contents of the operator's files, as in `keys.rs`: what cannot be used is a fault that says
//! which file it is and why. Never reads a file, and never says anything of a key but that it does not fit.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ALL_VERSIONS, ClientConfig, Error, InconsistentKeys, RootCertStore};

use super::keys::{certificates, is_good_at, is_stale, private_key};
use super::validity::Validity;

/// What the files say, in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TrustFiles<'f> {
    /// Whose certificates are trusted.
    pub ca: &'f [u8],
    /// Our own certificate and its private key, if servers ask for one.
    pub pair: Option<[&'f [u8]; 2]>,
}

/// Which of the files cannot be used, and why, as the end of a sentence about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustFault {
    /// The authorities.
    Ca(String),
    /// Our certificate.
    Cert(String),
    /// Its key.
    Key(String),
}

/// Whom to trust, and what to show.
#[derive(Clone, Debug)]
pub struct Trust {
    /// For connections.
    pub config: Arc<ClientConfig>,
    /// How long our own certificate is good for, if there is one.
    pub validity: Option<Validity>,
}

impl Trust {
    /// What these files say, at this time in seconds since 1970. Authorities that are out of date, or that
    /// nobody can read any more, are left out, as long as one is not: bundles of systems have some.
    ///
    /// # Errors
    /// The first of them that cannot be used.
    pub fn read(files: TrustFiles<'_>, now_s: i64) -> Result<Self, TrustFault> {
        let of_ca = |error: Error| TrustFault::Ca(format!("cannot be used: {error}"));
        let mut roots = RootCertStore::empty();
        let authorities = certificates(files.ca).map_err(TrustFault::Ca)?;
        let good = authorities.into_iter().filter(|it| !is_stale(it, now_s));
        roots.add_parsable_certificates(good);
        if roots.is_empty() {
            let why = "holds no certificate that can be used now";
            return Err(TrustFault::Ca(why.to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
        let builder = builder
            .with_protocol_versions(ALL_VERSIONS)
            .map_err(of_ca)?;
        let builder = builder.with_root_certificates(roots);
        let Some([cert, key]) = files.pair else {
            let config = Arc::new(builder.with_no_client_auth());
            let validity = None;
            return Ok(Self { config, validity });
        };
        let chain = certificates(cert).map_err(TrustFault::Cert)?;
        let validity = chain.first().and_then(|it| Validity::of(it));
        let validity =
            validity.ok_or_else(|| TrustFault::Cert("holds no certificate".to_owned()))?;
        is_good_at(validity, now_s).map_err(TrustFault::Cert)?;
        let key = private_key(key).map_err(TrustFault::Key)?;
        let built = builder.with_client_auth_cert(chain, key);
        let config = built.map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TrustFault::Key("is not the key of the certificate".to_owned())
            }
            Error::InvalidCertificate(_) => TrustFault::Cert(format!("cannot be used: {error}")),
            error => TrustFault::Key(format!("cannot be used: {error}")),
        })?;
        Ok(Self {
            config: Arc::new(config),
            validity: Some(validity),
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    /// Somewhen in 2026.
    const NOW_S: i64 = 1_780_000_000;

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let issue = |until| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_after = date_time_ymd(until, 1, 1);
            let key = KeyPair::generate().unwrap();
            let cert = params.signed_by(&key, &authority).unwrap();
            [cert.pem(), key.serialize_pem()]
        };
        let read = |ca: &str, cert: &str, key: &str| {
            let files = TrustFiles {
                ca: ca.as_bytes(),
                pair: Some([cert.as_bytes(), key.as_bytes()]),
            };
            Trust::read(files, NOW_S).map(|it| it.validity.is_some())
        };
        let ca = authority.pem();
        let ([cert, key], [_, other], [old, old_key]) = (issue(2100), issue(2100), issue(2020));
        assert_eq!(read(&ca, &cert, &key), Ok(true));
        // One authority that can be used is enough.
        assert_eq!(read(&format!("{old}{ca}"), &cert, &key), Ok(true));
        assert!(matches!(read(&old, &cert, &key), Err(TrustFault::Ca(_))));
        assert!(matches!(read("", &cert, &key), Err(TrustFault::Ca(_))));
        assert!(matches!(read(&key, &cert, &key), Err(TrustFault::Ca(_))));
        assert!(matches!(read(&ca, &key, &key), Err(TrustFault::Cert(_))));
        assert!(matches!(read(&ca, &cert, &cert), Err(TrustFault::Key(_))));
        let expired = read(&ca, &old, &old_key).unwrap_err();
        assert!(matches!(expired, TrustFault::Cert(why) if why.contains("has expired")));
        let says = TrustFault::Key("is not the key of the certificate".to_owned());
        assert_eq!(read(&ca, &cert, &other), Err(says));
        let files = TrustFiles {
            ca: ca.as_bytes(),
            pair: None,
        };
        assert!(Trust::read(files, NOW_S).unwrap().validity.is_none());
    }
}

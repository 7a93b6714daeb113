//! Certificates: an authority, and what it has signed, in files as an operator has them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

use crate::vocabulary::Daemon;

/// From when to when, in years.
pub(crate) const GOOD: (i32, i32) = (2020, 2120);
pub(crate) const EXPIRED: (i32, i32) = (2020, 2021);
pub(crate) const NOT_YET: (i32, i32) = (2110, 2120);

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_years(name, GOOD)
    }

    pub(crate) fn with_years(name: &str, years: (i32, i32)) -> Self {
        let mut params = params(name, years);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server on this machine.
    pub(crate) fn server(&self, years: (i32, i32)) -> Pair {
        self.issue(params("latchd", years), ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn client(&self, name: &str, years: (i32, i32)) -> Pair {
        self.issue(params(name, years), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// For one that is both, as a member of etcd is to itself.
    #[allow(dead_code, reason = "the tests of clusters need it")]
    pub(crate) fn both(&self) -> Pair {
        let mut params = params("etcd", GOOD);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn issue(&self, mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Pair {
        params.extended_key_usages.push(purpose);
        let key = KeyPair::generate().unwrap();
        Pair {
            cert: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params(name: &str, (from, until): (i32, i32)) -> CertificateParams {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params
}

/// A directory with the files of a daemon, and the authority that its clients trust.
pub(crate) struct Folder {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self {
            dir: TempDir::new().unwrap(),
            authority: Authority::new("the servers' authority"),
        };
        folder.write("ca.pem", &folder.authority.pem());
        folder.put(&folder.authority.server(GOOD));
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as an option has it.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// The daemon's own pair.
    pub(crate) fn put(&self, pair: &Pair) {
        self.write("cert.pem", &pair.cert);
        self.write("key.pem", &pair.key);
    }

    /// The options for that.
    pub(crate) fn options(&self) -> Vec<String> {
        let (cert, key) = (self.text("cert.pem"), self.text("key.pem"));
        ["--tls-cert", &cert, "--tls-key", &key]
            .map(str::to_owned)
            .to_vec()
    }

    /// A daemon with these, and further, options.
    #[track_caller]
    pub(crate) fn daemon(&self, more: &[&str]) -> Daemon {
        let options = self.options();
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        options.extend(more);
        Daemon::start(&options)
    }
}

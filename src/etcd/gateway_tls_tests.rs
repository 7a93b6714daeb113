//! The same over TLS: whom it trusts, what it shows, and that a deadline holds in a handshake, too.

use std::io::Read;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::*;

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
type Pair = [String; 2];

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        [cert.pem(), key.serialize_pem()]
    }

    /// What a member of etcd has, with a certificate for this name, and whose clients it lets in.
    fn server(&self, name: &str, clients: Option<&Self>) -> Arc<ServerConfig> {
        let [cert, key] = self.issue(name, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.0.der().clone()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let (chain, key) = read_pair(&[cert, key]);
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }

    /// What we have, if we trust this authority and show that.
    fn trusted(&self, pair: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match pair.map(read_pair) {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        };
        Arc::new(config)
    }
}

fn read_pair([cert, key]: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    (
        vec![cert],
        PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
    )
}

fn endpoints(member: &Member, config: Arc<ClientConfig>) -> Endpoints {
    let endpoints = Endpoints::parse(&format!("https://{}", member.address)).unwrap();
    endpoints.with_tls(config)
}

#[test]
fn a_call_and_its_answer_can_be_long() {
    let authority = Authority::new();
    let long = format!(
        r#"{{"header":{{"revision":"7"}},"x":"{}"}}"#,
        "y".repeat(3 << 20)
    );
    let it = Member::encrypted(
        &authority.server("127.0.0.1", None),
        &[&[&plain(NEW), &plain(&long), &plain(EMPTY)]],
    );
    let mut gateway = Gateway::new(&endpoints(&it, authority.trusted(None)), 0);
    let key = vec![b'k'; 300_000];
    let answer = gateway.call(&Ask::Range(Get::one(&key)), WITHIN);
    assert!(matches!(answer, Ok(Answer::Range { revision: 7, .. })));
    assert!(it.asked()[1].len() > 400_000);
    // And the connection is used again.
    assert!(gateway.call(&Ask::Range(Get::one(b"k")), WITHIN).is_ok());
    assert_eq!(it.count("/version"), 1);
}

#[test]
fn a_member_that_is_not_trusted_is_told_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let no_name = authority.server("etcd.example", None);
    let stranger = other.server("127.0.0.1", None);
    for (server, says) in [
        (no_name, "not valid for name"),
        (stranger, "invalid peer certificate"),
    ] {
        let it = Member::encrypted(&server, &[&[&plain(NEW), &plain(DONE)]]);
        let endpoints = endpoints(&it, authority.trusted(None));
        let endpoints = endpoints.with_login("me", Password::new("s3cret".to_owned()));
        let why = Gateway::new(&endpoints, 0)
            .call(&append(), WITHIN)
            .unwrap_err();
        assert!(matches!(why, Trouble::Unreachable(_)), "{why:?}");
        assert!(why.to_string().contains(says), "{why}");
        assert_eq!(it.asked(), Vec::<String>::new());
    }
}

#[test]
fn a_certificate_is_shown_to_who_asks_for_one() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let server = servers.server("127.0.0.1", Some(&clients));
    let pair = clients.issue("latchd", ExtendedKeyUsagePurpose::ClientAuth);
    let it = Member::encrypted(&server, &[&[&plain(NEW), &plain(DONE)]]);
    let shown = endpoints(&it, servers.trusted(Some(&pair)));
    assert!(Gateway::new(&shown, 0).call(&append(), WITHIN).is_ok());
    let foreign = servers.issue("latchd", ExtendedKeyUsagePurpose::ClientAuth);
    for config in [servers.trusted(None), servers.trusted(Some(&foreign))] {
        let it = Member::encrypted(&server, &[&[&plain(NEW), &plain(DONE)]]);
        let why = Gateway::new(&endpoints(&it, config), 0)
            .call(&append(), WITHIN)
            .unwrap_err();
        assert!(matches!(why, Trouble::Unreachable(_)), "{why:?}");
        assert_eq!(it.count("/v3/kv/txn"), 0);
    }
}

#[test]
fn new_files_count_for_new_connections() {
    let (before, after) = (Authority::new(), Authority::new());
    let it = Member::encrypted(
        &after.server("127.0.0.1", None),
        &[&[], &[&plain(NEW), &plain(DONE)]],
    );
    let endpoints = endpoints(&it, before.trusted(None));
    let mut gateway = Gateway::new(&endpoints, 0);
    assert!(gateway.call(&append(), WITHIN).is_err());
    endpoints.replace_tls(after.trusted(None));
    assert!(gateway.call(&append(), WITHIN).is_ok());
}

/// If it did not end this test would not either.
#[test]
fn a_handshake_ends_with_the_deadline_however_the_peer_dribbles() {
    let authority = Authority::new();
    // The beginning of a record of 16 KiB that never comes to its end; and one who says nothing at all.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [dribbling, silent_at] = [
        dribbler(&[0x16, 3, 3, 0x40, 0], 0),
        silent.local_addr().unwrap().to_string(),
    ];
    for address in [dribbling, silent_at] {
        let endpoints = Endpoints::parse(&format!("https://{address}")).unwrap();
        let endpoints = endpoints.with_tls(authority.trusted(None));
        let mut gateway = Gateway::new(&endpoints, 0);
        let ended = gateway.call(&append(), Duration::from_millis(300));
        assert!(matches!(ended, Err(Trouble::Unreachable(_))), "{ended:?}");
    }
}

/// Behind the handshake the same: whole records that dribble, with bytes of an answer in them.
#[test]
fn an_answer_that_dribbles_in_records_ends_with_the_deadline() {
    let authority = Authority::new();
    let config = authority.server("127.0.0.1", None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serve = move || {
        let (socket, _) = listener.accept().unwrap();
        let session = rustls::ServerConnection::new(config).unwrap();
        let mut stream = rustls::StreamOwned::new(session, socket);
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece);
        let (_never, wait) = mpsc::channel::<()>();
        let mut goes_on = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").is_ok();
        while goes_on {
            let _ = wait.recv_timeout(Duration::from_millis(5));
            goes_on = stream.write_all(b"y").and_then(|()| stream.flush()).is_ok();
        }
    };
    thread::Builder::new().spawn(serve).unwrap();
    let endpoints = Endpoints::parse(&url)
        .unwrap()
        .with_tls(authority.trusted(None));
    let ended = Gateway::new(&endpoints, 0).call(&append(), Duration::from_millis(500));
    assert!(matches!(ended, Err(Trouble::Unreachable(_))), "{ended:?}");
}

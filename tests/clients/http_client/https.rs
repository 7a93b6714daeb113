//! `https://`: a server with a certificate, and who believes it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use latchd::http_client::{Error, LeaseClient, RetryOptions};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::http_client::{FOREVER, ms};

const GRANTED: &str =
    "{\"acquired\":true,\"lease_id\":\"L1\",\"fencing_token\":42,\"lease_expiry_ms\":1}";

/// Serves one connection and grants what it is asked for; its address, its certificate, and what it was
/// asked, if anything.
fn serve_once() -> (SocketAddr, String, JoinHandle<Option<String>>) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let tls = ServerConnection::new(Arc::new(config)).unwrap();
        let mut tls = StreamOwned::new(tls, stream);
        let mut asked = String::new();
        let mut bytes = [0; 4_096];
        while !asked.ends_with('}') {
            let count = tls.read(&mut bytes).ok().filter(|count| *count > 0)?;
            asked.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            GRANTED.len()
        );
        tls.write_all((head + GRANTED).as_bytes()).unwrap();
        tls.flush().unwrap();
        Some(asked)
    });
    (address, cert.pem(), serving)
}

#[test]
fn a_server_with_a_certificate_that_is_believed_grants() {
    let (address, pem, serving) = serve_once();
    let client = LeaseClient::builder(&format!("https://localhost:{}", address.port()))
        .root_certificates(pem)
        .bearer_token("s3cret")
        .build()
        .unwrap();
    let lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    assert_eq!(lease.fencing_token(), 42);
    let asked = serving.join().unwrap().unwrap();
    assert!(
        asked
            .to_ascii_lowercase()
            .contains("authorization: bearer s3cret"),
        "{asked}"
    );
}

/// Nothing is sent to a server that nobody vouches for, and nothing is gained by asking it again.
#[test]
fn a_server_that_is_not_believed_is_told_nothing() {
    let (_, other, _serving) = serve_once();
    for roots in [None, Some(other)] {
        let (address, _, serving) = serve_once();
        let mut builder = LeaseClient::builder(&format!("https://localhost:{}", address.port()));
        if let Some(pem) = roots {
            builder = builder.root_certificates(pem);
        }
        let client = builder.bearer_token("s3cret").build().unwrap();
        let options = RetryOptions::new(ms(60_000)).min_retry(FOREVER);
        let error = client
            .acquire_with_retry("job", "me", &options)
            .unwrap_err();
        let Error::NoAnswer {
            may_have_arrived: false,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert!(error.to_string().contains("certificate"), "{error}");
        assert_eq!(serving.join().unwrap(), None, "it was told something");
    }
}

#[test]
fn what_is_no_certificate_is_refused() {
    for pem in ["", "hello", "-----BEGIN CERTIFICATE-----\nx\n"] {
        let builder = LeaseClient::builder("https://localhost").root_certificates(pem);
        let error = builder.build().unwrap_err();
        assert!(matches!(error, Error::Misuse { .. }), "{error:?}");
    }
}

//! The HTTP door with TLS: streams, pipelining, whose pages may ask.

use std::net::SocketAddr;

use crate::tls::certificates::{Folder, GOOD};
use crate::tls::client::{End, TlsClient, Wants, config};
use crate::vocabulary::Daemon;

/// Where it serves HTTPS, as it has said at the start.
#[track_caller]
pub(crate) fn https_address(daemon: &Daemon) -> SocketAddr {
    let line = daemon.wait_for_log("serves HTTPS on ");
    let (_, address) = line.split_once("serves HTTPS on ").unwrap();
    let (address, rest) = address.split_once(": ").expect("a port");
    assert!(rest.contains(&format!("https://{address}/")), "{line}");
    address.parse().unwrap()
}

fn browser(folder: &Folder, daemon: &Daemon) -> TlsClient {
    let wants = Wants {
        alpn: &["http/1.1"],
        ..Wants::default()
    };
    TlsClient::connect(
        https_address(daemon),
        &config(&folder.authority.pem(), &wants),
    )
}

#[test]
fn events_come_over_an_encrypted_stream_as_they_happen() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    let mut stream = browser(&folder, &daemon);
    assert_eq!(stream.session.alpn_protocol(), Some(&b"http/1.1"[..]));
    stream.raw("GET /v1/watch?pattern=jobs.* HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = stream.until("\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut line = TlsClient::connect(
        daemon.address(),
        &config(&folder.authority.pem(), &Wants::default()),
    );
    for _ in 0..20 {
        let granted = line.ask("l jobs.a 0");
        let token = granted.split(' ').nth(1).unwrap();
        assert_eq!(line.ask(&format!("r jobs.a {token}")), "ok");
        stream.until("jobs.a");
    }
}

#[test]
fn many_requests_at_once_are_answered_in_order() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    let mut client = browser(&folder, &daemon);
    client.raw("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200));
    for _ in 0..200 {
        let head = client.until("\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let (_, length) = head.split_once("Content-Length: ").unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        client.skip(length);
    }
    client.half_close();
    assert_eq!(client.end(), End::Announced);
}

#[test]
fn only_encrypted_pages_of_the_same_site_may_ask() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    let address = https_address(&daemon);
    for (origin, status) in [
        (format!("https://{address}"), "200"),
        (format!("http://{address}"), "403"),
        ("https://evil.example".to_owned(), "403"),
    ] {
        let mut client = browser(&folder, &daemon);
        client.raw(format!(
            "GET /v1/locks HTTP/1.1\r\nHost: {address}\r\nOrigin: {origin}\r\n\r\n"
        ));
        let head = client.until("\r\n");
        assert_eq!(&head["HTTP/1.1 ".len()..][..3], status, "{origin}");
    }
}

#[test]
fn the_figures_tell_of_handshakes() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    daemon.connect().raw("GET / HTTP/1.1\r\n\r\n");
    daemon.wait_for_log("it does not speak TLS");
    let mut client = browser(&folder, &daemon);
    client.raw("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.until("latchd_tls_handshakes_active 0\n");
    client.until("latchd_tls_handshakes_total{result=\"done\"} 1\n");
    client.until("latchd_tls_handshakes_total{result=\"failed\"} 1\n");
}

#[test]
fn a_repeated_request_is_answered_to_the_certificate_that_asked_first() {
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let authority = folder.text("clients.pem");
    let daemon = folder.daemon(&["--http-port", "0", "--tls-client-ca", &authority]);
    let [one, other] = ["one", "one"].map(|name| folder.authority.client(name, GOOD));
    let acquire = |pair| {
        let wants = Wants {
            pair: Some(pair),
            ..Wants::default()
        };
        let config = config(&folder.authority.pem(), &wants);
        let mut client = TlsClient::connect(https_address(&daemon), &config);
        let body = r#"{"owner_id":"me","ttl_ms":60000}"#;
        client.raw(format!(
            "POST /v1/locks/job/acquire HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: once\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let head = client.until("\r\n\r\n");
        let answer = client.until("}");
        assert!(head.starts_with("HTTP/1.1 "), "{head}");
        let lease = answer.split_once("\"lease_id\":\"");
        lease.map(|(_, it)| it.split('"').next().unwrap_or_default().to_owned())
    };
    let lease = acquire(&one);
    assert!(lease.is_some());
    assert_eq!(acquire(&other), None, "a certificate for the same name");
    assert_eq!(acquire(&one), lease, "over a new connection");
}

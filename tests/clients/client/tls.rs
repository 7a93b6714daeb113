//! TLS: a door in front of the daemon that speaks it, with certificates made here.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use latchd::client::{Client, ErrorKind as Kind};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use tempfile::TempDir;

use super::front::{Front, Role};
use super::{ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// A door, and whom to trust to come through it.
struct Door {
    address: SocketAddr,
    ca_file: PathBuf,
    _folder: TempDir,
}

/// Who comes through the door reaches the daemon.
fn door(daemon: &Daemon, host: &str) -> Door {
    door_to(daemon.address(), host)
}

fn door_to(server: SocketAddr, host: &str) -> Door {
    let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    fs::write(&ca_file, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let client = client.unwrap();
            thread::spawn(move || forward(session, client, server));
        }
    });
    Door {
        address,
        ca_file,
        _folder: folder,
    }
}

/// Both directions, in small steps, in one thread.
fn forward(mut session: ServerConnection, mut client: TcpStream, server: SocketAddr) -> Option<()> {
    let mut server = TcpStream::connect(server).unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ms(1))).unwrap();
    }
    let is_quiet = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    };
    let mut bytes = [0; 4096];
    loop {
        match session.read_tls(&mut client) {
            Ok(0) => return None,
            Ok(_) => {
                let processed = session.process_new_packets();
                let _ = session.write_tls(&mut client);
                processed.ok()?;
            }
            Err(error) if is_quiet(&error) => {}
            Err(_) => return None,
        }
        while let Ok(count @ 1..) = session.reader().read(&mut bytes) {
            server.write_all(&bytes[..count]).ok()?;
        }
        match server.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => session.writer().write_all(&bytes[..count]).unwrap(),
            Err(error) if is_quiet(&error) => {}
            Err(_) => return None,
        }
        while session.wants_write() {
            session.write_tls(&mut client).ok()?;
        }
    }
}

#[test]
fn everything_goes_over_tls_as_well() {
    let daemon = Daemon::start(&[]);
    let door = door(&daemon, "localhost");
    let servers = format!("tls://localhost:{}", door.address.port());
    let client = Client::builder(&servers)
        .ca_file(&door.ca_file)
        .connect()
        .unwrap();
    let guard = client.lock("job").lease(s(2)).acquire().unwrap();
    assert_eq!(super::client(&daemon).who("job").unwrap().holder_count, 1);
    // Renewals and pushes, too.
    assert!(!guard.lost().wait(ms(2_500)), "{:?}", guard.lost().why());
    assert!(client.break_grant("job", guard.fence()).unwrap());
    assert!(guard.lost().wait(PATIENCE));
    // Values that take several records, in both directions.
    let value = "x".repeat(65_000);
    client.value("v").set(&value).unwrap();
    assert_eq!(client.value("v").get().unwrap().unwrap(), value.as_bytes());
}

#[test]
fn whoever_cannot_be_trusted_is_not_talked_to() {
    let daemon = Daemon::start(&[]);
    let (ours, theirs) = (door(&daemon, "localhost"), door(&daemon, "elsewhere"));
    let port = ours.address.port();
    // Another authority, and another name.
    for (servers, ca_file) in [
        (format!("tls://localhost:{port}"), &theirs.ca_file),
        (
            format!("tls://localhost:{}", theirs.address.port()),
            &theirs.ca_file,
        ),
    ] {
        let error = Client::builder(&servers)
            .ca_file(ca_file)
            .connect()
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Down, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    // A server that does not speak it, and a client that does not.
    let plain = Client::builder(&format!("tls://localhost:{}", daemon.address().port()));
    let error = plain.ca_file(&ours.ca_file).connect().unwrap_err();
    assert_eq!(error.kind(), Kind::Down, "{error}");
    let plain = Client::builder(&format!("localhost:{port}")).connect_timeout(s(2));
    assert!(plain.connect().is_err());
}

#[test]
fn files_that_are_none_are_misuse() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    for (servers, ca_file) in [
        ("tls://localhost:1", empty.as_path()),
        ("tls://localhost:1", &folder.path().join("none.pem")),
        ("tls://a_b!:1", &empty),
    ] {
        let error = Client::builder(servers)
            .ca_file(ca_file)
            .build()
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Misuse, "{error}");
    }
}

/// What was told over TLS is reached over TLS, by somebody who can show that it is the one that was named: a token never
/// goes there in the open.
#[test]
fn a_leader_that_was_told_of_over_tls_has_to_show_who_it_is() {
    let daemon = Daemon::start(&["--auth-token=s3cret"]);
    let leader = door(&daemon, "127.0.0.1");
    let standby = Front::start(Role::Follows(Some(leader.address.to_string())));
    let told = door_to(standby.address, "localhost");
    let both = tempfile::NamedTempFile::new().unwrap();
    let roots = [&leader, &told].map(|it| fs::read_to_string(&it.ca_file).unwrap());
    fs::write(both.path(), roots.concat()).unwrap();
    let server = format!("tls://localhost:{}", told.address.port());
    let client = || {
        let client = Client::builder(&server).auth_token("s3cret");
        client.connect_timeout(s(3)).ca_file(both.path())
    };
    drop(
        client()
            .connect()
            .unwrap()
            .lock("job")
            .try_acquire()
            .unwrap(),
    );
    // Somebody else is there, who speaks no TLS and listens.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let eavesdropper = listener.local_addr().unwrap().to_string();
    let (tell, heard) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 4096];
            let count = client.read(&mut bytes).unwrap_or(0);
            let _ = client.write_all(b"ok\nok latchd/0.1.0 epoch=1 fence=1\n");
            let _ = tell.send(bytes[..count].to_vec());
        }
    });
    standby.becomes(Role::Follows(Some(eavesdropper)));
    let error = client().connect_timeout(ms(500)).connect().unwrap_err();
    assert_eq!(error.kind(), Kind::Down, "{error}");
    let heard = heard.recv_timeout(PATIENCE).unwrap();
    assert!(memchr::memmem::find(&heard, b"s3cret").is_none());
    // Another one has a certificate, of another name.
    let other = door(&daemon, "elsewhere.test");
    let roots = [&other, &told].map(|it| fs::read_to_string(&it.ca_file).unwrap());
    fs::write(both.path(), roots.concat()).unwrap();
    standby.becomes(Role::Follows(Some(other.address.to_string())));
    let error = client().connect_timeout(ms(500)).connect().unwrap_err();
    assert_eq!(error.kind(), Kind::Down, "{error}");
}

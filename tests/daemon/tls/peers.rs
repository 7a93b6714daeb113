//! What peers do to a port that speaks TLS: they pipeline, trickle, cut off, say nothing, or speak
//! something else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::version::{TLS12, TLS13};

use crate::tls::certificates::{Authority, EXPIRED, Folder, GOOD};
use crate::tls::client::{End, TlsClient, Wants, config};
use crate::vocabulary::{Client, Daemon, PATIENCE, frame};

fn connect(folder: &Folder, daemon: &Daemon) -> TlsClient {
    let config = config(&folder.authority.pem(), &Wants::default());
    TlsClient::connect(daemon.address(), &config)
}

#[test]
fn large_values_pass_both_ways_in_every_version() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let value = "0123456789abcdef".repeat(4096);
    for version in [&TLS12, &TLS13] {
        let wants = Wants {
            versions: &[version],
            ..Wants::default()
        };
        let config = config(&folder.authority.pem(), &wants);
        let mut client = TlsClient::connect(daemon.address(), &config);
        assert_eq!(client.ask(&format!("kset big {value}")), "ok");
        // Many are on their way at once: more than the kernel takes, and than a session may keep.
        for _ in 0..64 {
            client.put("kget big _");
        }
        for _ in 0..64 {
            assert_eq!(client.line(), format!("ok {value}"));
        }
        client.half_close();
        assert_eq!(client.end(), End::Announced);
    }
}

#[test]
fn requests_are_understood_however_their_records_are_cut() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut client = connect(&folder, &daemon);
    // A record for each byte, and then one record for many requests, sent byte by byte.
    for byte in frame("ping _ _").bytes() {
        client.raw([byte]);
    }
    assert_eq!(client.line(), "ok");
    let records = client.encrypted(frame("ping _ _").repeat(50).as_bytes());
    for byte in records {
        client.socket.write_all(&[byte]).unwrap();
    }
    for _ in 0..50 {
        assert_eq!(client.line(), "ok");
    }
    // Records that say nothing.
    for _ in 0..2_000 {
        let records = client.encrypted(b"");
        client.socket.write_all(&records).unwrap();
    }
    assert_eq!(client.ask("ping _ _"), "ok");
}

#[test]
fn whatever_was_said_in_full_is_answered_after_either_kind_of_end() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut announced = connect(&folder, &daemon);
    announced.raw(format!("{}{}", frame("l a 0"), "l\nb\n"));
    announced.half_close();
    assert!(announced.line().starts_with("ok "));
    assert_eq!(announced.end(), End::Announced);
    let mut truncated = connect(&folder, &daemon);
    truncated.raw(format!("{}{}", frame("l a 5"), "l\nb\n0"));
    truncated
        .socket
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    assert!(
        truncated.line().starts_with("ok "),
        "a left with its holder"
    );
    assert_eq!(truncated.end(), End::Announced);
    // The request that was cut off was not executed by either.
    let mut other = connect(&folder, &daemon);
    assert!(other.ask("l b 0").starts_with("ok "));
}

#[test]
fn an_end_that_is_only_announced_is_an_end() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut client = connect(&folder, &daemon);
    client.put("ping _ _");
    client.announce_end();
    assert_eq!(client.line(), "ok");
    assert_eq!(client.end(), End::Announced);
}

#[test]
fn half_a_record_says_nothing() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut holder = connect(&folder, &daemon);
    let granted = holder.ask("l k 0");
    let token = granted.split(' ').nth(1).unwrap();
    let release = holder.encrypted(frame(&format!("r k {token}")).as_bytes());
    let mut cut = connect(&folder, &daemon);
    let records = cut.encrypted(frame("l other 0").as_bytes());
    cut.socket.write_all(&records[..records.len() - 1]).unwrap();
    cut.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cut.end(), End::Announced);
    let mut other = connect(&folder, &daemon);
    assert!(other.ask("l other 0").starts_with("ok "));
    // The rest of a record arrives later, and is one with its beginning.
    holder.socket.write_all(&release[..7]).unwrap();
    assert_eq!(other.ask("l k 0"), "timeout");
    holder.socket.write_all(&release[7..]).unwrap();
    assert_eq!(holder.line(), "ok");
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_connection() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut client = connect(&folder, &daemon);
    assert!(client.ask("l k 0").starts_with("ok "));
    let mut records = client.encrypted(frame("ping _ _").as_bytes());
    *records.last_mut().unwrap() ^= 1;
    client.socket.write_all(&records).unwrap();
    let line = daemon.wait_for_log(&client.socket.local_addr().unwrap().to_string());
    assert!(line.contains("cannot decrypt"), "{line}");
    let mut other = connect(&folder, &daemon);
    assert!(other.ask("l k 5").starts_with("ok "), "it has let go");
}

#[test]
fn a_waiter_that_leaves_is_not_granted_anything() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut holder = connect(&folder, &daemon);
    let granted = holder.ask("l k 0");
    let token = granted.split(' ').nth(1).unwrap();
    let (mut leaves, mut stays) = (connect(&folder, &daemon), connect(&folder, &daemon));
    leaves.put("l k 60");
    stays.put("l k 60");
    drop(leaves);
    assert_eq!(holder.ask(&format!("r k {token}")), "ok");
    assert!(stays.line().starts_with("ok "));
}

#[test]
fn something_else_than_tls_ends_at_once_with_one_line() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    for plain in ["l\nk\n10\n", "GET / HTTP/1.1\r\n\r\n", "\n"] {
        let mut client = daemon.connect();
        let from = client.local_address();
        client.raw(plain);
        client.expect_end();
        let line = daemon.wait_for_log(&from);
        assert!(line.contains("it does not speak TLS"), "{line}");
        let lines = daemon.log();
        assert_eq!(lines.iter().filter(|it| it.contains(&from)).count(), 1);
    }
    let mut good = connect(&folder, &daemon);
    assert!(good.ask("l k 0").starts_with("ok "), "nothing was executed");
}

#[test]
fn tls_on_a_port_without_it_ends_at_once_with_one_line() {
    let daemon = Daemon::start(&["--http-port", "0"]);
    let folder = Folder::new();
    let config = config(&folder.authority.pem(), &Wants::default());
    for address in [daemon.address(), daemon.http_address()] {
        let mut client = TlsClient::silent(address, &config);
        let from = client.socket.local_addr().unwrap().to_string();
        assert!(client.shake_hands().is_err());
        let line = daemon.wait_for_log(&from);
        assert!(line.contains("it speaks TLS"), "{line}");
        assert!(line.contains("--tls-cert"), "{line}");
    }
}

#[test]
fn many_lines_about_strangers_become_a_count() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    for _ in 0..500 {
        let mut client = daemon.connect();
        client.raw("x");
        client.expect_end();
    }
    let lines = daemon.log();
    let told = lines.iter().filter(|it| it.contains("does not speak TLS"));
    assert!(told.count() < 400);
}

/// A hello whose server name has this many bytes, none of which a host name may have.
fn hello_with_illegal_server_name(bytes: u16) -> Vec<u8> {
    fn counted(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
    }
    let name = [&[0][..], &counted(&vec![b'\x1b'; bytes.into()])].concat();
    let server_name = [&[0, 0][..], &counted(&counted(&name))].concat();
    let random = [7; 32];
    let no_session = [0];
    let (ciphers, no_compression) = (counted(&[0x13, 0x01]), [1, 0]);
    let hello = [
        &[3, 3][..],
        &random,
        &no_session,
        &ciphers,
        &no_compression,
        &counted(&server_name),
    ]
    .concat();
    let handshake = [&[1, 0][..], &counted(&hello)].concat();
    [&[22, 3, 1][..], &counted(&handshake)].concat()
}

/// rustls has a logger, too, and would repeat the whole name.
#[test]
fn log_stays_short_when_strangers_send_illegal_server_names() {
    let folder = Folder::new();
    let mut daemon = folder.daemon(&["--log-format", "json", "--auth-token", "s3cret"]);
    let hello = hello_with_illegal_server_name(10_000);
    for _ in 0..100 {
        let mut client = daemon.connect();
        client.raw(&hello);
        client.rest();
    }
    let log = daemon.stop();
    for line in &log {
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        let target = read["target"].as_str().unwrap();
        assert!(
            target.starts_with("latchd"),
            "{target}: {} bytes",
            line.len()
        );
        assert!(line.len() < 1_000, "{line}");
    }
    let closings = log.iter().filter(|line| line.contains("closing "));
    assert!(closings.count() < 80, "they are limited: {log:#?}");
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--tls-handshake-timeout", "300ms"]);
    let config = config(&folder.authority.pem(), &Wants::default());
    let begin = Instant::now();
    let mut silent: Vec<Client> = (0..500).map(|_| daemon.connect()).collect();
    let mut half: Vec<TlsClient> = (0..500)
        .map(|_| TlsClient::silent(daemon.address(), &config))
        .collect();
    for (index, client) in half.iter_mut().enumerate() {
        let mut hello = Vec::new();
        client.session.write_tls(&mut hello).unwrap();
        // Some send all of their hello and never go on, some a part of it.
        let end = if index % 2 == 0 { hello.len() } else { 20 };
        client.socket.write_all(&hello[..end]).unwrap();
    }
    let mut good = connect(&folder, &daemon);
    assert_eq!(good.ask("ping _ _"), "ok");
    for client in &mut silent {
        client.expect_end();
    }
    for client in &mut half {
        let mut rest = Vec::new();
        let _ = client.socket.read_to_end(&mut rest); // a reset is an end, too
    }
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!(good.ask("ping _ _"), "ok", "whoever has finished stays");
    daemon.wait_for_log("--tls-handshake-timeout");
}

/// One byte at a time, each in time: the whole of it is what has to be in time.
#[test]
fn a_trickle_buys_no_time() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--tls-handshake-timeout", "300ms"]);
    let config = config(&folder.authority.pem(), &Wants::default());
    let mut client = TlsClient::silent(daemon.address(), &config);
    let mut hello = Vec::new();
    client.session.write_tls(&mut hello).unwrap();
    client
        .socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let begin = Instant::now();
    let mut bytes = hello.iter().cycle();
    loop {
        if client.socket.write_all(&[*bytes.next().unwrap()]).is_err() {
            break;
        }
        match client.socket.read(&mut [0; 64]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        assert!(begin.elapsed() < PATIENCE, "it is never ended");
    }
    assert!(begin.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_handshake_that_is_too_long_is_refused() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut socket = TcpStream::connect(daemon.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // A hello of 60,000 bytes, in records of 10,000.
    let mut hello = vec![1, 0, 0xea, 0x60];
    hello.resize(60_000, 0);
    for part in hello.chunks(10_000) {
        let [high, low] = (part.len() as u16).to_be_bytes();
        let record = [&[22, 3, 1, high, low], part].concat();
        if socket.write_all(&record).is_err() {
            break;
        }
    }
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    daemon.wait_for_log("its handshake is longer than");
}

#[test]
fn clients_without_a_good_certificate_stay_outside() {
    let folder = Folder::new();
    let clients = Authority::new("clients");
    folder.write("clients.pem", &clients.pem());
    let daemon = folder.daemon(&["--tls-client-ca", &folder.text("clients.pem")]);
    let strangers = Authority::new("strangers");
    let pairs = [
        (Some(clients.client("good", GOOD)), true),
        (Some(clients.client("expired", EXPIRED)), false),
        (Some(strangers.client("stranger", GOOD)), false),
        (Some(clients.server(GOOD)), false),
        (None, false),
    ];
    for (pair, is_welcome) in &pairs {
        for version in [&TLS12, &TLS13] {
            let wants = Wants {
                versions: &[version],
                pair: pair.as_ref(),
                ..Wants::default()
            };
            let config = config(&folder.authority.pem(), &wants);
            let mut client = TlsClient::silent(daemon.address(), &config);
            let mut done = client.shake_hands();
            if done.is_ok() && !is_welcome {
                // In the newer version the client is done before its certificate is looked at.
                let read = client.session.complete_io(&mut client.socket);
                done = read.map(|_| ()).map_err(|error| error.to_string());
            }
            assert_eq!(done.is_ok(), *is_welcome, "{done:?}");
            if *is_welcome {
                assert_eq!(client.ask("ping _ _"), "ok");
            }
        }
    }
}

#[test]
fn whoever_speaks_another_protocol_is_told_so() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    for (alpn, is_welcome) in [
        (&["latchd"][..], true),
        (&["h2", "latchd"], true),
        (&[], true),
        (&["http/1.1"], false),
        (&["h2"], false),
    ] {
        let wants = Wants {
            alpn,
            ..Wants::default()
        };
        let config = config(&folder.authority.pem(), &wants);
        let mut client = TlsClient::silent(daemon.address(), &config);
        let done = client.shake_hands();
        match is_welcome {
            true => assert_eq!(client.ask("ping _ _"), "ok"),
            false => assert!(done.unwrap_err().contains("NoApplicationProtocol")),
        }
    }
}

#[test]
fn a_session_is_taken_up_again_unless_certificates_are_asked_for() {
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let pair = folder.authority.client("somebody", GOOD);
    let open = folder.daemon(&[]);
    let mutual = folder.daemon(&["--tls-client-ca", &folder.text("clients.pem")]);
    for (daemon, resumes) in [(&open, true), (&mutual, false)] {
        let wants = Wants {
            pair: Some(&pair),
            ..Wants::default()
        };
        let config = config(&folder.authority.pem(), &wants);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut client = TlsClient::connect(daemon.address(), &config);
            assert_eq!(client.ask("ping _ _"), "ok"); // the ticket has come before it
            kinds.push(client.session.handshake_kind());
        }
        let again = rustls::HandshakeKind::Resumed;
        assert_eq!(kinds[1] == Some(again), resumes, "{kinds:?}");
    }
}

#[test]
fn a_client_that_does_not_read_is_closed_and_keeps_nobody_waiting() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--write-timeout", "500ms"]);
    let mut slow = connect(&folder, &daemon);
    let mut good = connect(&folder, &daemon);
    let value = "v".repeat(65_536);
    assert_eq!(good.ask(&format!("kset big {value}")), "ok");
    for _ in 0..200 {
        let records = slow.encrypted(frame("kget big _").as_bytes());
        // On a slow machine it may be closed before it has asked so often.
        let is_closed = slow.socket.write_all(&records).is_err();
        assert_eq!(good.ask("ping _ _"), "ok");
        if is_closed {
            break;
        }
    }
    daemon.wait_for_log("it does not take what it is owed");
    assert_eq!(good.ask("ping _ _"), "ok");
}

#[test]
fn newcomer_during_a_shutdown_is_served_and_granted_nothing() {
    let folder = Folder::new();
    let mut daemon = folder.daemon(&[]);
    let mut holder = connect(&folder, &daemon);
    let granted = holder.ask("l k 0");
    let token = granted.split(' ').nth(1).unwrap().to_owned();
    daemon.signal(rustix::process::Signal::TERM);
    daemon.wait_for_log("shutting down");
    let mut newcomer = connect(&folder, &daemon);
    assert_eq!(newcomer.ask("l other 0"), "error_draining");
    assert_eq!(newcomer.ask(&format!("r k {token}")), "ok");
    assert_eq!(holder.end(), End::Announced);
    assert_eq!(daemon.wait_for_exit().0, 0);
}

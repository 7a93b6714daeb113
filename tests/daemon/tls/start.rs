//! Starting with TLS: what is refused, and that the option is named; and what speaks TLS then.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::tls::certificates::{Authority, EXPIRED, Folder, GOOD, NOT_YET};
use crate::tls::client::{TlsClient, Wants, config};
use crate::vocabulary::{Activated, Client, Daemon, latchd, refusal, with_sockets};

/// Ends with 78 and says this, whether it is to start or only to look at its settings.
#[track_caller]
fn refused(options: &[&str], names: &str, says: &str) {
    for check in [&[][..], &["--check-config"]] {
        let mut command = latchd();
        command.args(["--port", "0"]).args(options).args(check);
        let line = refusal(78, command);
        assert!(
            line.contains(names) && line.contains(says),
            "{check:?}: {line}"
        );
    }
}

/// The same with the files of this folder, and further options.
#[track_caller]
fn refused_with(folder: &Folder, more: &[&str], names: &str, says: &str) {
    let options = folder.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    refused(&[&options, more].concat(), names, says);
}

#[test]
fn files_that_cannot_be_used_end_with_78_and_the_option() {
    let folder = Folder::new();
    let good = folder.authority.server(GOOD);
    let other = folder.authority.server(GOOD);
    let [expired, not_yet] = [EXPIRED, NOT_YET].map(|years| folder.authority.server(years));
    let encrypted = good.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for (file, text, option, says) in [
        ("cert.pem", "", "--tls-cert", "is empty"),
        ("cert.pem", "hello", "--tls-cert", "holds no certificate"),
        ("cert.pem", &good.key, "--tls-cert", "holds no certificate"),
        (
            "cert.pem",
            &other.cert,
            "--tls-key",
            "is not the key of the certificate",
        ),
        ("key.pem", "", "--tls-key", "is empty"),
        ("key.pem", &good.cert, "--tls-key", "holds no private key"),
        ("key.pem", &encrypted, "--tls-key", "is encrypted"),
        (
            "key.pem",
            &other.key,
            "--tls-key",
            "is not the key of the certificate",
        ),
    ] {
        folder.put(&good);
        folder.write(file, text);
        refused_with(&folder, &[], option, says);
    }
    let damaged = good.cert.replacen("MII", "MIJ", 1);
    folder.put(&good);
    folder.write("cert.pem", &damaged);
    refused_with(&folder, &[], "--tls-cert", "certificate");
    folder.put(&expired);
    refused_with(&folder, &[], "--tls-cert", "has expired");
    folder.put(&not_yet);
    refused_with(&folder, &[], "--tls-cert", "is not valid yet");
    folder.put(&good);
    std::fs::remove_file(folder.path("key.pem")).unwrap();
    refused_with(&folder, &[], "--tls-key", "cannot be read: No such file");
    folder.put(&good);
    refused_with(
        &folder,
        &["--tls-cert", "/dev/zero"],
        "--tls-cert",
        "it is not a regular file",
    );
    folder.write("long.pem", &"#".repeat((4 << 20) + 1));
    let long = folder.text("long.pem");
    refused_with(&folder, &["--tls-cert", &long], "--tls-cert", "too long");
    refused_with(
        &folder,
        &["--tls-cert", "/"],
        "--tls-cert",
        "cannot be read",
    );
}

#[test]
fn authorities_of_clients_that_cannot_be_used_end_with_78_and_the_option() {
    let folder = Folder::new();
    let path = folder.text("clients.pem");
    let old = Authority::with_years("old", EXPIRED);
    for (text, says) in [
        ("", "is empty"),
        ("hello", "holds no certificate"),
        (&old.pem(), "only certificates that are out of date"),
    ] {
        folder.write("clients.pem", text);
        refused_with(
            &folder,
            &["--tls-client-ca", &path],
            "--tls-client-ca",
            says,
        );
    }
    // One that is good is enough, and the other is told of.
    folder.write(
        "clients.pem",
        &format!("{}{}", old.pem(), folder.authority.pem()),
    );
    let daemon = folder.daemon(&["--tls-client-ca", &path]);
    daemon.wait_for_log("out of date");
}

#[test]
fn half_a_pair_ends_with_78() {
    for half in [
        "--tls-cert=/c.pem",
        "--tls-key=/k.pem",
        "--tls-client-ca=/a.pem",
    ] {
        refused(&[half], half.split('=').next().unwrap(), "");
    }
}

#[test]
fn files_that_can_be_used_are_found_good_without_a_start() {
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let mut command = latchd();
    command
        .args(folder.options())
        .args(["--tls-client-ca", &folder.text("clients.pem")])
        .arg("--check-config");
    let mut daemon = Daemon::spawn(command);
    assert_eq!(daemon.wait_for_exit(), (0, Vec::new()));
    assert_eq!(daemon.stdout(), "ok: the settings can be used\n");
}

#[test]
fn the_certificate_is_told_of_and_a_socket_file_stays_plain() {
    let folder = Folder::new();
    let socket = folder.text("latchd.sock");
    let daemon = folder.daemon(&["--unix-socket", &socket]);
    let line = daemon.wait_for_log("TLS: the certificate");
    assert!(line.contains(" INFO ") && line.contains(" days"), "{line}");
    daemon.wait_for_log(" with TLS");
    let mut client = Client::unix(&folder.path("latchd.sock"));
    assert_eq!(client.ask("ping _ _"), "ok");
}

/// Whoever opens the sockets, it is the settings that say what is spoken there.
#[test]
fn ports_that_were_opened_for_it_speak_tls_too() {
    let folder = Folder::new();
    let line = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at_line, at_http) = (line.local_addr().unwrap(), http.local_addr().unwrap());
    let names = Some("latchd:latchd-http");
    let options = folder.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let daemon = Activated::serve(with_sockets(line.into(), http.into(), names, &options));
    let log = &daemon.log; // the certificate comes first
    assert!(log[1].ends_with(&format!("{at_line} with TLS")), "{log:#?}");
    let https = format!(" serves HTTPS on {at_http}: ");
    assert!(log[2].contains(&https), "{log:#?}");
    let trust = |alpn| {
        let wants = Wants {
            alpn,
            ..Wants::default()
        };
        config(&folder.authority.pem(), &wants)
    };
    let mut client = TlsClient::connect(at_line, &trust(&["latchd"]));
    assert!(client.ask("l k 0").starts_with("ok "));
    let mut browser = TlsClient::connect(at_http, &trust(&["http/1.1"]));
    browser.raw("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(browser.until("\r\n").starts_with("HTTP/1.1 200 "));
    for at in [at_line, at_http] {
        let mut plain = Client::connect(&at.into());
        plain.put("ping _ _");
        plain.expect_end();
    }
}

#[test]
fn a_socket_file_that_was_opened_for_it_stays_plain() {
    let folder = Folder::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_port = port.local_addr().unwrap();
    let unix = UnixListener::bind(folder.path("latchd.sock")).unwrap();
    let mut options = folder.options();
    options.push("--http-port=off".to_owned());
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _daemon = Activated::serve(with_sockets(port.into(), unix.into(), None, &options));
    let mut holder = Client::unix(&folder.path("latchd.sock"));
    assert!(holder.ask("l k 0").starts_with("ok "));
    let trust = config(&folder.authority.pem(), &Wants::default());
    let mut other = TlsClient::connect(at_port, &trust);
    assert_eq!(other.ask("l k 0"), "timeout", "it is one daemon");
}

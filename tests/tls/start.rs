//! Starting with TLS: what is refused, and that the option is named.

use crate::certificates::{Authority, EXPIRED, Folder, GOOD, NOT_YET};
use crate::vocabulary::{latchd, refusal};

#[track_caller]
fn refused(folder: &Folder, more: &[&str], names: &str, says: &str) {
    let mut command = latchd();
    command
        .args(["--port", "0"])
        .args(folder.options())
        .args(more);
    let line = refusal(78, command);
    assert!(line.contains(names) && line.contains(says), "{line}");
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
        refused(&folder, &[], option, says);
    }
    let damaged = good.cert.replacen("MII", "MIJ", 1);
    folder.put(&good);
    folder.write("cert.pem", &damaged);
    refused(&folder, &[], "--tls-cert", "certificate");
    folder.put(&expired);
    refused(&folder, &[], "--tls-cert", "has expired");
    folder.put(&not_yet);
    refused(&folder, &[], "--tls-cert", "is not valid yet");
    folder.put(&good);
    std::fs::remove_file(folder.path("key.pem")).unwrap();
    refused(&folder, &[], "--tls-key", "cannot be read: No such file");
    folder.put(&good);
    refused(
        &folder,
        &["--tls-cert", "/dev/zero"],
        "--tls-cert",
        "too long",
    );
    refused(
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
        refused(
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
        let mut command = latchd();
        command.args(["--port", "0", half]);
        let line = refusal(78, command);
        assert!(line.contains(half.split('=').next().unwrap()), "{line}");
    }
}

#[test]
fn the_certificate_is_told_of_and_a_socket_file_stays_plain() {
    let folder = Folder::new();
    let socket = folder.text("latchd.sock");
    let daemon = folder.daemon(&["--unix-socket", &socket]);
    let line = daemon.wait_for_log("TLS: the certificate");
    assert!(line.contains(" INFO ") && line.contains(" days"), "{line}");
    daemon.wait_for_log(" with TLS");
    let mut client = crate::vocabulary::Client::unix(&folder.path("latchd.sock"));
    assert_eq!(client.ask("ping _ _"), "ok");
}

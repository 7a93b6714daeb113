//! SIGHUP: new files count for newcomers, bad ones change nothing, and nobody loses anything.

use rustix::fs::{CWD, mkfifoat};
use rustix::process::Signal;

use crate::tls::certificates::{Authority, EXPIRED, Folder, GOOD};
use crate::tls::client::{TlsClient, Wants, config};
use crate::vocabulary::Daemon;

/// How often the log has said this.
fn count(daemon: &Daemon, needle: &str) -> usize {
    daemon.log().iter().filter(|it| it.contains(needle)).count()
}

/// Has the daemon read its files again, and waits until it has said what came of it.
#[track_caller]
fn reload(daemon: &Daemon, client: &mut TlsClient, says: &str) {
    let before = count(daemon, says);
    daemon.signal(Signal::HUP);
    while count(daemon, says) == before {
        assert_eq!(client.ask("ping _ _"), "ok");
    }
}

#[test]
fn newcomers_see_the_new_certificate_and_nobody_loses_a_lock() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let old_config = config(&folder.authority.pem(), &Wants::default());
    let mut old = TlsClient::connect(daemon.address(), &old_config);
    let granted = old.ask("l k 0");
    let token = granted.split(' ').nth(1).unwrap().to_owned();
    let successor = Authority::new("the next authority");
    folder.put(&successor.server(GOOD));
    reload(&daemon, &mut old, "is read again");
    let new_config = config(&successor.pem(), &Wants::default());
    let mut new = TlsClient::connect(daemon.address(), &new_config);
    assert_eq!(new.ask("l k 0"), "timeout", "it is still held");
    // A ticket of the old one is worth nothing: the certificate is shown, and is not known.
    let mut again = TlsClient::silent(daemon.address(), &old_config);
    assert!(again.shake_hands().unwrap_err().contains("UnknownIssuer"));
    assert_eq!(old.ask(&format!("r k {token}")), "ok");
    assert!(new.ask("l k 5").starts_with("ok "));
}

#[test]
fn a_bad_file_leaves_the_old_certificate_and_says_so() {
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let pair = folder.authority.client("somebody", GOOD);
    let daemon = folder.daemon(&["--tls-client-ca", &folder.text("clients.pem")]);
    let wants = Wants {
        pair: Some(&pair),
        ..Wants::default()
    };
    let config = config(&folder.authority.pem(), &wants);
    let mut old = TlsClient::connect(daemon.address(), &config);
    let good = folder.authority.server(GOOD);
    let other = folder.authority.server(GOOD);
    let expired = folder.authority.server(EXPIRED);
    for (name, text, says) in [
        ("cert.pem", "", "--tls-cert: "),
        ("cert.pem", expired.cert.as_str(), "has expired"),
        ("key.pem", other.key.as_str(), "is not the key"),
        ("key.pem", "no key", "holds no private key"),
        ("clients.pem", "no certificate", "--tls-client-ca: "),
    ] {
        folder.put(&good);
        folder.write("clients.pem", &folder.authority.pem());
        folder.write(name, text);
        reload(&daemon, &mut old, says);
        let line = daemon
            .log()
            .into_iter()
            .rfind(|it| it.contains(says))
            .unwrap();
        assert!(
            line.contains(" ERROR ") && line.contains("stays as it was"),
            "{line}"
        );
        let mut newcomer = TlsClient::connect(daemon.address(), &config);
        assert_eq!(newcomer.ask("ping _ _"), "ok");
    }
    // Opening it would wait for a writer.
    folder.put(&good);
    folder.write("clients.pem", &folder.authority.pem());
    std::fs::remove_file(folder.path("key.pem")).unwrap();
    mkfifoat(CWD, folder.path("key.pem"), 0o600.into()).unwrap();
    reload(&daemon, &mut old, "it is not a regular file");
    assert!(daemon.logged("stays as it was: --tls-key: "));
}

#[test]
fn newcomers_need_a_certificate_of_the_new_authority() {
    let folder = Folder::new();
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    folder.write("clients.pem", &first.pem());
    let daemon = folder.daemon(&["--tls-client-ca", &folder.text("clients.pem")]);
    let pairs = [&first, &second].map(|it| it.client("somebody", GOOD));
    let [of_first, of_second] = [0, 1].map(|index| {
        let wants = Wants {
            pair: Some(&pairs[index]),
            versions: &[&rustls::version::TLS12],
            ..Wants::default()
        };
        config(&folder.authority.pem(), &wants)
    });
    let mut old = TlsClient::connect(daemon.address(), &of_first);
    assert!(
        TlsClient::silent(daemon.address(), &of_second)
            .shake_hands()
            .is_err()
    );
    folder.write("clients.pem", &second.pem());
    reload(&daemon, &mut old, "is read again");
    assert!(
        TlsClient::silent(daemon.address(), &of_first)
            .shake_hands()
            .is_err()
    );
    let mut new = TlsClient::connect(daemon.address(), &of_second);
    assert_eq!(new.ask("ping _ _"), "ok");
    assert_eq!(old.ask("ping _ _"), "ok");
}

#[test]
fn the_token_file_is_read_again_too() {
    let folder = Folder::new();
    folder.write("token", "first\n");
    let daemon = Daemon::start(&["--auth-token-file", &folder.text("token")]);
    let mut old = daemon.connect();
    assert_eq!(old.ask("auth _ first"), "ok");
    let reload = |old: &mut crate::vocabulary::Client, says: &str| {
        let before = count(&daemon, says);
        daemon.signal(Signal::HUP);
        while count(&daemon, says) == before {
            assert_eq!(old.ask("ping _ _"), "ok");
        }
    };
    folder.write("token", "second\n");
    reload(&mut old, "the token file is read again");
    assert_eq!(daemon.connect().ask("auth _ second"), "ok");
    assert_eq!(daemon.connect().ask("auth _ first"), "error_auth");
    folder.write("token", " \n");
    reload(
        &mut old,
        "the token file stays as it was: --auth-token-file",
    );
    assert_eq!(daemon.connect().ask("auth _ second"), "ok");
    assert!(!daemon.logged("second"), "a token is in the log");
}

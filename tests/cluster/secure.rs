//! An etcd that lets not everybody in: TLS with certificates on both sides, users and their roles.
//!
//! What ends the daemon at its start needs no etcd, and is always tried. The rest is, where one is named.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificates::{Authority, EXPIRED, Folder, GOOD};
use crate::etcd::{free_ports, program};
use crate::vocabulary::{Daemon, latchd, refusal};

/// For something to come about; far more than it takes.
const LOOKS: usize = 3_000;

/// Without a blank: etcdctl would take only what stands before it.
const PASSWORD: &str = "c0rrect\"horse\\battery";

/// One etcd, ended and removed when dropped.
struct Etcd {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
    _data: TempDir,
}

impl Etcd {
    /// With these options besides.
    fn start(scheme: &str, more: &[&str]) -> Option<Self> {
        let program = program()?;
        let data = TempDir::new().unwrap();
        let [port, peer] = free_ports();
        let url = format!("{scheme}://127.0.0.1:{port}");
        let log = fs::File::create(data.path().join("log")).unwrap();
        let child = Command::new(&program)
            .arg("--data-dir")
            .arg(data.path().join("data"))
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")])
            .args(["--log-level", "error"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let etcd = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            folder: program.parent().unwrap().to_owned(),
            _data: data,
        };
        while TcpStream::connect(etcd.address).is_err() {
            thread::yield_now();
        }
        Some(etcd)
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }

    /// Runs `etcdctl` until etcd takes it: it may not have a leader yet.
    fn control(&self, arguments: &[&str]) {
        for _ in 0..LOOKS {
            let done = Command::new(self.folder.join("etcdctl"))
                .args(["--endpoints", &self.url("http")])
                .args(arguments)
                .output()
                .unwrap();
            if done.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(
                said.contains("no leader") || said.contains("deadline"),
                "{arguments:?}: {said}"
            );
        }
        panic!("etcd does not take {arguments:?}");
    }

    /// How often somebody has shown a password.
    fn logins(&self) -> u64 {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let counted = text.lines().filter(|line| {
            line.starts_with("grpc_server_handled_total") && line.contains("\"Authenticate\"")
        });
        counted
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
            .sum()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn member(cluster: &str, url: &str, more: &[&str]) -> Daemon {
    let mut command = latchd();
    command
        .args(["--port", "0", "--http-port", "0", "--cluster", cluster])
        .args(["--etcd", url, "--cluster-ttl", "10s"])
        .args(more);
    Daemon::serve(command)
}

/// Waits until a member answers this question in this way.
fn await_answer(member: &Daemon, is_it: impl Fn(&str) -> bool) {
    for _ in 0..LOOKS {
        if says(member).is_some_and(|line| is_it(&line)) {
            return;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    panic!("it does not come to that: {:#?}", member.log());
}

fn await_leader(member: &Daemon) {
    await_answer(member, |line| line.starts_with("ok "));
}

fn await_standby(member: &Daemon) {
    await_answer(member, |line| line.starts_with("error_not_leader "));
}

/// What a member says of a counter, if it does within a moment. Whoever has just begun to lead closes all
/// connections.
fn says(member: &Daemon) -> Option<String> {
    let mut stream = TcpStream::connect(member.address()).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .ok()?;
    stream.write_all(b"get\nnothing\n\n").ok()?;
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).ok()? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).ok()
}

fn skipped() {
    eprintln!("skipped: ETCD_FOLDER names no folder with etcd; see docs/cluster.md");
}

#[test]
fn what_cannot_be_used_ends_with_78_and_the_option() {
    let folder = Folder::new();
    let client = folder.authority.client("latchd", GOOD);
    let other = folder.authority.client("latchd", GOOD);
    let expired = folder.authority.client("latchd", EXPIRED);
    folder.write("good.pem", &client.cert);
    folder.write("good.key", &client.key);
    folder.write("other.key", &other.key);
    folder.write("expired.pem", &expired.cert);
    folder.write("expired.key", &expired.key);
    folder.write("empty", "");
    folder.write("two", "one\ntwo\n");
    folder.write("long", &"x".repeat(5_000));
    let text = |name: &str| folder.text(name);
    let [ca, cert, key] = ["ca.pem", "good.pem", "good.key"].map(text);
    let refused = |url: &str, more: &[&str], option: &str, says: &str| {
        for check in [&[][..], &["--check-config"]] {
            let mut command = latchd();
            command
                .args(["--port", "0", "--cluster", "c", "--etcd", url])
                .args(more)
                .args(check);
            let line = refusal(78, command);
            assert!(line.contains(option) && line.contains(says), "{line}");
        }
    };
    let tls = "https://127.0.0.1:1";
    #[rustfmt::skip]
    let wrong = [
        (tls, vec!["--etcd-cert", &cert], "--etcd-cert", "--etcd-key"),
        (tls, vec!["--etcd-key", &key], "--etcd-key", "--etcd-cert"),
        (tls, vec!["--etcd-user", "me"], "--etcd-user", "--etcd-password-file"),
        (tls, vec!["--etcd-password-file", &key], "--etcd-password-file", "--etcd-user"),
        ("http://127.0.0.1:1", vec!["--etcd-ca", &ca], "--etcd-ca", "https://"),
        ("https://a:1,http://b:1", vec!["--etcd-ca", &ca], "--etcd", "for all, or for none"),
    ];
    for (url, more, option, says) in wrong {
        refused(url, &more, option, says);
    }
    let [empty, two, long, nothing] = ["empty", "two", "long", "nothing"].map(text);
    let [old, old_key, other_key] = ["expired.pem", "expired.key", "other.key"].map(text);
    let pair = |cert, key| {
        vec![
            "--etcd-ca",
            ca.as_str(),
            "--etcd-cert",
            cert,
            "--etcd-key",
            key,
        ]
    };
    let user = |file| {
        vec![
            "--etcd-ca",
            ca.as_str(),
            "--etcd-user",
            "me",
            "--etcd-password-file",
            file,
        ]
    };
    #[rustfmt::skip]
    let wrong = [
        (vec!["--etcd-ca", nothing.as_str()], "--etcd-ca", "cannot be read"),
        (vec!["--etcd-ca", &empty], "--etcd-ca", "is empty"),
        (vec!["--etcd-ca", &key], "--etcd-ca", "holds no certificate"),
        (vec!["--etcd-ca", &old], "--etcd-ca", "holds no certificate that can be used now"),
        (pair(&nothing, &key), "--etcd-cert", "cannot be read"),
        (pair(&old, &old_key), "--etcd-cert", "has expired"),
        (pair(&cert, &nothing), "--etcd-key", "cannot be read"),
        (pair(&cert, &other_key), "--etcd-key", "is not the key of the certificate"),
        (user(&nothing), "--etcd-password-file", "cannot be read"),
        (user(&empty), "--etcd-password-file", "is empty"),
        (user(&two), "--etcd-password-file", "more than one line"),
        (user("/dev/zero"), "--etcd-password-file", "it is not a regular file"),
        (user(&long), "--etcd-password-file", "too long"),
    ];
    for (more, option, says) in wrong {
        refused(tls, &more, option, says);
    }
}

#[test]
fn certificates_are_shown_on_both_sides_and_new_ones_count_after_a_hangup() {
    let folder = Folder::new();
    let clients = Authority::new("the clients' authority");
    let both = folder.authority.both();
    folder.write("etcd.pem", &both.cert);
    folder.write("etcd.key", &both.key);
    // etcd's own gateway is a client of it, too.
    folder.write(
        "trusted.pem",
        &format!("{}{}", clients.pem(), folder.authority.pem()),
    );
    let text = |name: &str| folder.text(name);
    let [cert, key, trusted] = ["etcd.pem", "etcd.key", "trusted.pem"].map(text);
    #[rustfmt::skip]
    let options = ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &trusted];
    let Some(etcd) = Etcd::start("https", &options) else {
        return skipped();
    };
    let url = etcd.url("https");
    let good = clients.client("latchd", GOOD);
    folder.write("good.pem", &good.cert);
    folder.write("good.key", &good.key);
    let [ca, cert, key] = ["ca.pem", "good.pem", "good.key"].map(text);
    let leader = member(
        "tls",
        &url,
        &["--etcd-ca", &ca, "--etcd-cert", &cert, "--etcd-key", &key],
    );
    await_leader(&leader);
    assert_eq!(leader.connect().ask("incr hits 3"), "ok 3");
    // Without a certificate, and with one of somebody else, nobody gets in; and who has another
    // authority than etcd's does not even ask.
    let bare = member("tls", &url, &["--etcd-ca", &ca]);
    bare.wait_for_log("etcd cannot be reached");
    folder.write("other.pem", &clients.pem());
    let mistrusts = member("tls", &url, &["--etcd-ca", &text("other.pem")]);
    assert!(
        mistrusts
            .wait_for_log("etcd cannot be reached")
            .contains("invalid peer certificate")
    );
    let foreign = Authority::new("a foreign authority").client("latchd", GOOD);
    folder.write("mine.pem", &foreign.cert);
    folder.write("mine.key", &foreign.key);
    let [cert, key] = ["mine.pem", "mine.key"].map(text);
    let stranger = member(
        "tls",
        &url,
        &["--etcd-ca", &ca, "--etcd-cert", &cert, "--etcd-key", &key],
    );
    stranger.wait_for_log("etcd cannot be reached");
    for outside in [&bare, &mistrusts, &stranger] {
        assert_eq!(says(outside).as_deref(), Some("error_not_leader"));
    }
    // Half of a pair is kept out, and a whole one lets it in.
    folder.write("mine.key", &good.key);
    stranger.signal(Signal::HUP);
    let line = stranger.wait_for_log("what etcd is shown stays as it was");
    assert!(line.contains("--etcd-key"), "{line}");
    folder.write("mine.pem", &good.cert);
    stranger.signal(Signal::HUP);
    stranger.wait_for_log("what etcd is shown is read again");
    await_standby(&stranger);
}

#[test]
fn a_user_with_a_role_for_its_prefix_leads_and_a_token_that_is_over_is_drawn_anew() {
    let Some(etcd) = Etcd::start("http", &["--auth-token-ttl", "1"]) else {
        return skipped();
    };
    let root = ["--user", "root:root"];
    etcd.control(&["user", "add", "root:root"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", &format!("latchd:{PASSWORD}")]);
    etcd.control(&["role", "add", "locks"]);
    #[rustfmt::skip]
    etcd.control(&["role", "grant-permission", "locks", "readwrite", "--prefix=true", "/latchd/auth/"]);
    etcd.control(&["user", "grant-role", "latchd", "locks"]);
    etcd.control(&["auth", "enable"]);
    let files = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let url = etcd.url("http");
    let right = write("right", &format!("{PASSWORD}\n"));
    let user =
        |file: &str| ["--etcd-user", "latchd", "--etcd-password-file", file].map(str::to_owned);
    let start = |cluster: &str, file: &str| {
        let user = user(file);
        member(cluster, &url, &[&user[0], &user[1], &user[2], &user[3]])
    };
    let leader = start("auth", &right);
    await_leader(&leader);
    leader.wait_for_log("goes to etcd unencrypted");
    let mut client = leader.connect();
    assert_eq!(client.ask("incr hits 1"), "ok 1");

    // How large etcd is: only root may ask, but the figures say it.
    let is_known = || {
        let figures = leader.http().get("/metrics").body;
        figures
            .lines()
            .any(|line| line.starts_with("latchd_etcd_bytes ") && !line.ends_with(" 0"))
    };
    for _ in 0..LOOKS {
        if is_known() {
            break;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    assert!(is_known());

    // Without a user, for other keys, and with a wrong password nobody gets in, and says why.
    let nobody = member("auth", &url, &[]);
    assert!(
        nobody
            .wait_for_log("etcd asks for a user")
            .contains("--etcd-user")
    );
    let elsewhere = start("other", &right);
    elsewhere.wait_for_log("etcd does not allow it: etcdserver: permission denied");
    let mine = write("mine", "wrong-s3cret");
    let wrong = start("auth", &mine);
    let line = wrong.wait_for_log("authentication failed");
    assert!(line.contains("--etcd-password-file"), "{line}");
    for outside in [&nobody, &elsewhere, &wrong] {
        assert_eq!(says(outside).as_deref(), Some("error_not_leader"));
    }
    // The right one counts as soon as it is read.
    write("mine", PASSWORD);
    wrong.signal(Signal::HUP);
    await_standby(&wrong);

    // All tokens of a user are over when its password is set, and nobody notices.
    let before = etcd.logins();
    let mut passwd = Command::new(etcd.folder.join("etcdctl"))
        .args(["--endpoints", &url])
        .args(root)
        .args(["user", "passwd", "latchd", "--interactive=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = passwd.stdin.take().unwrap();
    input.write_all(format!("{PASSWORD}\n").as_bytes()).unwrap();
    drop(input);
    assert!(passwd.wait().unwrap().success());
    assert_eq!(client.ask("incr hits 1"), "ok 2");
    // One of these is etcdctl's.
    assert!(etcd.logins() >= before + 2, "no token was drawn anew");

    // And one that nobody has shown for longer than it lasts: all members are stopped meanwhile, which is
    // less than the leader's lease. There is nothing to be waited for but the time.
    let before = etcd.logins();
    for it in [&leader, &wrong, &elsewhere] {
        it.freeze();
    }
    thread::park_timeout(Duration::from_secs(4));
    leader.thaw();
    assert_eq!(client.ask("incr hits 1"), "ok 3");
    assert!(etcd.logins() > before, "no token was drawn anew");
    for it in [&wrong, &elsewhere] {
        it.thaw();
    }
    for it in [&leader, &wrong, &elsewhere, &nobody] {
        let log = it.log().join("\n");
        assert!(!log.contains("c0rrect") && !log.contains("s3cret"), "{log}");
    }
}

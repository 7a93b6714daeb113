//! The configuration file and `--check-config`, as an operator meets them: what is said, how it ends,
//! and that nothing is started.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use latchd::base::Millis;
use tempfile::TempDir;

use crate::vocabulary::{Daemon, latchd, refusal};

/// A directory with a configuration file in it.
fn file(contents: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.toml");
    fs::write(&path, contents).unwrap();
    (dir, path)
}

fn check(path: &Path, options: &[&str]) -> (i32, String, String) {
    let mut command = latchd();
    command.args(["--check-config", "--config"]).arg(path);
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(options).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn a_daemon_serves_with_what_its_file_says_and_flags_and_variables_beat_it() {
    let (_dir, path) = file("port = 0\ndefault-lease-ttl = \"7s\"\nwire-fence = \"never\"\n");
    let mut command = latchd();
    command
        .arg("--config")
        .arg(&path)
        .arg("--wire-fence=always");
    let grant = Daemon::serve(command).connect().lock("k", "0");
    assert_eq!(grant.lease, Millis::from_secs(7));
    assert!(grant.fence.is_some());

    let mut command = latchd();
    command.env("LATCHD_CONFIG", &path);
    command.env("LATCHD_DEFAULT_LEASE_TTL", "9s");
    let grant = Daemon::serve(command).connect().lock("k", "0");
    assert_eq!(grant.lease, Millis::from_secs(9));
    assert!(grant.fence.is_none());
}

#[test]
fn a_wrong_file_ends_the_start_and_the_check_alike() {
    for (contents, says) in [
        ("prot = 1\n", ":1: unknown key \"prot\"; did you mean port?"),
        ("\nport = \"http\"\n", ":2: port: \"http\" is not a port"),
        ("port = 1\nport = 2\n", ":2: "),
        (
            "auth-token-file = \"/nowhere\"\n",
            ":1: auth-token-file: cannot read",
        ),
        ("port = 7\nhttp-port = 7\n", "are both 7"),
    ] {
        let (_dir, path) = file(contents);
        let mut command = latchd();
        command.arg("--config").arg(&path);
        // A setting of the environment would beat what is looked at.
        command.env_remove("LATCHD_HTTP_PORT");
        let said = refusal(78, command);
        assert!(said.starts_with("configuration error: "), "{said}");
        assert!(said.contains(says), "{said}");
        let mut command = latchd();
        command.arg("--check-config").arg("--config").arg(&path);
        command.env_remove("LATCHD_HTTP_PORT");
        assert_eq!(refusal(78, command), said);
    }
}

#[test]
fn a_check_says_ok_and_opens_and_makes_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dir, path) = file(&format!("port = {}\n", taken.local_addr().unwrap().port()));
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, socket, log) = (at("data"), at("socket"), at("log"));
    let options = [
        "--data-dir",
        &data,
        "--unix-socket",
        &socket,
        "--log-file",
        &log,
    ];
    let (code, said, errors) = check(&path, &options);
    assert_eq!((code, errors.as_str()), (0, ""));
    let from = format!("ok: the settings can be used, from {}\n", path.display());
    assert_eq!(said, from);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "only the configuration file: {names:?}");
}

#[test]
fn a_check_tells_all_that_a_start_would_stumble_over() {
    let (dir, path) = file("");
    let file_in_the_way = path.to_str().unwrap();
    let missing = dir.path().join("missing/log");
    let missing = missing.to_str().unwrap();
    for (options, says) in [
        (&["--cpu=99999"][..], "no such core here"),
        (&["--data-dir", file_in_the_way], "it is not a directory"),
        (
            &["--unix-socket", file_in_the_way],
            "it exists and is not a socket",
        ),
        (&["--http-unix-socket", missing], "(--http-unix-socket)"),
        (&["--log-file", missing], "cannot open the log file"),
        (&["--log-file", "/"], "it is a directory"),
    ] {
        let (code, said, errors) = check(&path, options);
        assert_eq!((code, said.as_str()), (78, ""), "{options:?}: {errors}");
        assert!(errors.starts_with("configuration error: "), "{errors}");
        assert!(errors.contains(says), "{errors}");
        let mut command = latchd();
        command.arg("--port=0").args(options);
        refusal(78, command);
    }
    let (_, _, errors) = check(&path, &["--cpu=99999", "--log-file=/"]);
    assert_eq!(errors.lines().count(), 2, "{errors}");
}

#[test]
fn a_check_reads_the_data_directory_also_while_it_is_used() {
    let (dir, path) = file("");
    let data = dir.path().join("data");
    let data_dir = format!("--data-dir={}", data.display());
    let socket = dir.path().join("socket");
    let unix_socket = format!("--unix-socket={}", socket.display());
    let mut daemon = Daemon::start(&[&data_dir, &unix_socket]);
    daemon.connect().lock("k", "0");
    let (code, _, errors) = check(&path, &[&data_dir, &unix_socket]);
    assert_eq!(code, 0, "{errors}");
    daemon.stop();
    let log = fs::read_dir(&data).unwrap().map(|it| it.unwrap().path());
    let mut logs = log.filter(|it| it.extension().is_some_and(|it| it == "log"));
    let damaged = logs.next().unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[12] ^= 1; // in its header
    fs::write(&damaged, bytes).unwrap();
    let (code, _, errors) = check(&path, &[&data_dir]);
    assert_eq!(code, 74, "{errors}");
    assert!(errors.contains("--data-dir"), "{errors}");
    drop(UnixListener::bind(&socket)); // what a daemon that was killed leaves behind
    let (code, _, errors) = check(&path, &[&unix_socket]);
    assert_eq!(code, 0, "{errors}");
}

#[test]
fn a_check_warns_as_a_start_would() {
    let (_dir, path) = file("host = \"0.0.0.0\"\n");
    let mut command = latchd();
    command.arg("--check-config").arg("--config").arg(path);
    command.env("LATCHD_AUTH_TOKN", "x");
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    for says in ["LATCHD_AUTH_TOKN is not a setting", "no token is asked for"] {
        assert!(errors.contains(says), "{errors}");
    }
}

#[test]
fn the_manual_page_is_printed() {
    let mut command = latchd();
    command.arg("--man");
    let mut daemon = Daemon::spawn(command);
    assert_eq!(daemon.wait_for_exit(), (0, Vec::new()));
    let page = daemon.stdout();
    assert!(page.starts_with(".TH LATCHD 8 "), "{page}");
}

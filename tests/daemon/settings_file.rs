//! The configuration file and `--check-config`, as an operator meets them: what is said, how it ends,
//! and that nothing is started.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use latchd::base::Millis;
use rustix::fs::{CWD, mkfifoat};
use rustix::process::{Signal, geteuid};
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

/// A start opens `LOCK` to write it, follows no link there, and makes files.
#[test]
fn check_refuses_paths_that_a_start_cannot_lock_or_write() {
    let (dir, path) = file("");
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("precious"), "").unwrap();
    for name in ["link", "folder", "fifo"] {
        fs::create_dir(at(name)).unwrap();
    }
    symlink(at("precious"), at("link/LOCK")).unwrap();
    fs::create_dir(at("folder/LOCK")).unwrap();
    mkfifoat(CWD, at("fifo/LOCK"), 0o600.into()).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    fs::create_dir(at("socket.lock")).unwrap();
    let before = names_below(dir.path());
    for options in [
        ["--data-dir", &at("link")],
        ["--data-dir", &at("folder")],
        ["--data-dir", &at("fifo")],
        ["--data-dir", &at("dangling")],
        ["--data-dir", "/proc/x"],
        ["--unix-socket", &at("socket")],
        ["--unix-socket", "/proc/x"],
        ["--log-file", "/proc/x"],
    ] {
        let mut command = latchd();
        command.arg("--port=0").args(options);
        let started = refusal(78, command);
        let (code, said, errors) = check(&path, &options);
        assert_eq!((code, said.as_str()), (78, ""), "{started}");
        assert!(errors.contains(options[0]), "{errors}");
    }
    assert_eq!(names_below(dir.path()), before, "something was changed");
}

/// To open a FIFO waits for its writer, and a data directory has none.
#[test]
fn fifo_in_place_of_a_file_of_the_data_directory_is_refused() {
    let (dir, path) = file("");
    let data = dir.path().join("data");
    let option = format!("--data-dir={}", data.display());
    for name in ["00000000000000000001.log", "LOCK"] {
        let mut daemon = Daemon::start(&[&option]);
        daemon.connect().lock("k", "0");
        daemon.stop();
        fs::remove_file(data.join(name)).unwrap();
        mkfifoat(CWD, data.join(name), 0o600.into()).unwrap();
        let start = if name == "LOCK" { 78 } else { 74 };
        for (code, words) in [
            (start, ["--port=0", &option]),
            (start, ["--check-config", &option]),
            (start, ["--repair", &option]),
            (74, ["--inspect", data.to_str().unwrap()]),
        ] {
            let mut command = latchd();
            command.arg("--config").arg(&path).args(words);
            let said = refusal(code, command);
            assert!(said.contains(name), "{words:?}: {said}");
        }
        fs::remove_dir_all(&data).unwrap();
    }
}

/// Permissions say nothing to root, so there it is tried as another user.
#[test]
fn check_refuses_a_data_directory_with_files_that_a_start_cannot_write() {
    const OTHER_UID: u32 = 65_534;
    let (dir, _) = file("");
    let is_root = geteuid().is_root();
    let latchd = |option: &str| {
        let mut command = latchd();
        command.args(["--port=0", "--data-dir"]);
        command.arg(dir.path().join("data")).arg(option);
        if is_root {
            command.uid(OTHER_UID).gid(OTHER_UID);
        }
        command
    };
    if is_root {
        chown(dir.path(), Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    }
    if let Err(error) = latchd("--version").output() {
        eprintln!("skipped: another user cannot run the program: {error}");
        return;
    }
    let mut daemon = Daemon::serve(latchd("--host=127.0.0.1"));
    daemon.connect().lock("k", "0");
    daemon.stop();
    let data = dir.path().join("data");
    let set_mode = |name: &str, mode| {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let segment = names_below(&data)
        .into_iter()
        .find(|it| it.ends_with(".log"));
    for (code, name) in [(78, "LOCK"), (74, segment.unwrap().as_str())] {
        set_mode(name, 0o400);
        let checked = refusal(code, latchd("--check-config"));
        let started = refusal(code, latchd("--host=127.0.0.1"));
        for said in [checked, started] {
            assert!(said.contains("Permission denied"), "{name}: {said}");
        }
        set_mode(name, 0o600);
    }
    let (code, log) = Daemon::spawn(latchd("--check-config")).wait_for_exit();
    assert_eq!(code, 0, "{log:#?}");
}

/// The names of all files in a directory and in those in it.
fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            let below = names_below(&entry.path()).into_iter();
            names.extend(below.map(|it| format!("{name}/{it}")));
        }
        names.push(name);
    }
    names.sort();
    names
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

/// What a start and a check with these options warn of, one text each.
fn warnings(options: &[&str]) -> [Vec<String>; 2] {
    let mut daemon = Daemon::start(options);
    let started = daemon.stop();
    let started = started.iter().filter_map(|it| it.split_once(" WARN  "));
    let mut command = latchd();
    command.args(options).args(["--port=0", "--check-config"]);
    let (code, checked) = Daemon::spawn(command).wait_for_exit();
    assert_eq!(code, 0, "{checked:#?}");
    let checked = checked.iter().filter_map(|it| it.split_once("warning: "));
    [
        started.map(|(_, text)| text.to_owned()).collect(),
        checked.map(|(_, text)| text.to_owned()).collect(),
    ]
}

#[test]
fn start_and_check_warn_of_secrets_and_data_that_other_users_can_reach() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (token, data) = (at("token's"), at("data"));
    fs::write(&token, "0123456789abcdef\n").unwrap();
    fs::create_dir(&data).unwrap();
    let options = [
        "--auth-token-file",
        token.to_str().unwrap(),
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let uid = geteuid().as_raw();
    let quoted = format!("'{}'", options[1].replace('\'', r"'\''"));
    for (mode, others_can) in [
        (0o600, ""),
        (0o640, ""),
        (0o710, ""),
        (0o644, "read"),
        (0o620, "change"),
        (0o602, "change"),
        (0o666, "read and change"),
    ] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(mode | 0o100)).unwrap();
        let expected = match others_can {
            "" => Vec::new(),
            _ => vec![
                format!(
                    "--auth-token-file {quoted} belongs to user {uid} and has mode {mode:04o}: \
                     other users can {others_can} it; run: chmod g-w,o-rwx {quoted}"
                ),
                format!(
                    "--data-dir '{0}' belongs to user {uid} and has mode {1:04o}: \
                     other users can {others_can} it; run: chmod g-w,o-rwx '{0}'",
                    options[3],
                    mode | 0o100
                ),
            ],
        };
        let [started, checked] = warnings(&options);
        assert_eq!(started, expected, "{mode:o}");
        assert_eq!(checked, expected, "{mode:o}");
    }
}

/// Root may check the settings of a daemon that runs as another user.
#[test]
fn only_a_start_of_root_warns_of_secrets_and_data_of_another_user() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (token, data) = (dir.path().join("token"), dir.path().join("data"));
    fs::write(&token, "0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    for path in [&token, &data] {
        chown(path, Some(1234), None).unwrap();
    }
    let (token, data) = (token.to_str().unwrap(), data.to_str().unwrap());
    let expected = [
        format!(
            "--auth-token-file '{token}' belongs to user 1234 and has mode 0600: \
             other users can read and change it; run: chown 0 '{token}'"
        ),
        format!(
            "--data-dir '{data}' belongs to user 1234 and has mode 0700: \
             other users can read and change it; run: chown -R 0 '{data}'"
        ),
    ];
    let [started, checked] = warnings(&["--auth-token-file", token, "--data-dir", data]);
    assert_eq!(started, expected);
    assert_eq!(checked, [""; 0]);
}

#[test]
fn start_and_check_warn_of_short_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let option = format!("--auth-token-file={}", path.display());
    let says = |tokens: &str| {
        format!("{tokens} shorter than 16 characters; make one with: openssl rand -hex 16")
    };
    for (tokens, expected) in [
        ("0123456789abcdef", None),
        ("0123456789abcde", Some(says("the token is"))),
        (
            "a read\n0123456789abcdef b\nc d write\n",
            Some(says("2 of 3 tokens are")),
        ),
    ] {
        fs::write(&path, tokens).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let [started, checked] = warnings(&[&option]);
        assert_eq!(started, Vec::from_iter(expected.clone()), "{tokens}");
        assert_eq!(checked, Vec::from_iter(expected), "{tokens}");
    }
    let [started, checked] = warnings(&["--auth-token=short"]);
    assert_eq!(started, [says("the token is")]);
    assert_eq!(checked, started);
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

const ANY_PORTS: [&str; 2] = ["--port=0", "--http-port=0"];

#[test]
fn shares_of_the_file_are_read_again_on_sighup_and_what_is_held_moves() {
    let (_dir, path) = file("share = [\"media=/m/\", \"video=/m/video/\"]\n");
    let mut command = latchd();
    command.arg("--config").arg(&path).args(ANY_PORTS);
    let mut daemon = Daemon::serve(command);
    let mut client = daemon.connect();
    for key in ["/m/a", "/m/video/a", "/m/video/b", "job"] {
        client.lock(key, "0");
    }
    let active = |share: &str| format!("locks_active{{share=\"{share}\",type=\"lock\"}} ");
    let expect = |wanted: &[(&str, u32)]| {
        let metrics = daemon.http().get("/metrics").body;
        for (share, count) in wanted {
            let line = format!("\n{}{count}\n", active(share));
            assert!(metrics.contains(&line), "{share}: {metrics}");
        }
        metrics
    };
    expect(&[("", 1), ("media", 1), ("video", 2)]);
    // A file that cannot be used changes nothing.
    fs::write(&path, "share = [\"media\"]\n").unwrap();
    daemon.signal(Signal::HUP);
    let kept = daemon.wait_for_log("SIGHUP: the list of shares stays as it was: ");
    assert!(kept.contains("latchd.toml:1: share"), "{kept}");
    expect(&[("", 1), ("media", 1), ("video", 2)]);
    fs::write(&path, "share = [\"jobs=job\", \"video=/m/video/a\"]\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("SIGHUP: the list of shares is read again");
    let metrics = expect(&[("", 2), ("jobs", 1), ("video", 1)]);
    assert!(!metrics.contains("share=\"media\""));
    // Without any, the figures are as they ever were.
    fs::write(&path, "").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for_log_times("SIGHUP: the list of shares is read again", 2);
    let metrics = daemon.http().get("/metrics").body;
    assert!(metrics.contains("\nlocks_active{type=\"lock\"} 4\n") && !metrics.contains("share="));
    client.half_close();
    client.rest();
    daemon.stop();
}

#[test]
fn shares_of_the_command_line_stay_on_sighup() {
    let (_dir, path) = file("share = \"media=/m/\"\n");
    let mut command = latchd();
    command.arg("--config").arg(&path).args(ANY_PORTS);
    command.args(["--share", "jobs=job", "--share=all=a"]);
    let mut daemon = Daemon::serve(command);
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("SIGHUP: nothing to reload");
    let metrics = daemon.http().get("/metrics").body;
    for share in ["jobs", "all"] {
        assert!(metrics.contains(&format!("{{share=\"{share}\",reason=\"explicit\"}} 0\n")));
    }
    assert!(!metrics.contains("share=\"media\""));
    daemon.stop();
}

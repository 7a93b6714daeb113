//! Who may do what: the file of tokens, users of the machine over real unix sockets, and the lines that an
//! operator reads about it.

use std::fs;

use rustix::fs::{CWD, mkfifoat};
use rustix::process::{Signal, getuid};

use crate::vocabulary::{Client, Daemon, latchd, refusal};

const TOKENS: &str = "\
# tokens of the house
house-s3cret    house   admin
batch-s3cret    batch   write  jobs.

reader-s3cret   reader  read
";

fn token_file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, text).unwrap();
    let option = format!("--auth-token-file={}", path.display());
    (dir, option)
}

#[track_caller]
fn let_in(daemon: &Daemon, token: &str) -> Client {
    let mut client = daemon.connect();
    assert_eq!(client.ask(&format!("auth _ {token}")), "ok");
    client
}

#[test]
fn each_line_of_the_file_is_a_token_and_what_it_gives() {
    let (_dir, option) = token_file(TOKENS);
    let daemon = Daemon::start(&[&option]);
    let mut batch = let_in(&daemon, "batch-s3cret");
    batch.lock("jobs.1", "0");
    assert_eq!(batch.ask("l other 0"), "error_forbidden");
    assert_eq!(batch.ask("break jobs.1 *"), "error_forbidden");
    let mut reader = let_in(&daemon, "reader-s3cret");
    assert_eq!(reader.ask("l jobs.1 0"), "error_forbidden");
    assert_eq!(reader.stats()["locks"][0]["key"], "jobs.1");
    let mut house = let_in(&daemon, "house-s3cret");
    assert!(house.ask("who jobs.1").contains(r#""user":"batch""#));
    assert_eq!(house.ask("break jobs.1 *"), "ok 1");
    assert_eq!(daemon.connect().ask("auth _ batch"), "error_auth");
}

#[test]
fn a_file_that_cannot_be_used_stops_the_start_and_its_line_is_named() {
    for (text, says) in [
        ("a-s3cret\nb-s3cret bob reads\n", "line 2: its third word"),
        (
            "a-s3cret\n# b\na-s3cret read\n",
            "line 3: this token stands",
        ),
        ("a-s3cret root admin x.\nb\n", "line 1: an admin"),
        ("# nobody\n", "it holds comments and no token"),
        (&"a-s3cret\n".repeat(257), "line 257: there may be 256"),
    ] {
        let (_dir, option) = token_file(text);
        let mut command = latchd();
        command.args(["--port=0", &option]);
        let said = refusal(78, command);
        assert!(said.contains("--auth-token-file: "), "{said}");
        assert!(said.contains(says) && !said.contains("s3cret"), "{said}");
    }
}

/// Opening it would wait for a writer, and with it everything else.
#[test]
fn fifo_in_place_of_the_token_file_does_not_block_the_loop() {
    let (dir, option) = token_file("s3cret\n");
    let path = dir.path().join("tokens");
    let daemon = Daemon::start(&[&option]);
    fs::remove_file(&path).unwrap();
    mkfifoat(CWD, &path, 0o600.into()).unwrap();
    daemon.signal(Signal::HUP);
    let line = daemon.wait_for_log("stays as it was");
    assert!(
        line.contains("--auth-token-file: ") && line.contains("it is not a regular file"),
        "{line}"
    );
    assert_eq!(let_in(&daemon, "s3cret").ask("ping _ _"), "ok");
    fs::remove_file(&path).unwrap();
    fs::write(dir.path().join("new"), "other\n").unwrap();
    std::os::unix::fs::symlink(dir.path().join("new"), &path).unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("is read again");
    let_in(&daemon, "other");
}

#[test]
fn a_user_of_the_machine_is_let_in_over_a_unix_socket_and_only_there() {
    let (_dir, option) = token_file(TOKENS);
    let dir = tempfile::tempdir().unwrap();
    let own = getuid().as_raw();
    for (uid, is_let_in) in [(own, true), (own + 1, false)] {
        let path = dir.path().join(format!("{uid}.sock"));
        let daemon = Daemon::start_at(&path, &[&option, &format!("--unix-admin-uid={uid}")]);
        let mut local = Client::unix(&path);
        let answer = local.ask("break job *");
        assert_eq!(answer, if is_let_in { "ok 0" } else { "error_auth" });
        assert_eq!(daemon.connect().ask("break job *"), "error_auth");
        if is_let_in {
            let line = daemon.wait_for_log(" audit action=break ");
            assert!(
                line.contains(&format!(" user=uid:{uid} address=unix")),
                "{line}"
            );
        }
    }
}

#[test]
fn what_operators_do_is_told_with_who_and_from_where() {
    let (_dir, option) = token_file(TOKENS);
    let mut daemon = Daemon::start(&[&option, "--http-port=0"]);
    let mut house = let_in(&daemon, "house-s3cret");
    house.ask("hello _ name=ops");
    let address = house.local_address();
    let mut batch = let_in(&daemon, "batch-s3cret");
    let grant = batch.lock("jobs.1", "0");
    house.ask("break jobs.1 *");
    assert_eq!(batch.ask("rangelock jobs.db ex 5 10 0 pid-7"), "ok");
    let mut gateway = let_in(&daemon, "batch-s3cret");
    gateway.ask("attach jobs.gw 60 its-own");
    assert_eq!(gateway.ask("rangelock jobs.db sh 20 0 0"), "ok");
    assert_eq!(house.ask("break jobs.db range *"), "ok 2");
    house.ask("grace _ end");
    let mut web = daemon.http();
    let token = "Authorization: Bearer house-s3cret\r\n";
    let path = format!("DELETE /v1/locks/jobs.1/holders/{}", grant.token_fence());
    web.put(&path, token, "");
    assert_eq!(web.answer().status, 404);
    let log = daemon.stop();
    let audit = log.iter().filter(|line| line.contains(" audit action="));
    let audit: Vec<&String> = audit.collect();
    let [held, ranges, grace, http] = &audit[..] else {
        panic!("{log:#?}");
    };
    let who = format!(" name=ops user=house address={address}");
    for (line, says) in [
        (held, " audit action=break "),
        (ranges, " audit action=break "),
        (grace, " audit action=grace-end "),
    ] {
        assert!(line.contains(says) && line.contains(&who), "{line}");
    }
    assert!(held.ends_with(" key=jobs.1 fence=*"), "{held}");
    assert!(
        http.contains(" key=jobs.1 ") && http.contains(" user=house "),
        "{http}"
    );
    // What was ended is told as well, with whose it was.
    let broken = log
        .iter()
        .filter_map(|line| line.split_once(" broken by an operator "));
    let broken: Vec<&str> = broken.map(|(_, whose)| whose).collect();
    let [grant, of_connection, of_client] = broken[..] else {
        panic!("{log:#?}");
    };
    assert!(grant.starts_with("key=jobs.1 fence=") && grant.ends_with(" user=batch"));
    let whose = r#"resource=jobs.db range="5 10" client=#2 owner=pid-7 user=batch"#;
    assert_eq!(of_connection, whose);
    let whose = r#"resource=jobs.db range="20 0" client=jobs.gw owner="" user=batch"#;
    assert_eq!(of_client, whose);
    assert!(log.iter().all(|line| !line.contains("s3cret")), "{log:#?}");
}

#[test]
fn what_is_forbidden_is_told_once_a_second_however_often_it_is_tried() {
    let (_dir, option) = token_file(TOKENS);
    let daemon = Daemon::start(&[&option]);
    let mut reader = let_in(&daemon, "reader-s3cret");
    for _ in 0..1_000 {
        assert_eq!(reader.ask("l jobs.1 0"), "error_forbidden");
    }
    let first = daemon.wait_for_log(" audit action=forbidden ");
    let who = " client=#1 name=\"\" user=reader address=";
    let said = format!("{who}{} what=l key=jobs.1", reader.local_address());
    assert!(first.ends_with(&said), "{first}");
    daemon.wait_for_log(" more=");
    let lines = daemon.log();
    let told = lines
        .iter()
        .filter(|line| line.contains(" action=forbidden "));
    assert!(told.count() < 50, "{lines:#?}");
}

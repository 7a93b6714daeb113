//! `latch range lock … -- COMMAND`: bytes stay locked while a connection is made again, and the command never outlives them.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::latch::{Run, expect, is_alive, latch, latch_at, said, wait_gone, wait_until};
use crate::proxy::Proxy;
use crate::vocabulary::{Client, Daemon, latchd};

/// Begins, and ends with 6 when it is told to.
const UNTIL_TOLD: &str = "echo $$; read line; exit 6";

fn lock(options: &[&str], script: &str) -> Command {
    let lock = ["range", "lock"];
    let mut command = latch(&[&lock[..], options, &["f", "0", "10", "--"]].concat());
    command.args(["sh", "-c", script]).stdin(Stdio::piped());
    command
}

fn lock_at(daemon: &Daemon, options: &[&str], script: &str) -> Command {
    let mut command = lock(options, script);
    command.env("LATCH_SERVER", daemon.address().to_string());
    command
}

fn listed(client: &mut Client) -> Value {
    serde_json::from_str(&client.ask("rangelist f _")[3..]).unwrap()
}

#[test]
fn what_a_client_holds_is_listed_over_all_resources_and_ended_in_one_step() {
    let daemon = Daemon::start(&[]);
    let mut gateway = daemon.connect();
    assert!(gateway.ask("attach gw/1 60 s3cret").starts_with("ok "));
    for lock in ["f ex 0 10 0 bob", "f ex 20 10 0 bob", "g sh 0 0 0"] {
        assert_eq!(gateway.ask(&format!("rangelock {lock}")), "ok");
    }
    let listed = |options: &[&str]| -> Vec<String> {
        let out = expect(
            &daemon,
            0,
            &[&["--json", "range", "list"], options].concat(),
        );
        let document: Value = serde_json::from_str(&out).unwrap();
        let locks = document["locks"].as_array().unwrap().iter();
        let text = |it: &Value| format!("{} {}", it["resource"].as_str().unwrap(), it["start"]);
        locks.map(text).collect()
    };
    let all = ["f 0", "f 20", "g 0"];
    assert_eq!(listed(&["--client", "gw/1"]), all);
    assert_eq!(listed(&["--client", "gw/1", "--owner", "bob"]), all[..2]);
    assert_eq!(listed(&["--owner", "bob"]), all[..2]);
    expect(&daemon, 64, &["range", "list", "f", "--client", "gw/1"]);
    expect(&daemon, 64, &["range", "list"]);
    let table = expect(&daemon, 0, &["range", "list", "--client", "gw/1"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(words[..7], ["holds", "f", "ex", "20", "10", "gw/1", "bob"]);
    let number = words.last().unwrap().parse::<u64>();
    assert!(number.is_ok(), "no number of the lock: {table}");

    let ended =
        |code, options: &[&str]| expect(&daemon, code, &[&["range", "break"], options].concat());
    assert_eq!(ended(0, &["f", "25", "1"]), "1");
    assert_eq!(ended(0, &["--client", "gw/1"]), "2");
    assert_eq!(ended(1, &["--client", "gw/1"]), "0");
    assert_eq!(gateway.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(ended(0, &["f"]), "1");
    ended(64, &[]);
    ended(64, &["f", "0"]);
}

/// A page has 1,000 range locks at most, and ends after 64 KiB.
#[test]
fn a_client_with_more_range_locks_than_a_page_has_is_listed_completely() {
    let daemon = Daemon::start(&[]);
    let mut gateway = daemon.connect();
    assert!(gateway.ask("attach gw/1 60 s3cret").starts_with("ok "));
    let pieces = (0..1_000).map(|piece| ("f".to_owned(), 2 * piece));
    let pieces: Vec<(String, u64)> = pieces.chain([("g".to_owned(), 0)]).collect();
    for (resource, start) in &pieces {
        let answer = gateway.ask(&format!("rangelock {resource} ex {start} 1 0 bob"));
        assert_eq!(answer, "ok");
    }

    let mut operator = daemon.connect();
    for of in ["gw/1 client", "bob owner"] {
        let (mut listed, mut pages, mut next) = (Vec::new(), 0, Some(String::new()));
        while let Some(cursor) = next {
            let answer = operator.ask(&format!("rangelist {of} {cursor}"));
            let page: Value = serde_json::from_str(answer.strip_prefix("ok ").unwrap()).unwrap();
            listed.extend(page["locks"].as_array().unwrap().iter().map(|it| {
                let resource = it["resource"].as_str().unwrap();
                (resource.to_owned(), it["start"].as_u64().unwrap())
            }));
            (pages, next) = (pages + 1, page["next"].as_str().map(str::to_owned));
        }
        assert!(pages > 1, "{of}");
        assert_eq!(listed, pieces, "{of}");
    }
    for of in [["--client", "gw/1"], ["--owner", "bob"]] {
        let table = expect(&daemon, 0, &[&["range", "list"][..], &of].concat());
        let listed = table.lines().map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[1].to_owned(), words[3].parse().unwrap())
        });
        assert_eq!(listed.collect::<Vec<_>>(), pieces, "{of:?}");
    }
}

#[test]
fn range_locks_of_a_client_are_listed_and_ended_at_every_server() {
    let daemons = [Daemon::start(&[]), Daemon::start(&[])];
    let mut gateways = daemons.each_ref().map(Daemon::connect);
    for (gateway, locks) in gateways.iter_mut().zip([&["f"][..], &["g", "h"]]) {
        assert!(gateway.ask("attach gw/1 60 s3cret").starts_with("ok "));
        for resource in locks {
            assert_eq!(gateway.ask(&format!("rangelock {resource} ex 0 1 0")), "ok");
        }
    }
    let servers = daemons.each_ref().map(|it| it.address().to_string());
    let printed = |what: &str| {
        let mut command = latch(&["range", what, "--client", "gw/1"]);
        command.env("LATCH_SERVER", servers.join(","));
        let said = said(command);
        (said.code, said.out)
    };
    let (code, table) = printed("list");
    let resources = table.lines().map(|line| line.split_whitespace().nth(1));
    assert_eq!(code, Some(0));
    assert!(resources.eq(["f", "g", "h"].map(Some)), "{table}");
    assert_eq!(printed("break"), (Some(0), "3\n".to_owned()));
    assert_eq!(printed("break"), (Some(1), "0\n".to_owned()));
}

#[test]
fn a_client_names_its_adapter_and_the_limit_of_that_refuses_one_more() {
    let daemon = Daemon::start(&["--http-port=0", "--max-clients=nfs=1"]);
    let lock = |client: &str, adapter: &str, start: &str| {
        let of = ["--client", client, "--adapter", adapter];
        let words = [&["range", "lock"], &of[..], &["f", start, "1"]].concat();
        let mut command = latch_at(&daemon, &words);
        command.env("LATCH_CLIENT_SECRET", "s3cret");
        said(command)
    };
    assert_eq!(lock("gw/1", "nfs", "0").code, Some(0));
    let refused = lock("gw/2", "nfs", "1");
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.err.contains("error_max_clients"), "{refused:?}");
    assert_eq!(lock("gw/2", "smb", "1").code, Some(0), "it has no limit");
    let listed = daemon.http().get("/v1/clients").json();
    let clients = listed["clients"].as_array().unwrap().iter();
    let adapters = clients.map(|it| [&it["client"], &it["adapter"]]);
    assert!(adapters.eq([["gw/1", "nfs"], ["gw/2", "smb"]]), "{listed}");
}

#[track_caller]
fn tell(run: &mut Run) {
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn a_connection_that_only_the_server_has_seen_end_is_made_again() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let mut command = lock(&["--ttl", "8s"], UNTIL_TOLD);
    command.env("LATCH_SERVER", proxy.address.to_string());
    let mut run = Run::start(command);
    run.pid();
    let before = proxy.accepted();
    proxy.cut_servers();
    // Whoever comes meanwhile does not get them.
    let other = ["range", "lock", "-n", "f", "5", "1", "--", "true"];
    expect(&daemon, 1, &other);
    wait_until("it has another connection", || proxy.accepted() > before);
    expect(&daemon, 1, &other);
    tell(&mut run);
    assert_eq!(run.code(), Some(6));
    expect(&daemon, 0, &other);
}

#[test]
fn a_command_is_gone_before_somebody_else_has_its_bytes() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    // It does not listen, and is killed.
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut command = lock(&["--ttl", "3s"], script);
    command.env("LATCH_SERVER", proxy.address.to_string());
    let mut run = Run::start(command);
    let first = run.pid();
    proxy.refuse(true);
    proxy.cut_servers();
    expect(
        &daemon,
        0,
        &["range", "lock", "-w", "60", "f", "0", "0", "--", "true"],
    );
    assert!(!is_alive(first), "two had them at the same time");
    assert_eq!(run.code(), Some(79));
}

#[test]
fn an_operator_that_breaks_the_lock_ends_the_command() {
    let daemon = Daemon::start(&[]);
    let mut run = Run::start(lock_at(&daemon, &["--ttl", "1h"], UNTIL_TOLD));
    run.pid();
    assert_eq!(daemon.connect().ask("break f range *"), "ok 1");
    assert_eq!(run.code(), Some(79));
}

#[test]
fn what_is_killed_leaves_nobody_and_no_bytes() {
    let daemon = Daemon::start(&[]);
    let script = "sleep 1000 & echo $!; echo $$; wait";
    let mut run = Run::start(lock_at(&daemon, &["--ttl", "1h"], script));
    let pids = [run.pid(), run.pid()];
    run.signal(Signal::KILL);
    // An hour is more than the test's patience: the warden has let them go, once nobody was left.
    let next = ["range", "lock", "-w", "10", "f", "0", "10", "--", "true"];
    expect(&daemon, 0, &next);
    for pid in pids {
        assert!(!is_alive(pid), "{pid:?}");
    }
}

#[test]
fn if_we_are_stopped_the_command_does_not_outlive_its_bytes() {
    let daemon = Daemon::start(&["--read-timeout", "1"]);
    let script = "echo $$; exec sleep 1000";
    let mut run = Run::start(lock_at(&daemon, &["--ttl", "1s"], script));
    let command = run.pid();
    run.signal(Signal::STOP);
    wait_gone(command);
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
}

#[test]
fn a_server_that_comes_back_with_its_data_has_kept_them() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let socket = dir.path().join("s");
    let start = || {
        let mut command = latchd();
        command.args(["--port", "0", "--data-dir", &data, "--unix-socket"]);
        command.arg(&socket);
        Daemon::serve(command)
    };
    let daemon = start();
    let mut command = lock(&["--ttl", "30s"], UNTIL_TOLD);
    command.env("LATCH_SERVER", format!("unix:{}", socket.display()));
    let mut run = Run::start(command);
    run.pid();
    drop(daemon); // kill -9
    let daemon = start();
    let mut client = daemon.connect();
    wait_until("they are had back", || {
        let locks = listed(&mut client)["locks"].clone();
        assert_eq!(locks[0]["len"], 10, "{locks}");
        locks[0]["pending"] == false
    });
    tell(&mut run);
    assert_eq!(run.code(), Some(6));
    assert_eq!(listed(&mut client)["lock_count"], 0);
}

#[test]
fn a_server_that_lets_nobody_wait_for_long_is_asked_again() {
    let daemon = Daemon::start(&["--max-range-wait", "100ms"]);
    let mut client = daemon.connect();
    client.ask("hello _ name=alice");
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    let mut run = Run::start(lock_at(&daemon, &[], "echo got it"));
    let mut longest = 0;
    wait_until("it waits for the second time", || {
        let waits = listed(&mut client)["waiters"][0]["since_ms"].as_u64();
        let is_new = waits.is_some_and(|it| it < longest);
        longest = longest.max(waits.unwrap_or(0));
        is_new
    });
    // Whoever has had enough is told who is in the way.
    let said = said(lock_at(&daemon, &["-w", "300ms", "-E", "9"], "true"));
    assert_eq!(said.code, Some(9), "{said:?}");
    assert!(
        said.err.contains("bytes 0 to 9 of 'f' are held by #"),
        "{said:?}"
    );
    assert_eq!(client.ask("rangeunlock f 0 0"), "ok");
    assert_eq!(run.line(), "got it");
    assert_eq!(run.code(), Some(0));
    assert_eq!(listed(&mut client)["lock_count"], 0);
}

#[test]
fn a_client_that_waits_for_long_is_asked_for_again_as_well() {
    let daemon = Daemon::start(&["--max-range-wait", "100ms"]);
    let mut client = daemon.connect();
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    let words = ["range", "lock", "--client", "gw/1", "f", "0", "10"];
    let mut command = latch_at(&daemon, &words);
    command.env("LATCH_CLIENT_SECRET", "s3cret");
    let mut run = Run::start(command);
    let mut longest = 0;
    wait_until("it waits for the second time", || {
        let waits = listed(&mut client)["waiters"][0]["since_ms"].as_u64();
        let is_new = waits.is_some_and(|it| it < longest);
        longest = longest.max(waits.unwrap_or(0));
        is_new
    });
    assert_eq!(client.ask("rangeunlock f 0 0"), "ok");
    assert_eq!(run.code(), Some(0));
    assert_eq!(listed(&mut client)["locks"][0]["client"], "gw/1");
}

#[test]
fn a_server_that_is_started_anew_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut daemon = Daemon::start_at(&socket, &[]);
    let mut client = daemon.connect();
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    let mut command = lock(&[], "echo got it");
    command.env("LATCH_SERVER", format!("unix:{}", socket.display()));
    let mut run = Run::start(command);
    wait_until("it waits", || listed(&mut client)["waiter_count"] == 1);
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    drop(client);
    assert_eq!(daemon.wait_for_exit().0, 0);
    let _daemon = Daemon::start_at(&socket, &[]);
    assert_eq!(run.line(), "got it");
    assert_eq!(run.code(), Some(0));
}

#[test]
fn waiters_go_on_through_a_restart_and_its_grace_period() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let socket = dir.path().join("s");
    let start = || {
        let mut command = latchd();
        command.args(["--port", "0", "--grace-period", "3", "--data-dir", &data]);
        command.arg("--unix-socket").arg(&socket);
        Daemon::serve(command)
    };
    let daemon = start();
    let mut client = daemon.connect();
    assert_eq!(client.ask("attach gw/1 1 s3cret"), "ok 1 new");
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    let server = format!("unix:{}", socket.display());
    let mut command = lock(&[], "echo got it");
    command.env("LATCH_SERVER", &server);
    let mut run = Run::start(command);
    let of_client = |options: &[&str]| {
        let words = [
            &["range", "lock", "--client", "gw/2"],
            options,
            &["f", "50", "1"],
        ]
        .concat();
        let mut command = latch(&words);
        command
            .env("LATCH_SERVER", &server)
            .env("LATCH_CLIENT_SECRET", "s3cret");
        command
    };
    let mut for_client = Run::start(of_client(&[]));
    wait_until("both wait", || listed(&mut client)["waiter_count"] == 2);
    drop(daemon); // kill -9
    let daemon = start();
    let mut client = daemon.connect();
    assert_eq!(listed(&mut client)["locks"][0]["pending"], true);
    let mut once = lock(&["-n"], "true");
    once.env("LATCH_SERVER", &server);
    assert_eq!(said(once).code, Some(1), "the bytes are another client's");
    assert_eq!(said(of_client(&["-w", "100ms", "-E", "9"])).code, Some(9));
    assert_eq!(run.line(), "got it");
    assert_eq!(run.code(), Some(0));
    assert_eq!(for_client.code(), Some(0));
}

/// A token may be good for some names only, and then a client has to be called so as well.
#[test]
fn a_token_that_is_good_for_some_names_locks_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, "secret bob write f\n").unwrap();
    let daemon = Daemon::start(&["--auth-token-file", tokens.to_str().unwrap()]);
    let mut command = lock_at(&daemon, &[], "exit 6");
    command.env("LATCH_AUTH_TOKEN", "secret");
    let said = said(command);
    assert_eq!(said.code, Some(6), "{said:?}");
}

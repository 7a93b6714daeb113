//! Everything else that can be typed: what it prints, as text and as JSON.

use serde_json::{Value, json};

use crate::latch::{Run, expect, latch, latch_at, said};
use crate::vocabulary::Daemon;

/// What a command prints with `--json`, which has to be one JSON text on a line.
#[track_caller]
fn json(daemon: &Daemon, code: i32, words: &[&str]) -> Value {
    let mut with_flag = words.to_vec();
    with_flag.push("--json");
    let out = expect(daemon, code, &with_flag);
    assert_eq!(out.lines().count(), 1, "{words:?}: {out}");
    serde_json::from_str(&out).unwrap_or_else(|why| panic!("{words:?}: {why}: {out}"))
}

#[test]
fn locks_for_scripts_outlive_their_command() {
    let daemon = Daemon::start(&[]);
    let out = expect(&daemon, 0, &["acquire", "--lease", "10m", "k"]);
    let (token, fence) = out.split_once(' ').unwrap();
    assert_eq!(
        u64::from_str_radix(&token[..16], 16).unwrap().to_string(),
        fence
    );
    assert_eq!(json(&daemon, 0, &["who", "k"])["holder_count"], 1);
    expect(&daemon, 1, &["acquire", "-n", "k"]);
    let left: u64 = expect(&daemon, 0, &["renew", "k", token, "--lease", "1h"])
        .parse()
        .unwrap();
    // A tenth is not counted on.
    assert!((3_140..=3_240).contains(&left), "{left}");
    let mut command = latch_at(&daemon, &["renew", "k"]);
    command.env("LATCH_TOKEN", token);
    assert_eq!(
        said(command).code,
        Some(0),
        "the token may be in the environment"
    );
    assert_eq!(expect(&daemon, 0, &["release", "k", token]), "");
    expect(&daemon, 1, &["who", "k"]);
    let grant = json(&daemon, 0, &["acquire", "k"]);
    let token = grant["token"].as_str().unwrap();
    assert_eq!(grant["lease_ms"], 33_000);
    assert!(grant["fence"].as_u64() > Some(fence.parse().unwrap()));
    let renewed = json(&daemon, 0, &["renew", "k", token]);
    assert_eq!(renewed["fence"], grant["fence"]);
    let released = json(&daemon, 0, &["release", "k", token]);
    assert_eq!(released, json!({"key": "k", "fence": grant["fence"]}));
}

#[test]
fn what_is_held_can_be_seen_and_broken() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.ask("hello _ name=alice@db1");
    let grant = client.lock("nightly", "0 60");
    client.lock("build-1", "0 60");
    client.ask("sl slots 0 3");
    let mut waiter = daemon.connect();
    waiter.put("l nightly 60");
    client.wait_for_waiters("nightly", 1);
    let rows = expect(&daemon, 0, &["ls"]);
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split('\t').collect()).collect();
    let nightly = rows.iter().find(|row| row[0] == "nightly").unwrap();
    assert_eq!(nightly[1..4], ["lock", "1", "1"]);
    assert_eq!(nightly[5], "alice@db1");
    assert_eq!(rows.len(), 3);
    assert_eq!(expect(&daemon, 0, &["ls", "night*"]).lines().count(), 1);
    assert_eq!(expect(&daemon, 0, &["ls", "no"]), "");
    let listed = json(&daemon, 0, &["ls", "*"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    let who = expect(&daemon, 0, &["who", "nightly"]);
    let lines: Vec<&str> = who.lines().collect();
    assert!(lines[0].starts_with("holds\talice@db1\t"), "{who}");
    assert!(lines[1].starts_with("waits 1\t"), "{who}");
    let fence = grant.token_fence().to_string();
    assert!(lines[0].ends_with(&fence), "{who}");
    let who = json(&daemon, 0, &["who", "nightly"]);
    assert_eq!(who["holders"][0]["name"], "alice@db1");
    assert_eq!(expect(&daemon, 1, &["break", "nightly", "1"]), "0");
    assert_eq!(expect(&daemon, 0, &["break", "nightly", &fence]), "1");
    client.expect(&format!("lost nightly {fence} broken"));
    waiter.grant();
    assert_eq!(
        json(&daemon, 0, &["break", "slots", "--all"]),
        json!({"key": "slots", "ended": 1})
    );
}

/// As under cron, in a container or in a service.
#[test]
fn default_name_has_the_user_also_without_its_variables() {
    let daemon = Daemon::start(&[]);
    let mut acquire = latch_at(&daemon, &["acquire", "k"]);
    acquire.env_remove("USER").env_remove("LOGNAME");
    assert_eq!(said(acquire).code, Some(0));
    let id = std::process::Command::new("id")
        .arg("-un")
        .output()
        .unwrap();
    let user = String::from_utf8(id.stdout).unwrap();
    let who = json(&daemon, 0, &["who", "k"]);
    let name = who["holders"][0]["name"].as_str().unwrap();
    assert!(name.starts_with(&format!("{}@", user.trim())), "{name}");
}

#[test]
fn figures_and_pings() {
    let daemon = Daemon::start(&[]);
    let stats = json(&daemon, 0, &["stats"]);
    assert_eq!(stats[0]["server"], daemon.address().to_string());
    assert_eq!(stats[0]["totals"]["holds"], 0);
    let text = expect(&daemon, 0, &["stats"]);
    assert!(text.contains("\tholds\t0\n"), "{text}");
    assert!(text.contains("\tlongest_turn_work_us.read\t"), "{text}");
    assert!(expect(&daemon, 0, &["ping"]).ends_with(" ms"));
    assert!(json(&daemon, 0, &["ping"])[0]["ms"].is_f64());
}

#[test]
fn values_counters_and_lists() {
    let daemon = Daemon::start(&[]);
    let ask = |code, words: &[&str]| expect(&daemon, code, words);
    assert_eq!(ask(1, &["get", "v"]), "");
    ask(0, &["set", "v", "-5 a"]);
    assert_eq!(ask(0, &["get", "v"]), "-5 a");
    assert_eq!(
        json(&daemon, 0, &["get", "v"]),
        json!({"key": "v", "value": "-5 a"})
    );
    ask(1, &["cas", "v", "other", "new"]);
    ask(0, &["cas", "v", "-5 a", "new", "--ttl", "1h"]);
    assert_eq!(json(&daemon, 1, &["cas", "v", "", "first"])["value"], false);
    ask(0, &["cas", "w", "", "first"]);
    ask(0, &["del", "w"]);
    assert_eq!(json(&daemon, 1, &["get", "w"])["value"], Value::Null);
    ask(0, &["set", "--ttl", "0.001", "gone", "x"]);
    crate::latch::wait_until("its time is over", || {
        said(latch_at(&daemon, &["get", "gone"])).code == Some(1)
    });
    assert_eq!(ask(0, &["incr", "c"]), "1");
    assert_eq!(ask(0, &["incr", "c", "41"]), "42");
    assert_eq!(ask(0, &["decr", "c", "-8"]), "50");
    ask(0, &["set", "--counter", "c", "-7"]);
    assert_eq!(ask(0, &["get", "--counter", "c"]), "-7");
    assert_eq!(json(&daemon, 0, &["decr", "c"])["value"], -8);
    assert_eq!(ask(0, &["push", "l", "a", "b", "c"]), "3");
    assert_eq!(ask(0, &["push", "--left", "l", "first"]), "4");
    assert_eq!(ask(0, &["len", "l"]), "4");
    assert_eq!(ask(0, &["pop", "l"]), "first");
    assert_eq!(ask(0, &["pop", "--right", "l"]), "c");
    assert_eq!(json(&daemon, 0, &["pop", "l"])["value"], "a");
    let all = ask(0, &["ls", "--all"]);
    assert!(
        all.contains("c\tcounter") && all.contains("v\tvalue"),
        "{all}"
    );
    ask(0, &["pop", "l"]);
    ask(1, &["pop", "l"]);
    ask(1, &["pop", "-w", "20ms", "l"]);
    let mut popper = Run::start(latch_at(&daemon, &["pop", "-w", "10", "l"]));
    let mut client = daemon.connect();
    crate::latch::wait_until("somebody waits for a value", || {
        client.stats()["lists"][0]["pop_waiters"] == 1
    });
    ask(0, &["push", "l", "late"]);
    assert_eq!(popper.line(), "late");
}

#[test]
fn a_value_goes_through_untouched() {
    use std::io::Write;
    let daemon = Daemon::start(&[]);
    let bytes: Vec<u8> = (1..=255_u8).filter(|it| !b"\t\r\n".contains(it)).collect();
    let mut command = latch_at(&daemon, &["set", "v", "-"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    let out = latch_at(&daemon, &["get", "v"]).output().unwrap().stdout;
    assert!(out == [&bytes[..], b"\n"].concat());
}

#[test]
fn signals_watches_and_leaders_are_told_line_by_line() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let mut subscribed = |count: u64| {
        crate::latch::wait_until("it listens", || {
            let totals = client.stats()["totals"].clone();
            let sum = |it: &str| totals[it].as_u64().unwrap();
            sum("signal_channels") + sum("watch_channels") == count
        });
    };
    let mut listener = Run::start(latch_at(
        &daemon,
        &["listen", "a.>", "--count", "2", "-w", "10"],
    ));
    subscribed(1);
    assert_eq!(expect(&daemon, 0, &["signal", "a.b", "hello there"]), "1");
    assert_eq!(json(&daemon, 0, &["signal", "a.b", "-x"])["told"], 1);
    assert_eq!(json(&daemon, 0, &["signal", "b", "x"])["told"], 0);
    assert_eq!(listener.rest(), "a.b hello there\na.b -x\n");
    assert_eq!(listener.code(), Some(0));
    subscribed(0);
    let mut watcher = Run::start(latch_at(&daemon, &["watch", "k", "j", "--json"]));
    subscribed(2);
    expect(&daemon, 0, &["run", "k", "--", "true"]);
    expect(&daemon, 0, &["incr", "j"]);
    for event in ["acquire k", "release k", "incr j"] {
        let (event, key) = event.split_once(' ').unwrap();
        let line: Value = serde_json::from_str(&watcher.line()).unwrap();
        assert_eq!(line, json!({"event": event, "key": key}));
    }
    drop(watcher);
    expect(&daemon, 1, &["listen", "silence", "-w", "20ms"]);
    let mut observer = Run::start(latch_at(&daemon, &["elect", "--observe", "lead"]));
    // It is told of a leader that there is already, so it does not matter who comes first.
    let out = expect(&daemon, 0, &["elect", "--lease", "1m", "lead"]);
    assert_eq!(observer.line(), "elected lead");
    let (token, _) = out.split_once(' ').unwrap();
    expect(&daemon, 1, &["elect", "-n", "lead"]);
    expect(&daemon, 0, &["renew", "lead", token]);
    expect(&daemon, 0, &["elect", "--resign", token, "lead"]);
    assert_eq!(observer.line(), "resigned lead");
    expect(&daemon, 79, &["elect", "--resign", token, "lead"]);
}

/// Each signal is heard by everybody who listens for itself, and by one of the group, in turn.
#[test]
fn one_of_a_group_hears_each_signal() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let start = |options: &[&str]| {
        let words = [&["listen", "jobs"], options].concat();
        Run::start(latch_at(&daemon, &words))
    };
    let mut workers = [
        start(&["--group", "workers", "--count", "2"]),
        start(&["--group", "workers", "--count", "2"]),
    ];
    let mut other = start(&["--count", "4"]);
    crate::latch::wait_until("all listen", || {
        let channels = client.stats()["signal_channels"].clone();
        let listeners = channels.as_array().unwrap().iter();
        listeners
            .filter_map(|it| it["listeners"].as_u64())
            .sum::<u64>()
            == 3
    });
    for job in ["1", "2", "3", "4"] {
        assert_eq!(expect(&daemon, 0, &["signal", "jobs", job]), "2");
    }
    let all = "jobs 1\njobs 2\njobs 3\njobs 4\n";
    assert_eq!((other.rest().as_str(), other.code()), (all, Some(0)));
    let mut heard = String::new();
    for worker in &mut workers {
        heard += &worker.rest();
        assert_eq!(worker.code(), Some(0));
    }
    let mut heard: Vec<&str> = heard.lines().collect();
    heard.sort_unstable();
    assert_eq!(heard, all.lines().collect::<Vec<_>>());
}

#[test]
fn barriers_let_all_through_or_none() {
    let daemon = Daemon::start(&[]);
    let mut first = Run::start(latch_at(&daemon, &["barrier", "b", "2"]));
    let mut client = daemon.connect();
    crate::latch::wait_until("the first is there", || {
        client.stats()["barriers"][0]["participants"] == 1
    });
    expect(&daemon, 75, &["barrier", "b", "3"]);
    expect(&daemon, 0, &["barrier", "-w", "10", "b", "2"]);
    assert_eq!(first.code(), Some(0));
    expect(&daemon, 1, &["barrier", "-n", "b", "2"]);
    expect(&daemon, 9, &["barrier", "-w", "10ms", "-E", "9", "b", "2"]);
}

#[test]
fn bytes_of_a_resource() {
    let daemon = Daemon::start(&[]);
    let latch_path = crate::latch::program();
    let script = format!(
        "{latch_path} range test f 50 10; echo $?; {latch_path} range lock -n f 99 1 -- true; echo $?; \
         {latch_path} range list f --json; {latch_path} range test f 100 1"
    );
    let words = ["range", "lock", "f", "0", "100", "--", "sh", "-c", &script];
    let out = expect(&daemon, 0, &words);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("held ex 0 100 by latch/"), "{out}");
    assert_eq!(lines[1..3], ["1", "1"], "{out}");
    let listed: Value = serde_json::from_str(lines[3]).unwrap();
    assert_eq!(listed["lock_count"], 1);
    assert_eq!(lines[4], "free");
    assert_eq!(
        expect(&daemon, 0, &["range", "test", "f", "0", "0"]),
        "free",
        "it ended with its command"
    );
    let with_secret = |words: &[&str], secret: &str| {
        let mut command = latch_at(&daemon, words);
        command.env("LATCH_CLIENT_SECRET", secret);
        said(command)
    };
    let lock = [
        "range", "lock", "-s", "--client", "gw/1", "--owner", "bob", "f", "0", "0",
    ];
    assert_eq!(with_secret(&lock, "s3cret").code, Some(0));
    assert_eq!(with_secret(&lock, "wrong").code, Some(77));
    expect(&daemon, 64, &lock);
    let held = json(&daemon, 1, &["range", "test", "f", "7", "1"]);
    assert_eq!(
        (&held["client"], &held["owner"]),
        (&json!("gw/1"), &json!("bob"))
    );
    expect(&daemon, 0, &["range", "test", "-s", "f", "7", "1"]);
    let listed = expect(&daemon, 0, &["range", "list", "f"]);
    assert!(
        listed.starts_with("holds\tsh\t0\t0\tgw/1\tbob\t"),
        "{listed}"
    );
    let unlock = [
        "range", "unlock", "--client", "gw/1", "--owner", "bob", "f", "0", "0",
    ];
    assert_eq!(with_secret(&unlock, "s3cret").code, Some(0));
    expect(&daemon, 0, &["range", "test", "f", "0", "0"]);
}

/// What one has locked with its secret in a file another one unlocks with the same in the environment.
#[test]
fn the_secret_of_a_client_may_be_in_a_file() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("good"), "s3cret\n").unwrap();
    std::fs::write(path("bad"), "wrong").unwrap();
    let lock = |secret: &str| {
        let words = ["range", "lock", "--client", "gw/1", "--client-secret-file"];
        let secret = path(secret);
        let mut command = latch_at(&daemon, &[&words[..], &[&secret, "f", "0", "9"]].concat());
        command.env("LATCH_CLIENT_SECRET", "overruled");
        said(command)
    };
    assert_eq!(lock("good").code, Some(0));
    let wrong = lock("bad");
    assert_eq!(wrong.code, Some(77), "{wrong:?}");
    let missing = lock("none");
    assert_eq!(missing.code, Some(66), "{missing:?}");
    assert!(missing.err.contains("none"), "{missing:?}");
    let unlock = ["range", "unlock", "--client", "gw/1", "f", "0", "9"];
    let mut command = latch_at(&daemon, &unlock);
    command.env("LATCH_CLIENT_SECRET", "s3cret");
    assert_eq!(said(command).code, Some(0));
    expect(&daemon, 0, &["range", "test", "f", "0", "9"]);
}

/// The certificate's authority is named by the flag or by the environment, also for the warden.
#[cfg(feature = "tls")]
#[test]
fn whom_to_trust_may_be_in_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (cert, key) in [("cert.pem", "key.pem"), ("other.pem", "other-key.pem")] {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(path(cert), made.cert.pem()).unwrap();
        std::fs::write(path(key), made.signing_key.serialize_pem()).unwrap();
    }
    let daemon = Daemon::start(&[
        "--tls-cert",
        &path("cert.pem"),
        "--tls-key",
        &path("key.pem"),
    ]);
    let server = format!("tls://localhost:{}", daemon.address().port());
    let code = |words: &[&str], ca: Option<&str>| {
        let mut command = latch(words);
        command.env("LATCH_SERVER", &server);
        if let Some(ca) = ca {
            command.env("LATCH_CA_FILE", path(ca));
        }
        said(command).code
    };
    let run = ["run", "k", "-c", "exit 5"];
    assert_eq!(code(&run, Some("cert.pem")), Some(5));
    assert_eq!(code(&run, Some("other.pem")), Some(69));
    assert_eq!(code(&run, None), Some(69));
    let flag = ["ping", "--ca-file", &path("cert.pem")];
    assert_eq!(code(&flag, Some("other.pem")), Some(0), "the flag counts");
}

#[test]
fn several_servers_share_the_keys() {
    let (one, two) = (Daemon::start(&[]), Daemon::start(&[]));
    let servers = format!("{},{}", one.address(), two.address());
    let ask = |words: &[&str]| {
        let mut command = latch(words);
        command.env("LATCH_SERVER", &servers);
        let said = said(command);
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said.out
    };
    for key in ["a", "b", "c", "d", "e", "f"] {
        ask(&["acquire", key]);
    }
    let counts = [&one, &two].map(|it| expect(it, 0, &["ls"]).lines().count());
    assert_eq!(counts[0] + counts[1], 6);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    assert_eq!(ask(&["ls"]).lines().count(), 6);
    assert_eq!(ask(&["ping"]).lines().count(), 2);
    let mut command = latch(&["watch", ">", "--count", "4"]);
    command.env("LATCH_SERVER", &servers);
    let mut watcher = Run::start(command);
    for daemon in [&one, &two] {
        let mut client = daemon.connect();
        crate::latch::wait_until("it watches", || {
            client.stats()["totals"]["watch_channels"] == 1
        });
    }
    for key in ["1", "2", "3", "4"] {
        ask(&["incr", key]);
    }
    assert_eq!(watcher.rest().lines().count(), 4, "from both of them");
}

/// A server lists 1,000 of each kind. What is left out is told, and found by its name.
#[test]
fn keys_beyond_the_list_are_told_of_and_found_by_name() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    for number in 0..1_001 {
        assert_eq!(client.ask(&format!("kset v{number} x")), "ok");
    }
    let ls = said(latch_at(&daemon, &["ls", "--all"]));
    assert_eq!(ls.code, Some(0));
    assert!(ls.err.contains("there is more"), "{}", ls.err);
    let is_listed = |name: &String| ls.out.contains(&format!("{name}\t"));
    let left_out = (0..1_001)
        .map(|it| format!("v{it}"))
        .find(|it| !is_listed(it));
    let left_out = left_out.unwrap();
    let found = expect(&daemon, 0, &["ls", "--all", &left_out]);
    assert_eq!(found, format!("{left_out}\tvalue\t0\t0\t-\t1 bytes"));
    assert_eq!(
        expect(&daemon, 0, &["ls", &left_out]),
        "",
        "nobody holds it"
    );
    assert_eq!(
        said(latch_at(&daemon, &["ls"])).err,
        "",
        "all of it is listed"
    );
    // An idle read-write lock is in no list.
    expect(&daemon, 0, &["run", "-s", "rw", "--", "true"]);
    assert_eq!(
        expect(&daemon, 0, &["ls", "--all", "rw"]),
        "rw\trw_lock\t0\t0\t-"
    );
    expect(&daemon, 0, &["incr", "rw", "7"]);
    expect(&daemon, 0, &["push", "rw", "a", "b"]);
    let all = expect(&daemon, 0, &["ls", "--all", "rw"]);
    assert_eq!(
        all,
        "rw\trw_lock\t0\t0\t-\t\nrw\tcounter\t0\t0\t-\t7\nrw\tlist\t0\t0\t-\t2 values"
    );
}

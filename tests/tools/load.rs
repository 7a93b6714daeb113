//! The load generator itself: content with the real daemon, and not with one that grants twice.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot start its server has to fail"
)]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::tool::tool;

/// Connections the wrong server takes before it has seen enough.
const CONNECTIONS_MAX: usize = 10_000;

/// How long a server that stalls does.
const STALL: Duration = Duration::from_secs(1);

fn command(arguments: &[&str]) -> Command {
    let mut command = tool("latch-load");
    command.args(arguments);
    command
}

fn latch_load(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

#[track_caller]
fn check(arguments: &[&str], code: i32, says: &[&str]) {
    check_output(arguments, &latch_load(arguments), code, says);
}

#[track_caller]
fn check_output(arguments: &[&str], output: &Output, code: i32, says: &[&str]) {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}:\n{said}");
    for text in says {
        assert!(said.contains(text), "{arguments:?}: no {text:?} in\n{said}");
    }
}

/// A server that gives every lock to everybody, with fences that grow as they should.
fn generous_server() -> String {
    server(None)
}

/// The same; it makes each connection wait for the answer to the request with this number.
fn server(stalls_at: Option<usize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("latchd://{}", listener.local_addr().unwrap());
    let fence = Arc::new(AtomicU64::new(1));
    let accept = move || {
        for stream in listener.incoming().take(CONNECTIONS_MAX) {
            let (stream, fence) = (stream.unwrap(), fence.clone());
            let serve = move || give(&stream, &fence, stalls_at);
            thread::Builder::new().spawn(serve).unwrap();
        }
    };
    thread::Builder::new().spawn(accept).unwrap();
    target
}

/// Answers requests until the client leaves.
fn give(stream: &TcpStream, fence: &AtomicU64, stalls_at: Option<usize>) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    for number in 0.. {
        let verb = lines.next()?.ok()?;
        lines.next()?.ok()?;
        lines.next()?.ok()?;
        if Some(number) == stalls_at {
            // A client with one request on its way at a time says nothing more meanwhile.
            stream.set_read_timeout(Some(STALL)).ok()?;
            assert!(stream.peek(&mut [0]).is_err());
            stream.set_read_timeout(None).ok()?;
        }
        let fence = fence.fetch_add(1, Ordering::Relaxed);
        let answer = match verb.as_str() {
            "l" | "sl" | "rl" | "wl" => format!("ok {fence:016x}0000000000000000 60\n"),
            "hello" => "ok latchd/0 epoch=1 fence=1\n".to_owned(),
            _ => "ok\n".to_owned(),
        };
        let mut writer = stream;
        writer.write_all(answer.as_bytes()).ok()?;
    }
    None
}

const TINY: [&str; 6] = ["--seconds", "0.05", "--warmup", "0.01", "--rounds", "1"];

fn tiny<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &TINY].concat()
}

#[test]
fn the_daemon_is_right_in_every_kind_of_work() {
    let says = [
        "throughput",
        "p99",
        "none wrong",
        "signal, 16 connections",
        "16 of them over HTTP",
    ];
    check(&tiny(&["plan", "quick"]), 0, &says);
}

#[test]
fn a_server_that_grants_twice_is_found_out() {
    // dflockd owes no order and no fences, so that nothing else can be wrong.
    let target = generous_server().replace("latchd:", "dflockd:");
    for work in [
        &["--workload", "lock"][..],
        &["--workload", "semaphore", "--slots", "1"],
        &["--workload", "semaphore", "--slots", "3"],
        &["--workload", "rw"],
        // Let go by a timer instead of at once.
        &["--workload", "lock", "--hold", "100"],
    ] {
        let mut run = vec!["run", "--keys", "shared", "--target", &target];
        run.extend(work);
        let says = ["WRONG: key 0 was granted", "mutual exclusion is broken"];
        check(&tiny(&run), 1, &says);
    }
    check(
        &tiny(&["plan", "handoff", "--target", &target]),
        1,
        &["mutual exclusion is broken"],
    );
}

/// The same work by the client that programs use, with the same checks.
#[test]
fn the_client_is_right_in_every_kind_of_work() {
    let says = [
        "lock, 16 connections, one shared key, via client",
        "none wrong",
    ];
    check(&tiny(&["plan", "quick", "--via", "client"]), 0, &says);
    let says = ["every kind of work in turn for 0.05 s", "wrong answers: 0"];
    check(&tiny(&["plan", "soak", "--via", "client"]), 0, &says);
    let words = ["run", "--via", "client", "--pipeline", "2"];
    check(&tiny(&words), 2, &["--via client: a thread for each"]);
}

#[test]
fn a_server_that_grants_twice_is_found_out_by_the_client_too() {
    let target = generous_server();
    let words = [
        "run", "--via", "client", "--keys", "shared", "--hold", "2000",
    ];
    let words = [&words[..], &["--target", &target]].concat();
    let says = ["WRONG: key 0 was granted", "mutual exclusion is broken"];
    check(&tiny(&words), 1, &says);
}

#[test]
fn a_small_form_of_every_scenario_is_right() {
    for (plan, says) in [
        ("spin", "p50 / redis"),
        ("idle-10k", "200 idle connections beside 64"),
        ("million", "200 held locks with leases"),
        ("disconnects", "200 clients leave, 200 locks of another"),
        ("expiry", "200 leases end in one millisecond"),
        ("observed", "200 held locks, looked at"),
        ("storm", "200 holders disconnect at once"),
    ] {
        let words = ["plan", plan, "--count", "200"];
        check(&tiny(&words), 0, &[says, "wrong answers: 0"]);
    }
}

#[test]
fn a_lease_that_does_not_last_is_found_out() {
    let target = generous_server();
    let words = ["plan", "expiry", "--count", "20", "--target", &target];
    check(&tiny(&words), 1, &["leases ended early"]);
}

/// Whoever is installed takes part, and every row of the table is there either way.
#[test]
fn a_small_form_of_the_proof_is_right() {
    let output = latch_load(&tiny(&["proof", "--count", "50", "--json"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("wrong answers: 0"), "{said}");
    let proof: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = proof["targets"].as_array().unwrap();
    let wanted = targets.iter().filter(|it| !it["wanted"].is_null()).count();
    assert_eq!(wanted, 26, "{said}");
    for name in ["op/s / ceiling", "waiting p99/p50", "ended early"] {
        let row = targets.iter().find(|it| it["figure"] == name).unwrap();
        // On a busy machine a run as short as this may end before its first answer.
        let measured = row["rounds"].as_array().is_some_and(|it| !it.is_empty());
        assert_eq!(row["median"].is_number(), measured, "{row}");
    }
}

/// Every attack, as small as it can be: the daemon stays right, and every scene has its targets.
#[test]
fn a_small_form_of_every_attack_is_right() {
    let words = tiny(&["plan", "hostile", "--scale", "0.0005", "--json"]);
    let output = latch_load(&words);
    check_output(&words, &output, 0, &[]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let mut scenes: Vec<&str> = Vec::new();
    for row in rows {
        let work = row["work"].as_str().unwrap();
        let scene = work.split(':').next().unwrap();
        if scenes.last() != Some(&scene) {
            scenes.push(scene);
            assert!(!row["wanted"].is_null(), "{row}");
        }
        let measured = row["rounds"].as_array().is_some_and(|it| !it.is_empty());
        assert_eq!(row["median"].is_number(), measured, "{row}");
    }
    let some = [
        "patterns",
        "slots-end",
        "pos",
        "wrong-tokens",
        "strangers-guesses-unix",
        "strangers-silent",
        "strangers-half-auth",
        "tls-hellos",
        "strangers-tls-names",
        "strangers-http-bodies",
        "hand-over",
    ];
    for scene in some {
        assert!(scenes.contains(&scene), "{scene} is not in {scenes:?}");
    }
    assert_eq!(scenes.len(), 69, "{scenes:?}");
    for (figure, scenes) in [
        ("ended early", 3),
        ("newcomers that did not get in", 11),
        ("newcomers over HTTP that did not get in", 4),
        ("verdicts on guesses a second", 3),
        ("log lines a second", 11),
        ("log bytes a second", 11),
    ] {
        let rows = rows.iter().filter(|it| it["figure"] == figure);
        let met = rows.filter(|it| it["met"] == true).count();
        assert_eq!(met, scenes, "{figure}");
    }
}

#[test]
fn an_attack_goes_on_with_what_the_server_accepts() {
    let scene = "--only patterns --scale 0.001".split(' ');
    let words: Vec<&str> = ["plan", "hostile"].into_iter().chain(scene).collect();
    let words = tiny(&words);
    let mut load = command(&words);
    load.env("LATCHD_MAX_SUBSCRIPTIONS", "10");
    let says = [
        "patterns watched ",
        "patterns watched: refused (\"error\")",
        "others' p99",
        "longest turn",
    ];
    check_output(&words, &load.output().unwrap(), 0, &says);
}

/// With a data directory and without, as small as it can be. Redis takes part where it is installed.
#[test]
fn a_small_form_of_the_plan_for_disks_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let words = ["plan", "durable", "--count", "200", "--json", "--dir", dir];
    let words = tiny(&words);
    let output = latch_load(&words);
    check_output(&words, &output, 0, &["round 1 of 1"]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let wanted = rows.iter().filter(|it| !it["wanted"].is_null()).count();
    assert_eq!(wanted, 6, "{rows:?}");
    for row in rows {
        let measured = row["rounds"].as_array().is_some_and(|it| !it.is_empty());
        assert_eq!(row["median"].is_number(), measured, "{row}");
    }
    let all = rows.iter().find(|it| it["figure"] == "held again / held");
    assert_eq!(all.unwrap()["median"], 1.0, "{rows:?}");
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let words = ["plan", "durable", "--dir", "/proc/nowhere"];
    check(&words, 2, &["--dir /proc/nowhere: "]);
    let words = ["plan", "durable", "--target", "latchd://127.0.0.1:1"];
    check(&words, 2, &["starts its servers itself"]);
}

#[test]
fn the_proof_starts_its_own_servers() {
    let words = ["proof", "--target", "latchd://127.0.0.1:1"];
    check(&words, 2, &["starts its servers itself"]);
}

#[test]
fn a_server_that_is_not_installed_is_left_out() {
    let words = tiny(&["compare", "--with", "redis,dflockd,ceiling"]);
    let output = command(&words).env("PATH", "/nowhere").output().unwrap();
    let says = [
        "redis is left out",
        "dflockd is left out",
        "latchd / ceiling",
    ];
    check_output(&words, &output, 0, &says);
}

#[test]
fn the_ceiling_does_the_same_work() {
    let words = ["compare", "--with", "ceiling"];
    let says = ["latchd / ceiling", "64 connections on one key"];
    check(&tiny(&words), 0, &says);
}

#[test]
fn a_comparison_says_when_and_on_what() {
    let words = tiny(&["compare", "--with", "ceiling"]);
    let said = String::from_utf8(latch_load(&words).stdout).unwrap();
    let mut lines = said.lines();
    let measured_on = lines.next().unwrap();
    let (date, machine) = measured_on.split_once("; ").unwrap();
    let parts: Vec<usize> = date.split('-').map(str::len).collect();
    assert_eq!(parts, [4, 2, 2], "{measured_on}");
    assert!(
        machine.to_lowercase().contains(std::env::consts::OS),
        "{measured_on}"
    );
    assert_eq!(lines.next(), Some(""), "{said}");
}

/// The picture shows the figures of the page, and is drawn as the program draws it today.
#[test]
fn the_picture_is_of_the_figures_in_the_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let output = latch_load(&["draw", docs.join("benchmarks.md").to_str().unwrap()]);
    let drawn = String::from_utf8(output.stdout).unwrap();
    let picture = fs::read_to_string(docs.join("benchmarks.svg")).unwrap();
    assert!(
        drawn == picture,
        "run latch-load draw docs/benchmarks.md > docs/benchmarks.svg"
    );
}

#[test]
fn a_comparison_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("compare.svg");
    let words = [
        "compare",
        "--with",
        "ceiling",
        "--svg",
        path.to_str().unwrap(),
    ];
    check(&tiny(&words), 0, &[]);
    let picture = fs::read_to_string(&path).unwrap();
    assert!(picture.starts_with("<svg "), "{picture}");
    for absent in ["redis", "dflockd"] {
        assert!(
            !picture.contains(absent),
            "{absent} took no part:\n{picture}"
        );
    }
    check(
        &["draw", "Cargo.toml"],
        1,
        &["Cargo.toml: there is no table of a comparison"],
    );
    check(&["draw", "nowhere.md"], 1, &["nowhere.md: "]);
}

#[test]
fn runs_that_may_end_before_the_first_answer_are_json_too() {
    let run = "compare --json --with ceiling --rounds 1 --warmup 0 --seconds 0.0000001";
    let run: Vec<&str> = run.split(' ').collect();
    let output = latch_load(&run);
    check_output(&run, &output, 0, &[]);
    let cells: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for cell in cells.as_array().unwrap() {
        let measured = cell["result"]["answers"] != 0;
        assert_eq!(cell["subject"], "latchd", "{cell}");
        let ratio = cell.get("subject_ratio").unwrap();
        assert!(measured || ratio.is_null(), "{cell}");
    }
}

/// The server answers its first request long after the run is over.
#[test]
fn a_run_too_short_for_an_answer_is_not_measured() {
    let target = server(Some(0));
    let words = "run --connections 1 --warmup 0 --seconds 0.01 --target";
    let words: Vec<&str> = words.split(' ').chain([&target[..]]).collect();
    let says = [
        "throughput     not measured",
        "p99            not measured",
        "--seconds",
    ];
    check(&words, 0, &says);
    let json = [&words[..], &["--json"]].concat();
    let output = latch_load(&json);
    check_output(&json, &output, 0, &[]);
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(runs[0]["answers"], 0, "{runs}");
    for name in ["per_s", "p99_ns", "takes_per_s"] {
        assert!(runs[0][name].is_null(), "{name}: {runs}");
    }
    assert!(runs[0]["rounds_per_s"][0].is_null(), "{runs}");
    assert!(runs[0]["first"]["p50_ns"].is_null(), "{runs}");
}

/// In runs this short most is not measured; whatever is says so, and 0 is no reason to be content.
#[test]
fn no_target_is_met_without_a_measurement() {
    let words = "proof --with ceiling --count 1 --rounds 1 --warmup 0 --seconds 0.0000001 --json";
    let words: Vec<&str> = words.split(' ').collect();
    let output = latch_load(&words);
    check_output(&words, &output, 0, &["not measured"]);
    let proof: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in proof["targets"].as_array().unwrap() {
        let measured = row["rounds"].as_array().unwrap();
        assert_eq!(row["median"].is_null(), measured.is_empty(), "{row}");
        let zero_is_fine = row["unit"] == "count" || row["figure"] == "others' most, above without";
        if row["met"] == true && !zero_is_fine {
            assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

/// A busy machine may give it no time at all for so short a run, so it runs, each time twice as
/// long, until its first answer.
#[test]
fn a_report_for_programs_is_json() {
    let mut seconds = 0.05;
    let runs = loop {
        let said = seconds.to_string();
        let words = ["run", "--json", "--connections", "2", "--warmup", "0.01"];
        let words = [&words[..], &["--seconds", &said]].concat();
        let output = latch_load(&words);
        check_output(&words, &output, 0, &[]);
        let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        if runs[0]["answers"] != 0 {
            break runs;
        }
        assert!(runs[0]["per_s"].is_null(), "{runs}");
        seconds *= 2.0;
    };
    assert!(runs[0]["per_s"].as_f64().unwrap() > 0.0, "{runs}");
    assert_eq!(runs[0]["wrong"], 0, "{runs}");
}

/// 0.3 s at 2,000/s, of which the server answers the first five of each connection and stalls: all
/// 600 are in the latencies, though most could not even start before the end.
#[test]
fn an_open_loop_leaves_nothing_out() {
    let target = server(Some(10));
    let words = "run --rate 2000 --connections 2 --warmup 0 --seconds 0.3 --json --target";
    let words: Vec<&str> = words.split(' ').chain([&target[..]]).collect();
    let output = latch_load(&words);
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| runs[0]["first"][name].as_u64().unwrap();
    assert!(number("count") >= 600, "{runs}");
    assert!(u128::from(number("max_ns")) >= STALL.as_nanos(), "{runs}");
}

/// Killed, so that it cannot do anything about it itself. The ceiling starts when latchd is ready,
/// so both are when both can be connected to.
#[test]
fn a_server_does_not_outlive_the_program_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut load = command(&["compare", "--with", "ceiling", "--seconds", "600"]);
    load.env("TMPDIR", folder.path());
    let mut load = load.stdout(Stdio::null()).spawn().unwrap();
    let sockets = || {
        let files = fs::read_dir(folder.path()).unwrap();
        let paths = files.map(|it| it.unwrap().path());
        paths
            .filter(|it| it.extension().is_some_and(|it| it == "sock"))
            .collect::<Vec<_>>()
    };
    let connected = loop {
        assert!(load.try_wait().unwrap().is_none());
        let streams = sockets().into_iter().flat_map(UnixStream::connect);
        let streams: Vec<UnixStream> = streams.collect();
        if streams.len() == 2 {
            break streams;
        }
        thread::yield_now();
    };
    load.kill().unwrap();
    load.wait().unwrap();
    for mut stream in connected {
        // Until it closes the connection, or too long.
        stream.set_read_timeout(Some(30 * STALL)).unwrap();
        let end = stream.read_to_end(&mut Vec::new());
        let late = end.is_err_and(|it| it.kind() == ErrorKind::WouldBlock);
        assert!(!late, "a server goes on");
    }
    // A socket on which nobody says anything is a way to wait.
    let (silence, _other) = UnixStream::pair().unwrap();
    silence.set_read_timeout(Some(STALL / 100)).unwrap();
    let mut tries = 3_000;
    while !sockets().is_empty() {
        tries -= 1;
        assert!(tries > 0, "socket files stay: {:?}", sockets());
        let _ = (&silence).read(&mut [0]);
    }
}

#[test]
fn a_server_that_ends_by_itself_has_the_last_word() {
    let words = tiny(&["run"]);
    let mut load = command(&words);
    load.env("LATCHD_DEFAULT_LEASE_TTL", "soon");
    let says = ["ended by itself", "soon", "did not start"];
    check_output(&words, &load.output().unwrap(), 1, &says);
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock").display().to_string();
    let refused = format!("cannot reach {address}: connection refused; start a server there");
    let missing = format!("cannot reach {socket}: no such socket; start a server there");
    for (command, target, says) in [
        (&["run"][..], format!("latchd://{address}"), &refused),
        (&["plan", "latency"], format!("redis://{address}"), &refused),
        (&["run"], format!("unix://{socket}"), &missing),
    ] {
        let words = [command, &["--target", &target]].concat();
        let output = latch_load(&words);
        check_output(&words, &output, 1, &["leave out --target"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let first = format!("latch-load: {says}");
        assert!(said.starts_with(&first), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut load = command(&tiny(&["run"]));
    let mut load = load
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((load.stdout.take(), load.stderr.take()));
    assert_eq!(load.wait().unwrap().code(), Some(0));
}

#[test]
fn work_that_cannot_be_is_refused() {
    for (words, says) in [
        ("run --keys shared --pipeline 2", "holds back those behind"),
        ("run --target foo", "--target foo: say it like latchd://"),
        ("run --target foo://x", "--target foo://x: say latchd://"),
        ("compare --target foo", "--target foo: say it like"),
        ("compare --with nobody", "--with nobody: say it like"),
        ("proof --with nobody", "or say redis, redis-del, dflockd"),
        (
            "plan million --with nonsense",
            "only be compared with redis",
        ),
        (
            "run --connections 18446744073709551615 --idle 5",
            "at most 60000 connections",
        ),
        ("run --cpu 5000", "--cpu 5000: no such core here"),
        (
            "compare --server-cpu 5000",
            "--server-cpu 5000: no such core",
        ),
        ("run --keys shared --key-count 4000000000", "up to 4000000"),
        ("run --keys zipf --key-count 0", "from 1 up to"),
        ("run --key-count 7", "--keys shared or zipf"),
        ("run --rounds 0", "--rounds 0: say 1 or more"),
        ("plan storm --count 0", "--count 0: say 1 or more"),
        ("run --rate 1000000001", "from 1 up to 10000000"),
        ("run --rate 0", "from 1 up to 10000000"),
        (
            "run --rate 10 --think 5",
            "--think has no effect with --rate",
        ),
        ("run --think 18446744073709551615", "--think: at most"),
        ("run --seconds 0", "--seconds 0: say above 0"),
        ("plan quick --seconds nan", "--seconds NaN: say above 0"),
        ("run --warmup=-1", "--warmup -1: say from 0"),
        ("plan hostile --scale 0", "--scale 0: say from 0.0001"),
        ("plan hostile --only nothing", "say patterns, patterns-16"),
        (
            "plan leases --ttl-ms 0",
            "--ttl-ms 0: say from 1 up to 600000",
        ),
        (
            "plan leases --hold-ms 600001",
            "--hold-ms 600001: say from 0",
        ),
        (
            "plan leases --failrate 1.5",
            "--failrate 1.5: say from 0 up to 1",
        ),
        (
            "plan hostile --target latchd://127.0.0.1:1",
            "starts its servers itself",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let output = latch_load(&words);
        check_output(&words, &output, 2, &[says]);
        let said = String::from_utf8_lossy(&output.stderr);
        let ours = said.starts_with("latch-load: ");
        assert!(!ours || said.lines().count() == 1, "{words:?}: {said}");
    }
    check(&["plan", "nothing"], 2, &["nothing"]);
}

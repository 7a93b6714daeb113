//! `latch run` without a terminal: what the command gets, what it passes on, what it leaves.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::latch::{Run, expect, is_alive, latch_at, plain, program, said, wait_gone};
use crate::vocabulary::Daemon;

#[test]
fn the_command_knows_what_is_held() {
    let daemon = Daemon::start(&[]);
    let script = "echo $LATCH_KEY $LATCH_TOKEN $LATCH_FENCE; latch=$0; $latch who $LATCH_KEY";
    let words = ["run", "k", "--", "sh", "-c", script, program()];
    let out = expect(&daemon, 0, &words);
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[0], "k");
    let fence = u64::from_str_radix(&words[1][..16], 16).unwrap();
    assert_eq!(words[2], fence.to_string(), "the fence is in the token");
    assert_eq!(words[3], "holds", "{out}");
    assert!(out.ends_with(&fence.to_string()), "{out}");
    expect(&daemon, 1, &["who", "k"]);
}

#[test]
fn a_server_that_was_named_is_named_to_the_command() {
    let daemon = Daemon::start(&[]);
    let server = daemon.address().to_string();
    let words = ["run", "--server", &server, "k", "-c", "echo $LATCH_SERVER"];
    assert_eq!(said(crate::latch::latch(&words)).out.trim(), server);
}

#[test]
fn several_keys_are_had_together_or_not_at_all() {
    let daemon = Daemon::start(&[]);
    let script = "echo $LATCH_KEY; set -- $LATCH_FENCE; test $1 -gt $2 && echo in order";
    let out = expect(&daemon, 0, &["run", "b", "a", "-c", script]);
    assert_eq!(
        out, "b a\nin order",
        "taken in their order, told as they were given"
    );
    let mut client = daemon.connect();
    client.lock("b", "0 60");
    expect(&daemon, 1, &["run", "-n", "a", "b", "c", "--", "true"]);
    expect(
        &daemon,
        1,
        &["run", "-w", "50ms", "c", "b", "a", "--", "true"],
    );
    for free in ["a", "c"] {
        expect(&daemon, 1, &["who", free]);
    }
}

#[test]
fn two_that_want_the_same_two_never_wait_for_each_other() {
    let daemon = Daemon::start(&[]);
    let runs: Vec<Run> = (0..8)
        .map(|it| {
            let keys = if it % 2 == 0 { ["x", "y"] } else { ["y", "x"] };
            Run::start(latch_at(&daemon, &["run", keys[0], keys[1], "--", "true"]))
        })
        .collect();
    for mut run in runs {
        assert_eq!(run.code(), Some(0));
    }
}

#[test]
fn readers_come_together_and_slots_are_counted() {
    let daemon = Daemon::start(&[]);
    let latch = program();
    let inner = |options: &str| format!("{latch} run -n {options} k -- true");
    expect(&daemon, 0, &["run", "-s", "k", "-c", &inner("-s")]);
    expect(&daemon, 1, &["run", "-s", "k", "-c", &inner("-x")]);
    expect(&daemon, 1, &["run", "-x", "k", "-c", &inner("-s")]);
    let slot =
        |count: u32| format!("{latch} run -n --semaphore 2 s -c 'exit 5'; exit $(($? + {count}))");
    expect(
        &daemon,
        5,
        &["run", "--semaphore", "2", "s", "-c", &slot(0)],
    );
    let two = format!(
        "{latch} run --semaphore 2 s -- {}",
        inner("").replace(" k ", " --semaphore 2 s ")
    );
    expect(&daemon, 1, &["run", "--semaphore", "2", "s", "-c", &two]);
    let mut observer = daemon.connect();
    assert_eq!(observer.ask("observe lead _"), "ok");
    expect(&daemon, 0, &["run", "--elect", "lead", "--", "true"]);
    assert_eq!(observer.line(), "leader elected lead");
    assert_eq!(observer.line(), "leader resigned lead");
}

#[test]
fn standard_input_output_and_error_are_the_commands_own() {
    let daemon = Daemon::start(&[]);
    let mut command = latch_at(&daemon, &["run", "k", "-c", "cat; echo err >&2"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    writer.join().unwrap();
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(out == bytes, "{} of {} bytes", out.len(), bytes.len());
    assert_eq!(err, "err\n");
}

#[test]
fn the_command_inherits_no_descriptor() {
    let daemon = Daemon::start(&[]);
    let mut command = plain("ls");
    let without = said({
        command.arg("/proc/self/fd").stdin(Stdio::null());
        command
    });
    let with = expect(&daemon, 0, &["run", "k", "--", "ls", "/proc/self/fd"]);
    assert_eq!(with, without.out.trim_end(), "no more than without us");
}

/// As with flock(1): what is closed stays closed, and what is open is passed on.
#[test]
fn command_has_the_descriptors_of_the_caller() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let lock = dir.path().join("x.lock");
    let script = "exec 9>\"$OUT\"; for fd in 0 1 2 3 4 5 6 7 8; do \
                  if [ -e /proc/$$/fd/$fd ]; then echo $fd >&9; fi; done";
    let latch = program();
    for redirected in [
        "",
        "<&-",
        ">&-",
        "2>&-",
        "<&- >&- 2>&-",
        "5</dev/null",
        ">&- 6>&2",
    ] {
        let had = |before: &str| {
            let mut command = plain("sh");
            let line = format!("exec {before} sh -c \"$SCRIPT\" {redirected}");
            command
                .args(["-c", &line])
                .env("SCRIPT", script)
                .env("OUT", &out);
            command.env("LATCH_SERVER", daemon.address().to_string());
            command.stdin(Stdio::null());
            let said = said(command);
            assert_eq!(said.code, Some(0), "{before} {redirected}: {said:?}");
            std::fs::read_to_string(&out).unwrap()
        };
        let without = had("");
        assert_eq!(
            had(&format!("{latch} run k --")),
            without,
            "run {redirected}"
        );
        let file = format!("{latch} file {} --", lock.display());
        assert_eq!(had(&file), without, "file {redirected}");
    }
}

#[test]
fn signals_reach_the_command() {
    let daemon = Daemon::start(&[]);
    // A shell hears a signal when what it waits for has ended, so it waits with `wait`.
    let script = "trap 'echo one' USR1; trap 'echo term; kill $!; exit 9' TERM; sleep 1000 & echo $!; \
                  while :; do wait; done";
    let mut run = Run::start(latch_at(&daemon, &["run", "k", "-c", script]));
    let sleeper = run.pid();
    run.signal(Signal::USR1);
    assert_eq!(run.line(), "one");
    assert!(is_alive(sleeper), "only the command was meant");
    run.signal(Signal::TERM);
    assert_eq!(run.line(), "term");
    assert_eq!(run.code(), Some(9));
    wait_gone(sleeper);
    expect(&daemon, 1, &["who", "k"]);
}

#[test]
fn what_ends_reaches_the_whole_group() {
    let daemon = Daemon::start(&[]);
    let script = "sh -c 'echo $$; exec sleep 1000'; echo not reached";
    let mut run = Run::start(latch_at(&daemon, &["run", "k", "-c", script]));
    let sleeper = run.pid();
    run.signal(Signal::HUP);
    assert_eq!(run.code(), Some(129));
    wait_gone(sleeper);
}

#[test]
fn what_is_ignored_stays_ignored() {
    let daemon = Daemon::start(&[]);
    let run = format!(
        "trap '' HUP; exec {} run k -c 'echo $$; read line; exit 4'",
        program()
    );
    let mut command = plain("sh");
    command.env("LATCH_SERVER", daemon.address().to_string());
    command.args(["-c", &run]).stdin(Stdio::piped());
    let mut run = Run::start(command);
    let command = run.pid();
    run.signal(Signal::HUP);
    kill_process(command, Signal::HUP).unwrap();
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.code(), Some(4), "nobody was hung up");
}

#[test]
fn a_parent_that_ignores_its_children_changes_nothing() {
    let daemon = Daemon::start(&[]);
    let run = format!("trap '' CHLD; exec {} run k -c 'exit 7'", program());
    let mut command = plain("sh");
    command.env("LATCH_SERVER", daemon.address().to_string());
    command.args(["-c", &run]);
    assert_eq!(Run::start(command).code(), Some(7));
}

#[test]
fn nobody_of_the_command_stays_behind() {
    let daemon = Daemon::start(&[]);
    let script =
        "sleep 1000 & echo $!; (trap '' TERM; echo; exec sleep 1000) & echo $!; read line; exit 3";
    let words = ["run", "--kill-after", "200ms", "k", "-c", script];
    let mut command = latch_at(&daemon, &words);
    command.stdin(Stdio::piped());
    let mut run = Run::start(command);
    let mut pids = Vec::new();
    for _ in 0..3 {
        pids.extend(run.line().parse().ok().and_then(Pid::from_raw));
    }
    assert_eq!(pids.len(), 2);
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.code(), Some(3));
    for pid in pids {
        assert!(!is_alive(pid), "{pid:?} has outlived the lock");
    }
    expect(&daemon, 1, &["who", "k"]);
}

/// Its parent has left the group and lives, so it is no child of `latch`, which hears nothing of its end.
#[test]
fn process_of_the_group_is_waited_for_although_it_is_no_child() {
    let daemon = Daemon::start(&[]);
    let script = "sh -c '(trap \"\" TERM; exec sleep 1000) & echo $!; exec setsid sh -c \"echo \\$\\$; exec sleep 1000\"' & \
                  read line; exit 3";
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    for words in [
        &["run", "--kill-after", "300ms", "k"][..],
        &["file", "--kill-after", "300ms", lock.to_str().unwrap()],
        &["range", "lock", "--kill-after", "300ms", "f", "0", "1"],
    ] {
        let mut command = latch_at(&daemon, words);
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::piped());
        let mut run = Run::start(command);
        let (member, parent) = (run.pid(), run.pid());
        run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let (code, outlived) = (run.code(), is_alive(member));
        assert!(is_alive(parent), "{words:?}: it has left the group");
        kill_process(parent, Signal::KILL).unwrap();
        let _ = kill_process(member, Signal::KILL);
        assert_eq!((code, outlived), (Some(3), false), "{words:?}");
    }
}

#[test]
fn whoever_waits_gets_it_when_it_is_free() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let grant = client.lock("k", "0 60");
    let mut run = Run::start(latch_at(&daemon, &["run", "k", "--", "echo", "got it"]));
    client.wait_for_waiters("k", 1);
    client.release("k", &grant);
    assert_eq!(run.line(), "got it");
    assert_eq!(run.code(), Some(0));
}

#[test]
fn whoever_is_ended_while_it_waits_leaves_the_queue() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.lock("k", "0 60");
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        use std::os::unix::process::ExitStatusExt;
        let mut run = Run::start(latch_at(&daemon, &["run", "k", "--", "true"]));
        client.wait_for_waiters("k", 1);
        run.signal(signal);
        assert_eq!(run.child.wait().unwrap().signal(), Some(number));
        client.wait_for_waiters("k", 0);
    }
}

//! `kill -9` at any moment: nobody of the command is left, and the lock is free when the lease is over at the latest.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::process::{Pid, Signal};

use crate::latch::{Run, expect, is_alive, latch_at, number_in, wait_gone, wait_until};
use crate::vocabulary::Daemon;

#[test]
fn nobody_is_left_and_the_lock_is_free_at_once() {
    let daemon = Daemon::start(&[]);
    let script = "sleep 1000 & echo $!; (sleep 1000 & echo $!; wait) & echo $$; wait";
    let words = ["run", "--lease", "1h", "k", "-c", script];
    let mut run = Run::start(latch_at(&daemon, &words));
    let pids = [run.pid(), run.pid(), run.pid()];
    run.signal(Signal::KILL);
    for pid in pids {
        wait_gone(pid);
    }
    // An hour is more than the test's patience: somebody else has let it go.
    expect(&daemon, 0, &["run", "-w", "10", "k", "--", "true"]);
}

#[test]
fn the_lock_is_not_free_before_the_last_one_is_gone() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let file = dir.path().join(format!("{round}"));
        // It writes for as long as it lives.
        let script = format!(
            "exec 3>>{0}; echo; while :; do echo x >&3; done",
            file.display()
        );
        let mut run = Run::start(latch_at(
            &daemon,
            &["run", "--lease", "1h", "k", "-c", &script],
        ));
        run.line();
        run.signal(Signal::KILL);
        let size = "stat -c %s $FILE; stat -c %s $FILE";
        let mut next = latch_at(&daemon, &["run", "-w", "10", "k", "-c", size]);
        next.env("FILE", &file);
        let mut next = Run::start(next);
        assert_eq!(next.line(), next.line(), "somebody still writes");
        assert_eq!(next.code(), Some(0));
    }
}

/// At moments from the very start on: while it connects, starts the command, runs it, ends.
#[test]
fn at_random_moments_nothing_is_left_of_it() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let mut chance = fastrand::Rng::with_seed(7);
    let (mut ran, mut did_not) = (0, 0);
    let mut span = Duration::ZERO;
    for round in 0..=40 {
        let path = |name: &str| dir.path().join(format!("{name}{round}"));
        let script = format!(
            "sleep 1000 & echo $! >{0}.new && mv {0}.new {0}; echo $$ >{1}.new && mv {1}.new {1}; wait",
            path("sleeper").display(),
            path("command").display(),
        );
        let words = ["run", "--lease", "2s", "k", "-c", &script];
        let mut run = Run::start(latch_at(&daemon, &words));
        if round == 0 {
            // As long as it takes on this machine, and as long again: so that the others are killed on both sides.
            let started = Instant::now();
            wait_until("it runs", || path("command").exists());
            span = started.elapsed() * 2;
        } else {
            let moment = span.mul_f64(chance.f64());
            let _ = poll(&mut [], Some(&moment.try_into().unwrap()));
        }
        run.child.kill().unwrap();
        let killed = Instant::now();
        expect(&daemon, 0, &["run", "-w", "10", "k", "--", "true"]);
        // However it was ended, the next one had it only when nobody of the last one was left.
        let pids = [path("sleeper"), path("command")];
        let pids = pids.iter().filter_map(|path| pid_in(path));
        let mut count = 0;
        for pid in pids {
            count += 1;
            assert!(!is_alive(pid), "{pid:?} lives {:?} after", killed.elapsed());
        }
        if count > 0 { ran += 1 } else { did_not += 1 }
    }
    eprintln!("{ran} had begun, {did_not} had not");
    assert!(ran > 1 && did_not > 0, "all were killed at the same point");
}

fn pid_in(path: &Path) -> Option<Pid> {
    number_in(path).and_then(Pid::from_raw)
}

#[test]
fn the_same_without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let lock = lock.to_str().unwrap();
    let script = "sleep 1000 & echo $!; echo $$; wait";
    let mut run = Run::start(crate::latch::latch(&["file", lock, "-c", script]));
    let pids = [run.pid(), run.pid()];
    run.signal(Signal::KILL);
    let next = crate::latch::said(crate::latch::latch(&[
        "file", "-w", "10", lock, "--", "true",
    ]));
    assert_eq!(next.code, Some(0), "{next:?}");
    for pid in pids {
        assert!(!is_alive(pid), "{pid:?}");
    }
    assert!(!Path::new(lock).exists(), "and the file is gone");
}

/// The warden of a `latch`, once there is one.
fn warden_of(latch: u32) -> Pid {
    let is_warden = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(8).any(|it| it == b"__warden")
    };
    let mut found = None;
    wait_until("there is a warden", || {
        // Whichever of its threads has started it.
        let threads = std::fs::read_dir(format!("/proc/{latch}/task")).unwrap();
        let children = threads.flatten().map(|it| it.path().join("children"));
        let texts = children.filter_map(|it| std::fs::read_to_string(it).ok());
        let texts: Vec<String> = texts.collect();
        let mut pids = texts.iter().flat_map(|it| it.split_whitespace());
        found = pids.find_map(|it| it.parse().ok().filter(is_warden));
        found.is_some()
    });
    Pid::from_raw(found.unwrap()).unwrap()
}

#[test]
fn of_several_keys_none_is_left_while_the_next_is_waited_for() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.lock("c", "0 3600");
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let words = ["run", "--lease", "1h", "c", "b", "a", "--", "true"];
        let mut run = Run::start(latch_at(&daemon, &words));
        client.wait_for_waiters("c", 1);
        warden_of(run.child.id());
        run.signal(signal);
        assert_eq!(run.code(), None, "ended by {signal:?}");
        // An hour is more than the test's patience: somebody else has let them go.
        expect(&daemon, 0, &["run", "-w", "10", "a", "b", "--", "true"]);
    }
}

/// Nothing is left that could end the command. The fence tells its writes from those of the next holder.
#[test]
fn command_outlives_its_lease_while_latch_and_warden_are_both_stopped() {
    let daemon = Daemon::start(&[]);
    let script = "echo $LATCH_FENCE; echo $$; exec sleep 1000";
    let words = ["run", "--lease", "1s", "k", "-c", script];
    let mut run = Run::start(latch_at(&daemon, &words));
    let fence: u64 = run.line().parse().unwrap();
    let command = run.pid();
    let warden = warden_of(run.child.id());
    for process in [warden, Pid::from_child(&run.child)] {
        rustix::process::kill_process(process, Signal::STOP).unwrap();
    }
    let next = ["run", "-w", "10", "k", "-c", "echo $LATCH_FENCE"];
    let higher: u64 = expect(&daemon, 0, &next).parse().unwrap();
    assert!(
        is_alive(command) && higher > fence,
        "{higher} is not above {fence}"
    );
    for process in [warden, Pid::from_child(&run.child)] {
        rustix::process::kill_process(process, Signal::CONT).unwrap();
    }
    wait_gone(command);
    assert_eq!(run.code(), Some(79));
}

#[test]
fn the_wardens_end_changes_nothing_for_the_command() {
    let daemon = Daemon::start(&[]);
    let mut command = latch_at(&daemon, &["run", "k", "-c", "echo $$; read line; exit 8"]);
    command.stdin(std::process::Stdio::piped());
    let mut run = Run::start(command);
    run.pid();
    let warden = warden_of(run.child.id());
    rustix::process::kill_process(warden, Signal::KILL).unwrap();
    wait_gone(warden);
    use std::io::Write;
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.code(), Some(8));
    expect(&daemon, 1, &["who", "k"]);
}

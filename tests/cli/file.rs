//! `latch file` beside flock(1), whose flags and exit codes it has.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::latch::{Run, latch, said, wait_gone, wait_until};

#[test]
fn the_file_is_there_while_the_command_runs_and_gone_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    let said = said(latch(&[
        "file",
        path,
        "-c",
        "stat -c '%s %a' $LATCH_FILE; exit 5",
    ]));
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(5), "0 600\n"),
        "{said:?}"
    );
    assert!(!lock.exists());
}

#[test]
fn the_command_may_stand_behind_dashes_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    for words in [
        &["file", path, "--", "echo", "-n", "--json"][..],
        &["file", path, "echo", "-n", "--json"],
        &["file", "-x", "-w", "1", path, "echo", "-n", "--json"],
        &["file", path, "-c", "echo -n --json"],
    ] {
        let said = said(latch(words));
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(0), "--json"),
            "{words:?}"
        );
    }
}

#[test]
fn it_excludes_flock_and_is_excluded_by_it() {
    if Command::new("flock").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no flock");
    }
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    let tries = |latch_word: &str| format!("flock -n {latch_word} {path} true; echo $?");
    let out = said(latch(&["file", path, "-c", &tries("-x")])).out;
    assert_eq!(out, "1\n");
    let out = said(latch(&["file", "-s", path, "-c", &tries("-s")])).out;
    assert_eq!(out, "0\n");
    let mut command = Command::new("flock");
    command.args([path, "sh", "-c", "echo; read line"]);
    command.stdin(Stdio::piped());
    let mut holder = Run::start(command);
    holder.line();
    assert_eq!(
        said(latch(&["file", "-n", path, "--", "true"])).code,
        Some(1)
    );
    assert_eq!(
        said(latch(&["file", "-n", "-E", "9", path, "--", "true"])).code,
        Some(9)
    );
    let waited = said(latch(&["file", "-w", "0.1", path, "--", "true"]));
    assert_eq!(waited.code, Some(1));
    assert!(
        waited.err.contains("(flock)") || waited.err.contains("(sh)"),
        "{waited:?}"
    );
    let mut waiter = Run::start(latch(&["file", path, "--", "echo", "got it"]));
    drop(holder.child.stdin.take());
    assert_eq!(waiter.line(), "got it");
    assert_eq!(waiter.code(), Some(0));
}

/// Without the option a waiting flock(1) gets a file that is removed already, and excludes no newcomer.
#[test]
fn a_kept_file_excludes_a_flock_that_waits() {
    if Command::new("flock").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no flock");
    }
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    fs::write(&lock, "contents").unwrap();
    let path = lock.to_str().unwrap();
    let held = |mut command: Command| {
        command.args([path, "sh", "-c", "echo held; read line"]);
        command.stdin(Stdio::piped());
        Run::start(command)
    };
    let mut holder = held(latch(&["file", "--keep-file"]));
    assert_eq!(holder.line(), "held");
    let mut waiter = held(Command::new("flock"));
    let inode = format!(":{} ", fs::metadata(&lock).unwrap().ino());
    let waits = |locks: &str| {
        let mut lines = locks.lines();
        lines.any(|line| line.contains("->") && line.contains(&inode))
    };
    wait_until("flock(1) waits", || {
        waits(&fs::read_to_string("/proc/locks").unwrap())
    });
    drop(holder.child.stdin.take());
    assert_eq!(holder.code(), Some(1));
    assert_eq!(waiter.line(), "held");
    let tries = || said(latch(&["file", "-n", "--keep-file", path, "--", "true"])).code;
    assert_eq!(tries(), Some(1));
    drop(waiter.child.stdin.take());
    assert_eq!(waiter.code(), Some(1));
    assert_eq!(tries(), Some(0));
    assert_eq!(fs::read_to_string(&lock).unwrap(), "contents");
}

#[test]
fn readers_hold_it_together() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    let inner = |option: &str| {
        let latch = crate::latch::program();
        format!("{latch} file -n {option} {path} -- true")
    };
    assert_eq!(
        said(latch(&["file", "-s", path, "-c", &inner("-s")])).code,
        Some(0)
    );
    assert_eq!(
        said(latch(&["file", "-s", path, "-c", &inner("-x")])).code,
        Some(1)
    );
    assert_eq!(
        said(latch(&["file", path, "-c", &inner("-s")])).code,
        Some(1)
    );
    assert!(!lock.exists());
}

#[test]
fn one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("count"), "0").unwrap();
    let script = format!(
        "n=$(cat {0}); sleep 0.01; echo $((n + 1)) > {0}",
        path("count")
    );
    let lock = path("x.lock");
    let runs: Vec<Run> = (0..12)
        .map(|_| Run::start(latch(&["file", &lock, "-c", &script])))
        .collect();
    for mut run in runs {
        assert_eq!(run.code(), Some(0));
    }
    assert_eq!(fs::read_to_string(path("count")).unwrap().trim(), "12");
}

/// As flock(1) does, and with flock's `-o` it does not; only that we do not unless asked.
#[test]
fn the_command_inherits_the_lock_only_if_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let lock = fs::canonicalize(dir.path()).unwrap().join("x.lock");
    let path = lock.to_str().unwrap();
    let has_it = |options: &[&str]| {
        let script = "readlink /proc/self/fd/* | grep -cxF \"$LATCH_FILE\"";
        let words = [&["file"], options, &[path, "-c", script]].concat();
        said(latch(&words)).out
    };
    assert_eq!(has_it(&[]), "0\n");
    assert_eq!(has_it(&["-o"]), "0\n");
    assert_eq!(has_it(&["--close", "-s"]), "0\n");
    assert_eq!(has_it(&["--inherit"]), "1\n");
    assert!(!lock.exists(), "and it is removed when nobody has it");
    let both = said(latch(&["file", "-o", "--inherit", path, "--", "true"]));
    assert_eq!(both.code, Some(64), "{both:?}");
}

#[test]
fn whoever_has_inherited_the_lock_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    let tries = || said(latch(&["file", "-n", path, "--", "true"])).code;
    for (option, is_kept) in [("--inherit", true), ("-x", false)] {
        // It leaves the group before it speaks, so that it is not ended with the rest of it.
        let script = "setsid sh -c 'echo $$; exec sleep 1000' & read line";
        let mut command = latch(&["file", option, path, "-c", script]);
        command.stdin(Stdio::piped());
        let mut run = Run::start(command);
        let heir = run.pid();
        run.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert_eq!(run.code(), Some(0));
        assert_eq!(tries(), Some(i32::from(is_kept)), "{option}");
        kill_process(heir, Signal::KILL).unwrap();
        wait_gone(heir);
        assert_eq!(tries(), Some(0));
        assert!(!lock.exists());
    }
}

/// What flock(1) has besides is a mistake here, not something that is silently done otherwise.
#[test]
fn flags_that_are_not_taken_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    for flag in ["-u", "-F", "--verbose", "--fcntl"] {
        let said = said(latch(&["file", flag, path, "--", "true"]));
        assert_eq!(said.code, Some(64), "{flag}: {said:?}");
    }
    assert!(!lock.exists());
}

/// A directory that says of itself that it is NFS, to this one process.
#[test]
fn a_network_file_system_is_refused_unless_it_is_allowed() {
    let tamper = ["-f", "-qq", "-o", "/dev/null", "-e"];
    let inject = "inject=fstatfs:poke_exit=@arg2=6969000000000000";
    let strace = |words: &[&str]| {
        let mut command = Command::new("strace");
        crate::latch::clean(&mut command);
        command.args(tamper).arg(inject).args(words);
        command
    };
    let works = strace(&["stat", "--file-system", "--format=%t", "/"]).output();
    if !works.is_ok_and(|it| it.status.success()) {
        return eprintln!("SKIPPED: strace cannot change what the system says");
    }
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("x.lock");
    let path = lock.to_str().unwrap();
    let program = crate::latch::program();
    let refused = said(strace(&[program, "file", path, "--", "true"]));
    assert_eq!(refused.code, Some(66), "{refused:?}");
    assert!(
        refused.err.contains("a file system of type "),
        "{refused:?}"
    );
    assert!(!lock.exists());
    let script = "test -e \"$LATCH_FILE\" && exit 5";
    let words = [program, "file", "--allow-network", path, "-c", script];
    let allowed = said(strace(&words));
    assert_eq!(allowed.code, Some(5), "{allowed:?}");
    assert!(!lock.exists(), "{allowed:?}");
}

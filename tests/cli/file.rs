//! `latch file` beside flock(1), whose flags and exit codes it has.

use std::fs;
use std::process::{Command, Stdio};

use crate::latch::{Run, latch, said};

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

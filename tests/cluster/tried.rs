//! `tools/cluster/try`: it shows who leads, and leaves nothing behind, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

use crate::etcd::program;

/// The script, with etcd where it looks first, and a folder of its own for what it makes.
fn script(folder: &Path, latchd: &str) -> Option<Command> {
    let program = program()?;
    let path = std::env::var("PATH").unwrap_or_default();
    // Whoever runs the tests in the background has Ctrl-C ignored, and so has everybody it starts: a shell cannot hear
    // what was ignored when it began.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tools/cluster/try"))
        .args(["--plain", "--ttl", "3s", latchd])
        .env(
            "PATH",
            format!("{}:{path}", program.parent().unwrap().display()),
        )
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C goes to a whole group, and this test is in another one.
        .process_group(0);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LATCHD_") {
            command.env_remove(name);
        }
    }
    Some(command)
}

fn skipped() {
    eprintln!("skipped: ETCD_FOLDER names no folder with etcd; see docs/cluster.md");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// The processes that the script says it has started.
fn members(lines: &[String]) -> Vec<Pid> {
    let number = |line: &String| {
        let (_, rest) = line.split_once("(process ")?;
        let pid = rest.split(')').next()?.parse().ok()?;
        Pid::from_raw(pid)
    };
    lines.iter().filter_map(number).collect()
}

fn read_until(child: &mut Child, needle: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in out.by_ref() {
        let line = line.unwrap();
        lines.push(line);
        if lines.iter().any(|it| it.contains(needle)) && members(&lines).len() >= 3 {
            break;
        }
    }
    // It goes on, and somebody has to read it.
    std::thread::spawn(move || out.for_each(drop));
    lines
}

#[test]
fn it_shows_who_leads_and_ends_with_everything_it_started() {
    let folder = TempDir::new().unwrap();
    let Some(mut command) = script(folder.path(), env!("CARGO_BIN_EXE_latchd")) else {
        return skipped();
    };
    let mut child = command.spawn().unwrap();
    let lines = read_until(&mut child, "  leader ");
    let all = lines.join("\n");
    assert!(all.contains("http://127.0.0.1:"), "{all}");
    assert!(lines.iter().any(|it| it.contains("  leader ")), "{all}");
    let pids = members(&lines);
    let group = Pid::from_child(&child);
    kill_process(group, Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    for pid in pids {
        assert!(test_kill_process(pid).is_err(), "{pid:?} is left");
    }
    assert!(is_empty(folder.path()), "files are left");
}

#[test]
fn a_member_that_does_not_start_ends_it_and_is_heard() {
    let folder = TempDir::new().unwrap();
    let tools = TempDir::new().unwrap();
    let broken = tools.path().join("latchd");
    fs::write(&broken, "#!/bin/sh\necho this one is broken >&2\nexit 3\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&broken, mode).unwrap();
    let Some(mut command) = script(folder.path(), broken.to_str().unwrap()) else {
        return skipped();
    };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("this one is broken"), "{said}");
    assert!(is_empty(folder.path()), "files are left");
}

#[test]
fn it_explains_itself_and_refuses_what_it_does_not_know() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/cluster/try");
    let help = Command::new(script).arg("--help").output().unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("--ttl SPAN"));
    let wrong = Command::new(script).arg("--tll").output().unwrap();
    assert_eq!(wrong.status.code(), Some(64));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.contains("--tll") && said.contains("--ttl SPAN"),
        "{said}"
    );
}

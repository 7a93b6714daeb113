//! The examples do what they say, against the real daemon.
//!
//! `cargo test` builds them. `cargo test --test clients examples::` alone does not: then say
//! `cargo build --examples` first.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot start its server has to fail"
)]
#![allow(clippy::disallowed_methods, reason = "threads read logs")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::vocabulary::Daemon;

/// An example, to be run against this daemon.
fn example(name: &str, daemon: &Daemon) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_latchd")).with_file_name("examples");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is not built: cargo build --examples",
        path.display()
    );
    let mut command = Command::new(path);
    command.arg(daemon.address().to_string());
    command
}

/// Runs it to its end: its exit code and what it said.
#[track_caller]
fn run(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said.into_owned())
}

#[test]
fn the_example_in_the_readme_takes_a_lock_and_releases_it() {
    let text = |name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        std::fs::read_to_string(path).unwrap()
    };
    let readme = text("README.md");
    let (_, block) = readme.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let program = text("examples/first_lock.rs");
    let (_, program) = program.split_once("\n\n").unwrap();
    assert_eq!(block, program, "the README shows another program");

    let daemon = Daemon::start(&[]);
    let mut fences = Vec::new();
    for _ in 0..2 {
        let (code, said) = run(example("first_lock", &daemon));
        assert_eq!(code, Some(0), "{said}");
        let fence = said.strip_prefix("fence ").unwrap().trim_end();
        fences.push(fence.parse::<u64>().unwrap());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    assert!(daemon.connect().ask("l backup 0").starts_with("ok "));
}

#[test]
fn a_stale_holder_is_refused_by_the_database() {
    let daemon = Daemon::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = example("fenced_sqlite", &daemon);
        command.arg(folder.path().join("accounts.db"));
        let (code, said) = run(command);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("the first holder was refused"), "{said}");
        assert!(said.ends_with("the balance is 200\n"), "{said}");
    }
}

#[test]
fn of_all_who_start_a_job_one_runs_it() {
    let daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    assert!(holder.ask("hello _ name=db1").starts_with("ok "));
    let grant = holder.lock("nightly", "0 60");
    let (code, said) = run(example("cron_guard", &daemon));
    assert_eq!((code, &*said), (Some(0), "nightly is under way: db1\n"));
    holder.release("nightly", &grant);
    let (code, said) = run(example("cron_guard", &daemon));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("nightly is done\n"), "{said}");
    let (code, said) = run(example("cron_guard", &daemon));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("nightly was done by cron_guard"), "{said}");
}

/// A process whose lines are read one by one.
struct Leader {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Leader {
    fn start(daemon: &Daemon) -> Self {
        let mut command = example("leader", daemon);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_leads_and_another_takes_over() {
    let daemon = Daemon::start(&[]);
    let mut look = daemon.connect();
    let mut one = Leader::start(&daemon);
    assert!(one.line().ends_with(" follows\n"));
    assert!(one.line().contains(" leads, fence "));
    let (mut two, mut three) = (Leader::start(&daemon), Leader::start(&daemon));
    look.wait_for_waiters("scheduler", 2);
    one.child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"sweep\n")
        .unwrap();
    assert!(one.line().starts_with("job \"sweep\" under fence "));
    drop(one.child.stdin.take());
    assert!(one.line().ends_with(" has resigned\n"));
    assert!(one.child.wait().unwrap().success());

    for follower in [&mut two, &mut three] {
        assert!(follower.line().ends_with(" follows\n"));
    }
    // Whichever came first leads; it dies, and the other one does.
    let who = |look: &mut crate::vocabulary::Client| look.ask("who scheduler _");
    let said = who(&mut look);
    let two_leads = said.contains(&format!("leader.{}.", two.child.id()))
        && said.find(&format!("leader.{}.", two.child.id()))
            < said.find(&format!("leader.{}.", three.child.id()));
    let (mut first, mut second) = match two_leads {
        true => (two, three),
        false => (three, two),
    };
    assert!(first.line().contains(" leads, fence "));
    first.child.kill().unwrap();
    assert!(second.line().contains(" leads, fence "));

    // One that is told that it leads no longer stops at once.
    // Its input stays open meanwhile: `wait` would close it, and at its end it resigns.
    let input = second.child.stdin.take();
    assert_eq!(look.ask("break scheduler *"), "ok 1");
    assert_eq!(second.child.wait().unwrap().code(), Some(79));
    drop(input);
}

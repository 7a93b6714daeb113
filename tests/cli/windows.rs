//! `latch` and a program with the client, built for Windows and run under wine, against the daemon on Linux.
//!
//! tools/portable/check builds both and names their folder in `LATCHD_WINDOWS_PROGRAMS`; otherwise they
//! are left out.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::latch::{Run, Said, clean, expect, said, skipped, wait_until};
use crate::vocabulary::Daemon;

/// The programs for Windows, if they were built.
struct Wine<'a> {
    folder: String,
    daemon: &'a Daemon,
}

impl<'a> Wine<'a> {
    fn new(daemon: &'a Daemon) -> Option<Self> {
        let Ok(folder) = std::env::var("LATCHD_WINDOWS_PROGRAMS") else {
            skipped("no programs for Windows: tools/portable/check builds them");
            return None;
        };
        Some(Self { folder, daemon })
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tools/portable/wine"));
        clean(&mut command);
        command.env("LATCH_SERVER", self.daemon.address().to_string());
        command.arg(format!("{}/{program}.exe", self.folder));
        command.args(words).stdin(Stdio::null());
        command
    }

    fn latch(&self, words: &[&str]) -> Said {
        said(self.command("latch", words))
    }

    #[track_caller]
    fn expect(&self, code: i32, words: &[&str]) -> String {
        let said = self.latch(words);
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        said.out.trim_end().to_owned()
    }
}

#[test]
fn commands_without_a_child_process_work() {
    let daemon = Daemon::start(&[]);
    let Some(wine) = Wine::new(&daemon) else {
        return;
    };
    let grant = wine.expect(0, &["acquire", "--lease", "10m", "k"]);
    let token = grant.split(' ').next().unwrap();
    expect(&daemon, 1, &["acquire", "-n", "k"]);
    let who = expect(&daemon, 0, &["who", "k", "--json"]);
    let who: Value = serde_json::from_str(&who).unwrap();
    let name = who["holders"][0]["name"].as_str().unwrap();
    assert!(name.contains('@') && !name.starts_with('@'), "{name}");
    assert!(wine.expect(0, &["ls"]).starts_with("k\t"));
    wine.expect(0, &["renew", "k", token]);
    wine.expect(0, &["release", "k", token]);
    wine.expect(0, &["set", "v", "a b"]);
    assert_eq!(expect(&daemon, 0, &["get", "v"]), "a b");
    assert_eq!(wine.expect(0, &["get", "v"]), "a b");
    wine.expect(1, &["get", "nothing"]);
    wine.expect(0, &["push", "l", "x"]);
    assert_eq!(wine.expect(0, &["pop", "l"]), "x");
    wine.expect(1, &["pop", "l"]);
    assert_eq!(wine.expect(0, &["signal", "c", "s"]), "0");
    wine.expect(64, &["no-such-command"]);
}

/// A wait that the daemon ends, and signals that it pushes.
#[test]
fn commands_that_wait_hear_of_it() {
    let daemon = Daemon::start(&[]);
    let Some(wine) = Wine::new(&daemon) else {
        return;
    };
    let mut pop = Run::start(wine.command("latch", &["pop", "-w", "1h", "l"]));
    let mut listen = Run::start(wine.command("latch", &["listen", "c"]));
    wait_until("one listens", || {
        expect(&daemon, 0, &["signal", "c", "hear"]) == "1"
    });
    assert!(listen.line().contains("hear"));
    expect(&daemon, 0, &["push", "l", "value"]);
    assert_eq!(pop.line(), "value");
    assert_eq!(pop.code(), Some(0));
}

#[test]
fn commands_that_run_a_command_are_refused_with_what_to_do() {
    let daemon = Daemon::start(&[]);
    let Some(wine) = Wine::new(&daemon) else {
        return;
    };
    for words in [
        &["run", "-w", "1", "k", "--", "true"][..],
        &["file", "x.lock", "--", "true"],
        &["range", "lock", "r", "0", "1", "--", "true"],
        &["top"],
    ] {
        let said = wine.latch(words);
        assert_eq!(said.code, Some(64), "{words:?}: {said:?}");
        assert!(said.err.contains("works on Linux only"), "{said:?}");
    }
    assert!(wine.expect(0, &["help"]).contains("Linux only"));
}

/// The example `leader`: its renewal thread renews the lease, and hears that the lock was broken.
#[test]
fn the_client_renews_and_hears_of_a_loss() {
    let daemon = Daemon::start(&[]);
    let Some(wine) = Wine::new(&daemon) else {
        return;
    };
    let address = daemon.address().to_string();
    let mut command = wine.command("leader", &[&address, "seat"]);
    command.stdin(Stdio::piped());
    let mut leader = Run::start(command);
    assert!(leader.line().ends_with(" follows"));
    let leads = leader.line();
    let (_, fence) = leads.split_once(" leads, fence ").unwrap();
    let lease_s = || {
        let who = expect(&daemon, 0, &["who", "seat", "--json"]);
        let who: Value = serde_json::from_str(&who).unwrap();
        who["holders"][0]["lease_left_s"].as_f64().unwrap()
    };
    let mut before = lease_s();
    wait_until("the lease is renewed", || {
        let now = lease_s();
        let is_renewed = now > before;
        before = now;
        is_renewed
    });
    expect(&daemon, 0, &["break", "seat", fence]);
    assert_eq!(leader.code(), Some(79));
}

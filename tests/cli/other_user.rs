//! Commands that become another user, as with sudo: no signal of ours reaches them, so the lock is held while they run.
//!
//! `latch` runs as an ordinary user here, and its command is a setuid program that becomes root for good.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::latch::{
    Run, expect, is_alive, latch, plain, program, said, skipped, wait_gone, wait_until,
};
use crate::vocabulary::{Client, Daemon, PATIENCE};

const NOBODY: u32 = 65534;

/// A directory that an ordinary user can read, with `latch` and a program that becomes root.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    /// `None`, with a word why, where such a program cannot be made.
    fn set() -> Option<Self> {
        if !geteuid().is_root() {
            skipped("only root can make a setuid program");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(dir.path(), 0o777);
        let stage = Self { dir };
        fs::copy(program(), stage.path("latch")).unwrap();
        mode(Path::new(&stage.path("latch")), 0o755);
        if fs::copy("/usr/bin/setpriv", stage.path("become")).is_err() {
            skipped("there is no setpriv");
            return None;
        }
        mode(Path::new(&stage.path("become")), 0o4755);
        let mut probe = Command::new(stage.path("become"));
        probe.args(["--reuid", "0", "id", "-ru"]).uid(NOBODY);
        let output = probe.output().unwrap();
        if output.stdout != b"0\n" {
            skipped(&format!(
                "setuid programs are ordinary ones in {:?}",
                stage.dir
            ));
            return None;
        }
        Some(stage)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// `latch` as an ordinary user, with a command that becomes root, prints its process id and stays.
    fn start(&self, daemon: Option<&Daemon>, words: &[&str]) -> Stubborn {
        let mut command = plain(&self.path("latch"));
        if let Some(daemon) = daemon {
            command.env("LATCH_SERVER", daemon.address().to_string());
        }
        let script = "echo $$; exec sleep 1000";
        command.args(words).args(["--", &self.path("become")]);
        command.args(["--reuid", "0", "sh", "-c", script]);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut run = Run::start(command);
        let errors = lines(run.child.stderr.take().unwrap());
        let process = run.pid();
        Stubborn {
            run,
            process,
            errors,
        }
    }
}

/// Lines as they come, read by a thread that ends with the pipe.
fn lines(errors: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

/// A command that runs as root, killed when dropped.
struct Stubborn {
    run: Run,
    process: Pid,
    errors: Receiver<String>,
}

impl Stubborn {
    /// The next line on standard error, which names the process and says this.
    #[track_caller]
    fn expect_said(&self, words: &str) {
        let line = self.errors.recv_timeout(PATIENCE).expect(words);
        // Its name is that of the shell until that has become `sleep`.
        let process = format!("process {} (", self.process.as_raw_pid());
        assert!(line.contains(&process) && line.contains(words), "{line}");
    }

    fn end(&self) {
        kill_process(self.process, Signal::KILL).unwrap();
        wait_gone(self.process);
    }
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        if is_alive(self.process) {
            self.end();
        }
    }
}

#[test]
fn lock_is_held_while_a_command_of_another_user_outlives_latch() {
    let Some(stage) = Stage::set() else { return };
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let command = stage.start(Some(&daemon), &["run", "--lease", "2s", "k"]);
    command.run.signal(Signal::KILL);
    command.expect_said("'k' is renewed until it ends");
    let once = ["run", "-n", "k", "--", "true"];
    expect(&daemon, 1, &once);
    wait_until("the warden has renewed the lock twice", || {
        let who = client.ask("who k _");
        let who: serde_json::Value = serde_json::from_str(&who[3..]).unwrap();
        who["holders"][0]["since_s"].as_f64().expect("a holder") > 5.0
    });
    assert!(is_alive(command.process));
    expect(&daemon, 1, &once);
    command.end();
    expect(&daemon, 0, &["run", "-w", "10", "k", "--", "true"]);
}

#[test]
fn bytes_are_held_while_a_command_of_another_user_outlives_latch() {
    let Some(stage) = Stage::set() else { return };
    let daemon = Daemon::start(&[]);
    let words = ["range", "lock", "--ttl", "2s", "f", "0", "10"];
    let command = stage.start(Some(&daemon), &words);
    command.run.signal(Signal::KILL);
    command.expect_said("'f' is renewed until it ends");
    let once = ["range", "lock", "-n", "f", "5", "1", "--", "true"];
    expect(&daemon, 1, &once);
    let mut client = daemon.connect();
    wait_until("the warden has asked for them twice", || {
        let list = client.ask("rangelist f _");
        let list: serde_json::Value = serde_json::from_str(&list[3..]).unwrap();
        list["locks"][0]["since_ms"].as_u64().expect("a lock") > 5_000
    });
    expect(&daemon, 1, &once);
    command.end();
    let next = ["range", "lock", "-w", "10", "f", "0", "10", "--", "true"];
    expect(&daemon, 0, &next);
}

#[test]
fn file_stays_locked_while_a_command_of_another_user_outlives_latch() {
    let Some(stage) = Stage::set() else { return };
    let lock = stage.path("x.lock");
    let command = stage.start(None, &["file", &lock]);
    command.run.signal(Signal::KILL);
    command.expect_said("the file stays locked until it ends");
    let take = |options: &[&str]| {
        let words = [&["file"], options, &[&lock, "--", "true"]].concat();
        said(latch(&words)).code
    };
    assert_eq!(take(&["-n"]), Some(1));
    command.end();
    assert_eq!(take(&["-w", "10"]), Some(0));
}

/// The lease cannot be kept and the command cannot be ended: that is said, when it is told to end and when it is too late.
#[test]
fn command_of_another_user_does_not_outlive_its_lease_in_silence() {
    let Some(stage) = Stage::set() else { return };
    let daemon = Daemon::start(&[]);
    let mut command = stage.start(Some(&daemon), &["run", "--lease", "6s", "k"]);
    daemon.freeze();
    command.expect_said("the lock is lost, and another client may hold it");
    command.expect_said("'k' may be held by another client now");
    assert!(is_alive(command.process));
    daemon.thaw();
    // The server still has the lock, and the warden has asked for all of the lease again.
    let mut client = daemon.connect();
    let who = |client: &mut Client| -> serde_json::Value {
        serde_json::from_str(&client.ask("who k _")[3..]).unwrap()
    };
    wait_until("the warden renews the lock", || {
        let left = who(&mut client)["holders"][0]["lease_left_s"].as_f64();
        left.is_none_or(|left| left > 3.0)
    });
    let before = expiries(&mut client);
    command.end();
    assert_eq!(command.run.code(), Some(79));
    let last = command.errors.iter().last().unwrap();
    assert!(last.contains("could not be ended"), "{last}");
    // It is released, and not left to its lease.
    wait_until("the lock is free", || {
        who(&mut client)["holders"][0].is_null()
    });
    assert_eq!(expiries(&mut client), before);
}

fn expiries(client: &mut Client) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&client.ask("stats _ _")[3..]).unwrap();
    stats["totals"]["expiries"].as_u64().unwrap()
}

/// `kill` of `latch` cannot end it either; `latch` stays, and so does the lock.
#[test]
fn signal_that_is_refused_is_said_once() {
    let Some(stage) = Stage::set() else { return };
    let daemon = Daemon::start(&[]);
    let mut command = stage.start(Some(&daemon), &["run", "--lease", "1h", "k"]);
    for _ in 0..2 {
        command.run.signal(Signal::TERM);
    }
    command.expect_said("the lock is renewed until it ends");
    expect(&daemon, 1, &["run", "-n", "k", "--", "true"]);
    command.end();
    assert_eq!(command.run.code(), Some(137));
    assert_eq!(command.errors.iter().count(), 0, "once");
    expect(&daemon, 1, &["who", "k"]);
}

/// As in a container that runs with a number only.
#[test]
fn user_without_an_entry_in_the_user_database_is_named_by_its_number() {
    let Some(stage) = Stage::set() else { return };
    let daemon = Daemon::start(&[]);
    let mut command = plain(&stage.path("latch"));
    command.args(["acquire", "k"]).uid(54_321).current_dir("/");
    command.env("LATCH_SERVER", daemon.address().to_string());
    command.env_remove("USER").env_remove("LOGNAME");
    assert_eq!(said(command).code, Some(0));
    let who = expect(&daemon, 0, &["--json", "who", "k"]);
    let who: serde_json::Value = serde_json::from_str(&who).unwrap();
    let name = who["holders"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("54321@"), "{name}");
}

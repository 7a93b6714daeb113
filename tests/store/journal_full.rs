//! The journal's thread when its files may not grow: it says so, keeps what it was given, and goes on
//! by itself when they may again.
//!
//! In a process of its own, because the limit is one of the whole process.

#![allow(
    clippy::unwrap_used,
    reason = "a test whose journal does not open has to fail"
)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use latchd::base::{Fence, Nanos};
use latchd::engine::types::Record;
use latchd::key::Key;
use latchd::store::{Durability, Journal, Notice, Options, Store};
use rustix::process::{Resource, Rlimit, setrlimit};

fn limit_files_to(bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
}

#[test]
fn a_journal_without_room_recovers_by_itself() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal_full::recovers_where_files_may_not_grow"])
        .args(["--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let complained = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by a_journal_without_room_recovers_by_itself, in a process of its own"]
fn recovers_where_files_may_not_grow() {
    // As the daemon does: a file that may not grow must not end the process.
    signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    )
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (report, notices) = mpsc::channel();
    let (wake, woken) = mpsc::channel();
    let options = Options {
        durability: Durability::Sync,
        segment_bytes: 1 << 16,
        salt: 1,
        wall_ms: Box::new(|| 1_800_000_000_000),
        wake: Box::new(move || wake.send(()).unwrap_or(())),
        report: Box::new(move |notice| report.send(notice).unwrap_or(())),
    };
    let mut journal = Journal::open(dir.path(), options, &mut |_| {})
        .unwrap()
        .journal;
    let record = Record::Ended {
        key: Key::from(&b"a name of some length"[..]),
        fence: Fence(1),
    };
    // Too little for the shortest segment, and for what is kept of the present one.
    limit_files_to(Some(1 << 13));
    let mut number = 0;
    while !journal.progress().is_full {
        for _ in 0..10 {
            journal.append(Nanos(0), &record);
            number += 1;
        }
        journal.commit(Nanos(0));
        woken.recv().unwrap();
    }
    let notice = notices.recv().unwrap();
    assert!(matches!(notice, Notice::Full(_)), "{notice}");
    let kept = journal.progress().durable;
    assert!(0 < kept && kept < number, "{kept} of {number}");

    limit_files_to(None);
    while journal.progress().is_full || journal.progress().durable < number {
        woken.recv().unwrap();
    }
    assert_eq!(notices.recv().unwrap(), Notice::Room);
    journal.stop().unwrap();
}

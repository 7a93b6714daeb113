//! How many threads a client has: one that renews, and one that looks for a leader while an answer is missing, however
//! many guards there are. In a process of its own, where no other test has any.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use latchd::client::Client;

use super::ms;
use super::proxy::{Tally, greeting, peer_that_decides};
use crate::vocabulary::PATIENCE;

const GUARDS: usize = 120;
const GRANT: &[u8] = b"ok 00000000000000010000000000000001 9 1\n";
const RENEWAL: &[u8] = b"ok 9 1\n";

#[test]
fn many_guards_have_few_threads() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client::threads::guards_of_a_stopped_leader"])
        .args(["--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let complained = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "{said}");
}

/// How many threads of this name there are.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // One that has ended meanwhile is none.
    let names = tasks.filter_map(|it| fs::read_to_string(it.ok()?.path().join("comm")).ok());
    names.filter(|it| it.starts_with(name)).count()
}

/// The same, of those that stay. A thread has the name of the one that has begun it until it comes to set its own, which may
/// take a while on a busy machine.
fn settled_threads(name: &str) -> usize {
    let start = Instant::now();
    loop {
        let count = threads(name);
        if count <= 1 || start.elapsed() > ms(2_000) {
            return count;
        }
        thread::yield_now();
    }
}

/// The leader is stopped. All guards are renewed at the next one, before their leases are over.
#[test]
#[ignore = "run by many_guards_have_few_threads, in a process of its own"]
fn guards_of_a_stopped_leader() {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&is_stopped);
    let (first, _) = peer_that_decides(move |_, verb, stream| {
        let answer: &[u8] = match verb {
            _ if stopped.load(Ordering::SeqCst) => return true,
            "hello" => &greeting(1),
            "l" => GRANT,
            "n" => RENEWAL,
            "who" => b"ok {}\n",
            _ => b"ok\n",
        };
        stream.write_all(answer).is_ok()
    });
    let renewed = Tally::default();
    let (renewals, leads) = (renewed.clone(), Arc::clone(&is_stopped));
    let (second, _) = peer_that_decides(move |number, verb, stream| {
        let answer: &[u8] = match verb {
            _ if !leads.load(Ordering::SeqCst) => b"error_not_leader\n",
            "hello" => &greeting(2),
            "n" => {
                if number == 2 {
                    renewals.add(); // the first on its connection, behind `hello` and `who`
                }
                RENEWAL
            }
            "who" => b"ok {}\n",
            _ => b"ok\n",
        };
        stream.write_all(answer).is_ok()
    });
    let client = Client::connect(&format!("{first}+{second}")).unwrap();
    let guards: Vec<_> = (0..GUARDS)
        .map(|number| client.lock(format!("job{number}")).try_acquire().unwrap())
        .collect();
    is_stopped.store(true, Ordering::SeqCst);
    let (mut renewing, mut looking) = (0, 0);
    let start = Instant::now();
    while renewed.count() < GUARDS {
        renewing = settled_threads("latch-renew").max(renewing);
        looking = threads("latch-look").max(looking);
        let lost = guards.iter().filter(|it| it.lost().is_set()).count();
        assert_eq!(lost, 0, "{} of {GUARDS} were renewed", renewed.count());
        assert!(start.elapsed() < 2 * PATIENCE);
        let _ = guards[0].lost().wait(ms(1));
    }
    assert_eq!((renewing, looking), (1, 1));
    drop(guards);
    drop(client);
    let start = Instant::now();
    while threads("latch-") > 0 {
        assert!(start.elapsed() < PATIENCE, "{} are left", threads("latch-"));
        thread::yield_now();
    }
}

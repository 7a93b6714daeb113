//! Programs and scripts that hold something while the leader is killed: the client and `latch`, which follow by themselves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use latchd::client::{Client, ErrorKind, Standing};
use latchd::http_client::{HeartbeatOptions, LeaseClient};

use crate::members::{Members, Proxy};
use crate::vocabulary::PATIENCE;
use crate::{now, with_etcd};

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// For a leader to be missed and another one to be found, on a busy machine.
const LONG: Duration = s(60);

fn list(members: &Members) -> String {
    let addresses: Vec<_> = (0..3)
        .map(|it| members.daemon(it).address().to_string())
        .collect();
    addresses.join("+")
}

fn client(members: &Members, keep: bool) -> Client {
    let client = Client::builder(&list(members)).keep(keep);
    client.connect_timeout(LONG).connect().unwrap()
}

/// Says so when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Guards, a wait and a lease over HTTP, through a leader that is killed and one that is stopped.
#[test]
fn what_programs_hold_and_wait_for_outlasts_the_leader() {
    with_etcd(|etcds| {
        let mut members = Members::start("programs", &etcds.urls());
        let mut leader = members.leader();
        let (plain, keeping) = (client(&members, false), client(&members, true));
        let others = client(&members, false);
        // A leader that is stopped is noticed when a renewal is not answered, at a third of this.
        let lease = s(12);
        let guard = plain.lock("plain").lease(lease).acquire().unwrap();
        let kept = keeping.lock("kept").lease(lease).acquire().unwrap();
        let urls = (0..3).map(|it| format!("http://{}", members.daemon(it).http_address()));
        let over_http = LeaseClient::cluster(urls.collect::<Vec<_>>());
        let over_http = over_http.timeout(PATIENCE).build().unwrap();
        let http = over_http.acquire_once("http", "me", lease).unwrap();
        let options = HeartbeatOptions::new().interval(s(1)).extend_by(lease);
        let http = over_http.start_heartbeat(http, options).unwrap();
        for way in ["kill", "freeze"] {
            // Somebody waits, and is granted it by a leader that nobody had asked.
            let waited = plain.lock("waited").lease(lease).acquire().unwrap();
            let granted = Arc::new(AtomicU64::new(0));
            let (others, seen) = (others.clone(), Arc::clone(&granted));
            let looking = others.clone();
            let waiter = thread::spawn(move || {
                let guard = others.lock("waited").lease(lease).wait(LONG).acquire();
                if let Ok(guard) = &guard {
                    seen.store(guard.fence(), Ordering::SeqCst);
                }
                guard
            });
            while looking.who("waited").unwrap().waiter_count == 0 {}
            let is_over = AtomicBool::new(false);
            let next = thread::scope(|scope| {
                // Also if something goes wrong, so that it is told.
                let over = Over(&is_over);
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        let is_granted = granted.load(Ordering::SeqCst) > 0;
                        assert!(!(is_granted && waited.is_held()), "both hold it");
                        thread::park_timeout(Duration::from_millis(1));
                    }
                });
                let began = now();
                match way {
                    "kill" => members.kill(leader),
                    _ => members.daemon(leader).freeze(),
                }
                let next = members.next_leader(leader);
                println!("{way:8} {:6.3} s", began.elapsed().as_secs_f64());
                let direct = Client::connect(&members.daemon(next).address().to_string());
                let direct = direct.unwrap();
                // All are claimed at the new leader, before their leases are over.
                for (guard, name) in [(&guard, "plain"), (&kept, "kept"), (&waited, "waited")] {
                    let is_claimed = || {
                        let who = direct.who(name).unwrap();
                        who.holders
                            .iter()
                            .any(|it| it.fence == guard.fence() && !it.restored)
                    };
                    while !is_claimed() || guard.standing() != Standing::Held {
                        assert!(!guard.lost().is_set(), "{name} after {way}");
                        assert!(began.elapsed() < LONG, "{name} after {way}");
                        thread::park_timeout(Duration::from_millis(10));
                    }
                    let busy = direct.lock(name).try_acquire().unwrap_err();
                    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
                }
                assert!(http.is_held(), "after {way}");
                while direct.who("waited").unwrap().waiter_count == 0 {
                    assert!(began.elapsed() < LONG, "nobody waits any more");
                }
                drop(over);
                next
            });
            let fence = waited.fence();
            waited.release().unwrap();
            assert!(
                waiter.join().unwrap().unwrap().fence() > fence,
                "after {way}"
            );
            match way {
                "kill" => members.restart(leader, &etcds.urls()),
                _ => {
                    members.daemon(leader).thaw();
                    members.await_standby(leader);
                }
            }
            leader = next;
            // The addresses of one that was started again are others; those of two are enough.
        }
        assert!(http.release().unwrap().is_released());
        guard.release().unwrap();
        kept.release().unwrap();
    });
}

/// The least lease that is promised to outlast a change of the leader: with this no command is
/// ended, whether the leader is stopped or cut off from etcd, and whenever that happens between two
/// renewals.
#[test]
fn commands_with_the_least_lease_outlast_a_silent_leader() {
    const LEASE_S: u64 = 3 + 3; // the TTL of these members, and three seconds
    const COMMANDS: u64 = 4;
    with_etcd(|etcds| {
        let proxies = etcds.addresses().iter().map(|it| Proxy::start(*it));
        let proxies: Vec<Proxy> = proxies.collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let members = Members::start_each("least", &urls);
        let latch = |lease: &str, key: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_latch"));
            command.env("LATCH_SERVER", list(&members));
            command.args(["run", "--lease", lease, key, "-c"]);
            command.arg("echo begun; read line; echo ended");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped());
            command
        };
        for way in ["freeze", "cut"] {
            let leader = members.leader();
            // Begun at different moments of the time between two renewals.
            let runs = (0..COMMANDS).map(|number| {
                let key = format!("{way}{number}");
                let mut run = latch(&format!("{LEASE_S}s"), &key).spawn().unwrap();
                let mut out = BufReader::new(run.stdout.take().unwrap()).lines();
                assert_eq!(out.next().unwrap().unwrap(), "begun");
                (key, run, out)
            });
            let runs: Vec<_> = runs.collect();
            let began = now();
            match way {
                "cut" => proxies[leader].cut(true),
                _ => members.daemon(leader).freeze(),
            }
            let next = members.next_leader(leader);
            println!("{way:8} {:6.3} s", began.elapsed().as_secs_f64());
            let direct = Client::connect(&members.daemon(next).address().to_string()).unwrap();
            for (key, mut run, mut out) in runs {
                // Renewed by the new leader, and the command has heard nothing of it.
                while direct.who(&key).unwrap().holders[0].restored {
                    assert!(run.try_wait().unwrap().is_none(), "{way}: it was ended");
                    assert!(began.elapsed() < LONG, "{way}: {:?}", direct.who(&key));
                }
                run.stdin.take().unwrap().write_all(b"\n").unwrap();
                assert_eq!(out.next().unwrap().unwrap(), "ended", "{way}");
                let said = run.wait_with_output().unwrap();
                let text = String::from_utf8_lossy(&said.stderr).into_owned();
                assert!(said.status.success() && text.is_empty(), "{way}: {text}");
            }
            match way {
                "cut" => proxies[leader].cut(false),
                _ => members.daemon(leader).thaw(),
            }
            members.await_standby(leader);
        }
        // A shorter one is warned of.
        let said = latch("4s", "short").stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{text}");
        assert!(
            text.contains("--lease 5.7s") && text.lines().count() == 1,
            "{text}"
        );
    });
}

/// `latch run` goes on, and so does `latch watch`; all with a list of members.
#[test]
fn commands_outlast_the_leader() {
    with_etcd(|etcds| {
        let members = Members::start("commands", &etcds.urls());
        let leader = members.leader();
        let latch = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_latch"));
            command.args(words).env("LATCH_SERVER", list(&members));
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped());
            command
        };
        let script = "echo begun; read line; echo ended";
        let mut run = latch(&["run", "--lease", "20s", "job", "-c", script])
            .spawn()
            .unwrap();
        let mut out = BufReader::new(run.stdout.take().unwrap()).lines();
        assert_eq!(out.next().unwrap().unwrap(), "begun");
        let waiting = latch(&["run", "-w", "60", "job", "--", "true"])
            .spawn()
            .unwrap();
        let mut watch = latch(&["watch", "news"]).spawn().unwrap();
        let mut events = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut gaps = BufReader::new(watch.stderr.take().unwrap()).lines();
        let direct =
            |index: usize| Client::connect(&members.daemon(index).address().to_string()).unwrap();
        let before = direct(leader);
        while before.who("job").unwrap().waiter_count == 0 {}
        // It listens once the first event is heard.
        let (first, heard) = std::sync::mpsc::channel();
        thread::spawn(move || {
            while let Some(Ok(event)) = events.next() {
                if first.send(event).is_err() {
                    return;
                }
            }
        });
        while heard.recv_timeout(Duration::from_millis(50)).is_err() {
            before.counter("news").add(1).unwrap();
        }
        members.daemon(leader).signal(rustix::process::Signal::KILL);
        let next = members.next_leader(leader);
        let after = direct(next);
        let began = now();
        let gap = gaps.next().unwrap().unwrap();
        assert!(gap.contains("missed"), "{gap}");
        while heard.try_recv().is_ok() {}
        while heard.recv_timeout(Duration::from_millis(50)).is_err() {
            assert!(began.elapsed() < LONG, "nothing is heard");
            after.counter("news").add(1).unwrap();
        }
        // The command runs, its lock is claimed, and the other one waits.
        while after.who("job").unwrap().holders[0].restored
            || after.who("job").unwrap().waiter_count == 0
        {
            assert!(began.elapsed() < LONG, "{:?}", after.who("job"));
        }
        assert!(run.try_wait().unwrap().is_none(), "it was ended");
        run.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(out.next().unwrap().unwrap(), "ended");
        assert!(run.wait().unwrap().success());
        let waited = waiting.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&waited.stderr).into_owned();
        assert!(waited.status.success(), "{said}");
        watch.kill().unwrap();
        watch.wait().unwrap();
        for words in [&["ls"][..], &["who", "job"], &["stats"], &["ping"]] {
            let said = latch(words).output().unwrap();
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(
                matches!(said.status.code(), Some(0 | 1)),
                "{words:?}: {text}"
            );
        }
    });
}

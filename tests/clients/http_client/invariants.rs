//! What the tests of LockServer check, with this client and the real daemon; and what they should check
//! besides.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use latchd::http_client::{Error, HeartbeatOptions, LeaseClient, Reason, Release, RetryOptions};
use rustix::process::Signal;

use crate::http_client::scripted::{Reply, Scripted};
use crate::http_client::{client, ms, pass, start, url};
use crate::vocabulary::{Daemon, PATIENCE, latchd};

/// What is to be protected: takes a write unless it has seen a later token.
#[derive(Default)]
struct Resource {
    last_token: u64,
    stale: u64,
    rejected: u64,
}

impl Resource {
    fn try_write(&mut self, token: u64, is_stale: bool) -> bool {
        let accepted = token >= self.last_token;
        self.stale += u64::from(is_stale);
        self.rejected += u64::from(!accepted);
        self.last_token = self.last_token.max(token);
        accepted
    }
}

/// Forty clients want one lock; every seventh stalls while it holds it, until somebody else has it, and
/// writes then.
#[test]
fn fencing_prevents_stale_writers() {
    const CLIENTS: usize = 40;
    const REJECTED: u64 = 5;
    let daemon = start(&[]);
    let url = url(&daemon);
    let resource = Mutex::new(Resource::default());
    let written = Condvar::new();
    let is_over = AtomicBool::new(false);
    let top = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for nth in 0..CLIENTS {
            let (url, resource, written, is_over, top) =
                (&url, &resource, &written, &is_over, &top);
            scope.spawn(move || {
                let client = LeaseClient::new(url).unwrap();
                let owner = format!("client-{nth}");
                while !is_over.load(Ordering::SeqCst) {
                    let options = RetryOptions::new(ms(120)).max_total_wait(PATIENCE);
                    let options = options.max_retries(u32::MAX).max_retry(ms(30));
                    let lease = match client.acquire_with_retry("hot", &owner, &options) {
                        Ok(lease) => lease,
                        Err(Error::NotAcquired(_)) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let token = lease.fencing_token();
                    let before = top.fetch_max(token, Ordering::SeqCst);
                    let mut resource = resource.lock().unwrap();
                    if nth % 7 == 0 {
                        let waits = |it: &mut Resource| {
                            it.last_token < token && !is_over.load(Ordering::SeqCst)
                        };
                        resource = written
                            .wait_timeout_while(resource, PATIENCE, waits)
                            .unwrap()
                            .0;
                    }
                    let is_stale = resource.last_token > token || before > token;
                    let accepted = resource.try_write(token, is_stale);
                    if resource.rejected >= REJECTED || begun.elapsed() > PATIENCE * 3 {
                        is_over.store(true, Ordering::SeqCst);
                    }
                    drop(resource);
                    written.notify_all();
                    let released = client.release_once(&lease).unwrap();
                    assert!(
                        accepted || released == Release::NotOwner,
                        "late, and yet it held it"
                    );
                }
            });
        }
    });
    let mut resource = resource.into_inner().unwrap();
    assert!(
        resource.stale > 0 && resource.rejected >= REJECTED,
        "nobody was late"
    );
    let top = top.into_inner();
    assert!(resource.try_write(top, false), "the latest may write");
    assert_eq!(resource.last_token, top);
}

#[test]
fn stale_release_cannot_clobber_new_owner() {
    let daemon = start(&["--get-secrets"]);
    let client = client(&daemon);
    let old = client.acquire_once("job", "a", ms(120)).unwrap();
    let options = RetryOptions::new(ms(60_000)).wait(PATIENCE);
    let new = client.acquire_with_retry("job", "b", &options).unwrap();
    assert!(!old.is_held(), "it has ended here before it ended there");
    assert!(new.fencing_token() > old.fencing_token());
    assert_ne!(new.lease_id, old.lease_id);
    let released = client.release_once(&old).unwrap();
    assert_eq!(
        (released.is_released(), released.reason()),
        (false, Some("NOT_OWNER"))
    );
    let seen = daemon.http().get("/v1/locks/job").json();
    assert_eq!(seen["owner_id"], "b");
    assert_eq!(seen["lease_id"], new.lease_id.as_str());
    assert_eq!(seen["fencing_token"], new.fencing_token());
    assert!(client.release_once(&new).unwrap().is_released());
}

#[test]
fn renew_heartbeat_keeps_lease_alive_then_expires() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let lease = client.acquire_once("job", "a", ms(2_000)).unwrap();
    let old = lease.fencing_token();
    let options = HeartbeatOptions::new()
        .interval(ms(60))
        .extend_by(ms(2_000));
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    let begun = Instant::now();
    // As long as it was held at first, and half as long again.
    while begun.elapsed() < ms(3_000) {
        let error = client.acquire_once("job", "b", ms(200)).unwrap_err();
        let is_held = heartbeat.is_held();
        assert!(
            matches!(error, Error::NotAcquired(_)) && is_held,
            "{error:?}, {heartbeat:?}"
        );
        pass(ms(10));
    }
    let metrics = daemon.http().get("/metrics").body;
    assert!(
        !metrics.contains("lock_renew_total{result=\"success\"} 0"),
        "{metrics}"
    );
    let lease = heartbeat.cancel();
    // Nobody renews it now.
    let options = RetryOptions::new(ms(200)).wait(PATIENCE);
    let new = client.acquire_with_retry("job", "b", &options).unwrap();
    assert!(new.fencing_token() > old);
    assert!(!lease.is_held(), "it has ended here before it ended there");
}

#[test]
fn acquire_with_retry_succeeds_after_conflicts() {
    let server = Scripted::start(|nth, asked| match nth {
        0 | 1 => Reply::held(1),
        _ => Reply::granted(asked, "L1", 42),
    });
    let options = RetryOptions::new(ms(60_000))
        .min_retry(ms(1))
        .jitter_frac(0.0);
    let lease = server
        .client()
        .acquire_with_retry("job", "me", &options)
        .unwrap();
    assert_eq!(server.asked().len(), 3);
    assert_eq!((lease.fencing_token(), lease.lease_id.as_str()), (42, "L1"));
    assert_eq!(
        (lease.lock_name.as_str(), lease.owner_id.as_str()),
        ("job", "me")
    );
    assert_eq!(lease.lease_expiry_ms, 1_767_225_660_000);
}

#[test]
fn of_many_who_ask_at_once_exactly_one_is_granted() {
    const CLIENTS: usize = 32;
    let daemon = start(&[]);
    let url = url(&daemon);
    let together = Barrier::new(CLIENTS);
    for round in 0..5 {
        let granted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS)
                .map(|nth| {
                    let (url, together) = (&url, &together);
                    scope.spawn(move || {
                        let client = LeaseClient::new(url).unwrap();
                        let (lock, owner) = (format!("job-{round}"), format!("client-{nth}"));
                        together.wait();
                        match client.acquire_once(&lock, &owner, ms(600_000)) {
                            Ok(_) => 1,
                            Err(Error::NotAcquired(it)) if it.reason == Reason::Held => 0,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(granted, 1, "round {round}");
    }
}

/// Nobody is told that the server is busy.
#[test]
fn eighty_clients_are_never_told_busy() {
    const CLIENTS: usize = 80;
    let daemon = start(&[]);
    let url = url(&daemon);
    thread::scope(|scope| {
        for nth in 0..CLIENTS {
            let url = &url;
            scope.spawn(move || {
                let client = LeaseClient::new(url).unwrap();
                for turn in 0..5 {
                    // Half of them wait in the queue, and half ask again and again.
                    let wait = if nth % 2 == 0 { PATIENCE } else { ms(0) };
                    let options = RetryOptions::new(ms(60_000)).max_retries(u32::MAX);
                    let options = options.wait(wait).max_retry(ms(50));
                    let owner = format!("client-{nth}-{turn}");
                    let lease = client.acquire_with_retry("hot", &owner, &options).unwrap();
                    assert!(client.release_once(&lease).unwrap().is_released());
                }
            });
        }
    });
    let metrics = daemon.http().get("/metrics").body;
    for line in [
        "lock_acquire_total{result=\"busy\"} 0",
        "lock_release_total{result=\"success\"} 400",
        "locks_held 0",
    ] {
        assert!(
            metrics.lines().any(|it| it == line),
            "{line} is not in {metrics}"
        );
    }
}

/// A daemon with this data directory, on the port that it had before.
fn start_at(directory: &std::path::Path, port: u16) -> Daemon {
    let mut command = latchd();
    command.args(["--port", "0", "--data-dir"]).arg(directory);
    command.arg(format!("--http-port={port}"));
    Daemon::serve(command)
}

/// Tokens grow over a stop and over `kill -9` in the middle of acquires; who has asked meanwhile has its
/// lock afterwards, once; and a lease is its owner's again.
#[test]
fn tokens_grow_over_restarts_and_kills_during_acquires() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 4;
    let around = tempfile::tempdir().unwrap();
    let directory = around.path().join("data");
    let mut daemon = start_at(&directory, 0);
    let port = daemon.http_address().port();
    let client = client(&daemon);
    let mut kept = client.acquire_once("kept", "me", ms(600_000)).unwrap();
    let tokens = Mutex::new(BTreeSet::from([kept.fencing_token()]));
    let grants = Condvar::new();
    let is_over = AtomicBool::new(false);
    let _daemon = thread::scope(|scope| {
        let mut threads = Vec::new();
        for nth in 0..CLIENTS {
            let (client, tokens, grants, is_over) = (&client, &tokens, &grants, &is_over);
            threads.push(scope.spawn(move || {
                for turn in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    let lock = format!("lock-{nth}-{turn}");
                    let options = RetryOptions::new(ms(600_000)).max_retries(u32::MAX);
                    let options = options.min_retry(ms(1)).max_retry(ms(20));
                    let lease = loop {
                        match client.acquire_with_retry(&lock, "me", &options) {
                            Ok(lease) => break lease,
                            // Nothing was sent, and nobody is there for now; or it drains.
                            Err(Error::NoAnswer {
                                may_have_arrived: false,
                                ..
                            }) => pass(ms(5)),
                            Err(Error::UnexpectedStatus { status: 503, .. }) => pass(ms(5)),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let is_new = tokens.lock().unwrap().insert(lease.fencing_token());
                    assert!(is_new, "{} came twice", lease.fencing_token());
                    grants.notify_all();
                }
            }));
        }
        for round in 0..ROUNDS {
            let before = tokens.lock().unwrap().len();
            let few = |it: &mut BTreeSet<u64>| it.len() < before + 50;
            let waited = grants.wait_timeout_while(tokens.lock().unwrap(), PATIENCE, few);
            let (seen, result) = waited.unwrap();
            assert!(!result.timed_out(), "no grants in round {round}");
            drop(seen);
            daemon.signal(if round % 2 == 0 {
                Signal::KILL
            } else {
                Signal::TERM
            });
            if round % 2 == 1 {
                daemon.wait_for_log("shutting down");
                daemon.signal(Signal::TERM);
            }
            drop(daemon);
            let highest = *tokens.lock().unwrap().last().unwrap();
            daemon = start_at(&directory, port);
            let next = client.acquire_once(&format!("after-{round}"), "me", ms(1_000));
            assert!(next.unwrap().fencing_token() > highest);
        }
        is_over.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
        daemon
    });
    let renewed = client.renew_once(&mut kept, ms(600_000)).unwrap();
    assert_eq!(renewed, latchd::http_client::Renewal::Renewed);
    assert!(client.release_once(&kept).unwrap().is_released());
}

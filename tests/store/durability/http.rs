//! Leases over HTTP and restarts: a lease belongs to a name, so its owner has it back without asking.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use crate::durability::directory::{Directory, kill, who};
use crate::vocabulary::{Daemon, HttpClient, Lease};

const HTTP: &str = "--http-port=0";

/// How a daemon may end.
const ENDS: [fn(Daemon); 2] = [
    |mut daemon| {
        daemon.stop();
    },
    |daemon| kill(daemon),
];

#[test]
fn an_owner_has_its_lease_back_with_all_of_its_time() {
    for end in ENDS {
        let directory = Directory::new();
        let daemon = directory.start(&[HTTP]);
        let mut http = daemon.http();
        let lease = http.acquire("job", "me", "\"ttl_ms\":600000");
        let gone = http.acquire("gone", "me", "\"ttl_ms\":600000");
        assert_eq!(http.release(&gone).json()["released"], true);
        drop(http);
        end(daemon);

        let daemon = directory.start(&[HTTP]);
        let mut http = daemon.http();
        let seen = http.get("/v1/locks/job").json();
        assert_eq!(seen["owner_id"], "me", "{seen}");
        assert_eq!(seen["fencing_token"], lease.fence);
        assert_eq!(http.get("/v1/locks/gone").json()["held"], false);
        let holder = &http.get("/v1/who/job").json()["holders"][0];
        assert_eq!(
            holder["restored"], false,
            "its owner needs not claim it: {holder}"
        );
        let left_ms = holder["lease_left_ms"].as_u64().unwrap();
        assert!((590_000..=600_000).contains(&left_ms), "{holder}");
        let mut line = daemon.connect();
        assert_eq!(who(&mut line, "job")["holders"][0]["name"], "me");
        assert_eq!(line.ask("l job 0"), "timeout");
        let held = http.try_acquire("job", "you", "\"ttl_ms\":1000");
        assert_eq!(held.json()["current_owner_id"], "me");
        assert_eq!(http.renew(&lease, 600_000).status, 200);
        assert_eq!(http.release(&lease).json()["released"], true);
        assert!(http.acquire("job", "you", "\"ttl_ms\":1000").fence > lease.fence);
    }
}

/// The id of a request is kept with its grant: asked again after a restart, it is answered with the
/// same grant, and with no other once that is released.
#[test]
fn a_request_is_asked_again_over_a_restart() {
    for end in ENDS {
        let directory = Directory::new();
        let daemon = directory.start(&[HTTP]);
        let ask = |http: &mut HttpClient, id: &str| {
            let body = "{\"owner_id\":\"me\",\"ttl_ms\":600000}";
            let head = format!("X-Request-ID: {id}\r\n");
            http.put("POST /v1/locks/job/acquire", &head, body);
            http.answer()
        };
        let lease = Lease::of(&ask(&mut daemon.http(), "once"));
        assert_eq!(Lease::of(&ask(&mut daemon.http(), "once")).id, lease.id);
        end(daemon);
        let daemon = directory.start(&[HTTP]);
        let mut http = daemon.http();
        let other = ask(&mut http, "twice");
        assert_eq!(other.status, 409, "{other:?}");
        assert_eq!(other.json()["current_owner_id"], "me");
        let again = Lease::of(&ask(&mut http, "once"));
        assert_eq!((again.id, again.fence), (lease.id.clone(), lease.fence));
        assert_eq!(http.release(&lease).json()["released"], true);
        assert!(Lease::of(&ask(&mut http, "once")).fence > lease.fence);
    }
}

/// The asker is recorded with the id: after a restart another token does not get the grant.
#[test]
fn a_request_is_answered_to_its_token_alone_over_a_restart() {
    for end in ENDS {
        let directory = Directory::new();
        let tokens = directory.path().with_extension("tokens");
        std::fs::write(&tokens, "a1 ann write\nb1 bob write\nc1 write\n").unwrap();
        let flags = [HTTP, "--auth-token-file", tokens.to_str().unwrap()];
        let daemon = directory.start(&flags);
        let ask = |http: &mut HttpClient, lock: &str, token: &str| {
            let body = "{\"owner_id\":\"me\",\"ttl_ms\":600000}";
            let head = format!("X-Request-ID: once\r\nAuthorization: Bearer {token}\r\n");
            http.put(&format!("POST /v1/locks/{lock}/acquire"), &head, body);
            http.answer()
        };
        let mut http = daemon.http();
        let named = Lease::of(&ask(&mut http, "job", "a1"));
        let unnamed = Lease::of(&ask(&mut http, "other", "c1"));
        drop(http);
        end(daemon);
        let daemon = directory.start(&flags);
        let mut http = daemon.http();
        for (lock, token) in [("job", "b1"), ("job", "c1"), ("other", "a1")] {
            assert_eq!(ask(&mut http, lock, token).status, 409, "{lock} {token}");
        }
        assert_eq!(Lease::of(&ask(&mut http, "job", "a1")).id, named.id);
        assert_eq!(Lease::of(&ask(&mut http, "other", "c1")).id, unnamed.id);
        std::fs::remove_file(&tokens).unwrap();
    }
}

/// Killed in the middle of acquires: what was granted is held, and no fence comes twice.
#[test]
fn no_fence_comes_twice_though_the_daemon_is_killed_during_acquires() {
    const ROUNDS: usize = 5;
    const CLIENTS: usize = 8;
    let directory = Directory::new();
    let mut fences = BTreeSet::new();
    for round in 0..ROUNDS {
        let daemon = directory.start(&[HTTP]);
        let address = daemon.http_address();
        let (tell, told) = mpsc::channel();
        for client in 0..CLIENTS {
            let tell = tell.clone();
            thread::spawn(move || {
                let mut http = HttpClient::connect(address);
                for nth in 0.. {
                    let lock = format!("lock-{round}-{client}-{nth}");
                    let lease = http.acquire(&lock, "me", "\"ttl_ms\":600000");
                    if tell.send((lock, lease)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut granted: Vec<(String, Lease)> = told.iter().take(200).collect();
        kill(daemon);
        granted.extend(told); // until every client has noticed
        let mut latest = fences.last().copied().unwrap_or(0);
        let lowest = granted.iter().map(|(_, lease)| lease.fence).min().unwrap();
        assert!(lowest > latest, "round {round}: {lowest} after {latest}");
        for (_, lease) in &granted {
            assert!(fences.insert(lease.fence), "{} came twice", lease.fence);
            latest = latest.max(lease.fence);
        }
        let daemon = directory.start(&[HTTP]);
        let mut http = daemon.http();
        for (lock, lease) in &granted {
            let seen = http.get(&format!("/v1/locks/{lock}")).json();
            assert_eq!(seen["fencing_token"], lease.fence, "{lock}: {seen}");
        }
        let next = http.acquire(&format!("after-{round}"), "me", "\"ttl_ms\":1000");
        assert!(next.fence > latest);
        fences.insert(next.fence);
        kill(daemon);
    }
}

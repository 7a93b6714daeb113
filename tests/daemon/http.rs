//! HTTP on real sockets: what the pipes cannot show. The rest of it is in
//! `tests/server/http_server`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::vocabulary::{Daemon, HttpClient, Lease};

fn start(options: &[&str]) -> Daemon {
    let mut all = vec!["--http-port=0"];
    all.extend(options);
    Daemon::start(&all)
}

#[test]
fn a_lease_outlives_its_connection_and_is_seen_by_lines() {
    let daemon = start(&[]);
    let mut line = daemon.connect();
    let lease = daemon.http().acquire("job", "me", "\"ttl_ms\":60000");
    let before = unix_ms();
    assert_eq!(line.ask("l job 0"), "timeout");
    let who = line.ask("who job");
    assert!(who.contains("\"name\":\"me\""), "{who}");
    let mut http = daemon.http();
    let expiry_ms = http.get("/v1/locks/job").json()["lease_expiry_ms"].as_u64();
    let left_ms = expiry_ms.unwrap().abs_diff(before);
    assert!(left_ms <= 60_000 + 10_000, "a time of day: {expiry_ms:?}");
    assert_eq!(http.release(&lease).json()["released"], true);
    assert!(line.lock("job", "0").token_fence() > lease.fence);
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis() as u64
}

#[test]
fn who_hangs_up_leaves_the_queue() {
    let daemon = start(&[]);
    let mut line = daemon.connect();
    let grant = line.lock("job", "0 60");
    let wait = "{\"owner_id\":\"gone\",\"ttl_ms\":60000,\"wait_ms\":60000}";
    let mut gone = daemon.http();
    gone.put("POST /v1/locks/job/acquire", "", wait);
    let mut looker = daemon.http();
    let waiters =
        |looker: &mut HttpClient| looker.get("/v1/who/job").json()["waiter_count"].clone();
    while waiters(&mut looker) != 1 {}
    drop(gone);
    while waiters(&mut looker) != 0 {}
    let mut next = daemon.http();
    next.put(
        "POST /v1/locks/job/acquire",
        "",
        &wait.replace("gone", "next"),
    );
    while waiters(&mut looker) != 1 {}
    line.release("job", &grant);
    assert_eq!(next.answer().json()["owner_id"], "next");
}

/// Eighty clients, one lock: at most one holds it, every fence is new, and nobody is told busy.
#[test]
fn eighty_clients_take_turns() {
    const CLIENTS: usize = 80;
    const TURNS: usize = 5;
    let daemon = start(&[]);
    let address = daemon.http_address();
    let inside = AtomicU32::new(0);
    let fences: BTreeSet<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let inside = &inside;
                scope.spawn(move || {
                    let mut http = HttpClient::connect(address);
                    let mut fences = Vec::new();
                    while fences.len() < TURNS {
                        let times = "\"ttl_ms\":60000,\"wait_ms\":5000";
                        let answer = http.try_acquire("hot", &format!("c{nth}"), times);
                        if answer.status != 200 {
                            assert_eq!(answer.json()["reason"], "HELD", "{answer:?}");
                            continue;
                        }
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        let lease = Lease::of(&answer);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(http.release(&lease).json()["released"], true);
                        fences.push(lease.fence);
                    }
                    assert!(fences.is_sorted());
                    fences
                })
            })
            .collect();
        let fences = clients.into_iter().map(|it| it.join().unwrap());
        fences.flatten().collect()
    });
    assert_eq!(fences.len(), CLIENTS * TURNS, "a fence came twice");
    let metrics = daemon.http().get("/metrics").body;
    for line in [
        format!(
            "lock_acquire_total{{result=\"success\"}} {}",
            CLIENTS * TURNS
        ),
        "lock_acquire_total{result=\"busy\"} 0".to_owned(),
        format!(
            "lock_release_total{{result=\"success\"}} {}",
            CLIENTS * TURNS
        ),
        "locks_held 0".to_owned(),
    ] {
        assert!(
            metrics.lines().any(|it| it == line),
            "{line} is not in {metrics}"
        );
    }
}

/// What browsers and attackers may put into a name, an owner, an id.
const HOSTILE: [&str; 4] = [
    "<script>alert(1)</script>",
    "x\\n2026-01-01T00:00:00.000Z ERROR forged",
    "\\u001b[2J\\u202e\\u2028",
    "job\\\"} 1\\nlocks_held 99",
];

/// Everything that is logged is one line per event, and nothing in it is raw.
#[test]
fn foreign_bytes_reach_neither_log_nor_metrics_nor_page_as_they_are() {
    for format in ["text", "json"] {
        let log_format = format!("--log-format={format}");
        let mut daemon = start(&[
            &log_format,
            "--access-log",
            "--log-level=debug",
            "--shutdown-timeout=1ms",
        ]);
        let mut http = daemon.http();
        for owner in HOSTILE {
            let body = format!("{{\"owner_id\":\"{owner}\",\"ttl_ms\":60000}}");
            let name = "%3Cb%3E%22%27%7B%7D%20%C2%85%E2%80%AE";
            let answer = http.post(&format!("/v1/locks/{name}/acquire"), &body);
            assert!([200, 409].contains(&answer.status), "{answer:?}");
        }
        http.put("GET /nowhere%3Cscript%3E", "X-Request-ID: <script>\r\n", "");
        assert_eq!(http.answer().status, 404);
        let metrics = http.get("/metrics").body;
        let page = http.get("/v1/locks").body;
        assert!(page.contains("script"), "{page}");
        assert!(
            page.lines().count() == 1 && !page.contains('\u{1b}'),
            "{page}"
        );
        let names = ["<script", "<b>", "forged", "_held 99"];
        for name in names {
            assert!(!metrics.contains(name), "{name} is in {metrics}");
        }
        drop(http);
        let log = daemon.stop();
        let accesses = log.iter().filter(|line| line.contains("req_id")).count();
        assert_eq!(accesses, HOSTILE.len() + 3, "{log:#?}");
        for line in &log {
            let is_plain = |c: char| !c.is_control() && !"\u{2028}\u{202e}\u{85}".contains(c);
            assert!(line.chars().all(is_plain), "{line:?}");
            if format == "json" {
                let json: Value =
                    serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
                assert!(json["level"].is_string(), "{line}");
            } else {
                let level = line.split(' ').nth(1).unwrap();
                assert!(["INFO", "DEBUG", "WARN"].contains(&level), "{line}");
            }
        }
    }
}

#[test]
fn the_access_log_says_what_was_asked_and_never_a_whole_id() {
    let mut daemon = start(&["--log-format=json", "--access-log"]);
    let mut http = daemon.http();
    http.put(
        "POST /v1/locks/job/acquire",
        "X-Request-ID: request-7-of-me\r\n",
        "{\"owner_id\":\"me\",\"ttl_ms\":60000}",
    );
    let lease = Lease::of(&http.answer());
    http.try_acquire("job", "you", "\"ttl_ms\":60000");
    http.renew(&lease, 60_000);
    http.release(&lease);
    drop(http);
    let log = daemon.stop();
    for id in [&lease.id, "request-7"] {
        assert!(!log.iter().any(|line| line.contains(id)), "{log:#?}");
    }
    let lines: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["req_id"].is_string())
        .collect();
    let [granted, held, renewed, released] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(granted["op"], "acquire");
    assert_eq!(
        (&granted["lock"], &granted["owner"]),
        (&"job".into(), &"me".into())
    );
    assert_eq!(
        (&granted["acquired"], &granted["req_id"]),
        (&true.into(), &"request-…".into())
    );
    let made = held["req_id"].as_str().unwrap();
    assert_eq!((made.chars().count(), made.chars().last()), (9, Some('…')));
    assert_eq!(granted["token"], lease.fence);
    assert_eq!(granted["lease_id"].as_str().unwrap()[..8], lease.id[..8]);
    assert!(granted["latency_ms"].as_f64().is_some_and(|it| it >= 0.0));
    assert_eq!(
        (&held["acquired"], &held["cur_owner"]),
        (&false.into(), &"me".into())
    );
    assert_eq!(
        (&renewed["op"], &renewed["renewed"]),
        (&"renew".into(), &true.into())
    );
    assert_eq!(
        (&released["op"], &released["released"]),
        (&"release".into(), &true.into())
    );
}

#[test]
fn a_break_is_logged_with_who_asked() {
    let daemon = start(&[]);
    let mut victim = daemon.connect();
    victim.ask("hello _ name=victim");
    victim.put("l job 0 60");
    let fence = victim.grant().token_fence();
    let mut http = daemon.http();
    http.put(&format!("DELETE /v1/locks/job/holders/{fence}"), "", "");
    assert_eq!(http.answer().json()["broken"], true);
    assert_eq!(victim.line(), format!("lost job {fence} broken"));
    let line = daemon.wait_for_log("audit action=break");
    assert!(line.contains(" WARN "), "{line}");
    assert!(line.contains("address=127.0.0.1:"), "{line}");
    assert!(line.contains(&format!("key=job fence={fence}")), "{line}");
}

#[test]
fn a_wrong_token_takes_a_while_and_the_right_one_does_not() {
    let daemon = start(&["--auth-token=s3cret"]);
    let mut wrong = daemon.http();
    let before = Instant::now();
    wrong.put("GET /v1/stats", "Authorization: Bearer guess\r\n", "");
    let mut right = daemon.http();
    right.put("GET /v1/stats", "Authorization: Bearer s3cret\r\n", "");
    assert_eq!(right.answer().status, 200);
    assert_eq!(right.get("/livez").status, 200);
    let document = right.get("/v1/openapi.json");
    assert!(
        document.body.contains("\"securitySchemes\""),
        "{document:?}"
    );
    let answer = wrong.answer();
    assert_eq!(answer.status, 401);
    assert!(before.elapsed() >= Duration::from_millis(100));
    assert!(
        answer.head.contains("WWW-Authenticate: Bearer\r\n"),
        "{answer:?}"
    );
    wrong.expect_end();
}

#[test]
fn half_a_head_is_answered_after_5_seconds_and_others_meanwhile() {
    let daemon = start(&[]);
    let mut slow = daemon.http();
    let before = Instant::now();
    slow.raw("GET /livez HTT");
    assert_eq!(daemon.http().get("/livez").status, 200);
    assert_eq!(slow.answer().status, 408);
    assert!(before.elapsed() >= Duration::from_secs(5));
    slow.expect_end();
}

#[test]
fn a_stream_is_told_events_and_its_end() {
    let mut daemon = start(&[]);
    let mut stream = daemon.http();
    stream.put("GET /v1/watch?pattern=job", "", "");
    let head = stream.until("\r\n\r\n");
    assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
    let mut line = daemon.connect();
    let grant = line.lock("job", "0");
    let event = stream.until("\n\n\r\n");
    assert!(
        event.ends_with("event: acquire\ndata: {\"name\":\"job\"}\n\n\r\n"),
        "{event}"
    );
    line.release("job", &grant);
    let event = stream.until("\n\n\r\n");
    assert!(event.contains("event: release\n"), "{event}");
    drop(line);
    daemon.signal(Signal::TERM);
    assert_eq!(stream.until("0\r\n\r\n"), "0\r\n\r\n");
    stream.expect_end();
    drop(stream);
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn a_daemon_that_drains_says_so_and_lets_people_finish() {
    let mut daemon = start(&[]);
    let mut http = daemon.http();
    assert_eq!(http.get("/readyz").status, 200);
    let lease = http.acquire("web", "me", "\"ttl_ms\":60000");
    let mut holder = daemon.connect();
    let grant = holder.lock("job", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    assert_eq!(holder.ask("ping _ _"), "ok"); // the turn of the signal is over
    for (path, status) in [
        ("/readyz", 503),
        ("/ready", 503),
        ("/livez", 200),
        ("/healthz", 200),
    ] {
        let mut probe = daemon.http();
        let answer = probe.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.head.contains("Connection: close\r\n"), "{answer:?}");
        probe.expect_end();
    }
    let refused = daemon.http().try_acquire("new", "me", "\"ttl_ms\":60000");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(daemon.http().release(&lease).json()["released"], true);
    holder.release("job", &grant);
    assert_eq!(daemon.wait_for_exit().0, 0);
}

//! Every kind of thing that latchd keeps, through a leader that is killed: the table "what is lost and what is not" of
//! docs/cluster.md, over sockets and with real etcd.

use serde_json::Value;

use crate::members::Members;
use crate::vocabulary::{Client, Daemon, Grant};
use crate::with_etcd;

/// A client that is told fences.
fn connect(daemon: &Daemon) -> Client {
    let mut client = daemon.connect();
    let welcome = client.ask("hello _ fence=1");
    assert!(welcome.starts_with("ok "), "{welcome}");
    client
}

fn take(client: &mut Client, frame: &str) -> Grant {
    client.put(frame);
    client.grant()
}

/// Takes a lock over HTTP; returns the status and what was said.
fn acquire(daemon: &Daemon, id: &str, owner: &str) -> (u16, Value) {
    let mut http = daemon.http();
    let body = format!(r#"{{"owner_id":"{owner}","ttl_ms":600000}}"#);
    let header = format!("X-Request-ID: {id}\r\n");
    http.put("POST /v1/locks/web/acquire", &header, &body);
    let answer = http.answer();
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

#[test]
fn what_the_table_says_is_so_after_the_leader_was_killed() {
    with_etcd(|etcds| {
        let mut members = Members::start("kinds", &etcds.urls());
        let leader = members.leader();
        let before = members.daemon(leader);
        let mut holder = connect(before);
        let mut other = connect(before);
        let job = take(&mut holder, "l job 0 600");
        let slot = take(&mut holder, "sl pool 0 2 600");
        let _ = take(&mut other, "sl pool 0 2 600");
        let reader = take(&mut holder, "rl doc 0 600");
        let writer = take(&mut holder, "wl book 0 600");
        let boss = take(&mut holder, "elect boss 0 600");
        let (status, web) = acquire(before, "r-1", "me");
        assert_eq!(status, 200, "{web}");
        for (frame, told) in [
            ("incr hits 5", "ok 5"),
            ("kset plain v", "ok"),
            ("kset brief v\t600", "ok"),
            ("kset over v\t1", "ok"),
            ("rpush list a", "ok 1"),
            ("rpush list b", "ok 2"),
            ("lpop list _", "ok a"),
        ] {
            assert_eq!(holder.ask(frame), told, "{frame}");
        }
        let mut attached = connect(before);
        assert_eq!(attached.ask("attach gw/1 600 s3cret"), "ok 1 new");
        let _ = take(&mut attached, "l owned 0 600");
        assert_eq!(attached.ask("rangelock file ex 0 10 0"), "ok");
        let mut waiter = connect(before);
        waiter.put("l job 600 600");
        holder.wait_for_waiters("job", 1);
        let mut at_barrier = connect(before);
        at_barrier.put("bwait gate 2 600");
        let mut listener = connect(before);
        assert_eq!(listener.ask("listen news _"), "ok");

        members.kill(leader);
        let next = members.daemon(members.next_leader(leader));
        let mut stranger = connect(next);
        for frame in [
            "l job 0",
            "sl pool 0 2",
            "wl doc 0",
            "rl book 0",
            "elect boss 0",
            "l owned 0",
        ] {
            assert_eq!(stranger.ask(frame), "timeout", "{frame}");
        }
        let newest = take(&mut stranger, "rl doc 0 600");
        let mut holder = connect(next);
        for (renew, grant) in [
            ("n job", &job),
            ("sn pool", &slot),
            ("rn doc", &reader),
            ("wn book", &writer),
            ("n boss", &boss),
        ] {
            assert!(newest.token_fence() > grant.token_fence(), "{renew}");
            let told = holder.ask(&format!("{renew} {} 600", grant.token));
            assert!(told.starts_with("ok 600 "), "{renew}: {told}");
        }
        // The same request again, as a client does whose answer was lost.
        let (status, again) = acquire(next, "r-1", "me");
        assert_eq!(status, 200, "{again}");
        for field in ["lease_id", "fencing_token"] {
            assert!(!web[field].is_null());
            assert_eq!(again[field], web[field], "{field}");
        }
        assert_eq!(acquire(next, "r-2", "you").0, 409);
        for (frame, told) in [
            ("get hits _", "ok 5"),
            ("kget plain _", "ok v"),
            ("kget brief _", "ok v"),
            // Its second was over long before the lease of the leader was.
            ("kget over _", "nil"),
            ("lrange list 0 -1", "ok [\"b\"]"),
            ("bwait gate 2 0", "timeout"),
            ("signal news x", "ok 0"),
            ("w job 0", "error_not_enqueued"),
        ] {
            assert_eq!(stranger.ask(frame), told, "{frame}");
        }
        let told = stranger.ask("rangelock file ex 5 1 0");
        assert!(told.starts_with("error_grace "), "{told}");
        let mut attached = connect(next);
        let told = attached.ask("attach gw/1 600 s3cret");
        assert!(told.starts_with("ok 2 resumed "), "{told}");
        assert_eq!(attached.ask("rangereclaim file ex 0 10"), "ok");
        assert_eq!(attached.ask("reclaimdone gw/1 _"), "ok");
        assert_eq!(stranger.ask("rangelock file ex 5 1 0"), "timeout");
        // Whoever waited is gone: nobody stands before this one.
        assert_eq!(holder.ask(&format!("r job {}", job.token)), "ok");
        let _ = take(&mut stranger, "l job 0 600");
    });
}

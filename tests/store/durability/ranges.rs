//! Byte ranges over restarts: what attached clients held is kept for them, and only for them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::durability::directory::{Directory, kill};
use crate::vocabulary::{Client, Daemon};

/// A connection of the gateway with this id, which is kept for ten minutes without one.
fn gateway(daemon: &Daemon, id: &str, expected: &str) -> Client {
    let mut client = daemon.connect();
    let answer = client.ask(&format!("attach {id} 600 secret-of-{id}"));
    assert!(answer.ends_with(expected), "{answer}");
    client
}

fn locks(client: &mut Client, resource: &str) -> Vec<Value> {
    let answer = client.ask(&format!("rangelist {resource} _"));
    let document: Value = serde_json::from_str(answer.strip_prefix("ok ").unwrap()).unwrap();
    document["locks"].as_array().unwrap().clone()
}

/// `mode start len owner`, with `pending` where it is.
fn shown(client: &mut Client, resource: &str) -> Vec<String> {
    let tell = |it: Value| {
        let word = |field: &str| it[field].as_str().unwrap().to_owned();
        let pending = if it["pending"] == true {
            " pending"
        } else {
            ""
        };
        let (start, len) = (&it["start"], &it["len"]);
        format!("{} {start} {len} {}{pending}", word("mode"), word("owner"))
    };
    locks(client, resource).into_iter().map(tell).collect()
}

/// The remaining milliseconds, and how many clients are expected and done.
fn grace(client: &mut Client) -> [u64; 3] {
    let answer = client.ask("grace _");
    let fields = answer.strip_prefix("ok ").unwrap().split(' ');
    let numbers: Vec<u64> = fields.map(|it| it.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// How the daemon ends makes no difference to what is kept.
#[derive(Clone, Copy)]
enum Stop {
    InOrder,
    Kill,
}

fn end(mut daemon: Daemon, how: Stop) {
    match how {
        Stop::InOrder => _ = daemon.stop(),
        Stop::Kill => kill(daemon),
    }
}

#[test]
fn what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it() {
    for how in [Stop::InOrder, Stop::Kill] {
        let directory = Directory::new();
        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut one = gateway(&daemon, "nfs/1", "new");
        let mut two = gateway(&daemon, "nfs/2", "new");
        let mut alone = daemon.connect();
        for (client, request) in [
            (0, "ex 0 100 0 alice"),
            (0, "sh 25 25 0 alice"), // three pieces
            (0, "sh 1000 10 0 bob"),
            (1, "sh 1000 10 0 carol"), // the same bytes, together
            (1, "ex 18446744073709551615 1 0"),
            (2, "ex 500 10 0"),
        ] {
            let client =
                [&mut one, &mut two, &mut alone][client].ask(&format!("rangelock f {request}"));
            assert_eq!(client, "ok");
        }
        assert_eq!(one.ask("rangeunlock f 60 10 alice"), "ok");
        let before = [
            "ex 0 25 alice",
            "sh 25 25 alice",
            "ex 50 10 alice",
            "ex 70 30 alice",
            "sh 1000 10 bob",
            "sh 1000 10 carol",
            "ex 18446744073709551615 0 ",
        ];
        let with_that_of_a_connection: Vec<&str> =
            [&before[..4], &["ex 500 10 "], &before[4..]].concat();
        assert_eq!(shown(&mut one, "f"), with_that_of_a_connection);
        end(daemon, how);

        // What belonged to a connection alone is gone: nobody could have it back.
        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut stranger = daemon.connect();
        let pending = before.map(|it| format!("{it} pending"));
        assert_eq!(shown(&mut stranger, "f"), pending);
        let [left, expected, done] = grace(&mut stranger);
        // The time to live of its clients is longer than the grace period.
        assert!((90_001..=600_000).contains(&left), "{left}");
        assert_eq!([expected, done], [2, 0]);
        // Pending bytes are in the way, free ones are not.
        assert_eq!(stranger.ask("rangelock f sh 0 1 0"), "error_grace");
        assert_eq!(stranger.ask("rangelock f ex 30 1 30"), "error_grace");
        assert_eq!(stranger.ask("rangelock f ex 30 1 0"), "error_grace");
        assert_eq!(stranger.ask("rangelock f ex 60 10 0"), "ok");
        assert!(
            stranger
                .ask("rangetest f ex 0 1")
                .starts_with("ok held ex 0 25 nfs/1 alice")
        );
        stranger.ask("hello _ fence=1");
        let told = stranger.ask("rangelock f sh 0 1 0");
        let left: u64 = told.strip_prefix("error_grace ").unwrap().parse().unwrap();
        assert!((90_001..=600_000).contains(&left), "{told}");

        // Each has back what it had, and nothing else.
        let mut one = gateway(&daemon, "nfs/1", "resumed");
        assert_eq!(one.ask("rangereclaim f ex 25 25 alice"), "error_reclaim");
        assert_eq!(one.ask("rangereclaim f ex 0 26 alice"), "error_reclaim");
        assert_eq!(one.ask("rangereclaim f ex 0 25 bob"), "error_reclaim");
        assert_eq!(one.ask("rangereclaim f sh 1000 10 carol"), "error_reclaim");
        assert_eq!(one.ask("rangereclaim f sh 0 60 alice"), "ok"); // also as less than it was
        assert_eq!(one.ask("rangereclaim f ex 70 30 alice"), "ok");
        assert_eq!(grace(&mut one)[1..], [2, 0], "bob is missing");
        assert_eq!(one.ask("rangereclaim f sh 1000 10 bob"), "ok");
        assert_eq!(grace(&mut one)[1..], [2, 1]);
        assert_eq!(stranger.ask("rangelock f sh 0 60 0"), "ok");
        assert_eq!(stranger.ask("rangelock f ex 70 1 0"), "timeout");

        // The other does not want all of it. When both are done, the period is over.
        let mut two = gateway(&daemon, "nfs/2", "resumed");
        assert_eq!(two.ask("reclaimdone nfs/1 _"), "error", "not its own");
        assert_eq!(two.ask("rangereclaim f ex 18446744073709551615 1"), "ok");
        assert_eq!(two.ask("reclaimdone nfs/2 _"), "ok");
        assert_eq!(grace(&mut two), [0, 0, 0]);
        assert_eq!(two.ask("rangereclaim f sh 1000 10 carol"), "error_no_grace");
        assert_eq!(
            shown(&mut two, "f"),
            [
                "sh 0 60 alice",
                "sh 0 60 ",
                "ex 60 10 ",
                "ex 70 30 alice",
                "sh 1000 10 bob",
                "ex 18446744073709551615 0 ",
            ]
        );
        end(daemon, Stop::InOrder);

        // And again: what was had back with less is kept as that, what was given up is not.
        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let expected = [
            "sh 0 60 alice pending",
            "ex 70 30 alice pending",
            "sh 1000 10 bob pending",
            "ex 18446744073709551615 0  pending",
        ];
        assert_eq!(shown(&mut daemon.connect(), "f"), expected);
    }
}

/// The answer is lost with its connection, and what the client does not know it asks for again. Somebody
/// else has something to have back, so that the period goes on.
#[test]
fn what_is_had_back_can_be_asked_for_again_after_a_lost_answer() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0 a"), "ok");
    assert_eq!(one.ask("rangelock f sh 10 10 0 a"), "ok");
    let mut two = gateway(&daemon, "nfs/2", "new");
    assert_eq!(two.ask("rangelock g ex 0 1 0"), "ok");
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 5 a"), "ok");
    drop(one);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 5 a"), "ok");
    assert_eq!(
        shown(&mut one, "f"),
        ["ex 0 5 a", "ex 5 5 a pending", "sh 10 10 a pending"]
    );
    // A part of it is had back already, and all of it is.
    assert_eq!(one.ask("rangereclaim f ex 0 10 a"), "ok");
    assert_eq!(one.ask("rangereclaim f ex 0 10 a"), "ok");
    assert_eq!(shown(&mut one, "f"), ["ex 0 10 a", "sh 10 10 a pending"]);
    assert_eq!(grace(&mut one)[1..], [2, 0]);
    // That makes nothing its own that was not, and nothing stronger than it was.
    for other in ["ex 0 11 a", "ex 10 10 a", "sh 0 21 a", "sh 0 10 b"] {
        let answer = one.ask(&format!("rangereclaim f {other}"));
        assert_eq!(answer, "error_reclaim", "{other}");
    }
    let mut two = gateway(&daemon, "nfs/2", "resumed");
    assert_eq!(two.ask("rangereclaim f ex 0 10 a"), "error_reclaim");
    // What it let go of meanwhile is not its own any more.
    assert_eq!(one.ask("rangeunlock f 0 5 a"), "ok");
    assert_eq!(one.ask("rangereclaim f ex 0 10 a"), "error_reclaim");
    assert_eq!(one.ask("rangereclaim f sh 10 10 a"), "ok");
    assert_eq!(grace(&mut one)[1..], [2, 1]);
    kill(daemon);
    let daemon = directory.start(&[]);
    assert_eq!(
        shown(&mut daemon.connect(), "f"),
        ["ex 5 5 a pending", "sh 10 10 a pending"]
    );
}

/// Who said `hello` and has not asked for it is told what it has lost with the end of the period.
#[test]
fn a_client_that_is_there_is_told_what_the_end_of_the_grace_period_takes() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0 alice"), "ok");
    assert_eq!(one.ask("rangelock f ex 20 10 0 alice"), "ok");
    assert_eq!(one.ask("rangelock g sh 5 0 0"), "ok");
    let mut two = gateway(&daemon, "nfs/2", "new");
    assert_eq!(two.ask("rangelock f ex 100 1 0"), "ok");
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    one.ask("hello _");
    let mut silent = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 20 10 alice"), "ok");
    // What it does not want it is not told.
    let mut two = gateway(&daemon, "nfs/2", "resumed");
    two.ask("hello _");
    assert_eq!(two.ask("reclaimdone nfs/2 _"), "ok");
    assert_eq!(daemon.connect().ask("grace _ end"), "ok 0 0 0");
    let mut told = [one.line(), one.line()];
    told.sort();
    assert_eq!(
        told,
        ["rangelost f 0 10 expired alice", "rangelost g 5 0 expired"]
    );
    for client in [&mut one, &mut two, &mut silent] {
        assert_eq!(client.ask("rangetest f ex 0 1"), "ok free", "and no more");
    }
}

/// The first edge condition of RFC 3530: the lock ends, another has the bytes and lets them go, the server
/// restarts, and the first wants them back.
#[test]
fn what_ended_before_the_restart_cannot_be_had_back() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut lost = daemon.connect();
    assert_eq!(lost.ask("attach nfs/1 1ms secret"), "ok 1 new");
    assert_eq!(lost.ask("rangelock f ex 0 10 0"), "ok");
    drop(lost);
    let mut other = gateway(&daemon, "nfs/2", "new");
    assert_eq!(
        other.ask("rangelock f ex 0 10 30"),
        "ok",
        "when its time is over"
    );
    assert_eq!(other.ask("rangelock f ex 100 1 0"), "ok");
    assert_eq!(other.ask("rangeunlock f 0 10"), "ok");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut lost = daemon.connect();
    assert!(lost.ask("attach nfs/1 600 secret").ends_with("new"));
    assert_eq!(lost.ask("rangereclaim f ex 0 10"), "error_reclaim");
}

/// The second one: a client misses the whole grace period, another has the bytes and lets them go, the
/// server restarts again, and the first wants them back.
#[test]
fn what_was_not_had_back_in_time_cannot_be_had_back_after_another_restart() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut two = gateway(&daemon, "nfs/2", "new");
    assert_eq!(two.ask("grace _ end"), "ok 0 0 0");
    assert_eq!(two.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(two.ask("rangeunlock f 0 10"), "ok");
    assert_eq!(two.ask("rangelock f ex 100 1 0"), "ok");
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "error_reclaim");
    let mut two = gateway(&daemon, "nfs/2", "resumed");
    assert_eq!(two.ask("rangereclaim f ex 100 1"), "ok");
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "error_no_grace");
}

/// The period begins anew with everything, also with what was had back already.
#[test]
fn a_restart_within_the_grace_period_begins_a_new_one() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0 a"), "ok");
    assert_eq!(one.ask("rangelock f ex 10 10 0 b"), "ok");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 10 a"), "ok");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(
        shown(&mut one, "f"),
        ["ex 0 10 a pending", "ex 10 10 b pending"]
    );
    assert_eq!(one.ask("rangereclaim f ex 0 10 a"), "ok");
    assert_eq!(one.ask("rangereclaim f ex 10 10 b"), "ok");
    assert_eq!(grace(&mut one), [0, 0, 0]);
}

#[test]
fn the_policy_strict_refuses_free_bytes_too_and_an_operator_ends_the_period() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    kill(daemon);
    let daemon = directory.start(&["--grace-policy=strict"]);
    let mut stranger = daemon.connect();
    assert_eq!(stranger.ask("rangelock g ex 0 10 0"), "error_grace");
    assert_eq!(stranger.ask("rangetest g ex 0 10"), "ok free");
    assert_eq!(stranger.ask("rangeunlock g 0 10"), "ok");
    assert_eq!(
        stranger.ask("l job 0").split(' ').next(),
        Some("ok"),
        "named locks go on"
    );
    // Whoever asks cannot tell the bytes of others from free ones by what it may unlock.
    assert_eq!(stranger.ask("rangeunlock f 0 10"), "ok");
    assert_eq!(shown(&mut stranger, "f"), ["ex 0 10  pending"]);
    assert_eq!(stranger.ask("grace _ end"), "ok 0 0 0");
    assert_eq!(
        stranger.ask("grace _ end"),
        "ok 0 0 0",
        "once more changes nothing"
    );
    assert_eq!(shown(&mut stranger, "f"), [""; 0]);
    assert_eq!(stranger.ask("rangelock f ex 0 10 0"), "ok");
    daemon.wait_for_log("audit action=grace-end");
}

/// If acknowledged locks may be missing, nothing new is granted before the period is over, whoever comes.
#[test]
fn after_a_crash_of_an_asynchronous_daemon_the_policy_is_strict_by_itself() {
    let directory = Directory::new();
    let daemon = directory.start(&["--durability=async"]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    kill(daemon);
    // Also if the operator has changed the setting meanwhile.
    let daemon = directory.start(&["--grace-period=300s"]);
    let mut stranger = daemon.connect();
    assert_eq!(stranger.ask("rangelock free ex 0 10 0"), "error_grace");
    drop(stranger);
    let mut daemon = daemon;
    daemon.stop();
    // Whoever misses something has not had its time, so an orderly stop changes nothing.
    let daemon = directory.start(&["--grace-period=300s"]);
    let mut stranger = daemon.connect();
    assert_eq!(stranger.ask("rangelock free ex 0 10 0"), "error_grace");
    assert_eq!(stranger.ask("grace _ end").split(' ').next(), Some("ok"));
    assert_eq!(stranger.ask("rangelock free ex 0 10 0"), "ok");
    drop(stranger);
    let mut daemon = daemon;
    daemon.stop();
    // A stop in order loses nothing, so the next start need not be strict.
    let daemon = directory.start(&["--durability=async"]);
    assert_eq!(daemon.connect().ask("rangelock free ex 0 10 0"), "ok");
}

/// The time of its client runs out while the period lasts: what is pending stays for the whole of it.
#[test]
fn a_short_time_to_live_does_not_cut_the_grace_period_short() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = daemon.connect();
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 1 new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(one.ask("attach nfs/1 1ms secret"), "ok 1 resumed");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut stranger = daemon.connect();
    // A lease that is longer than the time to live ends meanwhile.
    stranger.ask("l clock 0 50ms");
    let mut waiter = daemon.connect();
    waiter.put("l clock 60");
    waiter.grant();
    assert_eq!(stranger.ask("rangelock f ex 0 10 0"), "error_grace");
    let mut one = daemon.connect();
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 2 resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "ok");
}

/// The client counts on its time to live, by its own clock: the end of the grace period takes nothing from it
/// before that.
#[test]
fn a_time_to_live_beyond_the_grace_period_keeps_the_bytes_for_all_of_it() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut there = Vec::new();
    for (id, ttl, start) in [("nfs/1", "600", 0), ("nfs/2", "1ms", 10)] {
        let mut client = daemon.connect();
        assert_eq!(client.ask(&format!("attach {id} 600 secret")), "ok 1 new");
        assert_eq!(client.ask(&format!("rangelock f ex {start} 10 0")), "ok");
        client.ask(&format!("attach {id} {ttl} secret"));
        there.push(client);
    }
    kill(daemon);
    let daemon = directory.start(&["--grace-period=50ms"]);
    let mut stranger = daemon.connect();
    while stranger.ask("rangelock f ex 10 10 0") == "error_grace" {}
    assert_eq!(stranger.ask("rangelock f ex 0 10 0"), "error_grace");
    assert_eq!(shown(&mut stranger, "f"), ["ex 0 10  pending", "ex 10 10 "]);
    let mut one = daemon.connect();
    one.ask("hello _");
    let told = one.ask("attach nfs/1 600 secret");
    let left = told
        .strip_prefix("ok 2 resumed ")
        .expect("it has something to have back");
    assert!(
        (1..=600_000).contains(&left.parse::<u64>().unwrap()),
        "{told}"
    );
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "ok");
    assert_eq!(grace(&mut one), [0, 0, 0]);
}

/// A client that comes back and leaves again is waited for like one that has not come, unless it says itself
/// that nothing of it shall outlive its connection: then all ends with that, as always.
#[test]
fn a_client_that_leaves_again_keeps_what_is_pending_unless_it_wants_to_keep_nothing() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    let mut two = gateway(&daemon, "nfs/2", "new");
    assert_eq!(two.ask("rangelock f ex 10 10 0"), "ok");
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut stranger = daemon.connect();
    for (id, ttl) in [("nfs/1", "1ms"), ("nfs/2", "0")] {
        let mut client = daemon.connect();
        let attach = format!("attach {id} {ttl} secret-of-{id}");
        assert_eq!(client.ask(&attach), "ok 2 resumed");
    }
    while stranger.ask("rangelock f ex 10 10 0") == "error_grace" {}
    assert_eq!(
        shown(&mut stranger, "f"),
        ["ex 0 10  pending", "ex 10 10 "],
        "that of the other is kept"
    );
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "ok");
    gateway(&daemon, "nfs/2", "new");
}

/// What was held before the restart is not held before it is had back.
#[test]
fn a_wait_that_ended_with_the_restart_is_not_told_to_be_granted() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(one.ask("rangecancel f ex 0 10"), "ok granted");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(one.ask("rangecancel f ex 0 10"), "nil");
    assert_eq!(one.ask("rangereclaim f ex 0 5"), "ok");
    assert_eq!(one.ask("rangecancel f ex 0 10"), "nil");
    assert_eq!(one.ask("rangecancel f ex 0 5"), "ok granted");
    assert_eq!(one.ask("rangereclaim f ex 5 5"), "ok");
    assert_eq!(one.ask("rangecancel f ex 0 10"), "ok granted");
}

#[test]
fn without_anything_to_have_back_there_is_no_grace_period() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "new");
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "error_no_grace");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(one.ask("rangeunlock f 0 0"), "ok");
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut one = gateway(&daemon, "nfs/1", "resumed");
    assert_eq!(grace(&mut one), [0, 0, 0]);
    assert_eq!(one.ask("rangereclaim f ex 0 10"), "error_no_grace");
}

/// It was not kept, and is from then on: so is what it holds.
#[test]
fn a_client_that_is_to_be_kept_later_keeps_what_it_holds() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = daemon.connect();
    assert_eq!(one.ask("attach nfs/1 0 secret"), "ok 1 new");
    assert_eq!(one.ask("rangelock f ex 0 10 0"), "ok");
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 1 resumed");
    kill(daemon);
    let daemon = directory.start(&[]);
    assert_eq!(shown(&mut daemon.connect(), "f"), ["ex 0 10  pending"]);
}

/// The same with named locks: after another kill they go when the client does, and not before. Also those
/// that it had back after a kill.
#[test]
fn named_locks_of_a_client_are_its_own_after_every_kill() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut one = daemon.connect();
    assert_eq!(one.ask("attach nfs/1 0 secret"), "ok 1 new");
    assert!(one.ask("l early 0 600").starts_with("ok "));
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 1 resumed");
    let mut other = daemon.connect();
    let restored = other.ask("l restored 0 600");
    let token = restored.split(' ').nth(1).unwrap();
    kill(daemon);

    let daemon = directory.start(&[]);
    let mut one = daemon.connect();
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 2 resumed");
    assert_eq!(one.ask(&format!("n restored {token} 600")), "ok 600");
    kill(daemon);

    let daemon = directory.start(&[]);
    let (mut one, mut other) = (daemon.connect(), daemon.connect());
    for key in ["early", "restored"] {
        assert_eq!(other.ask(&format!("l {key} 0")), "timeout");
        let who = other.ask(&format!("who {key}"));
        assert!(who.contains(r#""client":"nfs/1""#), "{who}");
    }
    assert_eq!(one.ask("attach nfs/1 600 secret"), "ok 3 resumed");
    assert_eq!(one.ask("detach nfs/1 secret"), "ok");
    for key in ["early", "restored"] {
        assert!(other.ask(&format!("l {key} 0")).starts_with("ok "));
    }
}

/// Each block is a conversation, and between two of them the daemon is killed and started again.
#[test]
fn the_example_in_the_documents_goes_as_it_is_shown() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ranges.md");
    let page = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> = page.split("```text\n").skip(1).collect();
    assert_eq!(
        blocks.len(),
        2,
        "a conversation before the restart, one after it"
    );
    let directory = Directory::new();
    let mut heard = 0;
    for block in blocks {
        let daemon = directory.start(&[]);
        let mut clients: BTreeMap<&str, Client> = BTreeMap::new();
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines().filter(|line| !line.is_empty()) {
            // What stands far to the right is said to the reader.
            let said = line.split("    ").next().unwrap().trim_end();
            let (who, said) = said.split_once(' ').unwrap();
            let name = &who[..who.len() - 1];
            let client = clients.entry(name).or_insert_with(|| daemon.connect());
            match &who[who.len() - 1..] {
                ">" => client.put(said),
                "<" => {
                    heard += 1;
                    assert_eq!(client.line(), said, "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        kill(daemon);
    }
    assert!(heard >= 10, "{heard} answers were read");
}

/// The number, the time and the epoch of each range lock.
fn identities(client: &mut Client, resource: &str) -> Vec<[u64; 3]> {
    let number = |it: &Value, field: &str| it[field].as_u64().unwrap();
    let fields = |it: Value| ["id", "acquired_ms", "epoch"].map(|field| number(&it, field));
    locks(client, resource).into_iter().map(fields).collect()
}

#[test]
fn range_locks_keep_number_time_and_epoch_over_restarts() {
    for how in [Stop::InOrder, Stop::Kill] {
        let directory = Directory::new();
        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut one = gateway(&daemon, "nfs/1", "new");
        assert_eq!(one.ask("rangelock f ex 0 100 0 alice"), "ok");
        assert_eq!(one.ask("rangeunlock f 40 20 alice"), "ok");
        assert_eq!(one.ask("rangelock f sh 200 10 0 bob"), "ok");
        let before = identities(&mut one, "f");
        let [[first, acquired, 1], [second, of_second, 1], [third, _, 1]] = before[..] else {
            panic!("{before:?}");
        };
        assert!(first < second && second < third, "{before:?}");
        assert_eq!(of_second, acquired, "it was acquired before it was split");
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let age_ms = now.as_millis().abs_diff(acquired.into());
        assert!(age_ms < 3_600_000, "acquired {age_ms} ms from now");
        end(daemon, how);

        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut one = gateway(&daemon, "nfs/1", "resumed");
        assert_eq!(identities(&mut one, "f"), before);
        // What is had back is the same lock, which this server has granted.
        assert_eq!(one.ask("rangereclaim f ex 0 40 alice"), "ok");
        assert_eq!(one.ask("rangereclaim f ex 70 10 alice"), "ok");
        let after = identities(&mut one, "f");
        let [first_again, second_again, middle, behind, third_again] = after[..] else {
            panic!("{after:?}");
        };
        assert_eq!(first_again, [first, acquired, 2]);
        assert_eq!(second_again, [second, acquired, 1]);
        let [number, _, epoch] = middle;
        assert_eq!(middle, [number, acquired, 2]);
        assert!(number > third && epoch == 2, "{after:?}");
        assert_eq!(behind, [number + 1, acquired, 1]);
        assert_eq!(third_again, before[2]);
        end(daemon, how);

        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut one = gateway(&daemon, "nfs/1", "resumed");
        assert_eq!(identities(&mut one, "f"), after);
        assert_eq!(one.ask("rangelock g ex 0 1 0"), "ok");
        let [[newest, _, 3]] = identities(&mut one, "g")[..] else {
            panic!("another epoch");
        };
        assert!(newest > number + 1);
        // All of a client, over all resources, pending or not.
        let mut operator = daemon.connect();
        assert_eq!(operator.ask("break nfs/1 range client"), "ok 6");
        end(daemon, how);

        let daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut one = gateway(&daemon, "nfs/1", "resumed");
        let none = "ok {\"locks\":[],\"next\":null}";
        assert_eq!(one.ask("rangelist nfs/1 client"), none);
    }
}

//! Leaving: half-closed, closed and reset connections, and what becomes of their locks and places.

use crate::vocabulary::{Client, Daemon, frame};

/// `printf 'l\nk\n5\n' | nc -N`
#[test]
fn a_client_that_half_closes_gets_the_answer_and_then_the_end() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.put("l k 5");
    client.half_close();
    client.grant();
    client.expect_end();
    daemon.connect().lock("k", "10"); // nobody holds it any more
}

#[test]
fn all_that_was_sent_before_the_half_close_is_answered_in_order() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let frames = ["ping _ _", "l a 5", "nonsense k _", "l a 0", "ping _ _"];
    client.raw(frames.map(frame).concat());
    client.half_close();
    client.expect("ok");
    client.grant();
    client.expect("error");
    client.expect("timeout");
    client.expect("ok");
    client.expect_end();
}

#[test]
fn an_unfinished_frame_at_the_end_is_not_executed() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.raw("ping\n_\n\nl\nk\n5");
    client.half_close();
    client.expect("ok");
    client.expect_end();
    assert_eq!(daemon.connect().stats()["totals"]["grants"], 0);
}

#[test]
fn a_command_that_would_wait_at_the_end_gets_nothing_and_no_place() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut leaver) = (daemon.connect(), daemon.connect());
    let grant = holder.lock("k", "0");
    leaver.raw(frame("ping _ _") + &frame("l k 60"));
    leaver.half_close();
    leaver.expect("ok");
    leaver.expect_end();
    assert_eq!(holder.stats()["locks"][0]["waiters"], 0);
    holder.release("k", &grant);
    assert_eq!(holder.stats()["totals"]["grants"], 1);
}

#[test]
fn a_client_that_half_closes_while_waiting_loses_its_place_at_once() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut leaver, mut next) = (daemon.connect(), daemon.connect(), daemon.connect());
    let grant = holder.lock("k", "0");
    leaver.put("l k 60");
    holder.wait_for_waiters("k", 1);
    next.put("l k 60");
    holder.wait_for_waiters("k", 2);
    leaver.half_close();
    leaver.expect_end();
    assert_eq!(holder.stats()["locks"][0]["waiters"], 1);
    holder.release("k", &grant);
    let second = next.grant();
    assert_eq!(second.token_fence(), grant.token_fence() + 1); // nobody in between
}

#[test]
fn a_waiter_that_is_reset_loses_the_place_at_once() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut leaver) = (daemon.connect(), daemon.connect());
    holder.lock("k", "0");
    leaver.put("l k 60");
    holder.wait_for_waiters("k", 1);
    leaver.reset();
    holder.wait_for_waiters("k", 0);
}

#[test]
fn a_client_that_leaves_a_unix_socket_loses_its_place_and_its_lock_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let (mut holder, mut leaver, mut next) =
        (Client::unix(&path), Client::unix(&path), daemon.connect());
    let grant = holder.lock("k", "0");
    leaver.put("l k 60");
    holder.wait_for_waiters("k", 1);
    drop(leaver);
    holder.wait_for_waiters("k", 0);
    next.put("l k 60");
    holder.wait_for_waiters("k", 1);
    drop(holder);
    assert_eq!(next.grant().token_fence(), grant.token_fence() + 1);
}

#[test]
fn a_holder_that_closes_makes_room_for_the_next() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut next) = (daemon.connect(), daemon.connect());
    holder.lock("k", "0");
    next.put("l k 60");
    daemon.connect().wait_for_waiters("k", 1);
    drop(holder);
    next.grant();
}

#[test]
fn a_holder_that_is_reset_makes_room_for_the_next() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut next) = (daemon.connect(), daemon.connect());
    holder.lock("k", "0");
    next.put("l k 60");
    daemon.connect().wait_for_waiters("k", 1);
    holder.reset();
    next.grant();
}

/// All in one turn: the holder and the first in the queue are gone before the daemon looks again.
#[test]
fn the_next_client_that_is_still_there_gets_the_lock() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut dead, mut alive) = (daemon.connect(), daemon.connect(), daemon.connect());
    let mut other = daemon.connect();
    let first = holder.lock("k", "0");
    dead.put("l k 60");
    other.wait_for_waiters("k", 1);
    alive.put("l k 60");
    other.wait_for_waiters("k", 2);
    daemon.freeze();
    holder.put(&format!("r k {}", first.token));
    dead.reset();
    daemon.thaw();
    holder.expect("ok");
    let second = alive.grant();
    assert_eq!(
        second.token_fence(),
        first.token_fence() + 1,
        "a fence for the dead"
    );
}

/// Holder and place are gone before the daemon looks again, in either order: nobody is granted what
/// nobody can use, and nobody is told of it.
#[test]
fn a_holder_and_a_place_that_leave_together_are_one_release() {
    for is_holder_first in [true, false] {
        let daemon = Daemon::start(&[]);
        let (mut holder, mut place) = (daemon.connect(), daemon.connect());
        let mut watcher = daemon.connect();
        let first = holder.lock("k", "0");
        assert_eq!(place.ask("e k"), "queued");
        assert_eq!(watcher.ask("watch k"), "ok");
        assert_eq!(watcher.ask("observe k"), "ok");
        watcher.expect("leader elected k");
        daemon.freeze();
        let leaving = if is_holder_first {
            [holder, place]
        } else {
            [place, holder]
        };
        for client in leaving {
            client.reset();
        }
        daemon.thaw();
        watcher.expect("watch release k");
        let next = watcher.lock("k", "0"); // its answer is the next it reads: no `failover`
        assert_eq!(next.token_fence(), first.token_fence() + 1);
    }
}

#[test]
fn without_auto_release_a_lock_outlives_its_connection() {
    let daemon = Daemon::start(&["--auto-release-on-disconnect=false"]);
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0");
    holder.half_close();
    holder.expect_end();
    let mut other = daemon.connect();
    assert_eq!(other.ask("l k 0"), "timeout");
    other.release("k", &grant);
    other.lock("k", "0");
}

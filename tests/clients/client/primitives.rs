//! Everything else that servers have: places, counters, values, lists, barriers, news, byte ranges.

use std::thread;

use latchd::client::{
    Cancel, Change, Client, Command, Enqueued, ErrorKind, Event, KeyEvent, Loss, Reason, Sharing,
    Signal, Told, Verb,
};

use super::{builder, client, ms, s};
use crate::vocabulary::Daemon;

#[test]
fn a_place_is_taken_now_and_waited_for_later() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let Enqueued::Held(guard) = client.lock("job").lease(s(30)).enqueue().unwrap() else {
        panic!("it is free");
    };
    let Enqueued::Queued(mut place) = client.lock("job").enqueue().unwrap() else {
        panic!("it is held");
    };
    assert_eq!(place.position().unwrap(), Some(1));
    guard.release().unwrap();
    assert_eq!(place.position().unwrap(), Some(0));
    let guard = place.wait(s(10)).unwrap();
    assert!(guard.is_held());

    let Enqueued::Queued(place) = client.lock("job").enqueue().unwrap() else {
        panic!("it is held");
    };
    assert_eq!(place.wait(ms(10)).unwrap_err().kind(), ErrorKind::Busy);
    let Enqueued::Queued(place) = client.lock("job").enqueue().unwrap() else {
        panic!("it is held");
    };
    drop(place);
    daemon.connect().wait_for_waiters("job", 0);

    let error = client.elect("lead").enqueue().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}

/// Nobody waits, the turn comes and goes.
#[test]
fn a_turn_that_nobody_waited_for_is_lost() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").acquire().unwrap();
    let Enqueued::Queued(place) = client.lock("job").lease(ms(20)).enqueue().unwrap() else {
        panic!("it is held");
    };
    guard.release().unwrap();
    // When the next one has it, the turn before is over.
    let next = client.lock("job").acquire().unwrap();
    assert_eq!(place.wait(s(1)).unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.is_held());
}

#[test]
fn counters_values_and_lists() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let counter = client.counter("c");
    assert_eq!(counter.get().unwrap(), 0);
    assert_eq!(counter.add(5).unwrap(), 5);
    assert_eq!(counter.add(-7).unwrap(), -2);
    counter.set(i64::MAX).unwrap();
    assert_eq!(counter.add(1).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(counter.get().unwrap(), i64::MAX);

    let value = client.value("v");
    assert_eq!(value.get().unwrap(), None);
    assert!(!value.swap(Some(b"old"), b"new", None).unwrap());
    assert!(value.swap(None, b"one", None).unwrap());
    assert!(!value.swap(None, b"two", None).unwrap());
    assert!(!value.swap(Some(b""), b"two", None).unwrap());
    assert!(value.swap(Some(b"one"), b"two words", Some(s(60))).unwrap());
    assert_eq!(value.get().unwrap().as_deref(), Some(&b"two words"[..]));
    value.set_for("short", ms(1)).unwrap();
    while value.get().unwrap().is_some() {}
    value.set("long").unwrap();
    value.delete().unwrap();
    assert_eq!(value.get().unwrap(), None);
    for wrong in ["", "a\tb", "a\nb"] {
        let error = value.set(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{wrong:?}: {error}");
    }

    let list = client.list("l");
    assert_eq!(list.pop_left().unwrap(), None);
    assert_eq!(list.wait_right(ms(1)).unwrap(), None);
    for (length, word) in [(1, "b"), (2, "c")] {
        assert_eq!(list.push_right(word).unwrap(), length);
    }
    assert_eq!(list.push_left("a").unwrap(), 3);
    assert_eq!(list.range(0, -1).unwrap(), ["a", "b", "c"]);
    assert_eq!(list.range(5, 7).unwrap(), [""; 0]);
    assert_eq!(list.len().unwrap(), 3);
    assert_eq!(list.pop_right().unwrap().as_deref(), Some(&b"c"[..]));
    assert_eq!(list.pop_left().unwrap().as_deref(), Some(&b"a"[..]));
    assert_eq!(list.wait_left(s(1)).unwrap().as_deref(), Some(&b"b"[..]));
    assert!(list.is_empty().unwrap());
    thread::scope(|scope| {
        let popper = scope.spawn(|| list.wait_left(s(10)).unwrap());
        while list.push_right("handed over").unwrap() > 0 {
            // It came before the popper, and is still there.
            if list.pop_right().unwrap().is_none() {
                break;
            }
        }
        assert_eq!(popper.join().unwrap().as_deref(), Some(&b"handed over"[..]));
    });
}

#[test]
fn all_meet_at_a_barrier_or_nobody() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| client.barrier("b", 3, s(10)).unwrap());
        }
    });
    let error = client.barrier("b", 2, ms(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

#[test]
fn signals_and_watches_come_in_order_and_end_with_a_timeout() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let mut signals = client.listen("evt.*").unwrap();
    let mut mine = client.listen_in_group("evt.>", "workers").unwrap();
    let mut events = client.watch("k").unwrap();
    assert_eq!(client.signal("other", "x").unwrap(), 0);
    for number in 0..100 {
        assert_eq!(client.signal("evt.x", format!("hi {number}")).unwrap(), 2);
    }
    let heard: Vec<_> = signals.within(ms(50)).map(Result::unwrap).collect();
    assert_eq!(heard.len(), 100);
    for (number, Signal { channel, payload }) in heard.iter().enumerate() {
        assert_eq!(channel, b"evt.x");
        assert_eq!(*payload, format!("hi {number}").into_bytes());
    }
    assert_eq!(mine.next_within(s(1)).unwrap().unwrap().payload, b"hi 0");
    assert!(signals.next_within(ms(1)).unwrap().is_none());

    client.value("k").set("v").unwrap();
    drop(client.lock("k").acquire().unwrap());
    for event in [Event::Kset, Event::Acquire, Event::Release] {
        let key = b"k".to_vec();
        assert_eq!(
            events.next_within(s(10)).unwrap(),
            Some(KeyEvent { event, key })
        );
    }
    for wrong in ["fo*", "a.>.b"] {
        let error = client.listen(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
}

#[test]
fn leaders_are_observed_and_resign() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let mut changes = client.observe("lead").unwrap();
    let mut next = || changes.next_within(s(10)).unwrap().unwrap().change;
    let leader = client.elect("lead").acquire().unwrap();
    assert_eq!(next(), Change::Elected);
    thread::scope(|scope| {
        let follower = scope.spawn(|| client.elect("lead").acquire().unwrap());
        daemon.connect().wait_for_waiters("lead", 1);
        leader.release().unwrap();
        let follower = follower.join().unwrap();
        assert_eq!(next(), Change::Resigned);
        assert_eq!(next(), Change::Failover);
        assert_eq!(next(), Change::Elected);
        // Somebody else resigns for it, and it is told.
        let token = follower.token().unwrap();
        let hex = String::from_utf8(token.hex().to_vec()).unwrap();
        assert_eq!(daemon.connect().ask(&format!("resign lead {hex}")), "ok");
        assert!(follower.lost().wait(s(10)));
    });
}

#[test]
fn byte_ranges_of_owners() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let mut one = client.ranges("file").unwrap().owner("pid-1");
    let mut two = client.ranges("file").unwrap().owner("pid-2");
    one.lock(Sharing::Exclusive, 0, 100, s(1)).unwrap();
    one.unlock(10, 10).unwrap();
    two.try_lock(Sharing::Shared, 10, 10).unwrap();
    let error = two.try_lock(Sharing::Shared, 0, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let held = two.test(Sharing::Shared, 50, 0).unwrap().unwrap();
    assert_eq!(
        (held.mode, held.start, held.len),
        (Sharing::Exclusive, 20, 80)
    );
    assert_eq!(held.owner, b"pid-1");
    assert_eq!(two.test(Sharing::Shared, 100, 0).unwrap(), None);
    assert_eq!(
        two.cancel(Sharing::Shared, 0, 0).unwrap(),
        Cancel::NotWaiting
    );
    assert!(two.list().unwrap().contains("\"lock_count\":3"));
    let error = two.lock(Sharing::Shared, u64::MAX, 2, ms(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");

    assert_eq!(client.break_ranges("file", Some((0, 1))).unwrap(), 1);
    let lost = one.lost(s(10)).unwrap().unwrap();
    assert_eq!((lost.start, lost.len, lost.why), (0, 10, Loss::Broken));
    drop(one);
    two.lock(Sharing::Exclusive, 0, 0, s(10)).unwrap();
    assert_eq!(client.break_ranges("file", None).unwrap(), 1);
}

#[test]
fn an_attached_client_outlives_its_connections() {
    let daemon = Daemon::start(&[]);
    let attached = || {
        builder(&daemon)
            .attach("gw/1", s(60), "s3cret")
            .connect()
            .unwrap()
    };
    let client = attached();
    let guard = client.lock("job").lease(s(60)).acquire().unwrap();
    let fence = guard.fence();
    let token = guard.leave().unwrap();
    assert_eq!(token.fence.0, fence);
    drop(client);
    let client = attached();
    let who = client.who("job").unwrap();
    assert_eq!(who.holders[0].client.as_deref(), Some("gw/1"));
    let reply = client.ask_verb(Verb::Pos, b"job", b"").unwrap();
    assert_eq!(reply.told(), Told::Number(0), "it holds it");
    client.detach().unwrap();
    assert_eq!(client.who("job").unwrap().holder_count, 0);

    let wrong = builder(&daemon)
        .attach("gw/2", s(60), "a")
        .connect()
        .unwrap();
    let error = builder(&daemon)
        .attach("gw/2", s(60), "b")
        .connect()
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Auth), "{error}");
    drop(wrong);
    let plain = super::client(&daemon);
    assert_eq!(plain.detach().unwrap_err().kind(), ErrorKind::Misuse);
    let error = plain.lock("job").acquire().unwrap().leave().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
}

#[test]
fn what_operators_ask() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    client.ping().unwrap();
    let guard = client.semaphore("pool", 3).acquire().unwrap();
    let other = client.semaphore("pool", 3).acquire().unwrap();
    let stats = client.stats().unwrap();
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].server, daemon.address().to_string());
    let stats: serde_json::Value = serde_json::from_str(&stats[0].json).unwrap();
    assert_eq!(stats["totals"]["grants"], 2);
    assert!(client.waits().unwrap()[0].json.starts_with("{\"edges\":["));
    assert!(!client.break_grant("pool", 1).unwrap());
    assert!(client.break_grant("pool", guard.fence()).unwrap());
    assert_eq!(client.break_all("pool").unwrap(), 1);
    assert!(guard.lost().wait(s(10)) && other.lost().wait(s(10)));
}

/// Commands whose effect would end with a connection that is nobody's.
#[test]
fn what_belongs_to_a_connection_is_not_asked_on_any() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    for (verb, key, argument) in [
        (Verb::Lock, "k", "0"),
        (Verb::Enqueue, "k", ""),
        (Verb::Wait, "k", "0"),
        (Verb::Listen, "k", ""),
        (Verb::Watch, "k", ""),
        (Verb::Observe, "k", ""),
        (Verb::RangeLock, "k", "sh 0 0 0"),
        (Verb::Auth, "_", "x"),
        (Verb::Hello, "_", "fence=1"),
        (Verb::Attach, "k", "0 x"),
        (Verb::Lock, "a b", "0"),
        (Verb::Kset, "k", "a\nb"),
    ] {
        let error = client.ask_verb(verb, key.as_bytes(), argument.as_bytes());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Misuse, "{verb:?}");
    }
    let mut session = client.session("k").unwrap();
    let command = latchd::wire::client::read_request(Verb::Lock, b"k", b"0").unwrap();
    assert!(matches!(
        session.ask(&command).unwrap().told(),
        Told::Granted(_)
    ));
    assert_eq!(client.who("k").unwrap().holder_count, 1);
    assert!(session.news(ms(1)).unwrap().is_none());
    drop(session);
    drop(client.lock("k").acquire().unwrap());
    assert_eq!(
        client.ask_server(1, &Command::Ping).unwrap_err().kind(),
        ErrorKind::Misuse
    );
}

/// A line of stats may be long, and so may a value.
#[test]
fn long_answers_are_read() {
    let daemon = Daemon::start(&[]);
    let client: Client = client(&daemon);
    let list = client.list("long");
    let value = "x".repeat(60_000);
    for _ in 0..16 {
        list.push_right(&value).unwrap();
    }
    let all = list.range(0, -1).unwrap();
    assert_eq!(all.len(), 16);
    assert!(all.iter().all(|it| *it == value));
    let mut signals = client.listen("long").unwrap();
    client.signal("long", &value).unwrap();
    assert_eq!(
        signals.next_within(s(10)).unwrap().unwrap().payload,
        value.as_bytes()
    );
}

//! Whoever waits or listens at a member of a cluster notices when that one is silent because another one leads: without
//! waiting for longer than it wants to, and without asking more often than it takes.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use latchd::client::{Client, ErrorKind, Told, Verb};

use super::follow::{Pair, wait_until_it_is};
use super::front::{Front, Role};
use super::{ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// One look is enough for all that wait at the same server.
#[test]
fn those_who_wait_do_not_all_connect_to_look() {
    const WAITERS: usize = 20;
    let pair = Pair::start();
    let (client, other) = (pair.client(), pair.client());
    let _guard = other.lock("job").lease(s(60)).acquire().unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| scope.spawn(|| client.lock("job").wait(s(7)).acquire().map(drop)))
            .collect();
        let start = Instant::now();
        while other.who("job").unwrap().waiter_count < WAITERS as u64 {
            assert!(start.elapsed() < PATIENCE);
        }
        let before = pair.first.accepted();
        for waiter in waiters {
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
        let looks = pair.first.accepted() - before;
        assert!((1..WAITERS).contains(&looks), "{looks} connections");
    });
}

/// However many servers are silent, whoever listens is told in time that nothing came.
#[test]
fn silent_servers_make_nobody_listen_for_longer() {
    let daemon = Daemon::start(&[]);
    let pairs: Vec<_> = (0..6)
        .map(|_| {
            let first = Front::start(Role::Leads(daemon.address()));
            let second = Front::start(Role::Follows(Some(first.address.to_string())));
            [first, second]
        })
        .collect();
    let list = pairs.iter();
    let list = list.map(|[first, second]| format!("{}+{}", first.address, second.address));
    let client = Client::connect(&list.collect::<Vec<_>>().join(",")).unwrap();
    let mut signals = client.listen(">").unwrap();
    for front in pairs.iter().flatten() {
        front.becomes(Role::Stopped);
    }
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(signals.next_within(s(4))).unwrap());
    let heard = told.recv_timeout(PATIENCE).unwrap();
    assert!(heard.unwrap().is_none());
}

/// Whoever listens only for a moment each time notices it, too.
#[test]
fn short_looks_for_news_find_another_leader() {
    let mut pair = Pair::start();
    let client = pair.client();
    let mut events = client.watch("news").unwrap();
    pair.lose_leader(Role::Stopped);
    pair.take_over();
    let start = Instant::now();
    let error = loop {
        match events.next_within(ms(100)) {
            Ok(_) => assert!(start.elapsed() < 2 * PATIENCE, "nobody looks"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("another member"), "{error}");
}

/// The leader was told of by the one server that is in the list, and is silent: then that one is asked who leads.
#[test]
fn a_silent_leader_that_was_told_of_is_left() {
    let mut pair = Pair::start();
    let client = Client::connect(&pair.second.address.to_string()).unwrap();
    let guard = client.lock("job").lease(s(15)).acquire().unwrap();
    let mut events = client.watch("news").unwrap();
    let mut session = client.session("news").unwrap();
    let watch =
        latchd::client::Command::Engine(latchd::engine::types::Request::Watch { pattern: b"news" });
    let reply = session.ask(&watch).unwrap();
    assert_eq!((reply.verb(), reply.told()), (Verb::Watch, Told::Done));
    pair.lose_leader(Role::Stopped);
    pair.lead_second();
    thread::scope(|scope| {
        let events = scope.spawn(move || events.next_within(2 * PATIENCE).map(drop));
        let session = scope.spawn(move || session.news(2 * PATIENCE).map(drop));
        for result in [events.join().unwrap(), session.join().unwrap()] {
            let error = result.unwrap_err();
            assert!(error.to_string().contains("another member"), "{error}");
        }
    });
    // The guard is renewed where it is held now.
    let start = Instant::now();
    let other = Client::connect(&pair.second.address.to_string()).unwrap();
    let restored = || other.who("job").unwrap().holders[0].restored;
    while restored() {
        assert!(start.elapsed() < PATIENCE, "{:?}", guard.standing());
    }
    wait_until_it_is(&guard, latchd::client::Standing::Held);
    guard.release().unwrap();
}

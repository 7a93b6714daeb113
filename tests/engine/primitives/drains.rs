//! Shutdown: whoever is parked is refused, nobody is served in between, and all else goes on.

use latchd::base::{Millis, Token};
use latchd::engine::Rules;
use latchd::engine::types::{End, Mode, Refusal, Reply, Request};
use proptest::prelude::*;

use crate::primitives::{CLIENTS, Said, World, client, config, hold, reply, span, span_or_zero};

const KEYS: [&[u8]; 3] = [b"a", b"b", b"a.b"];

/// What is asked before shutdown, mostly things that make clients wait.
fn request() -> impl Strategy<Value = Request<'static>> {
    let key = || prop::sample::select(&KEYS[..]);
    let end = || prop::sample::select(&[End::Left, End::Right][..]);
    prop_oneof![
        12 => (hold(), span(), span())
            .prop_map(|((key, mode), wait, lease)| Request::Acquire { key, mode, wait, lease: Some(lease) }),
        2 => (key(), end(), span()).prop_map(|(key, end, wait)| Request::AwaitPop { key, end, wait }),
        2 => (key(), 2..5u32, span()).prop_map(|(key, count, wait)| Request::Meet { key, count, wait }),
        1 => (key(), end()).prop_map(|(key, end)| Request::Push { key, value: b"v", end }),
        1 => key().prop_map(|pattern| Request::Watch { pattern }),
        1 => key().prop_map(|key| Request::Observe { key }),
    ]
}

/// What would make its client wait, or hold something new.
fn refused() -> impl Strategy<Value = Request<'static>> {
    let key = || prop::sample::select(vec![&b"a"[..], b"b", b"new"]);
    let end = prop::sample::select(&[End::Left, End::Right][..]);
    prop_oneof![
        (hold(), span_or_zero()).prop_map(|((key, mode), wait)| Request::Acquire {
            key,
            mode,
            wait,
            lease: None
        }),
        hold().prop_map(|(key, mode)| Request::Enqueue {
            key,
            mode,
            lease: None
        }),
        (key(), end, span_or_zero()).prop_map(|(key, end, wait)| Request::AwaitPop {
            key,
            end,
            wait
        }),
        (key(), 1..4u32, span_or_zero()).prop_map(|(key, count, wait)| Request::Meet {
            key,
            count,
            wait
        }),
    ]
}

/// What is still served, and how.
fn served() -> [(Request<'static>, Reply); 9] {
    let (key, value, ttl) = (&b"kept"[..], &b"v"[..], Millis::ZERO);
    let (pattern, group, end) = (key, &b""[..], End::Left);
    [
        (Request::Push { key, value, end }, Reply::Number(1)),
        (Request::Length { key }, Reply::Number(1)),
        (Request::Put { key, value, ttl }, Reply::Done),
        (Request::Fetch { key }, Reply::Value(value.into())),
        (
            Request::Add {
                key,
                delta: 1,
                down: false,
            },
            Reply::Number(1),
        ),
        (Request::Listen { pattern, group }, Reply::Done),
        (
            Request::Signal {
                channel: b"nobody",
                payload: b"hi",
            },
            Reply::Number(0),
        ),
        (
            Request::Watch {
                pattern: b"nothing",
            },
            Reply::Done,
        ),
        (
            Request::Wait { key, wait: ttl },
            Reply::Refused(Refusal::NotEnqueued),
        ),
    ]
}

type Asked = Vec<(usize, Request<'static>)>;

fn run(shared: bool, before: Asked, after: Asked) {
    let mut world = World::new(Rules::default()).sharing_clients(shared);
    let mut tokens: Vec<(&[u8], Token)> = Vec::new();
    (0..CLIENTS).for_each(|who| world.attach(who));
    for (who, request) in before {
        if world.is_parked(who) {
            continue;
        }
        for (_, said) in world.ask(who, request) {
            if let (Said::Reply(Reply::Granted { token, .. }), Request::Acquire { key, .. }) =
                (said, request)
            {
                tokens.push((key, token));
            }
        }
    }
    let holders = world.engine.counts().holders;
    let parked: Vec<usize> = (0..CLIENTS).filter(|&who| world.is_parked(who)).collect();
    let sent_away: Vec<_> = parked
        .iter()
        .map(|&who| reply(who, Reply::Refused(Refusal::Draining)))
        .collect();
    assert_eq!(
        world.drain(),
        sent_away,
        "each is told, and nothing else happens"
    );
    assert_eq!(world.engine.counts().holders, holders);
    assert_eq!(world.engine.counts().waiters, 0);
    for (who, request) in after {
        let refused = reply(who, Reply::Refused(Refusal::Draining));
        assert_eq!(world.ask(who, request), [refused], "{request:?}");
    }
    for (request, expected) in served() {
        assert_eq!(world.ask(0, request), [reply(0, expected)], "{request:?}");
    }
    for (key, token) in tokens {
        let heard = world.ask(
            1,
            Request::Release {
                key,
                token: Some(token),
            },
        );
        let answers: Vec<_> = heard
            .into_iter()
            .filter(|it| matches!(it.1, Said::Reply(_)))
            .collect();
        assert_eq!(answers, [reply(1, Reply::Done)], "nobody is served");
    }
    assert_eq!(world.engine.counts().holders, 0);
    let lists = world.engine.view(world.now).lists().count();
    world.end(lists + 2); // the value and the number that were still taken
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn shutdown_refuses_clients_that_wait(
        shared in any::<bool>(),
        before in prop::collection::vec((client(), request()), 1..40),
        after in prop::collection::vec((client(), refused()), 1..10),
    ) {
        run(shared, before, after);
    }
}

#[test]
fn a_place_in_line_is_refused_when_it_is_waited_for() {
    let mut world = World::new(Rules::default());
    let (key, mode, lease) = (KEYS[0], Mode::Slot { limit: 1 }, None);
    let wait = Millis(5000);
    world.ask(
        0,
        Request::Acquire {
            key,
            mode,
            wait,
            lease,
        },
    );
    for who in [1, 2] {
        let heard = world.ask(who, Request::Enqueue { key, mode, lease });
        assert_eq!(heard, [reply(who, Reply::Queued)]);
    }
    assert_eq!(world.ask(1, Request::Wait { key, wait }), []);
    let refused = |who| [reply(who, Reply::Refused(Refusal::Draining))];
    assert_eq!(world.drain(), refused(1), "the one that waits");
    assert_eq!(world.ask(2, Request::Wait { key, wait }), refused(2));
    assert_eq!(world.engine.counts().waiters, 0);
    world.end(0);
}

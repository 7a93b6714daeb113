//! What observers hear of a key, depending on what kind of key it is.

use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::engine::types::{Change, Mode, Push, Request};

use super::{Said, World};

/// What the observer, client 4, hears of a key while a history of it unfolds.
fn heard_of(name: &str, mode: Mode, next: Request<'_>) -> Vec<Change> {
    let mut world = World::new(Rules::default());
    let (key, lease) = (name.as_bytes(), Some(Millis(5000)));
    let wait = Millis::ZERO;
    let acquire = Request::Acquire {
        key,
        mode,
        wait,
        lease,
    };
    let mut heard = world.ask(4, Request::Observe { key });
    heard.extend(world.ask(0, acquire));
    heard.extend(world.ask(1, next));
    heard.extend(world.leave(0));
    world.end(0);
    let own = heard.into_iter().filter(|it| it.0 == 4);
    own.filter_map(|(_, said)| match said {
        Said::Push(Push::Leader { change, .. }) => Some(change),
        _ => None,
    })
    .collect()
}

#[test]
fn a_grant_from_the_queue_is_a_failover_of_locks_only() {
    let (key, wait, lease) = (&b"k"[..], Millis(5000), None);
    let lock = Mode::Slot { limit: 1 };
    let enqueue = Request::Enqueue {
        key,
        mode: lock,
        lease,
    };
    let told = "also to one that has not come to hear of it";
    assert_eq!(heard_of("k", lock, enqueue), [Change::Failover], "{told}");
    let [elect, read, write] = [Mode::Lead, Mode::Read, Mode::Write].map(|mode| Request::Acquire {
        key,
        mode,
        wait,
        lease,
    });
    let to_leader = [Change::Failover, Change::Elected];
    assert_eq!(heard_of("k", lock, elect), to_leader);
    assert_eq!(heard_of("k", Mode::Lead, elect)[1..], to_leader);
    assert_eq!(heard_of("k", Mode::Write, read), [], "not a lock of one");
    assert_eq!(heard_of("k", Mode::Read, write), [], "not a lock of one");
    let nobody = Request::Count { key };
    assert_eq!(
        heard_of("k", Mode::Lead, nobody),
        [Change::Elected],
        "no news of a loss"
    );
}

//! Shutdown: a place in a queue is refused when it is waited for.

use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::engine::types::{Mode, Refusal, Reply, Request};

use super::{World, reply};

#[test]
fn a_place_in_line_is_refused_when_it_is_waited_for() {
    let mut world = World::new(Rules::default());
    let (key, mode, lease) = (&b"a"[..], Mode::Slot { limit: 1 }, None);
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

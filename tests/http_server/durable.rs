//! Remembered before spoken, over HTTP: no answer leaves before what it tells is on disk, and a full
//! disk is told in LockServer's words.

use std::cell::RefCell;
use std::rc::Rc;

use latchd::base::Nanos;
use latchd::engine::types::Record;
use latchd::engine::{Engine, Rules};
use latchd::pipe::ORIGIN;
use latchd::server::Settings;
use latchd::store::{Progress, Store};

use crate::world::{Lease, World};

/// What the test and the server's store share: the store keeps what the test says it has kept.
#[derive(Default)]
struct Kept {
    records: u64,
    progress: Progress,
    is_behind: bool,
}

#[derive(Clone, Default)]
struct ByHand(Rc<RefCell<Kept>>);

impl Store for ByHand {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, _: Nanos, _: &Record) {
        self.0.borrow_mut().records += 1;
    }

    fn commit(&mut self, _: Nanos) {}

    fn progress(&mut self) -> Progress {
        self.0.borrow().progress.clone()
    }

    fn is_behind(&self) -> bool {
        self.0.borrow().is_behind
    }

    fn memory(&self) -> usize {
        0
    }

    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }
}

fn world() -> (World<ByHand>, ByHand) {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let store = ByHand::default();
    let engine = Engine::new(rules, ORIGIN);
    let world = World::over(engine, Settings::default(), store.clone());
    (world, store)
}

/// Everything that was recorded so far is on disk now.
fn keep_all(world: &mut World<ByHand>, store: &ByHand) {
    let recorded = store.0.borrow().records;
    store.0.borrow_mut().progress.durable = recorded;
    world.settle();
}

const ACQUIRE: &str = "POST /v1/locks/job/acquire {\"owner_id\":\"me\",\"ttl_ms\":60000}";

#[test]
fn no_grant_is_told_before_it_is_on_disk() {
    let (mut world, store) = world();
    let (who, other) = (world.http(), world.http());
    for request in [
        ACQUIRE,
        "POST /v1/counters/c/add {\"delta\":1}",
        "PUT /v1/kv/k {\"value\":\"v\"}",
        "POST /v1/lists/q/push {\"value\":\"v\"}",
        "POST /v1/elections/e/elect {\"owner_id\":\"me\",\"ttl_ms\":60000}",
    ] {
        world.say(who, request);
        assert_eq!(world.answers(who), [], "{request}");
        assert_eq!(
            world.ask(other, "GET /livez").status,
            200,
            "nobody else waits"
        );
        keep_all(&mut world, &store);
        assert_eq!(world.answer(who).status, 200, "{request}");
    }
}

/// Whoever looks is not told of what could still be forgotten.
#[test]
fn nothing_is_shown_before_it_is_on_disk() {
    for look in [
        "GET /v1/locks/job",
        "GET /v1/who/job",
        "GET /v1/locks",
        "GET /v1/stats",
        "GET /metrics",
    ] {
        let (mut world, store) = world();
        let (who, other) = (world.http(), world.http());
        world.say(who, ACQUIRE);
        world.say(other, look);
        assert_eq!(world.answers(other), [], "{look}");
        keep_all(&mut world, &store);
        assert_eq!(world.answer(other).status, 200, "{look}");
    }
}

#[test]
fn a_full_disk_is_busy_on_lease_routes_and_a_reason_elsewhere() {
    let (mut world, store) = world();
    let who = world.http();
    world.say(who, ACQUIRE);
    keep_all(&mut world, &store);
    let lease = Lease::of(&world.answer(who));
    store.0.borrow_mut().progress.is_full = true;
    world.settle();
    let busy = "POST /v1/locks/new/acquire {\"owner_id\":\"me\",\"ttl_ms\":60000}";
    assert_eq!(
        world.ask(who, busy).shown(),
        "409 {\"acquired\":false,\"lock_name\":\"new\",\"recommended_retry_ms\":50,\"reason\":\"BUSY_RETRY\"}"
    );
    let value = world.ask(who, "PUT /v1/kv/k {\"value\":\"v\"}");
    assert_eq!((value.status, value.reason().as_str()), (503, "STORAGE"));
    assert_eq!(value.header("Retry-After"), Some("1"));
    // What makes room, or needs none, goes on.
    assert_eq!(world.ask(who, "GET /v1/locks/job").json()["held"], true);
    assert_eq!(world.renew(who, &lease, 60_000).status, 200);
    let busy_figures = world.ask(who, "GET /metrics").body;
    assert!(busy_figures.contains("lock_acquire_total{result=\"busy\"} 1\n"));
    assert!(busy_figures.contains("lock_db_busy_total{op=\"acquire\"} 1\n"));
    // And so does everything once there is room again.
    store.0.borrow_mut().progress.is_full = false;
    world.settle();
    world.say(who, busy);
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
}

//! Remembered before spoken, over HTTP: no answer leaves before what it tells is on disk, and a full
//! disk is told in LockServer's words.

use std::cell::RefCell;
use std::rc::Rc;

use latch_sim::pipe::ORIGIN;
use latchd::base::Nanos;
use latchd::engine::types::{Effects, Input, Record};
use latchd::engine::{Engine, Rules};
use latchd::server::Settings;
use latchd::store::{Memory, Progress, Store};

use crate::http_server::world::{BEGIN, Lease, World};

/// What the test and the server's store share: the store keeps what the test says it has kept.
#[derive(Default)]
pub(crate) struct Kept {
    records: u64,
    pub(crate) all: Vec<Record>,
    pub(crate) progress: Progress,
    pub(crate) is_behind: bool,
}

#[derive(Clone, Default)]
pub(crate) struct ByHand(pub(crate) Rc<RefCell<Kept>>);

impl Store for ByHand {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, _: Nanos, record: &Record) {
        self.0.borrow_mut().records += 1;
        self.0.borrow_mut().all.push(record.clone());
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

pub(crate) fn world() -> (World<ByHand>, ByHand) {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let store = ByHand::default();
    let engine = Engine::new(rules, ORIGIN);
    let world = World::over(engine, Settings::default(), store.clone());
    (world, store)
}

/// A server that begins with these records.
pub(crate) fn restarted(records: &[Record], rules: Rules) -> World {
    restarted_with(records, rules, Settings::default())
}

pub(crate) fn restarted_with(records: &[Record], rules: Rules, settings: Settings) -> World {
    let mut engine = Engine::new(rules, ORIGIN);
    let mut nothing = Effects::new();
    let mut apply = |input: Input<'_>| engine.apply(Nanos(BEGIN.0), input, &mut nothing);
    records.iter().for_each(|it| apply(Input::Restore(it)));
    let may_have_lost = false;
    apply(Input::Serve { may_have_lost });
    World::over(engine, settings, Memory)
}

/// Everything that was recorded so far is on disk now.
pub(crate) fn keep_all(world: &mut World<ByHand>, store: &ByHand) {
    let recorded = store.0.borrow().records;
    store.0.borrow_mut().progress.durable = recorded;
    world.settle();
}

/// What the server refuses itself counts like what the table refuses.
#[test]
fn every_refusal_for_want_of_room_on_disk_is_counted() {
    let (mut world, store) = world();
    let (line, http) = (world.line(), world.http());
    world.say(http, "POST /v1/lists/q/push {\"value\":\"v\"}");
    keep_all(&mut world, &store);
    assert_eq!(world.answer(http).status, 200);
    assert_eq!(world.ask(http, "GET /readyz").body, "{\"status\":\"ok\"}\n");
    store.0.borrow_mut().progress.is_full = true;
    store.0.borrow_mut().is_behind = true;
    world.settle();
    for probe in ["GET /readyz", "GET /ready"] {
        let answer = world.ask(http, probe);
        assert_eq!(answer.status, 200, "holders renew and release");
        assert_eq!(answer.body, "{\"status\":\"degraded\"}\n");
    }
    // A value that was popped and could not be sent would come back.
    assert_eq!(world.pipes.ask(line, "lpop q"), "error_storage\n");
    assert_eq!(world.ask(http, "POST /v1/lists/q/pop").status, 503);
    assert_eq!(world.pipes.ask(line, "rpush q w"), "error_storage\n");
    let figures = world.ask(http, "GET /metrics").body;
    let hits = "locks_limit_hits_total{limit_type=\"storage\"} 3\n";
    assert!(figures.contains(hits), "{figures}");
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

/// A renewal that would make a lease longer has to be recorded, and may have to wait for the disk with
/// that. Its owner has asked in time, so none of its leases ends meanwhile.
#[test]
fn a_renewal_that_waits_for_the_disk_keeps_the_leases_of_its_owner() {
    let (mut world, store) = world();
    let who = world.http();
    let acquire = |world: &mut World<ByHand>, lock: &str, owner: &str| {
        let body = format!("{{\"owner_id\":\"{owner}\",\"ttl_ms\":1000}}");
        world.say(who, &format!("POST /v1/locks/{lock}/acquire {body}"));
        keep_all(world, &store);
        Lease::of(&world.answer(who))
    };
    let mine = acquire(&mut world, "mine", "me");
    acquire(&mut world, "mine-too", "me");
    acquire(&mut world, "yours", "you");
    store.0.borrow_mut().is_behind = true;
    let held = |world: &mut World<ByHand>, lock: &str| is_held(world, &store, lock);
    world.say(who, &renewal(&mine, "me"));
    // Whoever does not know the token keeps nothing, whatever name it says.
    let guesser = world.http();
    world.say(guesser, &renewal(&mine, "you"));
    world.pass(20_000);
    assert_eq!(world.answers(who), []);
    assert!(held(&mut world, "mine") && held(&mut world, "mine-too"));
    assert!(!held(&mut world, "yours"));
    // The disk gets on.
    store.0.borrow_mut().is_behind = false;
    world.settle();
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
    assert_eq!(world.answer(guesser).status, 409);
    world.pass(2_000);
    assert!(held(&mut world, "mine"), "it is renewed");
    assert!(!held(&mut world, "mine-too"), "and that one is not");
}

/// Whoever has hung up meanwhile has asked in time, too. Once all of them are served, the lease ends
/// when it should.
#[test]
fn renewals_that_wait_for_the_disk_keep_a_lease_only_while_they_wait() {
    let (mut world, store) = world();
    let (who, again) = (world.http(), world.http());
    world.say(
        who,
        "POST /v1/locks/job/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000}",
    );
    keep_all(&mut world, &store);
    let lease = Lease::of(&world.answer(who));
    store.0.borrow_mut().is_behind = true;
    for who in [who, again] {
        world.say(who, &renewal(&lease, "me"));
    }
    world.leave(who);
    world.pass(5_000);
    assert!(is_held(&mut world, &store, "job"));
    store.0.borrow_mut().is_behind = false;
    world.settle();
    keep_all(&mut world, &store);
    assert_eq!(world.answer(again).status, 200);
    world.pass(59_000);
    assert!(is_held(&mut world, &store, "job"), "it is renewed");
    world.pass(1_000);
    assert!(!is_held(&mut world, &store, "job"));
}

/// Renewals are not recorded, so the version jumps.
#[test]
fn version_of_a_held_lock_is_higher_after_a_restart_and_never_lower() {
    let (mut world, store) = world();
    let who = world.http();
    world.say(who, ACQUIRE);
    keep_all(&mut world, &store);
    let lease = Lease::of(&world.answer(who));
    for _ in 0..3 {
        assert_eq!(world.renew(who, &lease, 60_000).status, 200);
    }
    let seen = world.ask(who, "GET /v1/locks/job").json();
    assert_eq!(seen["version"], 4);
    let records = store.0.take().all;

    let mut last = 4;
    for epoch in 2..5 {
        let rules = Rules {
            durable: true,
            epoch,
            ..Rules::default()
        };
        let mut world = restarted(&records, rules);
        assert_eq!(world.http(), who);
        let restored = version_of(&mut world, who, "job");
        assert!(restored > last, "{restored} after {last}");
        for _ in 0..3 {
            assert_eq!(world.renew(who, &lease, 60_000).status, 200);
        }
        last = version_of(&mut world, who, "job");
        assert_eq!(last, restored + 3);
        world.acquire(who, "new", "me", 60_000);
        assert_eq!(
            version_of(&mut world, who, "new"),
            1,
            "what is new begins at 1"
        );
    }
}

fn version_of(world: &mut World, who: usize, lock: &str) -> u64 {
    let seen = world.ask(who, &format!("GET /v1/locks/{lock}")).json();
    seen["version"].as_u64().unwrap()
}

fn is_held(world: &mut World<ByHand>, store: &ByHand, lock: &str) -> bool {
    keep_all(world, store);
    let who = world.http();
    let seen = world.ask(who, &format!("GET /v1/locks/{lock}"));
    seen.json()["held"] == true
}

fn renewal(lease: &Lease, owner: &str) -> String {
    let Lease {
        lock, id, fence, ..
    } = lease;
    let body = format!(
        "{{\"owner_id\":\"{owner}\",\"lease_id\":\"{id}\",\"fencing_token\":{fence},\"extend_by_ms\":60000}}"
    );
    format!("POST /v1/locks/{lock}/renew {body}")
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
    // A refusal does not wait for a record that cannot be written.
    let stuck = "POST /v1/locks/stuck/acquire {\"owner_id\":\"me\",\"ttl_ms\":60000}";
    store.0.borrow_mut().progress.is_full = false;
    let early = world.http();
    world.say(early, &stuck.replace("me", "early"));
    world.settle(); // granted, and not on the disk
    store.0.borrow_mut().progress.is_full = true;
    world.settle();
    assert_eq!(world.ask(who, stuck).reason(), "BUSY_RETRY");
    // Everything goes on once there is room again.
    store.0.borrow_mut().progress.is_full = false;
    world.settle();
    world.say(who, busy);
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
}

/// A repeated request takes no room: it gets the grant that it has, or keeps its place in the queue.
#[test]
fn full_disk_answers_a_repeated_request_id_with_its_grant() {
    let (mut world, store) = world();
    let (who, waiter) = (world.http(), world.http());
    let routes = [
        "locks/job/acquire [X-Request-ID: one] {\"owner_id\":\"me\",\"ttl_ms\":60000}",
        "semaphores/pool/acquire [X-Request-ID: two] {\"owner_id\":\"me\",\"ttl_ms\":60000,\"limit\":2}",
        "elections/e/elect [X-Request-ID: three] {\"owner_id\":\"me\",\"ttl_ms\":60000}",
    ];
    let acquires = routes.map(|it| format!("POST /v1/{it}"));
    let mut granted = Vec::new();
    for acquire in &acquires {
        world.say(who, acquire);
        keep_all(&mut world, &store);
        granted.push(world.answer(who).shown());
    }
    let wait = "POST /v1/locks/job/acquire [X-Request-ID: four] \
         {\"owner_id\":\"you\",\"ttl_ms\":60000,\"wait_ms\":60000}";
    world.say(waiter, wait);
    for is_behind in [false, true] {
        store.0.borrow_mut().progress.is_full = true;
        store.0.borrow_mut().is_behind = is_behind;
        world.settle();
        let before = store.0.borrow().records;
        for (acquire, granted) in acquires.iter().zip(&granted) {
            assert_eq!(&world.ask(who, acquire).shown(), granted);
        }
        let other = world.http();
        world.say(other, wait);
        assert_eq!(world.answers(other), [], "it waits in its place");
        assert_eq!(store.0.borrow().records, before);
        let another_id = acquires[0].replace("one", "five");
        let refused = world.ask(who, &another_id);
        assert_eq!(
            (refused.status, refused.reason().as_str()),
            (409, "BUSY_RETRY")
        );
    }
}

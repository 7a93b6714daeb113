//! Byte ranges over HTTP with a disk: what waits for it, and what a restart brings back.

use latchd::engine::types::{Record, Share};
use latchd::engine::{GracePolicy, Rules};
use latchd::server::Settings;

use crate::http_server::durable::{self, ByHand, keep_all};
use crate::http_server::world::{Answer, World};

const REGISTER: &str = "PUT /v1/clients/gw%2F1 {\"secret\":\"s1\",\"ttl_ms\":60000}";
const REGISTER_OTHER: &str = "PUT /v1/clients/gw%2F2 {\"secret\":\"s2\",\"ttl_ms\":60000}";

/// A request about bytes of `f`.
fn about(what: &str, client: u32, mode: &str, start: u64, len: u64) -> String {
    let body = format!(
        "\"client\":\"gw/{client}\",\"secret\":\"s{client}\",\"start\":{start},\"len\":{len}"
    );
    match what {
        "unlock" => format!("POST /v1/ranges/f/{what} {{{body}}}"),
        _ => format!("POST /v1/ranges/f/{what} {{{body},\"mode\":\"{mode}\"}}"),
    }
}

#[track_caller]
fn ask_and_keep(world: &mut World<ByHand>, store: &ByHand, who: usize, request: &str) -> Answer {
    world.say(who, request);
    keep_all(world, store);
    world.answer(who)
}

/// What two clients have left behind.
fn records() -> Vec<Record> {
    records_of(&[
        REGISTER.to_owned(),
        REGISTER_OTHER.to_owned(),
        about("lock", 1, "ex", 0, 100),
        about("lock", 2, "sh", 200, 0),
    ])
}

fn records_of(requests: &[String]) -> Vec<Record> {
    let (mut world, store) = durable::world();
    let who = world.http();
    for request in requests {
        let answer = ask_and_keep(&mut world, &store, who, request);
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
    }
    store.0.take().all
}

/// The next life.
fn restarted(records: &[Record], grace_policy: GracePolicy) -> World {
    restarted_with(records, grace_policy, Settings::default())
}

fn restarted_with(records: &[Record], grace_policy: GracePolicy, settings: Settings) -> World {
    let rules = Rules {
        durable: true,
        grace_policy,
        ..Rules::default()
    };
    durable::restarted_with(records, rules, settings)
}

#[test]
fn a_lock_and_a_client_wait_for_a_disk_that_is_behind() {
    let (mut world, store) = durable::world();
    let (who, other) = (world.http(), world.http());
    store.0.borrow_mut().is_behind = true;
    world.say(who, REGISTER);
    assert_eq!(world.answers(who), []);
    store.0.borrow_mut().is_behind = false;
    world.settle();
    assert_eq!(world.answers(who), [], "it is decided, and not on disk");
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
    store.0.borrow_mut().is_behind = true;
    world.say(who, &about("lock", 1, "ex", 0, 1));
    // What takes no room goes on.
    let free = world.ask(other, &about("test", 1, "ex", 0, 1));
    assert_eq!(free.json()["free"], true, "nothing was decided");
    let unlocked = world.ask(other, &about("unlock", 1, "ex", 5, 1));
    assert_eq!(unlocked.status, 200);
    assert_eq!(world.answers(who), []);
    store.0.borrow_mut().is_behind = false;
    world.settle();
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
}

#[test]
fn a_full_disk_is_told() {
    let (mut world, store) = durable::world();
    let who = world.http();
    assert_eq!(ask_and_keep(&mut world, &store, who, REGISTER).status, 200);
    store.0.borrow_mut().progress.is_full = true;
    world.settle();
    let lock = about("lock", 1, "ex", 0, 1);
    for request in [REGISTER_OTHER, &lock] {
        let refused = world.ask(who, request);
        assert_eq!(
            (refused.status, refused.reason().as_str()),
            (503, "STORAGE")
        );
    }
    // Bytes that are held already take no room, if nothing of them changes.
    store.0.borrow_mut().progress.is_full = false;
    world.settle();
    assert_eq!(ask_and_keep(&mut world, &store, who, &lock).status, 200);
    store.0.borrow_mut().progress.is_full = true;
    world.settle();
    let before = store.0.borrow().all.len();
    assert_eq!(world.ask(who, &lock).status, 200);
    assert_eq!(store.0.borrow().all.len(), before);
    for other in [("ex", 0, 2), ("sh", 0, 1)] {
        let (mode, start, len) = other;
        let refused = world.ask(who, &about("lock", 1, mode, start, len));
        assert_eq!(refused.reason(), "STORAGE", "{other:?}");
    }
}

#[test]
fn nobody_is_told_of_a_lock_that_is_not_on_disk() {
    let (mut world, store) = durable::world();
    let (who, other) = (world.http(), world.http());
    for request in [REGISTER, REGISTER_OTHER] {
        assert_eq!(ask_and_keep(&mut world, &store, who, request).status, 200);
    }
    world.say(who, &about("lock", 1, "ex", 0, 1));
    for look in [
        about("lock", 2, "ex", 0, 1),
        about("test", 2, "ex", 0, 1),
        "GET /v1/ranges/f".to_owned(),
        "GET /v1/ranges".to_owned(),
        "GET /v1/clients".to_owned(),
        "GET /v1/waits".to_owned(),
    ] {
        let looker = world.http();
        world.say(looker, &look);
        assert_eq!(world.answers(looker), [], "{look}");
    }
    assert_eq!(world.answers(who), []);
    keep_all(&mut world, &store);
    assert_eq!(world.answer(who).status, 200);
    assert_eq!(world.ask(other, "GET /v1/grace").status, 200);
}

#[test]
fn what_was_held_before_a_restart_is_kept_and_had_back() {
    let mut world = restarted(&records(), GracePolicy::Held);
    let (one, two) = (world.http(), world.http());
    let grace = world.ask(two, "GET /v1/grace").shown();
    assert_eq!(
        grace,
        "200 {\"active\":true,\"remaining_ms\":90000,\"expected\":2,\"done\":0}"
    );
    world.pass(500);
    // It is in everybody's way, and they are told for how long.
    let refused = world.ask(two, &about("lock", 2, "sh", 50, 10));
    assert_eq!(refused.header("Retry-After"), Some("90"));
    assert_eq!(
        refused.shown(),
        "503 {\"error\":\"these bytes are kept for those who held them before the restart; ask again \
         later\",\"reason\":\"GRACE\",\"remaining_ms\":89500}"
    );
    let tested = world.ask(two, &about("test", 2, "sh", 50, 10)).json();
    assert_eq!(tested["in_grace"], true);
    assert_eq!(tested["conflict"]["pending"], true);
    // Other bytes are free.
    assert_eq!(world.ask(two, &about("lock", 2, "ex", 150, 10)).status, 200);
    // Only who held it, and only so.
    let stolen = world.ask(two, &about("reclaim", 2, "ex", 0, 100));
    assert_eq!((stolen.status, stolen.reason().as_str()), (409, "RECLAIM"));
    let stronger = world.ask(two, &about("reclaim", 2, "ex", 200, 0));
    assert_eq!(
        (stronger.status, stronger.reason().as_str()),
        (409, "RECLAIM")
    );
    let back = world.ask(one, &about("reclaim", 1, "ex", 0, 50));
    assert_eq!(back.shown(), "200 {\"reclaimed\":true,\"resource\":\"f\"}");
    let figures = world.ask(one, "GET /metrics").body;
    for line in [
        "locks_grace_period_active 1\n",
        "locks_grace_period_remaining_seconds 89.5\n",
        "locks_reclaim_total{status=\"granted\"} 1\n",
        "locks_reclaim_total{status=\"denied\"} 2\n",
        "locks_active{type=\"shared\"} 1\n",
        "locks_active{type=\"exclusive\"} 3\n",
    ] {
        assert!(figures.contains(line), "{line}{figures}");
    }
    let totals = &world.ask(one, "GET /v1/stats").json()["totals"];
    assert_eq!(totals["grace_left_ms"], 89_500);
    assert_eq!(totals["grace_clients_expected"], 2);
    // When all are done it is over before its time, and what nobody wanted back is free.
    let done = "POST /v1/clients/gw%2F1/reclaim-done {\"secret\":\"s1\"}";
    assert_eq!(world.ask(one, done).status, 200);
    let grace = world.ask(two, "GET /v1/grace").json();
    assert_eq!(
        (&grace["done"], &grace["active"]),
        (&1.into(), &true.into())
    );
    assert_eq!(
        world.ask(two, &about("reclaim", 2, "sh", 200, 0)).status,
        200
    );
    let grace = world.ask(two, "GET /v1/grace").json();
    assert_eq!(grace["active"], false);
    assert_eq!(world.ask(two, &about("lock", 2, "sh", 50, 10)).status, 200);
    let held = world.ask(two, &about("lock", 2, "sh", 0, 1));
    assert_eq!(held.reason(), "HELD");
}

#[test]
fn grace_ends_with_its_time_or_by_an_operator() {
    let records = records();
    for by_operator in [false, true] {
        let mut world = restarted(&records, GracePolicy::Strict);
        let who = world.http();
        // Nothing new is granted, whatever it is.
        let refused = world.ask(who, &about("lock", 2, "ex", 150, 10));
        assert_eq!((refused.status, refused.reason().as_str()), (503, "GRACE"));
        match by_operator {
            true => {
                let ended = world.ask(who, "DELETE /v1/grace").json();
                assert_eq!(ended["active"], false);
            }
            false => world.pass(90_000),
        }
        let late = world.http();
        let reclaim = world.ask(late, REGISTER);
        assert_eq!(reclaim.status, 200);
        let over = world.ask(late, &about("reclaim", 1, "ex", 0, 100));
        assert_eq!((over.status, over.reason().as_str()), (409, "NO_GRACE"));
        let ranges = world.ask(late, "GET /v1/ranges/f").json();
        assert_eq!(ranges["lock_count"], 0);
        let figures = world.ask(late, "GET /metrics").body;
        let ended = "locks_release_total{reason=\"grace_expired\"} 2\n";
        assert!(figures.contains(ended), "{figures}");
        assert!(figures.contains("locks_grace_period_active 0\n"));
    }
}

/// One owner has three pieces of a resource, and loses them together. They count for their share.
#[test]
fn every_range_lock_that_ends_is_counted() {
    let pieces = [
        about("lock", 1, "ex", 0, 100),
        about("lock", 1, "sh", 25, 25),
    ];
    let [whole, middle] = pieces.clone();
    let records = records_of(&[REGISTER.to_owned(), whole, middle]);
    let files = Share {
        name: "files".into(),
        prefix: b"f"[..].into(),
    };
    for (shares, label) in [(vec![], ""), (vec![files], "share=\"files\",")] {
        let settings = Settings {
            shares,
            ..Settings::default()
        };
        let mut world = restarted_with(&records, GracePolicy::Held, settings);
        world.settle(); // what is restored gets its share
        let who = world.http();
        let ended = |world: &mut World, reason: &str| {
            let figures = world.ask(who, "GET /metrics").body;
            let series = format!("locks_release_total{{{label}reason=\"{reason}\"}} ");
            let line = figures.lines().find(|it| it.starts_with(&series)).unwrap();
            line.strip_prefix(&series).unwrap().to_owned()
        };
        assert_eq!(world.ask(who, "DELETE /v1/grace").status, 200);
        assert_eq!(ended(&mut world, "grace_expired"), "3");
        let unlock = about("unlock", 1, "", 50, 0);
        for request in [REGISTER.to_owned()].iter().chain(&pieces).chain([&unlock]) {
            assert_eq!(world.ask(who, request).status, 200, "{request}");
        }
        assert_eq!(ended(&mut world, "explicit"), "1");
        let detach = "DELETE /v1/clients/gw%2F1 {\"secret\":\"s1\"}";
        assert_eq!(world.ask(who, detach).status, 200);
        assert_eq!(ended(&mut world, "disconnect"), "2");
    }
}

/// It was asked for in time, and the disk takes longer than the client is kept.
#[test]
fn a_request_that_waits_for_the_disk_keeps_its_client() {
    let register = "PUT /v1/clients/gw%2F1 {\"secret\":\"s1\",\"ttl_ms\":1000}";
    for request in [register.to_owned(), about("lock", 1, "ex", 0, 10)] {
        let (mut world, store) = durable::world();
        let (who, guesser) = (world.http(), world.http());
        let answer = ask_and_keep(&mut world, &store, who, register);
        assert_eq!(answer.status, 200);
        store.0.borrow_mut().is_behind = true;
        world.say(who, &request);
        world.pass(5_000);
        let is_gone = |store: &ByHand| {
            let gone = |it: &Record| matches!(it, Record::ClientGone { .. });
            store.0.borrow().all.iter().any(gone)
        };
        assert!(!is_gone(&store), "{request}");
        store.0.borrow_mut().is_behind = false;
        world.settle();
        keep_all(&mut world, &store);
        let answer = world.answer(who);
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
        // When it was answered its time runs, and whoever does not know the secret keeps nobody.
        store.0.borrow_mut().is_behind = true;
        world.say(guesser, &request.replace("s1", "guess"));
        world.pass(2_000);
        assert!(is_gone(&store), "{request}");
    }
}

//! Tests of `pages.rs`: pages show everything once, and none is long.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::sample::{Sample, acquire, conn};
use super::*;
use crate::base::{Millis, Nanos};
use crate::engine::Rules;
use crate::engine::types::{Attach, Input, Mode, RangeAsk, RangeRequest, Secret, Sharing, Span};

const LOCK: Mode = Mode::Slot { limit: 1 };
const ALL: Wanted<'static> = Wanted {
    contains: b"",
    held: true,
    waiting: true,
};

fn address_of(id: ConnId) -> Option<String> {
    Some(format!("10.0.0.{}:1", id.serial))
}

/// A page, and how many looks it took.
fn page(it: &Sample, limit: usize, after: Option<&str>, wanted: Wanted<'_>) -> (Value, usize) {
    let (mut out, after) = (Vec::new(), after.map(str::as_bytes));
    let view = it.engine.view(it.now);
    let looks = locks(&mut out, view, Page { limit, after }, wanted, &address_of).unwrap();
    (serde_json::from_slice(&out).unwrap(), looks)
}

/// The names of all pages, in order, and how many pages there were.
fn walk(it: &Sample, limit: usize, wanted: Wanted<'_>) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut after) = (Vec::new(), 0, None::<String>);
    loop {
        let (shown, looks) = page(it, limit, after.as_deref(), wanted);
        assert!(looks <= LOOKS_MAX + 16, "{looks} looks");
        let locks = shown["locks"].as_array().unwrap();
        assert!(locks.len() <= limit);
        names.extend(
            locks
                .iter()
                .map(|it| it["name"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        match shown["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return (names, pages),
        }
    }
}

#[test]
fn a_page_shows_holders_and_waiters_as_they_are() {
    let mut it = Sample::new(Rules::default());
    it.apply(Input::Hello(conn(1), Some("worker-1")));
    it.ask(1, acquire(b"orders", LOCK, Millis::ZERO));
    it.ask_by(2, "cron", acquire(b"orders", LOCK, Millis::from_secs(60)));
    it.ask_by(3, "cron", acquire(b"nightly", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"book", Mode::Read, Millis::ZERO));
    it.now = Nanos(it.now.0 + 1_500_000_000);
    let (shown, _) = page(&it, 100, None, ALL);
    let want = json!({"locks": [
        {
            "name": "orders", "kind": "lock", "limit": 1, "holder_count": 1, "waiter_count": 1,
            "holders": [{
                "fencing_token": 1, "owner": "worker-1", "connection": 1, "address": "10.0.0.1:1",
                "mode": "slot", "since_ms": 1_500, "lease_left_ms": 598_500, "restored": false,
            }],
            "waiters": [{
                "position": 1, "owner": "cron", "connection": 2, "mode": "slot", "since_ms": 1_500,
            }],
        },
        {
            "name": "nightly", "kind": "lock", "limit": 1, "holder_count": 1, "waiter_count": 0,
            "holders": [{
                "fencing_token": 2, "owner": "cron", "connection": null, "address": null,
                "mode": "slot", "since_ms": 1_500, "lease_left_ms": 598_500, "restored": false,
            }],
            "waiters": [],
        },
        {
            "name": "book", "kind": "rwlock", "limit": 0, "holder_count": 1, "waiter_count": 0,
            "holders": [{
                "fencing_token": 3, "owner": "worker-1", "connection": 1, "address": "10.0.0.1:1",
                "mode": "read", "since_ms": 1_500, "lease_left_ms": 598_500, "restored": false,
            }],
            "waiters": [],
        },
    ], "next": null});
    assert_eq!(shown, want);
}

#[test]
fn a_client_is_the_same_one_whatever_its_connections_are_called() {
    let mut it = Sample::new(Rules::default());
    for (number, id, name) in [(1, "gw/1", None), (2, "gw/2", Some("nightly"))] {
        if let Some(name) = name {
            it.apply(Input::Hello(conn(number), Some(name)));
        }
        let attach = Attach {
            adapter: None,
            id,
            ttl: Millis::from_secs(60),
            secret: Secret(b"s"),
        };
        it.apply(Input::Attach(conn(number), attach));
    }
    it.ask(1, acquire(b"orders", LOCK, Millis::ZERO));
    it.ask(2, acquire(b"orders", LOCK, Millis::from_secs(60)));
    it.ask(3, acquire(b"orders", LOCK, Millis::from_secs(60)));
    let (shown, _) = page(&it, 100, None, ALL);
    let lock = &shown["locks"][0];
    assert_eq!(lock["holders"][0]["client"], "gw/1");
    let waiter = &lock["waiters"][0];
    assert_eq!([&waiter["owner"], &waiter["client"]], ["nightly", "gw/2"]);
    let alone = lock["waiters"][1].as_object().unwrap();
    assert!(!alone.contains_key("client"), "{alone:?}");
}

#[test]
fn pages_show_every_lock_exactly_once() {
    let mut it = Sample::new(Rules::default());
    it.hold(1, 10_000);
    for limit in [1_000, 333] {
        let (names, pages) = walk(&it, limit, ALL);
        assert_eq!(names.len(), 10_000);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 10_000);
        assert!(pages >= 10_000 / limit);
    }
}

#[test]
fn a_lock_that_stays_is_shown_whatever_comes_and_goes() {
    let mut it = Sample::new(Rules::default());
    it.hold(1, 300);
    let mut seen = BTreeSet::new();
    let mut after = None::<String>;
    for round in 0.. {
        let (shown, _) = page(&it, 20, after.as_deref(), ALL);
        for lock in shown["locks"].as_array().unwrap() {
            let name = lock["name"].as_str().unwrap().to_owned();
            assert!(seen.insert(name.clone()), "{name} is shown twice");
        }
        let Some(next) = shown["next"].as_str() else {
            break;
        };
        after = Some(next.to_owned());
        // Another client takes some and leaves, and what it left is forgotten.
        let key = format!("passing-{round}");
        it.ask(2, acquire(key.as_bytes(), LOCK, Millis::ZERO));
        it.apply(Input::Disconnected(conn(2)));
        it.now = Nanos(it.now.0 + 1_000_000);
        it.apply(Input::Time(u64::MAX));
    }
    let stayed = seen.iter().filter(|name| name.starts_with("key-"));
    assert_eq!(stayed.count(), 300);
}

#[test]
fn what_is_not_asked_for_is_not_shown_but_looked_at() {
    let mut it = Sample::new(Rules::default());
    it.hold(1, 9_000);
    it.ask(2, acquire(b"key-8999", LOCK, Millis::from_secs(9)));
    let waiting = Wanted { held: false, ..ALL };
    assert_eq!(walk(&it, 100, waiting), (vec!["key-8999".to_owned()], 3));
    let contains = Wanted {
        contains: b"-777",
        ..ALL
    };
    let (names, pages) = walk(&it, 100, contains);
    assert_eq!(names.len(), 11, "key-777 and key-7770 to key-7779");
    assert_eq!(pages, 3, "at most so many are looked at for one page");
    // Those that left are idle, and not shown.
    it.apply(Input::Disconnected(conn(1)));
    it.apply(Input::Time(u64::MAX));
    assert_eq!(walk(&it, 100, ALL).0, ["key-8999"]);
}

#[test]
fn long_names_make_a_page_end_sooner() {
    let mut it = Sample::new(Rules::default());
    for lock in 0..1_000 {
        let key = format!("{}-{lock}", "\u{1}".repeat(250));
        it.ask(1, acquire(key.as_bytes(), LOCK, Millis::ZERO));
    }
    let (mut out, view) = (Vec::new(), it.engine.view(it.now));
    let all = Page {
        limit: 1_000,
        after: None,
    };
    locks(&mut out, view, all, ALL, &address_of).unwrap();
    assert!((PAGE_BYTES..2 * PAGE_BYTES).contains(&out.len()));
    assert_eq!(walk(&it, 1_000, ALL).0.len(), 1_000);
    // To search in long names costs more looks, so that fewer of them fit.
    let none = Wanted {
        contains: b"nothing",
        ..ALL
    };
    assert!(page(&it, 1_000, None, none).1 > 3_900);
}

#[test]
fn at_most_eight_of_each_are_listed() {
    let mut it = Sample::new(Rules::default());
    let slots = Mode::Slot { limit: 20 };
    for number in 1..=50 {
        it.ask(number, acquire(b"gpu", slots, Millis::from_secs(9)));
    }
    let (shown, _) = page(&it, 100, None, ALL);
    let lock = &shown["locks"][0];
    assert_eq!(
        (&lock["kind"], &lock["limit"]),
        (&json!("semaphore"), &json!(20))
    );
    assert_eq!(
        (&lock["holder_count"], &lock["waiter_count"]),
        (&json!(20), &json!(30))
    );
    let lengths = ["holders", "waiters"].map(|name| lock[name].as_array().unwrap().len());
    assert_eq!(lengths, [LISTED_MAX, LISTED_MAX]);

    let mut out = Vec::new();
    let looks = who(&mut out, it.engine.view(it.now), b"gpu", &address_of);
    let shown: Value = serde_json::from_slice(&out).unwrap();
    let lengths = ["holders", "waiters"].map(|name| shown[name].as_array().unwrap().len());
    assert_eq!((lengths, looks), ([20, 30], 52));
    assert_eq!(shown["waiters"][29]["position"], 30);

    let mut out = Vec::new();
    holders(&mut out, it.engine.view(it.now), b"gpu", &address_of);
    let shown: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(shown["holders"].as_array().unwrap().len(), 20);
    assert!(shown.get("waiters").is_none());
}

#[test]
fn who_is_never_longer_than_its_readers_accept() {
    let mut it = Sample::new(Rules::default());
    let owner = |number: u32| format!("{}{number}", "\u{1}".repeat(1_000));
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    for number in 2..=2_000 {
        let wait = Millis::from_secs(9);
        it.ask_by(number, &owner(number), acquire(b"job", LOCK, wait));
    }
    let mut out = Vec::new();
    who(&mut out, it.engine.view(it.now), b"job", &address_of);
    assert!((900_000..1 << 20).contains(&out.len()), "{}", out.len());
    let shown: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(shown["waiter_count"], 1_999);
    assert_eq!(shown["waiters"][0]["owner"], json!(owner(2)));
}

#[test]
fn a_name_that_nobody_has_used_is_of_no_kind() {
    let it = Sample::new(Rules::default());
    let mut out = Vec::new();
    who(&mut out, it.engine.view(it.now), b"never", &address_of);
    let want = json!({
        "name": "never", "kind": null, "limit": 0, "holder_count": 0, "waiter_count": 0,
        "holders": [], "waiters": [],
    });
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
    out.clear();
    holders(&mut out, it.engine.view(it.now), b"never", &address_of);
    let want = json!({
        "name": "never", "limit": 0, "holder_count": 0, "waiter_count": 0, "holders": [],
    });
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
}

#[test]
fn only_a_number_is_a_cursor() {
    let mut it = Sample::new(Rules::default());
    it.hold(1, 3);
    let view = it.engine.view(it.now);
    for after in [
        &b""[..],
        b"0",
        b"01",
        b"-1",
        b"+1",
        b" 1",
        b"x",
        b"4294967296",
        b"99999999999999999999999",
        b"\xff",
    ] {
        let page = Page {
            limit: 10,
            after: Some(after),
        };
        let mut out = Vec::new();
        assert_eq!(
            locks(&mut out, view, page, ALL, &address_of),
            Err(UNKNOWN_CURSOR),
            "{after:?}"
        );
        let nobody = |_| None;
        assert_eq!(
            connections(&mut out, view, page, 10, nobody),
            Err(UNKNOWN_CURSOR)
        );
        assert!(out.is_empty());
    }
    // Keys that were there when the cursor was told may be gone.
    let (shown, looks) = page(&it, 10, Some("4294967295"), ALL);
    assert_eq!((shown, looks), (json!({"locks": [], "next": null}), 0));
}

#[test]
fn connections_show_what_they_hold_and_wait_for() {
    let mut it = Sample::new(Rules::default());
    it.apply(Input::Hello(conn(1), Some("worker-1")));
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"other", LOCK, Millis::ZERO));
    it.ask_by(3, "cron", acquire(b"job", LOCK, Millis::from_secs(60)));
    let client_at = |slot: u32| {
        let (id, door) = match slot {
            0 => (conn(1), Door::Line),
            2 => (conn(3), Door::Http),
            9_000 => (conn(9_001), Door::Line),
            _ => return None,
        };
        Some(Client {
            id,
            address: format!("10.0.0.{slot}:1"),
            door,
            age_ms: 5_000,
        })
    };
    let page = |limit: usize, after: Option<&str>| {
        let (mut out, after) = (Vec::new(), after.map(str::as_bytes));
        let view = it.engine.view(it.now);
        connections(&mut out, view, Page { limit, after }, 10_000, client_at).unwrap();
        serde_json::from_slice::<Value>(&out).unwrap()
    };
    let worker = json!({
        "connection": 1, "address": "10.0.0.0:1", "name": "worker-1", "door": "line",
        "age_ms": 5_000, "held": 2, "waiting": 0,
    });
    let cron = json!({
        "connection": 3, "address": "10.0.0.2:1", "name": null, "door": "http",
        "age_ms": 5_000, "held": 0, "waiting": 1,
    });
    assert_eq!(page(1, None), json!({"connections": [worker], "next": "1"}));
    assert_eq!(
        page(9, Some("1")),
        json!({"connections": [cron], "next": "4097"})
    );
    assert_eq!(
        page(9, Some("4097")),
        json!({"connections": [], "next": "8193"})
    );
    let last = page(9, Some("8193"));
    assert_eq!(
        (last["connections"].as_array().unwrap().len(), &last["next"]),
        (1, &Value::Null)
    );
}

/// What `write` writes, page by page, and the most looks of one.
fn walk_any(
    list: &str,
    limit: usize,
    mut write: impl FnMut(&mut Vec<u8>, Page<'_>) -> Result<usize, Problem<'static>>,
) -> (Vec<Value>, usize) {
    let (mut found, mut most, mut after) = (Vec::new(), 0, None::<String>);
    loop {
        let mut out = Vec::new();
        let page = Page {
            limit,
            after: after.as_deref().map(str::as_bytes),
        };
        most = most.max(write(&mut out, page).unwrap());
        let shown: Value = serde_json::from_slice(&out).unwrap();
        found.extend(shown[list].as_array().unwrap().iter().cloned());
        match shown["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return (found, most),
        }
    }
}

fn lock_bytes(it: &mut Sample, resource: &[u8]) {
    let request = RangeRequest {
        resource,
        owner: b"",
        ask: RangeAsk::Lock {
            mode: Sharing::Shared,
            span: Span { start: 0, len: 0 },
            wait: Millis::ZERO,
        },
    };
    it.apply(Input::Range(conn(1), None, request));
}

#[test]
fn pages_of_resources_show_each_once_and_look_at_so_many() {
    let mut it = Sample::new(Rules {
        ranges_max: 0,
        ranges_per_client_max: 0,
        ..Rules::default()
    });
    for number in 0..10_000 {
        lock_bytes(&mut it, format!("file-{number}").as_bytes());
    }
    let view = it.engine.view(it.now);
    let (all, looks) = walk_any("resources", 1_000, |out, page| {
        resources(out, view, page, b"")
    });
    let names: BTreeSet<&str> = all
        .iter()
        .filter_map(|it| it["resource"].as_str())
        .collect();
    assert_eq!((all.len(), names.len()), (10_000, 10_000));
    assert!(looks <= LOOKS_MAX + 16, "{looks}");
    let (found, looks) = walk_any("resources", 100, |out, page| {
        resources(out, view, page, b"-777")
    });
    assert_eq!(found.len(), 11);
    assert!(looks <= LOOKS_MAX + 16, "{looks}");
    let want = json!({"resource": "file-777", "lock_count": 1, "waiter_count": 0});
    assert!(found.contains(&want), "{found:?}");
}

#[test]
fn pages_of_clients_show_each_once_and_no_secret() {
    let mut it = Sample::new(Rules::default());
    for number in 0..3_000 {
        let id = format!("gw/{number}");
        let attach = Attach {
            adapter: None,
            id: &id,
            ttl: Millis(5_000),
            secret: Secret(b"hush"),
        };
        it.apply(Input::Register(conn(1), attach));
    }
    let attach = Attach {
        adapter: None,
        id: "gw/7",
        ttl: Millis(6_000),
        secret: Secret(b"hush"),
    };
    it.apply(Input::Attach(conn(1), attach));
    lock_bytes(&mut it, b"f");
    let view = it.engine.view(it.now);
    let (all, looks) = walk_any("clients", 700, |out, page| clients(out, view, page));
    let ids: BTreeSet<&str> = all.iter().filter_map(|it| it["client"].as_str()).collect();
    assert_eq!((all.len(), ids.len()), (3_000, 3_000));
    assert!(looks <= LOOKS_MAX, "{looks}");
    let want = json!({
        "client": "gw/7", "adapter": "gw", "ttl_ms": 6_000, "connections": 1, "away": false,
        "generation": 1, "held": 0, "range_locks": 1, "since_ms": 0, "seen_ms": 0,
    });
    assert!(all.contains(&want));
    assert!(all.iter().all(|it| !it.to_string().contains("hush")));
}

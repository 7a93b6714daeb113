//! What LockServer's own tests check, and what they should: in virtual time, over one connection per
//! client.

use std::collections::BTreeSet;

use crate::http_server::world::{Answer, Lease, World};

const TTL_MS: u64 = 120;
const HOLD_MS: u64 = 5;
const STALL_MS: u64 = TTL_MS + 120;

/// What is to be protected: takes a write unless it has seen a later token.
#[derive(Default)]
struct Resource {
    last_token: u64,
    rejected: u64,
}

impl Resource {
    fn try_write(&mut self, token: u64) -> bool {
        let accepted = token >= self.last_token;
        self.rejected += u64::from(!accepted);
        self.last_token = self.last_token.max(token);
        accepted
    }
}

/// What a client does next, and when.
enum Doing {
    Acquires { at_ms: u64 },
    Holds { lease: Lease, until_ms: u64 },
}

/// What came of a run.
struct Run {
    resource: Resource,
    tokens: Vec<u64>,
    /// Writes that were tried after the lease had ended.
    stale: u64,
    held: u64,
    released: u64,
}

/// So many clients take one lock in turn for 3 seconds; every seventh stalls while it holds it.
fn contend(count: usize) -> Run {
    let mut world = World::new();
    let clients: Vec<usize> = (0..count).map(|_| world.http()).collect();
    let mut doing: Vec<Doing> = { 0..count }.map(|_| Doing::Acquires { at_ms: 0 }).collect();
    let mut run = Run {
        resource: Resource::default(),
        tokens: Vec::new(),
        stale: 0,
        held: 0,
        released: 0,
    };
    // When the latest lease ends, for the server.
    let mut leased_until_ms = 0;
    for now_ms in 0..3_000 {
        for (nth, &who) in clients.iter().enumerate() {
            match &doing[nth] {
                Doing::Acquires { at_ms } if *at_ms <= now_ms => {
                    let answer = world.try_acquire(who, "hot", &format!("client-{nth}"), TTL_MS);
                    doing[nth] = if answer.status == 200 {
                        assert!(leased_until_ms <= now_ms, "two hold it at {now_ms} ms");
                        leased_until_ms = now_ms + TTL_MS;
                        let lease = Lease::of(&answer);
                        run.tokens.push(lease.fence);
                        let stalls = nth % 7 == 0;
                        let until_ms = now_ms + if stalls { STALL_MS } else { HOLD_MS };
                        Doing::Holds { lease, until_ms }
                    } else {
                        assert_eq!((answer.status, answer.reason().as_str()), (409, "HELD"));
                        run.held += 1;
                        let hint = answer.json()["recommended_retry_ms"].as_u64().unwrap();
                        assert!((25..=1_000).contains(&hint));
                        Doing::Acquires {
                            at_ms: now_ms + hint + nth as u64 % 5,
                        }
                    };
                }
                Doing::Holds { lease, until_ms } if *until_ms <= now_ms => {
                    let is_over = lease.fence < *run.tokens.last().unwrap();
                    let accepted = run.resource.try_write(lease.fence);
                    run.stale += u64::from(is_over);
                    let released = world.release(who, lease).json()["released"] == true;
                    assert!(!(is_over && released), "a stale client has released");
                    assert!(accepted || !released, "who is too late holds nothing");
                    if released {
                        run.released += 1;
                        leased_until_ms = now_ms;
                    }
                    doing[nth] = Doing::Acquires { at_ms: now_ms + 5 };
                }
                _ => {}
            }
        }
        world.sleep(1);
        world.settle();
    }
    world.finish();
    run
}

fn check(run: &mut Run) {
    assert!(
        run.tokens.is_sorted_by(|a, b| a < b),
        "tokens grow with every grant"
    );
    assert!(
        run.stale > 0 && run.resource.rejected > 0,
        "nobody was late"
    );
    let max = *run.tokens.last().unwrap();
    assert!(run.resource.try_write(max), "the latest may write");
    assert_eq!(run.resource.last_token, max);
    assert!(run.held > 0 && run.released > 0);
}

#[test]
fn fencing_prevents_stale_writers() {
    check(&mut contend(40));
}

/// Every answer is a grant or says who holds it: nobody is told that the server is busy.
#[test]
fn eighty_clients_are_never_told_busy() {
    check(&mut contend(80));
}

#[test]
fn stale_release_cannot_clobber_new_owner() {
    let mut world = World::new();
    let (a, b) = (world.http(), world.http());
    let old = world.acquire(a, "job", "a", 120);
    world.pass(200);
    let new = world.acquire(b, "job", "b", 60_000);
    assert!(new.fence > old.fence && new.id != old.id);
    assert_eq!(
        world.release(a, &old).shown(),
        "200 {\"released\":false,\"reason\":\"NOT_OWNER\"}"
    );
    let seen = world.ask(a, "GET /v1/locks/job").json();
    assert_eq!(
        (&seen["owner_id"], &seen["fencing_token"]),
        (&"b".into(), &new.fence.into())
    );
    assert_eq!(world.release(b, &new).shown(), "200 {\"released\":true}");
}

#[test]
fn renew_heartbeat_keeps_lease_alive_then_expires() {
    let mut world = World::new();
    let (a, b) = (world.http(), world.http());
    let lease = world.acquire(a, "job", "a", 200);
    let mut renewed = 0;
    for now_ms in 0..800 {
        if now_ms % 60 == 59 {
            assert_eq!(world.renew(a, &lease, 200).status, 200);
            renewed += 1;
        }
        assert_eq!(
            world.try_acquire(b, "job", "b", 200).reason(),
            "HELD",
            "{now_ms}"
        );
        world.pass(1);
    }
    assert!(renewed >= 1);
    // The last renewal was at 779: the lease ends at 979, to the millisecond.
    world.pass(178);
    assert_eq!(world.try_acquire(b, "job", "b", 200).reason(), "HELD");
    world.pass(1);
    let next = world.acquire(b, "job", "b", 200);
    assert!(next.fence > lease.fence);
    let lost = world.renew(a, &lease, 200);
    assert_eq!(lost.reason(), "NOT_OWNER_OR_EXPIRED");
}

/// A client that does as the hint says needs no more calls than the lease makes it.
#[test]
fn acquire_with_retry_succeeds_after_conflicts() {
    let mut world = World::new();
    let (a, b) = (world.http(), world.http());
    let old = world.acquire(a, "job", "a", 40);
    let mut calls = 0;
    let answer: Answer = loop {
        calls += 1;
        let answer = world.try_acquire(b, "job", "b", 200);
        if answer.status == 200 {
            break answer;
        }
        world.pass(answer.json()["recommended_retry_ms"].as_u64().unwrap());
    };
    assert_eq!(calls, 3);
    assert!(Lease::of(&answer).fence > old.fence);
}

#[test]
fn of_many_who_ask_at_once_exactly_one_is_granted() {
    for waits in [false, true] {
        let mut world = World::new();
        let clients: Vec<usize> = (0..200).map(|_| world.http()).collect();
        for (nth, &who) in clients.iter().enumerate() {
            let wait_ms = if waits { 1_000 } else { 0 };
            let body =
                format!("{{\"owner_id\":\"c{nth}\",\"ttl_ms\":60000,\"wait_ms\":{wait_ms}}}");
            let request =
                crate::http_server::world::spelled(&format!("POST /v1/locks/job/acquire {body}"));
            world.pipes.send(who, request.as_bytes());
        }
        world.settle();
        world.pass(1_000);
        let answers: Vec<Answer> = clients.iter().map(|&who| world.answer(who)).collect();
        let granted = answers.iter().filter(|it| it.status == 200).count();
        let held = answers
            .iter()
            .filter(|it| it.status == 409 && it.reason() == "HELD")
            .count();
        assert_eq!((granted, held), (1, 199), "waits: {waits}");
        world.finish();
    }
}

/// Waiters of both protocols, in order, each with a higher fence than the one before.
#[test]
fn a_hundred_waiters_of_both_protocols_are_served_in_order() {
    let mut world = World::new();
    let first = world.http();
    let mut lease = world.acquire(first, "job", "first", 600_000);
    let mut holder = first;
    let waiters: Vec<(usize, bool)> = (0..100)
        .map(|nth| {
            let is_http = nth % 2 == 0;
            let who = if is_http { world.http() } else { world.line() };
            match is_http {
                true => world.say(
                    who,
                    "POST /v1/locks/job/acquire {\"owner_id\":\"w\",\"ttl_ms\":60000,\"wait_ms\":60000}",
                ),
                false => world.pipes.say(who, &["l job 60 60"]),
            }
            (who, is_http)
        })
        .collect();
    let mut token = None::<String>;
    let mut fences = BTreeSet::from([lease.fence]);
    for (who, is_http) in waiters {
        match token.take() {
            Some(token) => assert_eq!(world.pipes.ask(holder, &format!("r job {token}")), "ok\n"),
            None => assert_eq!(world.release(holder, &lease).json()["released"], true),
        }
        let fence = if is_http {
            lease = Lease::of(&world.answer(who));
            lease.fence
        } else {
            let line = world.pipes.read(who);
            let granted = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}"));
            token = Some(granted.to_owned());
            u64::from_str_radix(&granted[..16], 16).unwrap()
        };
        assert!(fences.last().is_some_and(|it| *it < fence));
        fences.insert(fence);
        holder = who;
    }
    assert_eq!(fences.len(), 101);
}

/// `X-Request-ID` makes an acquire safe to repeat, whatever came between.
#[test]
fn a_repeated_request_is_the_same_grant_for_as_long_as_it_holds() {
    let mut world = World::new();
    let ask =
        "POST /v1/locks/job/acquire [X-Request-ID: once] {\"owner_id\":\"me\",\"ttl_ms\":1000}";
    let who = world.http();
    let first = world.ask(who, ask);
    for _ in 0..10 {
        world.pass(50);
        let again = { world.http() };
        assert_eq!(world.ask(again, ask).body, first.body);
    }
    let lease = Lease::of(&first);
    assert_eq!(world.renew(who, &lease, 1_000).status, 200);
    // The same grant, which ends later by now.
    let again = Lease::of(&world.ask(who, ask));
    assert_eq!((again.id, again.fence), (lease.id.clone(), lease.fence));
    world.pass(1_000);
    assert!(Lease::of(&world.ask(who, ask)).fence > lease.fence);
    world.finish();
}

/// However little of a millisecond is over, and however many hold it beside: the end of a lease is told
/// the same.
#[test]
fn a_repeated_request_and_a_renewal_are_told_the_same_end() {
    for (route, more) in [
        ("locks/a/acquire", ""),
        ("elections/b/elect", ""),
        ("semaphores/c/acquire", ",\"limit\":3"),
        ("rwlocks/d/acquire", ",\"mode\":\"read\""),
    ] {
        let mut world = World::new();
        world.pass(100);
        world.pipes.move_clock_when_looked_at(130_000);
        let who = world.http();
        let ask = |owner: &str, id: &str| {
            let body = format!("{{\"owner_id\":\"{owner}\",\"ttl_ms\":60000{more}}}");
            format!("POST /v1/{route} [X-Request-ID: {id}] {body}")
        };
        if !more.is_empty() {
            world.ask(who, &ask("other", "first"));
            world.pass(10);
        }
        let first = world.ask(who, &ask("me", "once"));
        for _ in 0..10 {
            assert_eq!(world.ask(who, &ask("me", "once")).body, first.body);
            let renewed = world.renew(who, &Lease::of(&first), 1);
            let ends = |answer: &Answer| answer.json()["lease_expiry_ms"].clone();
            assert_eq!(ends(&renewed), ends(&first), "{route}");
        }
    }
}

/// A line client may store what is no text.
#[test]
fn a_value_that_is_no_text_is_told_in_base64() {
    let mut world = World::new();
    let (line, http) = (world.line(), world.http());
    world.send(
        line,
        b"kset\nk\n\xff\xfe<\nrpush\nq\n\xff\nrpush\nq\nplain\n",
    );
    assert_eq!(world.pipes.read(line), "ok\nok 1\nok 2\n");
    for (request, shown) in [
        (
            "GET /v1/kv/k",
            "200 {\"name\":\"k\",\"value_base64\":\"//48\"}",
        ),
        (
            "GET /v1/lists/q",
            "200 {\"name\":\"q\",\"length\":2,\"values\":[{\"value_base64\":\"/w==\"},\"plain\"]}",
        ),
        ("POST /v1/lists/q/pop", "200 {\"value_base64\":\"/w==\"}"),
        ("POST /v1/lists/q/pop", "200 {\"value\":\"plain\"}"),
    ] {
        assert_eq!(world.ask(http, request).shown(), shown, "{request}");
    }
}

/// The routes of locks renew whatever has this name, so they say when the lease of the one that asks
/// ends, and not that of another holder.
#[test]
fn a_renewal_tells_the_end_of_its_own_lease() {
    let mut world = World::new();
    let who = world.http();
    let mut read = |owner: &str, ttl_ms: u64| {
        let body = format!("{{\"owner_id\":\"{owner}\",\"ttl_ms\":{ttl_ms},\"mode\":\"read\"}}");
        let answer = world.ask(who, &format!("POST /v1/rwlocks/doc/acquire {body}"));
        Lease::of(&answer)
    };
    let (_, second) = (read("ann", 1_000), read("bob", 1_000));
    let told = world.renew(who, &second, 50_000).json()["lease_expiry_ms"].clone();
    let again = world.renew(who, &second, 1).json()["lease_expiry_ms"].clone();
    assert_eq!(told, again);
    let ends_ms = told.as_u64().unwrap();
    assert!(ends_ms >= 50_000, "it ends at {ends_ms}");
}

/// Nobody waits for those who come while the server stops, so a stream of theirs ends at once, and says so.
#[test]
fn a_stream_that_begins_while_the_server_stops_ends_as_it_should() {
    for path in [
        "/v1/watch?pattern=*",
        "/v1/elections/boss/events",
        "/v1/stats/stream",
    ] {
        let mut world = World::new();
        let holder = world.http();
        let elect =
            "POST /v1/elections/boss/elect {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000}";
        world.ask(holder, elect);
        let line = world.line();
        assert!(world.pipes.ask(line, "l job 0").starts_with("ok "));
        world.pipes.stop();
        world.settle();
        let newcomer = world.http();
        world.say(newcomer, &format!("GET {path}"));
        let told = world.pipes.read(newcomer);
        assert!(told.ends_with("\r\n0\r\n\r\n"), "{path}: {told}");
        assert_eq!(
            told.contains("event: elected"),
            path.contains("boss"),
            "{told}"
        );
        assert_eq!(told.contains("event: stats"), path.contains("stats"));
        assert!(world.is_ended(newcomer), "{path}");
    }
}

//! The bound on memory in a process that could not get much more: it refuses, and does not die.
//!
//! What is refused and what is served at the bound is in `memory_bound.rs`, to the byte; here an
//! allocation that fails would abort the daemon.

use std::iter;

use crate::vocabulary::{Client, Daemon};

const MIB: u64 = 1 << 20;
const BOUND: u64 = 16 * MIB;

/// What the process gets at all, for what is counted, what is not, and what the allocator wastes.
const ADDRESS_SPACE: u64 = 2 * BOUND;

fn daemon() -> Daemon {
    let bound = format!("--max-memory={BOUND}");
    let others = ["locks", "keys", "holds", "list-length", "subscriptions"];
    let others = others.map(|it| format!("--max-{it}=0"));
    let options: Vec<&str> = iter::once(&bound)
        .chain(&others)
        .map(String::as_str)
        .collect();
    let daemon = Daemon::start(&options);
    daemon.limit_address_space(ADDRESS_SPACE);
    daemon
}

/// A name or a value of so many bytes.
fn long(nth: usize, bytes: usize) -> String {
    format!("{nth:0>bytes$}")
}

/// Sends requests in batches until some are refused for want of memory, and goes on for a while.
#[track_caller]
fn flood(client: &mut Client, frame: impl Fn(usize) -> String) {
    const BATCH_BYTES: usize = 64 * 1024;
    let (mut sent, mut refused_batches) = (0, 0);
    while refused_batches < 16 {
        let (mut batch, first) = (String::new(), sent);
        while batch.len() < BATCH_BYTES {
            batch += &frame(sent);
            sent += 1;
        }
        client.raw(&batch);
        let answers: Vec<String> = (first..sent).map(|_| client.line()).collect();
        let is_refused = |it: &String| it == "error_memory";
        refused_batches += usize::from(answers.iter().any(is_refused));
        assert!(sent < 2_000_000, "nothing is ever refused");
    }
}

type Kind = (&'static str, fn(usize) -> String);

const KINDS: [Kind; 8] = [
    ("values", |nth| {
        format!("kset\nv{nth}\n{}\n", long(nth, 65_000))
    }),
    ("short values", |nth| format!("kset\ns{nth}\nv\n")),
    ("lists", |nth| {
        format!("rpush\nq{}\n{}\n", nth % 7, long(nth, 5_000))
    }),
    ("counters", |nth| format!("incr\n{}\n1\n", long(nth, 200))),
    ("locks", |nth| format!("l\nl{nth}\n0 3600\n")),
    ("slots", |_| "sl\nslots\n0 4000000000 3600\n".to_owned()),
    ("places", |nth| format!("e\np{nth}\n3600\n")),
    ("subscriptions", |nth| {
        format!("listen\n{}\n\n", long(nth, 250))
    }),
];

#[test]
fn no_flood_makes_it_die_of_an_allocation_and_all_can_let_go() {
    for (what, frame) in KINDS {
        let daemon = daemon();
        let mut holder = daemon.connect();
        let grant = holder.lock("held", "0 3600");
        assert_eq!(holder.ask("kset kept v"), "ok", "{what}");
        let mut flooder = daemon.connect();
        flood(&mut flooder, frame);
        assert_eq!(holder.ask("kset new v"), "error_memory", "{what}");
        assert_eq!(holder.ask("kdel kept"), "ok", "{what}");
        // Whoever comes now can let go, too.
        let mut newcomer = daemon.connect();
        newcomer.release("held", &grant);
        assert_eq!(newcomer.ask("ping _ _"), "ok", "{what}");
    }
}

/// All of it, one after the other, in one life: what the allocator did not get back is not missed.
#[test]
fn one_flood_after_another_is_survived() {
    let daemon = daemon();
    let mut asker = daemon.connect();
    for (what, frame) in KINDS.iter().cycle().take(2 * KINDS.len()) {
        let mut flooder = daemon.connect();
        flood(&mut flooder, frame);
        flooder.reset();
        assert_eq!(asker.ask("ping _ _"), "ok", "{what}");
    }
}

/// Connections that wait, that have a name, that do not read and that are in the middle of a request.
#[test]
fn a_crowd_of_connections_is_survived() {
    const CROWD: usize = 300;
    let daemon = daemon();
    let mut holder = daemon.connect();
    let grant = holder.lock("held", "0 3600");
    let value = long(0, 65_000);
    assert_eq!(holder.ask(&format!("kset big {value}")), "ok");
    let mut flooder = daemon.connect();
    flood(&mut flooder, KINDS[0].1);
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| daemon.connect()).collect();
    for (nth, client) in crowd.iter_mut().enumerate() {
        match nth % 4 {
            0 => client.put("l held 3600"),
            1 => client.raw(format!("hello\n_\nname={}\n", long(nth, 50))),
            2 => client.raw("kget\nbig\n_\n".repeat(20)),
            _ => client.raw(format!("kset\nk\n{value}")),
        }
        assert_eq!(holder.ask("ping _ _"), "ok");
    }
    assert_eq!(crowd[1].line(), "error_memory");
    holder.release("held", &grant);
    assert_eq!(holder.ask("ping _ _"), "ok");
    drop(crowd);
    drop(flooder);
    assert_eq!(holder.ask("kdel big"), "ok");
}

//! The bound on memory: whatever clients ask to be kept, what is allocated stays near the bound; at
//! the bound what would grow is refused and everything else is served; room that is made is used
//! again.
//!
//! Counts every byte that is allocated and not freed on the thread of the test, the server's and
//! those of the harness. The server runs over pipes: the same turns in every run, the same bytes.

use latch_sim::pipe::Pipes;
use latchd::access::Access;
use latchd::base::Millis;
use latchd::engine::{Limit, Rules};
use latchd::server::{Door, Settings};

use crate::allocator::live_bytes;

const MIB: usize = 1 << 20;

/// What may be allocated besides: a server without clients, one turn's work, the harness.
const BESIDES: usize = 3 * MIB / 2;

/// A server with this bound, whose tables nobody walks over after each turn.
fn pipes(memory_max: usize) -> Pipes {
    let settings = Settings {
        memory_max,
        ..Settings::default()
    };
    let rules = Rules {
        locks_max: 0,
        keys_max: 0,
        holds_max: 0,
        list_length_max: 0,
        ..Rules::default()
    };
    let mut pipes = Pipes::with(rules, settings);
    pipes.skip_checks();
    pipes
}

/// A server with this bound, which has been checked in every turn.
fn small_pipes(memory_max: usize) -> Pipes {
    let settings = Settings {
        memory_max,
        ..Settings::default()
    };
    Pipes::with(Rules::default(), settings)
}

/// Stores values of 20,000 bytes until there is no memory for another.
fn fill_with_values(pipes: &mut Pipes, who: usize) -> usize {
    fill(pipes, who, |nth| {
        format!("kset\nfill{nth}\n{}\n", "v".repeat(20_000))
    })
}

fn refused_for_memory(pipes: &Pipes) -> u64 {
    pipes.server.engine().figures().limit_hits(Limit::Memory)
}

/// Asks in batches until something is refused for want of memory; says how many requests were
/// granted. Every other answer must be as good as `ok`.
fn fill(pipes: &mut Pipes, who: usize, frame: impl Fn(usize) -> String) -> usize {
    const BATCH_BYTES: usize = 4 * 1024;
    let mut granted = 0;
    loop {
        let mut frames = String::new();
        let mut asked = granted;
        while frames.len() < BATCH_BYTES {
            frames += &frame(asked);
            asked += 1;
        }
        pipes.send(who, frames.as_bytes());
        pipes.settle();
        let answers = pipes.read(who);
        let refused = answers
            .lines()
            .filter(|line| *line == "error_memory")
            .count();
        let good = ["ok", "acquired", "queued", "error_memory"];
        for line in answers.lines() {
            assert!(good.iter().any(|it| line.starts_with(it)), "{line}");
        }
        granted += answers.lines().count() - refused;
        if refused > 0 {
            return granted;
        }
        assert!(granted < 1_000_000, "nothing is ever refused");
    }
}

/// A long name of short words.
fn dotted(nth: usize) -> String {
    format!("{nth:06}{}", ".ab".repeat(80))
}

/// A long name of one word.
fn long(nth: usize) -> String {
    format!("{nth:0>250}")
}

/// One thing of which clients can have as many as they like.
type Kind = (&'static str, fn(usize) -> String);

const KINDS: [Kind; 17] = [
    ("values of 64 KiB", |nth| {
        format!("kset\nk{nth}\n{}\n", "v".repeat(65_000))
    }),
    ("values of 100 bytes", |nth| {
        format!("kset\nk{nth}\n{}\n", "v".repeat(100))
    }),
    ("values with a time to live", |nth| {
        format!("kset\nk{nth}\nv\t3600\n")
    }),
    ("a list of 64 KiB values", |_| {
        format!("rpush\nq\n{}\n", "v".repeat(65_000))
    }),
    ("a list of 100-byte values", |_| {
        format!("lpush\nq\n{}\n", "v".repeat(100))
    }),
    ("lists of one value", |nth| format!("rpush\nq{nth}\nv\n")),
    ("counters", |nth| format!("incr\nc{nth}\n1\n")),
    ("counters with long names", |nth| {
        format!("incr\n{}\n1\n", long(nth))
    }),
    ("slots of one semaphore", |_| {
        "sl\ns\n0 4294967295 3600\n".to_owned()
    }),
    ("locks", |nth| format!("l\njob:{nth}\n0 3600\n")),
    ("locks with long keys", |nth| {
        format!("l\n{}\n0 3600\n", long(nth))
    }),
    ("read locks", |_| "rl\nr\n0 3600\n".to_owned()),
    ("places", |nth| format!("e\njob:{nth}\n3600\n")),
    ("patterns with long names", |nth| {
        format!("listen\n{}\n\n", dotted(nth))
    }),
    ("groups", |nth| format!("listen\na{nth}\n{}\n", long(nth))),
    ("watches", |nth| format!("watch\na.*.{nth}\n\n")),
    ("observers of long names", |nth| {
        format!("observe\n{}\n\n", dotted(nth))
    }),
];

#[test]
fn whatever_is_kept_the_bound_is_kept() {
    const BOUND: usize = 8 * MIB;
    for (what, frame) in KINDS {
        let before = live_bytes();
        let mut pipes = pipes(BOUND);
        let who = pipes.connect();
        let count = fill(&mut pipes, who, frame);
        let kept = (live_bytes() - before) as usize;
        let most = BOUND * 13 / 10 + BESIDES;
        assert!(kept <= most, "{what}: {kept} bytes for {count}");
        // Nothing is refused long before the bound. (Tables of timers double as they grow.)
        assert!(kept >= BOUND * 7 / 10, "{what}: {kept} bytes for {count}");
    }
}

#[test]
fn those_who_wait_count() {
    const BOUND: usize = 8 * MIB;
    let before = live_bytes();
    let mut pipes = pipes(BOUND);
    let (holder, waiter) = (pipes.connect(), pipes.connect());
    let mut nth = 0;
    loop {
        let held = pipes.ask(holder, &format!("l job:{nth} 0 3600"));
        if held == "error_memory\n" || pipes.ask(waiter, &format!("e job:{nth}")) != "queued\n" {
            break;
        }
        nth += 1;
    }
    let kept = (live_bytes() - before) as usize;
    assert!(kept <= BOUND * 13 / 10 + BESIDES, "{kept} bytes for {nth}");
    assert!(kept >= BOUND * 7 / 10, "{kept} bytes for {nth}");
}

/// Each of these, at the bound, and what it is answered.
#[test]
fn at_the_bound_what_would_grow_is_refused_and_everything_else_is_served() {
    let mut pipes = small_pipes(MIB);
    let [a, b, filler] = [(); 3].map(|()| pipes.connect());
    let grant = |pipes: &mut Pipes, frame: &str| {
        let answer = pipes.ask(a, frame);
        answer
            .split(' ')
            .nth(1)
            .map(str::to_owned)
            .unwrap_or(answer)
    };
    let token = grant(&mut pipes, "l held 0 600");
    for nth in 0..40 {
        grant(&mut pipes, &format!("l taken{nth} 0 600"));
    }
    let slot = grant(&mut pipes, "sl sem 0 9 600");
    pipes.say(
        a,
        &[
            "incr c 1",
            "kset v long-value",
            "rpush q 1",
            "rpush q 2",
            "listen a.>",
        ],
    );
    pipes.say(b, &["e held 600", "hello _ name=bee"]);
    pipes.read(a);
    pipes.read(b);
    let values = fill_with_values(&mut pipes, filler);
    // The tables have a little room left, which is counted already; these use it up.
    let free = |nth| format!("l\nfree{nth}\n0 600\n");
    fill(&mut pipes, filler, free);
    fill(&mut pipes, b, |nth| format!("e\ntaken{nth}\n600\n"));
    fill(&mut pipes, filler, |_| {
        "sl\nslots\n0 4294967295 600\n".to_owned()
    });
    fill(&mut pipes, filler, |nth| format!("incr\nc{nth}\n1\n"));
    fill(&mut pipes, filler, |nth| format!("listen\na.{nth}\n\n"));

    let renew = format!("n held {token} 600");
    let release = format!("sr sem {slot}");
    for (frame, answer) in [
        // What would grow.
        ("l new 0", "error_memory"),
        ("l held 600", "error_memory"),
        ("sl sem 0 9", "error_memory"),
        ("rl new 0", "error_memory"),
        ("elect new 0", "error_memory"),
        ("e new", "error_memory"),
        ("kset new v", "error_memory"),
        ("kset v a-longer-value-than-before-by-far", "error_memory"),
        ("kset v 1\t60", "error_memory"),
        ("kcas new \tv\t", "error_memory"),
        ("lpush q 3", "error_memory"),
        ("rpush new 1", "error_memory"),
        ("incr new 1", "error_memory"),
        ("cset new 1", "error_memory"),
        ("blpop new 5", "error_memory"),
        ("bwait new 2 5", "error_memory"),
        ("listen b", "error_memory"),
        ("watch b", "error_memory"),
        ("observe b", "error_memory"),
        // What is refused for another reason, is refused for that.
        ("rl held 0", "error_type_mismatch"),
        ("sl sem 0 8", "error_limit_mismatch"),
        ("listen a*", "error"),
        ("kcas v other\tnew\t", "cas_conflict"),
        // What has nothing to grow by.
        ("l held 0", "timeout"),
        ("blpop new 0", "nil"),
        ("w new 0", "error_not_enqueued"),
        ("listen a.>", "ok"),
        ("unlisten b", "ok"),
        ("ping _", "ok"),
        ("get c", "ok 1"),
        ("incr c 1", "ok 2"),
        ("cset c 5", "ok"),
        ("kget v", "ok long-value"),
        ("kset v short", "ok"),
        ("kcas v short\tother\t", "ok"),
        ("kget v", "ok other"),
        ("llen q", "ok 2"),
        ("lrange q 0 -1", "ok [\"1\",\"2\"]"),
        ("lpop q", "ok 1"),
        ("signal b x", "ok 0"),
        (&renew, "ok 600 1"),
        (&release, "ok"),
        ("sl sem 0 9 600", "ok "),
        ("unlisten a.>", "ok"),
        ("kdel v", "ok"),
    ] {
        let said = pipes.ask(a, frame);
        let fits = said.trim_end() == answer || (answer == "ok " && said.starts_with(answer));
        assert!(fits, "{frame}: {said}");
    }
    // A place that was taken before is waited for, and granted.
    pipes.say(b, &["w held 600"]);
    assert_eq!(pipes.ask(a, &format!("r held {token}")), "ok\n");
    assert!(pipes.read(b).starts_with("ok "));
    let who = pipes.ask(b, "who held");
    assert!(who.contains("\"name\":\"bee\""), "{who}");

    // Room that is made is used again.
    for nth in 0..values {
        assert_eq!(pipes.ask(b, &format!("kdel fill{nth}")), "ok\n");
    }
    for frame in [
        "l new 0",
        "kset new v",
        "rpush q 3",
        "incr new 1",
        "listen b",
    ] {
        let said = pipes.ask(b, frame);
        assert!(said.starts_with("ok"), "{frame}: {said}");
    }
}

/// A popper that waits is handed a value that there would be no room to keep.
#[test]
fn a_value_that_is_waited_for_is_handed_over_at_the_bound() {
    let mut pipes = small_pipes(MIB);
    let [popper, pusher, meeting, met] = [(); 4].map(|()| pipes.connect());
    pipes.say(popper, &["blpop q 60"]);
    pipes.say(meeting, &["bwait b 2 60"]);
    fill_with_values(&mut pipes, pusher);
    assert_eq!(pipes.ask(pusher, "rpush q news"), "ok 0\n");
    assert_eq!(pipes.read(popper), "ok news\n");
    assert_eq!(pipes.ask(met, "bwait b 2 60"), "ok\n");
    assert_eq!(pipes.read(meeting), "ok\n");
}

/// Vacant entries stay allocated and stay counted, so that other kinds do not grow on top of them;
/// but they can be used.
#[test]
fn what_locks_have_left_is_used_by_locks_and_counted_for_the_others() {
    const BOUND: usize = 4 * MIB;
    let before = live_bytes();
    let mut pipes = pipes(BOUND);
    let [keeper, leaver] = [(); 2].map(|()| pipes.connect());
    assert!(pipes.ask(leaver, "l first 0 3600").starts_with("ok"));
    assert!(pipes.ask(keeper, "l kept 0 3600").starts_with("ok"));
    let count = fill(&mut pipes, leaver, |nth| format!("l\njob:{nth}\n0 3600\n"));
    pipes.replace(leaver);
    let again = fill(&mut pipes, leaver, |nth| format!("l\njob:{nth}\n0 3600\n"));
    assert!(again >= count, "{again} of {count}");
    fill(&mut pipes, keeper, |nth| {
        format!("kset\nk{nth}\n{}\n", "v".repeat(100))
    });
    fill(&mut pipes, keeper, |nth| format!("incr\nk{nth}\n1\n"));
    let kept = (live_bytes() - before) as usize;
    assert!(kept <= BOUND * 13 / 10 + BESIDES, "{kept}");
}

/// At the bound, an idle key makes room for a new one, as it does at `--max-locks`.
#[test]
fn an_idle_key_makes_room_for_a_new_one() {
    let mut pipes = small_pipes(MIB);
    let [a, filler] = [(); 2].map(|()| pipes.connect());
    for name in ["x".repeat(100), "y".repeat(200)] {
        let grant = pipes.ask(a, &format!("l {name} 0"));
        let token = grant.split(' ').nth(1).unwrap_or_default();
        assert_eq!(pipes.ask(a, &format!("r {name} {token}")), "ok\n");
    }
    fill_with_values(&mut pipes, filler);
    fill(&mut pipes, filler, |nth| format!("l\nfree{nth}\n0 600\n"));
    let holders = pipes.server.engine().counts().holders;
    let longer = "z".repeat(150);
    assert_eq!(pipes.ask(a, &format!("l {longer} 0")), "error_memory\n");
    assert_eq!(pipes.server.engine().counts().holders, holders);
}

/// Subscribers that do not read are closed; those that read, and everybody else, go on.
#[test]
fn unread_pushes_go_first() {
    const BOUND: usize = 12 * MIB;
    for payload in [500, 5_000] {
        let before = live_bytes();
        let mut pipes = pipes(BOUND);
        let [sender, reader] = [(); 2].map(|()| pipes.connect());
        pipes.say(reader, &["listen news"]);
        let deaf: Vec<usize> = (0..100).map(|_| pipes.connect()).collect();
        for &who in &deaf {
            assert_eq!(pipes.ask(who, "listen news"), "ok\n");
            pipes.set_room(who, 0);
        }
        let signal = format!("signal news {}", "x".repeat(payload));
        let mut most = 0;
        for _ in 0..1_000 {
            pipes.say(sender, &[&signal]);
            let answer = pipes.read(sender);
            assert!(pipes.read(reader).len() > payload, "{answer}");
            most = most.max((live_bytes() - before) as usize);
            if answer == "ok 1\n" {
                break;
            }
        }
        assert!(most <= BOUND * 13 / 10 + BESIDES, "{payload}: {most}");
        let closed = deaf
            .iter()
            .filter(|&&it| pipes.peer(it).is_closed())
            .count();
        assert!(closed > 0, "{payload}: nobody was closed");
        let stats = pipes.ask(sender, "stats");
        assert!(stats.contains(&format!("\"slow_consumers\":{closed}")));
        assert_eq!(pipes.ask(sender, "kset k v"), "ok\n");
    }
}

/// A subscriber that reads is not closed, also if it was not written to yet, or is owed a long answer.
#[test]
fn a_subscriber_that_reads_stays_however_much_it_is_owed_for_a_moment() {
    let mut pipes = pipes(16 * MIB);
    let [filler, subscriber] = [(); 2].map(|()| pipes.connect());
    assert_eq!(pipes.ask(subscriber, "listen news"), "ok\n");
    let value = "v".repeat(60_000);
    for _ in 0..12 {
        let push = format!("rpush list {value}");
        assert!(pipes.ask(filler, &push).starts_with("ok "));
    }
    let granted = fill(&mut pipes, filler, |index| {
        format!("kset\nkey-{index}\n{value}\n")
    });
    assert!(granted > 0);
    // 720 kB, sent in pieces, in a server whose memory is full.
    let answer = pipes.ask(subscriber, "lrange list 0 -1");
    assert!(answer.len() > 700_000, "{} bytes came", answer.len());
    assert!(!pipes.peer(subscriber).is_closed());
    assert_eq!(pipes.ask(filler, "signal news x"), "ok 1\n");
}

/// Answers that nobody reads stay within a quarter of the bound: others that ask for long answers
/// wait, short ones are answered, and when room is made all go on.
#[test]
fn unread_answers_have_a_bound_of_their_own() {
    const BOUND: usize = 16 * MIB;
    let before = live_bytes();
    let mut pipes = pipes(BOUND);
    let [asker, patient] = [(); 2].map(|()| pipes.connect());
    assert_eq!(
        pipes.ask(asker, &format!("kset big {}", "v".repeat(60_000))),
        "ok\n"
    );
    let deaf: Vec<usize> = (0..200).map(|_| pipes.connect_with_room(0)).collect();
    for &who in &deaf {
        pipes.send(who, b"kget\nbig\n\nkget\nbig\n\n");
        pipes.settle();
    }
    let kept = (live_bytes() - before) as usize;
    assert!(kept <= BOUND / 4 * 13 / 10 + BESIDES, "{kept}");
    assert_eq!(pipes.ask(patient, "kget big"), "", "it waits");
    assert_eq!(pipes.ask(asker, "ping _"), "ok\n");
    assert!(pipes.ask(asker, "l job 0").starts_with("ok"));
    assert_eq!(pipes.rest(), 0, "nobody is looked at in vain");
    // One that waits and hangs up is gone at once, with what it held.
    let last = deaf[deaf.len() - 1];
    pipes.half_close(last);
    pipes.settle();
    assert!(pipes.peer(last).is_closed());
    // The others read: all are answered.
    for &who in &deaf[..deaf.len() - 1] {
        pipes.set_room(who, usize::MAX);
    }
    pipes.settle();
    assert_eq!(pipes.read(patient).len(), 60_004);
    for &who in &deaf[..deaf.len() - 1] {
        assert_eq!(pipes.read(who).len(), 2 * 60_004);
    }
}

/// Answers that nobody reads leave some room to those who read everything they are told.
#[test]
fn whoever_reads_is_answered_beside_those_who_do_not() {
    const BOUND: usize = 16 * MIB;
    let mut pipes = pipes(BOUND);
    let [reader, busy] = [(); 2].map(|()| pipes.connect());
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(reader, &format!("kset big {value}")), "ok\n");
    // Three quarters of what all unread answers may take, and a little more.
    let deaf = BOUND / 4 * 3 / 4 / 120_000 + 2;
    for _ in 0..deaf {
        let who = pipes.connect_with_room(0);
        pipes.send(who, b"kget\nbig\n\nkget\nbig\n\n");
        pipes.settle();
    }
    for _ in 0..100 {
        assert_eq!(pipes.ask(reader, "kget big").len(), 60_004);
    }
    let stats = pipes.ask(reader, "stats _");
    let (_, unread) = stats.split_once("\"outbox_bytes\":").unwrap();
    let unread: usize = unread.split(',').next().unwrap().parse().unwrap();
    assert!(unread > BOUND / 4 * 3 / 4 && unread < BOUND / 4, "{unread}");
    // One that has not read its last answer gets no further long one before it has.
    pipes.set_room(busy, 100);
    pipes.say(busy, &["kget big", "kget big", "ping _"]);
    assert_eq!(pipes.read(busy).len(), 100);
    pipes.set_room(busy, 60_004 - 100);
    pipes.settle();
    let rest = pipes.read(busy);
    assert_eq!(rest.len(), 60_004 - 100, "no byte of the second");
    pipes.set_room(busy, usize::MAX);
    pipes.settle();
    assert_eq!(pipes.read(busy).len(), 60_004 + 3);
}

/// A client that has read everything gets short values at once, even while the unread answers of
/// others fill their whole share.
#[test]
fn short_answers_to_clients_that_read_do_not_wait_for_those_who_do_not() {
    const BOUND: usize = 16 * MIB;
    let mut pipes = pipes(BOUND);
    let [reader, patient] = [(); 2].map(|()| pipes.connect());
    let web = pipes.connect_to(Door::Http);
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(reader, &format!("kset big {value}")), "ok\n");
    assert_eq!(pipes.ask(reader, "kset small v"), "ok\n");
    for value in ["a", "b", "c"] {
        pipes.ask(reader, &format!("rpush q {value}"));
    }
    let deaf: Vec<usize> = (0..200).map(|_| pipes.connect_with_room(0)).collect();
    for &who in &deaf {
        pipes.send(who, b"kget\nbig\n\nkget\nbig\n\n");
    }
    pipes.settle();
    assert_eq!(pipes.ask(patient, "kget big"), "", "a long one waits");
    for _ in 0..100 {
        assert_eq!(pipes.ask(reader, "kget small"), "ok v\n");
        assert_eq!(pipes.ask(reader, "kget none"), "nil\n");
        assert_eq!(
            pipes.ask(reader, "lrange q 0 -1"),
            "ok [\"a\",\"b\",\"c\"]\n"
        );
    }
    for (verb, answer) in [
        ("lpop q", "ok a\n"),
        ("blpop q 0", "ok b\n"),
        ("rpop q", "ok c\n"),
    ] {
        assert_eq!(pipes.ask(reader, verb), answer);
    }
    pipes.send(web, b"GET /v1/kv/small HTTP/1.1\r\nHost: localhost\r\n\r\n");
    pipes.settle();
    assert!(pipes.read(web).starts_with("HTTP/1.1 200 "));
    // A client that does not read gets one answer.
    let lazy = pipes.connect_with_room(0);
    pipes.send(lazy, &b"kget\nsmall\n\n".repeat(100));
    pipes.settle();
    pipes.set_room(lazy, 5);
    pipes.settle();
    assert_eq!(pipes.read(lazy), "ok v\n");
    assert_eq!(pipes.rest(), 0, "nobody is looked at in vain");
    assert_eq!(pipes.read(patient), "", "the long one waits on");
}

/// If nobody makes room, those who have left much unread for a quarter of a second are closed, and
/// no more of them than it takes.
#[test]
fn whoever_does_not_read_keeps_others_waiting_for_a_moment_only() {
    const BOUND: usize = 16 * MIB;
    let mut pipes = pipes(BOUND);
    let patient = pipes.connect();
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(patient, &format!("kset big {value}")), "ok\n");
    let deaf: Vec<usize> = (0..200).map(|_| pipes.connect_with_room(0)).collect();
    for &who in &deaf {
        pipes.send(who, b"kget\nbig\n\nkget\nbig\n\n");
    }
    pipes.settle();
    assert_eq!(pipes.ask(patient, "kget big"), "", "it waits");
    pipes.pass(Millis(249));
    pipes.settle();
    assert_eq!(pipes.read(patient), "", "others may still read");
    pipes.pass(Millis(1));
    pipes.settle();
    let mut waited_ms = 250;
    while pipes.read(patient).is_empty() {
        pipes.pass(Millis(10));
        pipes.settle();
        waited_ms += 10;
        assert!(waited_ms < 2_000, "those who never read are in the way");
    }
    let closed = deaf.iter().filter(|&&it| pipes.peer(it).is_closed());
    let closed = closed.count();
    assert!((1..150).contains(&closed), "{closed} were closed");
}

/// At the bound a connection may not take a longer name than it has; and as many connections come in as
/// there was room set aside for: the next are told why not, if they are not too many.
#[test]
fn at_the_bound_names_do_not_grow_and_newcomers_have_a_room_of_their_own() {
    const BOUND: usize = MIB;
    let before = live_bytes();
    let mut pipes = small_pipes(BOUND);
    let [named, other, filler] = [(); 3].map(|()| pipes.connect());
    let hello = |name: &str| format!("hello _ name={name}");
    let held = pipes.ask(other, "l job 0 600");
    assert!(pipes.ask(named, &hello(&"n".repeat(40))).starts_with("ok "));
    fill_with_values(&mut pipes, filler);
    let hits_before = refused_for_memory(&pipes);
    assert_eq!(pipes.ask(other, &hello("me")), "error_memory\n");
    assert_eq!(pipes.ask(named, &hello(&"n".repeat(60))), "error_memory\n");
    assert_eq!(refused_for_memory(&pipes), hits_before + 2);
    assert!(pipes.ask(named, &hello(&"m".repeat(40))).ends_with("mm\n"));
    assert!(pipes.ask(other, "hello _").starts_with("ok "));

    // Whoever comes to let go of something is let in.
    let token = held.split(' ').nth(1).unwrap();
    let releaser = pipes.connect();
    assert_eq!(pipes.ask(releaser, &format!("r job {token}")), "ok\n");
    let mut count = 0;
    let refused = loop {
        let who = pipes.connect();
        match &pipes.ask(who, "incr new 1")[..] {
            "error_memory\n" if pipes.id(who).is_none() || pipes.peer(who).is_ended() => break who,
            "error_memory\n" => count += 1,
            said => panic!("{said}"),
        }
        assert!(count < 10_000, "nobody is refused");
    };
    assert!(count >= 16, "only {count} came in");
    let kept = (live_bytes() - before) as usize;
    assert!(kept <= BOUND * 13 / 10 + BESIDES, "{kept}");
    assert_eq!(pipes.ask(releaser, "ping _"), "ok\n");
    pipes.pass(Millis::from_secs(1));
    pipes.settle();
    assert!(pipes.peer(refused).is_closed());
    // Not all of a crowd of them are told so.
    let crowd: Vec<usize> = (0..200).map(|_| pipes.connect()).collect();
    pipes.settle();
    let told = crowd.iter().map(|&who| pipes.read(who));
    let told = told.filter(|it| it == "error_memory\n").count();
    assert_eq!(told, 64);
    // One that leaves makes room for another.
    for who in 4..20 {
        pipes.reset(who);
    }
    pipes.settle();
    let who = pipes.connect();
    assert_eq!(pipes.ask(who, "ping _"), "ok\n");
}

/// One that speaks HTTP takes more of the room that is set aside.
#[test]
fn at_the_bound_fewer_newcomers_come_in_that_speak_http() {
    let let_in = |door: Door| {
        let mut pipes = small_pipes(2 * MIB);
        let filler = pipes.connect();
        fill_with_values(&mut pipes, filler);
        let mut count = 0;
        while !pipes.server.has_no_memory_for_newcomers() {
            pipes.connect_to(door);
            count += 1;
            assert!(count < 10_000, "nobody is refused");
        }
        let refused = pipes.connect_to(door);
        pipes.settle();
        // The last that was to be stored is refused, too.
        assert!(refused_for_memory(&pipes) >= 2, "it is counted");
        assert!(pipes.read(refused).to_lowercase().contains("memory"));
        count
    };
    let (line, http) = (let_in(Door::Line), let_in(Door::Http));
    assert!(http > 64 && http < line * 9 / 10, "{line} and {http}");
}

/// Connections that say nothing are counted, too: the bound is reached with nothing else.
#[test]
fn idle_connections_count() {
    const BOUND: usize = MIB;
    let mut pipes = small_pipes(BOUND);
    pipes.skip_checks();
    let asker = pipes.connect();
    let mut count = 0;
    while !pipes.server.has_no_memory_for_newcomers() {
        pipes.connect();
        count += 1;
        if count % 100 == 0 {
            pipes.turn();
        }
        assert!(count < 20_000, "{count} connections");
    }
    assert_eq!(pipes.ask(asker, "incr new 1"), "error_memory\n");
}

/// The rest of long requests is not received while there is no memory for it; short requests are
/// served, and the read timeout ends those that wait.
#[test]
fn long_requests_wait_where_there_is_no_memory_for_them() {
    const BOUND: usize = 8 * MIB;
    let before = live_bytes();
    let mut pipes = pipes(BOUND);
    let asker = pipes.connect();
    let slow: Vec<usize> = (0..300).map(|_| pipes.connect()).collect();
    let part = "v".repeat(15_000);
    for &who in &slow {
        pipes.send(who, b"kset\nk\n");
    }
    for _ in 0..4 {
        for &who in &slow {
            if pipes.peer(who).was_read() {
                pipes.send(who, part.as_bytes());
            }
        }
        pipes.settle();
    }
    let unread = slow
        .iter()
        .filter(|&&it| !pipes.peer(it).was_read())
        .count();
    assert!(unread > 0, "all were received");
    let kept = (live_bytes() - before) as usize - unread * 16_384;
    assert!(kept <= BOUND * 13 / 10 + BESIDES, "{kept}");
    assert_eq!(pipes.ask(asker, "ping _"), "ok\n");
    assert_eq!(pipes.ask(asker, "incr c 1"), "error_memory\n");
    assert_eq!(pipes.rest(), 0, "nobody is looked at in vain");
    for _ in 0..3 {
        assert_eq!(pipes.ask(asker, "ping _"), "ok\n");
        pipes.pass(Millis::from_secs(20));
        pipes.settle();
    }
    assert!(slow.iter().all(|&it| pipes.peer(it).is_ended()));
    assert_eq!(pipes.ask(asker, "incr c 1"), "ok 1\n");
}

/// A value of 64 KiB at the bound is answered at once, as long as few send one.
#[test]
fn one_long_request_is_answered_at_the_bound() {
    let mut pipes = small_pipes(2 * MIB);
    let [a, filler] = [(); 2].map(|()| pipes.connect());
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(a, &format!("kset k {value}")), "ok\n");
    fill_with_values(&mut pipes, filler);
    assert_eq!(pipes.ask(a, &format!("kset new {value}")), "error_memory\n");
    assert_eq!(pipes.ask(a, &format!("kset k {value}")), "ok\n");
}

/// Buffers of requests that have been served are kept for others, but not at the cost of what
/// clients want to store.
#[test]
fn nobody_is_refused_for_the_sake_of_buffers_that_nobody_uses() {
    let stored = |frame: &str| {
        let mut pipes = small_pipes(MIB);
        let senders: Vec<usize> = (0..14).map(|_| pipes.connect()).collect();
        // All of them are in the middle of a request before the first is through.
        let (begin, end) = frame.split_at(frame.len() - 1);
        for part in [begin, end] {
            for &who in &senders {
                pipes.send(who, part.as_bytes());
            }
            pipes.settle();
        }
        let who = pipes.connect();
        pipes.ask(who, "kdel k");
        fill_with_values(&mut pipes, who)
    };
    let (after_short, after_long) = (
        stored("kset\nk\nv\n"),
        stored(&format!("kset\nk\n{}\n", "v".repeat(30_000))),
    );
    assert!(
        after_long + 2 >= after_short,
        "{after_long} values after long requests, {after_short} after short ones"
    );
}

/// What connections that have not shown the token may have of the bound.
const STRANGERS_SHARE: usize = 16;

#[test]
fn strangers_keep_no_more_than_their_share_and_locks_are_granted() {
    const BOUND: usize = 16 * MIB;
    const STRANGERS: usize = 2_000;
    let post = |body: usize| {
        format!(
            "PUT /v1/kv/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 190000\r\n\r\n{}",
            "x".repeat(body)
        )
    };
    for (what, door, half) in [
        (
            "half a long auth line",
            Door::Line,
            format!("auth\n_\n{}", "x".repeat(60_000)),
        ),
        (
            "half an auth line",
            Door::Line,
            format!("auth\n_\n{}", "x".repeat(3_000)),
        ),
        (
            "half a long head",
            Door::Http,
            format!("GET /{} HTTP/1.1\r\n", "x".repeat(15_000)),
        ),
        (
            "half a head",
            Door::Http,
            format!("GET /{} HTTP/1.1\r\n", "x".repeat(3_000)),
        ),
        ("half a long body", Door::Http, post(180_000)),
        ("half a body", Door::Http, post(3_000)),
        (
            "unread documents",
            Door::Http,
            "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        ),
        (
            "unread last documents",
            Door::Http,
            "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                .to_owned(),
        ),
    ] {
        let mut pipes = pipes_with_token(BOUND);
        let holder = pipes.connect();
        assert_eq!(pipes.ask(holder, "auth _ s3cret"), "ok\n");
        for _ in 0..STRANGERS {
            let who = pipes.connect_to(door);
            pipes.set_room(who, 0);
            pipes.send(who, half.as_bytes());
            pipes.turn();
        }
        pipes.settle();
        let kept = pipes.server.holdings().buffered_bytes;
        // The sum is looked at after some work, and not with each byte.
        let most = BOUND / STRANGERS_SHARE + MIB / 8;
        assert!(kept <= most, "{what}: {kept} bytes");
        let late = pipes.connect();
        assert_eq!(pipes.ask(late, "auth _ s3cret"), "ok\n", "{what}");
        for who in [holder, late] {
            let granted = pipes.ask(who, &format!("l k{who} 0 60"));
            assert!(granted.starts_with("ok "), "{what}: {granted}");
        }
    }
}

/// Whatever strangers keep, it is not taken from what is set aside for clients with the token.
#[test]
fn strangers_take_no_memory_from_clients_with_the_token() {
    const BOUND: usize = 8 * MIB;
    let fill = |strangers: usize| {
        let mut pipes = pipes_with_token(BOUND);
        let holder = pipes.connect();
        assert_eq!(pipes.ask(holder, "auth _ s3cret"), "ok\n");
        for _ in 0..strangers {
            let who = pipes.connect();
            pipes.send(who, format!("auth\n_\n{}", "x".repeat(3_500)).as_bytes());
            pipes.turn();
        }
        fill_with_values(&mut pipes, holder)
    };
    let (alone, among_strangers) = (fill(0), fill(1_000));
    assert!(
        among_strangers + 2 >= alone,
        "{among_strangers} values, {alone} without strangers"
    );
}

fn pipes_with_token(memory_max: usize) -> Pipes {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        memory_max,
        ..Settings::default()
    };
    let mut pipes = Pipes::with(Rules::default(), settings);
    pipes.skip_checks();
    pipes
}

/// The reactor accepts 128 connections from each listener between two turns.
#[test]
fn strangers_that_come_in_one_turn_keep_no_more_than_their_share() {
    const BOUND: usize = 16 * MIB;
    const STRANGERS: usize = 512;
    let half_auth = format!("auth\n_\n{}", "x".repeat(7_900));
    let document = "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (door, sent) in [(Door::Line, &half_auth[..]), (Door::Http, document)] {
        for sends_at_once in [true, false] {
            let mut pipes = pipes_with_token(BOUND);
            for _ in 0..10 {
                let crowd: Vec<usize> = (0..STRANGERS).map(|_| pipes.connect_to(door)).collect();
                if !sends_at_once {
                    pipes.settle();
                }
                for who in crowd {
                    pipes.set_room(who, 0);
                    pipes.send(who, sent.as_bytes());
                }
                pipes.settle();
                let kept = pipes.server.holdings().buffered_bytes;
                assert!(kept <= BOUND / STRANGERS_SHARE, "{door:?}: {kept} bytes");
            }
        }
    }
}

/// Fifty unread documents are more than the share of all strangers.
#[test]
fn strangers_that_read_nothing_displace_no_client_that_pauses_before_its_token() {
    let mut pipes = pipes_with_token(16 * MIB);
    let paused = pipes.connect();
    for _ in 0..50 {
        let who = pipes.connect_to(Door::Http);
        pipes.set_room(who, 0);
        pipes.send(
            who,
            b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        pipes.turn();
    }
    pipes.settle();
    let kept = pipes.server.holdings().buffered_bytes;
    assert!(kept <= 16 * MIB / STRANGERS_SHARE + MIB / 8, "{kept} bytes");
    assert_eq!(pipes.ask(paused, "auth _ s3cret"), "ok\n");
}

#[test]
fn client_with_the_token_gets_in_at_the_bound_beside_thousands_of_strangers() {
    let memo = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: {}\r\n\r\n",
        "i".repeat(100)
    );
    for (door, sent) in [(Door::Line, ""), (Door::Http, &memo[..])] {
        let mut pipes = pipes_with_token(4 * MIB);
        let holder = pipes.connect();
        assert_eq!(pipes.ask(holder, "auth _ s3cret"), "ok\n");
        fill_with_values(&mut pipes, holder);
        let refused_before = refused_for_memory(&pipes);
        for round in 0..20 {
            for _ in 0..128 {
                let who = pipes.connect_to(door);
                pipes.send(who, sent.as_bytes());
            }
            let late = pipes.connect();
            assert_eq!(pipes.ask(late, "auth _ s3cret"), "ok\n", "{door:?} {round}");
        }
        assert_eq!(refused_for_memory(&pipes), refused_before, "{door:?}");
    }
}

#[test]
fn newcomer_without_memory_is_told_so_and_makes_no_room_for_the_next() {
    let mut pipes = pipes_with_token(MIB);
    let holder = pipes.connect();
    assert_eq!(pipes.ask(holder, "auth _ s3cret"), "ok\n");
    fill_with_values(&mut pipes, holder);
    while !pipes.server.has_no_memory_for_newcomers() {
        let who = pipes.connect();
        assert_eq!(pipes.ask(who, "auth _ s3cret"), "ok\n");
    }
    let refused: Vec<usize> = (0..10).map(|_| pipes.connect()).collect();
    pipes.settle();
    for who in refused {
        assert_eq!(pipes.read(who), "error_memory\n");
    }
}

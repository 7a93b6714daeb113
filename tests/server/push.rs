//! Peers that do not read, to the byte: what is pushed to them, and what was popped for them.
//!
//! Over pipes, whose room is what a socket's buffers would be, so that everything a slow or dying
//! peer leaves behind can be counted exactly. The transcripts cannot say how much a peer has read;
//! the same over real sockets, where only bounds are known, is in `daemon/push.rs`.

#![allow(clippy::unwrap_used, missing_docs)]

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::{Door, Holdings, Settings};
use latchd::wire::outbox::{PUSH_BYTES_BEHIND, PUSH_BYTES_MAX};

fn pipes() -> Pipes {
    Pipes::with(Rules::default(), Settings::default())
}

/// The peer is gone, and the server notices.
fn reset(pipes: &mut Pipes, who: usize) {
    pipes.reset(who);
    pipes.settle();
}

/// The peer has read, and the server notices.
fn make_room(pipes: &mut Pipes, who: usize, bytes: usize) {
    pipes.set_room(who, bytes);
    pipes.settle();
}

fn slow_consumers(pipes: &mut Pipes, asker: usize) -> u64 {
    let stats = pipes.ask(asker, "stats");
    let json: serde_json::Value = serde_json::from_str(stats.strip_prefix("ok ").unwrap()).unwrap();
    json["totals"]["slow_consumers"].as_u64().unwrap()
}

// ---- values that were popped and never told ----

/// How a peer with unread answers may end.
const ENDS: [fn(&mut Pipes, usize); 4] = [
    |pipes, who| reset(pipes, who),
    |pipes, who| {
        // It stops sending, and still has not read when the write timeout is over.
        pipes.half_close(who);
        pipes.settle();
        pipes.pass(Millis::from_secs(5));
        pipes.settle();
    },
    |pipes, who| {
        // Nobody tells the server, but it takes nothing for the write timeout.
        assert!(!pipes.peer(who).is_closed());
        pipes.pass(Millis::from_secs(5));
        pipes.settle();
    },
    |pipes, who| {
        // The server is told of room and nothing else; it finds out when it writes.
        pipes.set_room(who, usize::MAX);
        pipes.peer(who).reset();
        pipes.settle();
    },
];

/// For every number of bytes that could have left: what was told in full is the peer's, everything
/// else is back in its place.
#[test]
fn a_value_that_was_not_told_in_full_goes_back_to_where_it_was() {
    let values = [
        "one", "two", "three", "four", "five", "six", "seven", "eight",
    ];
    let pops = [
        "lpop q",
        "ping",
        "rpop q",
        "blpop q 0",
        "kget none",
        "brpop q 9",
        "lpop q",
    ];
    let told = [
        "ok one", "ok", "ok eight", "ok two", "nil", "ok seven", "ok three",
    ];
    let answers: String = told.iter().flat_map(|line| [line, "\n"]).collect();
    for end in ENDS {
        for room in 0..answers.len() {
            let mut pipes = pipes();
            let pusher = pipes.connect();
            for value in values {
                pipes.ask(pusher, &format!("rpush q {value}"));
            }
            let popper = pipes.connect_with_room(room);
            pipes.say(popper, &pops);
            assert_eq!(
                pipes.ask(pusher, "lrange q 0 -1"),
                "ok [\"four\",\"five\",\"six\"]\n"
            );
            end(&mut pipes, popper);
            assert!(pipes.peer(popper).is_closed());
            assert_eq!(pipes.read(popper), answers[..room]);
            let kept = values.iter().filter(|value| {
                let line = format!("ok {value}\n");
                let end = answers.find(&line).map(|at| at + line.len());
                end.is_none_or(|end| end > room)
            });
            let kept: Vec<&str> = kept.copied().collect();
            let list = serde_json::to_string(&kept).unwrap();
            assert_eq!(
                pipes.ask(pusher, "lrange q 0 -1"),
                format!("ok {list}\n"),
                "{room}"
            );
        }
    }
}

/// A push was answered `ok 0` because somebody waited; that somebody dies before it can be told.
#[test]
fn a_value_handed_to_a_dying_client_goes_to_the_next_that_waits() {
    for end in ENDS {
        for pop in ["blpop", "brpop"] {
            let mut pipes = pipes();
            let pusher = pipes.connect();
            let dies = pipes.connect_with_room(0);
            pipes.say(dies, &[&format!("{pop} q 60")]);
            assert_eq!(pipes.ask(pusher, "rpush q v"), "ok 0\n");
            let next = pipes.connect();
            pipes.say(next, &["blpop q 60"]);
            assert_eq!(pipes.read(next), "");
            end(&mut pipes, dies);
            assert_eq!(pipes.read(next), "ok v\n");
            assert_eq!(pipes.ask(pusher, "llen q"), "ok 0\n");
        }
    }
}

#[test]
fn a_value_handed_to_a_dying_client_stays_if_nobody_waits() {
    for end in ENDS {
        let mut pipes = pipes();
        let pusher = pipes.connect();
        let dies = pipes.connect_with_room(0);
        pipes.say(dies, &["blpop q 60"]);
        pipes.say(pusher, &["rpush q 1", "rpush q 2", "rpush q 3"]);
        assert_eq!(pipes.read(pusher), "ok 0\nok 1\nok 2\n");
        end(&mut pipes, dies);
        assert_eq!(
            pipes.ask(pusher, "lrange q 0 -1"),
            "ok [\"1\",\"2\",\"3\"]\n"
        );
    }
}

/// The list was empty and gone, and its room went to another key: the value is still not lost.
#[test]
fn a_value_goes_back_even_where_a_new_one_would_be_refused() {
    let rules = Rules {
        keys_max: 1,
        list_length_max: 1,
        ..Rules::default()
    };
    let mut pipes = Pipes::with(rules, Settings::default());
    let pusher = pipes.connect();
    let dies = pipes.connect_with_room(0);
    assert_eq!(pipes.ask(pusher, "rpush q v"), "ok 1\n");
    pipes.say(dies, &["lpop q"]);
    assert_eq!(pipes.ask(pusher, "kset k v"), "ok\n");
    reset(&mut pipes, dies);
    assert_eq!(pipes.ask(pusher, "kset k2 v"), "error_max_keys\n");
    assert_eq!(pipes.ask(pusher, "lpop q"), "ok v\n");
    assert_eq!(pipes.ask(pusher, "kdel k"), "ok\n");
    assert_eq!(pipes.ask(pusher, "kset k2 v"), "ok\n");
}

/// What has left is the peer's for good, even if it is reset in the very next moment.
#[test]
fn a_value_that_was_told_never_comes_back() {
    let mut pipes = pipes();
    let pusher = pipes.connect();
    let popper = pipes.connect();
    assert_eq!(pipes.ask(pusher, "rpush q v"), "ok 1\n");
    pipes.say(popper, &["lpop q"]);
    reset(&mut pipes, popper);
    assert_eq!(pipes.read(popper), "ok v\n");
    assert_eq!(pipes.ask(pusher, "llen q"), "ok 0\n");
}

// ---- pushes to those who do not read ----

/// A signal of the greatest length.
fn longest_signal(channel: &str) -> String {
    let payload = "x".repeat(65_536 - "sig  ".len() - channel.len());
    format!("signal {channel} {payload}")
}

/// How many of those make a peer that reads nothing too slow: at least 64, whatever their length.
const LONGEST_HEARD: usize = PUSH_BYTES_MAX.div_ceil(65_537);

#[test]
fn a_client_that_does_not_read_is_told_up_to_the_bound_then_closed_and_counted() {
    const { assert!(LONGEST_HEARD == 64) };
    let mut pipes = pipes();
    let (speaker, hears) = (pipes.connect(), pipes.connect());
    let slow = pipes.connect_with_room(0);
    for who in [slow, hears] {
        // Two patterns that match: it is counted once, closed once.
        pipes.say(who, &["listen c", "listen >"]);
    }
    assert_eq!(pipes.read(hears), "ok\nok\n");
    let (signal, told) = (longest_signal("c"), 65_537);
    for nth in 0..LONGEST_HEARD {
        assert_eq!(pipes.ask(speaker, &signal), "ok 2\n", "{nth}");
        assert_eq!(pipes.read(hears).len(), told);
    }
    assert!(!pipes.peer(slow).is_closed());
    assert_eq!(slow_consumers(&mut pipes, speaker), 0);
    // One more, and it is not counted, for it is not told.
    assert_eq!(pipes.ask(speaker, &signal), "ok 1\n");
    assert_eq!(pipes.read(hears).len(), told);
    assert!(pipes.peer(slow).is_closed());
    assert_eq!(slow_consumers(&mut pipes, speaker), 1);
    assert_eq!(pipes.ask(speaker, &signal), "ok 1\n");
    assert_eq!(slow_consumers(&mut pipes, speaker), 1);
    assert!(!pipes.peer(hears).is_closed());
}

/// A client that reads in time hears again, and has missed nothing.
#[test]
fn a_client_that_reads_before_the_next_push_goes_on_listening() {
    let mut pipes = pipes();
    let speaker = pipes.connect();
    let slow = pipes.connect_with_room(0);
    pipes.say(slow, &["listen c"]);
    let signal = longest_signal("c");
    for _ in 0..LONGEST_HEARD {
        assert_eq!(pipes.ask(speaker, &signal), "ok 1\n");
    }
    make_room(&mut pipes, slow, usize::MAX);
    assert_eq!(pipes.read(slow).lines().count(), 1 + LONGEST_HEARD);
    assert_eq!(pipes.ask(speaker, "signal c again"), "ok 1\n");
    assert_eq!(pipes.read(slow), "sig c again\n");
    assert_eq!(slow_consumers(&mut pipes, speaker), 0);
}

/// Whoever has no room is written to when the poll says that there is some, and costs nothing before.
#[test]
fn a_client_without_room_is_not_written_to_with_every_push() {
    const COUNTS: usize = 90;
    for (door, watch, event) in [
        (Door::Line, "watch\n>\n\n", "watch incr c\n"),
        (
            Door::Http,
            "GET /v1/watch?pattern=%3E HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "event: incr",
        ),
    ] {
        let mut pipes = pipes();
        let (watcher, asker) = (pipes.connect_to(door), pipes.connect());
        // What it costs to count up while nobody watches.
        let count = |pipes: &mut Pipes| {
            pipes.meter.reset();
            assert!(pipes.ask(asker, "incr c 1").starts_with("ok "));
            pipes.meter.reset()
        };
        count(&mut pipes);
        let alone_ns = count(&mut pipes);
        pipes.send(watcher, watch.as_bytes());
        pipes.turn();
        pipes.read(watcher);
        make_room(&mut pipes, watcher, 10);
        // It is told some of the first; from then on the poll is to say when there is room.
        count(&mut pipes);
        for _ in 1..COUNTS {
            assert_eq!(count(&mut pipes), alone_ns, "{door:?}");
        }
        make_room(&mut pipes, watcher, usize::MAX);
        let told = pipes.read(watcher);
        assert_eq!(told.matches(event).count(), COUNTS, "{door:?}: {told}");
    }
}

/// More than the bound at once is no reason to close a client that reads.
#[test]
fn a_client_that_reads_hears_any_number_of_pushes() {
    let mut pipes = pipes();
    let (speaker, hears) = (pipes.connect(), pipes.connect());
    pipes.say(hears, &["listen c"]);
    assert_eq!(pipes.read(hears), "ok\n");
    let signal = longest_signal("c");
    pipes.say(speaker, &vec![signal.as_str(); 3 * LONGEST_HEARD]);
    assert_eq!(pipes.read(speaker), "ok 1\n".repeat(3 * LONGEST_HEARD));
    assert_eq!(pipes.read(hears).len(), 3 * LONGEST_HEARD * 65_537);
    assert_eq!(slow_consumers(&mut pipes, speaker), 0);
}

/// Watchers and observers are cut off by the same rule.
#[test]
fn a_watcher_and_an_observer_that_do_not_read_are_closed_too() {
    for (subscribe, happens) in [
        ("watch >", ["incr k 1", "decr k 1"]),
        ("observe L", ["elect L 0 1ms", "ping"]),
    ] {
        let mut pipes = pipes();
        let actor = pipes.connect();
        let slow = pipes.connect_with_room(0);
        pipes.say(slow, &[subscribe, "listen fill"]);
        let fill = longest_signal("fill");
        for _ in 0..LONGEST_HEARD {
            assert_eq!(pipes.ask(actor, &fill), "ok 1\n");
        }
        assert!(!pipes.peer(slow).is_closed(), "{subscribe}");
        pipes.say(actor, &happens);
        assert!(pipes.read(actor).starts_with("ok "));
        assert!(pipes.peer(slow).is_closed(), "{subscribe}");
        assert_eq!(pipes.ask(actor, "signal fill x"), "ok 0\n");
    }
}

/// A group whose first member is full: the next one hears. None can: nobody does, the one whose
/// turn it is goes, and the group is no black hole for those who come.
#[test]
fn a_group_passes_over_a_full_member_and_survives_when_all_are_full() {
    let mut pipes = pipes();
    let speaker = pipes.connect();
    let full = pipes.connect_with_room(0);
    pipes.say(full, &["listen jobs g", "listen fill"]);
    let second = pipes.connect();
    pipes.say(second, &["listen jobs g"]);
    assert_eq!(pipes.read(second), "ok\n");
    let fill = longest_signal("fill");
    for _ in 0..LONGEST_HEARD {
        assert_eq!(pipes.ask(speaker, &fill), "ok 1\n");
    }
    for _ in 0..3 {
        assert_eq!(pipes.ask(speaker, "signal jobs x"), "ok 1\n");
        assert_eq!(pipes.read(second), "sig jobs x\n");
    }
    assert!(!pipes.peer(full).is_closed());
    pipes.say(second, &["unlisten jobs g"]);
    assert_eq!(pipes.read(second), "ok\n");
    assert_eq!(pipes.ask(speaker, "signal jobs x"), "ok 0\n");
    assert!(pipes.peer(full).is_closed());
    assert_eq!(slow_consumers(&mut pipes, speaker), 1);
    pipes.say(second, &["listen jobs g"]);
    assert_eq!(pipes.read(second), "ok\n");
    assert_eq!(pipes.ask(speaker, "signal jobs y"), "ok 1\n");
    assert_eq!(pipes.read(second), "sig jobs y\n");
}

/// Nobody told the server that the peer is gone: the first push finds out, and the command parked
/// on that connection goes with it.
#[test]
fn a_push_to_a_dead_peer_ends_what_it_waited_for() {
    for waits in ["blpop q 60", "bwait b 2 60", "l k 60"] {
        let mut pipes = pipes();
        let speaker = pipes.connect();
        assert!(pipes.ask(speaker, "l k 0").starts_with("ok "));
        let dead = pipes.connect();
        pipes.say(dead, &["listen c", waits]);
        pipes.peer(dead).reset();
        assert_eq!(pipes.ask(speaker, "signal c x"), "ok 1\n");
        assert!(pipes.peer(dead).is_closed());
        assert_eq!(pipes.ask(speaker, "rpush q v"), "ok 1\n");
        let stats = pipes.ask(speaker, "stats");
        assert!(stats.contains("\"barriers\":[],"), "{stats}");
        assert!(stats.contains("\"waiters\":0,"), "{stats}");
        assert_eq!(pipes.ask(speaker, "signal c x"), "ok 0\n");
    }
}

/// What a peer is told is whole lines, in order, however little it takes at a time, until its end.
#[test]
fn pushes_are_whole_lines_in_order_however_slowly_they_are_read() {
    let mut pipes = pipes();
    let speaker = pipes.connect();
    let slow = pipes.connect_with_room(3);
    pipes.say(slow, &["listen c", "watch k"]);
    let mut heard = String::new();
    let mut expected = "ok\nok\n".to_owned();
    for nth in 0..50 {
        assert_eq!(pipes.ask(speaker, &format!("signal c {nth}")), "ok 1\n");
        assert_eq!(pipes.ask(speaker, "incr k 1"), format!("ok {}\n", nth + 1));
        expected += &format!("sig c {nth}\nwatch incr k\n");
        heard += &pipes.read(slow);
        make_room(&mut pipes, slow, 3);
    }
    pipes.say(slow, &["ping"]); // answered behind what was told before
    expected += "ok\n";
    while heard.len() < expected.len() {
        heard += &pipes.read(slow);
        make_room(&mut pipes, slow, 7);
    }
    assert_eq!(heard, expected);
    reset(&mut pipes, slow);
    assert_eq!(pipes.ask(speaker, "signal c x"), "ok 0\n");
}

/// More subscriptions than one turn undoes: nobody hears through those that are left.
#[test]
fn a_client_that_leaves_with_many_subscriptions_hears_through_none_of_them() {
    let mut pipes = pipes();
    let speaker = pipes.connect();
    let many = pipes.connect();
    let frames: Vec<String> = (0..10_000)
        .map(|nth| match nth % 4 {
            0 => format!("listen c.{nth}"),
            // A client may be in only so many groups of one pattern; the signal is for the last.
            1 if nth < 9_800 => format!("listen c.{}.* g{nth}", nth / 200),
            1 => format!("listen c.* g{nth}"),
            2 => format!("watch k.{nth}.>"),
            _ => format!("observe L{nth}"),
        })
        .collect();
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    pipes.say(many, &frames);
    assert_eq!(pipes.read(many), "ok\n".repeat(10_000));
    assert_eq!(pipes.server.holdings().engine.subscriptions, 10_000);
    // The first of its turns only, and the speaker has its say before the rest.
    pipes.reset(many);
    pipes.send(speaker, b"signal\nc.9996\nx\n");
    pipes.turn();
    assert_eq!(pipes.read(speaker), "ok 0\n");
    assert!(pipes.server.holdings().engine.subscriptions > 0);
    pipes.rest();
    assert_eq!(pipes.server.holdings().engine.subscriptions, 0);
    reset(&mut pipes, speaker);
    assert_eq!(pipes.server.holdings(), Holdings::default());
}

#[test]
fn a_crowd_of_watchers_does_not_make_one_release_grant_to_all_at_once() {
    const WATCHERS: usize = 500;
    const READERS: usize = 100;
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let writer = pipes.connect();
    let token = pipes.ask(writer, "wl doc 0");
    let token = token.split(' ').nth(1).expect("granted").to_owned();
    let readers: Vec<usize> = (0..READERS).map(|_| pipes.connect()).collect();
    for &reader in &readers {
        assert_eq!(pipes.ask(reader, "rl doc 10"), "");
    }
    let watchers: Vec<usize> = (0..WATCHERS).map(|_| pipes.connect()).collect();
    for &watcher in &watchers {
        assert_eq!(pipes.ask(watcher, "watch >"), "ok\n");
    }
    pipes.send(writer, format!("wr\ndoc\n{token}\n").as_bytes());
    pipes.turn();
    let grants = pipes.server.engine().tally().grants as usize;
    assert!(grants < READERS, "50,000 pushes in one turn");
    pipes.rest();
    for &reader in &readers {
        assert!(pipes.read(reader).starts_with("ok "));
    }
    for &watcher in &watchers {
        assert_eq!(pipes.read(watcher).lines().count(), 1 + READERS);
    }
}

#[test]
fn a_client_that_pops_and_does_not_read_is_served_so_many_and_no_more() {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let filler = pipes.connect();
    pipes.say(filler, &vec!["rpush jobs x"; 5_000]);
    let deaf = pipes.connect_with_room(0);
    pipes.say(deaf, &vec!["lpop jobs"; 5_000]);
    pipes.read(filler);
    assert_eq!(
        pipes.ask(filler, "llen jobs"),
        "ok 3976\n",
        "1,024 are popped"
    );
    // Whoever reads gets on.
    pipes.set_room(deaf, usize::MAX);
    pipes.settle();
    assert_eq!(pipes.read(deaf).lines().count(), 5_000);
}

// ---- many who hear a long signal ----

/// What others are answered meanwhile is no push that was sent: whoever wants to signal waits until
/// sending has really caught up.
#[test]
fn a_signal_waits_for_the_pushes_before_it_whatever_else_is_sent() {
    const LISTENERS: usize = 600;
    const READERS: usize = 32;
    let mut pipes = pipes();
    pipes.skip_checks();
    let listeners: Vec<usize> = (0..LISTENERS).map(|_| pipes.connect()).collect();
    for &who in &listeners {
        assert_eq!(pipes.ask(who, "listen news"), "ok\n");
    }
    let long = "x".repeat(64_000);
    let push_bytes = "sig news \n".len() + long.len();
    let readers: Vec<usize> = (0..READERS).map(|_| pipes.connect()).collect();
    let value = "x".repeat(15_000);
    assert_eq!(pipes.ask(readers[0], &format!("kset v {value}")), "ok\n");
    let [first, second] = [(); 2].map(|()| pipes.connect());
    pipes.send(first, format!("signal\nnews\n{long}\n").as_bytes());
    while pipes.read(first).is_empty() {
        pipes.turn();
    }
    pipes.send(second, b"signal\nnews\nshort\n");
    let (mut heard_bytes, mut answered_bytes) = (0, 0);
    while pipes.read(second).is_empty() {
        for &who in &readers {
            pipes.send(who, b"kget\nv\n\n");
        }
        pipes.turn();
        let heard = listeners.iter().map(|&who| pipes.read(who).len());
        heard_bytes += heard.sum::<usize>();
        let answered = readers.iter().map(|&who| pipes.read(who).len());
        answered_bytes += answered.sum::<usize>();
    }
    assert!(answered_bytes > PUSH_BYTES_BEHIND / 16, "{answered_bytes}");
    let left = LISTENERS * push_bytes - heard_bytes;
    assert!(left < PUSH_BYTES_BEHIND, "{left} bytes were not sent");
    pipes.settle();
    let heard = listeners.iter().map(|&who| pipes.read(who).len());
    heard_bytes += heard.sum::<usize>();
    let short_bytes = "sig news short\n".len();
    assert_eq!(heard_bytes, LISTENERS * (push_bytes + short_bytes));
}

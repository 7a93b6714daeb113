//! The scenarios: what the hot path does, again and again.
//!
//! Names and numbers of operations are what `benches/instructions.txt` is compared by. Frames and
//! answers have a fixed length, so a peer knows where its tokens are.

use std::hint::black_box;

use latchd::base::{Millis, Nanos};
use latchd::timers::Timers;

use crate::harness::{A, Harness};
use crate::server_harness::ServerHarness;

/// Something that is done again and again.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Operations in one round.
    pub(crate) batch: u32,
    /// For which numbers of operations instructions are counted.
    pub(crate) operations: [u32; 2],
    /// Prepares, then does this many rounds.
    pub(crate) run: fn(u32),
}

const PEERS: usize = 64;
const PIPELINE: usize = 16;
/// Locks held, or timers armed, beside the one that is looked at.
const MANY: u32 = 100_000;
/// How long a wait lasts that ends in vain.
const WAIT: Millis = Millis(5);

pub(crate) const SCENARIOS: [Scenario; 12] = [
    // The floor: what a request costs that asks nothing of the engine.
    served("server/ping", PEERS, |rounds| {
        repeat(rounds, "ping\n_\n\n", "ok\n");
    }),
    served("server/acquire+release", PEERS, |rounds| {
        acquire_and_release(rounds, 1);
    }),
    served(
        "server/acquire+release,pipeline-16",
        PEERS * PIPELINE,
        |rounds| {
            acquire_and_release(rounds, PIPELINE);
        },
    ),
    served("server/renew", PEERS, renew),
    served("server/hand-over,64-waiting", 1, hand_over),
    served("server/wait-in-vain", PEERS, wait_in_vain),
    served("server/incr", PEERS, incr),
    served("server/kset+kget", PEERS, kset_and_kget),
    served("server/signal-to-1", PEERS / 2, signal),
    alone("engine/acquire+release", |rounds| engine(rounds, 0)),
    alone("engine/acquire+release,100000-held", |rounds| {
        engine(rounds, MANY);
    }),
    alone("timers/arm+cancel,100000-armed", timers),
];

/// Through the server, from bytes to bytes.
const fn served(name: &'static str, batch: usize, run: fn(u32)) -> Scenario {
    Scenario {
        name,
        batch: batch as u32,
        operations: [2 * 1_024, 10 * 1_024],
        run,
    }
}

/// Without bytes.
const fn alone(name: &'static str, run: fn(u32)) -> Scenario {
    Scenario {
        name,
        batch: 1,
        operations: [2_000, 22_000],
        run,
    }
}

fn server(peers: usize) -> ServerHarness {
    ServerHarness::new(Harness::new().engine, peers)
}

/// Everyone says the same, and hears the same.
fn repeat(rounds: u32, request: &str, answer: &str) {
    let mut server = server(PEERS);
    for who in 0..PEERS {
        server.peer(who).says = request.into();
    }
    for _ in 0..rounds {
        server.turn(0..PEERS);
        expect(&mut server, 0..PEERS, answer.as_bytes());
    }
}

/// Each of these has heard just this.
fn expect(server: &mut ServerHarness, who: impl IntoIterator<Item = usize>, line: &[u8]) {
    for who in who {
        let heard = &mut server.peer(who).heard;
        assert_eq!(heard, line);
        heard.clear();
    }
}

// ---- grants: frames that carry a token, and answers that do ----

const GRANT: &str = "ok ................................ 33\n";
const TOKEN: &str = "................................";
/// Where the token is in a grant.
const IN_GRANT: std::ops::Range<usize> = 3..35;

/// As many frames as there are names, each with `argument`.
fn frames(verb: &str, who: usize, count: usize, argument: &str) -> Vec<u8> {
    let frame = |index| format!("{verb}\njob:{who:02}:{index:02}\n{argument}\n");
    (0..count).map(frame).collect::<String>().into_bytes()
}

/// Writes the tokens of the grants that were heard into frames that end with a token.
fn fill_in(frames: &mut [u8], heard: &[u8], count: usize) {
    assert_eq!(heard.len(), count * GRANT.len(), "not all were granted");
    let frame_bytes = frames.len() / count;
    let at = frame_bytes - 1 - TOKEN.len();
    let frames = frames.chunks_exact_mut(frame_bytes);
    for (frame, grant) in frames.zip(heard.chunks_exact(GRANT.len())) {
        frame[at..at + TOKEN.len()].copy_from_slice(&grant[IN_GRANT]);
    }
}

/// Everyone takes its keys in one turn, and lets them go in the next.
fn acquire_and_release(rounds: u32, pipeline: usize) {
    let mut server = server(PEERS);
    let mut next: Vec<Vec<u8>> = Vec::new();
    for who in 0..PEERS {
        server.peer(who).says = frames("l", who, pipeline, "10");
        next.push(frames("r", who, pipeline, TOKEN));
    }
    let done = b"ok\n".repeat(pipeline);
    for _ in 0..rounds {
        server.turn(0..PEERS);
        for (who, next) in next.iter_mut().enumerate() {
            let peer = server.peer(who);
            fill_in(next, &peer.heard, pipeline);
            peer.heard.clear();
            std::mem::swap(&mut peer.says, next);
        }
        server.turn(0..PEERS);
        expect(&mut server, 0..PEERS, &done);
        for (who, next) in next.iter_mut().enumerate() {
            std::mem::swap(&mut server.peer(who).says, next);
        }
    }
}

fn renew(rounds: u32) {
    let mut server = server(PEERS);
    for who in 0..PEERS {
        server.peer(who).says = frames("l", who, 1, "10");
    }
    server.turn(0..PEERS);
    for who in 0..PEERS {
        let peer = server.peer(who);
        peer.says = frames("n", who, 1, TOKEN);
        fill_in(&mut peer.says, &peer.heard, 1);
        peer.heard.clear();
    }
    for _ in 0..rounds {
        server.turn(0..PEERS);
        expect(&mut server, 0..PEERS, b"ok 33\n");
    }
}

/// One key that everyone wants: its holder lets it go and goes to the end of the queue, in one
/// breath.
fn hand_over(rounds: u32) {
    const ASK: &str = "l\nhot\n10\n";
    let mut server = server(PEERS + 1);
    for who in 0..=PEERS {
        server.peer(who).says = ASK.into();
        server.turn(who..who + 1);
        server.peer(who).says = format!("r\nhot\n{TOKEN}\n{ASK}").into();
    }
    let token_at = "r\nhot\n".len();
    let mut holder = 0;
    for _ in 0..rounds {
        let peer = server.peer(holder);
        assert_eq!(peer.heard.len(), GRANT.len(), "not granted");
        let token = &peer.heard[IN_GRANT];
        peer.says[token_at..token_at + TOKEN.len()].copy_from_slice(token);
        peer.heard.clear();
        server.turn(holder..holder + 1);
        expect(&mut server, [holder], b"ok\n");
        holder = (holder + 1) % (PEERS + 1);
    }
}

/// Everyone waits for a key that one more keeps.
fn wait_in_vain(rounds: u32) {
    let mut server = server(PEERS + 1);
    let grant = server.ask(PEERS, "l\njob\n0 3600\n");
    assert!(grant.starts_with("ok "), "{grant}");
    for who in 0..PEERS {
        server.peer(who).says = format!("l\njob\n{}ms\n", WAIT.0).into();
    }
    for _ in 0..rounds {
        server.turn(0..PEERS);
        expect(&mut server, 0..PEERS, b"");
        server.pass(WAIT);
        server.turn(0..0);
        expect(&mut server, 0..PEERS, b"timeout\n");
    }
}

// ---- the other primitives ----

/// Everyone has a counter, long enough that it does not grow a digit.
fn incr(rounds: u32) {
    let mut server = server(PEERS);
    for who in 0..PEERS {
        let set = server.ask(who, &format!("cset\nhits:{who:02}\n1000000\n"));
        assert_eq!(set, "ok\n");
        server.peer(who).says = format!("incr\nhits:{who:02}\n1\n").into();
    }
    for round in 1..=rounds {
        server.turn(0..PEERS);
        let answer = format!("ok {}\n", 1_000_000 + round);
        expect(&mut server, 0..PEERS, answer.as_bytes());
    }
}

fn kset_and_kget(rounds: u32) {
    let mut server = server(PEERS);
    let mut next: Vec<Vec<u8>> = Vec::new();
    for who in 0..PEERS {
        server.peer(who).says = format!("kset\nconfig:{who:02}\nhello world, 42\n").into();
        next.push(format!("kget\nconfig:{who:02}\n\n").into());
    }
    for _ in 0..rounds {
        for answer in ["ok\n", "ok hello world, 42\n"] {
            server.turn(0..PEERS);
            expect(&mut server, 0..PEERS, answer.as_bytes());
            for (who, next) in next.iter_mut().enumerate() {
                std::mem::swap(&mut server.peer(who).says, next);
            }
        }
    }
}

/// One half speaks, each to one of the other half.
fn signal(rounds: u32) {
    let (speakers, listeners) = (0..PEERS / 2, PEERS / 2..PEERS);
    let mut server = server(PEERS);
    for (speaker, listener) in speakers.clone().zip(listeners.clone()) {
        let listens = server.ask(listener, &format!("listen\nnews.{speaker:02}\n\n"));
        assert_eq!(listens, "ok\n");
        server.peer(speaker).says = format!("signal\nnews.{speaker:02}\nhello\n").into();
    }
    for _ in 0..rounds {
        server.turn(speakers.clone());
        expect(&mut server, speakers.clone(), b"ok 1\n");
        for (speaker, listener) in speakers.clone().zip(listeners.clone()) {
            let heard = &mut server.peer(listener).heard;
            assert_eq!(heard.len(), b"sig news.00 hello\n".len(), "to {speaker}");
            heard.clear();
        }
    }
}

// ---- without the server ----

fn engine(rounds: u32, held: u32) {
    let mut harness = Harness::among(held);
    for _ in 0..rounds {
        let token = harness.acquire(A, b"job");
        harness.release(A, b"job", token);
    }
}

/// An uncontended lock: its lease is the latest of all, and is cancelled soon.
fn timers(rounds: u32) {
    let mut chance = fastrand::Rng::with_seed(7);
    let lease_ns = Millis::from_secs(33).nanos();
    let mut timers = Timers::new();
    for index in 0..MANY {
        timers.arm(Nanos(chance.u64(..lease_ns)), index);
    }
    for round in 0..rounds {
        let at = Nanos(lease_ns + 1_000 * u64::from(round));
        let id = timers.arm(at, round);
        timers.cancel(black_box(id));
        assert_eq!(timers.len(), MANY as usize);
    }
}

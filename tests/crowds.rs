//! Crowds of connections that want one thing in one moment: everybody else is served meanwhile, each
//! turn is short, and the crowd gets what it would have got in one piece. Over pipes.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latchd::engine::Rules;
use latchd::pipe::Pipes;
use latchd::server::Settings;

/// A server to which so many are connected.
fn pipes(peers: usize) -> Pipes {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    pipes.skip_checks();
    for _ in 0..peers {
        pipes.connect();
    }
    pipes
}

/// Each of these asks one thing, and the server comes to rest.
fn all_ask(pipes: &mut Pipes, who: std::ops::Range<usize>, request: &str) {
    for who in who {
        pipes.send(who, request.as_bytes());
        pipes.turn();
    }
    pipes.rest();
}

// ---- sending ----

/// A value so long that whoever is sent it comes after the others.
fn store_long_value(pipes: &mut Pipes, who: usize) {
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(who, &format!("kset big {value}")), "ok\n");
}

#[test]
fn a_push_does_not_stand_behind_the_long_answers_of_others() {
    const READERS: usize = 300;
    let mut pipes = pipes(READERS + 2);
    let (speaker, listener) = (READERS, READERS + 1);
    store_long_value(&mut pipes, speaker);
    assert_eq!(pipes.ask(listener, "listen news"), "ok\n");
    for who in 0..READERS {
        pipes.send(who, &b"kget\nbig\n\n".repeat(20));
    }
    for _ in 0..60 {
        pipes.turn(); // until each had its first share, and all are owed something long
    }
    for _ in 0..10 {
        pipes.send(speaker, b"signal\nnews\nx\n");
        pipes.turn();
        assert_eq!(pipes.read(speaker), "ok 1\n");
        assert_eq!(pipes.read(listener), "sig news x\n", "in the same turn");
        let readers = (0..READERS).filter(|&who| !pipes.read(who).is_empty());
        assert!(readers.count() >= 2, "long answers have a share too");
    }
}

#[test]
fn a_long_answer_does_not_wait_for_ever_behind_pushes() {
    const LISTENERS: usize = 1_000;
    let mut pipes = pipes(LISTENERS + 2);
    let (speaker, reader) = (LISTENERS, LISTENERS + 1);
    store_long_value(&mut pipes, speaker);
    all_ask(&mut pipes, 0..LISTENERS, "listen\nnews\n\n");
    pipes.send(reader, b"kget\nbig\n\n");
    let mut received = 0;
    for turn in 0.. {
        pipes.send(speaker, b"signal\nnews\nx\n"); // more than leaves in a turn
        pipes.turn();
        received += pipes.read(reader).len();
        if received > 60_000 {
            break;
        }
        assert!(turn < 3, "{received} bytes of it have left");
    }
}

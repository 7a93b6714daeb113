//! Memory: nothing is kept of those who went through a queue, and what a client sends is kept once.
//!
//! Counts every byte that is allocated and not freed, on the thread that runs the test, so each
//! test has a count of its own. The server runs over pipes: the same turns in every run, the same
//! bytes.

use std::collections::VecDeque;

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::Settings;

use crate::allocator::live_bytes;

fn pipes() -> Pipes {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    pipes.skip_checks();
    pipes
}

/// The token of a grant that has come.
fn granted(pipes: &mut Pipes, who: usize) -> String {
    let answer = pipes.read(who);
    let Some(grant) = answer.strip_prefix("ok ") else {
        panic!("{answer:?}");
    };
    grant[..32].to_owned()
}

/// A queue that is never empty, which waiters leave in every way there is: granted at its head, out
/// of time in its middle, with their connection. They come again at its end, and a queue of the
/// same length takes the same memory.
#[test]
fn a_queue_keeps_nothing_of_the_clients_that_went_through_it() {
    const WAITERS: usize = 40;
    const JOIN: [&str; 4] = ["l job 600 600", "e job 600", "l job 1", "l job 600"];
    let join = |pipes: &mut Pipes, who: usize| {
        let said = pipes.ask(who, JOIN[who % 4]);
        assert_eq!(said, if who % 4 == 1 { "queued\n" } else { "" });
    };
    let mut pipes = pipes();
    pipes.connect();
    pipes.say(0, &[JOIN[0]]);
    let mut token = granted(&mut pipes, 0);
    for who in 1..=WAITERS {
        pipes.connect();
        join(&mut pipes, who);
    }
    // The first of those who stay until they are granted is the holder.
    let mut staying: VecDeque<usize> = (0..=WAITERS).filter(|who| who % 4 < 2).collect();
    let mut round = |pipes: &mut Pipes| {
        pipes.pass(Millis::from_secs(1));
        pipes.settle();
        for who in (0..=WAITERS).filter(|who| who % 4 >= 2) {
            if who % 4 == 2 {
                assert_eq!(pipes.read(who), "timeout\n");
            } else {
                pipes.replace(who);
            }
            join(pipes, who);
        }
        for _ in 1..staying.len() {
            let release = format!("r job {token}");
            assert_eq!(pipes.ask(staying[0], &release), "ok\n");
            join(pipes, staying[0]);
            staying.rotate_left(1);
            if staying[0] % 4 == 1 {
                pipes.say(staying[0], &["w job 0"]);
            }
            token = granted(pipes, staying[0]);
        }
    };
    for _ in 0..50 {
        round(&mut pipes);
    }
    let before = live_bytes();
    for _ in 0..500 {
        round(&mut pipes);
    }
    let grown = live_bytes() - before;
    assert_eq!(grown, 0, "bytes after {} more waiters", 500 * WAITERS);
}

/// Bytes kept for each byte that a client sends, whatever it asks to be kept.
#[test]
fn what_a_client_sends_is_kept_about_once() {
    const KEPT_MAX: usize = 3;
    const FRAMES: usize = 2_000;
    let frame_of: [fn(String) -> String; 9] = [
        |text| format!("rpush\nq\n{text}\n"),
        |text| format!("rpush\n{text}\nv\n"),
        |text| format!("kset\n{text}\n{text}\n"),
        |text| format!("incr\n{text}\n1\n"),
        |text| format!("l\n{text}\n0\n"),
        |text| format!("listen\n{text}\n\n"),
        |text| format!("listen\na{}\n{text}\n", text.trim_start_matches('0')),
        |text| format!("watch\n{text}\n\n"),
        |text| format!("observe\n{text}\n\n"),
    ];
    for frame_of in frame_of {
        let mut pipes = pipes();
        let who = pipes.connect();
        let before = live_bytes();
        let mut sent = 0;
        for nth in 0..FRAMES {
            let frame = frame_of(format!("{nth:0>250}"));
            sent += frame.len();
            pipes.send(who, frame.as_bytes());
            pipes.settle();
            assert!(pipes.read(who).starts_with("ok"));
        }
        let kept = (live_bytes() - before) as usize;
        let verb = frame_of(String::new());
        assert!(
            kept < KEPT_MAX * sent,
            "{kept} bytes are kept of {sent}: {verb:?}"
        );
        assert!(kept > sent / 4, "{verb:?} keeps nothing");
    }
}

/// Also of names that are short, or made of many tokens, and when the tables have just grown.
#[test]
fn a_subscription_keeps_at_most_eight_bytes_for_each_byte_sent() {
    const KEPT_MAX: usize = 8;
    const FRAMES: usize = 4_097;
    let dotted = |nth: usize, tokens: usize| {
        let digits = format!("{nth:0>tokens$}");
        let tokens: Vec<String> = digits.chars().map(String::from).collect();
        tokens.join(".")
    };
    let names: [(&str, &dyn Fn(usize) -> String); 5] = [
        ("20 bytes", &|nth| format!("{nth:0>20}")),
        ("10 tokens", &|nth| dotted(nth, 10) + "."),
        ("128 tokens", &|nth| dotted(nth, 128)),
        ("7 tokens and a star", &|nth| dotted(nth, 7) + ".*.abcd"),
        ("127 tokens and the rest", &|nth| dotted(nth, 127) + ".>"),
    ];
    for verb in ["listen", "watch", "observe"] {
        for (what, name) in names {
            let mut pipes = pipes();
            let who = pipes.connect();
            let before = live_bytes();
            let mut sent = 0;
            for nth in 0..FRAMES {
                let frame = format!("{verb}\n{}\n\n", name(nth));
                sent += frame.len();
                pipes.send(who, frame.as_bytes());
                pipes.settle();
                assert_eq!(pipes.read(who), "ok\n");
            }
            let kept = (live_bytes() - before) as usize;
            assert!(
                kept <= KEPT_MAX * sent,
                "{kept} bytes are kept of {sent}: {verb} {what}"
            );
        }
    }
}

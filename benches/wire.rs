//! How long one frame takes to read and one line to spell, of every primitive. No socket, no
//! engine.
//!
//! Each frame must decode, and each line is compared with what a client should read.

#![allow(
    missing_docs,
    reason = "criterion's macros write undocumented functions"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{Fence, Millis, Token};
use latchd::engine::types::{Change, End, Event, Loss, Popped, Push, Refusal, Reply};
use latchd::key::Key;
use latchd::wire::Answer;
use latchd::wire::answer::WireFence;
use latchd::wire::codec::{Decoded, LineCodec};
use latchd::wire::command::Asked;

const TOKEN: &str = "000000000000002a9f8e7d6c5b4a3921";

/// Decodes everything in `input` and says how many frames that were.
fn drain(codec: &mut LineCodec, mut input: &[u8], scratch: &mut Vec<u8>) -> usize {
    let mut frames = 0;
    while let Decoded::Request(asked) = codec.decode(black_box(input), scratch) {
        black_box(&asked.command);
        frames += 1;
        input = &input[asked.used..];
    }
    frames
}

/// One frame of each shape that clients send often. The letters of a kind (`sl`, `rl`) are only
/// worth a row of their own where the argument differs.
const FRAMES: &[(&str, &str)] = &[
    ("l", "l\nmy-job\n10\n"),
    ("l_lease", "l\nmy-job\n10 60\n"),
    ("r", "r\nmy-job\n000000000000002a9f8e7d6c5b4a3921\n"),
    ("n", "n\nmy-job\n000000000000002a9f8e7d6c5b4a3921 60\n"),
    ("e", "e\nmy-job\n60\n"),
    ("w", "w\nmy-job\n10\n"),
    ("sl", "sl\npool\n10 4\n"),
    ("rl", "rl\ndoc\n10\n"),
    ("wl", "wl\ndoc\n10 1500ms\n"),
    ("elect", "elect\nprimary\n10 60\n"),
    (
        "resign",
        "resign\nprimary\n000000000000002a9f8e7d6c5b4a3921\n",
    ),
    ("incr", "incr\nhits\n1\n"),
    ("get", "get\nhits\n\n"),
    ("kset", "kset\nconfig\nhello world, 42\t60\n"),
    ("kget", "kget\nconfig\n\n"),
    ("kcas", "kcas\nconfig\nhello\tworld\t60\n"),
    ("kdel", "kdel\nconfig\n\n"),
    ("rpush", "rpush\nqueue\n{\"id\":42}\n"),
    ("lpop", "lpop\nqueue\n\n"),
    ("blpop", "blpop\nqueue\n10\n"),
    ("bwait", "bwait\nstart\n2 10\n"),
    ("listen", "listen\nevents.*.login\n\n"),
    ("signal", "signal\nevents.user.login\n{\"id\":42}\n"),
    ("watch", "watch\nconfig.>\n\n"),
    ("ping", "ping\n_\n\n"),
    ("l_crlf", "l\r\nmy-job\r\n10\r\n"),
];

fn decoding(c: &mut Criterion) {
    let mut codec = LineCodec::new(WireFence::Auto);
    let mut scratch = Vec::new();
    let mut group = c.benchmark_group("decode");
    for &(name, frame) in FRAMES {
        group.bench_function(name, |b| {
            b.iter(
                || match codec.decode(black_box(frame.as_bytes()), &mut scratch) {
                    Decoded::Request(Asked {
                        command: Ok(command),
                        used,
                        ..
                    }) if used == frame.len() => {
                        black_box(command);
                    }
                    other => panic!("{name}: {other:?}"),
                },
            );
        });
    }

    let pair = format!("l\nmy-job\n10\nr\nmy-job\n{TOKEN}\n");
    let pipeline = pair.repeat(8);
    group.throughput(Throughput::Elements(16));
    group.bench_function("pipelined_16", |b| {
        b.iter(|| assert_eq!(drain(&mut codec, pipeline.as_bytes(), &mut scratch), 16));
    });
    group.finish();

    // The worst a frame can be looked at again: a secret that lacks its last byte.
    let secret = format!("auth\n_\n{}", "s".repeat(65_536));
    c.bench_function("decode/unfinished_64k", |b| {
        b.iter(|| {
            let decoded = codec.decode(black_box(secret.as_bytes()), &mut scratch);
            assert!(matches!(decoded, Decoded::Unfinished { .. }));
        });
    });
}

fn encoding(c: &mut Criterion) {
    let mut codec = LineCodec::new(WireFence::Always);
    assert_eq!(drain(&mut codec, b"l\nmy-job\n10\n", &mut Vec::new()), 1);
    let fence = Fence(1_700_000_000_000_042);
    let salt = 0x9f8e_7d6c_5b4a_3921;
    let (token, lease) = (Token { fence, salt }, Millis::from_secs(33));
    let grant = format!("{:016x}{salt:016x} 33 {fence}\n", fence.0);
    let popped = Popped {
        key: Key::from(&b"queue"[..]),
        end: End::Left,
        value: (*b"{\"id\":42}").into(),
    };
    let values = b"\"one\",\"two\"".to_vec();
    let replies = [
        (
            "granted",
            Reply::Granted { token, lease },
            format!("ok {grant}"),
        ),
        (
            "acquired",
            Reply::Acquired { token, lease },
            format!("acquired {grant}"),
        ),
        (
            "renewed",
            Reply::Renewed { lease, fence },
            "ok 33 1700000000000042\n".to_owned(),
        ),
        ("ok", Reply::Done, "ok\n".to_owned()),
        ("queued", Reply::Queued, "queued\n".to_owned()),
        ("timeout", Reply::TimedOut, "timeout\n".to_owned()),
        ("number", Reply::Number(1_042), "ok 1042\n".to_owned()),
        (
            "value",
            Reply::Value((*b"hello world, 42").into()),
            "ok hello world, 42\n".to_owned(),
        ),
        (
            "popped",
            Reply::Popped(popped),
            "ok {\"id\":42}\n".to_owned(),
        ),
        (
            "values",
            Reply::Values(values),
            "ok [\"one\",\"two\"]\n".to_owned(),
        ),
        ("nil", Reply::Nothing, "nil\n".to_owned()),
        ("conflict", Reply::Conflict, "cas_conflict\n".to_owned()),
        (
            "error",
            Reply::Refused(Refusal::LeaseExpired),
            "error_lease_expired\n".to_owned(),
        ),
    ];
    for (name, reply, line) in replies {
        spelling(c, &format!("encode/{name}"), &line, |out| {
            codec.encode(out, Answer::Reply(black_box(&reply)));
        });
    }

    let key = Key::from(&b"my-job"[..]);
    let (channel, payload) = ((*b"events.user.login").into(), (*b"{\"id\":42}").into());
    let (event, change) = (Event::Acquire, Change::Failover);
    let pushes = [
        (
            "signal",
            Push::Signal { channel, payload },
            "sig events.user.login {\"id\":42}\n",
        ),
        (
            "watch",
            Push::Watch {
                event,
                key: key.clone(),
            },
            "watch acquire my-job\n",
        ),
        (
            "leader",
            Push::Leader {
                change,
                key: key.clone(),
            },
            "leader failover my-job\n",
        ),
        (
            "lost",
            Push::Lost {
                key,
                fence,
                why: Loss::Expired,
            },
            "lost my-job 1700000000000042 expired\n",
        ),
    ];
    for (name, push, line) in pushes {
        spelling(c, &format!("encode/push_{name}"), line, |out| {
            codec.encode(out, Answer::Push(black_box(&push)));
        });
    }
}

/// One line into an outbox that has room, as it has when the connection is not new.
fn spelling(c: &mut Criterion, name: &str, line: &str, spell: impl Fn(&mut Vec<u8>)) {
    let mut out = Vec::with_capacity(256);
    c.bench_function(name, |b| {
        b.iter(|| {
            out.clear();
            spell(&mut out);
            assert_eq!(black_box(&*out), line.as_bytes());
        });
    });
}

criterion_group!(benches, decoding, encoding);
criterion_main!(benches);

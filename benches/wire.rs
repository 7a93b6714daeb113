//! How long one frame takes to read and one answer to spell. No socket, no engine.

#![allow(
    missing_docs,
    reason = "criterion's macros write undocumented functions"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{Fence, Millis, Token};
use latchd::engine::types::Reply;
use latchd::wire::line::{Decoded, decode};
use latchd::wire::reply::encode_reply;

const TOKEN: &str = "000000000000002a9f8e7d6c5b4a3921";

/// Decodes everything in `input` and says how many frames that were.
fn drain(mut input: &[u8], scratch: &mut Vec<u8>) -> usize {
    let mut frames = 0;
    while let Decoded::Frame(frame) = decode(black_box(input), scratch) {
        black_box(&frame.command);
        frames += 1;
        input = &input[frame.used..];
    }
    frames
}

fn decoding(c: &mut Criterion) {
    let mut scratch = Vec::new();
    for (name, frame) in [
        ("decode/l", "l\nmy-job\n10\n".to_owned()),
        ("decode/l_lease", "l\nmy-job\n10 60\n".to_owned()),
        ("decode/r", format!("r\nmy-job\n{TOKEN}\n")),
        ("decode/n", format!("n\nmy-job\n{TOKEN} 60\n")),
        ("decode/incr", "incr\nhits\n1\n".to_owned()),
        (
            "decode/kset",
            "kset\nconfig\nhello world, 42\t60\n".to_owned(),
        ),
        (
            "decode/signal",
            "signal\nevents.user.login\n{\"id\":42}\n".to_owned(),
        ),
        ("decode/l_crlf", "l\r\nmy-job\r\n10\r\n".to_owned()),
    ] {
        c.bench_function(name, |b| {
            b.iter(|| {
                black_box(decode(black_box(frame.as_bytes()), &mut scratch));
            });
        });
    }

    let pair = format!("l\nmy-job\n10\nr\nmy-job\n{TOKEN}\n");
    let pipeline = pair.repeat(8);
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Elements(16));
    group.bench_function("pipelined_16", |b| {
        b.iter(|| assert_eq!(drain(pipeline.as_bytes(), &mut scratch), 16));
    });
    group.finish();

    // The worst a frame can be looked at again: a secret that lacks its last byte.
    let secret = format!("auth\n_\n{}", "s".repeat(65_536));
    c.bench_function("decode/unfinished_64k", |b| {
        b.iter(|| {
            black_box(decode(black_box(secret.as_bytes()), &mut scratch));
        });
    });
}

fn encoding(c: &mut Criterion) {
    let token = Token {
        fence: Fence(1_700_000_000_000_042),
        salt: 0x9f8e_7d6c_5b4a_3921,
    };
    let lease = Millis::from_secs(33);
    let fence = token.fence;
    let mut out = Vec::with_capacity(256);
    for (name, reply) in [
        ("encode/granted", Reply::Granted { token, lease }),
        ("encode/renewed", Reply::Renewed { lease, fence }),
    ] {
        c.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                encode_reply(&mut out, black_box(&reply), true);
                black_box(out.len());
            });
        });
    }
}

criterion_group!(benches, decoding, encoding);
criterion_main!(benches);

//! How long one HTTP request takes to read, and one answer to spell. No socket, no engine.
//!
//! Each request must decode, and each answer must have its status.

#![allow(
    missing_docs,
    reason = "criterion's macros write undocumented functions"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{Millis, Token};
use latchd::engine::types::Reply;
use latchd::wire::http::answer::{self, Facts, Holding};
use latchd::wire::http::{Decoded, Memo, Reader};

const LEASE_ID: &str = "00000000-0000-002a-9f8e-7d6c5b4a3921";

/// What a small program sends in front of its body.
const HEADERS: &str =
    "Host: localhost:6389\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n";

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {length}\r\n\
         Content-Type: application/json\r\n\r\n{body}"
    )
}

fn requests() -> Vec<(&'static str, String)> {
    let hold =
        format!("\"owner_id\":\"client-7\",\"lease_id\":\"{LEASE_ID}\",\"fencing_token\":42");
    vec![
        ("get", format!("GET /v1/locks/x HTTP/1.1\r\n{HEADERS}\r\n")),
        (
            "acquire",
            post(
                "/v1/locks/x/acquire",
                "{\"owner_id\":\"client-7\",\"ttl_ms\":800}",
            ),
        ),
        (
            "release",
            post("/v1/locks/x/release", &format!("{{{hold}}}")),
        ),
        (
            "renew",
            post(
                "/v1/locks/x/renew",
                &format!("{{{hold},\"extend_by_ms\":500}}"),
            ),
        ),
        (
            "signal",
            post("/v1/signals/evt.done", "{\"payload\":\"all of it\"}"),
        ),
        (
            "escaped",
            post("/v1/kv/a%2Fb", "{\"value\":\"cl\\u00e9\"}").replacen("POST", "PUT", 1),
        ),
    ]
}

fn decoding(c: &mut Criterion) {
    let (mut reader, mut scratch) = (Reader::default(), Vec::new());
    let mut group = c.benchmark_group("http_decode");
    for (name, request) in requests() {
        group.throughput(Throughput::Bytes(request.len() as u64));
        group.bench_function(name, |b| {
            b.iter(
                || match reader.decode(black_box(request.as_bytes()), &mut scratch) {
                    Decoded::Request(asked) => assert!(black_box(asked).what.is_ok()),
                    other => panic!("{name}: {other:?}"),
                },
            );
        });
    }
    group.finish();
}

fn answering(c: &mut Criterion) {
    let token = Token::parse(LEASE_ID.as_bytes());
    let granted = Reply::Granted {
        token: token.expect("it is one"),
        lease: Millis(800),
    };
    let facts = Facts {
        lease_expiry_ms: 1_767_225_660_000,
        holder: Some(Holding {
            owner: "client-8",
            expiry_ms: 1_767_225_660_000,
            left_ns: 500_000_000,
        }),
        ..Facts::default()
    };
    let requests = requests();
    let mut group = c.benchmark_group("http_answer");
    for (name, request, reply) in [
        ("granted", &requests[1].1, granted),
        ("held", &requests[1].1, Reply::TimedOut),
        ("released", &requests[2].1, Reply::Done),
    ] {
        let (mut scratch, mut memo) = (Vec::new(), Memo::default());
        let decoded = Reader::default().decode(request.as_bytes(), &mut scratch);
        let Decoded::Request(asked) = decoded else {
            panic!("{name}: {decoded:?}");
        };
        let mut out = Vec::new();
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                memo.keep(black_box(&asked.context), [1, 2]);
                let context = memo.context().expect("it was kept");
                answer::reply(&mut out, &context, black_box(&reply), &facts);
                assert!(black_box(&out).starts_with(b"HTTP/1.1 "));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decoding, answering);
criterion_main!(benches);

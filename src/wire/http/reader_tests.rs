//! One connection's requests, however they arrive.

use proptest::prelude::*;

use super::*;
use crate::engine::types::End;

/// With CRLF for `|`, and the length of what stands behind the empty line for `*`.
fn request(text: &str) -> Vec<u8> {
    let body = text.split_once("||").map_or("", |(_, body)| body);
    let length = format!("Content-Length: {}", body.len());
    text.replace("Content-Length: *", &length)
        .replace('|', "\r\n")
        .into_bytes()
}

const ACQUIRE: &str = "POST /v1/locks/job/acquire HTTP/1.1|Host: localhost|\
    Content-Type: application/json|Content-Length: *||{\"owner_id\":\"a\",\"ttl_ms\":800}";

/// What the input begins with, told without its lifetimes.
fn told(reader: &mut Reader, input: &[u8]) -> (usize, String) {
    let mut scratch = Vec::new();
    let decoded = reader.decode(input, &mut scratch);
    let used = match &decoded {
        Decoded::Request(asked) => asked.used,
        _ => 0,
    };
    (used, format!("{decoded:?}"))
}

/// All requests of this input, which arrives in pieces of so many bytes.
fn all_told(input: &[u8], step: usize) -> Vec<String> {
    let mut reader = Reader::default();
    let mut start = 0;
    let mut all = Vec::new();
    for upto in (0..input.len()).step_by(step).chain([input.len()]) {
        loop {
            let (used, what) = told(&mut reader, &input[start..upto]);
            if what.starts_with("Fault") {
                all.push(what);
                return all;
            }
            if used == 0 {
                break;
            }
            all.push(what);
            start += used;
        }
    }
    all
}

fn unfinished(part: Part, wants_continue: bool) -> String {
    let it: Decoded<'_> = Decoded::Unfinished {
        part,
        wants_continue,
    };
    format!("{it:?}")
}

#[test]
fn a_request_is_the_same_however_it_arrives() {
    let chunked = "PUT /v1/kv/a%2Fb HTTP/1.1|Host: x|Content-Type: application/json|\
        Transfer-Encoding: chunked||9|{\"value\":|5|\"\\u00|6|e9\", \"|B|ttl_ms\":5}!|0||";
    for text in [
        "GET /v1/locks/x HTTP/1.1|Host: x||",
        "GET /livez HTTP/1.0||",
        ACQUIRE,
        chunked,
        "||GET /v1/locks?limit=5&contains=a%20b HTTP/1.1|Host: x||",
        "POST /v1/lists/q/pop HTTP/1.1|Host: x|Content-Length: 0||",
    ] {
        let one = request(text);
        let input = [&one[..], &one, &request(ACQUIRE)].concat();
        let whole = all_told(&input, input.len());
        assert_eq!(whole.len(), 3, "{whole:?}");
        for step in 1..=one.len() {
            assert_eq!(all_told(&input, step), whole, "{text} by {step}");
        }
    }
}

#[test]
fn a_request_that_was_not_served_is_read_again() {
    let input = request(ACQUIRE);
    let mut reader = Reader::default();
    let first = told(&mut reader, &input);
    assert_eq!(first.0, input.len());
    assert_eq!(told(&mut reader, &input), first);
    assert_eq!(told(&mut reader, &[&input[..], &input].concat()), first);
}

#[test]
fn it_is_known_how_far_a_request_has_come() {
    let input = request(ACQUIRE);
    let head_end = input.len() - "{\"owner_id\":\"a\",\"ttl_ms\":800}".len();
    let mut reader = Reader::default();
    for upto in 0..input.len() {
        let part = match upto {
            0 => Part::Nothing,
            _ if upto < head_end => Part::Head,
            _ => Part::Body,
        };
        assert_eq!(
            told(&mut reader, &input[..upto]),
            (0, unfinished(part, false))
        );
    }
    assert_eq!(
        told(&mut Reader::default(), b"\r\n").1,
        unfinished(Part::Nothing, false)
    );
}

#[test]
fn a_sender_that_waits_is_told_once_to_go_on() {
    let input = request(&ACQUIRE.replace("Host:", "Expect: 100-continue|Host:"));
    let head_end = input.len() - "{\"owner_id\":\"a\",\"ttl_ms\":800}".len();
    let mut reader = Reader::default();
    assert_eq!(
        told(&mut reader, &input[..head_end - 1]).1,
        unfinished(Part::Head, false)
    );
    assert_eq!(
        told(&mut reader, &input[..head_end]).1,
        unfinished(Part::Body, true)
    );
    assert_eq!(
        told(&mut reader, &input[..head_end]).1,
        unfinished(Part::Body, false)
    );
    assert_eq!(told(&mut reader, &input).0, input.len());
    // Whoever sends without waiting is told nothing.
    let mut reader = Reader::default();
    assert_eq!(
        told(&mut reader, &input[..head_end + 1]).1,
        unfinished(Part::Body, false)
    );
    // What would not be taken is not asked for.
    let long =
        request("PUT /v1/kv/x HTTP/1.1|Host: x|Expect: 100-continue|Content-Length: 200000||");
    assert!(told(&mut Reader::default(), &long).1.contains("413"));
}

#[test]
fn every_route_takes_as_much_as_it_may() {
    for row in &routes::TABLE {
        let path = row.template.replace(['{', '}'], "");
        let head = |length: usize| {
            let method = row.method.word();
            request(&format!(
                "{method} {path} HTTP/1.1|Host: x|Content-Length: {length}||"
            ))
        };
        let longest = told(&mut Reader::default(), &head(row.body_bytes_max));
        assert_eq!(longest.1, unfinished(Part::Body, false), "{path}");
        let longer = told(&mut Reader::default(), &head(row.body_bytes_max + 1));
        assert!(longer.1.contains("status: 413"), "{path}: {}", longer.1);
    }
    let nowhere = request("PUT /nowhere HTTP/1.1|Host: x|Content-Length: 65537||");
    assert!(
        told(&mut Reader::default(), &nowhere)
            .1
            .contains("status: 413")
    );
}

#[test]
fn a_long_body_in_small_pieces_is_not_looked_at_again_and_again() {
    let length = VALUES_BODY_BYTES_MAX;
    let head = request(&format!(
        "PUT /v1/kv/x HTTP/1.1|Host: x|Content-Length: {length}||"
    ));
    let chunked = request("PUT /v1/kv/x HTTP/1.1|Host: x|Transfer-Encoding: chunked||30000|");
    for head in [head, chunked] {
        let mut input = head.clone();
        input.resize(head.len() + length, b'x');
        let mut reader = Reader::default();
        let mut scratch = Vec::new();
        // Byte by byte this would be twenty billion bytes if each were looked at every time.
        for upto in head.len()..input.len() {
            let decoded = reader.decode(&input[..upto], &mut scratch);
            assert!(matches!(
                decoded,
                Decoded::Unfinished {
                    part: Part::Body,
                    ..
                }
            ));
        }
    }
}

#[test]
fn a_reader_that_is_given_less_than_before_begins_anew() {
    let input = request(ACQUIRE);
    let mut reader = Reader::default();
    told(&mut reader, &input[..input.len() - 1]);
    assert_eq!(
        told(&mut reader, &input[..3]).1,
        unfinished(Part::Head, false)
    );
    assert_eq!(told(&mut reader, &input).0, input.len());
}

#[test]
fn what_an_answer_needs_is_told_beside_the_request() {
    let input = request(
        "POST /v1/semaphores/pool/acquire HTTP/1.0|Connection: keep-alive|X-Request-ID: r-1|\
         Origin: http://x|Authorization: Bearer s|Content-Type: application/json|Content-Length: *||\
         {\"owner_id\":\"w\\u0031\",\"ttl_ms\":5,\"limit\":3}",
    );
    let mut scratch = Vec::new();
    let Decoded::Request(asked) = Reader::default().decode(&input, &mut scratch) else {
        panic!("no request");
    };
    let want = Context {
        route: Some(routes::Route::AcquireSlot),
        is_lease: false,
        is_head: false,
        keep_alive: true,
        is_http_1_0: true,
        name: b"pool",
        owner: "w1",
        client: "",
        request_id: "r-1",
        mode: Some(Mode::Slot { limit: 3 }),
        number: 0,
        range: None,
    };
    assert_eq!(asked.context, want);
    assert_eq!(
        (asked.bearer, asked.origin),
        (Some(&b"s"[..]), Some(&b"http://x"[..]))
    );
    assert!(
        !format!("{asked:?}").contains("\"s\""),
        "a token is printed"
    );
}

#[test]
fn a_body_that_is_not_needed_is_skipped() {
    let get = request("GET /v1/stats HTTP/1.1|Host: x|Content-Length: *||DELETE / HTTP/1.1");
    let input = [&get[..], &request(ACQUIRE)].concat();
    let all = all_told(&input, input.len());
    assert_eq!(all.len(), 2);
    assert!(all[0].contains("Ok(Stats)"), "{}", all[0]);
}

#[test]
fn a_change_needs_a_body_that_is_called_json() {
    let status = |text: &str| {
        let input = request(text);
        let mut scratch = Vec::new();
        match Reader::default().decode(&input, &mut scratch) {
            Decoded::Request(Asked { what: Err(it), .. }) => it.status,
            Decoded::Request(_) => 200,
            other => panic!("{other:?}"),
        }
    };
    let put = |content_type: &str| {
        status(&format!(
            "PUT /v1/counters/x HTTP/1.1|Host: x{content_type}|Content-Length: *||{{\"value\":1}}"
        ))
    };
    assert_eq!(put("|Content-Type: application/json"), 200);
    assert_eq!(put("|Content-Type: text/plain"), 415);
    assert_eq!(put("|Content-Type: application/x-www-form-urlencoded"), 415);
    assert_eq!(put(""), 415);
    assert_eq!(status("PUT /v1/counters/x HTTP/1.1|Host: x||"), 400);
    assert_eq!(status("POST /v1/lists/x/pop HTTP/1.1|Host: x||"), 200);
    assert_eq!(status("DELETE /v1/kv/x HTTP/1.1|Host: x||"), 200);
}

#[test]
fn a_value_that_is_all_escapes_is_still_taken() {
    let value = "\\u0041".repeat(30_000);
    let body = format!("{{\"value\":\"{value}\",\"end\":\"left\"}}");
    let head =
        "POST /v1/lists/q/push HTTP/1.1|Host: x|Content-Type: application/json|Content-Length: *||";
    let input = request(&format!("{head}{body}"));
    let mut scratch = Vec::new();
    let Decoded::Request(asked) = Reader::default().decode(&input, &mut scratch) else {
        panic!("no request");
    };
    let value = "A".repeat(30_000);
    let want = Request::Push {
        key: b"q",
        value: value.as_bytes(),
        end: End::Left,
    };
    assert_eq!(
        asked.what,
        Ok(Ask::Engine {
            request: want,
            by: None
        })
    );
}

/// Bytes that look a little like requests.
fn nearly_http() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("GET ".to_owned()),
        Just("POST ".to_owned()),
        Just("/v1/locks/".to_owned()),
        Just("/v1/kv/x".to_owned()),
        Just("%2F".to_owned()),
        Just("%".to_owned()),
        Just(" HTTP/1.1\r\n".to_owned()),
        Just("Host: x\r\n".to_owned()),
        Just("Content-Length: 10\r\n".to_owned()),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
        Just("Content-Type: application/json\r\n".to_owned()),
        Just("Expect: 100-continue\r\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("5\r\nhello\r\n".to_owned()),
        Just("0\r\n\r\n".to_owned()),
        Just("{\"owner_id\":\"\\ud800".to_owned()),
        "[ -~\r\n]{0,8}",
    ];
    let pieces = prop::collection::vec(piece, 0..20).prop_map(|it| it.concat().into_bytes());
    prop_oneof![pieces, prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader_and_all_arrivals_are_the_same(input in nearly_http(), step in 1_usize..9) {
        let whole = all_told(&input, input.len().max(1));
        prop_assert_eq!(all_told(&input, step), whole);
    }

    #[test]
    fn nothing_is_read_beyond_what_a_request_may_be(input in nearly_http(), tail in 0_usize..3) {
        let mut long = input;
        long.resize(long.len() + tail * REQUEST_BYTES_MAX, b'x');
        let mut scratch = Vec::new();
        let decoded = Reader::default().decode(&long, &mut scratch);
        match decoded {
            Decoded::Request(asked) => {
                prop_assert!((1..=long.len().min(REQUEST_BYTES_MAX)).contains(&asked.used));
            }
            Decoded::Unfinished { .. } => prop_assert!(long.len() < REQUEST_BYTES_MAX),
            Decoded::Fault(_) => {}
        }
        prop_assert!(scratch.len() <= SCRATCH_BYTES_MAX);
    }
}

//! Heads that are read, and what they say.

use super::*;

/// A head of these lines, `|` between them.
fn head(lines: &str) -> Vec<u8> {
    format!("{lines}||").replace('|', "\r\n").into_bytes()
}

fn check<T: PartialEq + std::fmt::Debug>(
    lines: &str,
    look: impl Fn(&Head<'_>) -> T,
    want: Result<T, u16>,
) {
    let bytes = head(lines);
    let read = Head::parse(&bytes)
        .map(|it| look(&it))
        .map_err(|it| it.status);
    assert_eq!(read, want, "{lines}");
}

#[test]
fn a_connection_stays_open_unless_somebody_says_otherwise() {
    for (lines, want) in [
        ("GET / HTTP/1.1|Host: x", true),
        ("GET / HTTP/1.1|Host: x|Connection: close", false),
        ("GET / HTTP/1.1|Host: x|Connection: Upgrade,  CLOSE ", false),
        (
            "GET / HTTP/1.1|Host: x|Connection: keep-alive|Connection: close",
            false,
        ),
        ("GET / HTTP/1.1|Host: x|Connection: closed", true),
        ("GET / HTTP/1.0", false),
        ("GET / HTTP/1.0|Connection: Keep-Alive", true),
        ("GET / HTTP/1.0|Connection: keep-alive, close", false),
    ] {
        check(lines, |it| it.keep_alive, Ok(want));
    }
}

#[test]
fn a_host_is_there_once() {
    check(
        "GET / HTTP/1.1|Host: a:1",
        |it| it.host.map(<[u8]>::to_vec),
        Ok(Some(b"a:1".to_vec())),
    );
    check(
        "GET / HTTP/1.1|Host:",
        |it| it.host.map(<[u8]>::len),
        Ok(Some(0)),
    );
    check(
        "GET http://b/ HTTP/1.1|Host: a",
        |it| it.host == Some(b"b"),
        Ok(true),
    );
    check("GET / HTTP/1.0", |it| it.host.is_none(), Ok(true));
    for lines in [
        "GET / HTTP/1.1",
        "GET / HTTP/1.1|Host: a|Host: a",
        "GET / HTTP/1.0|Host: a|host: b",
    ] {
        check(lines, |_| (), Err(400));
    }
}

#[test]
fn a_token_is_shown_as_a_bearer() {
    for (value, want) in [
        ("Bearer secret", Some("secret")),
        ("bearer   secret ", Some("secret")),
        ("Bearer two words", Some("two words")),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic c2VjcmV0", None),
        ("Bearersecret", None),
        ("secret", None),
        ("", None),
    ] {
        let lines = format!("GET / HTTP/1.1|Host: x|Authorization: {value}");
        let want = want.map(|it| it.as_bytes().to_vec());
        check(&lines, |it| it.bearer.map(<[u8]>::to_vec), Ok(want));
    }
    let twice = "GET / HTTP/1.1|Host: x|Authorization: Bearer a|Authorization: Bearer a";
    check(twice, |_| (), Err(400));
}

#[test]
fn a_request_id_is_repeated_if_it_can_be() {
    let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
    for (value, want) in [
        ("abc-123_~!", "abc-123_~!"),
        (&longest, &longest),
        (&format!("{longest}x"), ""),
        ("a b", ""),
        ("é", ""),
        ("", ""),
    ] {
        let lines = format!("GET / HTTP/1.1|Host: x|X-Request-ID: {value}");
        check(&lines, |it| it.request_id.to_owned(), Ok(want.to_owned()));
    }
}

#[test]
fn json_is_called_json() {
    for (value, want) in [
        ("application/json", true),
        ("Application/JSON; charset=utf-8", true),
        ("application/json ;x", true),
        ("application/jsonx", false),
        ("application/problem+json", false),
        ("text/plain", false),
        ("text/plain; application/json", false),
        ("application/x-www-form-urlencoded", false),
        ("", false),
    ] {
        let lines = format!("GET / HTTP/1.1|Host: x|Content-Type: {value}");
        check(&lines, |it| it.is_json, Ok(want));
    }
}

#[test]
fn an_expectation_is_known_or_refused() {
    let expects = |it: &Head<'_>| it.expects_continue;
    check(
        "PUT / HTTP/1.1|Host: x|Expect: 100-Continue",
        expects,
        Ok(true),
    );
    check("PUT / HTTP/1.0|Expect: 100-continue", expects, Ok(false));
    check("PUT / HTTP/1.1|Host: x|Expect: 200-ok", expects, Err(417));
    check(
        "PUT / HTTP/1.1|Host: x|Expect: 100-continue|Expect: 100-continue",
        expects,
        Err(417),
    );
}

#[test]
fn there_are_only_so_many_headers() {
    let lines = |count: usize| format!("GET / HTTP/1.1|Host: x{}", "|a: b".repeat(count - 1));
    check(&lines(HEADERS_MAX), |_| (), Ok(()));
    check(&lines(HEADERS_MAX + 1), |_| (), Err(431));
}

#[test]
fn the_end_of_a_head_is_found_however_it_arrives() {
    let whole = head("GET / HTTP/1.1|Host: x");
    for before in [0, 1, 4] {
        let input = ["\r\n".repeat(before).as_bytes(), &whole, b"\r\nbody\n"].concat();
        let end = 2 * before + whole.len();
        for step in 1..input.len() {
            let mut search = Search::default();
            let mut found = None;
            for upto in (0..input.len()).step_by(step).chain([input.len()]) {
                found = search.end(&input[..upto]).unwrap();
                if found.is_some() {
                    break;
                }
            }
            assert_eq!((found, search.start()), (Some(end), 2 * before));
        }
    }
}

#[test]
fn a_head_may_be_as_long_as_it_may_be() {
    let of = |length: usize| {
        let mut head = b"GET / HTTP/1.1\r\nHost: x\r\nX: ".to_vec();
        head.resize(length - 4, b'y');
        head.extend_from_slice(b"\r\n\r\n");
        head
    };
    let longest = of(HEAD_BYTES_MAX);
    assert_eq!(Search::default().end(&longest), Ok(Some(longest.len())));
    let longer = of(HEAD_BYTES_MAX + 1);
    assert_eq!(Search::default().end(&longer), Err(problem::HEAD_TOO_LONG));
    // Said when so much has come, not when the end does.
    let mut search = Search::default();
    assert_eq!(search.end(&longer[..HEAD_BYTES_MAX - 1]), Ok(None));
    assert_eq!(
        search.end(&longer[..HEAD_BYTES_MAX]),
        Err(problem::HEAD_TOO_LONG)
    );
}

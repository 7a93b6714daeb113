//! What each route asks for, and what it refuses.

use super::super::{Decoded, Reader};
use super::*;

/// Sends a request line and a body; an empty one is none.
fn asked<T>(line: &str, body: &str, look: impl FnOnce(Result<Ask<'_>, Problem<'_>>) -> T) -> T {
    let kind = "Host: x\r\nX-Request-ID: r1\r\nContent-Type: application/json";
    let length = body.len();
    let input = format!("{line} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut scratch = Vec::new();
    match Reader::default().decode(input.as_bytes(), &mut scratch) {
        Decoded::Request(asked) => look(asked.what),
        other => panic!("{line}: {other:?}"),
    }
}

fn check(line: &str, body: &str, want: Ask<'_>) {
    asked(line, body, |what| {
        assert_eq!(what, Ok(want), "{line} {body}")
    });
}

/// Asks the table, in nobody's name.
fn check_table(line: &str, body: &str, request: Request<'_>) {
    check(line, body, Ask::Engine { request, by: None });
}

/// Asks the table in the name of `a`.
fn check_by(line: &str, body: &str, request: Request<'_>) {
    let by = Some(By {
        owner: "a",
        request_id: Some("r1"),
    });
    check(line, body, Ask::Engine { request, by });
}

fn check_refused(line: &str, body: &str, want: Problem<'_>) {
    asked(line, body, |what| {
        let text = what.map_err(|it| (it.status, it.text));
        assert_eq!(text, Err((want.status, want.text)), "{line} {body}");
    });
}

const LEASE_ID: &str = "00000000-0000-002a-9f8e-7d6c5b4a3921";

const TOKEN: Token = Token {
    fence: Fence(42),
    salt: 0x9f8e_7d6c_5b4a_3921,
};

fn acquire(mode: Mode, wait_ms: u64, lease_ms: u64) -> Request<'static> {
    Request::Acquire {
        key: b"job",
        mode,
        wait: Millis(wait_ms),
        lease: Some(Millis(lease_ms)),
    }
}

#[test]
fn an_acquire_names_its_owner_and_its_lease() {
    const LOCK: Mode = Mode::Slot { limit: 1 };
    let line = "POST /v1/locks/job/acquire";
    check_by(line, r#"{"owner_id":"a","ttl_ms":1}"#, acquire(LOCK, 0, 1));
    check_by(
        line,
        r#"{"owner_id":"a","ttl_ms":600000,"wait_ms":60000}"#,
        acquire(LOCK, 60_000, 600_000),
    );
    check_by(
        "POST /v1/elections/job/elect",
        r#"{"owner_id":"a","ttl_ms":5}"#,
        acquire(Mode::Lead, 0, 5),
    );
    let line = "POST /v1/semaphores/job/acquire";
    let body = r#"{"owner_id":"a","ttl_ms":5,"limit":3,"wait_ms":7}"#;
    check_by(line, body, acquire(Mode::Slot { limit: 3 }, 7, 5));
    let line = "POST /v1/rwlocks/job/acquire";
    for (word, mode) in [("read", Mode::Read), ("write", Mode::Write)] {
        let body = format!(r#"{{"owner_id":"a","ttl_ms":5,"mode":"{word}"}}"#);
        check_by(line, &body, acquire(mode, 0, 5));
    }
}

#[test]
fn an_acquire_is_checked_in_lockservers_order() {
    let line = "POST /v1/locks/job/acquire";
    for (body, want) in [
        ("", problem::NO_BODY),
        ("null", problem::OWNER_REQUIRED),
        ("{}", problem::OWNER_REQUIRED),
        (r#"{"ttl_ms":0}"#, problem::OWNER_REQUIRED),
        (r#"{"owner_id":""}"#, problem::OWNER_REQUIRED),
        (r#"{"owner_id":"a"}"#, problem::TTL_RANGE),
        (r#"{"owner_id":"a","ttl_ms":0}"#, problem::TTL_RANGE),
        (r#"{"owner_id":"a","ttl_ms":-1}"#, problem::TTL_RANGE),
        (r#"{"owner_id":"a","ttl_ms":600001}"#, problem::TTL_RANGE),
        (
            r#"{"owner_id":"a","ttl_ms":9223372036854775807}"#,
            problem::TTL_RANGE,
        ),
        (
            r#"{"owner_id":"a","ttl_ms":1,"wait_ms":-1}"#,
            problem::WAIT_RANGE,
        ),
        (
            r#"{"owner_id":"a","ttl_ms":1,"wait_ms":60001}"#,
            problem::WAIT_RANGE,
        ),
        (
            r#"{"owner_id":"a","ttl_ms":1,"limit":1}"#,
            problem::UNKNOWN_FIELD,
        ),
        (r#"{"owner_id":5,"ttl_ms":1}"#, problem::NOT_TEXT),
        (r#"{"owner_id":"a","ttl_ms":800.0}"#, problem::NOT_WHOLE),
    ] {
        check_refused(line, body, want);
    }
    let owner = |length| format!(r#"{{"owner_id":"{}","ttl_ms":1}}"#, "o".repeat(length));
    asked(line, &owner(OWNER_BYTES_MAX), |what| assert!(what.is_ok()));
    check_refused(line, &owner(OWNER_BYTES_MAX + 1), problem::OWNER_TOO_LONG);
    let line = "POST /v1/semaphores/job/acquire";
    for limit in ["0", "-1", "4294967296", "null"] {
        let body = format!(r#"{{"owner_id":"a","ttl_ms":1,"limit":{limit}}}"#);
        check_refused(line, &body, problem::LIMIT_RANGE);
    }
    let body = r#"{"owner_id":"a","ttl_ms":1,"mode":"Read"}"#;
    check_refused("POST /v1/rwlocks/job/acquire", body, problem::MODE);
}

fn hold(rest: &str) -> String {
    format!(r#"{{"owner_id":"a","lease_id":"{LEASE_ID}","fencing_token":42{rest}}}"#)
}

#[test]
fn a_holder_shows_its_token_and_its_fence() {
    let key = &b"job"[..];
    let token = Some(TOKEN);
    for kind in ["locks", "semaphores", "rwlocks"] {
        let release = Request::Release { key, token };
        check_by(&format!("POST /v1/{kind}/job/release"), &hold(""), release);
    }
    let resign = Request::Resign { key, token };
    check_by("POST /v1/elections/job/resign", &hold(""), resign);
    for kind in ["locks", "semaphores", "rwlocks", "elections"] {
        let renew = Request::Renew {
            key,
            token,
            lease: Some(Millis(500)),
        };
        let line = format!("POST /v1/{kind}/job/renew");
        check_by(&line, &hold(r#","extend_by_ms":500"#), renew);
        for extend in ["0", "-5", "600001"] {
            let body = hold(&format!(r#","extend_by_ms":{extend}"#));
            check_refused(&line, &body, problem::EXTEND_RANGE);
        }
    }
}

#[test]
fn what_is_not_the_token_of_its_fence_is_nobodys() {
    let line = "POST /v1/locks/job/release";
    for (lease_id, fence) in [
        (LEASE_ID, "43"),
        (LEASE_ID, "9223372036854775807"),
        ("L1", "42"),
        ("00000000-0000-002A-9F8E-7D6C5B4A3921", "42"),
        ("00000000-0000-002a-9f8e-7d6c5b4a392", "42"),
    ] {
        let body = format!(r#"{{"owner_id":"a","lease_id":"{lease_id}","fencing_token":{fence}}}"#);
        let key = &b"job"[..];
        check_by(line, &body, Request::Release { key, token: None });
    }
    for body in [
        "{}",
        r#"{"owner_id":"a","lease_id":"x"}"#,
        r#"{"owner_id":"a","fencing_token":1}"#,
        r#"{"lease_id":"x","fencing_token":1}"#,
        r#"{"owner_id":"a","lease_id":"x","fencing_token":0}"#,
        r#"{"owner_id":"a","lease_id":"x","fencing_token":-1}"#,
    ] {
        check_refused(line, body, problem::HOLD_REQUIRED);
    }
}

#[test]
fn what_is_held_can_be_looked_at_and_broken() {
    let key = &b"a b"[..];
    check("GET /v1/locks/a%20b", "", Ask::Lease { key });
    check("GET /v1/locks/a%20b?whatever=1", "", Ask::Lease { key });
    check("GET /v1/who/a%20b", "", Ask::Who { key });
    let fence = Fence(7);
    check(
        "DELETE /v1/locks/a%20b/holders/7",
        "",
        Ask::Break { key, fence },
    );
    for fence in ["0", "x", "-7", "+7", "9007199254740992"] {
        check_refused(
            &format!("DELETE /v1/locks/job/holders/{fence}"),
            "",
            problem::BAD_FENCE,
        );
    }
    check("GET /v1/elections/job", "", Ask::Lease { key: b"job" });
    check("GET /v1/semaphores/job", "", Ask::Holders { key: b"job" });
    check("GET /v1/rwlocks/job", "", Ask::Holders { key: b"job" });
    check_refused("GET /v1/semaphores/a%20b", "", problem::NAME_BLANK);
    check_refused("GET /v1/locks/a%00b", "", problem::NAME_CONTROL);
    check_refused("GET /v1/kv/%0a", "", problem::NAME_CONTROL);
    check_refused("GET /v1/kv/", "", problem::NAME_REQUIRED);
    check_refused("GET /v1/semaphores/job?x=1", "", problem::UNKNOWN_PARAMETER);
}

#[test]
fn pages_have_bounds() {
    let page = |limit, after| Page { limit, after };
    let locks = |page, contains, held, waiting| Ask::Locks {
        page,
        contains,
        held,
        waiting,
    };
    let all = page(100, None);
    check("GET /v1/locks", "", locks(all, b"", true, true));
    check("GET /v1/locks?state=held", "", locks(all, b"", true, false));
    check(
        "GET /v1/locks?state=waiting,held",
        "",
        locks(all, b"", true, true),
    );
    let some = page(1000, Some(b"x y"));
    check(
        "GET /v1/locks?limit=1000&after=x+y&contains=%2F",
        "",
        locks(some, b"/", true, true),
    );
    check(
        "GET /v1/connections?limit=1&after=",
        "",
        Ask::Connections(page(1, None)),
    );
    for limit in ["0", "1001", "-1", "x", "", "%2B5"] {
        check_refused(
            &format!("GET /v1/locks?limit={limit}"),
            "",
            problem::PAGE_LIMIT,
        );
    }
    check_refused("GET /v1/locks?state=", "", problem::STATE);
    check_refused("GET /v1/locks?state=free", "", problem::STATE);
    check_refused("GET /v1/locks?contains=", "", problem::CONTAINS);
    check_refused(
        "GET /v1/connections?contains=x",
        "",
        problem::UNKNOWN_PARAMETER,
    );
    let cursor = "c".repeat(CURSOR_BYTES_MAX + 1);
    check_refused(
        &format!("GET /v1/locks?after={cursor}"),
        "",
        problem::CURSOR,
    );
}

#[test]
fn counters_count() {
    let key = &b"n"[..];
    check_table("GET /v1/counters/n", "", Request::Count { key });
    check_table(
        "PUT /v1/counters/n",
        r#"{"value":-5}"#,
        Request::SetCount { key, value: -5 },
    );
    let add = |delta, down| Request::Add { key, delta, down };
    check_table("POST /v1/counters/n/add", r#"{"delta":2}"#, add(2, false));
    check_table("POST /v1/counters/n/add", r#"{"delta":-2}"#, add(-2, true));
    check_refused("PUT /v1/counters/n", "{}", problem::NUMBER_REQUIRED);
    check_refused("PUT /v1/counters/n", r#"{"value":"5"}"#, problem::NOT_WHOLE);
    check_refused("POST /v1/counters/n/add", "{}", problem::DELTA_REQUIRED);
}

#[test]
fn values_are_what_the_line_protocol_can_carry() {
    let line = "PUT /v1/kv/k";
    let (key, value, forever) = (&b"k"[..], &b"v w"[..], Millis::ZERO);
    check_table("GET /v1/kv/k", "", Request::Fetch { key });
    check_table("DELETE /v1/kv/k", "", Request::Delete { key });
    let put = |ttl| Request::Put { key, value, ttl };
    check_table(line, r#"{"value":"v w"}"#, put(forever));
    check_table(
        line,
        r#"{"value":"v w","ttl_ms":5,"if_absent":false}"#,
        put(Millis(5)),
    );
    let swap = |old| Request::Swap {
        key,
        old,
        new: value,
        ttl: forever,
    };
    check_table(line, r#"{"value":"v w","if_absent":true}"#, swap(b""));
    check_table(line, r#"{"value":"v w","if_value":"o"}"#, swap(b"o"));
    for (body, want) in [
        ("{}", problem::VALUE_REQUIRED),
        (r#"{"value":""}"#, problem::VALUE_REQUIRED),
        (r#"{"value":"a\tb"}"#, problem::VALUE_TAB),
        (r#"{"value":"a\nb"}"#, problem::VALUE_TAB),
        (r#"{"value":"a\rb"}"#, problem::VALUE_TAB),
        (r#"{"value":"\ud800"}"#, problem::VALUE_NOT_UTF8),
        (r#"{"value":"v","ttl_ms":-1}"#, problem::VALUE_TTL_RANGE),
        (
            r#"{"value":"v","ttl_ms":9223372036001}"#,
            problem::VALUE_TTL_RANGE,
        ),
        (
            r#"{"value":"v","if_value":"o","if_absent":true}"#,
            problem::TWO_CONDITIONS,
        ),
        (r#"{"value":"v","if_value":""}"#, problem::EMPTY_CONDITION),
        (r#"{"value":"v","if_value":"a\tb"}"#, problem::VALUE_TAB),
    ] {
        check_refused(line, body, want);
    }
    let long = |length| format!(r#"{{"value":"{}"}}"#, "v".repeat(length));
    asked(line, &long(VALUE_BYTES_MAX), |what| assert!(what.is_ok()));
    check_refused(line, &long(VALUE_BYTES_MAX + 1), problem::VALUE_TOO_LONG);
}

#[test]
fn lists_have_two_ends() {
    let key = &b"q"[..];
    let (left, right) = (End::Left, End::Right);
    let push = |end| Request::Push {
        key,
        value: b"a\tb",
        end,
    };
    check_table("POST /v1/lists/q/push", r#"{"value":"a\tb"}"#, push(right));
    check_table(
        "POST /v1/lists/q/push",
        r#"{"value":"a\tb","end":"left"}"#,
        push(left),
    );
    check_refused(
        "POST /v1/lists/q/push",
        r#"{"value":"a\nb"}"#,
        problem::VALUE_LINE,
    );
    check_refused(
        "POST /v1/lists/q/push",
        r#"{"value":"a","end":"top"}"#,
        problem::END,
    );
    let pop = |end| Request::Pop { key, end };
    for body in ["", "{}", "null", r#"{"wait_ms":0}"#] {
        check_table("POST /v1/lists/q/pop", body, pop(left));
    }
    check_table("POST /v1/lists/q/pop", r#"{"end":"right"}"#, pop(right));
    let wait = Request::AwaitPop {
        key,
        end: left,
        wait: Millis(5),
    };
    check_table("POST /v1/lists/q/pop", r#"{"wait_ms":5}"#, wait);
    let range = |start, stop| Request::Range {
        key,
        start,
        stop,
        form: LIST_FORM,
    };
    check_table("GET /v1/lists/q", "", range(0, -1));
    check_table("GET /v1/lists/q?start=-5&stop=7", "", range(-5, 7));
    check_refused("GET /v1/lists/q?start=x", "", problem::INDEX);
}

#[test]
fn people_meet_and_signal_and_listen() {
    let meet = Request::Meet {
        key: b"b",
        count: 3,
        wait: Millis(9),
    };
    check_table(
        "POST /v1/barriers/b/wait",
        r#"{"count":3,"wait_ms":9}"#,
        meet,
    );
    check_refused(
        "POST /v1/barriers/b/wait",
        r#"{"wait_ms":9}"#,
        problem::COUNT_RANGE,
    );
    let signal = Request::Signal {
        channel: b"a.b",
        payload: b" hi\t",
    };
    let line = "POST /v1/signals/a.b";
    check_table(line, r#"{"payload":" hi\t"}"#, signal);
    check_refused(line, r#"{"payload":" \t "}"#, problem::PAYLOAD_REQUIRED);
    check_refused(line, r#"{"payload":"a\nb"}"#, problem::VALUE_LINE);
    let long = |length| format!(r#"{{"payload":"{}"}}"#, "p".repeat(length));
    asked(line, &long(VALUE_BYTES_MAX - 8), |what| {
        assert!(what.is_ok())
    });
    check_refused(line, &long(VALUE_BYTES_MAX - 7), problem::VALUE_TOO_LONG);
    check_refused(
        "POST /v1/signals/a.*",
        r#"{"payload":"x"}"#,
        problem::CHANNEL_WILDCARD,
    );
    let listen = |pattern, group| Ask::Subscribe(Request::Listen { pattern, group });
    check("GET /v1/signals?pattern=a.%3E", "", listen(b"a.>", b""));
    let group = r#"{"pattern":"a.>","group":"g"}"#;
    check("POST /v1/signals", group, listen(b"a.>", b"g"));
    check_refused(
        "GET /v1/signals?pattern=a&group=g",
        "",
        problem::UNKNOWN_PARAMETER.about(b"group"),
    );
    check_refused("GET /v1/signals", "", problem::PATTERN);
    check_refused("GET /v1/signals?pattern=", "", problem::PATTERN);
    check_refused("GET /v1/signals?pattern=a+b", "", problem::PATTERN);
    for (body, problem) in [
        (r#"{"group":"g"}"#, problem::PATTERN_FIELD),
        (r#"{"pattern":"a"}"#, problem::GROUP),
        (r#"{"pattern":"a b","group":"g"}"#, problem::PATTERN_FIELD),
        (r#"{"pattern":"a","group":"\u0000"}"#, problem::GROUP),
    ] {
        check_refused("POST /v1/signals", body, problem);
    }
    check(
        "GET /v1/watch?pattern=*",
        "",
        Ask::Subscribe(Request::Watch { pattern: b"*" }),
    );
    let observe = Request::Observe { key: b"e" };
    check("GET /v1/elections/e/events", "", Ask::Subscribe(observe));
}

#[test]
fn the_rest_is_asked_for_by_its_path_alone() {
    for (path, want) in [
        ("/v1/stats", Ask::Stats),
        ("/v1/stats/stream", Ask::StatsStream),
        ("/livez", Ask::Live),
        ("/healthz", Ask::Live),
        ("/health", Ask::Live),
        ("/readyz", Ask::Ready),
        ("/ready", Ask::Ready),
        ("/metrics", Ask::Metrics),
        ("/v1/openapi.json", Ask::OpenApi),
        ("/", Ask::Dashboard),
        ("/assets/app.js", Ask::Asset { file: b"app.js" }),
    ] {
        check(&format!("GET {path}"), "", want);
    }
}

#[test]
fn what_costs_much_is_known_before_it_is_done() {
    let what = |line: &str, body: &str| {
        asked(line, body, |what| {
            let ask = what.unwrap();
            let mut said = String::new();
            for (is_so, word) in [
                (ask.takes_a_walk(), "walks "),
                (ask.has_long_answer(), "long "),
                (ask.is_signal(), "signal "),
            ] {
                said.push_str(if is_so { word } else { "" });
            }
            said.trim_end().to_owned()
        })
    };
    for (line, body, want) in [
        ("GET /v1/locks/job", "", ""),
        ("GET /v1/locks", "", "walks long"),
        ("GET /v1/who/job", "", "walks long"),
        ("GET /v1/semaphores/job", "", "walks long"),
        ("GET /v1/connections", "", "walks long"),
        ("GET /v1/lists/q", "", "walks long"),
        ("GET /v1/kv/k", "", "long"),
        ("POST /v1/lists/q/pop", "", "long"),
        ("GET /", "", "long"),
        ("GET /v1/stats", "", ""),
        ("POST /v1/signals/a", r#"{"payload":"x"}"#, "signal"),
        ("PUT /v1/kv/k", r#"{"value":"x"}"#, ""),
        ("DELETE /v1/locks/job/holders/7", "", ""),
    ] {
        assert_eq!(what(line, body), want, "{line}");
    }
}

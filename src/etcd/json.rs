//! What is asked and answered, as the bodies of the JSON gateway.
//!
//! Its habits: 64-bit numbers are strings; what is false, 0 or empty is left out; keys and values are
//! base64. So a missing field is never an error by itself, and everything is parsed, never matched.

use std::fmt::Write;

use super::parse::Value;
use super::{Answer, Ask, Compare, Get, Got, Kv, Op, Trouble};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The path and the body of a question how a member is.
pub(super) const STATUS: (&str, &str) = ("/v3/maintenance/status", "{}");

/// The path and the body of a request.
pub(super) fn request(ask: &Ask) -> (&'static str, String) {
    let mut out = String::new();
    let path = match ask {
        Ask::Txn {
            compare,
            success,
            failure,
        } => {
            out.push_str("{\"compare\":[");
            list(&mut out, compare, push_compare);
            out.push_str("],\"success\":[");
            list(&mut out, success, push_op);
            out.push_str("],\"failure\":[");
            list(&mut out, failure, push_op);
            out.push_str("]}");
            "/v3/kv/txn"
        }
        Ask::Range(get) => {
            push_get(&mut out, get);
            "/v3/kv/range"
        }
        Ask::Grant { ttl_s } => {
            let _ = write!(out, "{{\"TTL\":\"{ttl_s}\"}}");
            "/v3/lease/grant"
        }
        Ask::KeepAlive { lease } => {
            let _ = write!(out, "{{\"ID\":\"{lease}\"}}");
            "/v3/lease/keepalive"
        }
        Ask::TimeToLive { lease } => {
            let _ = write!(out, "{{\"ID\":\"{lease}\"}}");
            "/v3/lease/timetolive"
        }
        Ask::Revoke { lease } => {
            let _ = write!(out, "{{\"ID\":\"{lease}\"}}");
            "/v3/lease/revoke"
        }
        Ask::Compact { revision } => {
            let _ = write!(out, "{{\"revision\":\"{revision}\"}}");
            "/v3/kv/compaction"
        }
        Ask::Status => {
            out.push_str(STATUS.1);
            STATUS.0
        }
    };
    (path, out)
}

/// The body that begins a watch.
pub(super) fn watch(key: &[u8], end: &[u8], from_revision: u64) -> String {
    let (key, end) = (STANDARD.encode(key), STANDARD.encode(end));
    format!(
        "{{\"create_request\":{{\"key\":\"{key}\",\"range_end\":\"{end}\",\
         \"start_revision\":\"{from_revision}\"}}}}"
    )
}

/// The body that asks for a token.
pub(super) fn authenticate(user: &str, password: &str) -> String {
    let mut out = String::from("{\"name\":");
    push_text(&mut out, user);
    out.push_str(",\"password\":");
    push_text(&mut out, password);
    out.push('}');
    out
}

/// A string of JSON.
fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Why a password is worth no token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoToken {
    /// etcd asks nobody who he is.
    NotAsked,
    /// It is wrong, or the user may not come in.
    Refused(String),
    /// Nobody knows: it may be good.
    Other(String),
}

/// The token that etcd gives. What it answered is never quoted if there is one.
pub(super) fn token(status: u16, body: &[u8]) -> Result<String, NoToken> {
    let Ok(parsed) = Value::parse(body) else {
        return Err(NoToken::Other("the answer makes no sense".to_owned()));
    };
    if status == 200 && !parsed.has("error") {
        let text = parsed.at("token").text();
        return text
            .map(str::to_owned)
            .ok_or_else(|| NoToken::Other("the answer has no token in it".to_owned()));
    }
    let text = message(&parsed);
    if text.contains("authentication is not enabled") {
        return Err(NoToken::NotAsked);
    }
    match status {
        400 | 401 | 403 => Err(NoToken::Refused(text.to_owned())),
        _ => Err(NoToken::Other(format!("{text} (status {status})"))),
    }
}

fn list<T>(out: &mut String, items: &[T], push: fn(&mut String, &T)) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push(out, item);
    }
}

fn push_bytes(out: &mut String, name: &str, bytes: &[u8]) {
    let _ = write!(out, "\"{name}\":\"");
    STANDARD.encode_string(bytes, out);
    out.push('"');
}

fn push_compare(out: &mut String, compare: &Compare) {
    let (key, target, field, revision, result) = match compare {
        Compare::Value(key, value) => {
            out.push('{');
            push_bytes(out, "key", key);
            out.push_str(",\"target\":\"VALUE\",");
            push_bytes(out, "value", value);
            out.push_str(",\"result\":\"EQUAL\"}");
            return;
        }
        Compare::Created(key, revision) => (key, "CREATE", "create_revision", *revision, "EQUAL"),
        Compare::Exists(key) => (key, "CREATE", "create_revision", 0, "GREATER"),
        Compare::Modified(key, revision) => (key, "MOD", "mod_revision", *revision, "EQUAL"),
        // Of every key there is; if there is none it holds, because then 0 is compared.
        Compare::NoneSince(key, _, revision) => (key, "MOD", "mod_revision", revision + 1, "LESS"),
    };
    out.push('{');
    push_bytes(out, "key", key);
    if let Compare::NoneSince(_, end, _) = compare {
        out.push(',');
        push_bytes(out, "range_end", end);
    }
    let _ = write!(
        out,
        ",\"target\":\"{target}\",\"{field}\":\"{revision}\",\"result\":\"{result}\"}}"
    );
}

fn push_op(out: &mut String, op: &Op) {
    match op {
        Op::Put { key, value, lease } => {
            out.push_str("{\"request_put\":{");
            push_bytes(out, "key", key);
            out.push(',');
            push_bytes(out, "value", value);
            let _ = write!(out, ",\"lease\":\"{lease}\"}}}}");
        }
        Op::Get(get) => {
            out.push_str("{\"request_range\":");
            push_get(out, get);
            out.push('}');
        }
        Op::Delete(key, end) => {
            out.push_str("{\"request_delete_range\":{");
            push_bytes(out, "key", key);
            if !end.is_empty() {
                out.push(',');
                push_bytes(out, "range_end", end);
            }
            out.push_str("}}");
        }
    }
}

fn push_get(out: &mut String, get: &Get) {
    out.push('{');
    push_bytes(out, "key", &get.key);
    if !get.end.is_empty() {
        out.push(',');
        push_bytes(out, "range_end", &get.end);
    }
    let _ = write!(
        out,
        ",\"limit\":\"{}\",\"revision\":\"{}\"}}",
        get.limit, get.revision
    );
}

/// Whether a member leads, as it says itself; `None` if it does not say how it is.
pub(super) fn leads(status: u16, body: &[u8]) -> Option<bool> {
    let said = Value::parse(body).ok().filter(|_| status == 200)?;
    let own = number(said.at("header"), "member_id").ok()?;
    let leader = number(&said, "leader").ok()?;
    (own != 0).then_some(own == leader)
}

/// Understands the answer to a request. Beside it is the term of etcd's own leader, 0 if it is not said.
pub(super) fn answer(ask: &Ask, status: u16, body: &[u8]) -> Result<(u64, Answer), Trouble> {
    let parsed = Value::parse(body).map_err(|why| garbled(why, body))?;
    // What comes by a stream stands in `result`.
    let answer = match parsed.has("result") {
        true => parsed.at("result"),
        false => &parsed,
    };
    if status != 200 || parsed.has("error") {
        return Err(trouble(&parsed, status));
    }
    let revision = number(answer.at("header"), "revision")?;
    if !answer.at("header").is_object() {
        return Err(garbled("no header", body));
    }
    let term = number(answer.at("header"), "raft_term")?;
    let answer = match ask {
        Ask::Txn {
            success, failure, ..
        } => {
            let succeeded = answer.at("succeeded").is_true();
            let done = if succeeded { success } else { failure };
            let responses = answer.at("responses").elements();
            if responses.len() != done.len() {
                return Err(garbled("another number of responses", body));
            }
            let mut got = Vec::new();
            for (op, response) in done.iter().zip(responses) {
                if matches!(op, Op::Get(_)) {
                    got.push(read_got(response.at("response_range"))?);
                }
            }
            Answer::Txn {
                revision,
                succeeded,
                got,
            }
        }
        Ask::Range(_) => Answer::Range {
            revision,
            got: read_got(answer)?,
        },
        Ask::Grant { .. } => {
            let (lease, ttl_s) = (number(answer, "ID")?, number(answer, "TTL")?);
            if lease == 0 || ttl_s == 0 {
                return Err(garbled("a lease without a number or a time", body));
            }
            Answer::Granted { lease, ttl_s }
        }
        Ask::KeepAlive { .. } => Answer::KeptAlive {
            ttl_s: number(answer, "TTL")?,
        },
        // A lease that is over has -1 seconds left.
        Ask::TimeToLive { .. } if answer.at("TTL").text() == Some("-1") => Answer::TimeToLive {
            left_s: 0,
            granted_s: 0,
        },
        Ask::TimeToLive { .. } => Answer::TimeToLive {
            left_s: number(answer, "TTL")?,
            granted_s: number(answer, "grantedTTL")?,
        },
        Ask::Revoke { .. } | Ask::Compact { .. } => Answer::Done,
        Ask::Status => Answer::Status {
            bytes: number(answer, "dbSize")?,
            bytes_in_use: number(answer, "dbSizeInUse")?,
        },
    };
    Ok((term, answer))
}

fn read_got(range: &Value) -> Result<Got, Trouble> {
    let kvs = range.at("kvs").elements();
    Ok(Got {
        kvs: kvs.iter().map(read_kv).collect::<Result<_, _>>()?,
        more: range.at("more").is_true(),
        count: number(range, "count")?,
    })
}

pub(super) fn read_kv(kv: &Value) -> Result<Kv, Trouble> {
    Ok(Kv {
        key: bytes(kv, "key")?,
        value: bytes(kv, "value")?,
        created: number(kv, "create_revision")?,
        modified: number(kv, "mod_revision")?,
    })
}

/// A number that may be a string, a number or missing.
pub(super) fn number(object: &Value, name: &str) -> Result<u64, Trouble> {
    let number = match object.at(name) {
        Value::Null => Some(0),
        Value::String(text) | Value::Number(text) => {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok()).flatten()
        }
        _ => None,
    };
    number.ok_or_else(|| Trouble::Garbled(format!("{name} is not a number")))
}

fn bytes(object: &Value, name: &str) -> Result<Vec<u8>, Trouble> {
    match object.at(name) {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => STANDARD
            .decode(text)
            .map_err(|_| Trouble::Garbled(format!("{name} is not base64"))),
        _ => Err(Trouble::Garbled(format!("{name} is not base64"))),
    }
}

/// What an error says. Only what is known to have changed nothing is told apart: who may do something is
/// looked at before it is done.
pub(super) fn trouble(parsed: &Value, status: u16) -> Trouble {
    of_message(message(parsed), status)
}

/// The same of a sentence.
pub(super) fn of_message(text: &str, status: u16) -> Trouble {
    let is = |words: &[&str]| words.iter().any(|it| text.contains(it));
    if is(&["mvcc: database space exceeded"]) {
        Trouble::NoSpace(text.to_owned())
    } else if is(&["mvcc: required revision has been compacted"]) {
        Trouble::Compacted
    } else if is(&["requested lease not found"]) {
        Trouble::NoLease
    } else if status == 401 || is(TOKEN_REFUSED) {
        Trouble::BadToken(text.to_owned())
    } else if status == 403 || is(&["etcdserver: permission denied"]) {
        Trouble::Forbidden(text.to_owned())
    } else {
        Trouble::Unanswered(format!("{text} (status {status})"))
    }
}

/// How etcd says that another token may do: this one is over, was drawn before rights were changed, or
/// there is none.
const TOKEN_REFUSED: &[&str] = &[
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
];

fn message(parsed: &Value) -> &str {
    let error = parsed.at("error");
    let object = if error.is_object() { error } else { parsed };
    [object.at("message"), object.at("error"), error]
        .into_iter()
        .find_map(Value::text)
        .unwrap_or("an error without a message")
}

fn garbled(why: &str, body: &[u8]) -> Trouble {
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
    Trouble::Garbled(format!("{why}: {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_append_as_the_gateway_takes_it() {
        let ask = Ask::Txn {
            compare: vec![
                Compare::Created(b"l".to_vec(), 7),
                Compare::Exists(b"p".to_vec()),
                Compare::Modified(b"s".to_vec(), 9),
                Compare::Value(b"l".to_vec(), b"v".to_vec()),
            ],
            success: vec![Op::Put {
                key: b"k".to_vec(),
                value: b"v".to_vec(),
                lease: 3,
            }],
            failure: vec![
                Op::Get(Get::one(b"l")),
                Op::Delete(b"a".to_vec(), b"b".to_vec()),
            ],
        };
        let (path, body) = request(&ask);
        assert_eq!(path, "/v3/kv/txn");
        let expected = serde_json::json!({
            "compare": [
                {"key": "bA==", "target": "CREATE", "create_revision": "7", "result": "EQUAL"},
                {"key": "cA==", "target": "CREATE", "create_revision": "0", "result": "GREATER"},
                {"key": "cw==", "target": "MOD", "mod_revision": "9", "result": "EQUAL"},
                {"key": "bA==", "target": "VALUE", "value": "dg==", "result": "EQUAL"},
            ],
            "success": [{"request_put": {"key": "aw==", "value": "dg==", "lease": "3"}}],
            "failure": [
                {"request_range": {"key": "bA==", "limit": "0", "revision": "0"}},
                {"request_delete_range": {"key": "YQ==", "range_end": "Yg=="}},
            ],
        });
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body, expected);
    }

    #[test]
    fn time_to_live_of_a_lease_that_is_over_is_none() {
        let ask = Ask::TimeToLive { lease: 7 };
        let asked = ("/v3/lease/timetolive", r#"{"ID":"7"}"#.to_owned());
        assert_eq!(request(&ask), asked);
        for (body, left_s, granted_s) in [
            (r#"{"header":{},"ID":"7","TTL":"4","grantedTTL":"5"}"#, 4, 5),
            (r#"{"header":{},"ID":"7","grantedTTL":"5"}"#, 0, 5),
            (r#"{"header":{},"ID":"7","TTL":"-1"}"#, 0, 0),
        ] {
            let answer = answer(&ask, 200, body.as_bytes());
            assert_eq!(answer, Ok((0, Answer::TimeToLive { left_s, granted_s })));
        }
    }

    #[test]
    fn what_is_false_zero_or_empty_is_left_out() {
        let ask = Ask::Txn {
            compare: Vec::new(),
            success: Vec::new(),
            failure: vec![Op::Get(Get::one(b"l"))],
        };
        let body = br#"{"header":{"revision":"5"},"responses":[{"response_range":{}}]}"#;
        let refused = Answer::Txn {
            revision: 5,
            succeeded: false,
            got: vec![Got::default()],
        };
        assert_eq!(answer(&ask, 200, body), Ok((0, refused)));
        let dead = br#"{"result":{"header":{"revision":"5"},"ID":"7"}}"#;
        let kept = answer(&Ask::KeepAlive { lease: 7 }, 200, dead);
        assert_eq!(kept, Ok((0, Answer::KeptAlive { ttl_s: 0 })));
    }

    #[test]
    fn an_error_is_undone_only_if_that_is_certain() {
        let ask = Ask::Range(Get::one(b"k"));
        let undone = |status, body: &str| {
            let trouble = answer(&ask, status, body.as_bytes()).unwrap_err();
            trouble.is_surely_undone()
        };
        let full = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8}"#;
        assert!(undone(429, full));
        let late = r#"{"error":"etcdserver: request timed out","code":14}"#;
        assert!(!undone(503, late));
        assert!(!undone(200, "{\"header\":"), "cut");
        assert!(!undone(200, "{}"), "no header");
        assert!(!undone(500, "{\"header\":{}}"));
        assert!(!undone(200, r#"{"header":{"revision":"-5"}}"#));
    }

    #[test]
    fn what_etcd_does_not_let_us_do_is_not_done() {
        let ask = Ask::Range(Get::one(b"k"));
        let trouble = |status, body: &str| answer(&ask, status, body.as_bytes()).unwrap_err();
        for (status, text) in [
            (401, "etcdserver: invalid auth token"),
            (401, "anything"),
            (400, "etcdserver: user name is empty"),
            (400, "etcdserver: revision of auth store is old"),
        ] {
            let it = trouble(status, &format!(r#"{{"error":"{text}","code":16}}"#));
            assert_eq!(it, Trouble::BadToken(text.to_owned()));
            assert!(it.is_surely_undone());
        }
        let it = trouble(403, r#"{"error":"etcdserver: permission denied","code":7}"#);
        assert!(matches!(it, Trouble::Forbidden(_)) && it.is_surely_undone());
        // What only sounds like it is left open.
        let it = trouble(500, r#"{"error":"rpc error: auth","code":13}"#);
        assert!(!it.is_surely_undone(), "{it:?}");
    }

    #[test]
    fn a_password_can_have_anything_in_it() {
        let body = authenticate("ro\"ot", "a\\b\"c\n\u{1}ä");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let expected = serde_json::json!({"name": "ro\"ot", "password": "a\\b\"c\n\u{1}ä"});
        assert_eq!(body, expected);
    }

    #[test]
    fn a_token_or_why_there_is_none() {
        let good = br#"{"header":{"revision":"1"},"token":"abc.9"}"#;
        assert_eq!(token(200, good), Ok("abc.9".to_owned()));
        let off = br#"{"error":"etcdserver: authentication is not enabled","code":9}"#;
        assert_eq!(token(400, off), Err(NoToken::NotAsked));
        let wrong =
            br#"{"error":"etcdserver: authentication failed, invalid user ID or password"}"#;
        assert!(matches!(token(400, wrong), Err(NoToken::Refused(_))));
        for (status, body) in [
            (200, &b"{}"[..]),
            (200, b"no"),
            (503, br#"{"error":"etcdserver: no leader"}"#),
        ] {
            let none = token(status, body);
            assert!(matches!(none, Err(NoToken::Other(_))), "{none:?}");
        }
    }

    #[test]
    fn a_transaction_with_another_number_of_responses_is_not_believed() {
        let ask = Ask::Txn {
            compare: Vec::new(),
            success: Vec::new(),
            failure: vec![Op::Get(Get::one(b"l"))],
        };
        let body = br#"{"header":{"revision":"5"}}"#;
        assert!(matches!(answer(&ask, 200, body), Err(Trouble::Garbled(_))));
    }
}

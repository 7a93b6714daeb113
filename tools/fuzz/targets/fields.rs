//! Bodies of HTTP requests: a flat JSON object means what serde_json reads in it, and what serde_json refuses is
//! refused, but for what the daemon replaces on purpose: bytes and surrogates that are no characters.

#![no_main]

use std::fmt;

use latchd::engine::types::Request;
use latchd::wire::http::routes::{Row, TABLE};
use latchd::wire::http::{Ask, Decoded, Problem, Reader};
use libfuzzer_sys::fuzz_target;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// What a program is told of a body that is no object, or not one with these fields.
const REFUSALS: [&str; 3] = ["BAD_JSON", "UNKNOWN_FIELD", "BAD_FIELD"];

fuzz_target!(|input: &[u8]| {
    let [route, body @ ..] = input else { return };
    let rows: Vec<&Row> = TABLE.iter().filter(|row| row.needs_body()).collect();
    let row = rows[usize::from(*route) % rows.len()];
    asked(row, body, |what| {
        let mut values = serde_json::Deserializer::from_slice(body).into_iter();
        match values.next() {
            Some(Ok(Members(members))) => check_object(row, members, what),
            Some(Err(_)) if is_null(body) || has_no_characters(body) => {}
            Some(Err(why)) => {
                let problem = what.as_ref().expect_err(&why.to_string());
                assert!(REFUSALS.contains(&problem.reason), "{why}: {problem:?}");
            }
            None => {
                let problem = what.as_ref().expect_err("there is nothing");
                assert_eq!(problem.reason, "BAD_JSON");
            }
        }
    });
});

/// A body that is `null` is read as an empty object.
fn is_null(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"null")
}

/// Whether something may be replaced.
fn has_no_characters(body: &[u8]) -> bool {
    str::from_utf8(body).is_err() || body.windows(2).any(|it| it == b"\\u")
}

/// What is asked with this body at this route.
fn asked(row: &Row, body: &[u8], check: impl FnOnce(&Result<Ask<'_>, Problem<'_>>)) {
    let (method, path) = (row.method.word(), path(row.template));
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    let mut scratch = Vec::new();
    match Reader::default().decode(&request, &mut scratch) {
        Decoded::Request(asked) => {
            assert_eq!(asked.used, request.len());
            assert_eq!(asked.context.route, Some(row.route));
            check(&asked.what);
        }
        other => panic!("{other:?}"),
    }
}

/// A path of a template.
fn path(template: &str) -> String {
    let segments = template.split('/');
    let named = segments.map(|it| if it.starts_with('{') { "k" } else { it });
    named.collect::<Vec<_>>().join("/")
}

/// serde_json has read these members in a body.
fn check_object(row: &Row, members: Vec<(String, Value)>, what: &Result<Ask<'_>, Problem<'_>>) {
    let name_of = |key: &str| row.field_names().find(|name| folded(key) == *name);
    // As serde_json spells them, nothing changes.
    asked(row, spell(&members).as_bytes(), |again| {
        let plain =
            |what: &Result<Ask<'_>, Problem<'_>>| what.map_err(|it| (it.status, it.reason)).err();
        match (what, again) {
            (Ok(what), Ok(again)) => assert_eq!(what, again),
            _ => assert_eq!(plain(what), plain(again)),
        }
    });
    let is_strange = members.iter().any(|(key, _)| name_of(key).is_none());
    if is_strange {
        let reason = what.as_ref().map_err(|it| it.reason);
        assert!(
            matches!(reason, Err("UNKNOWN_FIELD" | "BAD_FIELD")),
            "{what:?}"
        );
    }
    let Ok(ask) = what else { return };
    // Of two the last counts, a null says nothing, and the case of letters does not matter.
    let mut last: Vec<(String, Value)> = Vec::new();
    for (key, value) in members.into_iter().filter(|(_, value)| !value.is_null()) {
        let name = name_of(&key).expect("it is known").to_owned();
        last.retain(|(it, _)| *it != name);
        last.push((name, value));
    }
    asked(row, spell(&last).as_bytes(), |again| {
        assert_eq!(again, what)
    });
    if let Ask::Engine {
        request: Request::Put { value, .. },
        ..
    } = ask
    {
        let said = last.iter().find(|(name, _)| name == "value");
        assert_eq!(
            said.and_then(|(_, value)| value.as_str())
                .map(str::as_bytes),
            Some(*value)
        );
    }
}

/// The key in small letters, as Go folds them.
fn folded(key: &str) -> String {
    let fold = |letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    key.chars().map(fold).collect()
}

fn spell(members: &[(String, Value)]) -> String {
    let member = |(key, value): &(String, Value)| format!("{}:{value}", Value::from(key.as_str()));
    format!(
        "{{{}}}",
        members.iter().map(member).collect::<Vec<_>>().join(",")
    )
}

/// The members of an object in their order.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(All)
    }
}

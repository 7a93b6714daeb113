//! The OpenAPI document and the table of routes say the same, both ways: operations, paths, parameters,
//! fields of bodies, who may ask, what streams. What is answered is held against it by
//! `tools/http/check`.

#![allow(
    clippy::unwrap_used,
    reason = "a document that cannot be read has to fail the test"
)]

use std::collections::{BTreeMap, BTreeSet};

use latch_sim::pipe::Pipes;
use latchd::access::Access;
use latchd::dashboard;
use latchd::engine::Rules;
use latchd::server::{Door, Settings};
use latchd::wire::http::routes::{self, Row};
use serde_json::Value;

fn document() -> Value {
    serde_json::from_slice(dashboard::OPENAPI.bytes).unwrap()
}

/// Every operation of the document, by its id: method, path, what is said of it.
fn operations(document: &Value) -> BTreeMap<String, (String, String, Value)> {
    let mut found = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            let said = (method.to_uppercase(), path.clone(), operation.clone());
            assert!(found.insert(id, said).is_none(), "an id is there twice");
        }
    }
    found
}

/// What a reference leads to, or the value itself.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value["$ref"].as_str() else {
        return value;
    };
    let target = document.pointer(reference.strip_prefix('#').unwrap());
    target.unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

/// Calls `check` for every row, with what the document says of it.
fn for_each_row(check: impl Fn(&Value, &Row, &Value)) {
    let document = document();
    let operations = operations(&document);
    for row in &routes::TABLE {
        check(&document, row, &operations[row.operation].2);
    }
}

#[test]
fn every_route_is_in_the_document_and_nothing_else() {
    let document = document();
    let said: BTreeSet<_> = operations(&document)
        .into_iter()
        .map(|(id, (method, path, _))| (method, path, id))
        .collect();
    let routes: BTreeSet<_> = routes::all()
        .map(|(method, path, id)| (method.to_owned(), path.to_owned(), id.to_owned()))
        .collect();
    assert_eq!(said, routes);
}

#[test]
fn parameters_are_those_of_the_path_and_of_the_query() {
    for_each_row(|document, row, operation| {
        let empty = Vec::new();
        let parameters = operation["parameters"].as_array().unwrap_or(&empty);
        let names = |place: &str| -> BTreeSet<String> {
            let all = parameters.iter().map(|it| resolve(document, it));
            all.filter(|it| it["in"] == place)
                .map(|it| it["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let places = row.template.split('/').filter_map(|part| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            Some(name.to_owned())
        });
        assert_eq!(names("path"), places.collect(), "{}", row.operation);
        let query = row.query_names().iter().map(|&name| name.to_owned());
        assert_eq!(names("query"), query.collect(), "{}", row.operation);
    });
}

#[test]
fn bodies_have_the_fields_that_the_route_reads() {
    for_each_row(|document, row, operation| {
        let body = resolve(document, &operation["requestBody"]);
        let schema = resolve(document, &body["content"]["application/json"]["schema"]);
        let said: BTreeSet<_> = match schema["properties"].as_object() {
            Some(properties) => properties.keys().map(String::as_str).collect(),
            None => BTreeSet::new(),
        };
        assert_eq!(said, row.field_names().collect(), "{}", row.operation);
        let is_needed = body["required"] == true;
        assert_eq!(is_needed, row.needs_body(), "{}", row.operation);
        // What the decoder does with a field that it does not know.
        let is_closed = schema["additionalProperties"] == false;
        assert_eq!(is_closed, !said.is_empty(), "{}", row.operation);
    });
}

#[test]
fn what_is_open_says_so() {
    for_each_row(|_, row, operation| {
        let is_open = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(
            is_open,
            row.access == routes::Access::Open,
            "{}",
            row.operation
        );
        let refuses = operation["responses"]["401"].is_object();
        assert_eq!(
            refuses,
            row.access != routes::Access::Open,
            "{}",
            row.operation
        );
    });
}

#[test]
fn what_a_token_must_give_is_said() {
    for_each_row(|_, row, operation| {
        assert_eq!(operation["x-needs"], row.need.word(), "{}", row.operation);
        let is_asked = row.access != routes::Access::Open;
        let may_be_forbidden = operation["responses"]["403"].is_object();
        assert!(!is_asked || may_be_forbidden, "{}", row.operation);
    });
}

/// What is told by every member of a cluster, and not only by the one that leads.
const OF_EVERY_MEMBER: &[&str] = &[
    "livez",
    "readyz",
    "healthz",
    "health",
    "ready",
    "openApi",
    "dashboard",
    "asset",
    "metrics",
    "getStats",
    "streamStats",
];

#[test]
fn what_only_a_leader_decides_may_be_elsewhere_or_nowhere() {
    for_each_row(|document, row, operation| {
        let id = row.operation;
        let is_decided = !OF_EVERY_MEMBER.contains(&id);
        let elsewhere = resolve(document, &operation["responses"]["307"]);
        assert_eq!(elsewhere.is_object(), is_decided, "{id}");
        if is_decided {
            assert!(elsewhere["headers"]["Location"].is_object(), "{id}");
            let says = elsewhere.to_string();
            assert!(says.contains("NOT_LEADER"), "{id}: {says}");
            let nowhere = resolve(document, &operation["responses"]["503"]).to_string();
            assert!(nowhere.contains("NO_LEADER"), "{id}: {nowhere}");
        }
    });
    let document = document();
    for id in ["readyz", "ready"] {
        let (_, _, operation) = &operations(&document)[id];
        let says = operation["responses"]["503"].to_string();
        assert!(says.contains(r#""not_leader""#), "{id}: {says}");
    }
}

#[test]
fn only_streams_are_streams_of_events() {
    for_each_row(|_, row, operation| {
        let content = &operation["responses"]["200"]["content"];
        let is_stream = content["text/event-stream"].is_object();
        assert_eq!(is_stream, row.streams, "{}", row.operation);
    });
}

#[test]
fn every_reference_and_link_leads_somewhere() {
    fn walk(document: &Value, value: &Value, ids: &BTreeSet<&str>) {
        match value {
            Value::Object(fields) => {
                resolve(document, value);
                for (name, link) in fields
                    .get("links")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                {
                    let id = link["operationId"].as_str().unwrap();
                    assert!(ids.contains(id), "the link {name} leads to {id}");
                }
                fields.values().for_each(|it| walk(document, it, ids));
            }
            Value::Array(values) => values.iter().for_each(|it| walk(document, it, ids)),
            _ => {}
        }
    }
    let document = document();
    walk(
        &document,
        &document,
        &routes::all().map(|(.., id)| id).collect(),
    );
}

#[test]
fn nothing_is_defined_and_never_used() {
    let document = document();
    let text = String::from_utf8(dashboard::OPENAPI.bytes.to_vec()).unwrap();
    for kind in ["parameters", "responses", "schemas", "headers"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            let reference = format!("\"#/components/{kind}/{name}\"");
            assert!(text.contains(&reference), "{reference}");
        }
    }
}

/// The version of the lock `job` that `GET` shows, and the least one that the document allows.
fn shown_and_least_version(pipes: &mut Pipes, document: &Value) -> (i64, i64) {
    let reader = pipes.connect_to(Door::Http);
    pipes.send(
        reader,
        b"GET /v1/locks/job HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    pipes.settle();
    let answer = pipes.read(reader);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let shown: Value = serde_json::from_str(body).unwrap();
    let schema = &document["components"]["schemas"]["LockState"]["properties"]["version"];
    (
        shown["version"].as_i64().unwrap(),
        schema["minimum"].as_i64().unwrap(),
    )
}

#[test]
fn the_version_of_a_lock_is_one_that_the_document_allows() {
    let document = document();
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let holder = pipes.connect();
    assert!(pipes.ask(holder, "l job 0").starts_with("ok "));
    let (shown, least) = shown_and_least_version(&mut pipes, &document);
    assert!(shown >= least, "{shown}, not at least {least}");
    let election = &document["components"]["schemas"]["ElectionState"]["properties"];
    assert_eq!(election["version"]["minimum"], least);
}

/// The document that this server shows, and its tag.
fn shown(pipes: &mut Pipes) -> (Value, String) {
    let reader = pipes.connect_to(Door::Http);
    pipes.send(
        reader,
        b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    pipes.settle();
    let answer = pipes.read(reader);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let (_, rest) = head.split_once("\r\nETag: ").unwrap();
    let tag = rest.lines().next().unwrap().to_owned();
    (serde_json::from_str(body).unwrap(), tag)
}

/// Removes every `security` and the `securitySchemes` from the document.
fn remove_security(document: &mut Value) {
    let top = document.as_object_mut().unwrap();
    assert!(top.remove("security").is_some());
    let components = top["components"].as_object_mut().unwrap();
    assert!(components.remove("securitySchemes").is_some());
    for item in top["paths"].as_object_mut().unwrap().values_mut() {
        for operation in item.as_object_mut().unwrap().values_mut() {
            operation.as_object_mut().unwrap().remove("security");
        }
    }
}

#[test]
fn the_document_says_security_while_the_server_asks_for_a_token() {
    let full = document();
    let mut open = full.clone();
    remove_security(&mut open);
    assert!(!open.to_string().contains("\"security"));
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let (without, tag_without) = shown(&mut pipes);
    assert_eq!(without, open);
    pipes.server.set_access(Access::of_one(b"s3cret"));
    let (with, tag_with) = shown(&mut pipes);
    assert_eq!(with, full);
    assert_ne!(
        tag_with, tag_without,
        "a cached document is asked for again"
    );
    pipes
        .server
        .set_access(Access::read("one house\ntwo read\n").unwrap());
    assert_eq!(shown(&mut pipes).0, full);
    pipes.server.set_access(Access::default());
    assert_eq!(shown(&mut pipes), (open, tag_without));
}

#[test]
fn the_document_has_the_version_of_the_program() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["openapi"], "3.1.0");
}

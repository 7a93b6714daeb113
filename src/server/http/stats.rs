//! The document of `GET /v1/stats`, which is also what each event of its stream says.
//!
//! As the line protocol's `stats`, but for the lists: it is as long with a million keys as with none,
//! so that a page may ask for it every second. Percentiles are of the last full second, the same for
//! everybody who asks.

use super::super::stats::{percentiles, totals};
use super::shown::Shown;
use crate::engine::Engine;
use crate::store::ClusterShown;
use crate::wire::json::{push_number, push_str_escaped};

/// Appends the document, without a line end.
pub(in crate::server) fn stats(out: &mut Vec<u8>, engine: &Engine, shown: &Shown) {
    let Shown {
        now,
        is_draining,
        line_port,
        figures,
        recent,
        cluster,
    } = shown;
    let counts = engine.counts();
    out.extend_from_slice(b"{\"version\":");
    push_str_escaped(out, env!("CARGO_PKG_VERSION").as_bytes());
    number(out, "epoch", figures.epoch);
    number(out, "uptime_ms", now.0 / 1_000_000);
    title(out, "draining");
    out.extend_from_slice(if *is_draining { b"true" } else { b"false" });
    match line_port {
        Some(port) => number(out, "line_port", u64::from(*port)),
        None => {
            title(out, "line_port");
            out.extend_from_slice(b"null");
        }
    }
    number(out, "connections", figures.connections as u64);
    number(out, "held", counts.holders as u64);
    number(out, "waiting", counts.waiters as u64);
    percentiles(out, "op_latency_us", &recent.operations);
    percentiles(out, "turn_us", &recent.turns);
    title(out, "cluster");
    match cluster {
        Some(it) => push_cluster(out, it),
        None => out.extend_from_slice(b"null"),
    }
    totals(out, engine.view(*now), engine.tally(), figures);
    out.push(b'}');
}

/// What a member of a cluster tells of it.
fn push_cluster(out: &mut Vec<u8>, it: &ClusterShown) {
    out.extend_from_slice(b"{\"role\":");
    push_str_escaped(out, it.role.as_bytes());
    for (called, address) in [
        ("leader", &it.leader.line),
        ("leader_http", &it.leader.http),
    ] {
        title(out, called);
        match address {
            Some(address) => push_str_escaped(out, address.as_bytes()),
            None => out.extend_from_slice(b"null"),
        }
    }
    number(out, "shard", u64::from(it.shard.index()));
    number(out, "shards", u64::from(it.shard.count()));
    number(out, "epoch", it.epoch);
    number(out, "log_entry", it.seq);
    number(out, "lag_entries", it.lag_entries);
    percentiles(out, "lag_us", &it.lag);
    number(out, "behind_us", it.behind_ns / 1_000);
    number(out, "commits", it.commits.count());
    percentiles(out, "commit_us", &it.commit);
    number(out, "doubts", it.doubts);
    number(out, "snapshots", it.snapshots);
    number(out, "etcd_bytes", it.etcd_bytes);
    number(out, "etcd_in_use_bytes", it.etcd_bytes_in_use);
    number(out, "etcd_quota_bytes", it.etcd_quota_bytes);
    out.push(b'}');
}

/// `,"title":`, which is ours and needs no escapes.
fn title(out: &mut Vec<u8>, title: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(b"\":");
}

fn number(out: &mut Vec<u8>, called: &str, value: u64) {
    title(out, called);
    push_number(out, value);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::super::pace::Recent;
    use super::super::sample::{NOW, Sample, acquire, member, shown};
    use super::*;
    use crate::base::Millis;
    use crate::dashboard::{ASSETS, OPENAPI};
    use crate::engine::Rules;
    use crate::engine::types::{Mode, Request};
    use crate::histogram::Percentiles;

    fn told(engine: &Engine, shown: &Shown) -> Value {
        let mut out = Vec::new();
        stats(&mut out, engine, shown);
        assert!(!out.contains(&b'\n'), "an event is one line");
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn it_says_what_there_is_now_and_what_took_how_long() {
        let mut it = Sample::new(Rules::default());
        it.hold(1, 3);
        let wait = Millis::from_secs(9);
        it.ask(2, acquire(b"key-0", Mode::Slot { limit: 1 }, wait));
        let [key, count] = [b"gate", &b"n"[..]];
        let meet = Request::Meet {
            key,
            count: 3,
            wait,
        };
        it.ask(3, meet);
        it.ask(
            4,
            Request::SetCount {
                key: count,
                value: 7,
            },
        );
        let mut shown = shown(NOW);
        shown.is_draining = true;
        shown.recent = Recent {
            operations: Percentiles {
                count: 420,
                p50_us: 47,
                p99_us: 151,
                max_us: 230,
            },
            ..Recent::default()
        };
        let mut document = told(&it.engine, &shown);
        let totals = document["totals"].take();
        let none = json!({"count": 0, "p50": 0, "p99": 0, "max": 0});
        let want = json!({
            "version": env!("CARGO_PKG_VERSION"), "epoch": 17, "uptime_ms": 90_000,
            "draining": true, "line_port": 6388, "connections": 3, "held": 3, "waiting": 2,
            "op_latency_us": {"count": 420, "p50": 47, "p99": 151, "max": 230},
            "turn_us": none, "cluster": null, "totals": null,
        });
        assert_eq!(document, want);
        for (name, want) in [
            ("locks", 3),
            ("grants", 3),
            ("counters", 1),
            ("barriers", 1),
            ("breaks", 0),
            ("wrong_secrets", 2),
            ("forbidden", 5),
            ("records", 9),
            ("records_waiting", 2),
        ] {
            assert_eq!(totals[name], want, "{name}");
        }
        shown.line_port = None;
        assert_eq!(told(&it.engine, &shown)["line_port"], Value::Null);
    }

    /// The names and types of the schema, and of everything in it.
    fn agree(schemas: &Value, schema: &Value, told: &Value, at: &str) {
        let schema = match schema["$ref"].as_str() {
            Some(path) => &schemas[path.rsplit('/').next().unwrap()],
            None => schema,
        };
        let types: Vec<&str> = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        let is = match told {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(types.contains(&is), "{at} is of type {is}, not {types:?}");
        let Value::Object(members) = told else {
            return;
        };
        let described = schema["properties"].as_object().unwrap();
        let required = schema["required"].as_array().unwrap();
        let names =
            |it: &serde_json::Map<String, Value>| it.keys().cloned().collect::<BTreeSet<_>>();
        let required: BTreeSet<_> = required.iter().filter_map(Value::as_str).collect();
        assert_eq!(names(members), names(described), "{at}");
        assert_eq!(required.len(), members.len(), "{at}: all are always there");
        for (name, member) in members {
            agree(schemas, &described[name], member, &format!("{at}.{name}"));
        }
    }

    #[test]
    fn it_is_what_the_description_says_and_nothing_else() {
        let described: Value = serde_json::from_slice(OPENAPI.bytes).unwrap();
        let schemas = &described["components"]["schemas"];
        let it = Sample::new(Rules::default());
        let alone = told(&it.engine, &shown(NOW));
        agree(schemas, &schemas["Stats"], &alone, "Stats");
        let cluster = Some(member("leader"));
        let in_cluster = told(
            &it.engine,
            &Shown {
                cluster,
                ..shown(NOW)
            },
        );
        agree(schemas, &schemas["Stats"], &in_cluster, "Stats");
        assert!(in_cluster["cluster"].is_object() && alone["cluster"].is_null());
    }

    #[test]
    fn a_member_tells_who_leads_and_how_far_it_is() {
        let it = Sample::new(Rules::default());
        let cluster = Some(member("standby"));
        let told = told(
            &it.engine,
            &Shown {
                cluster,
                ..shown(NOW)
            },
        );
        let want = json!({
            "role": "standby", "leader": "10.0.0.1:6388", "leader_http": "http://10.0.0.1:6389",
            "shard": 1, "shards": 2, "epoch": 4, "log_entry": 1_234, "lag_entries": 2,
            "lag_us": {"count": 40, "p50": 300, "p99": 2_000, "max": 2_100},
            "behind_us": 1_500, "commits": 3, "commit_us": {"count": 3, "p50": 2_000, "p99": 9_000, "max": 9_500},
            "doubts": 1, "snapshots": 5, "etcd_bytes": 60_000_000, "etcd_in_use_bytes": 25_000_000,
            "etcd_quota_bytes": 2_147_483_648_u64,
        });
        assert_eq!(told["cluster"], want);
    }

    /// Whatever the dashboard reads as `cluster.…` is there.
    #[test]
    fn the_dashboard_finds_everything_of_a_cluster_that_it_shows() {
        let it = Sample::new(Rules::default());
        let cluster = Some(member("leader"));
        let told = told(
            &it.engine,
            &Shown {
                cluster,
                ..shown(NOW)
            },
        );
        let mut read = BTreeSet::new();
        for file in ASSETS.iter().filter(|it| it.name.ends_with(".js")) {
            let text = str::from_utf8(file.bytes).unwrap();
            for start in [" cluster.", "(cluster."] {
                let uses = text.split(start).skip(1);
                let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
                read.extend(uses.map(|it| it.split(|c| !is_name(c)).next().unwrap()));
            }
        }
        read.remove("");
        assert!(read.len() > 5, "{read:?}");
        for name in read {
            assert!(told["cluster"].get(name).is_some(), "{name}");
        }
    }

    /// Whatever the dashboard reads as `totals.…` or `totals[…]` is there.
    #[test]
    fn the_dashboard_finds_every_total_that_it_shows() {
        let it = Sample::new(Rules::default());
        let told = told(&it.engine, &shown(NOW));
        let mut read = BTreeSet::new();
        for file in ASSETS
            .iter()
            .filter(|it| it.name.ends_with(".js") && it.name != "uplot.min.js")
        {
            let text = str::from_utf8(file.bytes).unwrap();
            for start in ["totals.", "totals?.", "\"totals\", \""] {
                let uses = text.split(start).skip(1);
                let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
                read.extend(uses.map(|it| it.split(|c| !is_name(c)).next().unwrap()));
            }
        }
        read.remove("");
        assert!(read.len() > 5, "{read:?}");
        for name in read {
            assert!(told["totals"].get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn it_is_as_long_with_many_keys_as_with_few() {
        let [few, many] = [10, 10_000].map(|locks| {
            let mut it = Sample::new(Rules::default());
            it.hold(1, locks);
            let mut out = Vec::new();
            stats(&mut out, &it.engine, &shown(NOW));
            out.len()
        });
        assert!(many - few < 50 && many < 2_048, "{few} {many}");
    }
}

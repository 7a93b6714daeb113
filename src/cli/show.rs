//! `latch ls`, `who`, `stats`, `ping`: who holds what, who waits, and how the servers are.

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::Context;
use super::args::{self, flag, key_of};
use super::connect::{Servers, fail, nonsense};
use super::duration::short;
use super::exit::{Exit, Fail};
use super::output::{Style, Table, escaped, quoted};
use super::table::Entry;
use crate::client::Client;
use crate::escape;
use crate::uptime::uptime;
use crate::wire::client::Told;
use crate::wire::command;
use crate::wire::verbs::Verb;

const LS: &str = "\
In a pattern * is any characters and ? is any one. Elsewhere than on a terminal each
line has tabs between key, kind, holders, waiters, lease left and holder.

Examples:
  latch ls
  latch ls 'build-*'
  latch ls --all --json | jq -r '.[].key'";

pub(crate) fn entries() -> Vec<Entry> {
    let ls = Command::new("ls")
        .about("List what is held or waited for")
        .arg(
            flag(
                "all",
                "Also idle locks, counters, values, lists and barriers",
            )
            .short('a'),
        )
        .arg(
            Arg::new("PATTERN")
                .value_parser(args::bytes())
                .help("Only keys like this"),
        )
        .after_help(LS);
    let who = Command::new("who")
        .about("Show who holds a key and who waits for it")
        .arg(args::key())
        .after_help("Exit code 1 says that nobody does either.\n\nExample:\n  latch who nightly");
    let stats = Command::new("stats")
        .about("Show the figures of the servers")
        .after_help("Example:\n  latch stats --json | jq '.[0].totals.holds'");
    let ping = Command::new("ping")
        .about("See whether the servers answer, and how fast")
        .after_help("Example:\n  until latch ping; do sleep 1; done");
    vec![
        Entry::new(ls, list),
        Entry::new(who, who_has),
        Entry::new(stats, figures),
        Entry::new(ping, ping_all),
    ]
}

/// One document of `stats`, and whose it is.
pub(crate) fn stats(client: &Client, index: usize) -> Result<Value, Fail> {
    let reply = client.ask_server(index, &command::Command::Stats);
    match reply.map_err(fail)?.told() {
        Told::Json(text) => serde_json::from_slice(text).map_err(|_| nonsense()),
        _ => Err(nonsense()),
    }
}

/// One line of `latch ls`, also for `latch top`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) kind: &'static str,
    pub(crate) holders: u64,
    pub(crate) waiters: u64,
    pub(crate) lease_left_s: Option<f64>,
    /// By the name it gave itself, or its address.
    pub(crate) holder: String,
    /// What else there is to say.
    pub(crate) detail: String,
}

/// Everything that `stats` lists; what nobody uses only if all of it is wanted.
pub(crate) fn rows(stats: &Value, all: bool) -> Vec<Row> {
    let list = |name: &str| {
        stats[name]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let row = |it: &Value, kind| Row {
        key: it["key"].as_str().unwrap_or_default().to_owned(),
        kind,
        waiters: number(&it["waiters"]),
        ..Row::default()
    };
    let mut rows = Vec::new();
    for it in list("locks") {
        let connection = number(&it["owner_conn_id"]);
        let held = it["fence"].as_u64().is_some_and(|fence| fence > 0);
        rows.push(Row {
            holders: u64::from(held),
            lease_left_s: it["lease_expires_in_s"].as_f64().filter(|_| held),
            holder: name_of(list("clients"), connection),
            ..row(it, "lock")
        });
    }
    for it in list("semaphores") {
        rows.push(Row {
            holders: number(&it["holders"]),
            detail: format!("of {}", number(&it["limit"])),
            ..row(it, "semaphore")
        });
    }
    for it in list("rw_locks") {
        let writer = it["writer"].as_bool().unwrap_or(false);
        rows.push(Row {
            holders: number(&it["readers"]) + u64::from(writer),
            detail: (if writer { "write" } else { "read" }).to_owned(),
            ..row(it, "rw_lock")
        });
    }
    if !all {
        return rows;
    }
    let idle = |it: &Value| format!("idle {}", short(it["idle_s"].as_f64().unwrap_or(0.0)));
    for (name, kind) in [("idle_locks", "lock"), ("idle_semaphores", "semaphore")] {
        rows.extend(list(name).iter().map(|it| Row {
            detail: idle(it),
            ..row(it, kind)
        }));
    }
    rows.extend(list("counters").iter().map(|it| Row {
        detail: it["value"].to_string(),
        ..row(it, "counter")
    }));
    rows.extend(list("kv_entries").iter().map(|it| Row {
        detail: format!("{} bytes", number(&it["value_len"])),
        ..row(it, "value")
    }));
    rows.extend(list("lists").iter().map(|it| Row {
        waiters: number(&it["pop_waiters"]),
        detail: format!("{} values", number(&it["len"])),
        ..row(it, "list")
    }));
    rows.extend(list("barriers").iter().map(|it| Row {
        waiters: number(&it["participants"]),
        detail: format!("for {}", number(&it["count"])),
        ..row(it, "barrier")
    }));
    rows
}

fn name_of(clients: &[Value], connection: u64) -> String {
    let is_it = |it: &&Value| it["connection"].as_u64() == Some(connection);
    let Some(client) = clients.iter().find(is_it).filter(|_| connection > 0) else {
        return String::new();
    };
    let name = [&client["name"], &client["address"]];
    let name = name.into_iter().find_map(|it| it.as_str());
    name.unwrap_or_default().to_owned()
}

/// Whether a name is like a pattern: `*` is any characters and `?` any one.
pub(crate) fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    // Goes back to the last `*` only, so that nothing takes longer than both lengths multiplied.
    let (mut at, mut star, mut of) = (0, None, 0);
    let mut from = 0;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                (star, from) = (Some(at), of);
                at += 1;
            }
            Some(it) if *it == b'?' || *it == name[of] => (at, of) = (at + 1, of + 1),
            _ => match star {
                Some(star) => {
                    from += 1;
                    (at, of) = (star + 1, from);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|it| *it == b'*')
}

fn list(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let client = Servers::of(matches)?.client()?;
    let pattern = args::bytes_of(matches, "PATTERN");
    let all = matches.get_flag("all");
    let (mut found, mut more) = (Vec::new(), false);
    let name = pattern.filter(|it| !it.iter().any(|byte| matches!(byte, b'*' | b'?')));
    if let Some(key) = name {
        args::check_key(key)?;
        found = rows_of(&client, key, all)?;
    }
    for index in 0..client.servers().len() {
        let stats = stats(&client, index)?;
        more |= name.is_none() && is_cut_short(&stats, all);
        let is_known = |row: &Row| found.iter().any(|it| it.kind == row.kind);
        let rows = rows(&stats, all).into_iter();
        let rows: Vec<Row> = match name {
            Some(_) => rows.filter(|row| !is_known(row)).collect(),
            None => rows.collect(),
        };
        let wanted = |row: &Row| pattern.is_none_or(|it| is_like(it, row.key.as_bytes()));
        found.extend(rows.into_iter().filter(wanted));
    }
    if context.output.json {
        let rows = found.iter().map(|row| {
            json!({
                "key": row.key,
                "kind": row.kind,
                "holders": row.holders,
                "waiters": row.waiters,
                "lease_left_s": row.lease_left_s,
                "holder": (!row.holder.is_empty()).then_some(&row.holder),
            })
        });
        context.output.json(&Value::Array(rows.collect()))?;
    } else {
        let mut table = Table::new(&["KEY", "KIND", "HELD", "WAIT", "LEASE", "HOLDER"]);
        for row in &found {
            table.row(cells(row));
        }
        if table.len() > 0 || !context.output.terminal {
            context.output.table(&table)?;
        } else {
            eprintln!("latch: nothing is held or waited for");
        }
    }
    if more {
        eprintln!(
            "latch: there is more: a server lists 1,000 of each kind. Name a key to look it up: latch ls --all KEY (not for barriers)"
        );
    }
    Ok(Exit::OK)
}

/// Whether there is more than the server lists.
fn is_cut_short(stats: &Value, all: bool) -> bool {
    let in_use = ["locks", "semaphores", "rw_locks"];
    let rest = [
        "idle_locks",
        "idle_semaphores",
        "idle_rw_locks",
        "counters",
        "kv_entries",
        "lists",
        "barriers",
    ];
    let rest = rest.iter().filter(|_| all);
    in_use.iter().chain(rest).any(|name| {
        let listed = stats[name].as_array().map_or(0, Vec::len) as u64;
        let total = stats["totals"][name].as_u64();
        total.is_some_and(|total| total > listed)
    })
}

/// The rows of one key by name, also where the server's list leaves it out.
fn rows_of(client: &Client, key: &[u8], all: bool) -> Result<Vec<Row>, Fail> {
    let row = |kind| Row {
        key: String::from_utf8_lossy(key).into_owned(),
        kind,
        ..Row::default()
    };
    let mut rows = Vec::new();
    let who = client.who(key).map_err(fail)?;
    let kinds = ["lock", "semaphore", "rw_lock"];
    let kind = kinds.into_iter().find(|it| who.kind.as_deref() == Some(it));
    let is_used = who.holder_count + who.waiter_count > 0;
    if let Some(kind) = kind.filter(|_| all || is_used) {
        let first = who.holders.first();
        let name = first.and_then(|it| [&it.name, &it.address].into_iter().flatten().next());
        rows.push(Row {
            holders: who.holder_count,
            waiters: who.waiter_count,
            lease_left_s: first.map(|it| it.lease_left_s).filter(|_| kind == "lock"),
            holder: name.cloned().unwrap_or_default(),
            ..row(kind)
        });
    }
    for (verb, kind) in [
        (Verb::Get, "counter"),
        (Verb::Kget, "value"),
        (Verb::Llen, "list"),
    ] {
        let reply = match all {
            true => client.ask_verb(verb, key, b"").map_err(fail)?,
            false => break,
        };
        let detail = match reply.told() {
            Told::Number(0) => continue, // that is what there is where there is nothing
            Told::Number(count) if kind == "list" => format!("{count} values"),
            Told::Number(count) => count.to_string(),
            Told::Value(value) => format!("{} bytes", value.len()),
            _ => continue,
        };
        rows.push(Row {
            detail,
            ..row(kind)
        });
    }
    Ok(rows)
}

/// A row as it is shown.
pub(crate) fn cells(row: &Row) -> [(String, Style); 6] {
    let waits = match row.waiters {
        0 => Style::Dim,
        _ => Style::Yellow,
    };
    let lease = row.lease_left_s.map_or_else(|| "-".to_owned(), short);
    let holder = match row.holder.is_empty() {
        true => row.detail.clone(),
        false => escaped(row.holder.as_bytes()),
    };
    [
        (escaped(row.key.as_bytes()), Style::Cyan),
        (row.kind.to_owned(), Style::Plain),
        (row.holders.to_string(), Style::Green),
        (row.waiters.to_string(), waits),
        (lease, Style::Plain),
        (holder, Style::Dim),
    ]
}

fn who_has(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let key = key_of(matches)?;
    let client = Servers::of(matches)?.client()?;
    let who = client.who(key).map_err(fail)?;
    let exit = match who.holder_count + who.waiter_count {
        0 => Exit::CONFLICT,
        _ => Exit::OK,
    };
    if context.output.json {
        context.output.line(&escape::json(&who.json))?;
        return Ok(exit);
    }
    if exit == Exit::CONFLICT {
        if context.output.terminal {
            context
                .output
                .line(&format!("nobody holds {}", quoted(key)))?;
        }
        return Ok(exit);
    }
    let mut table = Table::new(&["", "NAME", "ADDRESS", "HOW", "FOR", "LEASE", "FENCE"]);
    let text = |it: &Option<String>| match it {
        Some(text) => escaped(text.as_bytes()),
        None => "-".to_owned(),
    };
    for it in &who.holders {
        let lease = match it.restored {
            true => format!("{} (restored)", short(it.lease_left_s)),
            false => short(it.lease_left_s),
        };
        table.row([
            ("holds".to_owned(), Style::Green),
            (text(&it.name), Style::Cyan),
            (text(&it.address), Style::Plain),
            (it.hold.clone(), Style::Plain),
            (short(it.since_s), Style::Plain),
            (lease, Style::Plain),
            (it.fence.to_string(), Style::Dim),
        ]);
    }
    for it in &who.waiters {
        table.row([
            (format!("waits {}", it.position), Style::Yellow),
            (text(&it.name), Style::Cyan),
            (text(&it.address), Style::Plain),
            (it.hold.clone(), Style::Plain),
            (short(it.since_s), Style::Plain),
            ("-".to_owned(), Style::Plain),
            ("-".to_owned(), Style::Dim),
        ]);
    }
    context.output.table(&table)?;
    Ok(exit)
}

fn figures(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let client = Servers::of(matches)?.client()?;
    let mut documents = Vec::new();
    for index in 0..client.servers().len() {
        let mut document = stats(&client, index)?;
        document["server"] = json!(client.servers()[index]);
        documents.push(document);
    }
    if context.output.json {
        context.output.json(&Value::Array(documents))?;
        return Ok(Exit::OK);
    }
    let mut table = Table::new(&["SERVER", "FIGURE", "VALUE"]);
    for (server, document) in client.servers().iter().zip(&documents) {
        let mut row = |name: &str, value: &Value| {
            table.row([
                (escaped(server.as_bytes()), Style::Dim),
                (escaped(name.as_bytes()), Style::Cyan),
                (escaped(value.to_string().as_bytes()), Style::Plain),
            ]);
        };
        row("connections", &document["connections"]);
        let totals = document["totals"].as_object();
        for (name, value) in totals.into_iter().flatten() {
            match value.as_object() {
                Some(parts) => {
                    for (part, value) in parts {
                        row(&format!("{name}.{part}"), value);
                    }
                }
                None => row(name, value),
            }
        }
    }
    context.output.table(&table)?;
    Ok(Exit::OK)
}

fn ping_all(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let client = Servers::of(matches)?.client()?;
    let mut answers = Vec::new();
    for (index, server) in client.servers().iter().enumerate() {
        let ping = || {
            client
                .ask_server(index, &command::Command::Ping)
                .map_err(fail)
        };
        ping()?; // connects
        let start = uptime();
        ping()?;
        let ms = uptime().saturating_sub(start).as_secs_f64() * 1e3;
        match context.output.json {
            true => answers.push(json!({"server": server, "ms": ms})),
            false => {
                let server = escaped(server.as_bytes());
                let ms = context.output.paint(Style::Green, &format!("{ms:.2} ms"));
                context.output.line(&format!("{server}: {ms}"))?;
            }
        }
    }
    if context.output.json {
        context.output.json(&Value::Array(answers))?;
    }
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_shells() {
        for (pattern, name, like) in [
            ("*", "", true),
            ("*", "anything", true),
            ("night*", "nightly", true),
            ("night*", "fortnight", false),
            ("*night", "fortnight", true),
            ("n?ght", "night", true),
            ("n?ght", "nght", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("", "", true),
            ("", "x", false),
            ("x**", "x", true),
        ] {
            assert_eq!(
                is_like(pattern.as_bytes(), name.as_bytes()),
                like,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn rows_are_read_from_what_a_server_says_and_from_nonsense() {
        let stats = json!({
            "clients": [{"connection": 7, "name": "a@b:1", "address": "1.2.3.4:5"}],
            "locks": [{"key": "k", "owner_conn_id": 7, "lease_expires_in_s": 3.5, "waiters": 2, "fence": 9}],
            "semaphores": [{"key": "s", "limit": 3, "holders": 2, "waiters": 0}],
            "rw_locks": [{"key": "r", "readers": 0, "writer": true, "waiters": 1}],
            "counters": [{"key": "c", "value": -4, "idle_s": 1}],
        });
        let found = rows(&stats, true);
        let keys: Vec<_> = found.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(keys, ["k", "s", "r", "c"]);
        assert_eq!(found[0].holder, "a@b:1");
        assert_eq!((found[0].holders, found[0].waiters), (1, 2));
        assert_eq!(found[2].detail, "write");
        // What is no lock is one without a name; nothing is read that is not there.
        let nonsense = json!({"locks": 7, "lists": [3, null], "totals": []});
        let found = rows(&nonsense, true);
        assert!(
            found
                .iter()
                .all(|row| row.key.is_empty() && row.waiters == 0)
        );
        assert_eq!(rows(&stats, false).len(), 3);
    }
}

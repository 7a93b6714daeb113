//! What the table looks like, as JSON: the documents that answer `stats`, `who` and `waits`.
//!
//! Bounded so that no answer stalls the loop or outgrows its readers; true totals are always there.
//! Reads `engine::view`, and what the server knows of its connections.

use std::cell::Cell;

use super::handshakes::HandshakeFigures;
use super::turn::LongestTurn;
use crate::base::ConnId;
use crate::engine::view::{ConnView, HolderView, KeyView, View};
use crate::engine::{Census, Edge, Kind, Someone, Tally};
use crate::histogram::Percentiles;
use crate::wire::json;

/// Most entries in one array. Those in use come first; the totals tell of the rest.
pub(super) const ENTRIES_MAX: usize = 1_000;

/// Where arrays stop growing, so that the answer stays below the 1 MiB its readers accept: one more
/// entry is at most 2 KiB (a key of 256 bytes, six characters each, and some numbers).
pub(super) const BODY_BYTES_MAX: usize = (1 << 20) - 16 * 1024;

/// Most idle keys looked at, because kinds are mixed in the idle chain; and most values, because
/// expired ones are skipped.
const LOOKED_AT_MAX: usize = 4 * ENTRIES_MAX;

/// What the server itself knows.
pub(super) struct Figures {
    pub(super) connections: usize,
    pub(super) slow_consumers: u64,
    pub(super) longest_turn: LongestTurn,
    pub(super) wrong_secrets: u64,
    pub(super) forbidden: u64,
    pub(super) memory_bytes: usize,
    pub(super) memory_max_bytes: usize,
    /// The number of this life of the server.
    pub(super) epoch: u64,
    /// What was recorded since the start, and how much of it is on disk; nothing is without a data
    /// directory.
    pub(super) records: u64,
    pub(super) records_durable: u64,
    pub(super) outbox_bytes: usize,
    pub(super) lost_log_lines: u64,
    pub(super) handshakes: HandshakeFigures,
}

/// One connection, as the server knows it.
pub(super) struct Client {
    pub(super) id: ConnId,
    pub(super) address: String,
    pub(super) age_s: u64,
}

/// Where a connection comes from, while it is there.
pub(super) type AddressOf<'a> = &'a dyn Fn(ConnId) -> Option<String>;

/// The document for `stats`; returns at how many idle keys and values it has looked.
pub(super) fn stats(
    out: &mut Vec<u8>,
    view: View<'_>,
    tally: Tally,
    figures: &Figures,
    clients: impl Iterator<Item = Client>,
) -> usize {
    let end = out.len() + BODY_BYTES_MAX;
    let looks = Cell::new(0);
    out.extend_from_slice(b"{\"connections\":");
    json::push_number(out, figures.connections as u64);
    array(out, end, "clients", clients, |out, client| {
        let ConnView {
            name: called,
            user,
            client: attached,
            held,
            waiting,
        } = view.conn(client.id);
        out.extend_from_slice(b"\"connection\":");
        json::push_number(out, client.id.serial.into());
        who_is(out, Some(client.id), (attached, false));
        text(out, "address", Some(&client.address));
        text(out, "name", called);
        user_if_any(out, user);
        number(out, "age_s", client.age_s);
        number(out, "held", held.into());
        number(out, "waiting", waiting.into());
    });
    array(out, end, "locks", view.in_use(Census::LOCKS), |out, it| {
        key(out, it);
        let owner = it.holders().next();
        number(
            out,
            "owner_conn_id",
            owner
                .and_then(|it| it.conn)
                .map_or(0, |conn| u64::from(conn.serial)),
        );
        seconds(
            out,
            "lease_expires_in_s",
            owner.map_or(0, |it| it.lease_left_ns),
        );
        number(out, "waiters", u64::from(it.waiter_count()));
        number(out, "fence", owner.map_or(0, |it| it.fence.0));
    });
    array(
        out,
        end,
        "semaphores",
        view.in_use(Census::SEMAPHORES),
        |out, it| {
            key(out, it);
            number(out, "limit", limit(it.kind()));
            number(out, "holders", u64::from(it.holder_count()));
            number(out, "waiters", u64::from(it.waiter_count()));
        },
    );
    array(
        out,
        end,
        "rw_locks",
        view.in_use(Census::RW_LOCKS),
        |out, it| {
            key(out, it);
            let writer = it.holders().next().filter(|it| it.hold == "write");
            number(
                out,
                "readers",
                if writer.is_some() {
                    0
                } else {
                    u64::from(it.holder_count())
                },
            );
            name(out, "writer");
            out.extend_from_slice(if writer.is_some() { b"true" } else { b"false" });
            if let Some(writer) = writer {
                number(out, "fence", writer.fence.0);
            }
            number(out, "waiters", u64::from(it.waiter_count()));
        },
    );
    let mut idle = |title, wanted: fn(u64) -> bool| {
        let keys = view.idle().take(LOOKED_AT_MAX).inspect(|_| count(&looks));
        let keys = keys.filter(|(it, _)| wanted(limit(it.kind())));
        array(out, end, title, keys, |out, (it, idle_ns)| {
            key(out, it);
            seconds(out, "idle_s", idle_ns);
        });
    };
    idle("idle_locks", |limit| limit == 1);
    idle("idle_semaphores", |limit| limit > 1);
    array(out, end, "counters", view.counters(), |out, it| {
        entry_key(out, it.key);
        name(out, "value");
        out.extend_from_slice(it.what.to_string().as_bytes());
        seconds(out, "idle_s", it.idle_ns);
    });
    let values = view.values_with_over().take(LOOKED_AT_MAX);
    let values = values
        .inspect(|_| count(&looks))
        .filter(|it| !it.what.is_over());
    array(out, end, "kv_entries", values, |out, it| {
        entry_key(out, it.key);
        number(out, "value_len", it.what.bytes as u64);
        seconds(out, "ttl", it.what.ttl_ns.unwrap_or(0));
        seconds(out, "idle_s", it.idle_ns);
    });
    array(out, end, "lists", view.lists(), |out, it| {
        let (length, poppers) = it.what;
        entry_key(out, it.key);
        number(out, "len", length as u64);
        if poppers > 0 {
            number(out, "pop_waiters", u64::from(poppers));
        }
        seconds(out, "idle_s", it.idle_ns);
    });
    array(
        out,
        end,
        "signal_channels",
        view.listened(),
        |out, (pattern, group, listeners)| {
            out.extend_from_slice(b"\"pattern\":");
            json::push_str_escaped(out, pattern);
            if !group.is_empty() {
                name(out, "group");
                json::push_str_escaped(out, group);
            }
            number(out, "listeners", u64::from(listeners));
        },
    );
    array(
        out,
        end,
        "watch_channels",
        view.watched(),
        |out, (pattern, _, watchers)| {
            out.extend_from_slice(b"\"pattern\":");
            json::push_str_escaped(out, pattern);
            number(out, "watchers", u64::from(watchers));
        },
    );
    array(out, end, "barriers", view.barriers(), |out, it| {
        let (count, participants) = it.what;
        entry_key(out, it.key);
        number(out, "count", u64::from(count));
        number(out, "participants", u64::from(participants));
        seconds(out, "idle_s", it.idle_ns);
    });
    totals(out, view, tally, figures);
    out.push(b'}');
    looks.get()
}

fn count(looks: &Cell<usize>) {
    looks.set(looks.get() + 1);
}

/// The document for `who`.
pub(super) fn who(out: &mut Vec<u8>, view: View<'_>, asked: &[u8], address_of: AddressOf<'_>) {
    let end = out.len() + BODY_BYTES_MAX;
    out.extend_from_slice(b"{\"key\":");
    json::push_str_escaped(out, asked);
    let Some(it) = view.key(asked) else {
        out.extend_from_slice(
            b",\"kind\":null,\"limit\":0,\"holder_count\":0,\"waiter_count\":0,\
              \"holders\":[],\"waiters\":[]}",
        );
        return;
    };
    name(out, "kind");
    json::push_str_escaped(
        out,
        match it.kind() {
            Kind::Slots { limit: 1 } => b"lock",
            Kind::Slots { .. } => b"semaphore",
            Kind::ReadWrite => b"rw_lock",
        },
    );
    number(out, "limit", limit(it.kind()));
    number(out, "holder_count", u64::from(it.holder_count()));
    number(out, "waiter_count", u64::from(it.waiter_count()));
    array(out, end, "holders", it.holders(), |out, holder| {
        let HolderView {
            fence,
            conn,
            client,
            name,
            user,
            hold,
            age_ns,
            lease_left_ns,
            has_begun: _,
            is_named,
            token: _,
            version: _,
        } = holder;
        out.extend_from_slice(b"\"fence\":");
        json::push_number(out, fence.0);
        connection(out, conn, (client, is_named), address_of);
        text(out, "name", name);
        user_if_any(out, user);
        text(out, "hold", Some(hold));
        seconds(out, "since_s", age_ns);
        seconds(out, "lease_left_s", lease_left_ns);
        if conn.is_none() && client.is_none() && !is_named {
            out.extend_from_slice(b",\"restored\":true");
        }
    });
    let mut queue = it.queue();
    array(
        out,
        end,
        "waiters",
        it.waiters().zip(1..),
        |out, (waiter, position)| {
            out.extend_from_slice(b"\"position\":");
            json::push_number(out, position);
            let conn = Some(waiter.conn).filter(|conn| conn.serial != 0);
            connection(out, conn, (waiter.client, waiter.is_named), address_of);
            text(out, "name", waiter.name);
            user_if_any(out, waiter.user);
            text(out, "hold", Some(waiter.hold));
            seconds(out, "since_s", waiter.age_ns);
            name(out, "waits_for");
            out.push(b'[');
            queue.show_next(|waiting| {
                for (index, &it) in waiting.waits_for.iter().enumerate() {
                    if out.len() >= end {
                        break;
                    }
                    out.extend_from_slice(if index == 0 { b"" } else { b"," });
                    label(out, it, b"");
                }
            });
            out.push(b']');
        },
    );
    out.push(b'}');
}

/// The document for `waits`; returns how many places it has looked at.
pub(super) fn waits(out: &mut Vec<u8>, view: View<'_>) -> usize {
    let end = out.len() + BODY_BYTES_MAX;
    out.extend_from_slice(b"{\"edges\":[");
    let mut count = 0;
    let looks = view.edges(|edge| {
        let Edge {
            waiter,
            waits_for,
            owners,
            on,
            kind,
        } = edge;
        out.extend_from_slice(if count == 0 { b"{" } else { b",{" });
        out.extend_from_slice(b"\"waiter\":");
        label(out, waiter, owners[0]);
        name(out, "waits_for");
        label(out, waits_for, owners[1]);
        name(out, "on");
        json::push_str_escaped(out, on);
        text(out, "kind", Some(kind));
        out.push(b'}');
        count += 1;
        count < ENTRIES_MAX && out.len() < end
    });
    out.push(b']');
    number(out, "waiting", view.waiting());
    out.push(b'}');
    looks
}

/// Somebody in few words: `"#7"` is connection 7, and who has a name is called by it. For whom it locks
/// bytes follows behind a blank, if it does not do so for itself: there is none in what is before.
pub(super) fn label(out: &mut Vec<u8>, someone: Someone<'_>, owner: &[u8]) {
    let at = out.len();
    match someone {
        Someone::Connection(serial) => {
            out.extend_from_slice(b"\"#");
            json::push_number(out, serial.into());
            out.push(b'"');
        }
        Someone::Named(name) => json::push_str_escaped(out, name.as_bytes()),
        Someone::Nobody => return out.extend_from_slice(b"null"),
    }
    if !owner.is_empty() {
        let client = out.split_off(at);
        json::push_str_escaped(out, owner);
        out.splice(
            at..=at,
            client[..client.len() - 1].iter().copied().chain(*b" "),
        );
    }
}

/// `,"totals":{…}`: how much there is of everything, and what was counted.
pub(super) fn totals(out: &mut Vec<u8>, view: View<'_>, tally: Tally, figures: &Figures) {
    let (in_use, idle) = (view.in_use_census().0, view.idle_census().0);
    out.extend_from_slice(b",\"totals\":{\"locks\":");
    json::push_number(out, u64::from(in_use[Census::LOCKS]));
    number(out, "semaphores", u64::from(in_use[Census::SEMAPHORES]));
    number(out, "rw_locks", u64::from(in_use[Census::RW_LOCKS]));
    number(out, "idle_locks", u64::from(idle[Census::LOCKS]));
    number(out, "idle_semaphores", u64::from(idle[Census::SEMAPHORES]));
    number(out, "idle_rw_locks", u64::from(idle[Census::RW_LOCKS]));
    for (title, count) in view.totals() {
        number(out, title, count as u64);
    }
    let ranges = view.range_counts();
    number(out, "range_resources", ranges.resources as u64);
    number(out, "range_locks", ranges.locks as u64);
    number(out, "range_waiters", ranges.waiting as u64);
    let grace = view.grace();
    number(out, "grace_left_ms", grace.left.0);
    number(out, "grace_clients_expected", grace.expected.into());
    number(out, "grace_clients_done", grace.done.into());
    number(out, "slow_consumers", figures.slow_consumers);
    number(out, "wrong_secrets", figures.wrong_secrets);
    number(out, "forbidden", figures.forbidden);
    number(out, "lost_log_lines", figures.lost_log_lines);
    let (holds, holds_max) = view.holds();
    number(out, "holds", holds as u64);
    number(out, "holds_max", holds_max.into());
    let (clients, away) = view.client_count();
    number(out, "attached_clients", clients as u64);
    number(out, "away_clients", away as u64);
    number(out, "grants", tally.grants);
    number(out, "releases", tally.releases);
    number(out, "expiries", tally.expiries);
    number(out, "disconnects", tally.disconnects);
    number(out, "breaks", tally.breaks);
    let (lateness, ns_max) = view.expiry_lateness();
    percentiles(
        out,
        "expiry_lateness_us",
        &Percentiles::of(lateness, ns_max),
    );
    for (title, count) in view.deadlocks() {
        number(out, title, count);
    }
    number(out, "memory_bytes", figures.memory_bytes as u64);
    number(out, "memory_max_bytes", figures.memory_max_bytes as u64);
    number(out, "outbox_bytes", figures.outbox_bytes as u64);
    number(out, "epoch", figures.epoch);
    number(out, "records", figures.records);
    let waiting = figures.records.saturating_sub(figures.records_durable);
    number(out, "records_waiting", waiting);
    let LongestTurn { ns, work } = figures.longest_turn;
    number(out, "longest_turn_us", ns / 1_000);
    name(out, "longest_turn_work_us");
    for (index, (kind, ns)) in work.by_name().into_iter().enumerate() {
        out.push(if index == 0 { b'{' } else { b',' });
        json::push_str_escaped(out, kind.as_bytes());
        out.push(b':');
        json::push_number(out, ns / 1_000);
    }
    out.extend_from_slice(b"}}");
}

/// `,"title":[{…},{…}]`, as many as the bounds allow.
pub(super) fn array<I>(
    out: &mut Vec<u8>,
    end: usize,
    title: &str,
    items: impl Iterator<Item = I>,
    mut fields: impl FnMut(&mut Vec<u8>, I),
) {
    name(out, title);
    out.push(b'[');
    for (index, item) in items.take(ENTRIES_MAX).enumerate() {
        if out.len() >= end {
            break;
        }
        out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        fields(out, item);
        out.push(b'}');
    }
    out.push(b']');
}

fn connection(
    out: &mut Vec<u8>,
    conn: Option<ConnId>,
    owner: (Option<&str>, bool),
    address_of: AddressOf<'_>,
) {
    match conn {
        Some(conn) => number(out, "connection", u64::from(conn.serial)),
        None => text(out, "connection", None),
    }
    who_is(out, conn, owner);
    text(out, "address", conn.and_then(address_of).as_deref());
}

/// The id of the client; a connection that is its own client is called by its number, and an owner that
/// is known by its name is none.
fn who_is(out: &mut Vec<u8>, conn: Option<ConnId>, (client, is_named): (Option<&str>, bool)) {
    match (client, conn) {
        (None, Some(conn)) if !is_named => text(out, "client", Some(&format!("#{}", conn.serial))),
        (client, _) => text(out, "client", client),
    }
}

/// Whom somebody was let in as; nothing where tokens have no names.
fn user_if_any(out: &mut Vec<u8>, user: Option<&str>) {
    if user.is_some() {
        text(out, "user", user);
    }
}

fn key(out: &mut Vec<u8>, it: KeyView<'_>) {
    entry_key(out, it.key());
}

fn entry_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"\"key\":");
    json::push_str_escaped(out, key);
}

pub(super) fn name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    json::push_str_escaped(out, name.as_bytes());
    out.push(b':');
}

fn text(out: &mut Vec<u8>, title: &str, value: Option<&str>) {
    name(out, title);
    match value {
        Some(value) => json::push_str_escaped(out, value.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

pub(super) fn number(out: &mut Vec<u8>, title: &str, value: u64) {
    name(out, title);
    json::push_number(out, value);
}

pub(super) fn percentiles(out: &mut Vec<u8>, title: &str, it: &Percentiles) {
    name(out, title);
    out.extend_from_slice(b"{\"count\":");
    json::push_number(out, it.count);
    number(out, "p50", it.p50_us);
    number(out, "p99", it.p99_us);
    number(out, "max", it.max_us);
    out.push(b'}');
}

fn seconds(out: &mut Vec<u8>, title: &str, nanos: u64) {
    name(out, title);
    json::push_seconds(out, nanos);
}

/// A read-write lock has no limit; 0 says so.
fn limit(kind: Kind) -> u64 {
    match kind {
        Kind::Slots { limit } => u64::from(limit),
        Kind::ReadWrite => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Millis, Nanos};
    use crate::engine::types::{Effects, Input, Mode, Request};
    use crate::engine::{Engine, Origin, Rules};

    /// The same for `who`, whose waiters name whom they wait for.
    #[test]
    fn who_waits_for_whom_is_told_of_a_thousand_and_in_less_than_a_mebibyte() {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        let mut engine = Engine::new(Rules::default(), origin);
        let mut effects = Effects::new();
        let mut ask = |slot: u32, key: &[u8], mode| {
            let id = ConnId {
                slot,
                serial: slot + 1,
            };
            let request = Request::Acquire {
                key,
                mode,
                wait: Millis::MAX,
                lease: None,
            };
            engine.apply(Nanos(1), Input::Request(id, request), &mut effects);
        };
        let long = [1; 256];
        for slot in 0..3_000 {
            ask(slot, &long, Mode::Slot { limit: 1 });
        }
        for slot in 3_000..6_000 {
            ask(slot, b"doc", Mode::Read);
        }
        ask(6_000, b"doc", Mode::Write);
        ask(6_001, b"doc", Mode::Write);
        let (mut all, mut one) = (Vec::new(), Vec::new());
        waits(&mut all, engine.view(Nanos(1)));
        who(&mut one, engine.view(Nanos(1)), b"doc", &|_| None);
        let [all, one] = [all, one].map(|it| String::from_utf8(it).unwrap());
        assert!(all.len() < 1 << 20 && one.len() < 1 << 20);
        // The keys are so long that fewer fit.
        let edges = all.matches("\"waits_for\":").count();
        assert!((600..=1_000).contains(&edges), "{edges} edges");
        assert!(all.ends_with(",\"waiting\":3001}"), "{all:.100}");
        assert!(one.ends_with("\"waits_for\":[\"#6001\"]}]}"));
    }
}

//! Answers with many entries: locks with their holders and waiters, connections, clients, resources.
//!
//! Whoever walks over the table hands the entries in one by one, so that nothing is gathered before
//! it is written. Says how an entry looks, never which ones there are; how many fit is the walker's
//! to bound.

use std::borrow::Cow;

use super::object::{field, flag, text, text_or_null, title};
use crate::wire::json::{push_number, push_str_escaped};

/// One lock, semaphore or read-write lock.
#[derive(Clone, Copy, Debug)]
pub struct LockShown<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// `lock`, `semaphore` or `rwlock`; nothing if there is no such key.
    pub kind: Option<&'a str>,
    /// How many may hold it at once; 0 for a read-write lock.
    pub limit: u32,
    /// How many hold it.
    pub holder_count: u32,
    /// How many wait for it.
    pub waiter_count: u32,
}

/// One holder.
#[derive(Clone, Debug)]
pub struct HolderShown<'a> {
    /// The fence of its grant.
    pub fence: u64,
    /// Its name, if it has one.
    pub owner: Option<&'a str>,
    /// The client that it is, if it has attached to one.
    pub client: Option<&'a str>,
    /// Whom it was let in as, if that has a name.
    pub user: Option<&'a str>,
    /// The number of its connection, if it has one.
    pub connection: Option<u32>,
    /// Where that comes from.
    pub address: Option<Cow<'a, str>>,
    /// `slot`, `read`, `write` or `lead`.
    pub mode: &'a str,
    /// How long it has held.
    pub since_ms: u64,
    /// How long its lease still runs.
    pub lease_left_ms: u64,
    /// Whether the grant is from before a restart, and nobody has shown its token since.
    pub restored: bool,
}

/// One waiter.
#[derive(Clone, Copy, Debug)]
pub struct WaiterShown<'a> {
    /// Its place in the queue, from 1.
    pub position: u64,
    /// Its name, if it has one.
    pub owner: Option<&'a str>,
    /// The client that it is, if it has attached to one.
    pub client: Option<&'a str>,
    /// Whom it was let in as, if that has a name.
    pub user: Option<&'a str>,
    /// The number of its connection.
    pub connection: Option<u32>,
    /// `slot`, `read`, `write` or `lead`.
    pub mode: &'a str,
    /// How long it has waited.
    pub since_ms: u64,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionShown<'a> {
    /// Its number.
    pub connection: u32,
    /// Where it comes from.
    pub address: Option<&'a str>,
    /// What its client calls itself.
    pub name: Option<&'a str>,
    /// Whom it was let in as, if that has a name.
    pub user: Option<&'a str>,
    /// `line` or `http`.
    pub door: &'a str,
    /// How long it has been there.
    pub age_ms: u64,
    /// How much it holds.
    pub held: u32,
    /// How often it waits.
    pub waiting: u32,
}

/// One client.
#[derive(Clone, Copy, Debug)]
pub struct ClientShown<'a> {
    /// Its id.
    pub client: &'a str,
    /// What stands in it before the first `/`.
    pub adapter: &'a str,
    /// How long it is kept while it has no connection.
    pub ttl_ms: u64,
    /// How many connections are attached to it.
    pub connections: u32,
    /// How often it has come back after it had none.
    pub generation: u32,
    /// How many keys it holds.
    pub held: u32,
    /// How many range locks it has.
    pub range_locks: u32,
    /// For how long it is known.
    pub since_ms: u64,
    /// How long ago it was last heard of.
    pub seen_ms: u64,
}

/// Begins `{"<title>":[`; entries follow, each by [`comma`] and its own function, then [`end`].
pub fn begin(out: &mut Vec<u8>, title: &str) {
    out.push(b'{');
    push_str_escaped(out, title.as_bytes());
    out.extend_from_slice(b":[");
}

/// What stands before the next entry of a list: a comma, unless it is the first.
pub fn comma(out: &mut Vec<u8>) {
    if out.last() != Some(&b'[') {
        out.push(b',');
    }
}

/// Ends the page: where the next one begins, if there is one.
pub fn end(out: &mut Vec<u8>, next: Option<&str>) {
    out.push(b']');
    text_or_null(out, "next", next);
    out.push(b'}');
}

/// One lock with those who hold it and those who wait for it. None is added once `out` is as long as
/// `end`; the counts say how many there are.
pub fn lock<'a>(
    out: &mut Vec<u8>,
    end: usize,
    it: &LockShown<'_>,
    holders: impl Iterator<Item = HolderShown<'a>>,
    waiters: impl Iterator<Item = WaiterShown<'a>>,
) {
    name(out, it.name);
    text_or_null(out, "kind", it.kind);
    limit_and_counts(out, it);
    list(out, end, "holders", holders, holder);
    list(out, end, "waiters", waiters, waiter);
    out.push(b'}');
}

/// A semaphore or a read-write lock with those who hold it, as `GET /v1/semaphores/{name}` shows it.
/// None is added once `out` is as long as `end`.
pub fn holders<'a>(
    out: &mut Vec<u8>,
    end: usize,
    it: &LockShown<'_>,
    holders: impl Iterator<Item = HolderShown<'a>>,
) {
    name(out, it.name);
    limit_and_counts(out, it);
    list(out, end, "holders", holders, holder);
    out.push(b'}');
}

/// One connection.
pub fn connection(out: &mut Vec<u8>, it: &ConnectionShown<'_>) {
    out.extend_from_slice(b"{\"connection\":");
    push_number(out, it.connection.into());
    text_or_null(out, "address", it.address);
    text_or_null(out, "name", it.name);
    text_if_any(out, "user", it.user);
    text(out, "door", it.door);
    field(out, "age_ms", it.age_ms);
    field(out, "held", it.held.into());
    field(out, "waiting", it.waiting.into());
    out.push(b'}');
}

/// One client. It is away if no connection is attached to it.
pub fn client(out: &mut Vec<u8>, it: &ClientShown<'_>) {
    out.extend_from_slice(b"{\"client\":");
    push_str_escaped(out, it.client.as_bytes());
    text(out, "adapter", it.adapter);
    field(out, "ttl_ms", it.ttl_ms);
    field(out, "connections", it.connections.into());
    flag(out, "away", it.connections == 0);
    field(out, "generation", it.generation.into());
    field(out, "held", it.held.into());
    field(out, "range_locks", it.range_locks.into());
    field(out, "since_ms", it.since_ms);
    field(out, "seen_ms", it.seen_ms);
    out.push(b'}');
}

/// One resource: how many range locks it has, and how many wait for some.
pub fn resource(out: &mut Vec<u8>, name: &[u8], (locks, waiters): (usize, usize)) {
    out.extend_from_slice(b"{\"resource\":");
    push_str_escaped(out, name);
    field(out, "lock_count", locks as u64);
    field(out, "waiter_count", waiters as u64);
    out.push(b'}');
}

fn name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(b"{\"name\":");
    push_str_escaped(out, name);
}

fn limit_and_counts(out: &mut Vec<u8>, it: &LockShown<'_>) {
    field(out, "limit", it.limit.into());
    field(out, "holder_count", it.holder_count.into());
    field(out, "waiter_count", it.waiter_count.into());
}

fn list<I>(
    out: &mut Vec<u8>,
    end: usize,
    called: &str,
    items: impl Iterator<Item = I>,
    write: impl Fn(&mut Vec<u8>, &I),
) {
    title(out, called);
    out.push(b'[');
    for item in items {
        if out.len() >= end {
            break;
        }
        comma(out);
        write(out, &item);
    }
    out.push(b']');
}

fn holder(out: &mut Vec<u8>, it: &HolderShown<'_>) {
    out.extend_from_slice(b"{\"fencing_token\":");
    push_number(out, it.fence);
    text_or_null(out, "owner", it.owner);
    text_if_any(out, "client", it.client);
    text_if_any(out, "user", it.user);
    connection_number(out, it.connection);
    text_or_null(out, "address", it.address.as_deref());
    text(out, "mode", it.mode);
    field(out, "since_ms", it.since_ms);
    field(out, "lease_left_ms", it.lease_left_ms);
    flag(out, "restored", it.restored);
    out.push(b'}');
}

fn waiter(out: &mut Vec<u8>, it: &WaiterShown<'_>) {
    out.extend_from_slice(b"{\"position\":");
    push_number(out, it.position);
    text_or_null(out, "owner", it.owner);
    text_if_any(out, "client", it.client);
    text_if_any(out, "user", it.user);
    connection_number(out, it.connection);
    text(out, "mode", it.mode);
    field(out, "since_ms", it.since_ms);
    out.push(b'}');
}

fn text_if_any(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        text(out, name, value);
    }
}

fn connection_number(out: &mut Vec<u8>, number: Option<u32>) {
    match number {
        Some(number) => field(out, "connection", number.into()),
        None => text_or_null(out, "connection", None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const LOCK: LockShown<'static> = LockShown {
        name: b"a\"b\xff",
        kind: Some("semaphore"),
        limit: 3,
        holder_count: 2,
        waiter_count: 1,
    };

    const HOLDER: HolderShown<'static> = HolderShown {
        fence: 42,
        owner: Some("<b>worker\n7"),
        client: Some("gw/<1>"),
        user: Some("backup"),
        connection: None,
        address: None,
        mode: "slot",
        since_ms: 5,
        lease_left_ms: 59_995,
        restored: true,
    };

    const WAITER: WaiterShown<'static> = WaiterShown {
        position: 1,
        owner: None,
        client: None,
        user: None,
        connection: Some(7),
        mode: "slot",
        since_ms: 0,
    };

    fn holder() -> Value {
        json!({
            "fencing_token": 42, "owner": "<b>worker\n7", "client": "gw/<1>", "user": "backup", "connection": null, "address": null,
            "mode": "slot", "since_ms": 5, "lease_left_ms": 59_995, "restored": true,
        })
    }

    fn read(write: impl FnOnce(&mut Vec<u8>)) -> Value {
        let mut out = Vec::new();
        write(&mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_page_of_locks_is_json_whatever_they_are_called() {
        let page = read(|out| {
            begin(out, "locks");
            for _ in 0..2 {
                comma(out);
                lock(
                    out,
                    usize::MAX,
                    &LOCK,
                    [HOLDER, HOLDER].into_iter(),
                    [WAITER].into_iter(),
                );
            }
            end(out, Some("cursor"));
        });
        let lock = json!({
            "name": "a\"b\u{fffd}", "kind": "semaphore", "limit": 3, "holder_count": 2,
            "waiter_count": 1, "holders": [holder(), holder()],
            "waiters": [{"position": 1, "owner": null, "connection": 7, "mode": "slot", "since_ms": 0}],
        });
        assert_eq!(page, json!({"locks": [lock, lock], "next": "cursor"}));
    }

    #[test]
    fn a_list_stops_where_it_has_to() {
        let mut out = Vec::new();
        holders(&mut out, 200, &LOCK, std::iter::repeat(HOLDER));
        let shown: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(shown["holders"], json!([holder()]));
        assert_eq!(shown["holder_count"], 2);
    }

    #[test]
    fn an_empty_page_is_the_last_one() {
        let page = read(|out| {
            begin(out, "connections");
            end(out, None);
        });
        assert_eq!(page, json!({"connections": [], "next": null}));
    }

    #[test]
    fn a_semaphore_shows_who_has_its_slots() {
        let shown = read(|out| holders(out, usize::MAX, &LOCK, [HOLDER].into_iter()));
        let want = json!({
            "name": "a\"b\u{fffd}", "limit": 3, "holder_count": 2, "waiter_count": 1,
            "holders": [holder()],
        });
        assert_eq!(shown, want);
    }

    #[test]
    fn a_connection_shows_where_it_comes_from() {
        let it = ConnectionShown {
            connection: 7,
            address: Some("127.0.0.1:5"),
            name: None,
            user: None,
            door: "http",
            age_ms: 1,
            held: 2,
            waiting: 3,
        };
        let want = json!({
            "connection": 7, "address": "127.0.0.1:5", "name": null, "door": "http", "age_ms": 1,
            "held": 2, "waiting": 3,
        });
        assert_eq!(read(|out| connection(out, &it)), want);
    }
}

//! Pages of locks, connections, clients and resources, and who holds a lock and who waits for it.
//!
//! A page looks at so many slots of a table and no more, and is so many bytes long and hardly more, so
//! that no number of keys or clients makes a turn long; the caller charges what was looked at.
//!
//! Where a page ends, `next` is the number of the slot with which the next one begins. It is no
//! snapshot, and nothing is kept for it: what is there during the whole walk is shown exactly once,
//! because it keeps its slot; what comes or goes meanwhile may be shown or not, and a key that is
//! idle for so long that it is forgotten may come back in a slot that was looked at already. A cursor is
//! good for ever, whatever has become of the slot.

use std::borrow::Cow;
use std::iter;

use memchr::memmem::Finder;

use super::super::Door;
use super::super::stats::AddressOf;
use crate::base::ConnId;
use crate::engine::Kind;
use crate::engine::view::{ClientView, ConnView, HolderView, KeyView, View, WaiterView};
use crate::wire::http::pages::{
    self, ClientShown, ConnectionShown, HolderShown, LockShown, WaiterShown,
};
use crate::wire::http::problem::UNKNOWN_CURSOR;
use crate::wire::http::{Page, Problem};

/// Most looks of one page. A look is at a slot, or at so many bytes of a name that is searched.
pub(in crate::server) const LOOKS_MAX: usize = 4_096;
pub(in crate::server) const SEARCHED_BYTES_PER_LOOK: usize = 64;

/// A page ends when it is this long: the entry that made it so is its last.
pub(in crate::server) const PAGE_BYTES: usize = 64 * 1024;

/// Most holders and waiters that are shown of each lock on a page.
const LISTED_MAX: usize = 8;

/// Most that are shown of one lock alone, and where that ends: one more entry is at most 7 KiB (a name
/// of 1,024 bytes, six characters each, and some numbers), and the answer stays below the 1 MiB that
/// its readers accept.
const ALONE_MAX: usize = 1_000;
const ALONE_BYTES: usize = (1 << 20) - 32 * 1024;

/// Which locks are asked for.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Wanted<'a> {
    /// Only names with this in them; all if it is empty.
    pub(in crate::server) contains: &'a [u8],
    /// Those that are held.
    pub(in crate::server) held: bool,
    /// Those that are waited for.
    pub(in crate::server) waiting: bool,
}

/// One connection, as the server knows it.
pub(in crate::server) struct Client {
    pub(in crate::server) id: ConnId,
    pub(in crate::server) address: String,
    pub(in crate::server) door: Door,
    pub(in crate::server) age_ms: u64,
}

/// Appends a page of all keys that are held or waited for. Returns how many looks it took.
///
/// # Errors
/// The cursor is none: answer this instead. Nothing was appended.
pub(in crate::server) fn locks(
    out: &mut Vec<u8>,
    view: View<'_>,
    page: Page<'_>,
    wanted: Wanted<'_>,
    address_of: AddressOf<'_>,
) -> Result<usize, Problem<'static>> {
    let first = slot_of(page)?;
    let end = out.len() + PAGE_BYTES;
    let finder = Finder::new(wanted.contains);
    let (mut looks, mut entries) = (0, 0);
    let mut next = None;
    pages::begin(out, "locks");
    for (slot, key) in view.slots_from(first) {
        if looks >= LOOKS_MAX || entries >= page.limit || out.len() >= end {
            next = Some(slot);
            break;
        }
        looks += 1;
        let Some(key) = key.filter(|it| is_in_state(*it, wanted)) else {
            continue;
        };
        if !wanted.contains.is_empty() {
            looks += key.key().len() / SEARCHED_BYTES_PER_LOOK;
            if finder.find(key.key()).is_none() {
                continue;
            }
        }
        entries += 1;
        pages::comma(out);
        lock(out, end + PAGE_BYTES, key, LISTED_MAX, address_of);
    }
    end_page(out, next);
    Ok(looks)
}

/// Appends a page of connections: `client_at` says who is in a slot, of which there are `slots`. Returns
/// how many looks it took.
///
/// # Errors
/// The cursor is none: answer this instead. Nothing was appended.
pub(in crate::server) fn connections(
    out: &mut Vec<u8>,
    view: View<'_>,
    page: Page<'_>,
    slots: usize,
    client_at: impl Fn(u32) -> Option<Client>,
) -> Result<usize, Problem<'static>> {
    let first = slot_of(page)?;
    let end = out.len() + PAGE_BYTES;
    let (mut looks, mut entries) = (0, 0);
    let mut next = None;
    pages::begin(out, "connections");
    for slot in first..u32::try_from(slots).unwrap_or(u32::MAX) {
        if looks >= LOOKS_MAX || entries >= page.limit || out.len() >= end {
            next = Some(slot);
            break;
        }
        looks += 1;
        let Some(client) = client_at(slot) else {
            continue;
        };
        entries += 1;
        pages::comma(out);
        connection(out, &client, view.conn(client.id));
    }
    end_page(out, next);
    Ok(looks)
}

/// Appends a page of all clients. Returns how many looks it took.
///
/// # Errors
/// The cursor is none: answer this instead. Nothing was appended.
pub(in crate::server) fn clients(
    out: &mut Vec<u8>,
    view: View<'_>,
    page: Page<'_>,
) -> Result<usize, Problem<'static>> {
    let first = slot_of(page)?;
    let end = out.len() + PAGE_BYTES;
    let (mut looks, mut entries) = (0, 0);
    let mut next = None;
    pages::begin(out, "clients");
    for (slot, client) in view.clients_from(first) {
        if looks >= LOOKS_MAX || entries >= page.limit || out.len() >= end {
            next = Some(slot);
            break;
        }
        looks += 1;
        let Some(client) = client else {
            continue;
        };
        entries += 1;
        pages::comma(out);
        pages::client(out, &client_shown(client));
    }
    end_page(out, next);
    Ok(looks)
}

/// Appends a page of all resources that somebody holds or wants some bytes of, of those with `contains` in
/// their names. Returns how many looks it took.
///
/// # Errors
/// The cursor is none: answer this instead. Nothing was appended.
pub(in crate::server) fn resources(
    out: &mut Vec<u8>,
    view: View<'_>,
    page: Page<'_>,
    contains: &[u8],
) -> Result<usize, Problem<'static>> {
    let first = slot_of(page)?;
    let end = out.len() + PAGE_BYTES;
    let finder = Finder::new(contains);
    let (mut looks, mut entries) = (0, 0);
    let mut next = None;
    pages::begin(out, "resources");
    for (slot, resource) in view.resources_from(first) {
        if looks >= LOOKS_MAX || entries >= page.limit || out.len() >= end {
            next = Some(slot);
            break;
        }
        looks += 1;
        let Some(resource) = resource else {
            continue;
        };
        looks += resource.key().len() / SEARCHED_BYTES_PER_LOOK;
        if finder.find(resource.key()).is_none() {
            continue;
        }
        entries += 1;
        pages::comma(out);
        pages::resource(out, resource.key(), resource.lens());
    }
    end_page(out, next);
    Ok(looks)
}

/// Appends who holds a key and who waits for it, in order. A key that nobody has used is shown as one
/// of no kind. Returns how many looks it took.
pub(in crate::server) fn who(
    out: &mut Vec<u8>,
    view: View<'_>,
    name: &[u8],
    address_of: AddressOf<'_>,
) -> usize {
    let end = out.len() + ALONE_BYTES;
    let Some(key) = view.key(name) else {
        let nobody = (iter::empty(), iter::empty());
        pages::lock(out, end, &unknown(name), nobody.0, nobody.1);
        return 1;
    };
    lock(out, end, key, ALONE_MAX, address_of);
    looks_at(key.holder_count()) + looks_at(key.waiter_count())
}

/// Appends who holds a semaphore or a read-write lock. Returns how many looks it took.
pub(in crate::server) fn holders(
    out: &mut Vec<u8>,
    view: View<'_>,
    name: &[u8],
    address_of: AddressOf<'_>,
) -> usize {
    let end = out.len() + ALONE_BYTES;
    let Some(key) = view.key(name) else {
        pages::holders(out, end, &unknown(name), iter::empty());
        return 1;
    };
    let shown = key.holders().take(ALONE_MAX);
    let shown = shown.map(|it| holder_shown(it, address_of));
    pages::holders(out, end, &lock_shown(key), shown);
    looks_at(key.holder_count())
}

/// How many are looked at, of so many.
fn looks_at(count: u32) -> usize {
    1 + ALONE_MAX.min(count as usize)
}

/// The slot with which a page begins: a number as [`end_page`] writes it.
fn slot_of(page: Page<'_>) -> Result<u32, Problem<'static>> {
    let Some(after) = page.after else {
        return Ok(0);
    };
    let is_plain = after.first() != Some(&b'0') && after.iter().all(u8::is_ascii_digit);
    let text = str::from_utf8(after).ok().filter(|_| is_plain);
    text.and_then(|it| it.parse().ok()).ok_or(UNKNOWN_CURSOR)
}

/// A page never ends before the first slot, so a cursor is never 0.
fn end_page(out: &mut Vec<u8>, next: Option<u32>) {
    let mut digits = itoa::Buffer::new();
    pages::end(out, next.map(|slot| digits.format(slot)));
}

fn is_in_state(key: KeyView<'_>, wanted: Wanted<'_>) -> bool {
    (wanted.held && key.holder_count() > 0) || (wanted.waiting && key.waiter_count() > 0)
}

fn lock(out: &mut Vec<u8>, end: usize, key: KeyView<'_>, most: usize, address_of: AddressOf<'_>) {
    let holders = key.holders().take(most);
    let waiters = key.waiters().take(most).zip(1..);
    pages::lock(
        out,
        end,
        &lock_shown(key),
        holders.map(|it| holder_shown(it, address_of)),
        waiters.map(|(it, position)| waiter_shown(&it, position)),
    );
}

fn lock_shown(key: KeyView<'_>) -> LockShown<'_> {
    let (kind, limit) = match key.kind() {
        Kind::Slots { limit: 1 } => ("lock", 1),
        Kind::Slots { limit } => ("semaphore", limit),
        Kind::ReadWrite => ("rwlock", 0),
    };
    LockShown {
        name: key.key(),
        kind: Some(kind),
        limit,
        holder_count: key.holder_count(),
        waiter_count: key.waiter_count(),
    }
}

fn unknown(name: &[u8]) -> LockShown<'_> {
    LockShown {
        name,
        kind: None,
        limit: 0,
        holder_count: 0,
        waiter_count: 0,
    }
}

fn holder_shown<'e>(it: HolderView<'e>, address_of: AddressOf<'_>) -> HolderShown<'e> {
    HolderShown {
        fence: it.fence.0,
        owner: it.name.or(it.client),
        client: it.client,
        user: it.user,
        connection: it.conn.map(|conn| conn.serial),
        address: it.conn.and_then(address_of).map(Cow::Owned),
        mode: it.hold,
        since_ms: it.age_ns / 1_000_000,
        lease_left_ms: it.lease_left_ns / 1_000_000,
        restored: it.conn.is_none() && it.client.is_none() && !it.is_named,
    }
}

fn waiter_shown<'e>(it: &WaiterView<'e>, position: u64) -> WaiterShown<'e> {
    WaiterShown {
        position,
        owner: it.name.or(it.client),
        client: it.client,
        user: it.user,
        connection: Some(it.conn.serial).filter(|&serial| serial != 0),
        mode: it.hold,
        since_ms: it.age_ns / 1_000_000,
    }
}

fn client_shown(it: ClientView<'_>) -> ClientShown<'_> {
    ClientShown {
        client: it.id,
        adapter: it.adapter,
        ttl_ms: it.ttl.0,
        connections: it.connections,
        generation: it.generation,
        held: it.held,
        range_locks: it.range_locks,
        since_ms: it.since_ns / 1_000_000,
        seen_ms: it.seen_ns / 1_000_000,
    }
}

fn connection(out: &mut Vec<u8>, client: &Client, known: ConnView<'_>) {
    let ConnView {
        name,
        user,
        client: _,
        held,
        waiting,
    } = known;
    let it = ConnectionShown {
        connection: client.id.serial,
        address: Some(&client.address),
        name,
        user,
        door: client.door.word(),
        age_ms: client.age_ms,
        held,
        waiting,
    };
    pages::connection(out, &it);
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;

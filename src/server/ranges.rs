//! Byte ranges at the server's door: requests go to the engine, `rangelist` is spelled here, and what
//! operators do is told in the log.
//!
//! The engine decides (`engine/ranges.rs`). The document is bounded like those of `stats.rs`, and its
//! counts are always true.

use std::cell::Cell;

use memchr::memmem::Finder;

use super::Server;
use super::conn::Transport;
use super::http::pages::{LOOKS_MAX, PAGE_BYTES, SEARCHED_BYTES_PER_LOOK};
use super::stats::{BODY_BYTES_MAX, ENTRIES_MAX, array, label, name, number};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{
    ByteRange, Input, RangeCursor, RangeRequest, RangesOf, Refusal, Sharing, Span,
};
use crate::engine::view::View;
use crate::engine::{HoldingView, RangeShown, Someone};
use crate::store::Store;
use crate::wire::http::pages;
use crate::wire::json;

impl<T: Transport, S: Store> Server<T, S> {
    /// Serves `rangelock` and its like, for the client of this connection; returns false if it is to be
    /// served again later.
    #[cold]
    pub(super) fn ask_for_range(
        &mut self,
        now: Nanos,
        id: ConnId,
        request: RangeRequest<'_>,
    ) -> bool {
        self.put(now, id, Input::Range(id, None, request), false)
    }

    /// Serves `reclaimdone`; returns false if it is to be served again later.
    #[cold]
    pub(super) fn end_reclaim(&mut self, now: Nanos, id: ConnId, client: &str) -> bool {
        self.put(now, id, Input::ReclaimDone(id, client, None), false)
    }

    /// Serves `grace`, and says in the log who ended the grace period; returns false if it is to be
    /// served again later.
    #[cold]
    pub(super) fn look_at_grace(&mut self, now: Nanos, id: ConnId, ends: bool) -> bool {
        if ends {
            self.audit_grace_end(now, id);
        }
        self.put(now, id, Input::Grace { conn: id, ends }, false)
    }

    /// Serves `break … range`, and says in the log who asked for it; returns false if it is to be served
    /// again later.
    #[cold]
    pub(super) fn break_ranges(
        &mut self,
        now: Nanos,
        id: ConnId,
        resource: &[u8],
        span: Option<Span>,
    ) -> bool {
        let range = match span.map(|span| ByteRange::new(span.start, span.len)) {
            None => None,
            Some(Some(range)) => Some(range),
            Some(None) => {
                self.refuse(id, Refusal::BadRange);
                self.charge_request(id, 0);
                return true;
            }
        };
        self.audit_break_ranges(now, id, resource, span);
        self.put(now, id, Input::BreakRanges(id, resource, range), false)
    }

    /// Serves `break … range client`, and says in the log who asked for it; returns false if it is to be
    /// served again later.
    #[cold]
    pub(super) fn break_ranges_of(&mut self, now: Nanos, id: ConnId, client: &[u8]) -> bool {
        self.audit_break_ranges_of(now, id, client);
        self.put(now, id, Input::BreakRangesOf(id, client), false)
    }

    /// Answers `rangelist` with a client or an owner.
    #[cold]
    pub(super) fn list_ranges_of(
        &mut self,
        now: Nanos,
        id: ConnId,
        of: RangesOf<'_>,
        after: RangeCursor,
    ) {
        let looks = Cell::new(0);
        self.tell(id, |server, out| {
            let wanted = RangesWanted {
                of,
                after,
                limit: ENTRIES_MAX,
                contains: b"",
            };
            looks.set(ranges_of(out, server.engine.view(now), now, wanted));
        });
        self.budget.charge_visits(looks.get());
    }

    /// Answers `rangelist`.
    #[cold]
    pub(super) fn list_ranges(&mut self, now: Nanos, id: ConnId, resource: &[u8]) {
        let looks = Cell::new(0);
        self.tell(id, |server, out| {
            looks.set(ranges(out, server.engine.view(now), now, resource));
        });
        self.budget.charge_visits(looks.get());
    }
}

/// The ranges of a resource, as `rangelist` and HTTP tell them; returns how many places it has looked at.
pub(super) fn ranges(out: &mut Vec<u8>, view: View<'_>, now: Nanos, resource: &[u8]) -> usize {
    let view_day_ns = view.day_ns();
    let view = view.ranges(resource);
    let held = || view.into_iter().flat_map(|it| it.held());
    let waiting = || view.into_iter().flat_map(|it| it.waiting());
    let counts = view.map_or((0, 0), |it| it.lens());
    let compared = Cell::new(0);
    let waits_for = |place: usize, each: &mut dyn FnMut(Someone<'_>, &[u8])| {
        if let Some(view) = view {
            compared.set(compared.get() + view.waits_for(place, each));
        }
    };
    let clocks = (now, view_day_ns);
    let looked = list(
        out,
        clocks,
        resource,
        counts,
        (held(), waiting()),
        waits_for,
    );
    counts.0.min(ENTRIES_MAX) + counts.1.min(ENTRIES_MAX) + looked + compared.get()
}

/// Which part of all range locks is listed.
pub(super) struct RangesWanted<'a> {
    pub(super) of: RangesOf<'a>,
    pub(super) after: RangeCursor,
    /// How many at most.
    pub(super) limit: usize,
    /// Only of resources with this in their names.
    pub(super) contains: &'a [u8],
}

/// A page of the range locks of a client or an owner, as `rangelist` and HTTP tell them; returns how many
/// places it has looked at. As with other pages, what is there during the whole walk is shown once.
pub(super) fn ranges_of(
    out: &mut Vec<u8>,
    view: View<'_>,
    now: Nanos,
    wanted: RangesWanted<'_>,
) -> usize {
    let RangesWanted {
        of,
        after,
        limit,
        contains,
    } = wanted;
    let (end, clocks) = (out.len() + PAGE_BYTES, (now, view.day_ns()));
    let finder = Finder::new(contains);
    let (mut looks, mut entries, mut next) = (0, 0, None);
    pages::begin(out, "locks");
    for (slot, holding) in view.holdings_from(after.slot) {
        let mut start = if slot == after.slot { after.start } else { 0 };
        if looks >= LOOKS_MAX {
            next = Some(RangeCursor { slot, start });
            break;
        }
        looks += 1;
        let Some(holding) = holding.filter(|it| is_meant(*it, of)) else {
            continue;
        };
        looks += holding.resource().len() / SEARCHED_BYTES_PER_LOOK;
        if finder.find(holding.resource()).is_none() {
            continue;
        }
        for it in holding.locks_from(start) {
            start = it.range.start();
            if looks >= LOOKS_MAX || entries >= limit || out.len() >= end {
                next = Some(RangeCursor { slot, start });
                break;
            }
            (looks, entries) = (looks + 1, entries + 1);
            pages::comma(out);
            out.extend_from_slice(b"{\"resource\":");
            json::push_str_escaped(out, holding.resource());
            out.push(b',');
            show(out, clocks, &it);
            out.push(b'}');
        }
        if next.is_some() {
            break;
        }
    }
    pages::end(out, next.map(|it| it.to_string()).as_deref());
    looks
}

fn is_meant(holding: HoldingView<'_>, of: RangesOf<'_>) -> bool {
    let (client, owner) = holding.owner();
    let is_client = |name: &[u8]| match client {
        Someone::Named(id) => id.as_bytes() == name,
        Someone::Connection(serial) => {
            name.first() == Some(&b'#')
                && name[1..] == *itoa::Buffer::new().format(serial).as_bytes()
        }
        Someone::Nobody => false,
    };
    of.client.is_none_or(is_client) && of.owner.is_none_or(|name| owner == name)
}

/// The document for `rangelist`; returns how many were looked at because somebody waits for them.
fn list<'e>(
    out: &mut Vec<u8>,
    clocks: (Nanos, u64),
    resource: &[u8],
    (lock_count, waiter_count): (usize, usize),
    (held, waiting): (
        impl Iterator<Item = RangeShown<'e>>,
        impl Iterator<Item = RangeShown<'e>>,
    ),
    waits_for: impl Fn(usize, &mut dyn FnMut(Someone<'_>, &[u8])),
) -> usize {
    let end = out.len() + BODY_BYTES_MAX;
    out.extend_from_slice(b"{\"resource\":");
    json::push_str_escaped(out, resource);
    number(out, "lock_count", lock_count as u64);
    number(out, "waiter_count", waiter_count as u64);
    array(out, end, "locks", held, |out, it| show(out, clocks, &it));
    let mut looks = 0;
    array(
        out,
        end,
        "waiters",
        waiting.enumerate(),
        |out, (place, it)| {
            show(out, clocks, &it);
            number(out, "position", place as u64 + 1);
            name(out, "waits_for");
            out.push(b'[');
            let mut is_first = true;
            waits_for(place, &mut |client, owner| {
                looks += 1;
                if out.len() < end {
                    out.extend_from_slice(if is_first { b"{" } else { b",{" });
                    is_first = false;
                    show_owner(out, client, owner);
                    out.push(b'}');
                }
            });
            out.push(b']');
        },
    );
    out.push(b'}');
    looks
}

/// `clocks` are the engine's and the time of day, in nanoseconds since 1970.
fn show(out: &mut Vec<u8>, (now, day_ns): (Nanos, u64), it: &RangeShown<'_>) {
    let RangeShown {
        client,
        owner,
        mode,
        range,
        pending,
        since,
        grant,
    } = *it;
    show_owner(out, client, owner);
    name(out, "mode");
    out.extend_from_slice(match mode {
        Sharing::Shared => b"\"sh\"",
        Sharing::Exclusive => b"\"ex\"",
    });
    number(out, "start", range.start());
    number(out, "len", range.len());
    name(out, "pending");
    out.extend_from_slice(if pending { b"true" } else { b"false" });
    let age_ns = match grant {
        Some(grant) => day_ns.saturating_sub(grant.since),
        None => now.since(since),
    };
    number(out, "since_ms", age_ns / 1_000_000);
    if let Some(grant) = grant {
        number(out, "id", grant.id);
        number(out, "acquired_ms", grant.since / 1_000_000);
        number(out, "epoch", grant.epoch);
    }
}

/// `"client":…,"owner":…`.
fn show_owner(out: &mut Vec<u8>, client: Someone<'_>, owner: &[u8]) {
    out.extend_from_slice(b"\"client\":");
    label(out, client, b"");
    name(out, "owner");
    json::push_str_escaped(out, owner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::RangeGrant;

    const DAY_NS: u64 = 1_800_000_000_002_999_999;

    fn shown() -> RangeShown<'static> {
        RangeShown {
            client: Someone::Named("gw/1"),
            owner: b"bob",
            mode: Sharing::Shared,
            range: ByteRange::new(0, 0).unwrap(),
            pending: false,
            since: Nanos(1_000_000_000),
            grant: None,
        }
    }

    fn listed(
        held: &[RangeShown<'_>],
        waiting: &[RangeShown<'_>],
        waits_for: &[(Someone<'_>, &[u8])],
    ) -> (String, usize) {
        let mut out = Vec::new();
        let looks = list(
            &mut out,
            (Nanos(2_500_999_999), DAY_NS),
            b"f\"1",
            (held.len(), waiting.len()),
            (held.iter().copied(), waiting.iter().copied()),
            |_, each| waits_for.iter().for_each(|(who, owner)| each(*who, owner)),
        );
        (String::from_utf8(out).unwrap(), looks)
    }

    #[test]
    fn a_resource_that_nobody_uses_has_empty_lists() {
        let want = r#"{"resource":"f\"1","lock_count":0,"waiter_count":0,"locks":[],"waiters":[]}"#;
        assert_eq!(listed(&[], &[], &[]), (want.to_owned(), 0));
    }

    #[test]
    fn locks_and_waiters_are_told_with_exact_numbers() {
        let odd = RangeShown {
            client: Someone::Connection(7),
            owner: b"",
            mode: Sharing::Exclusive,
            range: ByteRange::new((1 << 53) + 1, (1 << 63) + 1).unwrap(),
            pending: true,
            since: Nanos(9_000_000_000), // later than now, by a hair
            grant: None,
        };
        let held = |it, age_ns| RangeShown {
            grant: Some(RangeGrant {
                id: 5,
                since: DAY_NS.saturating_sub(age_ns),
                epoch: 3,
            }),
            ..it
        };
        let waits_for = [
            (Someone::Named("gw/1"), &b"bob"[..]),
            (Someone::Nobody, b""),
        ];
        let locks = [held(shown(), 1_999_999_999), held(odd, 0)];
        let (text, looks) = listed(&locks, &[odd], &waits_for);
        let want = r##"{"resource":"f\"1","lock_count":2,"waiter_count":1,"locks":[
            {"client":"gw/1","owner":"bob","mode":"sh","start":0,"len":0,"pending":false,"since_ms":1999,
            "id":5,"acquired_ms":1799999998003,"epoch":3},
            {"client":"#7","owner":"","mode":"ex","start":9007199254740993,"len":9223372036854775809,
            "pending":true,"since_ms":0,"id":5,"acquired_ms":1800000000002,"epoch":3}],"waiters":[
            {"client":"#7","owner":"","mode":"ex","start":9007199254740993,"len":9223372036854775809,
            "pending":true,"since_ms":0,"position":1,"waits_for":[
            {"client":"gw/1","owner":"bob"},{"client":null,"owner":""}]}]}"##;
        assert_eq!(text, want.replace("\n            ", ""));
        assert_eq!(looks, 2);
    }

    #[test]
    fn a_thousand_are_told_in_less_than_a_mebibyte_and_the_counts_are_true() {
        let long = RangeShown {
            owner: &[1; 256],
            ..shown()
        };
        let many = vec![shown(); 3_000];
        let (text, _) = listed(&many, &[], &[]);
        assert_eq!(text.matches("\"since_ms\"").count(), 1_000);
        assert!(text.contains("\"lock_count\":3000,"));
        let client = "\u{1}".repeat(256);
        let whom = vec![(Someone::Named(&client), &[1; 256][..]); 1_000];
        for waiters in [1, 3_000] {
            let (text, looks) = listed(&vec![long; 3_000], &vec![long; waiters], &whom);
            assert!(text.len() < 1 << 20, "{} bytes", text.len());
            assert!(looks <= 2_000, "{looks}");
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["waiter_count"], waiters);
        }
        let (text, _) = listed(&[], &vec![long; 100], &whom);
        assert!(text.len() < 1 << 20, "{} bytes", text.len());
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["waiter_count"], 100);
    }
}

//! What `waits` tells about byte ranges: who waits for whom. About keys: see `reports`.
//!
//! Compared with everything that the server showed, and that everybody asked, while the request was under
//! way. An edge must lead to somebody who had the bytes, or stood before the waiter in the queue; whoever
//! waited all the time is in it, and so are all whom it waited for all the time.

use super::known_ranges::Doing;
use super::range_window::Window;
use super::reports::EDGES_MAX;
use super::seen_ranges::{RangeOwner, Seen, SeenRanges, Who};
use crate::clients::range_requests::{Bytes, RangeAsked};
use crate::json::Json;
use crate::range_plan::OWNERS;

/// One edge about bytes.
struct Edge<'j> {
    resource: usize,
    waiter: &'j str,
    waits_for: &'j str,
}

impl Window<'_> {
    pub(super) fn check_edges(&self, json: &Json) -> Result<(), String> {
        let all = json.list("edges")?;
        let mut edges = Vec::new();
        for it in all {
            if it.text("kind")? == "range" {
                edges.push(self.edge(it)?);
            }
        }
        for edge in &edges {
            if !self.may_be_edge(edge) {
                let Edge {
                    waiter, waits_for, ..
                } = edge;
                return Err(format!("{waiter} does not wait for {waits_for}"));
            }
        }
        if all.len() < EDGES_MAX {
            self.check_all_edges(&edges)?;
        }
        Ok(())
    }

    fn edge<'j>(&self, json: &'j Json) -> Result<Edge<'j>, String> {
        let on = json.text("on")?;
        let mut names = self.plan.ranges.resources.iter();
        let resource = names.position(|it| String::from_utf8_lossy(it) == on);
        Ok(Edge {
            resource: resource.ok_or_else(|| format!("nobody locks bytes of {on:?}"))?,
            waiter: json.text("waiter")?,
            waits_for: json.text("waits_for")?,
        })
    }

    /// Whether this is who the label says.
    fn is_called(&self, seen: &SeenRanges, owner: RangeOwner, label: &str) -> bool {
        let (who, name) = label.split_once(' ').unwrap_or((label, ""));
        let is_who = match owner.who {
            Who::Client(id) => self.plan.ranges.ids[id] == who,
            // Of one that has never shown any bytes nobody knows the number.
            Who::Conn(conn) => match (seen.serials.get(&conn), who.strip_prefix('#')) {
                (Some(serial), Some(number)) => number.parse() == Ok(*serial),
                (None, Some(_)) => true,
                _ => false,
            },
        };
        is_who && OWNERS[owner.name] == name
    }

    fn may_be_edge(&self, edge: &Edge<'_>) -> bool {
        let at = edge.resource;
        let is_shown = |seen: &SeenRanges| {
            let resource = &seen.resources[at];
            let mut queue = resource.waiting.iter().enumerate();
            queue.any(|(place, waiter)| {
                let before = resource.waiting[..place].iter();
                let mut blockers = resource.held.iter().chain(before);
                self.is_called(seen, waiter.owner, edge.waiter)
                    && blockers.any(|it| {
                        it.excludes(waiter) && self.is_called(seen, it.owner, edge.waits_for)
                    })
            })
        };
        if self.seen().any(is_shown) {
            return true;
        }
        // Between two turns there may have been anything that was asked for.
        let Some(last) = self.seen().last() else {
            return false;
        };
        let asked: Vec<Seen> = self.wanted_by_others(at).collect();
        let shown = |of: fn(&SeenRanges, usize) -> &[Seen]| {
            let all = self.seen().flat_map(move |seen| of(seen, at).iter());
            all.copied().collect::<Vec<_>>()
        };
        let waiting = [shown(|seen, at| &seen.resources[at].waiting), asked.clone()].concat();
        let held = shown(|seen, at| &seen.resources[at].held);
        waiting.iter().any(|waiter| {
            let mut blockers = held.iter().chain(&waiting);
            self.is_called(last, waiter.owner, edge.waiter)
                && blockers
                    .any(|it| it.excludes(waiter) && self.is_called(last, it.owner, edge.waits_for))
                && (asked.iter().any(|it| it.owner == waiter.owner) || self.changes(at))
        })
    }

    /// Whether somebody asked for something that changes who is before whom.
    fn changes(&self, at: usize) -> bool {
        let changes = |it: &Doing| {
            it.asked.resource() == Some(at) || matches!(it.asked, RangeAsked::Detach { .. })
        };
        self.others().any(changes)
    }

    /// What others want, or may have got, of this resource.
    fn wanted_by_others(&self, at: usize) -> impl Iterator<Item = Seen> {
        let locks = self.others().filter_map(move |it| match it.asked {
            RangeAsked::Lock { bytes, mode, .. } | RangeAsked::Reclaim(bytes, mode)
                if bytes.resource == at =>
            {
                Some((it.conn, bytes, mode))
            }
            _ => None,
        });
        locks.flat_map(|(conn, Bytes { cells, name, .. }, mode)| {
            let askers = self.known.askers(conn, self.since);
            askers.into_iter().map(move |who| Seen {
                owner: RangeOwner { who, name },
                cells,
                mode,
                pending: false,
            })
        })
    }

    /// Whoever waited all the time is shown, with all whom it waited for all the time.
    fn check_all_edges(&self, edges: &[Edge<'_>]) -> Result<(), String> {
        let Some(first) = self.seen().next() else {
            return Ok(());
        };
        for (at, resource) in first.resources.iter().enumerate() {
            let asked: Vec<RangeOwner> = self.wanted_by_others(at).map(|it| it.owner).collect();
            let times = |owner: RangeOwner| asked.iter().filter(|it| **it == owner).count();
            let waits = |it: &&Seen| {
                let mut seen = self.seen().map(|seen| &seen.resources[at].waiting);
                times(it.owner) <= 1 && seen.all(|queue| queue.contains(it))
            };
            for waiter in resource.waiting.iter().filter(waits) {
                let own = |it: &&Edge<'_>| {
                    it.resource == at && self.is_called(first, waiter.owner, it.waiter)
                };
                if !edges.iter().any(|it| own(&it)) {
                    return Err(format!("{waiter:?} waits, and is missing"));
                }
                let stays = |it: &&Seen| {
                    let mut seen = self.seen().map(|seen| &seen.resources[at].held);
                    times(it.owner) == 0 && seen.all(|held| held.contains(it))
                };
                for it in resource.in_the_way(waiter).filter(stays) {
                    let leads_to =
                        |edge: &Edge<'_>| self.is_called(first, it.owner, edge.waits_for);
                    if !edges.iter().filter(own).any(leads_to) {
                        return Err(format!("{waiter:?} waits for {it:?}, and it is missing"));
                    }
                }
            }
        }
        Ok(())
    }
}

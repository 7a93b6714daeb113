//! An operator ends grants: one of them, or all that a key has.
//!
//! A broken grant ends as if its lease had: the holder is told that it has lost it, and the next in the
//! queue is granted. Of very many only some are ended at a time; the operator is answered when all of
//! them are. Grants that are made meanwhile are not among them.

use std::collections::VecDeque;

use super::Engine;
use super::conn::Asker;
use super::ctx::Ctx;
use super::lock::{Locks, SERVED_WORK};
use super::types::{Effects, Refusal, Reply};
use super::work;
use crate::base::{ConnId, Fence, Nanos};
use crate::key::Key;

/// Most grants that are ended before others have their turn.
const QUANTUM: u32 = 64;

/// Grants of whole keys that are still to be ended.
pub(super) type Breaking = VecDeque<Break>;

/// One of them.
pub(super) struct Break {
    /// Who is answered.
    asker: ConnId,
    key: Key,
    /// Later grants are not meant.
    upto: Fence,
    /// How many were ended so far.
    ended: i64,
}

impl Engine {
    pub(super) fn break_grant(
        &mut self,
        now: Nanos,
        id: ConnId,
        key: &[u8],
        fence: Fence,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        let (stores, mut cx) = self.split(now, now, out);
        let about = cx.begin(|| Some(key));
        match stores.locks.find_by_fence(key, fence) {
            Some((_, holder)) => {
                cx.reply(conn, Reply::Done);
                stores.locks.break_one(&mut cx, holder);
            }
            None => cx.refuse(conn, Refusal::NotHolder),
        }
        cx.finish(about);
    }

    pub(super) fn break_all(
        &mut self,
        now: Nanos,
        id: ConnId,
        key: &[u8],
        fence: Option<Fence>,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        if let Some(fence) = fence {
            let (stores, mut cx) = self.split(now, now, out);
            let about = cx.begin(|| Some(key));
            let found = stores.locks.find_by_fence(key, fence);
            cx.reply(conn, Reply::Number(found.is_some().into()));
            if let Some((_, holder)) = found {
                stores.locks.break_one(&mut cx, holder);
            }
            return cx.finish(about);
        }
        self.breaking.push_back(Break {
            asker: id,
            key: key.into(),
            upto: self.core.fences.last(),
            ended: 0,
        });
        // Others who wait for theirs come first.
        if self.breaking.len() == 1 {
            self.go_on_breaking(now, self.core.work.spent() + 1, out);
        }
    }

    /// Goes on with the first of them, and with the others in turn until so much is spent.
    #[cold]
    pub(super) fn go_on_breaking(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        while let Some(mut it) = self.breaking.pop_front() {
            let (stores, mut cx) = self.split(now, now, out);
            let about = cx.begin(|| Some(it.key.as_bytes()));
            let is_done = stores.locks.break_some(&mut cx, &mut it);
            if is_done && let Some(conn) = cx.core.conns.find(it.asker) {
                cx.answer_parked(conn, Reply::Number(it.ended));
            }
            cx.finish(about);
            if !is_done {
                self.breaking.push_back(it);
            }
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }
}

impl Locks {
    /// Ends some of the grants that are meant; returns whether all of them have ended.
    fn break_some(&mut self, cx: &mut Ctx<'_>, it: &mut Break) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        let mut left = QUANTUM;
        // The oldest grant comes first, and whoever is granted meanwhile last.
        while let Some(resource) = self.find(it.key.as_bytes())
            && let Some(holder) = self.table[resource].holders.head()
            && self.holders[holder].token.fence <= it.upto
        {
            if left == 0 || cx.core.work.spent() >= work_end {
                return false;
            }
            left -= 1;
            cx.core.work.charge(work::END);
            self.break_one(cx, holder);
            it.ended += 1;
        }
        true
    }

    fn break_one(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let resource = self.holders[holder].resource;
        let freed = self.freed_at(cx, holder);
        cx.core.ends.breaks += 1;
        self.lose_broken(cx, holder);
        self.grant_waiting_at(cx, resource, freed);
    }
}

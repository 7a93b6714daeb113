//! Records of what has to outlive the process, in the order of the decisions, and marks on what is
//! said about it.
//!
//! All of this exists only if [`Rules::durable`](super::Rules::durable) is set; otherwise it costs
//! one comparison per change. The primitives say what they changed with [`Ctx::record`]. Each
//! record has a number, counted from 1 on, and the number of a key's last record is the *mark* of
//! everything that is said about the key: it must not be heard before that record is on disk. What
//! is said between [`Ctx::begin`] and [`Ctx::finish`] is about one key. This file decides nothing;
//! what becomes of records after a restart is in `restore.rs`.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::arena::Stored;
use super::ctx::{Core, Ctx};
use super::lock::Locks;
use super::owner::OwnerIndex;
use super::types::{Effect, Effects, Record, Request};
use super::{Engine, work};
use crate::base::{Fence, Millis, Nanos};
use crate::keymap::KeyMap;

/// Over how many places the marks of all keys are spread. Keys that share a place also share the
/// later one of their marks, so that something is heard a little later than it could be.
const PLACES: usize = 1 << 16;

/// How many fences one record reserves: enough for a second of the busiest daemon, and few enough
/// that a restart a second would use them up only after centuries.
const FENCES_BLOCK: u64 = 1 << 20;

/// What was recorded, and the marks.
pub(super) struct Records {
    /// Those that the server has not taken yet.
    pending: Vec<Record>,
    /// How many there were so far, which is the number of the last one.
    count: u64,
    /// The number of the last record of the keys that fall into each place.
    marks: Box<[u64]>,
    /// Only to hash names with a secret seed.
    names: KeyMap,
    /// Fences up to this one are reserved.
    fences_upto: u64,
    /// Where the last mark is in the list of effects, if that list is still the same.
    marked_at: usize,
    /// Grants and longer leases that nobody may be told of yet, in the order of their records.
    untold: VecDeque<Untold>,
    /// Everything up to this record is kept since this instant: as far as leases have to begin that
    /// were not told before.
    kept: VecDeque<(u64, Nanos)>,
    /// Everything up to this record is kept.
    kept_upto: u64,
    /// What happens now is restored from records, so it is in them already.
    pub(super) is_restoring: bool,
}

/// A grant whose lease begins when this record is kept.
struct Untold {
    number: u64,
    holder: u32,
}

/// Something that is said about one key.
pub(super) struct About {
    /// Where it begins in the list of effects.
    at: usize,
    /// The place of the key's mark; none if nothing is said about a key.
    place: Option<usize>,
}

impl Records {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            pending: Vec::new(),
            count: 0,
            marks: vec![0; PLACES].into_boxed_slice(),
            names: KeyMap::new(seed),
            fences_upto: 0,
            marked_at: 0,
            untold: VecDeque::new(),
            kept: VecDeque::new(),
            kept_upto: 0,
            is_restoring: false,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn take(&mut self) -> std::vec::Drain<'_, Record> {
        self.pending.drain(..)
    }

    /// Every fence up to this one may have been given out by an earlier run.
    pub(super) fn note_fences(&mut self, upto: Fence) {
        self.fences_upto = self.fences_upto.max(upto.0);
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.pending.capacity() * size_of::<Record>()
            + self.marks.len() * size_of::<u64>()
            + self.untold.capacity() * size_of::<Untold>()
    }

    fn keep(&mut self, record: Record) {
        if let Record::Granted { token, .. } = record {
            self.reserve(token.fence);
        }
        self.count += 1;
        if let Some(key) = record.key() {
            let place = self.place_of(key.as_bytes());
            self.marks[place] = self.count;
        }
        self.pending.push(record);
    }

    /// What is said about this name from now on speaks of everything that was recorded so far.
    pub(super) fn note_all(&mut self, name: &[u8]) {
        let place = self.place_of(name);
        self.marks[place] = self.count;
    }

    /// What is said about this name from now on speaks of the last record of another one, too.
    fn note_dependence(&mut self, name: &[u8], on: &[u8]) {
        let (place, on) = (self.place_of(name), self.place_of(on));
        self.marks[place] = self.marks[place].max(self.marks[on]);
    }

    /// The grant with this fence, which was recorded a moment ago, was asked for with this id. It is
    /// added here so that grants without one, which are those of all line clients, pay nothing for it.
    pub(super) fn add_request(&mut self, fence: Fence, id: &[u8]) {
        let request_of = |record| match record {
            &mut Record::Granted {
                token,
                ref mut request,
                ..
            } if token.fence == fence => Some(request),
            _ => None,
        };
        if let Some(request) = self.pending.iter_mut().rev().find_map(request_of) {
            *request = id.into();
        }
    }

    /// Makes sure that this fence is reserved, in a record before the one that gives it out, and
    /// that the next half of a block is too.
    fn reserve(&mut self, fence: Fence) {
        let upto = self.fences_upto.max(fence.0) + FENCES_BLOCK;
        let upto = upto.min(Fence::LIMIT - 1);
        if fence.0 + FENCES_BLOCK / 2 > self.fences_upto && upto > self.fences_upto {
            self.fences_upto = upto;
            self.count += 1;
            self.pending.push(Record::Fences { upto: Fence(upto) });
        }
    }

    fn place_of(&self, key: &[u8]) -> usize {
        self.names.hash(key) as usize % PLACES
    }

    /// Everything up to this record is kept by now.
    pub(super) fn note_kept(&mut self, number: u64, now: Nanos) {
        self.kept_upto = self.kept_upto.max(number);
        if self.untold.front().is_some_and(|it| it.number <= number) {
            self.kept.push_back((number, now));
        }
    }

    /// Whether this record was made, and is not known to be kept.
    pub(super) fn is_untold(&self, number: u64) -> bool {
        number > self.kept_upto && number <= self.count
    }

    /// Whether there are leases that can begin.
    pub(super) fn has_told(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The next grant that can be told, and since when.
    fn next_told(&mut self) -> Option<(Untold, Nanos)> {
        while let Some(&(number, since)) = self.kept.front() {
            if let Some(told) = self.untold.pop_front_if(|it| it.number <= number) {
                return Some((told, since));
            }
            self.kept.pop_front();
        }
        None
    }

    /// Puts the mark before what was said since `about` began, unless that mark holds already.
    fn mark(&mut self, about: About, out: &mut Effects) {
        if out.len() == about.at {
            return; // nothing was said
        }
        let mark = about.place.map_or(0, |place| self.marks[place]);
        let before = match out.get(self.marked_at) {
            Some(Effect::Mark(before)) if self.marked_at < about.at => *before,
            _ => 0,
        };
        if mark != before {
            out.insert(about.at, Effect::Mark(mark));
            self.marked_at = about.at;
        }
    }
}

impl Core {
    /// Whether changes are recorded, and what is said about them is marked.
    #[inline(always)]
    pub(super) fn is_durable(&self) -> bool {
        self.records.is_some()
    }

    /// What was said since effect number `at` answers this request, or speaks of nothing that is
    /// recorded.
    pub(super) fn mark(&mut self, request: Option<&Request<'_>>, at: usize, out: &mut Effects) {
        if let Some(records) = &mut self.records {
            let key = request.and_then(recorded_key);
            let place = key.map(|key| records.place_of(key));
            records.mark(About { at, place }, out);
        }
    }
}

impl Engine {
    /// The highest fence that is reserved in records; 0 if none is.
    #[must_use]
    pub fn fences_reserved(&self) -> u64 {
        self.core.records.as_ref().map_or(0, |it| it.fences_upto)
    }

    /// No fence above this one was given out, or is reserved.
    #[must_use]
    pub fn fence_ceiling(&self) -> u64 {
        self.core.fences.last().0.max(self.fences_reserved())
    }

    /// Every fence from now on is above this one.
    pub fn raise_fences(&mut self, above: Fence) {
        self.core.fences.raise(above);
    }

    /// The number of the life that is about to begin, if it was not known when the table was made.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.core.rules.epoch = epoch;
    }

    /// Whether the request is a renewal that would make a lease longer than the records have it. For a
    /// grant that was restored and that nobody has claimed yet it does not count: that happens once
    /// to each.
    #[must_use]
    pub fn lengthens(&self, request: &Request<'_>) -> bool {
        let (key, token, lease) = match *request {
            Request::Renew { key, token, lease } => {
                (key, token, lease.unwrap_or(self.core.rules.lease_default))
            }
            Request::Reclaim { key, token, lease } => (key, token, lease.unwrap_or_default()),
            _ => return false,
        };
        let locks = &self.stores.locks;
        locks.find_holder(key, token).is_some_and(|(_, holder)| {
            let is_claimed = !self.core.restored.is_owner(locks.holders[holder].owner);
            is_claimed && lease > locks.recorded[holder].kept()
        })
    }
}

impl Ctx<'_> {
    /// Records a change, if changes are recorded.
    #[inline(always)]
    pub(super) fn record(&mut self, record: impl FnOnce(&Core) -> Record) {
        if self.core.is_durable() {
            self.keep(record);
        }
    }

    #[cold]
    fn keep(&mut self, record: impl FnOnce(&Core) -> Record) {
        let is_restoring = |records: &Records| records.is_restoring;
        if self.core.records.as_deref().is_none_or(is_restoring) {
            return;
        }
        let record = record(self.core);
        let copied = work::copy(record.bytes());
        self.core.work.charge(work::RECORD + copied);
        if let Some(records) = &mut self.core.records {
            records.keep(record);
        }
    }

    /// What this owner has under this name has changed and is not recorded, because its client is not known
    /// after a restart. That may be a change of the client which is not on disk yet, so what is said about
    /// the name waits for the client's last record. An owner that is no client never had one.
    pub(super) fn note_unrecorded(&mut self, name: &[u8], owner: OwnerIndex) {
        let Core {
            records, owners, ..
        } = &mut *self.core;
        if let (Some(records), Some(id)) = (records, owners[owner].client_id()) {
            records.note_dependence(name, id.as_bytes());
        }
    }

    /// From here to [`Ctx::finish`] everything that is said is about this key, or about nothing that
    /// is recorded.
    #[inline(always)]
    pub(super) fn begin<'k>(&self, key: impl FnOnce() -> Option<&'k [u8]>) -> About {
        let records = self.core.records.as_ref();
        About {
            at: self.out.len(),
            place: records.and_then(|records| key().map(|key| records.place_of(key))),
        }
    }

    /// Marks what was said since then.
    #[inline(always)]
    pub(super) fn finish(&mut self, about: About) {
        if let Some(records) = &mut self.core.records {
            records.mark(about, self.out);
        }
    }
}

/// What is recorded of grants.
impl Locks {
    #[cold]
    pub(super) fn record_grant(&mut self, cx: &mut Ctx<'_>, holder: u32, lease: Millis) {
        self.insert_recorded(holder, lease);
        let it = &self.holders[holder];
        let resource = &self.table[it.resource];
        let mode = resource.kind().mode(it.held());
        cx.record(|core| Record::Granted {
            key: resource.key.clone(),
            mode,
            token: it.token,
            lease,
            client: core.owners[it.owner].conn_id.serial,
            name: core.owners[it.owner].name.clone(),
            request: Box::default(), // is added later, if there is one: see `Records::add_request`
        });
        self.begin_when_told(cx, holder);
    }

    /// A grant belongs to a client that is known after a restart, and the records do not say so.
    #[cold]
    pub(super) fn record_owner(&self, cx: &mut Ctx<'_>, holder: u32) {
        let it = &self.holders[holder];
        let key = &self.table[it.resource].key;
        cx.record(|core| Record::Owned {
            key: key.clone(),
            fence: it.token.fence,
            client: core.owners[it.owner]
                .client_id()
                .unwrap_or_default()
                .as_bytes()
                .into(),
        });
    }

    /// What the records have about a grant is under the same index as the grant.
    pub(super) fn insert_recorded(&mut self, holder: u32, lease: Millis) {
        let index = self.recorded.insert(RecordedLease::new(lease));
        assert_eq!(index, holder, "a grant and its recorded lease are apart");
    }

    #[cold]
    pub(super) fn record_end(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        self.recorded.remove(holder);
        let it = &self.holders[holder];
        cx.record(|_| Record::Ended {
            key: self.table[it.resource].key.clone(),
            fence: it.token.fence,
        });
    }

    /// A renewal is recorded only if it makes the lease longer than the records have it, because a
    /// restored lease begins anew and must not end earlier than this one. On a full disk there may be no
    /// room for such a record, so the lease becomes as long as the records have it and no longer.
    #[cold]
    pub(super) fn restart_recorded_lease(
        &mut self,
        cx: &mut Ctx<'_>,
        holder: u32,
        lease: Millis,
    ) -> Millis {
        let records = cx.core.records.as_deref();
        let kept_upto = records.map_or(0, |it| it.kept_upto);
        let recorded = &mut self.recorded[holder];
        let lease = match cx.core.storage_full {
            true => lease.min(recorded.kept()),
            false => lease,
        };
        recorded.asked = lease;
        if lease > recorded.kept() {
            recorded.lengthen(lease);
            let it = &self.holders[holder];
            cx.record(|_| Record::Lengthened {
                key: self.table[it.resource].key.clone(),
                fence: it.token.fence,
                lease,
            });
            self.begin_when_told(cx, holder);
        } else if recorded.has_begun() || recorded.begins_with <= kept_upto {
            // Of very many leases that may begin, this one may not have been come to yet.
            recorded.begins_with = 0;
            self.set_lease_end(cx, holder, cx.now.after(lease));
        }
        lease
    }

    /// The lease does not run before the record just made is kept: until then nobody may be told of
    /// it, and a slow disk must not make somebody hear of a grant that is over.
    fn begin_when_told(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        self.set_lease_end(cx, holder, Nanos::NEVER);
        if let Some(records) = &mut cx.core.records {
            let number = records.count;
            records.untold.push_back(Untold { number, holder });
            self.recorded[holder].begins_with = number;
        }
    }

    /// The leases of grants whose records are kept begin, until so much is spent; each with the instant
    /// in which its record was known to be kept.
    pub(super) fn start_told(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        while cx.core.work.spent() < slice_end
            && let Some(records) = &mut cx.core.records
            && let Some((Untold { number, holder }, since)) = records.next_told()
        {
            cx.core.work.charge(work::RECORD);
            // Not if the grant is over, nor if it waits for a later record.
            let begins_now = |it: &RecordedLease| it.begins_with == number;
            if self.recorded.get(holder).is_some_and(begins_now) {
                self.recorded[holder].begins_with = 0;
                let lease = self.recorded[holder].asked;
                self.set_lease_end(cx, holder, since.after(lease));
            }
        }
    }
}

/// The key that the answer to a request speaks of, if it is one that records are about.
fn recorded_key<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match *request {
        Request::Acquire { key, .. }
        | Request::Enqueue { key, .. }
        | Request::Wait { key, .. }
        | Request::Release { key, .. }
        | Request::Renew { key, .. }
        | Request::Reclaim { key, .. }
        | Request::Position { key }
        | Request::Resign { key, .. }
        | Request::Observe { key }
        | Request::Add { key, .. }
        | Request::Count { key }
        | Request::SetCount { key, .. }
        | Request::Put { key, .. }
        | Request::Fetch { key }
        | Request::Delete { key }
        | Request::Swap { key, .. }
        | Request::Push { key, .. }
        | Request::Pop { key, .. }
        | Request::AwaitPop { key, .. }
        | Request::Length { key }
        | Request::Range { key, .. } => Some(key),
        Request::Unobserve { .. }
        | Request::Meet { .. }
        | Request::Listen { .. }
        | Request::Unlisten { .. }
        | Request::Signal { .. }
        | Request::Watch { .. }
        | Request::Unwatch { .. } => None,
    }
}

/// The lease of a grant as the records have it, and when it begins.
pub(super) struct RecordedLease {
    /// In milliseconds, plus one: leaves room for the arena to mark a vacant slot.
    kept: NonZeroU64,
    /// The lease that the client has asked for last, which may be shorter.
    pub(super) asked: Millis,
    /// The record with which it begins, because nobody is told of it before; 0 if it has begun, and
    /// [`OVERDUE`] if it is over.
    begins_with: u64,
}

/// A lease is over, and goes on because the disk keeps requests of its owner waiting.
const OVERDUE: u64 = u64::MAX;

impl Stored for RecordedLease {}

impl RecordedLease {
    pub(super) fn new(lease: Millis) -> Self {
        Self {
            kept: NonZeroU64::MIN.saturating_add(lease.0),
            asked: lease,
            begins_with: 0,
        }
    }

    pub(super) fn kept(&self) -> Millis {
        Millis(self.kept.get() - 1)
    }

    pub(super) fn lengthen(&mut self, lease: Millis) {
        self.kept = NonZeroU64::MIN.saturating_add(lease.0);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begins_with == 0 || self.is_overdue()
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.begins_with == OVERDUE
    }

    pub(super) fn set_overdue(&mut self) {
        self.begins_with = OVERDUE;
    }
}

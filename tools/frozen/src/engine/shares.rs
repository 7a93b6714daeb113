//! Shares: parts of all names, each by a prefix, that have figures of their own.
//!
//! The operator names them (`--share NAME=PREFIX`), and can change them at any time. Each resource has the
//! small number of its share, 0 if it has none; the number is found when the resource comes to be. After a
//! change a walk gives all resources their new numbers, a slice at a time, and moves what is held from one
//! gauge to the other. What belongs to no share is not counted here: it is the rest of what is counted in
//! all (`figures.rs`, `ranges/figures.rs`). Without shares none of this takes memory or time.

use super::ctx::Ctx;
use super::holder::Held;
use super::lock::Locks;
use super::types::{Noted, Share, Sharing};
use super::view::View;
use super::{Engine, work};
use crate::base::Nanos;
use crate::engine::RangeEnd;
use crate::engine::types::Effects;
use crate::histogram::Histogram;

/// Most shares at one time. All numbers of these, and of as many that are being given up, fit into a byte.
pub const SHARES_MAX: usize = 64;

/// How something is held, for figures: as [`Held`] says, or as a range lock, shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldType(u8);

impl HeldType {
    const COUNT: usize = Held::ALL.len() + 2;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// The word that people see.
    #[must_use]
    pub fn word(self) -> &'static str {
        match Held::ALL.get(usize::from(self.0)) {
            Some(held) => held.word(),
            None if self == Self::from(Sharing::Shared) => "shared",
            None => "exclusive",
        }
    }
}

impl From<Held> for HeldType {
    fn from(held: Held) -> Self {
        Self(held as u8)
    }
}

impl From<Sharing> for HeldType {
    fn from(mode: Sharing) -> Self {
        Self(Held::ALL.len() as u8 + mode as u8)
    }
}

/// What became of a request to hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was granted.
    Granted,
    /// It was refused, not free in time, or not waited for to the end.
    Denied,
    /// It would have waited for itself.
    Deadlock,
}

impl Status {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Granted, Self::Denied, Self::Deadlock];

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Deadlock => "deadlock",
        }
    }
}

/// Why a grant or a range lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It was released.
    Explicit,
    /// Its lease ended.
    Timeout,
    /// Its connection or client is gone.
    Disconnect,
    /// It was not reclaimed after a restart.
    GraceExpired,
    /// An operator has ended it.
    Break,
}

impl EndReason {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] = [
        Self::Explicit,
        Self::Timeout,
        Self::Disconnect,
        Self::GraceExpired,
        Self::Break,
    ];

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Timeout => "timeout",
            Self::Disconnect => "disconnect",
            Self::GraceExpired => "grace_expired",
            Self::Break => "break",
        }
    }
}

impl From<RangeEnd> for EndReason {
    fn from(why: RangeEnd) -> Self {
        match why {
            RangeEnd::Explicit => Self::Explicit,
            RangeEnd::Disconnect => Self::Disconnect,
            RangeEnd::GraceExpired => Self::GraceExpired,
            RangeEnd::Broken => Self::Break,
        }
    }
}

/// The figures of one share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareFigures {
    acquired: [[u64; Status::ALL.len()]; HeldType::COUNT],
    ended: [u64; EndReason::ALL.len()],
    waits: [Histogram; HeldType::COUNT],
    active: [u64; HeldType::COUNT],
}

impl ShareFigures {
    /// How many requests for this type ended like this.
    #[must_use]
    pub fn acquired(&self, by: HeldType, status: Status) -> u64 {
        self.acquired[usize::from(by.0)][status as usize]
    }

    /// How many ended, and why.
    #[must_use]
    pub fn ended(&self, why: EndReason) -> u64 {
        self.ended[why as usize]
    }

    /// How long those waited that were granted after they had waited.
    #[must_use]
    pub fn waits(&self, by: HeldType) -> &Histogram {
        &self.waits[usize::from(by.0)]
    }

    /// How many are held now.
    #[must_use]
    pub fn active(&self, by: HeldType) -> u64 {
        self.active[usize::from(by.0)]
    }

    /// Whether anything of this type was ever asked for or held.
    #[must_use]
    pub fn has_seen(&self, by: HeldType) -> bool {
        self.active(by) > 0 || self.acquired[usize::from(by.0)] != [0; Status::ALL.len()]
    }

    /// Changes each number by the same number of another.
    fn merge(&mut self, other: &Self, merge: fn(u64, u64) -> u64) {
        let of = |it: &mut [u64], other: &[u64]| {
            for (it, &other) in it.iter_mut().zip(other) {
                *it = merge(*it, other);
            }
        };
        of(
            self.acquired.as_flattened_mut(),
            other.acquired.as_flattened(),
        );
        of(&mut self.ended, &other.ended);
        of(&mut self.active, &other.active);
        for (it, other) in self.waits.iter_mut().zip(&other.waits) {
            it.merge(other, merge);
        }
    }
}

/// One share.
#[derive(Default)]
struct Slot {
    /// None for one that is being given up, and for a number that is free.
    name: Option<Box<str>>,
    figures: ShareFigures,
}

/// How far a walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// There is none: all resources have their numbers.
    Done,
    /// Keys of locks from this slot on are to be looked at, and all resources with byte ranges.
    Keys(u32),
    /// Resources with byte ranges from this slot on are to be looked at.
    Ranges(u32),
}

/// All shares.
pub(super) struct Shares {
    /// Prefixes and the numbers of their shares, the longest first.
    prefixes: Vec<(Box<[u8]>, u8)>,
    /// The share with the number 1, and so on.
    slots: Vec<Slot>,
    /// By key of a lock, the number of its share; a key beyond the end has none.
    of_keys: Vec<u8>,
    /// What was counted for shares that are given up.
    past: ShareFigures,
    walk: Walk,
    /// What comes into force when the present walk is over.
    next: Option<Vec<Share>>,
}

/// Neither a key nor a resource is in a share.
pub(super) const NO_SHARE: u8 = 0;

impl Default for Shares {
    fn default() -> Self {
        Self {
            prefixes: Vec::new(),
            slots: Vec::new(),
            of_keys: Vec::new(),
            past: ShareFigures::default(),
            walk: Walk::Done,
            next: None,
        }
    }
}

impl Shares {
    /// Whether there are shares, or some that are being given up.
    pub(super) fn is_on(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(super) fn is_walking(&self) -> bool {
        self.walk != Walk::Done
    }

    /// These are the shares from now on. If resources are still being given the numbers of earlier ones,
    /// that is finished first.
    fn set(&mut self, shares: &[Share]) {
        if self.is_walking() {
            self.next = Some(shares.to_vec());
            return;
        }
        let slots = self.slots.iter().enumerate();
        let mut free: Vec<usize> = slots
            .filter(|(_, it)| it.name.is_none())
            .map(|(at, _)| at)
            .collect();
        for slot in &mut self.slots {
            let stays = shares.iter().any(|it| Some(&it.name) == slot.name.as_ref());
            slot.name = slot.name.take().filter(|_| stays);
        }
        self.prefixes.clear();
        for it in shares {
            let share = self.number_of(&it.name, &mut free);
            self.prefixes.push((it.prefix.clone(), share));
        }
        self.prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        if self.is_on() {
            self.walk = Walk::Keys(0);
        }
    }

    /// The number of the share with this name. A new one takes a number that is free: nothing belongs to
    /// that, other than to one that is given up now.
    fn number_of(&mut self, name: &str, free: &mut Vec<usize>) -> u8 {
        let found = |it: &Slot| it.name.as_deref() == Some(name);
        let at = self.slots.iter().position(found).unwrap_or_else(|| {
            let at = free.pop().unwrap_or(self.slots.len());
            if at == self.slots.len() {
                self.slots.push(Slot::default());
            }
            self.slots[at].name = Some(name.into());
            at
        });
        at as u8 + 1
    }

    /// All resources have their numbers, so nothing belongs to a share that is given up.
    fn end_walk(&mut self) {
        self.walk = Walk::Done;
        for slot in &mut self.slots {
            if slot.name.is_none() {
                self.past.merge(&slot.figures, u64::wrapping_add);
                slot.figures = ShareFigures::default();
            }
        }
        // Numbers are in use up to the last one that has a name.
        while self.slots.pop_if(|it| it.name.is_none()).is_some() {}
        if !self.is_on() {
            self.of_keys = Vec::new();
        }
        if let Some(next) = self.next.take() {
            self.set(&next);
        }
    }

    /// The share that this name belongs to.
    pub(super) fn of_name(&self, name: &[u8]) -> u8 {
        let found = self
            .prefixes
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix));
        found.map_or(NO_SHARE, |(_, share)| *share)
    }

    /// The share that the key of a lock belongs to.
    #[inline]
    pub(super) fn of_key(&self, resource: u32) -> u8 {
        let share = self.of_keys.get(resource as usize);
        share.copied().unwrap_or(NO_SHARE)
    }

    /// A key of a lock has come to be.
    #[cold]
    pub(super) fn note_key(&mut self, resource: u32, key: &[u8]) {
        let share = self.of_name(key);
        self.set_key(resource, share);
    }

    fn set_key(&mut self, resource: u32, share: u8) {
        let at = resource as usize;
        if at >= self.of_keys.len() {
            self.of_keys.resize(at + 1, NO_SHARE);
        }
        self.of_keys[at] = share;
    }

    fn figures(&mut self, share: u8) -> Option<&mut ShareFigures> {
        let at = usize::from(share).checked_sub(1)?;
        self.slots.get_mut(at).map(|it| &mut it.figures)
    }

    /// A request for something in this share ended like this.
    pub(super) fn acquired(&mut self, share: u8, by: HeldType, status: Status) {
        if let Some(it) = self.figures(share) {
            let count = &mut it.acquired[usize::from(by.0)][status as usize];
            *count = count.wrapping_add(1); // see `denied_by_deadlock`
        }
    }

    /// A request that counts as denied, before or after this, would have waited for itself.
    #[cold]
    pub(super) fn denied_by_deadlock(&mut self, share: u8, by: HeldType) {
        if let Some(it) = self.figures(share) {
            let of = &mut it.acquired[usize::from(by.0)];
            let denied = &mut of[Status::Denied as usize];
            *denied = denied.wrapping_sub(1);
            of[Status::Deadlock as usize] += 1;
        }
    }

    pub(super) fn waited(&mut self, share: u8, by: HeldType, ns: u64) {
        if let Some(it) = self.figures(share) {
            it.waits[usize::from(by.0)].observe(ns);
        }
    }

    pub(super) fn ended(&mut self, share: u8, why: EndReason, count: u64) {
        if let Some(it) = self.figures(share) {
            it.ended[why as usize] += count;
        }
    }

    /// So many are held in this share now, where it was so many before.
    pub(super) fn held(&mut self, share: u8, by: HeldType, [before, now]: [usize; 2]) {
        if let Some(it) = self.figures(share) {
            let active = &mut it.active[usize::from(by.0)];
            *active = active.wrapping_add(now as u64).wrapping_sub(before as u64);
        }
    }

    /// What becomes of the grant of a key.
    pub(super) fn note(&mut self, what: Noted, resource: u32, held: Held) {
        let share = self.of_key(resource);
        if share == NO_SHARE {
            return;
        }
        let by = held.into();
        let why = match what {
            Noted::Granted => {
                self.acquired(share, by, Status::Granted);
                return self.held(share, by, [0, 1]);
            }
            Noted::Released => EndReason::Explicit,
            Noted::Disconnected => EndReason::Disconnect,
            Noted::Expired { .. } => EndReason::Timeout,
            Noted::Broken => EndReason::Break,
        };
        self.ended(share, why, 1);
        self.held(share, by, [1, 0]);
    }

    pub(super) fn memory(&self) -> usize {
        let prefixes: usize = self.prefixes.iter().map(|it| it.0.len()).sum();
        self.slots.capacity() * size_of::<Slot>() + self.of_keys.capacity() + prefixes
    }
}

impl Engine {
    /// These are the shares from now on.
    #[cold]
    pub(super) fn set_shares(&mut self, shares: &[Share]) {
        self.core.shares.set(shares);
        self.core.set_heeds();
        self.unfinished |= self.core.shares.is_walking();
    }

    /// Goes on giving resources the numbers of their shares.
    #[cold]
    pub(super) fn go_on_sharing(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        let (stores, mut cx) = self.split(now, now, out);
        stores.locks.go_on_sharing(&mut cx, slice_end);
        self.core.set_heeds();
    }
}

impl Locks {
    /// A request for bytes of a resource in this share ended like this.
    pub(super) fn count_range(
        &mut self,
        cx: &mut Ctx<'_>,
        share: u8,
        mode: Sharing,
        status: Status,
    ) {
        let figures = &mut self.ranges.figures;
        match status {
            Status::Granted => figures.granted(mode),
            Status::Denied => figures.denied(mode),
            Status::Deadlock => figures.deadlocked(mode),
        }
        cx.core.shares.acquired(share, mode.into(), status);
    }

    /// Range locks of a resource in this share have ended.
    pub(super) fn count_ranges_ended(
        &mut self,
        cx: &mut Ctx<'_>,
        share: u8,
        why: RangeEnd,
        count: u64,
    ) {
        self.ranges.figures.ended(why, count);
        cx.core.shares.ended(share, why.into(), count);
    }

    fn go_on_sharing(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        while cx.core.work.spent() < slice_end {
            let shares = &mut cx.core.shares;
            cx.core
                .work
                .charge(work::LOOK + shares.prefixes.len() as u64 * 2);
            match shares.walk {
                Walk::Done => return,
                Walk::Keys(slot) => match self.table.keys_from(slot).next() {
                    Some((slot, key)) => {
                        if let Some(it) = key {
                            let (before, now) =
                                (shares.of_key(slot), shares.of_name(it.key.as_bytes()));
                            if before != now
                                && let Some(holder) = it.holders.head()
                            {
                                // All holders of one key hold it in the same way.
                                let by = self.holders[holder].held().into();
                                let count = it.holders.len() as usize;
                                shares.held(before, by, [count, 0]);
                                shares.held(now, by, [0, count]);
                            }
                            shares.set_key(slot, now);
                        }
                        shares.walk = Walk::Keys(slot + 1);
                    }
                    None => shares.walk = Walk::Ranges(0),
                },
                Walk::Ranges(slot) => match self.ranges.share_again(slot, shares) {
                    Some(slot) => shares.walk = Walk::Ranges(slot + 1),
                    None => shares.end_walk(),
                },
            }
        }
    }
}

impl<'e> View<'e> {
    /// The figures of every share by its name, first of what is in none, whose name is empty. Without
    /// shares that is all there is.
    #[must_use]
    pub fn shares(self) -> Vec<(&'e str, ShareFigures)> {
        let shares = &self.engine.core.shares;
        let mut rest = self.all_as_one_share();
        rest.merge(&shares.past, u64::wrapping_sub);
        let mut shown = Vec::new();
        for slot in &shares.slots {
            rest.merge(&slot.figures, u64::wrapping_sub);
            if let Some(name) = &slot.name {
                shown.push((&**name, slot.figures.clone()));
            }
        }
        shown.sort_unstable_by_key(|(name, _)| *name);
        shown.insert(0, ("", rest));
        shown
    }

    /// What is counted in all.
    fn all_as_one_share(self) -> ShareFigures {
        let mut all = ShareFigures::default();
        let figures = self.engine.figures();
        for held in Held::ALL {
            let (at, it) = (held as usize, figures.of(held));
            all.acquired[at] = [it.grants, it.denied(), it.deadlocks];
            all.waits[at] = it.waits;
            all.active[at] = it.held();
        }
        let (ranges, counts) = (self.range_figures(), self.range_counts());
        for mode in [Sharing::Shared, Sharing::Exclusive] {
            let at = usize::from(HeldType::from(mode).0);
            all.acquired[at] = [
                ranges.grants(mode),
                ranges.denials(mode),
                ranges.deadlocks(mode),
            ];
            all.waits[at] = *ranges.waits(mode);
            all.active[at] = counts.locks_by[mode as usize] as u64;
        }
        let tally = self.engine.tally();
        all.ended = [
            tally.releases,
            tally.expiries,
            tally.disconnects,
            0,
            tally.breaks,
        ];
        for why in RangeEnd::ALL {
            all.ended[EndReason::from(why) as usize] += ranges.ends(why);
        }
        all
    }
}

/// For checks.
impl Engine {
    /// Checks that the gauges of all shares are what is held, and that every resource is in its share.
    pub(super) fn check_shares(&self) {
        let shares = &self.core.shares;
        let mut counted: Vec<_> = shares.slots.iter().map(|_| [0; HeldType::COUNT]).collect();
        let mut count = |share: u8, by: HeldType, held: usize| {
            if let Some(at) = usize::from(share).checked_sub(1) {
                counted[at][usize::from(by.0)] += held as u64;
            }
        };
        let locks = &self.stores.locks;
        for (resource, it) in locks.table.iter() {
            let share = shares.of_key(resource);
            let is_right = share == shares.of_name(it.key.as_bytes());
            assert!(is_right || shares.is_walking(), "in another share");
            for holder in it.holders.iter(&locks.holders) {
                count(share, locks.holders[holder].held().into(), 1);
            }
        }
        for (key, share, held) in locks.ranges.shares_of_resources() {
            let is_right = share == shares.of_name(key.as_bytes());
            assert!(is_right || shares.is_walking(), "in another share");
            for mode in [Sharing::Shared, Sharing::Exclusive] {
                count(share, mode.into(), held[mode as usize]);
            }
        }
        let active: Vec<_> = shares.slots.iter().map(|it| it.figures.active).collect();
        assert_eq!(active, counted, "what is held in each share");
    }
}

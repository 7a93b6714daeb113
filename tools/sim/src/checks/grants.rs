//! Every grant that a client was told of, and what follows from it: who must be holding, who cannot
//! be.
//!
//! Knows only what clients can know. A grant is *certain* from the moment its holder reads of it
//! until a client releases it, its connection ends, or the earliest instant at which its lease can
//! have ended; two certain holders where there is room for one are a violation. A grant is *over*
//! from the moment a client reads that it is; a token that works after that is a violation too.
//! Never looks into the server.

#[path = "named_grants.rs"]
mod named;

use std::collections::{BTreeMap, BTreeSet};

use super::asks::KnownAsks;
use super::lock_table::SeenLocks;
use crate::clients::connection::Moment;
use crate::clients::http_requests::{FIRST_OWNER, KeptAsk, owner_name};
use crate::kept::Kept;
use crate::turn::TurnSpan;
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Mode;

/// One grant, as clients know it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) key: usize,
    pub(crate) mode: Mode,
    pub(crate) token: String,
    /// The number of the connection it was granted to, or of the owner that has a name; 0 if it was restored, and nobody has claimed
    /// it yet.
    pub(crate) owner: u32,
    /// The connections that have shown its token since it was restored, and whether what they were
    /// granted outlived them then.
    claims: BTreeMap<u32, Outlives>,
    /// Whether it outlives its connection.
    pub(crate) outlives: Outlives,
    /// The longest lease that a client was told, and that one asked for.
    lease_told_max: Millis,
    lease_asked_max: Millis,
    /// The turn after which the request arrived, and the turn by which it was in the queue.
    joined: (u64, u64),
    /// The lease ends somewhere between these, according to the last answer.
    deadline_min: Nanos,
    deadline_max: Nanos,
    /// When that answer was read; and when the first one was.
    told_at: Nanos,
    granted_at: Nanos,
    /// Renewals without an answer: request, when it was sent, lease.
    renewals: Vec<Renewal>,
    /// A renewal has arrived, so the deadline may have moved.
    pub(crate) renewal_arrived: bool,
    /// One of them may have made it shorter: only clients of the line protocol can.
    pub(crate) may_be_shorter: bool,
    releases_sent: u32,
    pub(crate) release_arrived: bool,
    /// Operators have ended it, perhaps.
    breaks_sent: u32,
    pub(crate) break_arrived: bool,
    /// A release of it was answered `ok`.
    is_released: bool,
    /// Its connection is ending, and the grant with it.
    owner_left: bool,
    /// The turn after which a client knew that it was over.
    over: Option<u64>,
    /// A client was told so by the server.
    is_end_told: bool,
}

/// Whether a grant outlives its connection, because that said `hello keep=1`, as far as clients can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    No,
    Perhaps,
    Yes,
}

impl Outlives {
    pub(crate) fn of(keeps: bool) -> Self {
        if keeps { Self::Yes } else { Self::No }
    }

    /// One of two renewals decides, and it is not known which.
    fn or(self, other: Self) -> Self {
        if self == other { self } else { Self::Perhaps }
    }
}

/// A renewal without an answer.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    request: u64,
    sent: Nanos,
    lease: Millis,
    /// It never makes a lease shorter.
    only_lengthens: bool,
}

impl Grant {
    /// The lease cannot end before this.
    fn deadline_min(&self) -> Nanos {
        let pending = self.renewals.iter().filter(|it| !it.only_lengthens);
        let pending = pending.map(|it| it.sent.after(it.lease));
        pending.fold(self.deadline_min, Nanos::min)
    }

    /// The lease cannot end after this, as far as clients can know.
    fn deadline_max(&self) -> Nanos {
        if self.renewals.is_empty() {
            self.deadline_max
        } else {
            Nanos::NEVER
        }
    }

    fn is_certain(&self, now: Nanos) -> bool {
        self.releases_sent == 0
            && self.breaks_sent == 0
            && !self.owner_left
            && self.over.is_none()
            && now < self.deadline_min()
    }
}

/// All grants of one run that clients know of.
#[derive(Debug, Default)]
pub(crate) struct KnownGrants {
    by_fence: BTreeMap<u64, Grant>,
    /// The fences of those that may not be over, by key.
    live: Vec<BTreeSet<u64>>,
    /// The keys with new answers since the last check.
    touched: BTreeSet<usize>,
    auto_release: bool,
    asks: KnownAsks,
    /// How many of them are of earlier lives of the server.
    earlier: usize,
    /// The highest fence that any client knows.
    pub(crate) fence_max: u64,
    pub(crate) releases_sent: u64,
    pub(crate) releases_done: u64,
    pub(crate) breaks_sent: u64,
    pub(crate) breaks_done: u64,
    /// How many outlived their connections.
    pub(crate) outlived: u64,
}

impl KnownGrants {
    pub(crate) fn new(keys: usize, auto_release: bool) -> Self {
        Self {
            by_fence: BTreeMap::new(),
            live: vec![BTreeSet::new(); keys],
            touched: BTreeSet::new(),
            auto_release,
            asks: KnownAsks::default(),
            earlier: 0,
            fence_max: 0,
            releases_sent: 0,
            releases_done: 0,
            breaks_sent: 0,
            breaks_done: 0,
            outlived: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_fence.len()
    }

    /// How many were told by this life of the server.
    pub(crate) fn told(&self) -> usize {
        self.by_fence.len() - self.earlier
    }

    pub(crate) fn get(&self, fence: u64) -> Option<&Grant> {
        self.by_fence.get(&fence)
    }

    pub(crate) fn nth(&self, n: usize) -> Option<(u64, &Grant)> {
        let fence = *self.by_fence.keys().nth(n)?;
        Some((fence, &self.by_fence[&fence]))
    }

    /// What this connection certainly holds.
    pub(crate) fn held_by(&self, owner: u32, now: Nanos) -> Vec<u64> {
        let live = self.live.iter().flatten().copied();
        live.filter(|fence| {
            self.by_fence[fence].owner == owner && self.by_fence[fence].is_certain(now)
        })
        .collect()
    }

    pub(crate) fn holds(&self, owner: u32, key: usize, now: Nanos) -> bool {
        self.live[key].iter().any(|fence| {
            let it = &self.by_fence[fence];
            it.owner == owner && it.is_certain(now)
        })
    }

    /// What clients certainly held for the whole turn.
    pub(crate) fn certain_since(&self, key: usize, span: TurnSpan) -> impl Iterator<Item = u64> {
        let live = self.live[key].iter().copied();
        live.filter(move |fence| {
            let it = &self.by_fence[fence];
            it.told_at < span.began && it.is_certain(span.ended)
        })
    }

    /// Whether clients knew before this turn that the grant is over. What a connection held that
    /// has ended may take some time to be undone.
    pub(crate) fn is_over_before(&self, fence: u64, turn: u64) -> bool {
        let it = self.by_fence.get(&fence).filter(|it| !it.owner_left);
        it.is_some_and(|it| it.over.is_some_and(|over| over < turn))
    }

    /// Whether somebody certainly holds this key.
    pub(crate) fn is_certainly_held(&self, key: usize, now: Nanos) -> bool {
        let mut live = self.live[key].iter();
        live.any(|fence| self.by_fence[fence].is_certain(now))
    }

    pub(crate) fn owns_something(&self, owner: u32, now: Nanos) -> bool {
        (0..self.live.len()).any(|key| self.holds(owner, key, now))
    }

    /// Whether, besides its lease, only one release can have ended this grant.
    pub(crate) fn is_only_release(&self, fence: u64) -> bool {
        let it = &self.by_fence[&fence];
        it.releases_sent == 1 && it.breaks_sent == 0 && !it.owner_left && it.over.is_none()
    }

    // ---- what clients send ----

    pub(crate) fn release_sent(&mut self, fence: u64) {
        self.releases_sent += 1;
        self.grant(fence).releases_sent += 1;
    }

    pub(crate) fn renewal_sent(
        &mut self,
        fence: u64,
        request: u64,
        by: (u32, bool),
        now: Nanos,
        lease: Millis,
        only_lengthens: bool,
    ) {
        let it = self.grant(fence);
        it.renewals.push(Renewal {
            request,
            sent: now,
            lease,
            only_lengthens,
        });
        it.lease_asked_max = it.lease_asked_max.max(lease);
        if it.owner == 0 {
            let (by, outlives) = (by.0, Outlives::of(by.1));
            let claim = it.claims.entry(by).or_insert(outlives);
            *claim = claim.or(outlives);
        }
    }

    pub(crate) fn break_sent(&mut self, fence: u64) {
        self.breaks_sent += 1;
        self.grant(fence).breaks_sent += 1;
    }

    pub(crate) fn ask_sent(&mut self, ask: KeptAsk, most: usize) {
        self.asks.sent(ask, most);
    }

    pub(crate) fn ask_arrived(&mut self, id: &str, turn: u64) {
        self.asks.arrived(id, turn);
    }

    /// Requests that may be sent again.
    pub(crate) fn kept_asks(&self) -> &[KeptAsk] {
        self.asks.kept()
    }

    /// What is known of requests that were sent more than once.
    pub(crate) fn asks(&self) -> &KnownAsks {
        &self.asks
    }

    /// The connection is ending: what it holds is not certain any more, if grants end with
    /// connections.
    pub(crate) fn owner_leaves(&mut self, owner: u32) {
        if self.auto_release {
            let is_owned = |it: &&mut Grant| it.owner == owner || it.claims.contains_key(&owner);
            let owned = self.by_fence.values_mut().filter(is_owned);
            let owned = owned.filter(|it| it.outlives != Outlives::Yes);
            owned.for_each(|it| it.owner_left = true);
        }
    }

    /// The server has ended the connection, and what it held, if grants end with connections.
    pub(crate) fn owner_is_gone(&mut self, owner: u32, turn: u64) {
        self.owner_leaves(owner);
        if self.auto_release {
            for it in self.by_fence.values_mut().filter(|it| it.owner == owner) {
                match it.outlives {
                    Outlives::No => _ = it.over.get_or_insert(turn),
                    Outlives::Perhaps => {}
                    Outlives::Yes => self.outlived += u64::from(it.over.is_none()),
                }
            }
        }
    }

    // ---- what clients read ----

    /// A client was told of a grant for the first time.
    #[expect(clippy::too_many_arguments, reason = "a grant has that many sides")]
    pub(crate) fn granted(
        &mut self,
        now: Nanos,
        fence: u64,
        token: &str,
        key: usize,
        mode: Mode,
        owner: u32,
        joined: (u64, u64),
        span: (Nanos, Millis),
        fence_before: u64,
        (owner_left, outlives): (bool, Outlives),
    ) -> Result<(), String> {
        if self.by_fence.contains_key(&fence) {
            return Err(format!("fence {fence} was given out twice"));
        }
        if fence <= fence_before {
            return Err(format!(
                "fence {fence} was granted after {fence_before} was known"
            ));
        }
        let (since, lease) = span;
        self.by_fence.insert(
            fence,
            Grant {
                key,
                mode,
                token: token.to_owned(),
                owner,
                claims: BTreeMap::new(),
                outlives,
                lease_told_max: lease,
                lease_asked_max: lease,
                joined,
                deadline_min: since.after(lease),
                deadline_max: now.after(lease),
                told_at: now,
                granted_at: now,
                renewals: Vec::new(),
                renewal_arrived: false,
                may_be_shorter: false,
                releases_sent: 0,
                release_arrived: false,
                breaks_sent: 0,
                break_arrived: false,
                is_released: false,
                owner_left: owner_left && self.auto_release && outlives != Outlives::Yes,
                over: None,
                is_end_told: false,
            },
        );
        self.fence_max = self.fence_max.max(fence);
        self.live[key].insert(fence);
        self.touched.insert(key);
        self.check_order(fence)
    }

    /// A request that was in the queue before another one arrived is granted before it.
    fn check_order(&self, fence: u64) -> Result<(), String> {
        let it = &self.by_fence[&fence];
        for (&other, that) in self.by_fence.iter().filter(|(_, that)| that.key == it.key) {
            let ((_, first_by), (second_after, _), overtaken) = if other < fence {
                (it.joined, that.joined, fence)
            } else {
                (that.joined, it.joined, other)
            };
            if other != fence && first_by <= second_after {
                return Err(format!(
                    "{overtaken} was in the queue by turn {first_by}, but {} came after \
                     turn {second_after} and was granted first",
                    other.min(fence)
                ));
            }
        }
        Ok(())
    }

    /// The lease started again, somewhere from `since` to now.
    pub(crate) fn renewed(
        &mut self,
        now: Nanos,
        fence: u64,
        request: u64,
        span: (Nanos, Millis),
        asked_after: u64,
    ) -> Result<(), String> {
        let (since, lease) = span;
        let it = self.grant(fence);
        it.renewals.retain(|it| it.request != request);
        if it.over.is_some_and(|turn| turn <= asked_after) {
            return Err(format!("{fence} was renewed after its end"));
        }
        if it.deadline_max() <= since {
            return Err(format!("{fence} was renewed although its lease had passed"));
        }
        if since > it.told_at {
            it.deadline_min = since.after(lease);
            it.deadline_max = now.after(lease);
        } else {
            it.deadline_min = it.deadline_min.min(since.after(lease));
            it.deadline_max = it.deadline_max.max(now.after(lease));
        }
        it.told_at = now;
        it.lease_told_max = it.lease_told_max.max(lease);
        let key = it.key;
        self.touched.insert(key);
        Ok(())
    }

    pub(crate) fn not_renewed(
        &mut self,
        now: Nanos,
        fence: u64,
        request: u64,
        turn: u64,
    ) -> Result<(), String> {
        let it = self.grant(fence);
        let must_work = it.is_certain(now);
        it.renewals.retain(|it| it.request != request);
        if must_work {
            return Err(format!(
                "the renewal of {fence} was refused, but its lease still ran"
            ));
        }
        if it.releases_sent == 0 && it.breaks_sent == 0 && !it.owner_left {
            // Nothing else can have ended it, so its lease is over.
            it.over.get_or_insert(turn);
            it.is_end_told = true;
        }
        Ok(())
    }

    /// A renewal was refused, and nothing follows from that.
    pub(crate) fn renewal_refused(&mut self, fence: u64, request: u64) {
        let it = self.grant(fence);
        it.renewals.retain(|it| it.request != request);
    }

    /// Nobody will ever read the answer to this renewal.
    pub(crate) fn renewal_lost(&mut self, now: Nanos, fence: u64, request: u64) {
        let it = self.grant(fence);
        if let Some(at) = it.renewals.iter().position(|it| it.request == request) {
            let Renewal {
                sent,
                lease,
                only_lengthens,
                ..
            } = it.renewals.remove(at);
            if !only_lengthens {
                it.deadline_min = it.deadline_min.min(sent.after(lease));
            }
            it.deadline_max = it.deadline_max.max(now.after(lease));
        }
    }

    pub(crate) fn released(
        &mut self,
        fence: u64,
        arrived: Moment,
        turn: u64,
    ) -> Result<(), String> {
        self.releases_done += 1;
        let it = self.grant(fence);
        if it.is_released {
            return Err(format!("{fence} was released twice"));
        }
        if it.over.is_some_and(|over| over <= arrived.turn) {
            return Err(format!("{fence} was released after its end"));
        }
        it.is_released = true;
        it.is_end_told = true;
        it.over.get_or_insert(turn);
        Ok(())
    }

    pub(crate) fn not_released(&mut self, now: Nanos, fence: u64) -> Result<(), String> {
        let is_only_release = self.is_only_release(fence);
        if is_only_release && now < self.grant(fence).deadline_min() {
            return Err(format!(
                "the release of {fence} was refused, but its lease still ran"
            ));
        }
        Ok(())
    }

    /// The server pushed that the lease has ended.
    pub(crate) fn lost(
        &mut self,
        now: Nanos,
        fence: u64,
        turn: u64,
        is_broken: bool,
    ) -> Result<(), String> {
        let Some(it) = self.by_fence.get_mut(&fence) else {
            return Ok(()); // granted from the queue without a `w`: no client knew
        };
        if is_broken && it.breaks_sent == 0 {
            return Err(format!("{fence} was broken, and nobody asked for it"));
        }
        if !is_broken && now < it.deadline_min() {
            return Err(format!("{fence} was lost before its time"));
        }
        it.is_end_told = true;
        it.over.get_or_insert(turn);
        Ok(())
    }

    // ---- after a restart ----

    /// A new life of the server serves from `now` on, with what was kept. Unless the last one lost
    /// what it had said, a grant that was certain when it died is held, for at least as long as its
    /// client was told, and one whose end a client was told is not.
    pub(crate) fn restart(
        &mut self,
        kept: &Kept,
        died_at: Nanos,
        now: Nanos,
        turn: u64,
        is_lossy: bool,
    ) -> Result<(), String> {
        self.earlier = self.by_fence.len();
        (self.releases_sent, self.releases_done) = (0, 0);
        (self.breaks_sent, self.breaks_done) = (0, 0);
        for (&fence, it) in &mut self.by_fence {
            let Some(kept) = kept.grants.get(&fence) else {
                if it.is_certain(died_at) && !is_lossy {
                    return Err(format!("{fence} on k{} was held, and is lost", it.key));
                }
                it.over.get_or_insert(turn);
                self.live[it.key].remove(&fence);
                continue;
            };
            if it.is_end_told && !is_lossy {
                return Err(format!(
                    "{fence} on k{} is held again after its end",
                    it.key
                ));
            }
            let told = if is_lossy {
                Millis(0)
            } else {
                it.lease_told_max
            };
            if !(told..=it.lease_asked_max).contains(&kept.lease) || kept.token != it.token {
                return Err(format!("{fence} is {kept:?}, and was {it:?}"));
            }
            let deadline = now.after(kept.lease);
            let owner = if it.owner >= FIRST_OWNER { it.owner } else { 0 };
            let name = (owner != 0).then(|| owner_name(owner));
            if kept.owner != name {
                return Err(format!("{fence} is of {:?}, not of {name:?}", kept.owner));
            }
            *it = Grant {
                owner,
                claims: BTreeMap::new(),
                outlives: Outlives::No,
                deadline_min: deadline,
                deadline_max: deadline,
                told_at: now,
                renewals: Vec::new(),
                renewal_arrived: false,
                may_be_shorter: false,
                releases_sent: 0,
                release_arrived: false,
                breaks_sent: 0,
                break_arrived: false,
                is_released: false,
                owner_left: false,
                over: None,
                is_end_told: false,
                lease_told_max: kept.lease,
                lease_asked_max: kept.lease,
                ..it.clone()
            };
            self.live[it.key].insert(fence);
            self.touched.insert(it.key);
        }
        Ok(())
    }

    /// The connections that have shown the token of something that was restored.
    pub(crate) fn claims(&self, fence: u64) -> impl Iterator<Item = u32> {
        let it = self.by_fence.get(&fence);
        it.into_iter().flat_map(|it| it.claims.keys().copied())
    }

    /// Whether it certainly outlives its connection; none if no client knows of it.
    pub(crate) fn outlives(&self, fence: u64) -> Option<Outlives> {
        self.by_fence.get(&fence).map(|it| it.outlives)
    }

    /// Its client asks with `w` for what it was told already, and may not read the answer.
    pub(crate) fn asked_again(&mut self, fence: u64, keeps: bool) {
        let it = self.grant(fence);
        if keeps && it.outlives == Outlives::No {
            it.outlives = Outlives::Perhaps;
        }
    }

    /// A client was told again that it has it: from then on it outlives its connection, if that said so.
    pub(crate) fn told_again(&mut self, fence: u64, keeps: bool) {
        if keeps {
            self.grant(fence).outlives = Outlives::Yes;
        }
    }

    /// Whether it was restored, and nobody has claimed it yet.
    pub(crate) fn is_unclaimed(&self, fence: u64) -> bool {
        self.by_fence.get(&fence).is_some_and(|it| it.owner == 0)
    }

    /// What was restored, and nobody has claimed yet: fence and key.
    pub(crate) fn unbound(&self) -> Vec<(u64, usize)> {
        let live = self.live.iter().flatten();
        let live = live.map(|fence| (*fence, &self.by_fence[fence]));
        let unbound = live.filter(|(_, it)| it.owner == 0);
        unbound.map(|(fence, it)| (fence, it.key)).collect()
    }

    /// What was restored belongs to this connection from now on.
    pub(crate) fn bind(&mut self, fence: u64, owner: u32, has_left: bool) -> Result<(), String> {
        let auto_release = self.auto_release;
        let it = self.grant(fence);
        let Some(&outlives) = it.claims.get(&owner) else {
            return Err(format!("{fence} went to {owner}, which did not ask for it"));
        };
        (it.owner, it.outlives) = (owner, outlives);
        it.owner_left |= has_left && auto_release && outlives != Outlives::Yes;
        Ok(())
    }

    // ---- after each turn ----

    /// Every lease that had certainly passed when the turn began is over now, unless the server has
    /// not come to it yet; how late it may come is judged elsewhere.
    pub(crate) fn turn_ended(&mut self, began: Nanos, turn: u64, seen: &SeenLocks) {
        let Self { by_fence, live, .. } = self;
        for (key, live) in live.iter_mut().enumerate() {
            live.retain(|fence| {
                let it = by_fence.get_mut(fence).expect("live grants are known");
                if it.deadline_max() <= began && !seen.is_held(key, *fence) {
                    it.over.get_or_insert(turn);
                }
                it.over.is_none()
            });
        }
    }

    /// No key has more certain holders than there is room for.
    pub(crate) fn check_exclusion(&mut self, now: Nanos) -> Result<(), String> {
        for key in std::mem::take(&mut self.touched) {
            let certain = self.live[key]
                .iter()
                .map(|fence| (fence, &self.by_fence[fence]));
            let certain: Vec<_> = certain.filter(|(_, it)| it.is_certain(now)).collect();
            let fits = certain.iter().all(|(_, it)| match it.mode {
                Mode::Slot { limit } => {
                    certain.len() <= limit as usize
                        && certain.iter().all(|(_, that)| that.mode == it.mode)
                }
                Mode::Read => certain.iter().all(|(_, that)| that.mode == Mode::Read),
                Mode::Write | Mode::Lead => certain.len() == 1,
            });
            if !fits {
                let held: Vec<_> = certain.iter().map(|(fence, it)| (fence, it.mode)).collect();
                return Err(format!("k{key} is held by too many at once: {held:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn grant(&mut self, fence: u64) -> &mut Grant {
        self.by_fence
            .get_mut(&fence)
            .expect("only known fences are asked about")
    }
}

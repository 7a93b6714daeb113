//! One life of the server: the process from its start to its end, and what clients know of it.
//!
//! Everything here is forgotten together: the server's table, its connections, and with them what
//! clients can be sure of; except for what is in a data directory (`data_dir`). Data only;
//! `simulation` says what happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use fastrand::Rng;

use super::Sabotage;
use super::checks::entries::KnownEntries;
use super::checks::grants::KnownGrants;
use super::checks::known_ranges::KnownRanges;
use super::checks::limits::Taken;
use super::checks::lock_table::SeenLocks;
use super::checks::pushes::KnownPushes;
use super::checks::reports::Report;
use super::checks::seen_ranges::SeenRanges;
use super::clients::connection::Connection;
use super::clients::crowd::{Crowd, FIRST_MEMBER, Member};
use super::cost::WorkSeen;
use super::kept::Kept;
use super::plan::Plan;
use super::store::{Keeper, SimStore};
use super::turn::TurnSpan;
use crate::pipe::{Peer, Pipe};
use latchd::base::{ConnId, Fence, Millis, Nanos};
use latchd::engine::types::{Effects, Input, Record};
use latchd::engine::{Engine, Origin, Rules};
use latchd::fence_start::{FenceStart, fence_start};
use latchd::server::{Server, Settings};
use latchd::tls::MaybeTls;

/// One life of the server.
pub(super) struct Life {
    /// Counted from 1.
    pub(super) number: u32,
    /// The process runs.
    pub(super) is_up: bool,
    /// What `hello` tells.
    pub(super) epoch: u64,
    pub(super) server: Server<MaybeTls<Pipe>, SimStore>,
    /// When its store has something to do, as far as that is on the agenda.
    pub(super) disk_at: Option<Nanos>,
    /// For each list, how many pops ended without an answer because the server stopped, or because
    /// their client did not read.
    pub(super) lost_pops: BTreeMap<usize, usize>,
    /// Something was restored at its start.
    pub(super) has_restored: bool,
    /// The last turn in which the server took its disk for full.
    pub(super) full_in_turn: Option<u64>,
    pub(super) known_grants: KnownGrants,
    pub(super) seen_locks: SeenLocks,
    pub(super) known_entries: KnownEntries,
    pub(super) known_pushes: KnownPushes,
    pub(super) known_ranges: KnownRanges,
    /// Its data directory may lack something that was spoken of.
    may_have_lost: bool,
    /// What of each limit was taken after the last turn, where there are limits.
    pub(super) taken: Option<Taken>,
    /// Connections by number. A number is never used twice.
    pub(super) connections: BTreeMap<u32, Connection>,
    /// Connections that no single check looks at.
    pub(super) crowd: Crowd,
    /// The serial number that the server gave a connection → its number here.
    pub(super) by_serial: BTreeMap<u32, u32>,
    /// The numbers of all connections that ever said that what they are granted outlives them.
    pub(super) keepers: BTreeSet<u32>,
    /// Connections that the server has not yet accepted.
    pub(super) backlog: VecDeque<(u32, MaybeTls<Pipe>)>,
    /// When the server accepts from the backlog, if it has to wait for that.
    pub(super) accepts_at: Option<Nanos>,
    /// Connections that the next poll reports.
    pub(super) pending: BTreeSet<u32>,
    /// Ids of connections that are gone; a poll reports one of them now and then.
    pub(super) stale: VecDeque<ConnId>,
    pub(super) shutdown_signals: u32,
    /// The server got its first shutdown signal.
    pub(super) draining: Option<Draining>,
    /// The server got a second shutdown signal.
    pub(super) is_killed: bool,
    /// When the turn begins that deals with what is pending.
    pub(super) due: Option<Nanos>,
    /// How late the server will notice its next deadline.
    pub(super) oversleep_ns: u64,
    pub(super) paused_until: Nanos,
    /// So much waited for the disk until then that requests which take room waited, too.
    pub(super) behind_until: Nanos,
    /// It did so after the last turn.
    pub(super) is_behind: bool,
    /// The documents that clients read in this turn.
    pub(super) reports: Vec<Report>,
    pub(super) longest_turn_ns: u64,
    /// The last turn.
    pub(super) span: TurnSpan,
    /// What the engine has done by now, to tell what a turn was.
    pub(super) work: WorkSeen,
    /// The connections and keys for which a client has sent `w`.
    pub(super) waits: BTreeSet<(u32, usize)>,
}

/// The turn in which a server was told to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    /// Its number.
    pub(super) turn: u64,
    /// When it began, and when it was over.
    pub(super) began: Nanos,
    pub(super) ended: Nanos,
}

impl Life {
    /// A server that has just started, and that nobody knows. With a keeper it has a data directory,
    /// in which these records were.
    pub(super) fn begin(
        rng: &mut Rng,
        plan: &Plan,
        number: u32,
        now: Nanos,
        wall_us: u64,
        kept: Option<(Rc<RefCell<Keeper>>, &[Record])>,
    ) -> Box<Self> {
        let fence = match fence_start(wall_us, Fence::LIMIT) {
            FenceStart::At(fence) => fence,
            other => unreachable!("a clock that shows this century is not {other:?}"),
        };
        let records = kept.as_ref().map_or(&[][..], |(_, records)| records);
        let fence = fence.max(Kept::of(records).fences_upto);
        let origin = Origin {
            fence,
            seed: [rng.u64(..), rng.u64(..)],
            salt_key: std::array::from_fn(|_| rng.u64(..)),
        };
        let keeper = kept.as_ref().map(|(keeper, _)| Rc::clone(keeper));
        let epoch = keeper.as_ref().map_or(wall_us, |it| it.borrow().life.epoch);
        let is_short = keeper
            .as_ref()
            .is_some_and(|it| it.borrow().sabotage == Some(Sabotage::ShortGrace));
        let rules = Rules {
            durable: kept.is_some(),
            epoch,
            grace_period: match is_short {
                true => Millis(1),
                false => plan.rules.grace_period,
            },
            ..plan.rules.clone()
        };
        // As the daemon has it.
        let mut engine = Engine::new(rules, origin);
        let mut nothing = Effects::new();
        for record in records {
            engine.apply(now, Input::Restore(record), &mut nothing);
        }
        let may_have_lost = keeper
            .as_ref()
            .is_some_and(|it| it.borrow().life.follows_loss);
        engine.apply(now, Input::Serve { may_have_lost }, &mut nothing);
        assert!(nothing.is_empty(), "restoring is heard: {nothing:?}");
        let restored = engine.counts().holders as u64;
        let mut seen_locks = SeenLocks::new(plan.keys.len(), fence);
        let names = plan.keys.iter().map(|(name, _)| &name[..]);
        let seen = seen_locks.begin_with(now, &engine, names);
        seen.unwrap_or_else(|why| panic!("restored: {why}"));
        let settings = Settings {
            epoch,
            ..plan.settings.clone()
        };
        Box::new(Self {
            number,
            is_up: true,
            epoch,
            server: Server::with_store(settings, engine, SimStore(keeper)),
            disk_at: None,
            lost_pops: BTreeMap::new(),
            has_restored: restored > 0,
            full_in_turn: None,
            known_grants: KnownGrants::new(plan.keys.len(), plan.rules.auto_release),
            seen_locks,
            known_entries: KnownEntries::new(plan),
            known_pushes: KnownPushes::default(),
            known_ranges: KnownRanges::default(),
            may_have_lost,
            taken: None,
            connections: BTreeMap::new(),
            crowd: Crowd::default(),
            by_serial: BTreeMap::new(),
            keepers: BTreeSet::new(),
            backlog: VecDeque::new(),
            accepts_at: None,
            pending: BTreeSet::new(),
            stale: VecDeque::new(),
            shutdown_signals: 0,
            draining: None,
            is_killed: false,
            due: None,
            oversleep_ns: 0,
            paused_until: now,
            behind_until: now,
            is_behind: false,
            reports: Vec::new(),
            longest_turn_ns: 0,
            span: TurnSpan::default(),
            work: WorkSeen::default(),
            waits: BTreeSet::new(),
        })
    }

    /// What is known of byte ranges begins with what was restored of them.
    pub(super) fn begin_ranges(&mut self, plan: &Plan, turn: u64, now: Nanos) {
        let seen = SeenRanges::look(plan, self, turn, TurnSpan::default(), now);
        let seen = seen.unwrap_or_else(|why| panic!("restored: {why}"));
        self.known_ranges = KnownRanges::begin(plan, seen, now, self.may_have_lost);
    }

    /// Whoever connects, or starts another server, finds this one.
    pub(super) fn is_listening(&self) -> bool {
        self.is_up && self.server.is_listening()
    }

    /// It does not run, or was told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        !self.is_up || self.draining.is_some() || self.shutdown_signals > 0
    }

    /// The member of the crowd that has this number.
    pub(super) fn member(&mut self, number: u32) -> Option<&mut Member> {
        let index = number.checked_sub(FIRST_MEMBER)?;
        self.crowd.members.get_mut(index as usize)
    }

    /// What the poll knows of a connection, ordinary or not: its client's end, its id, and whether
    /// the server wants to hear of room to write.
    pub(super) fn polled(&mut self, number: u32) -> Option<(&Peer, Option<ConnId>, &mut bool)> {
        if number < FIRST_MEMBER {
            let conn = self.connections.get_mut(&number)?;
            return Some((&conn.peer, conn.id, &mut conn.watches_write));
        }
        let member = self.member(number)?;
        Some((&member.peer, member.id, &mut member.watches_write))
    }

    /// When the poll returns.
    pub(super) fn wakes_at(&self) -> Option<Nanos> {
        let deadline = self.server.next_deadline();
        let deadline = deadline.map(|at| Nanos(at.0.saturating_add(self.oversleep_ns)));
        let next = [self.due, self.accepts_at, deadline];
        let at = next.into_iter().flatten().min()?;
        // A timer that never fires is no reason to wake.
        (at < Nanos::NEVER).then_some(at.max(self.paused_until))
    }
}

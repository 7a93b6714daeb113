//! Deadlocks: requests that would wait for themselves, over named locks and byte ranges together.
//!
//! - A *party* holds and waits as one: a session, or a named owner for which a client locks bytes.
//!   A connection that waits for a client, or for an owner of that client, cannot release its own
//!   grants: the wait keeps both.
//! - A party is stuck unless it waits for nothing, or each of its waits can end.
//! - A wait can end if, of the parties before it, fewer are stuck than there is room for. Before a
//!   wait for a key are its holders and the earlier waiters; before a wait to read, only those up
//!   to the last writer. Before a wait for bytes are the owners that hold some of them in a
//!   conflicting mode. The order of a queue of bytes gives way, so the earlier waiters count only
//!   to find out whether it has to.
//! - A request is refused if its wait would close a cycle: it waits, directly or through others,
//!   for a party that its own wait keeps. This holds for every request for bytes, and for a request
//!   for a key if its connection or the operator asked for that. A request may wait for others that
//!   are in a cycle.
//! - A lease or wait whose deadline is this instant has ended.
//!
//! No wait-for graph is stored: it is read off holders and queues when a request is about to wait.

use latchd::base::ConnId;
use latchd::engine::SearchLimits;
use latchd::engine::types::{Effect, Mode, Refusal, Reply};

use crate::ranges::{InTheWay, Owner, RangeWait};
use crate::{Awaits, Kind, Model, SessionId, Waiter, WaiterId};

/// A holder of keys and bytes that may wait for others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Party {
    Session(SessionId),
    /// An owner of bytes that a client has given a name. A client may do other things while it
    /// waits.
    Owner(Owner),
}

/// One wait.
struct Wait {
    /// The party that waits, and its connection.
    keeps: Vec<Party>,
    /// The parties before it, as often as they are in its way.
    before: Vec<Party>,
    /// It can end if fewer than these are stuck: the slots of a semaphore, else 1.
    room: usize,
}

impl Wait {
    fn stuck_before<'a>(&'a self, stuck: &'a [Party]) -> impl Iterator<Item = &'a Party> {
        self.before.iter().filter(|it| stuck.contains(it))
    }

    fn can_end(&self, stuck: &[Party]) -> bool {
        self.stuck_before(stuck).count() < self.room
    }
}

/// The parties that are stuck if the wait that is asked about never ends.
fn stuck_parties(waits: &[Wait], asked: Option<&Wait>) -> Vec<Party> {
    let all = waits.iter().chain(asked);
    let mut stuck: Vec<Party> = all.flat_map(|it| it.keeps.clone()).collect();
    loop {
        let gets_on = stuck.iter().position(|party| {
            let is_asked = asked.is_some_and(|it| it.keeps.contains(party));
            let mut own = waits.iter().filter(|it| it.keeps.contains(party));
            !is_asked && own.all(|it| it.can_end(&stuck))
        });
        match gets_on {
            Some(party) => stuck.swap_remove(party),
            None => return stuck,
        };
    }
}

/// Whether a wait would be for itself.
fn is_circle(waits: &[Wait], asked: &Wait) -> bool {
    let stuck = stuck_parties(waits, Some(asked));
    let mut reached: Vec<&Party> = match asked.can_end(&stuck) {
        true => Vec::new(),
        false => asked.stuck_before(&stuck).collect(),
    };
    let mut next = 0;
    while let Some(&party) = reached.get(next) {
        let own = waits.iter().filter(|it| it.keeps.contains(party));
        for wait in own.filter(|it| !it.can_end(&stuck)) {
            for before in wait.stuck_before(&stuck) {
                if !reached.contains(&before) {
                    reached.push(before);
                }
            }
        }
        next += 1;
    }
    reached.iter().any(|it| asked.keeps.contains(it))
}

/// Whether this answer means that a waiter for bytes was served: granted, or refused for want of
/// room.
fn is_served(reply: &Reply) -> bool {
    use Refusal::{MaxRanges, MaxRangesOfClient, MaxRangesOfResource, Memory, Storage};
    match reply {
        Reply::Done => true,
        Reply::Refused(why) => [
            MaxRanges,
            MaxRangesOfClient,
            MaxRangesOfResource,
            Memory,
            Storage,
        ]
        .contains(why),
        _ => false,
    }
}

impl Model {
    // ---- what waits for what ----

    fn party_of(&self, owner: &Owner) -> Party {
        match &self.session(owner.session).kind {
            Kind::Client(_) if !owner.name.is_empty() => Party::Owner(owner.clone()),
            _ => Party::Session(owner.session),
        }
    }

    fn new_wait(&self, party: Party, conn: ConnId, before: Vec<Party>, room: usize) -> Wait {
        let own = self.find_conn(conn).map(|it| Party::Session(it.own));
        let keeps = [party].into_iter().chain(own).collect();
        Wait {
            keeps,
            before,
            room,
        }
    }

    /// A wait for a key, behind the waiters among these that can be served.
    fn wait_for_key(
        &self,
        conn: ConnId,
        session: SessionId,
        (key, mode): (&[u8], Mode),
        queue: &[&Waiter],
    ) -> Wait {
        let holders = self
            .grants
            .iter()
            .filter(|it| it.key == key && it.deadline > self.moment);
        let is_written = holders.clone().any(|it| it.mode == Mode::Write);
        let mut queue: Vec<&Waiter> = queue
            .iter()
            .copied()
            .filter(|it| self.is_present(it))
            .collect();
        if mode == Mode::Read {
            // Readers right before it come in with it.
            let is_writer = |it: &&Waiter| {
                matches!(
                    it.what,
                    Awaits::Hold {
                        mode: Mode::Write,
                        ..
                    }
                )
            };
            let up_to_writer = queue.iter().rposition(is_writer).map_or(0, |it| it + 1);
            queue.truncate(up_to_writer);
        }
        let comes_in = mode == Mode::Read && queue.is_empty() && !is_written;
        let before = holders
            .map(|it| it.session)
            .chain(queue.iter().map(|it| it.session));
        let before = before.filter(|_| !comes_in).map(Party::Session).collect();
        let room = match mode {
            Mode::Slot { limit } => limit as usize,
            Mode::Read | Mode::Write | Mode::Lead => 1,
        };
        self.new_wait(Party::Session(session), conn, before, room)
    }

    fn wait_for_bytes(
        &self,
        conn: ConnId,
        want: &RangeWait,
        before: &[WaiterId],
        counts_queue: bool,
    ) -> Wait {
        let holders = self.holders_in_the_way(want).into_iter().map(|it| it.0);
        let mut owners: Vec<Owner> = holders.collect();
        if counts_queue && !self.converts(want) {
            owners.extend(self.waiters_in_the_way(want, before));
        }
        let before = owners.iter().map(|it| self.party_of(it)).collect();
        self.new_wait(self.party_of(&want.owner), conn, before, 1)
    }

    /// What this waiter waits for, if a command is parked there, and waits for a key or for bytes.
    fn wait_of(&self, waiter: &Waiter, counts_queue: bool) -> Option<Wait> {
        let conn = waiter.conn?;
        match &waiter.what {
            Awaits::Hold { key, mode, .. } => {
                let earlier = self
                    .waiters_for(key)
                    .into_iter()
                    .filter(|it| it.id < waiter.id);
                let earlier: Vec<&Waiter> = earlier.collect();
                Some(self.wait_for_key(conn, waiter.session, (key, *mode), &earlier))
            }
            Awaits::Range(want) => {
                let mut before = self.queue_of(&want.resource);
                before.retain(|it| *it < waiter.id);
                Some(self.wait_for_bytes(conn, want, &before, counts_queue))
            }
            Awaits::Pop { .. } | Awaits::Barrier(_) => None,
        }
    }

    fn waits(&self, counts_queue: bool) -> Vec<Wait> {
        let waiting = self.waiters.iter();
        let waiting = waiting.filter(|it| it.until > self.moment && self.is_present(it));
        waiting
            .filter_map(|it| self.wait_of(it, counts_queue))
            .collect()
    }

    fn waiters_for(&self, key: &[u8]) -> Vec<&Waiter> {
        let is_it = |it: &&Waiter| matches!(&it.what, Awaits::Hold { key: of, .. } if of == key);
        self.waiters.iter().filter(is_it).collect()
    }

    // ---- what is refused ----

    /// Whether this connection, about to wait for the key for this session, is to be told that it
    /// would wait for itself. `place` is its place in the queue, if it has one already.
    pub(crate) fn would_deadlock(
        &mut self,
        conn: ConnId,
        session: SessionId,
        key: &[u8],
        mode: Mode,
        place: Option<WaiterId>,
    ) -> bool {
        if !self.rules.deadlock_detection && !self.conn(conn).detects {
            return false;
        }
        let mut queue = self.waiters_for(key);
        queue.retain(|it| place.is_none_or(|place| it.id < place));
        let asked = self.wait_for_key(conn, session, (key, mode), &queue);
        is_circle(&self.waits(false), &asked) && !self.is_searched_later(conn)
    }

    /// Whether a request for bytes, behind these waiters, is to be told that it would wait for
    /// itself.
    pub(crate) fn range_would_deadlock(
        &self,
        conn: ConnId,
        want: &RangeWait,
        before: &[WaiterId],
    ) -> bool {
        let asked = self.wait_for_bytes(conn, want, before, false);
        is_circle(&self.waits(false), &asked) && !self.is_searched_later(conn)
    }

    /// Whether only the order of the queue would keep a request for bytes waiting for itself.
    pub(crate) fn order_would_deadlock(
        &self,
        conn: ConnId,
        want: &RangeWait,
        before: &[WaiterId],
    ) -> bool {
        // No party waits for a session that has nothing, other than in the order of a queue.
        let session = want.owner.session;
        let has_something = self.client(session).is_some()
            || self.holds_ranges(session)
            || self.grants.iter().any(|it| it.session == session)
            || self.tickets.iter().any(|it| it.session == session);
        let asked = self.wait_for_bytes(conn, want, before, true);
        has_something && is_circle(&self.waits(true), &asked)
    }

    /// A long search continues when time passes, while the request waits. How long a search may
    /// take is the engine's choice where the limit is small.
    pub(crate) fn is_searched_later(&self, conn: ConnId) -> bool {
        let usual = SearchLimits::default().at_once_work;
        self.rules.search_limits.at_once_work < usual && self.seen_answer(conn).is_none()
    }

    // ---- when time passes ----

    /// A wait may become a circle after it has begun: its place passes to another connection, a
    /// client that waits is granted something on another connection, or a search took long. When
    /// time passes it is refused. A waiter that only the order of its queue keeps waiting for
    /// itself is let pass.
    ///
    /// Of several the engine chooses one, and the others may be in no circle after that.
    pub(crate) fn go_on_searching(&mut self) {
        while let Some((waiter, is_refused)) = self.next_found() {
            match is_refused {
                true => self.refuse_parked(waiter),
                false => self.let_pass(waiter),
            }
        }
    }

    /// The next waiter that the engine has found something out about, and whether that is refused.
    fn next_found(&self) -> Option<(WaiterId, bool)> {
        self.seen.iter().find_map(|effect| {
            let Effect::Reply(conn, reply) = effect else {
                return None;
            };
            let waiter = self.parked(*conn)?;
            match reply {
                Reply::Refused(Refusal::Deadlock) => {
                    self.is_in_circle(waiter).then_some((waiter.id, true))
                }
                _ => (is_served(reply) && self.may_pass(waiter)).then_some((waiter.id, false)),
            }
        })
    }

    /// Whether a parked command waits for itself and is to be told so.
    fn is_in_circle(&self, waiter: &Waiter) -> bool {
        let is_range = matches!(waiter.what, Awaits::Range(_));
        let detects = waiter
            .conn
            .and_then(|it| self.find_conn(it))
            .is_some_and(|it| it.detects);
        let is_told = is_range || detects || self.rules.deadlock_detection;
        let asked = self.wait_of(waiter, false).filter(|_| is_told);
        asked.is_some_and(|asked| is_circle(&self.waits(false), &asked))
    }

    /// Whether only the order of its queue keeps a waiter for bytes waiting for itself.
    fn may_pass(&self, waiter: &Waiter) -> bool {
        let (Awaits::Range(want), Some(conn)) = (&waiter.what, waiter.conn) else {
            return false;
        };
        let mut before = self.queue_of(&want.resource);
        before.retain(|it| *it < waiter.id);
        self.in_the_way(want, &before) == InTheWay::Queue
            && self.order_would_deadlock(conn, want, &before)
    }

    /// Whether the engine lets this waiter pass, and before any other.
    pub(crate) fn is_let_pass_next(&self, waiter: WaiterId) -> bool {
        self.seen
            .iter()
            .find_map(|effect| match effect {
                Effect::Reply(conn, reply) if is_served(reply) => {
                    self.parked(*conn).filter(|it| self.may_pass(it))
                }
                _ => None,
            })
            .is_some_and(|it| it.id == waiter)
    }

    fn let_pass(&mut self, waiter: WaiterId) {
        let resource = self.range_wait(waiter).resource.clone();
        self.about = Some(resource.clone());
        self.grant_range_waiter(waiter);
        self.serve_ranges(&resource);
    }

    /// A parked command is refused, because it waits for itself.
    fn refuse_parked(&mut self, waiter: WaiterId) {
        let refused = Reply::Refused(Refusal::Deadlock);
        let it = self.waiter(waiter).expect("it waits").clone();
        if let Awaits::Range(want) = &it.what {
            self.about = Some(want.resource.clone());
            self.end_range_wait(waiter, refused);
            self.serve_ranges(&want.resource);
        } else if let Awaits::Hold { key, .. } = &it.what {
            self.about = Some(key.clone());
            self.answer_parked(it.conn.expect("a command is parked there"), refused);
            self.give_up(waiter);
            self.serve(key, self.moment);
        }
    }

    /// Waits that have become circles since they began, and waiters that only the order of a queue
    /// keeps waiting for themselves. A moment after the last input there must be none, if all ask
    /// to be told.
    #[must_use]
    pub fn unresolved_waits(&self) -> Vec<String> {
        let found = self.waiters.iter().filter(|it| {
            it.until > self.moment
                && self.is_present(it)
                && (self.is_in_circle(it) || self.may_pass(it))
        });
        found.map(|it| format!("{it:?}")).collect()
    }

    /// How many waiters are stuck until their time is over.
    #[must_use]
    pub fn stuck_waits(&self) -> usize {
        let waits = self.waits(false);
        let stuck = stuck_parties(&waits, None);
        waits.iter().filter(|it| !it.can_end(&stuck)).count()
    }

    /// The place of a waiter has passed to another connection, which cannot release its own grants
    /// during the wait. If that closes a cycle, the cycle is found when time passes.
    pub(crate) fn look_at_passed_place(&mut self, _waiter: WaiterId) {}

    /// A restored grant belongs to this session from now on. If that makes a circle, it is found
    /// when time passes.
    pub(crate) fn look_at_waits_behind(&mut self, _key: &[u8], _session: SessionId) {}
}

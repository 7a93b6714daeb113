//! The lock table as a reader of the protocol would write it on one evening: vectors and loops.
//!
//! Written from the protocol's text, never from the engine's code, and slow on purpose: everything
//! is found by looking at everything. Where the text leaves a choice open, the model does not guess
//! but lets the engine choose among what is allowed, and then follows:
//!
//! - Grants decided at the same instant for different keys may take their fences in either order
//!   ([`Model::follow_fences`]); within one key, and between instants, the order is exact.
//! - Of several keys idle since the same instant, any may make room for a new one, and collection
//!   has `gc_interval` to forget an idle key ([`Model::follow_forgetting`]).
//! - A renewal that comes too late may find that nobody has noticed yet that the lease is over, and
//!   then the ticket goes as well; while leases are ended, that is open ([`Model::follow_renewal`]).
//!
//! Nothing is left open on one key: at one instant leases end before waits do, and waits end in the
//! order of the queue, each making room for those behind it.

use latchd::base::{Millis, Nanos};
use latchd::engine::types::{Mode, Refusal};
use latchd::engine::{Kind, Rules, Tally};

use super::world::refusal_word;

mod deadlock;
mod follow;
mod key;
mod seen;

/// Numbers of clients that connections attach to are above this.
const ATTACHED: u32 = 1 << 31;

/// What somebody hears: an answer, or news. Tokens are named by their fence alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    Granted { fence: u64, lease_ms: u64 },
    Acquired { fence: u64, lease_ms: u64 },
    Queued,
    Renewed { fence: u64, lease_ms: u64 },
    Released,
    Position(u32),
    NoPosition,
    TimedOut,
    Refused(&'static str),
    Lost { key: usize, fence: u64 },
}

/// Something said to a client, at the instant at which it was decided.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub moment: Nanos,
    pub client: u32,
    pub word: Word,
}

/// What is asked; keys are numbers here.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Acquire {
        mode: Mode,
        wait: Millis,
        lease: Option<Millis>,
    },
    Enqueue {
        mode: Mode,
        lease: Option<Millis>,
    },
    Wait {
        wait: Millis,
    },
    /// `None` is a token nobody was ever given.
    Release {
        fence: Option<u64>,
    },
    Renew {
        fence: Option<u64>,
        lease: Option<Millis>,
    },
    Position,
}

pub struct Holder {
    pub fence: u64,
    pub client: u32,
    pub hold: &'static str,
    pub since: Nanos,
    pub deadline: Nanos,
    /// It outlives its client.
    kept: bool,
}

pub struct Waiter {
    pub client: u32,
    /// The connection whose command is parked on it, if one is.
    pub conn: u32,
    pub hold: &'static str,
    pub since: Nanos,
    lease: Millis,
    /// Stands for an enqueue.
    enqueued: bool,
    /// A command is parked on it until then.
    pub until: Option<Nanos>,
}

/// What a client may still wait for on a key.
struct Ticket {
    client: u32,
    lease: Millis,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Queued,
    Held(u64),
    /// The lease of this grant ran out; forgotten at this instant.
    Expired {
        fence: u64,
        until: Nanos,
    },
}

pub struct Key {
    pub name: usize,
    pub kind: Kind,
    /// In the order of their grants.
    pub holders: Vec<Holder>,
    /// In the order in which they came.
    pub waiters: Vec<Waiter>,
    tickets: Vec<Ticket>,
    pub idle_since: Option<Nanos>,
}

pub struct Client {
    pub serial: u32,
    pub here: bool,
    pub introduced: bool,
    /// It wants to be told rather than to wait for itself.
    pub detects: bool,
    /// What it is told it has outlives it.
    pub keeps: bool,
    pub name: Option<String>,
    /// The client that it has attached to.
    pub home: Option<u32>,
}

struct Grant {
    moment: Nanos,
    fence: u64,
}

/// A client with any number of connections, which leaves with the last of them. Its number is no
/// connection's, and another one each time that it comes.
pub struct Attached {
    pub number: u32,
    pub id: usize,
}

pub struct Model {
    rules: Rules,
    pub now: Nanos,
    pub keys: Vec<Key>,
    /// Everyone who asked for something and is here, or gone and still holds something.
    pub clients: Vec<Client>,
    /// The same for clients that connections attach to.
    pub attached: Vec<Attached>,
    last_attached: u32,
    pub tally: Tally,
    pub deadlocks: u64,
    /// What was said since the last [`Model::forget_words`].
    pub said: Vec<Said>,
    last_fence: u64,
    draining: bool,
    /// Fence and key of every lease that ended.
    lapsed: Vec<(u64, usize)>,
    /// Fences of leases that ended since the latest [`Model::expire`].
    just_ended: Vec<u64>,
    /// Grants of the latest operation.
    grants: Vec<Grant>,
    /// Keys of which exactly one had to make room in the latest operation.
    made_room: Vec<usize>,
}

impl Model {
    pub fn new(rules: Rules, last_fence: u64) -> Self {
        Self {
            rules,
            now: Nanos(0),
            keys: Vec::new(),
            clients: Vec::new(),
            attached: Vec::new(),
            last_attached: ATTACHED,
            tally: Tally::default(),
            deadlocks: 0,
            said: Vec::new(),
            last_fence,
            draining: false,
            lapsed: Vec::new(),
            just_ended: Vec::new(),
            grants: Vec::new(),
            made_room: Vec::new(),
        }
    }

    // ---- the doors ----

    pub fn ask(&mut self, client: u32, key: usize, ask: Ask) {
        self.begin();
        self.meet(client);
        match ask {
            Ask::Acquire { mode, wait, lease } => {
                self.acquire(client, key, mode, Some(wait), lease);
            }
            Ask::Enqueue { mode, lease } => self.enqueue(client, key, mode, lease),
            Ask::Wait { wait } => self.wait(client, key, wait),
            Ask::Release { fence } => self.release(client, key, fence),
            Ask::Renew { fence, lease } => self.renew(client, key, fence, lease),
            Ask::Position => self.position(client, key),
        }
        self.finish();
    }

    /// Every deadline that has come is handled as if it were handled right then, except that what
    /// begins now (a lease, an idle time) begins now.
    pub fn expire(&mut self) {
        self.begin();
        while let Some(moment) = self.next_deadline().filter(|&at| at <= self.now) {
            for at in 0..self.keys.len() {
                self.end_leases(at, moment);
                self.serve(at, moment);
                while let Some(index) = self.keys[at].first_due(moment) {
                    self.time_out(at, index, moment);
                    self.serve(at, moment);
                }
                let is_over = |it: &Ticket| it.forgotten_at().is_some_and(|until| until <= moment);
                self.keys[at].tickets.retain(|it| !is_over(it));
            }
        }
        self.just_ended.clear();
        self.finish();
    }

    /// The connection acquires for this client from now on; returns whether the client is new.
    pub fn attach(&mut self, conn: u32, id: usize) -> bool {
        self.begin();
        let known = self.attached.iter().find(|it| it.id == id);
        let known = known.map(|it| it.number).filter(|&it| self.is_here(it));
        let number = known.unwrap_or_else(|| {
            self.last_attached += 1;
            let number = self.last_attached;
            self.attached.insert(0, Attached { number, id });
            number
        });
        self.meet(conn).home = Some(number);
        self.finish();
        known.is_none()
    }

    pub fn disconnect(&mut self, client: u32) {
        self.begin();
        let auto_release = self.rules.auto_release;
        let home = self.leaves_with(client);
        let is_gone = |it: u32| it == client || Some(it) == home;
        if let Some(it) = self.clients.iter_mut().find(|it| it.serial == client) {
            (it.here, it.home) = (false, None);
        }
        for at in 0..self.keys.len() {
            let is_parked = |it: &Waiter| it.conn == client && it.until.is_some();
            let parked = self.keys[at].waiters.iter().position(is_parked);
            let left = parked.map(|index| self.leave(at, index)).is_some();
            let key = &mut self.keys[at];
            let before = (key.waiters.len(), key.tickets.len(), key.holders.len());
            key.waiters.retain(|it| !is_gone(it.client));
            key.tickets.retain(|it| !is_gone(it.client));
            if auto_release {
                key.holders.retain(|it| !is_gone(it.client) || it.kept);
            }
            self.tally.disconnects += (before.2 - key.holders.len()) as u64;
            if left || before != (key.waiters.len(), key.tickets.len(), key.holders.len()) {
                self.serve(at, self.now);
            }
        }
        self.finish();
    }

    pub fn introduce(
        &mut self,
        client: u32,
        name: Option<String>,
        detects: Option<bool>,
        keeps: Option<bool>,
    ) {
        self.begin();
        let it = self.meet(client);
        it.introduced = true;
        it.detects = detects.unwrap_or(it.detects);
        it.keeps = keeps.unwrap_or(it.keeps);
        if name.is_some() {
            it.name = name;
        }
        self.finish();
    }

    pub fn drain(&mut self) {
        self.begin();
        self.draining = true;
        for at in 0..self.keys.len() {
            while let Some(index) = self.keys[at]
                .waiters
                .iter()
                .position(|it: &Waiter| it.until.is_some())
            {
                let gone = self.leave(at, index);
                self.refuse(gone.conn, Refusal::Draining);
            }
        }
        for at in 0..self.keys.len() {
            self.serve(at, self.now);
        }
        self.finish();
    }

    // ---- acquire ----

    /// Acquire, or with no wait the second half of an enqueue.
    fn acquire(
        &mut self,
        client: u32,
        name: usize,
        mode: Mode,
        wait: Option<Millis>,
        lease: Option<Millis>,
    ) {
        let (enqueued, owner) = (wait.is_none(), self.owner_of(client));
        let lease = lease.unwrap_or(self.rules.lease_default);
        let (kind, hold) = match mode {
            Mode::Slot { limit } => (Kind::Slots { limit }, "slot"),
            Mode::Read => (Kind::ReadWrite, "read"),
            Mode::Write => (Kind::ReadWrite, "write"),
            Mode::Lead => (Kind::Slots { limit: 1 }, "lead"),
        };
        if self.draining {
            return self.refuse(client, Refusal::Draining);
        }
        let at = match self.find(name) {
            Some(at) => match (self.keys[at].kind, kind) {
                (known, asked) if known == asked => at,
                (Kind::ReadWrite, _) | (_, Kind::ReadWrite) => {
                    return self.refuse(client, Refusal::TypeMismatch);
                }
                _ => return self.refuse(client, Refusal::LimitMismatch),
            },
            None => {
                let limit = self.rules.locks_max as usize;
                if limit != 0 && self.keys.len() >= limit {
                    let oldest = self.keys.iter().filter_map(|it| it.idle_since).min();
                    if oldest.is_none() {
                        return self.refuse(client, Refusal::MaxLocks);
                    }
                    let oldest = self.keys.iter().filter(|it| it.idle_since == oldest);
                    self.made_room = oldest.map(|it| it.name).collect();
                }
                self.keys.push(Key {
                    name,
                    kind,
                    holders: Vec::new(),
                    waiters: Vec::new(),
                    tickets: Vec::new(),
                    idle_since: None,
                });
                self.keys.len() - 1
            }
        };
        self.end_leases(at, self.now);
        self.serve(at, self.now);
        let (now, waiters_max) = (self.now, self.rules.waiters_per_key_max as usize);
        let key = &mut self.keys[at];
        if key.waiters.is_empty() && key.fits(hold) {
            let fence = self.grant(at, owner, hold, lease, now);
            let lease_ms = lease.0;
            if enqueued {
                let stage = Stage::Held(fence);
                self.keys[at].tickets.push(Ticket {
                    client: owner,
                    lease,
                    stage,
                });
                self.say(now, client, Word::Acquired { fence, lease_ms });
            } else {
                self.say(now, client, Word::Granted { fence, lease_ms });
            }
        } else if waiters_max != 0 && key.waiters.len() >= waiters_max {
            self.refuse(client, Refusal::MaxWaiters);
        } else if wait == Some(Millis::ZERO) {
            self.say(now, client, Word::TimedOut);
        } else if let before = key.waiters.len()
            && !enqueued
            && self.would_deadlock(client, at, hold, before)
        {
            self.refuse(client, Refusal::Deadlock);
        } else {
            let key = &mut self.keys[at];
            key.waiters.push(Waiter {
                client: owner,
                conn: client,
                hold,
                since: now,
                lease,
                enqueued,
                until: wait.map(|wait| now.after(wait)),
            });
            if enqueued {
                let stage = Stage::Queued;
                key.tickets.push(Ticket {
                    client: owner,
                    lease,
                    stage,
                });
                self.say(now, client, Word::Queued);
            }
        }
    }

    // ---- release and renew ----

    fn release(&mut self, client: u32, name: usize, fence: Option<u64>) {
        let Some((at, index)) = self.find_holder(name, fence) else {
            return self.refuse(client, Refusal::NotHolder);
        };
        let gone = self.keys[at].holders.remove(index);
        self.keys[at].forget_ticket_of(gone.fence);
        self.tally.releases += 1;
        self.say(self.now, client, Word::Released);
        // A lease that was over made room when it ended, not when it was let go.
        self.serve(at, gone.deadline.min(self.now));
    }

    fn renew(&mut self, client: u32, name: usize, fence: Option<u64>, lease: Option<Millis>) {
        let Some((at, index)) = self.find_holder(name, fence) else {
            let lapsed = fence.is_some_and(|fence| self.lapsed.contains(&(fence, name)));
            let why = [Refusal::NotHolder, Refusal::LeaseExpired][usize::from(lapsed)];
            return self.refuse(client, why);
        };
        let fence = self.keys[at].holders[index].fence;
        if self.keys[at].holders[index].deadline <= self.now {
            self.keys[at].forget_ticket_of(fence);
            self.refuse(client, Refusal::LeaseExpired);
            self.end_leases(at, self.now);
            return self.serve(at, self.now);
        }
        let lease = lease.unwrap_or(self.rules.lease_default);
        self.keys[at].holders[index].deadline = self.now.after(lease);
        let lease_ms = lease.0;
        self.say(self.now, client, Word::Renewed { fence, lease_ms });
    }

    /// Ends the leases of one key that are over, each at its own instant.
    fn end_leases(&mut self, at: usize, moment: Nanos) {
        loop {
            let holders = self.keys[at].holders.iter();
            let first = holders
                .map(|it| it.deadline)
                .enumerate()
                .min_by_key(|it| it.1);
            let Some((index, deadline)) = first.filter(|it| it.1 <= moment) else {
                break;
            };
            self.end_lease(at, index, deadline);
            self.serve(at, deadline);
        }
    }

    fn end_lease(&mut self, at: usize, index: usize, moment: Nanos) {
        let key = &mut self.keys[at];
        let gone = key.holders.remove(index);
        for ticket in &mut key.tickets {
            if ticket.stage == Stage::Held(gone.fence) {
                let kept = self.rules.gc_idle_max.max(Millis::from_secs(60));
                let (fence, until) = (gone.fence, self.now.after(kept));
                ticket.stage = Stage::Expired { fence, until };
            }
        }
        self.tally.expiries += 1;
        self.lapsed.push((gone.fence, key.name));
        self.just_ended.push(gone.fence);
        let lost = Word::Lost {
            key: key.name,
            fence: gone.fence,
        };
        let told = self.clients.iter().filter(|it| {
            let is_its_own = it.serial == gone.client || it.home == Some(gone.client);
            is_its_own && it.here && it.introduced
        });
        let told: Vec<u32> = told.map(|it| it.serial).collect();
        for conn in told {
            self.say(moment, conn, lost);
        }
    }

    // ---- two-phase ----

    fn enqueue(&mut self, client: u32, name: usize, mode: Mode, lease: Option<Millis>) {
        let owner = self.owner_of(client);
        if let Some((at, _)) = self.find_ticket(name, owner) {
            self.end_leases(at, self.now);
            self.serve(at, self.now);
        }
        if let Some((at, index)) = self.find_ticket(name, owner) {
            if !matches!(self.keys[at].tickets[index].stage, Stage::Expired { .. }) {
                return self.refuse(client, Refusal::AlreadyEnqueued);
            }
            self.keys[at].tickets.remove(index);
        }
        self.acquire(client, name, mode, None, lease);
    }

    fn wait(&mut self, client: u32, name: usize, wait: Millis) {
        let owner = self.owner_of(client);
        if let Some((at, _)) = self.find_ticket(name, owner) {
            self.end_leases(at, self.now);
            self.serve(at, self.now);
        }
        let Some((at, index)) = self.find_ticket(name, owner) else {
            return self.refuse(client, Refusal::NotEnqueued);
        };
        let (now, key) = (self.now, &mut self.keys[at]);
        let Ticket { lease, stage, .. } = key.tickets[index];
        match stage {
            Stage::Held(fence) => {
                key.tickets.remove(index);
                for holder in &mut key.holders {
                    if holder.fence == fence {
                        holder.deadline = now.after(lease);
                    }
                }
                let lease_ms = lease.0;
                self.say(now, client, Word::Granted { fence, lease_ms });
            }
            Stage::Expired { .. } => {
                key.tickets.remove(index);
                self.refuse(client, Refusal::LeaseExpired);
            }
            Stage::Queued => {
                let mine = |it: &Waiter| it.client == owner && it.enqueued;
                let index = key.waiters.iter().position(mine).unwrap();
                let is_parked = key.waiters[index].until.is_some();
                if !is_parked {
                    key.waiters[index].conn = client;
                }
                if is_parked {
                    self.refuse(client, Refusal::NotEnqueued); // on another connection
                } else if self.draining {
                    self.leave(at, index);
                    self.refuse(client, Refusal::Draining);
                    self.serve(at, now);
                } else if wait == Millis::ZERO {
                    self.time_out(at, index, now);
                    self.serve(at, now);
                } else if let hold = key.waiters[index].hold
                    && self.would_deadlock(client, at, hold, index)
                {
                    self.leave(at, index);
                    self.refuse(client, Refusal::Deadlock);
                    self.serve(at, now);
                } else {
                    self.keys[at].waiters[index].until = Some(now.after(wait));
                }
            }
        }
    }

    // ---- `pos` ----

    fn position(&mut self, client: u32, name: usize) {
        if let Some(at) = self.find(name) {
            self.end_leases(at, self.now);
            self.serve(at, self.now);
        }
        let owner = self.owner_of(client);
        let is_place = |it: &Waiter| it.client == owner && it.enqueued;
        let word = match self.find(name).map(|at| &self.keys[at]) {
            None => Word::NoPosition,
            Some(key) => match key.waiters.iter().position(is_place) {
                Some(before) => Word::Position(before as u32 + 1),
                None if key.holders.iter().any(|it| it.client == owner) => Word::Position(0),
                None => Word::NoPosition,
            },
        };
        self.say(self.now, client, word);
    }

    // ---- the queue ----

    /// Serves the queue: a waiter at its head that fits is granted; one that has waited for longer
    /// than it wanted to is sent away.
    fn serve(&mut self, at: usize, moment: Nanos) {
        while let Some(head) = self.keys[at].waiters.first() {
            if let Some(until) = head.until.filter(|until| *until < moment) {
                // A lease that was over earlier makes room for it.
                if self.keys[at].holders.iter().any(|it| it.deadline <= until) {
                    break;
                }
                self.time_out(at, 0, moment);
            } else if self.keys[at].fits(head.hold) {
                let was_queued = self.keys[at].waiters.remove(0);
                let Waiter {
                    client,
                    conn,
                    hold,
                    lease,
                    ..
                } = was_queued;
                let fence = self.grant(at, client, hold, lease, moment);
                if was_queued.until.is_some() {
                    if was_queued.enqueued {
                        self.keys[at].tickets.retain(|it| it.client != client);
                    }
                    let lease_ms = lease.0;
                    self.say(moment, conn, Word::Granted { fence, lease_ms });
                } else {
                    let mut tickets = self.keys[at].tickets.iter_mut();
                    let ticket = tickets.find(|it| it.client == client).unwrap();
                    ticket.stage = Stage::Held(fence);
                }
            } else {
                break;
            }
        }
    }

    fn grant(
        &mut self,
        at: usize,
        client: u32,
        hold: &'static str,
        lease: Millis,
        moment: Nanos,
    ) -> u64 {
        self.last_fence += 1;
        let (fence, since) = (self.last_fence, self.now);
        let key = &mut self.keys[at];
        assert!(key.fits(hold), "the model itself is wrong");
        key.holders.push(Holder {
            fence,
            client,
            hold,
            since,
            deadline: since.after(lease),
            kept: false,
        });
        self.grants.push(Grant { moment, fence });
        self.tally.grants += 1;
        fence
    }

    fn time_out(&mut self, at: usize, index: usize, moment: Nanos) {
        let gone = self.leave(at, index);
        self.say(moment, gone.conn, Word::TimedOut);
    }

    /// Out of the queue, with its ticket if it has one.
    fn leave(&mut self, at: usize, index: usize) -> Waiter {
        let key = &mut self.keys[at];
        let gone = key.waiters.remove(index);
        if gone.enqueued {
            key.tickets.retain(|it| it.client != gone.client);
        }
        gone
    }

    // ---- small things ----

    fn begin(&mut self) {
        self.grants.clear();
        self.made_room.clear();
    }

    /// A key that became idle is idle from now; a client that is gone and holds nothing is
    /// forgotten.
    fn finish(&mut self) {
        for key in &mut self.keys {
            let idle = key.holders.is_empty() && key.waiters.is_empty() && key.tickets.is_empty();
            key.idle_since = match key.idle_since {
                _ if !idle => None,
                None => Some(self.now),
                since => since,
            };
        }
        let keys = &self.keys;
        let holds = |client| {
            let mut holders = keys.iter().flat_map(|it| &it.holders);
            holders.any(|it| it.client == client)
        };
        self.clients.retain(|it| it.here || holds(it.serial));
        let is_home = |it: u32| self.clients.iter().any(|conn| conn.home == Some(it));
        self.attached
            .retain(|it| is_home(it.number) || holds(it.number));
    }

    fn meet(&mut self, serial: u32) -> &mut Client {
        let known = self.clients.iter().position(|it| it.serial == serial);
        let index = known.unwrap_or_else(|| {
            self.clients.push(Client {
                serial,
                here: true,
                introduced: false,
                detects: false,
                keeps: false,
                name: None,
                home: None,
            });
            self.clients.len() - 1
        });
        &mut self.clients[index]
    }

    fn find(&self, name: usize) -> Option<usize> {
        self.keys.iter().position(|it| it.name == name)
    }

    fn find_holder(&self, name: usize, fence: Option<u64>) -> Option<(usize, usize)> {
        let (at, fence) = (self.find(name)?, fence?);
        let mut holders = self.keys[at].holders.iter();
        Some((at, holders.position(|it| it.fence == fence)?))
    }

    fn find_ticket(&self, name: usize, client: u32) -> Option<(usize, usize)> {
        let at = self.find(name)?;
        let mut tickets = self.keys[at].tickets.iter();
        Some((at, tickets.position(|it| it.client == client)?))
    }

    fn refuse(&mut self, client: u32, why: Refusal) {
        self.say(self.now, client, Word::Refused(refusal_word(why)));
    }

    fn say(&mut self, moment: Nanos, client: u32, word: Word) {
        if let Word::Granted { fence, .. } | Word::Acquired { fence, .. } = word
            && self.client(client).is_some_and(|it| it.keeps)
        {
            let holders = self.keys.iter_mut().flat_map(|it| &mut it.holders);
            // What a client has does not depend on one connection.
            let is_it = |it: &Holder| it.fence == fence && it.client == client;
            holders.for_each(|it| it.kept |= is_it(it));
        }
        self.said.push(Said {
            moment,
            client,
            word,
        });
    }
}

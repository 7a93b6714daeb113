//! A model of byte ranges: every byte by itself, and for each resource one list of who waits.
//!
//! Written from the documentation. It is slow, and knows nothing of segments, trees or timers. Where the order
//! of things is the engine's choice (who of several that may pass is let pass first), the model is told
//! what the engine did, and says whether that was allowed.

use latchd::base::{Millis, Nanos, Token};

use super::ops::{Bytes, CLIENTS, KEYS, Limits, RESOURCES};

/// So many bytes there are; the last one stands for all behind it.
pub const BYTES: usize = 13;

/// Somebody that things belong to: a connection by its serial number, or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Conn(u32),
    Client(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    Done,
    TimedOut,
    Refused(&'static str),
    Cancelled,
    AlreadyGranted,
    Nothing,
    Free,
    Held(Told),
    Number(i64),
    Granted,
    Attached(bool),
}

/// One segment, as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    pub start: usize,
    pub last: usize,
    pub exclusive: bool,
    pub who: Who,
    pub name: usize,
}

/// Whether it is exclusive, and since when.
pub type Cell = Option<(bool, Nanos)>;

#[derive(Clone, Debug)]
pub struct Holding {
    pub resource: usize,
    pub cells: [Cell; BYTES],
}

/// There while it holds or waits for something; in the order in which they came.
#[derive(Clone, Debug)]
pub struct Owner {
    pub who: Who,
    pub name: usize,
    pub holdings: Vec<Holding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub who: Who,
    pub name: usize,
    pub exclusive: bool,
    pub bytes: Bytes,
}

impl Wish {
    pub fn excludes(&self, other: &Self) -> bool {
        let is_same = (self.who, self.name) == (other.who, other.name);
        !is_same && (self.exclusive || other.exclusive) && overlap(self.bytes, other.bytes)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub wish: Wish,
    pub conn: u32,
    pub until: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub struct KeyWait {
    pub who: Who,
    pub conn: u32,
    pub until: Nanos,
}

pub struct Key {
    pub limit: usize,
    /// Whose, and on which connection it was told; the token when that is known.
    pub holders: Vec<(Who, u32, Option<Token>)>,
    pub queue: Vec<KeyWait>,
}

pub struct Client {
    pub ttl: Millis,
    /// In the order in which they attached.
    pub conns: Vec<u32>,
    ends: Option<Nanos>,
}

/// What is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTheWay {
    Nothing,
    Queue,
    Holder,
}

pub struct Model {
    pub now: Nanos,
    pub limits: Limits,
    /// Who has left is not among them.
    pub attached: Vec<(u32, usize)>,
    pub clients: [Option<Client>; CLIENTS],
    pub owners: Vec<Owner>,
    pub queues: [Vec<Wait>; RESOURCES],
    pub keys: [Key; KEYS],
    /// Those who may wait for themselves since somebody was granted something: resource and connection.
    pub suspects: Vec<(usize, u32)>,
    pub said: Vec<(u32, Word)>,
    /// Whom the engine has granted something in this step, in its order.
    pub hints: Vec<u32>,
    pub refusals: u64,
}

pub fn overlap(a: Bytes, b: Bytes) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

impl Model {
    pub fn new(limits: Limits) -> Self {
        let key = |limit| Key {
            limit,
            holders: Vec::new(),
            queue: Vec::new(),
        };
        Self {
            now: Nanos(0),
            limits,
            attached: Vec::new(),
            clients: Default::default(),
            owners: Vec::new(),
            queues: Default::default(),
            keys: [key(1), key(2)],
            suspects: Vec::new(),
            said: Vec::new(),
            hints: Vec::new(),
            refusals: 0,
        }
    }

    pub fn say(&mut self, conn: u32, word: Word) {
        self.said.push((conn, word));
    }

    // ---- looking ----

    pub fn who(&self, conn: u32) -> Who {
        let found = self.attached.iter().find(|it| it.0 == conn);
        found.map_or(Who::Conn(conn), |it| Who::Client(it.1))
    }

    pub fn is_parked(&self, conn: u32) -> bool {
        let mut ranges = self.queues.iter().flatten().map(|it| it.conn);
        let mut keys = self.keys.iter().flat_map(|it| &it.queue).map(|it| it.conn);
        ranges.any(|it| it == conn) || keys.any(|it| it == conn)
    }

    pub fn owner(&self, who: Who, name: usize) -> Option<&Owner> {
        let mut owners = self.owners.iter();
        owners.find(|it| (it.who, it.name) == (who, name))
    }

    fn cell(&self, who: Who, name: usize, resource: usize, byte: usize) -> Cell {
        let owner = self.owner(who, name)?;
        let holding = owner.holdings.iter().find(|it| it.resource == resource)?;
        holding.cells[byte]
    }

    /// Where the owner waits.
    fn wait_of(&self, who: Who, name: usize) -> Option<(usize, usize)> {
        self.queues
            .iter()
            .enumerate()
            .find_map(|(resource, queue)| {
                let is_it = |it: &Wait| (it.wish.who, it.wish.name) == (who, name);
                Some((resource, queue.iter().position(is_it)?))
            })
    }

    /// All segments of a resource, by first byte, then by age.
    pub fn segments(&self, resource: usize) -> Vec<(Told, Nanos)> {
        let mut all = Vec::new();
        for owner in &self.owners {
            for holding in owner.holdings.iter().filter(|it| it.resource == resource) {
                all.extend(segments_of(owner, holding));
            }
        }
        all.sort_by_key(|it| (it.0.start, it.1));
        all
    }

    /// Those of others who hold bytes that exclude this.
    pub fn holders_in_the_way(&self, resource: usize, wish: &Wish) -> Vec<&Owner> {
        let is_in_the_way = |it: &&Owner| {
            let is_same = (it.who, it.name) == (wish.who, wish.name);
            let mut holdings = it.holdings.iter().filter(|it| it.resource == resource);
            !is_same
                && holdings.any(|it| {
                    let mut cells = it.cells[wish.bytes.0..=wish.bytes.1].iter().flatten();
                    cells.any(|cell| cell.0 || wish.exclusive)
                })
        };
        self.owners.iter().filter(is_in_the_way).collect()
    }

    /// Those of so many in the queue that exclude this.
    pub fn waiters_in_the_way(&self, resource: usize, wish: &Wish, before: usize) -> Vec<&Wait> {
        let queue = &self.queues[resource][..before];
        queue.iter().filter(|it| it.wish.excludes(wish)).collect()
    }

    pub fn converts(&self, resource: usize, wish: &Wish) -> bool {
        let mut bytes = wish.bytes.0..=wish.bytes.1;
        bytes.any(|byte| self.cell(wish.who, wish.name, resource, byte).is_some())
    }

    pub fn in_the_way(&self, resource: usize, wish: &Wish, before: usize) -> InTheWay {
        if !self.holders_in_the_way(resource, wish).is_empty() {
            InTheWay::Holder
        } else if self.converts(resource, wish)
            || self.waiters_in_the_way(resource, wish, before).is_empty()
        {
            InTheWay::Nothing
        } else {
            InTheWay::Queue
        }
    }

    // ---- asking ----

    pub fn lock(&mut self, conn: u32, resource: usize, mut wish: Wish, wait: Millis) {
        wish.who = self.who(conn);
        let until = self.now.after(wait);
        if let Some((at, place)) = self.wait_of(wish.who, wish.name) {
            let it = &mut self.queues[at][place];
            if (at, it.wish) != (resource, wish) || wait == Millis::ZERO {
                return self.say(conn, Word::Refused("busy"));
            }
            let before = std::mem::replace(&mut it.conn, conn);
            it.until = until;
            // What this connection has of its own it cannot let go of from now on.
            self.suspects.push((resource, conn));
            return self.say(before, Word::TimedOut);
        }
        let before = match wait {
            Millis::ZERO => 0,
            _ => self.queues[resource].len(),
        };
        let in_the_way = self.in_the_way(resource, &wish, before);
        match in_the_way {
            InTheWay::Holder if wait == Millis::ZERO => return self.say(conn, Word::TimedOut),
            InTheWay::Holder if self.would_deadlock(resource, conn, &wish, before, false) => {
                self.refusals += 1;
                return self.say(conn, Word::Refused("deadlock"));
            }
            InTheWay::Queue if self.would_deadlock(resource, conn, &wish, before, true) => {}
            InTheWay::Nothing => {}
            InTheWay::Holder | InTheWay::Queue => {
                let most = match self.limits.waiters {
                    0 => 100,
                    most => most as usize,
                };
                if before >= most {
                    return self.say(conn, Word::Refused("waiters"));
                }
                self.know(wish.who, wish.name);
                return self.queues[resource].push(Wait { wish, conn, until });
            }
        }
        match self.grant(resource, &wish) {
            Ok(_) => self.say(conn, Word::Done),
            Err(why) => {
                self.forget_owners();
                return self.say(conn, Word::Refused(why));
            }
        }
        self.suspect(resource, &wish);
        self.drain(resource);
    }

    pub fn unlock(&mut self, conn: u32, resource: usize, bytes: Bytes, name: usize) {
        let who = self.who(conn);
        self.say(conn, Word::Done);
        if let Some((at, place)) = self.wait_of(who, name)
            && (at, self.queues[at][place].wish.bytes) == (resource, bytes)
        {
            let gone = self.queues[at].remove(place);
            self.say(gone.conn, Word::TimedOut);
        }
        self.clear(who, name, resource, bytes);
        self.drain(resource);
    }

    pub fn cancel(&mut self, conn: u32, resource: usize, mut wish: Wish) {
        wish.who = self.who(conn);
        if let Some((at, place)) = self.wait_of(wish.who, wish.name)
            && (at, self.queues[at][place].wish) == (resource, wish)
        {
            let gone = self.queues[at].remove(place);
            self.say(conn, Word::Cancelled);
            self.say(gone.conn, Word::TimedOut);
            self.forget_owners();
            return self.drain(resource);
        }
        let is_covered = (wish.bytes.0..=wish.bytes.1).all(|byte| {
            let cell = self.cell(wish.who, wish.name, resource, byte);
            cell.is_some_and(|it| it.0 || !wish.exclusive)
        });
        self.say(
            conn,
            match is_covered {
                true => Word::AlreadyGranted,
                false => Word::Nothing,
            },
        );
    }

    /// What may be told: if several are as old, each of them.
    pub fn test(&self, conn: u32, resource: usize, mut wish: Wish) -> Vec<Word> {
        wish.who = self.who(conn);
        let others = self.segments(resource).into_iter().filter(|(it, _)| {
            (it.who, it.name) != (wish.who, wish.name)
                && (it.exclusive || wish.exclusive)
                && overlap((it.start, it.last), wish.bytes)
        });
        let others: Vec<_> = others.collect();
        let Some(first) = others.first().map(|it| (it.0.start, it.1)) else {
            return vec![Word::Free];
        };
        let told = others.iter().filter(|it| (it.0.start, it.1) == first);
        told.map(|it| Word::Held(it.0)).collect()
    }

    pub fn acquire(&mut self, conn: u32, key: usize, wait: Millis) {
        let who = self.who(conn);
        let at = &mut self.keys[key];
        if at.holders.len() < at.limit {
            at.holders.push((who, conn, None));
            return self.say(conn, Word::Granted);
        }
        if wait == Millis::ZERO {
            return self.say(conn, Word::TimedOut);
        }
        if self.key_would_deadlock(key, conn) {
            self.refusals += 1;
            return self.say(conn, Word::Refused("deadlock"));
        }
        let until = self.now.after(wait);
        self.keys[key].queue.push(KeyWait { who, conn, until });
    }

    pub fn release(&mut self, conn: u32, key: usize, holder: usize) {
        self.say(conn, Word::Done);
        self.keys[key].holders.remove(holder);
        self.drain_key(key);
    }

    pub fn attach(&mut self, conn: u32, client: usize, ttl: Millis) {
        let present = self.attached.iter().find(|it| it.0 == conn).map(|it| it.1);
        if present.is_some_and(|it| it != client) {
            return self.say(conn, Word::Refused("client"));
        }
        let is_new = self.clients[client].is_none();
        let it = self.clients[client].get_or_insert(Client {
            ttl,
            conns: Vec::new(),
            ends: None,
        });
        it.ttl = ttl;
        it.ends = None;
        if present.is_none() {
            it.conns.push(conn);
            self.attached.push((conn, client));
        }
        self.say(conn, Word::Attached(is_new));
    }

    pub fn detach(&mut self, conn: u32, client: usize) {
        let Some(it) = &mut self.clients[client] else {
            return self.say(conn, Word::Refused("unknown"));
        };
        for parted in std::mem::take(&mut it.conns) {
            self.attached.retain(|it| it.0 != parted);
            if self.is_parked(parted) {
                self.say(parted, Word::Refused("detached"));
                self.give_up(parted);
            }
        }
        self.release_all(Who::Client(client));
        self.clients[client] = None;
        self.say(conn, Word::Done);
    }

    pub fn leave(&mut self, conn: u32) {
        self.give_up(conn);
        if let Who::Client(client) = self.who(conn)
            && let Some(it) = &mut self.clients[client]
        {
            self.attached.retain(|it| it.0 != conn);
            it.conns.retain(|&it| it != conn);
            if it.conns.is_empty() {
                it.ends = Some(self.now.after(it.ttl));
                if it.ttl == Millis::ZERO {
                    self.release_all(Who::Client(client));
                    self.clients[client] = None;
                }
            }
        }
        self.release_all(Who::Conn(conn));
    }

    pub fn break_ranges(&mut self, conn: u32, resource: usize, bytes: Bytes) {
        let all = self.segments(resource).into_iter().map(|it| it.0);
        let all: Vec<_> = all
            .filter(|it| overlap((it.start, it.last), bytes))
            .collect();
        for it in &all {
            self.clear(it.who, it.name, resource, (it.start, it.last));
        }
        self.say(conn, Word::Number(all.len() as i64));
        self.drain(resource);
    }

    /// All range locks of one who holds end, and then those are served who waited for any of them.
    pub fn break_ranges_of(&mut self, conn: u32, who: Who) {
        let mut ended = 0;
        for resource in 0..RESOURCES {
            let all = self.segments(resource).into_iter().map(|it| it.0);
            let all: Vec<_> = all.filter(|it| it.who == who).collect();
            for it in &all {
                self.clear(it.who, it.name, resource, (it.start, it.last));
            }
            ended += all.len() as i64;
        }
        self.say(conn, Word::Number(ended));
        for resource in 0..RESOURCES {
            self.drain(resource);
        }
    }

    /// Time has passed: what is over ends, in the order in which it was.
    pub fn expire(&mut self) {
        loop {
            let ranges = self.queues.iter().flatten().map(|it| (it.until, it.conn));
            let keys = self.keys.iter().flat_map(|it| &it.queue);
            let keys = keys.map(|it| (it.until, it.conn));
            let due = ranges.chain(keys).filter(|it| it.0 <= self.now).min();
            let Some((_, conn)) = due else {
                break;
            };
            self.say(conn, Word::TimedOut);
            self.give_up(conn);
        }
        for client in 0..CLIENTS {
            let it = self.clients[client].as_ref();
            if it.is_some_and(|it| it.ends.is_some_and(|it| it <= self.now)) {
                self.release_all(Who::Client(client));
                self.clients[client] = None;
            }
        }
    }
}

pub fn segments_of(owner: &Owner, holding: &Holding) -> Vec<(Told, Nanos)> {
    let mut all: Vec<(Told, Nanos)> = Vec::new();
    for (byte, cell) in holding.cells.iter().enumerate() {
        let Some((exclusive, since)) = *cell else {
            continue;
        };
        match all.last_mut() {
            Some((it, _)) if it.last + 1 == byte && it.exclusive == exclusive => it.last = byte,
            _ => all.push((
                Told {
                    start: byte,
                    last: byte,
                    exclusive,
                    who: owner.who,
                    name: owner.name,
                },
                since,
            )),
        }
    }
    all
}

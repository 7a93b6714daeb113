//! Who would wait for itself, found by looking at everybody as often as it takes.
//!
//! Somebody gets on who waits for nothing, or each of whose waits can come to an end because those before it
//! get on. A wait for bytes waits for all who hold them; for those before it in the queue, too, if that is
//! asked for, as the order of the queue gives way.

use std::collections::BTreeSet;

use super::naive::{Model, Who, Wish};

/// Somebody who holds and waits: a connection, a client, or somebody for whom a client locks. A connection
/// that waits for a client cannot let go of what it had before it attached: both are kept by that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Of(Who),
    Named(usize, usize),
}

/// One wait: whose, on which connection, for what, behind how many.
#[derive(Clone, Copy)]
struct Waiting {
    party: Party,
    conn: u32,
    what: What,
    before: usize,
}

#[derive(Clone, Copy)]
enum What {
    Key(usize),
    Range(usize, Wish),
}

type Parties = BTreeSet<Party>;

impl Waiting {
    fn keeps(&self, party: Party) -> bool {
        self.party == party || Party::Of(Who::Conn(self.conn)) == party
    }
}

fn party_of_owner(who: Who, name: usize) -> Party {
    match who {
        Who::Client(client) if name != 0 => Party::Named(client, name),
        who => Party::Of(who),
    }
}

impl Model {
    /// Nobody waits for a connection that has nothing, other than in the order of a queue.
    fn may_be_waited_for(&self, who: Who) -> bool {
        let mut keys = self.keys.iter().flat_map(|it| &it.holders);
        let mut owners = self.owners.iter().filter(|it| it.who == who);
        matches!(who, Who::Client(_))
            || keys.any(|it| it.0 == who)
            || owners.any(|it| !it.holdings.is_empty())
    }

    /// Whether a wait for bytes on a connection, behind so many in the queue, would be for itself.
    pub fn would_deadlock(
        &self,
        resource: usize,
        conn: u32,
        wish: &Wish,
        before: usize,
        counts_queue: bool,
    ) -> bool {
        let asked = Waiting {
            party: party_of_owner(wish.who, wish.name),
            conn,
            what: What::Range(resource, *wish),
            before,
        };
        self.may_be_waited_for(wish.who) && self.is_in_circle(asked, counts_queue)
    }

    pub fn key_would_deadlock(&self, key: usize, conn: u32) -> bool {
        let asked = Waiting {
            party: Party::Of(self.who(conn)),
            conn,
            what: What::Key(key),
            before: self.keys[key].queue.len(),
        };
        self.is_in_circle(asked, false)
    }

    fn is_in_circle(&self, asked: Waiting, counts_queue: bool) -> bool {
        let mut waits = self.waits();
        waits.push(asked);
        let getting_on = self.getting_on(&waits, Some(&asked), counts_queue);
        if self.can_end(&asked, &getting_on, counts_queue) {
            return false;
        }
        let mut reached = Parties::new();
        let mut todo = self.stuck_before(&asked, &getting_on, counts_queue);
        while let Some(next) = todo.pop() {
            if reached.insert(next) {
                for wait in waits.iter().filter(|it| it.keeps(next)) {
                    if !self.can_end(wait, &getting_on, counts_queue) {
                        todo.extend(self.stuck_before(wait, &getting_on, counts_queue));
                    }
                }
            }
        }
        reached.iter().any(|&it| asked.keeps(it))
    }

    /// Everybody who will never get on, unless a time runs out. The order of a queue gives way when those
    /// who hold the bytes have got on, so it does not count.
    pub fn stuck(&self) -> Vec<Party> {
        let waits = self.waits();
        let getting_on = self.getting_on(&waits, None, false);
        let waiting = waits.iter().map(|it| it.party);
        waiting.filter(|it| !getting_on.contains(it)).collect()
    }

    fn waits(&self) -> Vec<Waiting> {
        let mut waits = Vec::new();
        for (resource, queue) in self.queues.iter().enumerate() {
            for (before, it) in queue.iter().enumerate() {
                waits.push(Waiting {
                    party: party_of_owner(it.wish.who, it.wish.name),
                    conn: it.conn,
                    what: What::Range(resource, it.wish),
                    before,
                });
            }
        }
        for (key, at) in self.keys.iter().enumerate() {
            for (before, it) in at.queue.iter().enumerate() {
                waits.push(Waiting {
                    party: Party::Of(it.who),
                    conn: it.conn,
                    what: What::Key(key),
                    before,
                });
            }
        }
        waits
    }

    /// Everybody who waits and gets on, if this one does not; and everybody who does not wait.
    fn getting_on(&self, waits: &[Waiting], but: Option<&Waiting>, counts_queue: bool) -> Parties {
        let holders = self.keys.iter().flat_map(|it| &it.holders);
        let holders = holders.map(|it| Party::Of(it.0));
        let owners = self.owners.iter();
        let owners = owners.map(|it| party_of_owner(it.who, it.name));
        let everybody: Parties = waits
            .iter()
            .map(|it| it.party)
            .chain(holders)
            .chain(owners)
            .collect();
        let mut getting_on = Parties::new();
        loop {
            let can_go = |party: Party| {
                let mut own = waits.iter().filter(|it| it.keeps(party));
                own.all(|it| self.can_end(it, &getting_on, counts_queue))
            };
            let mut rest = everybody.difference(&getting_on).copied();
            match rest.find(|&it| !but.is_some_and(|but| but.keeps(it)) && can_go(it)) {
                Some(party) => getting_on.insert(party),
                None => return getting_on,
            };
        }
    }

    fn can_end(&self, wait: &Waiting, getting_on: &Parties, counts_queue: bool) -> bool {
        match wait.what {
            What::Range(..) => self.stuck_before(wait, getting_on, counts_queue).is_empty(),
            What::Key(key) => {
                let at = &self.keys[key];
                let stuck = |who: Who| !getting_on.contains(&Party::Of(who));
                let holders = at.holders.iter().filter(|it| stuck(it.0)).count();
                let before = at.queue[..wait.before].iter();
                at.limit - holders > before.filter(|it| stuck(it.who)).count()
            }
        }
    }

    /// Those whom a wait that cannot end waits for.
    fn stuck_before(&self, wait: &Waiting, getting_on: &Parties, counts_queue: bool) -> Vec<Party> {
        let mut before = Vec::new();
        match wait.what {
            What::Range(resource, wish) => {
                for it in self.holders_in_the_way(resource, &wish) {
                    before.push(party_of_owner(it.who, it.name));
                }
                // Whoever has some of the bytes does not stand behind others.
                if counts_queue && !self.converts(resource, &wish) {
                    for it in self.waiters_in_the_way(resource, &wish, wait.before) {
                        before.push(party_of_owner(it.wish.who, it.wish.name));
                    }
                }
            }
            What::Key(key) => {
                let at = &self.keys[key];
                before.extend(at.holders.iter().map(|it| Party::Of(it.0)));
                let queue = at.queue[..wait.before].iter();
                before.extend(queue.map(|it| Party::Of(it.who)));
            }
        }
        before.retain(|it| !getting_on.contains(it));
        before
    }
}

//! What the model does when something was asked for or has ended: bytes are granted and cleared, one at a
//! time, and queues are gone through.

use std::collections::BTreeSet;

use super::naive::{
    BYTES, Cell, Holding, InTheWay, KeyWait, Model, Owner, Wait, Who, Wish, Word, segments_of,
};
use super::ops::{Bytes, KEYS, RESOURCES};

impl Model {
    /// The owner has an entry from now on.
    pub fn know(&mut self, who: Who, name: usize) -> &mut Owner {
        if self.owner(who, name).is_none() {
            self.owners.push(Owner {
                who,
                name,
                holdings: Vec::new(),
            });
        }
        let mut owners = self.owners.iter_mut();
        let is_it = |it: &&mut Owner| (it.who, it.name) == (who, name);
        owners.find(is_it).unwrap()
    }

    pub fn forget_owners(&mut self) {
        let waiting: Vec<_> = self.queues.iter().flatten().map(|it| it.wish).collect();
        for owner in &mut self.owners {
            let holdings = &mut owner.holdings;
            holdings.retain(|it| it.cells.iter().any(Option::is_some));
        }
        self.owners.retain(|owner| {
            let mut waiting = waiting.iter();
            !owner.holdings.is_empty()
                || waiting.any(|it| (it.who, it.name) == (owner.who, owner.name))
        });
    }

    /// The owner has these bytes, unless that would be too many locks; says whether others may share now
    /// what was its own.
    pub fn grant(&mut self, resource: usize, wish: &Wish) -> Result<bool, &'static str> {
        let before = self.segments(resource).len();
        let of_client = |model: &Self| {
            let owners = model.owners.iter().filter(|it| it.who == wish.who);
            let holdings = owners.flat_map(|it| it.holdings.iter().map(move |at| (it, at)));
            holdings
                .map(|(owner, at)| segments_of(owner, at).len())
                .sum::<usize>()
        };
        let of_all = |model: &Self| {
            (0..RESOURCES)
                .map(|it| model.segments(it).len())
                .sum::<usize>()
        };
        let saved = self.owners.clone();
        let now = self.now;
        let owner = self.know(wish.who, wish.name);
        if !owner.holdings.iter().any(|it| it.resource == resource) {
            owner.holdings.push(Holding {
                resource,
                cells: [None; BYTES],
            });
        }
        let mut holdings = owner.holdings.iter_mut();
        let cells = &mut holdings.find(|it| it.resource == resource).unwrap().cells;
        let (first, last) = wish.bytes;
        let lets_in = !wish.exclusive && cells[first..=last].iter().flatten().any(|cell| cell.0);
        // It becomes one with those of the same mode that overlap or touch it, and is as old as the oldest.
        let is_same = |cell: Cell| cell.is_some_and(|it| it.0 == wish.exclusive);
        let mut since = now;
        let around = &cells[first.saturating_sub(1)..=(last + 1).min(BYTES - 1)];
        for &cell in around.iter().filter(|&&cell| is_same(cell)) {
            since = since.min(cell.unwrap().1);
        }
        let mut from = first;
        while from > 0 && is_same(cells[from - 1]) {
            from -= 1;
        }
        let mut to = last;
        while to + 1 < BYTES && is_same(cells[to + 1]) {
            to += 1;
        }
        cells[from..=to].fill(Some((wish.exclusive, since)));
        let after = self.segments(resource).len();
        let exceeds = |count: usize, most: u32| most != 0 && count > most as usize;
        let mut why = None;
        if after > before {
            if exceeds(after, self.limits.of_resource) {
                why = Some("resource");
            } else if exceeds(of_client(self), self.limits.of_client) {
                why = Some("of client");
            } else if exceeds(of_all(self), self.limits.of_all) {
                why = Some("all");
            }
        }
        match why {
            None => Ok(lets_in),
            Some(why) => {
                self.owners = saved;
                Err(why)
            }
        }
    }

    pub fn clear(&mut self, who: Who, name: usize, resource: usize, bytes: Bytes) -> bool {
        let mut owners = self.owners.iter_mut();
        let owner = owners.find(|it| (it.who, it.name) == (who, name));
        let mut holdings = owner.into_iter().flat_map(|it| &mut it.holdings);
        let mut had = false;
        if let Some(it) = holdings.find(|it| it.resource == resource) {
            let cells = &mut it.cells[bytes.0..=bytes.1];
            had = cells.iter().any(Option::is_some);
            cells.fill(None);
        }
        self.forget_owners();
        had
    }

    /// Goes through the queue in order: whoever nobody is in the way of has what it wants.
    pub fn drain(&mut self, resource: usize) {
        let mut place = 0;
        while place < self.queues[resource].len() {
            let Wait { wish, conn, .. } = self.queues[resource][place];
            let may_pass = match self.in_the_way(resource, &wish, place) {
                InTheWay::Nothing => true,
                InTheWay::Holder => false,
                // It may be let pass now or a little later.
                InTheWay::Queue => {
                    let next = self.next_to_pass(&self.may_pass());
                    next.is_some_and(|it| it.2 == conn)
                }
            };
            place = match may_pass {
                true => match self.grant_waiter(resource, place) {
                    true => 0,
                    false => place,
                },
                false => place + 1,
            };
        }
    }

    /// Says whether all are to be looked at again.
    fn grant_waiter(&mut self, resource: usize, place: usize) -> bool {
        let Wait { wish, conn, .. } = self.queues[resource][place];
        let granted = self.grant(resource, &wish);
        self.queues[resource].remove(place);
        self.hints.retain(|&it| it != conn);
        match granted {
            Ok(lets_in) => {
                self.say(conn, Word::Done);
                self.suspect(resource, &wish);
                lets_in
            }
            Err(why) => {
                self.forget_owners();
                self.say(conn, Word::Refused(why));
                true
            }
        }
    }

    pub fn drain_key(&mut self, key: usize) {
        let at = &mut self.keys[key];
        while at.holders.len() < at.limit && !at.queue.is_empty() {
            let KeyWait { who, conn, .. } = at.queue.remove(0);
            at.holders.push((who, conn, None));
            self.said.push((conn, Word::Granted));
        }
    }

    /// Whatever the connection waits for it does not want any more.
    pub fn give_up(&mut self, conn: u32) {
        for resource in 0..RESOURCES {
            let queue = &mut self.queues[resource];
            if let Some(place) = queue.iter().position(|it| it.conn == conn) {
                queue.remove(place);
                self.forget_owners();
                self.drain(resource);
            }
        }
        for key in 0..KEYS {
            self.keys[key].queue.retain(|it| it.conn != conn);
            self.drain_key(key);
        }
    }

    pub fn release_all(&mut self, who: Who) {
        for key in 0..KEYS {
            self.keys[key].holders.retain(|it| it.0 != who);
            self.drain_key(key);
        }
        while let Some(owner) = self.owners.iter().find(|it| it.who == who) {
            let (name, resource) = (owner.name, owner.holdings[0].resource);
            self.clear(who, name, resource, (0, BYTES - 1));
            self.drain(resource);
        }
    }

    /// Somebody holds these bytes from now on. If its client waits elsewhere, those whom it keeps waiting
    /// may be in a circle.
    pub fn suspect(&mut self, resource: usize, granted: &Wish) {
        if matches!(granted.who, Who::Client(_)) && granted.name == 0 {
            let kept = self.queues[resource].iter();
            let kept = kept.filter(|it| it.wish.excludes(granted));
            self.suspects.extend(kept.map(|it| (resource, it.conn)));
        }
    }

    /// Does what may be done at any time, as the engine did it: lets those pass whom only the order of a
    /// queue keeps in a circle, and refuses those who were put into one. With `must`, until nobody is left.
    pub fn follow(&mut self, refused: &mut BTreeSet<u32>, must: bool) -> Result<(), String> {
        loop {
            let may_pass = self.may_pass();
            if let Some((resource, place, _)) = self.next_to_pass(&may_pass) {
                self.grant_waiter(resource, place);
                self.drain(resource);
                continue;
            }
            let suspects = self.suspects.iter().filter_map(|&(resource, conn)| {
                let place = self.queues[resource]
                    .iter()
                    .position(|it| it.conn == conn)?;
                let wish = self.queues[resource][place].wish;
                let is_kept = self.in_the_way(resource, &wish, place) == InTheWay::Holder;
                let is_in_circle =
                    is_kept && self.would_deadlock(resource, conn, &wish, place, false);
                is_in_circle.then_some((resource, place, conn))
            });
            let suspects: Vec<_> = suspects.collect();
            if let Some(&(resource, place, conn)) =
                suspects.iter().find(|it| refused.contains(&it.2))
            {
                refused.remove(&conn);
                self.queues[resource].remove(place);
                self.refusals += 1;
                self.say(conn, Word::Refused("deadlock"));
                self.forget_owners();
                self.drain(resource);
                continue;
            }
            return match must && !(may_pass.is_empty() && suspects.is_empty()) {
                true => Err(format!("not let pass {may_pass:?}, not told {suspects:?}")),
                false => Ok(()),
            };
        }
    }

    /// Those whom only the order of a queue keeps in a circle: resource, place and connection.
    fn may_pass(&self) -> Vec<(usize, usize, u32)> {
        let mut may_pass = Vec::new();
        for (resource, queue) in self.queues.iter().enumerate() {
            for (place, it) in queue.iter().enumerate() {
                if self.in_the_way(resource, &it.wish, place) == InTheWay::Queue
                    && self.would_deadlock(resource, it.conn, &it.wish, place, true)
                {
                    may_pass.push((resource, place, it.conn));
                }
            }
        }
        may_pass
    }

    /// The one of these that the engine has let pass first: the others may not be in a circle after that.
    fn next_to_pass(&self, may_pass: &[(usize, usize, u32)]) -> Option<(usize, usize, u32)> {
        let of = |conn| may_pass.iter().find(|it| it.2 == conn);
        self.hints.iter().find_map(|&conn| of(conn)).copied()
    }

    pub fn forget_suspects(&mut self) {
        self.suspects.clear();
    }
}

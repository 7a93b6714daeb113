//! Who would wait for itself, found by looking at everybody as often as it takes.
//!
//! Written from the documentation: somebody gets on who waits for nothing, or whose wait can come to an
//! end because those before it get on. What is over at this very instant counts as ended.

use std::collections::BTreeSet;

use latchd::engine::Kind;

use super::{Key, Model, Waiter};

/// A wait: who, at which key, as what, behind how many.
#[derive(Clone, Copy)]
struct Wait {
    client: u32,
    at: usize,
    hold: &'static str,
    before: usize,
}

type Clients = BTreeSet<u32>;

impl Model {
    /// Whether this client, who is about to wait for a key behind so many others, would wait for itself,
    /// and is to be told.
    pub(super) fn would_deadlock(
        &mut self,
        client: u32,
        at: usize,
        hold: &'static str,
        before: usize,
    ) -> bool {
        let asked = self
            .clients
            .iter()
            .any(|it| it.serial == client && it.detects);
        if !asked && !self.rules.deadlock_detection {
            return false;
        }
        let asked = Wait {
            client,
            at,
            hold,
            before,
        };
        let mut waits = self.waits();
        waits.push(asked);
        let getting_on = self.getting_on(&waits, Some(client));
        if self.can_end(&asked, &getting_on) {
            return false;
        }
        let mut reached = Clients::new();
        let mut todo = self.stuck_before(&asked, &getting_on);
        while let Some(next) = todo.pop() {
            if reached.insert(next) {
                for wait in waits.iter().filter(|it| it.client == next) {
                    if !self.can_end(wait, &getting_on) {
                        todo.extend(self.stuck_before(wait, &getting_on));
                    }
                }
            }
        }
        let found = reached.contains(&client);
        self.deadlocks += u64::from(found);
        found
    }

    /// Everybody who will never get on, unless a time runs out.
    pub fn stuck(&self) -> Vec<u32> {
        let waits = self.waits();
        let getting_on = self.getting_on(&waits, None);
        let waiting = waits.iter().map(|it| it.client);
        waiting.filter(|it| !getting_on.contains(it)).collect()
    }

    /// Everybody who waits by now, and whose time is not over.
    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        for (at, key) in self.keys.iter().enumerate() {
            for (before, it) in key.waiters.iter().enumerate() {
                if it.until.is_some_and(|until| until > self.now) {
                    let (client, hold) = (it.client, it.hold);
                    waits.push(Wait {
                        client,
                        at,
                        hold,
                        before,
                    });
                }
            }
        }
        waits
    }

    /// Everybody who gets on, if this one does not.
    fn getting_on(&self, waits: &[Wait], but: Option<u32>) -> Clients {
        let everybody: Clients = self.clients.iter().map(|it| it.serial).collect();
        let mut getting_on = Clients::new();
        loop {
            let can_go = |client: u32| {
                let mut own = waits.iter().filter(|it| it.client == client);
                own.all(|it| self.can_end(it, &getting_on))
            };
            let mut rest = everybody.difference(&getting_on).copied();
            match rest.find(|&it| Some(it) != but && can_go(it)) {
                Some(client) => getting_on.insert(client),
                None => return getting_on,
            };
        }
    }

    fn can_end(&self, wait: &Wait, getting_on: &Clients) -> bool {
        let key = &self.keys[wait.at];
        let before = &key.waiters[..wait.before];
        let stuck = |it: &&Waiter| !getting_on.contains(&it.client);
        let stuck_holders = self.stuck_holders(key, getting_on).len();
        match (key.kind, wait.hold) {
            (Kind::Slots { limit }, _) => {
                limit as usize - stuck_holders > before.iter().filter(stuck).count()
            }
            (Kind::ReadWrite, "write") => stuck_holders == 0 && !before.iter().any(|it| stuck(&it)),
            (Kind::ReadWrite, _) => {
                let up_to_writer = &before[..writers_end(before)];
                let comes_in =
                    up_to_writer.is_empty() && key.holders.iter().all(|it| it.hold == "read");
                comes_in || stuck_holders == 0 && !up_to_writer.iter().any(|it| stuck(&it))
            }
        }
    }

    fn stuck_holders(&self, key: &Key, getting_on: &Clients) -> Vec<u32> {
        let lasting = key.holders.iter().filter(|it| it.deadline > self.now);
        let clients = lasting.map(|it| it.client);
        clients.filter(|it| !getting_on.contains(it)).collect()
    }

    /// Those whom a wait that cannot end waits for.
    fn stuck_before(&self, wait: &Wait, getting_on: &Clients) -> Vec<u32> {
        let key = &self.keys[wait.at];
        let before = &key.waiters[..wait.before];
        let before = match wait.hold {
            "read" => &before[..writers_end(before)],
            _ => before,
        };
        let mut stuck = self.stuck_holders(key, getting_on);
        let clients = before.iter().map(|it| it.client);
        stuck.extend(clients.filter(|it| !getting_on.contains(it)));
        stuck
    }
}

/// How many there are up to the last writer.
fn writers_end(waiters: &[Waiter]) -> usize {
    waiters
        .iter()
        .rposition(|it| it.hold == "write")
        .map_or(0, |at| at + 1)
}

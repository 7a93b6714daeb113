//! A lock as anyone would write it: who holds, who waits in the queue, who observes.
//!
//! Knows one key and says what each client hears of it; `elections.rs` asks and compares.

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos, Token};
use latchd::engine::types::{Change, Refusal, Reply};

use crate::primitives::CLIENTS;

/// What a client hears of one key. Tokens are the engine's to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Granted,
    Renewed,
    Answer(Reply),
    Leader(Change),
}

pub(super) struct Holder {
    /// The connection that is told of the grant.
    pub(super) who: usize,
    client: usize,
    lead: bool,
    /// Known once it was told.
    pub(super) token: Option<Token>,
    pub(super) deadline: Nanos,
}

pub(super) struct Waiter {
    pub(super) who: usize,
    pub(super) lead: bool,
    pub(super) lease: Millis,
    pub(super) deadline: Nanos,
}

#[derive(Default)]
pub(super) struct Lock {
    pub(super) limit: usize,
    pub(super) holders: Vec<Holder>,
    pub(super) queue: Vec<Waiter>,
    pub(super) observers: Vec<usize>,
    pub(super) lapsed: Vec<Token>,
}

/// What the model expects of one call.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) news: BTreeMap<(usize, &'static str), Vec<News>>,
    pub(super) overruns: [usize; CLIENTS],
}

pub(super) struct Turn<'m> {
    pub(super) now: Nanos,
    pub(super) key: &'static str,
    pub(super) clients: &'m [Option<usize>; CLIENTS],
    pub(super) overrun: &'m [bool; CLIENTS],
    pub(super) expected: &'m mut Expected,
}

impl Turn<'_> {
    pub(super) fn tell(&mut self, who: usize, news: News) {
        match news {
            News::Leader(_) if self.overrun[who] => self.expected.overruns[who] += 1,
            _ => self
                .expected
                .news
                .entry((who, self.key))
                .or_default()
                .push(news),
        }
    }
}

impl Lock {
    fn tell_observers(&self, turn: &mut Turn<'_>, change: Change, but: Option<usize>) {
        for &who in self.observers.iter().filter(|&&who| Some(who) != but) {
            turn.tell(who, News::Leader(change));
        }
    }

    fn grant(&mut self, turn: &mut Turn<'_>, who: usize, lead: bool, lease: Millis) {
        let (token, deadline) = (None, turn.now.after(lease));
        self.holders.push(Holder {
            who,
            client: turn.clients[who].unwrap(),
            lead,
            token,
            deadline,
        });
        turn.tell(who, News::Granted);
        if lead {
            self.tell_observers(turn, Change::Elected, Some(who));
        }
    }

    pub(super) fn acquire(
        &mut self,
        turn: &mut Turn<'_>,
        who: usize,
        lead: bool,
        wait: Millis,
        lease: Millis,
    ) {
        self.evict(turn, turn.now);
        if self.queue.is_empty() && self.holders.len() < self.limit {
            self.grant(turn, who, lead, lease);
        } else if wait == Millis::ZERO {
            turn.tell(who, News::Answer(Reply::TimedOut));
        } else {
            let deadline = turn.now.after(wait);
            self.queue.push(Waiter {
                who,
                lead,
                lease,
                deadline,
            });
        }
    }

    /// Serves the queue, as of `moment`: a wait that was over before that times out, unless a lease
    /// was over even earlier. That lease has to end first, and may make room for the waiter.
    fn grant_waiting(&mut self, turn: &mut Turn<'_>, moment: Nanos) {
        while let Some(head) = self.queue.first() {
            if head.deadline < moment {
                if self.holders.iter().any(|it| it.deadline <= head.deadline) {
                    return;
                }
                turn.tell(head.who, News::Answer(Reply::TimedOut));
                self.queue.remove(0);
            } else if self.holders.len() < self.limit {
                let head = self.queue.remove(0);
                if self.limit == 1 {
                    self.tell_observers(turn, Change::Failover, None);
                }
                self.grant(turn, head.who, head.lead, head.lease);
            } else {
                return;
            }
        }
    }

    /// Ends the leases that are over, each at its own instant, and serves the queue.
    fn evict(&mut self, turn: &mut Turn<'_>, moment: Nanos) {
        loop {
            let deadlines = self.holders.iter().map(|it| it.deadline).enumerate();
            let first = deadlines.min_by_key(|it| it.1);
            let Some((at, deadline)) = first.filter(|it| it.1 <= moment) else {
                break;
            };
            self.lapsed.extend(self.holders.remove(at).token);
            self.grant_waiting(turn, deadline);
        }
        self.grant_waiting(turn, moment);
    }

    pub(super) fn let_go(&mut self, turn: &mut Turn<'_>, who: usize, token: Token, resign: bool) {
        let Some(at) = self.holders.iter().position(|it| it.token == Some(token)) else {
            return turn.tell(who, News::Answer(Reply::Refused(Refusal::NotHolder)));
        };
        let gone = self.holders.remove(at);
        turn.tell(who, News::Answer(Reply::Done));
        if resign {
            // A leader that another client makes resign hears of it, observing or not.
            let told = |it: &usize| turn.clients[*it] == Some(gone.client);
            let told: Vec<usize> = (0..CLIENTS).filter(told).collect();
            let is_unaware = |it: &&usize| !self.observers.contains(it);
            if gone.lead && !told.contains(&who) {
                for &leader in told.iter().filter(is_unaware) {
                    turn.tell(leader, News::Leader(Change::Resigned));
                }
            }
            self.tell_observers(turn, Change::Resigned, None);
        }
        self.grant_waiting(turn, gone.deadline.min(turn.now));
    }

    pub(super) fn renew(&mut self, turn: &mut Turn<'_>, who: usize, token: Token, lease: Millis) {
        let at = self.holders.iter().position(|it| it.token == Some(token));
        match at {
            Some(at) if self.holders[at].deadline > turn.now => {
                self.holders[at].deadline = turn.now.after(lease);
                turn.tell(who, News::Renewed);
            }
            Some(_) => {
                turn.tell(who, News::Answer(Reply::Refused(Refusal::LeaseExpired)));
                self.evict(turn, turn.now);
            }
            None => {
                let lapsed = self.lapsed.contains(&token);
                let why = if lapsed {
                    Refusal::LeaseExpired
                } else {
                    Refusal::NotHolder
                };
                turn.tell(who, News::Answer(Reply::Refused(why)));
            }
        }
    }

    pub(super) fn observe(&mut self, turn: &mut Turn<'_>, who: usize) {
        self.evict(turn, turn.now);
        turn.tell(who, News::Answer(Reply::Done));
        if !self.observers.contains(&who) {
            self.observers.push(who);
            if !self.holders.is_empty() {
                turn.tell(who, News::Leader(Change::Elected));
            }
        }
    }

    /// Works off what is due in the order in which it was; a lease ends before a wait does.
    pub(super) fn expire(&mut self, turn: &mut Turn<'_>) {
        loop {
            let lease = self.holders.iter().map(|it| it.deadline).min();
            let wait = self.queue.iter().map(|it| it.deadline).min();
            let Some(moment) = lease
                .into_iter()
                .chain(wait)
                .min()
                .filter(|&it| it <= turn.now)
            else {
                return;
            };
            self.evict(turn, moment);
            while let Some(at) = self.queue.iter().position(|it| it.deadline <= moment) {
                turn.tell(self.queue.remove(at).who, News::Answer(Reply::TimedOut));
                self.grant_waiting(turn, moment);
            }
        }
    }

    pub(super) fn leave(&mut self, turn: &mut Turn<'_>, who: usize) {
        self.observers.retain(|&it| it != who);
        let waited = self.queue.iter().position(|it| it.who == who);
        if let Some(at) = waited {
            self.queue.remove(at);
            self.grant_waiting(turn, turn.now);
        }
        // Other connections of its client keep what it was granted.
        let client = turn.clients[who];
        if turn.clients.iter().filter(|it| **it == client).count() > 1 {
            return;
        }
        let own = |it: &Holder| Some(it.client) == client;
        while let Some(at) = self.holders.iter().position(own) {
            self.holders.remove(at);
            self.grant_waiting(turn, turn.now);
        }
    }
}

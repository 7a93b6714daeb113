//! What must hold, checked on every answer: one holder, growing fences, first come first served,
//! nothing lost, nothing delivered twice.
//!
//! Knows only what a client can know. It takes a lock for held from the moment the grant was read
//! until the end of the turn in which its release was written, see [`Ledger::sent`], so whatever it
//! calls wrong is certainly wrong.

use std::collections::VecDeque;

/// Most complaints kept as text; the rest are counted.
const KEPT_MAX: usize = 8;

/// How something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By one at a time.
    Alone,
    /// By this many at a time.
    Among(u32),
    /// By any number of readers.
    Reading,
}

/// The wrong answers: how many, and the first of them in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wrong {
    pub(crate) count: u64,
    pub(crate) first: Vec<String>,
}

impl Wrong {
    #[cold]
    pub(crate) fn add(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < KEPT_MAX {
            self.first.push(what);
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        let room = KEPT_MAX.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }
}

/// One key as the clients see it.
#[derive(Clone, Default)]
struct KeyState {
    alone: u32,
    among: u32,
    reading: u32,
    /// The highest fence of all grants, and of those that were exclusive.
    fence: u64,
    fence_alone: u64,
    /// Requests without an answer, in the order in which they were written.
    queue: VecDeque<u64>,
    counted: u64,
    counted_sum: u128,
    counted_top: u64,
}

/// When a request was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// Its number among all requests of this run.
    pub(crate) seq: u64,
    /// The highest number of a request already answered at that moment.
    pub(crate) after: u64,
}

/// All keys of one run.
pub(crate) struct Ledger {
    keys: Vec<KeyState>,
    /// The server is latchd: fences grow, and the order of a queue can be proven, see
    /// [`Ledger::check_order`].
    in_turns: bool,
    /// Several clients want the same key, each for itself alone.
    queues: bool,
    /// The holds whose releases were written in this turn.
    leaving: Vec<(u32, Hold)>,
    /// Per connection: signals sent to it and heard by it.
    sent: Vec<u64>,
    heard: Vec<u64>,
    pub(crate) wrong: Wrong,
    /// Grants to a request that was written after another one that still waits, within one turn of
    /// the server: that is allowed.
    pub(crate) overtaken: u64,
}

impl Ledger {
    pub(crate) fn new(keys: usize, in_turns: bool, queues: bool) -> Self {
        Self {
            sent: vec![0; keys],
            heard: vec![0; keys],
            keys: vec![KeyState::default(); keys],
            in_turns,
            queues,
            leaving: Vec::new(),
            wrong: Wrong::default(),
            overtaken: 0,
        }
    }

    /// A request for this key is being written.
    pub(crate) fn asked(&mut self, key: u32, written: Written) {
        if self.queues {
            self.keys[key as usize].queue.push_back(written.seq);
        }
    }

    /// A grant was read.
    pub(crate) fn granted(&mut self, key: u32, hold: Hold, fence: u64, written: Written) {
        if self.queues {
            self.check_order(key, written);
        }
        let seen = &mut self.keys[key as usize];
        let clash = match hold {
            Hold::Alone => seen.alone + seen.among + seen.reading > 0,
            Hold::Among(slots) => seen.among >= slots,
            Hold::Reading => seen.alone > 0,
        };
        if clash {
            let held = seen.alone + seen.among + seen.reading;
            self.wrong.add(format!(
                "key {key} was granted ({hold:?}, fence {fence}) while {held} held it: \
                 mutual exclusion is broken"
            ));
        }
        if self.in_turns {
            // Only exclusive grants are ordered against all others; the grants of two readers may
            // arrive here in any order.
            let below = match hold {
                Hold::Alone => seen.fence,
                Hold::Among(_) => 0,
                Hold::Reading => seen.fence_alone,
            };
            if fence <= below {
                self.wrong.add(format!(
                    "key {key} was granted with fence {fence}, not above the {below} before it"
                ));
            }
            seen.fence = seen.fence.max(fence);
            if hold == Hold::Alone {
                seen.fence_alone = seen.fence;
            }
        }
        match hold {
            Hold::Alone => seen.alone += 1,
            Hold::Among(_) => seen.among += 1,
            Hold::Reading => seen.reading += 1,
        }
    }

    /// First come, first served. It is known which request was written first. Which one arrived
    /// first is known only if the server had already answered something written after the first
    /// when the second was written: its one thread had then read everything in its sockets. Within
    /// one turn any order is right.
    fn check_order(&mut self, key: u32, written: Written) {
        let queue = &mut self.keys[key as usize].queue;
        let first = queue.front().copied().unwrap_or(written.seq);
        if let Some(at) = queue.iter().position(|&seq| seq == written.seq) {
            queue.remove(at);
        }
        if first >= written.seq {
            return;
        }
        if self.in_turns && first < written.after {
            self.wrong.add(format!(
                "key {key} was granted to request {} before request {first}, which the server \
                 had read when {} was written: not first come, first served",
                written.seq, written.seq
            ));
        } else {
            self.overtaken += 1;
        }
    }

    /// A release is being written; the lock counts as held until [`Ledger::sent`].
    pub(crate) fn letting_go(&mut self, key: u32, hold: Hold) {
        self.leaving.push((key, hold));
    }

    /// Everything written so far has been sent, and only now does the client wait for answers.
    ///
    /// All that one wait reports had arrived before anything was sent in reply to it, and a worker
    /// on a shared key has one request under way: its answer, or the beginning of it, was there
    /// before any release of this turn was sent. So all grants read in one turn were valid at the
    /// same moment, together with those that the turn releases.
    pub(crate) fn sent(&mut self) {
        for (key, hold) in self.leaving.drain(..) {
            let seen = &mut self.keys[key as usize];
            let held = match hold {
                Hold::Alone => &mut seen.alone,
                Hold::Among(_) => &mut seen.among,
                Hold::Reading => &mut seen.reading,
            };
            *held = held.saturating_sub(1);
        }
    }

    /// A counter that began at 0 was raised by one and is now `value`.
    pub(crate) fn counted(&mut self, key: u32, value: u64) {
        let seen = &mut self.keys[key as usize];
        seen.counted += 1;
        seen.counted_sum += u128::from(value);
        seen.counted_top = seen.counted_top.max(value);
    }

    /// The number of the signal about to be sent to this connection: one more than the last.
    pub(crate) fn telling(&mut self, conn: usize) -> u64 {
        self.sent[conn] += 1;
        self.sent[conn]
    }

    /// A connection heard a signal: from one sender they come in order, each once.
    pub(crate) fn heard(&mut self, conn: usize, number: Option<u64>) {
        self.heard[conn] += 1;
        let expected = self.heard[conn];
        if number != Some(expected) {
            self.wrong.add(format!(
                "connection {conn} expected signal {expected} and heard {number:?}"
            ));
        }
    }

    /// Signals sent and not yet heard.
    pub(crate) fn unheard(&self) -> u64 {
        let sent: u64 = self.sent.iter().sum();
        sent.saturating_sub(self.heard.iter().sum())
    }

    /// All requests are answered: `n` increments must have returned each number from 1 to `n` once.
    pub(crate) fn close(&mut self) {
        for (key, seen) in self.keys.iter().enumerate() {
            let n = u128::from(seen.counted);
            if u128::from(seen.counted_top) != n || seen.counted_sum != n * (n + 1) / 2 {
                self.wrong.add(format!(
                    "counter {key} was raised {n} times and stands at {}, or told a number twice",
                    seen.counted_top
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64, after: u64) -> Written {
        Written { seq, after }
    }

    #[test]
    fn two_holders_are_noticed_and_readers_are_not() {
        let mut ledger = Ledger::new(1, true, false);
        ledger.granted(0, Hold::Reading, 1, at(1, 0));
        ledger.granted(0, Hold::Reading, 2, at(2, 0));
        assert_eq!(ledger.wrong.count, 0);
        ledger.granted(0, Hold::Alone, 3, at(3, 0));
        assert!(ledger.wrong.first[0].contains("mutual exclusion"));
    }

    #[test]
    fn what_is_let_go_is_held_until_the_turn_is_over() {
        let two = Hold::Among(2);
        let mut ledger = Ledger::new(1, true, false);
        for fence in 1..=2 {
            ledger.granted(0, two, fence, at(fence, 0));
            ledger.letting_go(0, two);
        }
        ledger.sent();
        ledger.granted(0, two, 3, at(3, 0));
        ledger.letting_go(0, two);
        ledger.granted(0, two, 4, at(4, 0));
        assert_eq!(ledger.wrong.count, 0);
        ledger.letting_go(0, two);
        ledger.granted(0, two, 5, at(5, 0));
        assert!(ledger.wrong.first[0].contains("while 2 held it"));
    }

    #[test]
    fn a_fence_that_does_not_grow_is_noticed() {
        let mut ledger = Ledger::new(1, true, false);
        ledger.granted(0, Hold::Alone, 5, at(1, 0));
        ledger.letting_go(0, Hold::Alone);
        ledger.sent();
        ledger.granted(0, Hold::Alone, 5, at(2, 0));
        assert!(ledger.wrong.first[0].contains("not above"));
    }

    #[test]
    fn overtaking_is_wrong_only_where_the_order_is_certain() {
        let mut ledger = Ledger::new(1, true, true);
        for seq in [1, 2, 3] {
            ledger.asked(0, at(seq, 0));
        }
        ledger.granted(0, Hold::Alone, 1, at(2, 0));
        assert_eq!((ledger.overtaken, ledger.wrong.count), (1, 0));
        ledger.letting_go(0, Hold::Alone);
        ledger.sent();
        // Request 3 was written when 2 had been answered, so 1 had been read.
        ledger.granted(0, Hold::Alone, 2, at(3, 2));
        assert_eq!(ledger.wrong.count, 1);
    }

    #[test]
    fn a_signal_told_twice_is_noticed() {
        let mut ledger = Ledger::new(1, true, false);
        let first = ledger.telling(0);
        ledger.telling(0);
        ledger.heard(0, Some(first));
        assert_eq!((ledger.unheard(), ledger.wrong.count), (1, 0));
        ledger.heard(0, Some(first));
        assert_eq!((ledger.unheard(), ledger.wrong.count), (0, 1));
    }

    #[test]
    fn a_lost_count_is_noticed() {
        let mut ledger = Ledger::new(2, true, false);
        ledger.counted(0, 1);
        ledger.counted(0, 2);
        ledger.counted(1, 1);
        ledger.counted(1, 1);
        ledger.close();
        assert_eq!(ledger.wrong.count, 1);
    }
}

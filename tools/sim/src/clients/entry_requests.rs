//! Requests about counters, values, lists, barriers, signals, watches and leaders, as frames.
//!
//! Every value that a client stores, pushes or signals is unique in its run: it carries the number
//! of its request. `lock_requests` has the frames for everything else.

use super::lock_requests::{RequestWriter, WrittenRequest, written};
use super::request::{EntryKind, EntryRequest, RequestKind};
use super::subscription::{Subscription, Topic};
use crate::plan::pick;
use latchd::base::Millis;
use latchd::wire::verbs::VALUE_BYTES_MAX;

/// The channels of signals, and the patterns and groups that clients listen with.
const CHANNELS: [&str; 5] = ["ev.a", "ev.b", "ev.a.c", "x", "ev..c"];
const PATTERNS: [&str; 11] = [
    "ev.a", "ev.b", "ev.*", "ev.>", ">", "*", "*.a", "ev.*.c", "x", "fo*", "ev.>.c",
];
const GROUPS: [&str; 4] = ["", "", "g", "h"];

/// In how many of those groups a client may hear loud signals: two each with `*` and with `>`.
pub(crate) const OTHER_GROUPS_MAX: usize = 4;

/// Longest value where memory is bounded: two of them, which an exchange has, fit into a request
/// that the server receives in any case.
const TIGHT_VALUE_BYTES_MAX: usize = 1_900;

/// Longest value of a list there, for the same reason.
const TIGHT_PUSH_BYTES_MAX: usize = 3_900;

/// The channel of loud signals.
const LOUD_CHANNEL: &str = "loud";

impl RequestWriter<'_> {
    pub(crate) fn counter(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.entry_count(EntryKind::Counter));
        let is_wild = key == self.plan.wild_counter();
        match self.rng.u8(..8) {
            0 | 1 => self.entry(EntryRequest::Count { key }, ""),
            2 if is_wild => {
                let value = *pick(self.rng, &[0, 0, 7, i64::MAX, i64::MIN]);
                self.entry(EntryRequest::SetCount { key }, &value.to_string())
            }
            n => {
                // The first counter only grows.
                let down = key != 0 && n == 3;
                let mut delta = self.rng.i64(if key == 0 { 1..6 } else { -9..10 });
                if is_wild && n == 4 {
                    delta = *pick(self.rng, &[i64::MAX, i64::MIN + 1]);
                }
                let number = if down { -delta } else { delta };
                self.entry(EntryRequest::Add { key, delta, down }, &number.to_string())
            }
        }
    }

    pub(crate) fn value(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.entry_count(EntryKind::Value));
        let value = self.fresh_value('w');
        let longest_ms = self.plan.leases_ms.iter().max().copied().unwrap_or(1);
        // A clock that is set would end or revive what ends by it.
        let is_clock_set = self.plan.disk.is_some_and(|it| it.clock_set_pct > 0);
        let ttl = match self.rng.bool() && !is_clock_set {
            true => Millis(self.rng.u64(1..=longest_ms)),
            false => Millis::ZERO,
        };
        match self.rng.u8(..10) {
            0..2 => {
                let argument = match ttl {
                    Millis::ZERO if self.rng.bool() => value.clone(),
                    ttl => format!("{value}\t{}", self.span(ttl)),
                };
                self.entry(EntryRequest::Put { key, value, ttl }, &argument)
            }
            2..5 => self.entry(EntryRequest::Fetch { key }, "ignored"),
            5 => self.entry(EntryRequest::Delete { key }, ""),
            _ => {
                let back = *pick(self.rng, &[0, 0, 0, 1, 2]);
                let old = self.known_entries.values[key]
                    .recent(back)
                    .unwrap_or_default();
                let old = old.to_owned();
                let argument = format!("{old}\t{value}\t{}", self.span(ttl));
                let new = value;
                self.entry(EntryRequest::Swap { key, old, new, ttl }, &argument)
            }
        }
    }

    pub(crate) fn push(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.entry_count(EntryKind::List));
        // The first list is first in, first out.
        let left = key != 0 && self.rng.bool();
        let value = self.fresh_value('x');
        let argument = value.clone();
        self.entry(EntryRequest::Push { key, value, left }, &argument)
    }

    pub(crate) fn pop(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.entry_count(EntryKind::List));
        let left = key == 0 || self.rng.bool();
        match self.rng.u8(..8) {
            0 => self.entry(EntryRequest::Length { key }, ""),
            1 => {
                let range = *pick(self.rng, &["0 -1", "0 0", "-3 -1", "1 2", "5 1", "-99 99"]);
                self.entry(EntryRequest::Range { key }, range)
            }
            2..4 => self.entry(EntryRequest::Pop { key, left }, ""),
            _ => {
                let wait = Millis(*pick(self.rng, &self.plan.waits_ms));
                let argument = self.span(wait);
                self.entry(EntryRequest::AwaitPop { key, left, wait }, &argument)
            }
        }
    }

    pub(crate) fn barrier(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.entry_count(EntryKind::Barrier));
        let mut count = self.plan.barriers[key];
        if self.rng.u8(..100) < self.plan.mismatch_pct {
            count = self.rng.u32(1..=3);
        }
        let wait = Millis(*pick(self.rng, &self.plan.waits_ms));
        let argument = format!("{count} {}", self.span(wait));
        self.entry(EntryRequest::Meet { key, count, wait }, &argument)
    }

    // ---- subscriptions and signals ----

    pub(crate) fn subscribe(&mut self) -> WrittenRequest {
        let (topic, group) = match self.rng.u8(..3) {
            0 => (Topic::Listen, *pick(self.rng, &GROUPS)),
            1 => (Topic::Watch, ""),
            _ => (Topic::Observe, ""),
        };
        let mut pattern = self.pattern(topic);
        if self.plan.crowd.is_some() && pattern == b">" {
            pattern = b"ev.>".to_vec(); // what a crowd does is told to nobody else
        }
        self.subscription(topic, &pattern, group)
    }

    pub(crate) fn unsubscribe(&mut self) -> WrittenRequest {
        let taken: Vec<&Subscription> = self.conn.subscriptions.keys().collect();
        let subscription = if taken.is_empty() || self.rng.u8(..8) == 0 {
            Subscription {
                topic: *pick(self.rng, &[Topic::Listen, Topic::Watch, Topic::Observe]),
                pattern: b"ev.*".to_vec(),
                group: Vec::new(),
            }
        } else {
            (*pick(self.rng, &taken)).clone()
        };
        let verb = match subscription.topic {
            Topic::Listen => "unlisten",
            Topic::Watch => "unwatch",
            Topic::Observe => "unobserve",
        };
        let (pattern, group) = (subscription.pattern.clone(), subscription.group.clone());
        written(
            RequestKind::Unsubscribe(subscription),
            verb,
            &pattern,
            &group,
        )
    }

    pub(crate) fn signal(&mut self) -> WrittenRequest {
        let channel = *pick(self.rng, &CHANNELS);
        let payload = match self.rng.u8(..8) {
            0 => format!("{}  with blanks\tand more ", self.fresh_value('s')),
            _ => self.fresh_value('s'),
        };
        signal(channel, payload)
    }

    /// A signal as long as one line can be.
    pub(crate) fn signal_loud(&mut self) -> WrittenRequest {
        let mut payload = self.fresh_value('s');
        let length = VALUE_BYTES_MAX - LOUD_CHANNEL.len() - 8;
        payload.extend(std::iter::repeat_n('!', length - payload.len()));
        signal(LOUD_CHANNEL, payload)
    }

    /// Listens to loud signals on its own, or as a member of one of many groups.
    pub(crate) fn listen_loud(&mut self, group: usize) -> WrittenRequest {
        let group = match group {
            0 => String::new(),
            group => format!("g{group}"),
        };
        self.subscription(Topic::Listen, LOUD_CHANNEL.as_bytes(), &group)
    }

    fn subscription(&mut self, topic: Topic, pattern: &[u8], group: &str) -> WrittenRequest {
        let verb = match topic {
            Topic::Listen => "listen",
            Topic::Watch => "watch",
            Topic::Observe => "observe",
        };
        let subscription = Subscription {
            topic,
            pattern: pattern.to_vec(),
            group: group.into(),
        };
        written(
            RequestKind::Subscribe(subscription),
            verb,
            pattern,
            group.as_bytes(),
        )
    }

    fn pattern(&mut self, topic: Topic) -> Vec<u8> {
        let any_key = |it: &mut Self| {
            let key = it.rng.usize(..it.plan.keys.len());
            it.plan.keys[key].0.clone()
        };
        match topic {
            Topic::Listen => pick(self.rng, &PATTERNS).as_bytes().to_vec(),
            Topic::Observe => any_key(self),
            Topic::Watch => match self.rng.u8(..4) {
                0 => any_key(self),
                1 => {
                    let kind = *pick(
                        self.rng,
                        &[EntryKind::Counter, EntryKind::Value, EntryKind::List],
                    );
                    let key = self.rng.usize(..self.plan.entry_count(kind));
                    self.plan.name(kind, key).to_vec()
                }
                _ => {
                    let wild: [&[u8]; 7] = [b">", b"*", b"*.0", b"q.*", b"v.>", b"t.*", b"a*"];
                    pick(self.rng, &wild).to_vec()
                }
            },
        }
    }

    // ---- what frames are made of ----

    fn entry(&mut self, entry_request: EntryRequest, argument: &str) -> WrittenRequest {
        let (kind, key) = entry_request.entry();
        let (verb, name) = (entry_request.verb(), self.plan.name(kind, key));
        written(
            RequestKind::Entry(entry_request),
            verb,
            name,
            argument.as_bytes(),
        )
    }

    /// A value that nobody has used before: mostly short, sometimes with a blank, sometimes longer
    /// than what a stalled reader takes.
    fn fresh_value(&mut self, letter: char) -> String {
        let number = self.request_number;
        if self.plan.is_tight() && letter != 's' && self.rng.u8(..4) != 0 {
            let longest = match letter {
                'x' => TIGHT_PUSH_BYTES_MAX,
                _ => TIGHT_VALUE_BYTES_MAX,
            };
            let length = self.rng.usize(..longest);
            return format!("{letter}{number}{}", "z".repeat(length));
        }
        match self.rng.u8(..16) {
            0 => format!("{letter}{number} and more"),
            1 => format!("{letter}{number}{}", "z".repeat(300)),
            _ => format!("{letter}{number}"),
        }
    }
}

fn signal(channel: &str, payload: String) -> WrittenRequest {
    let frame = payload.clone().into_bytes();
    let kind = RequestKind::Signal {
        channel: channel.into(),
        payload: payload.into_bytes(),
    };
    written(kind, "signal", channel.as_bytes(), &frame)
}

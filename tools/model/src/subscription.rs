//! Subscriptions: listeners of signals, watchers of keys, observers of leaders.
//!
//! - Names and patterns are tokens between dots. `*` stands for one token, `>` for one or more at
//!   the end. A wildcard is a whole token. Observers give a name, in which a star is only a star.
//! - A name is pushed once to each connection that has a matching subscription without a group, and
//!   to one member of each matching group: the next one, in turn, that can receive it. One
//!   connection gets at most 64 copies as a member of groups.
//! - A connection that has left too much unread gets no pushes; that is reported once until it has
//!   read. A connection whose peer has hung up gets none either.
//! - A connection has at most `subscriptions_max` subscriptions, patterns of 64 shapes for each
//!   topic, and 64 groups of one pattern.

use std::collections::BTreeSet;

use latchd::base::ConnId;
use latchd::engine::types::{Change, Event, Push, Refusal, Reply, Value};

use crate::{Model, Name};

/// Most copies of one signal for one connection, and most groups of one pattern that it is in.
const COPIES_MAX: usize = 64;

/// Most shapes of patterns of one connection, for each topic.
const SHAPES_MAX: usize = 64;

/// What is subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Listen,
    Watch,
    Observe,
}

/// One connection at one pattern, or in one of its groups.
#[derive(Clone)]
pub(crate) struct Subscription {
    number: u64,
    topic: Topic,
    conn: ConnId,
    pattern: Name,
    /// Empty for no group.
    group: Name,
}

/// Which member of a group had a signal last.
pub(crate) struct Turn {
    pattern: Name,
    group: Name,
    last: u64,
}

impl Model {
    pub(crate) fn listen(&mut self, id: ConnId, pattern: &[u8], group: &[u8]) {
        self.subscribe(id, Topic::Listen, pattern, group);
    }

    pub(crate) fn unlisten(&mut self, id: ConnId, pattern: &[u8], group: &[u8]) {
        self.unsubscribe(id, Topic::Listen, pattern, group);
    }

    pub(crate) fn watch(&mut self, id: ConnId, pattern: &[u8]) {
        self.subscribe(id, Topic::Watch, pattern, b"");
    }

    pub(crate) fn unwatch(&mut self, id: ConnId, pattern: &[u8]) {
        self.unsubscribe(id, Topic::Watch, pattern, b"");
    }

    pub(crate) fn unobserve(&mut self, id: ConnId, key: &[u8]) {
        self.unsubscribe(id, Topic::Observe, key, b"");
    }

    /// The answer counts the copies that are sent.
    pub(crate) fn signal(&mut self, id: ConnId, channel: &[u8], payload: &[u8]) {
        let mut to = self.hearers(Topic::Listen, channel, None);
        to.extend(self.group_members(channel));
        self.reply(id, Reply::Number(to.len() as i64));
        for conn in to {
            let (channel, payload) = (Value::from(channel), Value::from(payload));
            self.push(conn, Push::Signal { channel, payload });
        }
    }

    /// Tells watchers of a key what happened to it.
    pub(crate) fn announce(&mut self, event: Event, key: &[u8]) {
        for conn in self.hearers(Topic::Watch, key, None) {
            self.push(
                conn,
                Push::Watch {
                    event,
                    key: key.into(),
                },
            );
        }
    }

    /// Tells observers of a key, but for one that knows already.
    pub(crate) fn tell_observers(&mut self, change: Change, key: &[u8], but: Option<ConnId>) {
        for conn in self.hearers(Topic::Observe, key, but) {
            self.push(
                conn,
                Push::Leader {
                    change,
                    key: key.into(),
                },
            );
        }
    }

    pub(crate) fn observes(&self, id: ConnId, key: &[u8]) -> bool {
        self.find_subscription(id, Topic::Observe, key, b"")
            .is_some()
    }

    pub(crate) fn subscribe(&mut self, id: ConnId, topic: Topic, pattern: &[u8], group: &[u8]) {
        if topic != Topic::Observe && !is_pattern(pattern) {
            return self.refuse(id, Refusal::BadPattern);
        }
        if self.find_subscription(id, topic, pattern, group).is_some() {
            return self.reply(id, Reply::Done);
        }
        let own = self.subscriptions.iter().filter(|it| it.conn == id);
        let most = self.rules.subscriptions_max as usize;
        let of_topic = own.clone().filter(|it| it.topic == topic);
        let shapes: BTreeSet<String> = of_topic
            .clone()
            .filter_map(|it| shape(&it.pattern))
            .collect();
        let has_shape = topic == Topic::Observe
            || shape(pattern).is_none_or(|it| shapes.contains(&it) || shapes.len() < SHAPES_MAX);
        let groups = of_topic
            .filter(|it| it.pattern == pattern && !it.group.is_empty())
            .count();
        let has_group = group.is_empty() || groups < COPIES_MAX;
        if most != 0 && own.count() >= most || !has_shape || !has_group {
            return self.refuse(id, Refusal::MaxSubscriptions);
        }
        if self.is_refused_for_memory(id) {
            return self.refuse(id, Refusal::Memory);
        }
        let number = self.next_number();
        let (pattern, group) = (pattern.to_vec(), group.to_vec());
        self.subscriptions.push(Subscription {
            number,
            topic,
            conn: id,
            pattern,
            group,
        });
        self.reply(id, Reply::Done);
    }

    fn unsubscribe(&mut self, id: ConnId, topic: Topic, pattern: &[u8], group: &[u8]) {
        if let Some(at) = self.find_subscription(id, topic, pattern, group) {
            self.subscriptions.remove(at);
            self.forget_turns();
        }
        self.reply(id, Reply::Done);
    }

    /// The connection is gone.
    pub(crate) fn drop_subscriptions(&mut self, id: ConnId) {
        self.subscriptions.retain(|it| it.conn != id);
        self.forget_turns();
    }

    fn forget_turns(&mut self) {
        let subscriptions = &self.subscriptions;
        let is_of = |turn: &Turn, it: &Subscription| {
            it.topic == Topic::Listen && it.pattern == turn.pattern && it.group == turn.group
        };
        self.turns
            .retain(|turn| subscriptions.iter().any(|it| is_of(turn, it)));
    }

    fn find_subscription(
        &self,
        id: ConnId,
        topic: Topic,
        pattern: &[u8],
        group: &[u8],
    ) -> Option<usize> {
        self.subscriptions.iter().position(|it| {
            let is_its_own = it.conn == id && it.topic == topic;
            is_its_own && it.pattern == pattern && it.group == group
        })
    }

    /// The connections with a matching subscription without a group, each once. A connection that
    /// cannot take more is reported instead.
    fn hearers(&mut self, topic: Topic, name: &[u8], but: Option<ConnId>) -> Vec<ConnId> {
        let matching = self.subscriptions.iter().filter(|it| {
            let matches = match topic {
                Topic::Observe => it.pattern == name,
                _ => matches(&it.pattern, name),
            };
            it.topic == topic && it.group.is_empty() && matches
        });
        let all: BTreeSet<ConnId> = matching.map(|it| it.conn).collect();
        let mut hearers = Vec::new();
        for conn in all {
            if Some(conn) == but || !self.is_conn_present(conn) {
                continue;
            }
            match self.conn(conn).overrun {
                true => self.report(conn),
                false => hearers.push(conn),
            }
        }
        hearers
    }

    /// One member of each matching group, if one can hear.
    fn group_members(&mut self, name: &[u8]) -> Vec<ConnId> {
        let of_groups = self.subscriptions.iter().filter(|it| {
            it.topic == Topic::Listen && !it.group.is_empty() && matches(&it.pattern, name)
        });
        let groups = of_groups.map(|it| (it.pattern.clone(), it.group.clone()));
        let groups: BTreeSet<(Name, Name)> = groups.collect();
        let mut told: Vec<ConnId> = Vec::new();
        for (pattern, group) in groups {
            let is_of = |it: &&Subscription| {
                it.topic == Topic::Listen && it.pattern == pattern && it.group == group
            };
            let mut members: Vec<Subscription> =
                self.subscriptions.iter().filter(is_of).cloned().collect();
            let turn = self
                .turns
                .iter()
                .position(|it| it.pattern == pattern && it.group == group);
            let last = turn.map_or(0, |at| self.turns[at].last);
            let next = members.iter().position(|it| it.number > last).unwrap_or(0);
            members.rotate_left(next);
            let can_hear = |it: &&Subscription| {
                let copies = told.iter().filter(|conn| **conn == it.conn).count();
                let conn = self.conn(it.conn);
                !conn.hung_up && !conn.overrun && copies < COPIES_MAX
            };
            let hearer = members.iter().find(can_hear).map(|it| (it.conn, it.number));
            let first = (members[0].conn, members[0].number);
            let last = hearer.unwrap_or(first).1;
            match turn {
                Some(at) => self.turns[at].last = last,
                None => self.turns.push(Turn {
                    pattern,
                    group,
                    last,
                }),
            }
            match hearer {
                Some((conn, _)) => told.push(conn),
                None => self.report(first.0),
            }
        }
        told
    }

    /// Reports once to the server that the connection does not read its pushes.
    fn report(&mut self, id: ConnId) {
        let conn = self.conns.iter_mut().find(|it| it.id == id);
        if let Some(conn) = conn
            && conn.overrun
            && !std::mem::replace(&mut conn.reported, true)
        {
            self.expect(latchd::engine::types::Effect::Overrun(id));
        }
    }
}

fn tokens(name: &[u8]) -> Vec<&[u8]> {
    name.split(|byte| *byte == b'.').collect()
}

/// Whether wildcards are whole tokens, and `>` is the last one.
fn is_pattern(pattern: &[u8]) -> bool {
    let tokens = tokens(pattern);
    let has_wildcard = |token: &[u8]| token.iter().any(|byte| b"*>".contains(byte));
    tokens.iter().enumerate().all(|(at, token)| match *token {
        b"*" => true,
        b">" => at + 1 == tokens.len(),
        token => !has_wildcard(token),
    })
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (pattern, name) = (tokens(pattern), tokens(name));
    let is_same = |(token, of): (&&[u8], &&[u8])| *token == b"*" || token == of;
    match pattern.split_last() {
        Some((&b">", before)) => name.len() > before.len() && before.iter().zip(&name).all(is_same),
        _ => name.len() == pattern.len() && pattern.iter().zip(&name).all(is_same),
    }
}

/// Where the wildcards of a pattern are; none if it has none.
fn shape(pattern: &[u8]) -> Option<String> {
    let tokens = tokens(pattern);
    let shape = tokens.iter().map(|token| match *token {
        b"*" => '*',
        b">" => '>',
        _ => '.',
    });
    let shape: String = shape.collect();
    shape.contains(['*', '>']).then_some(shape)
}

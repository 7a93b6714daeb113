//! What clients are told without a request: signals, events of keys and changes of leaders.
//!
//! A subscription begins and ends with an answer, and the server writes answers and pushes in the
//! order of what happened: so pushes may come between those two answers, and only there. What a
//! client was told it has done is what watchers must be told in the same turn, once each, and never
//! before that client has its answer (`key_events`). No two signals carry the same payload.

use std::collections::{BTreeMap, BTreeSet};

use super::key_events::{self, KeyEvent, ReadLine, TurnFacts, is_attentive};
use crate::clients::connection::{Connection, OpenRequest};
use crate::clients::subscription::{Subscription, Topic};
use crate::plan::Plan;
use latchd::engine::Tally;
use latchd::wire::client::{News, Told};

/// One signal.
#[derive(Clone, Debug, Default)]
struct Signal {
    channel: Vec<u8>,
    sender: u32,
    bytes: usize,
    /// How many recipients it has, according to the answer.
    count: Option<u32>,
    /// Its sender read the answer in this turn.
    is_fresh: bool,
    /// Its sender did not read for a while, so it may have been sent at any time before.
    is_undated: bool,
    copies: BTreeMap<u32, u32>,
    /// The recipients that listen on their own, and the groups of which a member heard.
    open: BTreeSet<u32>,
    patterns: BTreeSet<Subscription>,
    /// Connections that may be counted, and had not read when the answer came.
    behind: BTreeSet<u32>,
    /// Those of them that certainly listen on their own: they hear it once they read, unless they
    /// end.
    owed: BTreeSet<u32>,
}

impl Signal {
    fn heard(&self) -> u32 {
        self.copies.values().sum()
    }
}

/// All pushes of one run, as clients know them.
#[derive(Debug, Default)]
pub(crate) struct KnownPushes {
    read_now: BTreeMap<u32, Vec<ReadLine>>,
    signals: BTreeMap<Vec<u8>, Signal>,
    touched: BTreeSet<Vec<u8>>,
    /// Connections that ended without reading everything: how often they subscribed.
    ended_unread: BTreeMap<u32, u32>,
    tally: Tally,
    /// How many lines were pushed.
    pub(crate) count: u64,
}

impl KnownPushes {
    // ---- what clients send, and the answers ----

    pub(crate) fn signal_sent(&mut self, sender: u32, channel: &[u8], payload: &[u8]) {
        let signal = Signal {
            channel: channel.to_vec(),
            sender,
            bytes: channel.len() + payload.len() + 6,
            ..Signal::default()
        };
        self.signals.insert(payload.to_vec(), signal);
    }

    pub(crate) fn signal_answered(
        &mut self,
        conn: &Connection,
        payload: &[u8],
        told: Told<'_>,
    ) -> Result<(), String> {
        let count = match told {
            Told::Number(count) => u32::try_from(count).ok(),
            _ => None,
        };
        let signal = self.signals.get_mut(payload).expect("it was sent");
        signal.count = Some(count.ok_or("not a count")?);
        signal.is_fresh = !conn.is_behind();
        signal.is_undated = conn.is_behind();
        self.touched.insert(payload.to_vec());
        Ok(())
    }

    /// The answer to a subscription, which depends on how many the client has.
    pub(crate) fn subscribed(
        &mut self,
        plan: &Plan,
        (number, conn): (u32, &mut Connection),
        subscription: &Subscription,
        turn: u64,
        (told, lacks_memory): (Told<'_>, bool),
    ) -> Result<(), String> {
        let has_it = conn.subscriptions.contains_key(subscription);
        let has_room = conn.has_room_for(subscription, plan);
        match told {
            Told::Done if has_room => {
                conn.subscriptions
                    .entry(subscription.clone())
                    .or_insert(turn);
                // A client that observes a key already is not told its leader again.
                if subscription.topic == Topic::Observe && !has_it {
                    let lines = self.read_now.entry(number).or_default();
                    lines.push(ReadLine::Observed(subscription.pattern.clone()));
                }
                Ok(())
            }
            Told::Refused(b"error") if !has_room => Ok(()),
            Told::Refused(b"error_memory") if has_room && !has_it && lacks_memory => Ok(()),
            _ => Err(format!("it has {} subscriptions", conn.subscriptions.len())),
        }
    }

    /// Notes what an answer says that its client has done.
    pub(crate) fn note_done(
        &mut self,
        plan: &Plan,
        (number, conn): (u32, &Connection),
        request: &OpenRequest,
        told: Told<'_>,
    ) {
        let done = key_events::done(plan, conn, request, told);
        if !done.is_empty() {
            self.read_now.entry(number).or_default().extend(done);
        }
    }

    // ---- what the server pushes ----

    /// Checks a push that tells of something, other than of a lost lease.
    pub(crate) fn take_push(
        &mut self,
        (number, conn): (u32, &Connection),
        news: News<'_>,
    ) -> Result<(), String> {
        self.count += 1;
        let (topic, key) = match news {
            News::Signal { channel, payload } => {
                return self.heard_signal(number, conn, channel, payload);
            }
            News::Watch { key, .. } => (Topic::Watch, key),
            News::Leader { key, .. } => (Topic::Observe, key),
            News::Lost { .. } => unreachable!("of a lock"),
            News::RangeLost { .. } => unreachable!("of bytes"),
        };
        let word = news.word().expect("only signals have none");
        if !conn.subscriptions.keys().any(|it| it.hears(topic, key)) {
            // A leader is told when another client makes it resign, whether it observes or not.
            if word == "resigned" && conn.led.contains(key) {
                return Ok(());
            }
            return Err("a push to somebody who did not ask".to_owned());
        }
        let key = key.to_vec();
        let lines = self.read_now.entry(number).or_default();
        lines.push(ReadLine::Told(KeyEvent { topic, word, key }));
        Ok(())
    }

    fn heard_signal(
        &mut self,
        number: u32,
        conn: &Connection,
        channel: &[u8],
        payload: &[u8],
    ) -> Result<(), String> {
        let Some(signal) = self.signals.get_mut(payload) else {
            return Err("a signal nobody sent".to_owned());
        };
        if signal.channel != channel {
            return Err("a signal on another channel".to_owned());
        }
        if signal.sender == number && signal.count.is_none() {
            return Err("its own signal before the answer to it".to_owned());
        }
        let heard = conn.subscriptions.keys();
        let heard = heard.filter(|it| it.hears(Topic::Listen, channel));
        let (open, groups): (Vec<_>, Vec<_>) = heard.partition(|it| it.group.is_empty());
        let copies = signal.copies.entry(number).or_default();
        *copies += 1;
        if *copies as usize > groups.len() + usize::from(!open.is_empty()) {
            return Err(format!("a signal {copies} times"));
        }
        if !open.is_empty() {
            signal.open.insert(number);
        }
        signal.patterns.extend(groups.into_iter().cloned());
        self.touched.insert(payload.to_vec());
        Ok(())
    }

    // ---- after each turn ----

    pub(crate) fn after_turn(&mut self, turn: &TurnFacts<'_>) -> Result<(), String> {
        for payload in std::mem::take(&mut self.touched) {
            let signal = self
                .signals
                .get_mut(&payload)
                .expect("touched ones are known");
            if turn.is_forced_end {
                (signal.is_fresh, signal.is_undated) = (false, true);
            }
            check_signal(turn, signal).map_err(|why| {
                let shown = payload[..payload.len().min(20)].escape_ascii();
                format!("signal {shown}: {why}")
            })?;
        }
        let before = std::mem::replace(&mut self.tally, turn.tally);
        let now = std::mem::take(&mut self.read_now);
        if now.is_empty() || turn.is_forced_end {
            return Ok(());
        }
        key_events::check(turn, &before, &now)
    }

    /// The connection ended, and its client may not have read everything.
    pub(crate) fn note_ended_unread(&mut self, number: u32, subscribes_sent: u32) {
        self.ended_unread.insert(number, subscribes_sent);
    }

    /// Every recipient that was counted was told, or ended before it could read.
    pub(crate) fn check_end(&self, unread_bytes_max: usize) -> Result<(), String> {
        let mut unread: BTreeMap<u32, usize> = BTreeMap::new();
        for signal in self.signals.values() {
            let Some(count) = signal.count else { continue };
            let is_gone =
                |it: &u32| self.ended_unread.contains_key(it) || signal.copies.contains_key(it);
            if let Some(number) = signal.owed.iter().find(|it| !is_gone(it)) {
                return Err(format!("connection {number} never heard {signal:?}"));
            }
            let missing = count.saturating_sub(signal.heard());
            let may_be_behind = |it: &u32| signal.is_undated || signal.behind.contains(it);
            let lost = self.ended_unread.iter().filter(|(it, _)| may_be_behind(it));
            let lost: Vec<(&u32, &u32)> = lost.collect();
            if missing > lost.iter().map(|(_, times)| **times).sum() {
                return Err(format!("{missing} were counted and not told: {signal:?}"));
            }
            if let [(number, _)] = lost[..] {
                *unread.entry(*number).or_default() += missing as usize * signal.bytes;
            }
        }
        match unread
            .into_iter()
            .find(|(_, bytes)| *bytes > unread_bytes_max)
        {
            Some((number, bytes)) => Err(format!(
                "{bytes} bytes were counted as heard by connection {number}, which heard nothing"
            )),
            None => Ok(()),
        }
    }
}

/// As many recipients were told as were counted: one of each group, and all that listen on their
/// own.
fn check_signal(turn: &TurnFacts<'_>, signal: &mut Signal) -> Result<(), String> {
    let heard = signal.heard();
    if heard as usize > signal.open.len() + signal.patterns.len() {
        return Err(format!("heard by two of a group: {signal:?}"));
    }
    let Some(count) = signal.count else {
        return Ok(());
    };
    if heard > count {
        return Err(format!("{count} were counted, {heard} heard: {signal:?}"));
    }
    if !signal.is_fresh {
        return Ok(()); // nobody knows when it was sent, or it was in an earlier turn
    }
    signal.is_fresh = false;
    let (mut open, mut patterns) = (0, BTreeSet::new());
    for (number, conn) in turn.connections {
        let before = conn.subscriptions.iter();
        let before = before.filter(|(_, since)| **since < turn.number);
        let heard = before.filter(|(it, _)| it.hears(Topic::Listen, &signal.channel));
        let (alone, groups): (Vec<_>, Vec<_>) =
            heard.map(|(it, _)| it).partition(|it| it.group.is_empty());
        if !is_attentive(conn) {
            if conn.id.is_some() {
                signal.behind.insert(*number);
            }
            if !alone.is_empty() && conn.is_subscribed() && !conn.ended && !conn.has_left() {
                signal.owed.insert(*number);
            }
            continue;
        }
        patterns.extend(groups);
        open += u32::from(!alone.is_empty());
        if !alone.is_empty() && !signal.copies.contains_key(number) {
            return Err(format!("connection {number} listens, and was not told"));
        }
    }
    if count < open + patterns.len() as u32 {
        return Err(format!(
            "{count} were counted, but {open} and {patterns:?} listen"
        ));
    }
    if !turn.doubt && heard != count {
        return Err(format!("{count} were counted, {heard} heard: {signal:?}"));
    }
    Ok(())
}

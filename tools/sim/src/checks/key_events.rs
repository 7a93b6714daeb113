//! What was done to keys and leaders, compared with who was told of it.
//!
//! An answer says that something was done in this turn; every client that watches the key must have
//! been told as often as it was done, and the client that did it not before its answer. A client
//! that comes to lead from the queue takes over from another: observers are told `failover`, then
//! `elected`, with nothing about this key in between.

use std::collections::{BTreeMap, BTreeSet};

use crate::clients::connection::{Connection, OpenRequest};
use crate::clients::request::RequestKind;
use crate::clients::subscription::Topic;
use crate::plan::Plan;
use latchd::engine::Tally;
use latchd::engine::types::Mode;
use latchd::wire::client::Told;

/// Something that happened to a key, as watchers or observers are told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyEvent {
    pub(crate) topic: Topic,
    pub(crate) word: &'static str,
    pub(crate) key: Vec<u8>,
}

/// One line read by a connection in this turn, as far as it matters here.
#[derive(Clone, Debug)]
pub(crate) enum ReadLine {
    /// The answer to something that the client did; `from_queue` if it had waited for it.
    Did { event: KeyEvent, from_queue: bool },
    /// A push about this event.
    Told(KeyEvent),
    /// The answer that it observes this key from now on.
    Observed(Vec<u8>),
}

/// What is known of a turn when all its lines are read.
pub(crate) struct TurnFacts<'w> {
    pub(crate) number: u64,
    pub(crate) connections: &'w BTreeMap<u32, Connection>,
    /// A client may have done something without having read the answer.
    pub(crate) doubt: bool,
    /// The server closes everybody, whatever they are owed.
    pub(crate) is_forced_end: bool,
    pub(crate) tally: Tally,
    /// Keys that had the same holder from the beginning of the turn to its end.
    pub(crate) steady: BTreeSet<&'w [u8]>,
}

/// Whether the client has read everything that the server wrote to it in this turn, and the server
/// had no reason not to write.
pub(crate) fn is_attentive(conn: &Connection) -> bool {
    conn.id.is_some() && !conn.is_behind() && !conn.ended && !conn.has_left() && !conn.end_told
}

/// What an answer says that its client has done.
pub(crate) fn done(
    plan: &Plan,
    conn: &Connection,
    request: &OpenRequest,
    told: Told<'_>,
) -> Vec<ReadLine> {
    let is_done = !matches!(
        told,
        Told::Queued | Told::Nothing | Told::Conflict | Told::TimedOut | Told::Refused(_)
    );
    if conn.is_behind() || !is_done {
        return Vec::new(); // refused, or it may have happened in an earlier turn
    }
    let watched = |word| (Topic::Watch, word);
    let mut events = Vec::new();
    let name = match &request.kind {
        RequestKind::Entry(entry_request) => {
            let (kind, key) = entry_request.entry();
            events.extend(entry_request.event().map(watched));
            plan.name(kind, key).to_vec()
        }
        RequestKind::Acquire { key, mode, .. } => {
            let is_lock = matches!(mode, Mode::Lead | Mode::Slot { limit: 1 });
            if is_lock && request.begun.is_some() {
                events.push((Topic::Observe, "failover"));
            }
            if *mode == Mode::Lead {
                events.extend([watched("elect"), (Topic::Observe, "elected")]);
            } else {
                events.push(watched("acquire"));
            }
            plan.keys[*key].0.clone()
        }
        RequestKind::Enqueue { key, .. } | RequestKind::Wait { key, .. } => {
            events.push(watched("acquire"));
            plan.keys[*key].0.clone()
        }
        RequestKind::Release { key, resigns, .. } => {
            if *resigns {
                events.extend([watched("resign"), (Topic::Observe, "resigned")]);
            } else {
                events.push(watched("release"));
            }
            plan.keys[*key].0.clone()
        }
        _ => return Vec::new(),
    };
    let from_queue = request.begun.is_some();
    let did = |(topic, word)| ReadLine::Did {
        event: KeyEvent {
            topic,
            word,
            key: name.clone(),
        },
        from_queue,
    };
    events.into_iter().map(did).collect()
}

/// Checks everything that was read in one turn.
pub(crate) fn check(
    turn: &TurnFacts<'_>,
    before: &Tally,
    now: &BTreeMap<u32, Vec<ReadLine>>,
) -> Result<(), String> {
    let mut done: BTreeMap<&KeyEvent, u32> = BTreeMap::new();
    for line in now.values().flatten() {
        if let ReadLine::Did { event, .. } = line {
            *done.entry(event).or_default() += 1;
        }
    }
    for (number, conn) in turn.connections {
        let lines = now.get(number).map_or(&[][..], |lines| &lines[..]);
        check_pushes_to(turn, before, conn, lines, &done)
            .map_err(|why| format!("connection {number}: {why}"))?;
    }
    check_successions(turn, now)
}

/// One connection was told of everything that was done, and of nothing else.
fn check_pushes_to(
    turn: &TurnFacts<'_>,
    before: &Tally,
    conn: &Connection,
    lines: &[ReadLine],
    done: &BTreeMap<&KeyEvent, u32>,
) -> Result<(), String> {
    let mut heard: BTreeMap<&KeyEvent, u32> = BTreeMap::new();
    let mut own: BTreeMap<&KeyEvent, u32> = BTreeMap::new();
    for line in lines {
        match line {
            ReadLine::Told(event) => *heard.entry(event).or_default() += 1,
            ReadLine::Did { event, .. } => *own.entry(event).or_default() += 1,
            ReadLine::Observed(_) => {}
        }
    }
    let count = |of: &BTreeMap<&KeyEvent, u32>, event| of.get(event).copied().unwrap_or(0);
    if is_attentive(conn) {
        for (&event, &times) in done {
            let mut subscriptions = conn.subscriptions.iter();
            let is_subscribed = subscriptions
                .any(|(it, since)| *since < turn.number && it.hears(event.topic, &event.key));
            // The one that is elected is not told: it has the answer.
            let due = times
                - if event.word == "elected" {
                    count(&own, event)
                } else {
                    0
                };
            if is_subscribed && count(&heard, event) < due {
                return Err(format!("not told of {event:?}, which was done {due} times"));
            }
        }
    }
    for key in observed(lines).filter(|_| is_attentive(conn)) {
        let mut told = heard.keys();
        let is_told = told.any(|it| it.word == "elected" && it.key == *key);
        if turn.steady.contains(&key[..]) && !is_told {
            return Err("observes a key that is held, and was not told".to_owned());
        }
    }
    if conn.is_behind() || turn.doubt {
        return Ok(());
    }
    for (&event, &times) in &heard {
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
            breaks,
        } = turn.tally;
        let ends = releases + expiries + disconnects + breaks;
        let ends_before = before.releases + before.expiries + before.disconnects + before.breaks;
        let most = match event.word {
            // These happen without a request too, so there may be no answer to count.
            "failover" => (grants - before.grants) as u32,
            "release" => (ends - ends_before) as u32,
            "elected" => {
                let observed = observed(lines).filter(|key| **key == event.key);
                count(done, event) + observed.count() as u32
            }
            _ => count(done, event),
        };
        if times > most {
            return Err(format!(
                "told {times} times of {event:?}, done {most} times"
            ));
        }
    }
    check_answers_first(lines, &own, done)
}

/// The keys that it observes since this turn.
fn observed(lines: &[ReadLine]) -> impl Iterator<Item = &Vec<u8>> {
    lines.iter().filter_map(|line| match line {
        ReadLine::Observed(key) => Some(key),
        _ => None,
    })
}

/// Before the answer to its own request, a client was told only of what others did.
fn check_answers_first(
    lines: &[ReadLine],
    own: &BTreeMap<&KeyEvent, u32>,
    done: &BTreeMap<&KeyEvent, u32>,
) -> Result<(), String> {
    for (&event, &times) in own {
        if matches!(event.word, "failover" | "release" | "elected") {
            continue;
        }
        let mut allowed = done[event] - times;
        let mut heard = 0;
        for line in lines {
            match line {
                ReadLine::Did { event: it, .. } if it == event => allowed += 1,
                ReadLine::Told(it) if it == event => heard += 1,
                _ => {}
            }
            if heard > allowed {
                return Err(format!("told of {event:?} before the answer to it"));
            }
        }
    }
    Ok(())
}

fn check_successions(
    turn: &TurnFacts<'_>,
    now: &BTreeMap<u32, Vec<ReadLine>>,
) -> Result<(), String> {
    for (leader, lines) in now {
        for line in lines {
            let ReadLine::Did { event, from_queue } = line else {
                continue;
            };
            if event.word != "elected" || !from_queue {
                continue;
            }
            for (number, conn) in turn.connections {
                let mut subscriptions = conn.subscriptions.iter();
                let observes = subscriptions.any(|(it, since)| {
                    *since < turn.number && it.hears(Topic::Observe, &event.key)
                });
                if number != leader && observes && is_attentive(conn) {
                    let heard = now.get(number).map_or(&[][..], |lines| &lines[..]);
                    check_succession(heard, &event.key)
                        .map_err(|why| format!("connection {number}: {why}"))?;
                }
            }
        }
    }
    Ok(())
}

fn check_succession(lines: &[ReadLine], key: &[u8]) -> Result<(), String> {
    let words: Vec<&str> = lines
        .iter()
        .filter_map(|line| match line {
            ReadLine::Told(event) if event.topic == Topic::Observe && event.key == key => {
                Some(event.word)
            }
            _ => None,
        })
        .collect();
    if words.windows(2).any(|pair| pair == ["failover", "elected"]) {
        return Ok(());
    }
    Err(format!(
        "the next in the queue leads, but an observer was told {words:?}"
    ))
}

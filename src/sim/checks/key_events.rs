//! What was done to keys and leaders, held against who was told of it.
//!
//! An answer says that something was done in this turn; whoever watches that key must have been told
//! as often as it was done, and those who did it not before their answer. Whoever comes to lead from
//! its ticket in the queue takes over from another: observers hear `failover`, then `elected`, with nothing
//! of this key in between.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::Tally;
use crate::engine::types::Mode;
use crate::sim::clients::connection::{Connection, OpenRequest};
use crate::sim::clients::request::RequestKind;
use crate::sim::clients::subscription::Topic;
use crate::sim::plan::Plan;

/// The events that can be watched, and the changes that can be observed.
pub(crate) const EVENTS: [&str; 16] = [
    "acquire", "release", "incr", "decr", "cset", "kset", "kdel", "kcas", "lpush", "rpush", "lpop",
    "rpop", "blpop", "brpop", "elect", "resign",
];
pub(crate) const CHANGES: [&str; 3] = ["elected", "resigned", "failover"];

/// Something that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct News {
    pub(crate) topic: Topic,
    pub(crate) word: &'static str,
    pub(crate) key: Vec<u8>,
}

/// One line read by a connection in this turn, as far as it matters here.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// It was answered to have done this; from its ticket in the queue, if it waited there before.
    Did { news: News, from_line: bool },
    /// It was told of this.
    Heard(News),
    /// It took a seat as an observer of this key.
    Observed(Vec<u8>),
}

/// What is known of a turn when all its lines are read.
pub(crate) struct Turn<'w> {
    pub(crate) number: u64,
    pub(crate) connections: &'w BTreeMap<u32, Connection>,
    /// Somebody may not have been told what it did.
    pub(crate) doubt: bool,
    pub(crate) tally: Tally,
    /// Keys that had the same holder from the turn's beginning to its end.
    pub(crate) steady: BTreeSet<&'w [u8]>,
}

/// Whether everything that was said to the connection in this turn has been read, and everything
/// that should have been said to it has been said.
pub(crate) fn is_attentive(conn: &Connection) -> bool {
    conn.id.is_some()
        && !conn.is_behind()
        && !conn.ended
        && !conn.has_left()
        && !conn.read_timeout_told
}

/// Notes what an answer says has happened.
pub(crate) fn done(plan: &Plan, conn: &Connection, request: &OpenRequest, text: &str) -> Vec<Item> {
    if conn.is_behind() || !(text.starts_with("ok") || text.starts_with("acquired")) {
        return Vec::new(); // it may have happened earlier
    }
    let watched = |word| (Topic::Watch, word);
    let mut news = Vec::new();
    let name = match &request.kind {
        RequestKind::Entry(entry_request) => {
            let (kind, key) = entry_request.entry();
            news.extend(entry_request.event().map(watched));
            plan.name(kind, key).to_vec()
        }
        RequestKind::Acquire { key, mode, .. } => {
            let is_lock = matches!(mode, Mode::Lead | Mode::Slot { limit: 1 });
            if is_lock && request.begun.is_some() {
                news.push((Topic::Observe, "failover"));
            }
            if *mode == Mode::Lead {
                news.extend([watched("elect"), (Topic::Observe, "elected")]);
            } else {
                news.push(watched("acquire"));
            }
            plan.keys[*key].0.clone()
        }
        RequestKind::Enqueue { key, .. } | RequestKind::Wait { key, .. } => {
            news.push(watched("acquire"));
            plan.keys[*key].0.clone()
        }
        RequestKind::Release { key, resigns, .. } => {
            if *resigns {
                news.extend([watched("resign"), (Topic::Observe, "resigned")]);
            } else {
                news.push(watched("release"));
            }
            plan.keys[*key].0.clone()
        }
        _ => return Vec::new(),
    };
    let from_line = request.begun.is_some();
    let did = |(topic, word)| Item::Did {
        news: News {
            topic,
            word,
            key: name.clone(),
        },
        from_line,
    };
    news.into_iter().map(did).collect()
}

/// Everything that was said in one turn.
pub(crate) fn check(
    turn: &Turn<'_>,
    before: &Tally,
    now: &BTreeMap<u32, Vec<Item>>,
) -> Result<(), String> {
    let mut done: BTreeMap<&News, u32> = BTreeMap::new();
    for item in now.values().flatten() {
        if let Item::Did { news, .. } = item {
            *done.entry(news).or_default() += 1;
        }
    }
    for (number, conn) in turn.connections {
        let items = now.get(number).map_or(&[][..], |items| &items[..]);
        check_pushes_to(turn, before, conn, items, &done)
            .map_err(|why| format!("connection {number}: {why}"))?;
    }
    check_successions(turn, now)
}

/// One connection has heard of everything that was done, and of nothing else.
fn check_pushes_to(
    turn: &Turn<'_>,
    before: &Tally,
    conn: &Connection,
    items: &[Item],
    done: &BTreeMap<&News, u32>,
) -> Result<(), String> {
    let mut heard: BTreeMap<&News, u32> = BTreeMap::new();
    let mut own: BTreeMap<&News, u32> = BTreeMap::new();
    for item in items {
        match item {
            Item::Heard(news) => *heard.entry(news).or_default() += 1,
            Item::Did { news, .. } => *own.entry(news).or_default() += 1,
            Item::Observed(_) => {}
        }
    }
    let count = |of: &BTreeMap<&News, u32>, news| of.get(news).copied().unwrap_or(0);
    if is_attentive(conn) {
        for (&news, &times) in done {
            let mut subscriptions = conn.subscriptions.iter();
            let is_subscribed = subscriptions
                .any(|(it, since)| *since < turn.number && it.hears(news.topic, &news.key));
            // Who is elected knows already.
            let due = times
                - if news.word == "elected" {
                    count(&own, news)
                } else {
                    0
                };
            if is_subscribed && count(&heard, news) < due {
                return Err(format!("not told of {news:?}, which was done {due} times"));
            }
        }
    }
    for key in observed(items).filter(|_| is_attentive(conn)) {
        let mut told = heard.keys();
        let is_told = told.any(|it| it.word == "elected" && it.key == *key);
        if turn.steady.contains(&key[..]) && !is_told {
            return Err("observes a key that is held, and was not told".to_owned());
        }
    }
    if conn.is_behind() || turn.doubt {
        return Ok(());
    }
    for (&news, &times) in &heard {
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
        } = turn.tally;
        let ends = releases + expiries + disconnects;
        let ends_before = before.releases + before.expiries + before.disconnects;
        let most = match news.word {
            // Nobody asks for these, so nobody is answered.
            "failover" => (grants - before.grants) as u32,
            "release" => (ends - ends_before) as u32,
            "elected" => {
                let observed = observed(items).filter(|key| **key == news.key);
                count(done, news) + observed.count() as u32
            }
            _ => count(done, news),
        };
        if times > most {
            return Err(format!("told {times} times of {news:?}, done {most} times"));
        }
    }
    check_answers_first(items, &own, done)
}

/// Keys it was answered to observe.
fn observed(items: &[Item]) -> impl Iterator<Item = &Vec<u8>> {
    items.iter().filter_map(|item| match item {
        Item::Observed(key) => Some(key),
        _ => None,
    })
}

/// Before its own answer it has heard of what others did, at most.
fn check_answers_first(
    items: &[Item],
    own: &BTreeMap<&News, u32>,
    done: &BTreeMap<&News, u32>,
) -> Result<(), String> {
    for (&news, &times) in own {
        if matches!(news.word, "failover" | "release" | "elected") {
            continue;
        }
        let mut allowed = done[news] - times;
        let mut heard = 0;
        for item in items {
            match item {
                Item::Did { news: it, .. } if it == news => allowed += 1,
                Item::Heard(it) if it == news => heard += 1,
                _ => {}
            }
            if heard > allowed {
                return Err(format!("told of {news:?} before the answer to it"));
            }
        }
    }
    Ok(())
}

fn check_successions(turn: &Turn<'_>, now: &BTreeMap<u32, Vec<Item>>) -> Result<(), String> {
    for (leader, items) in now {
        for item in items {
            let Item::Did { news, from_line } = item else {
                continue;
            };
            if news.word != "elected" || !from_line {
                continue;
            }
            for (number, conn) in turn.connections {
                let mut subscriptions = conn.subscriptions.iter();
                let observes = subscriptions
                    .any(|(it, since)| *since < turn.number && it.hears(Topic::Observe, &news.key));
                if number != leader && observes && is_attentive(conn) {
                    let heard = now.get(number).map_or(&[][..], |items| &items[..]);
                    check_succession(heard, &news.key)
                        .map_err(|why| format!("connection {number}: {why}"))?;
                }
            }
        }
    }
    Ok(())
}

fn check_succession(items: &[Item], key: &[u8]) -> Result<(), String> {
    let words: Vec<&str> = items
        .iter()
        .filter_map(|item| match item {
            Item::Heard(news) if news.topic == Topic::Observe && news.key == key => Some(news.word),
            _ => None,
        })
        .collect();
    if words.windows(2).any(|pair| pair == ["failover", "elected"]) {
        return Ok(());
    }
    Err(format!("the next in line leads, but it heard {words:?}"))
}

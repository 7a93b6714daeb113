//! Two engines side by side: each input goes to both, and what they answer is compared.

use std::collections::{BTreeMap, VecDeque};

use crate::lockstep::scene::{Door, Verdict};
use crate::lockstep::step::{
    Conn, Heard, Name, News, Ns, OfClient, Restart, Said, Subject, Token, What,
};

/// How far two engines have to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// After each input, in everything: also in its cost and in the next deadline.
    Exactly,
    /// After both have come to rest at one instant: in the effects for each connection, in order,
    /// and in the state that the records amount to. The turn of an effect does not matter.
    AtRest,
}

/// How many inputs are shown of a case that fails.
const SHOWN: usize = 20;

/// After so many inputs all visible state is compared, and the invariants are checked.
const LOOK_EVERY: u64 = 48;

/// After so many inputs the figures that are cheap to read are compared.
const FIGURES_EVERY: u64 = 5;

/// Most turns until an engine has come to rest.
const TURNS_MAX: usize = 100_000;

pub struct Pair {
    /// The frozen engine, and the engine that ships. Cases continue with the answers of the first.
    subjects: [Box<dyn Subject>; 2],
    compare: Compare,
    conns: Vec<Conn>,
    inputs: u64,
    last: VecDeque<String>,
}

impl Pair {
    pub fn new(subjects: [Box<dyn Subject>; 2], compare: Compare) -> Self {
        Self {
            subjects,
            compare,
            conns: Vec::new(),
            inputs: 0,
            last: VecDeque::new(),
        }
    }

    /// The last inputs.
    pub fn last(&self) -> String {
        let last: Vec<&str> = self.last.iter().map(String::as_str).collect();
        last.join("\n")
    }

    fn note(&mut self, now: Ns, what: &What) {
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last
            .push_back(format!("{:>6} at {now} ns: {what:?}", self.inputs));
        self.inputs += 1;
    }

    /// Checks both, and compares everything that has to be the same.
    pub fn look(&mut self, now: Ns) -> Verdict {
        self.subjects.iter().for_each(|it| it.check());
        self.compare_images()?;
        if self.compare == Compare::AtRest {
            return Ok(());
        }
        let conns = self.conns.clone();
        let [frozen, today] = self.subjects.each_mut().map(|it| it.look(now, &conns));
        if frozen == today {
            return Ok(());
        }
        let mut lines = frozen.lines().zip(today.lines());
        let differing = lines.find(|(frozen, today)| frozen != today);
        let (frozen, today) = differing.unwrap_or(("more lines", "or fewer"));
        same("what can be seen", &frozen, &today)
    }

    fn apply_exactly(&mut self, now: Ns, what: &What) -> Verdict<Heard> {
        let [frozen, today] = self.subjects.each_mut().map(|it| it.apply(now, what));
        for (frozen, today) in frozen.effects.iter().zip(&today.effects) {
            same("an effect", &frozen.text, &today.text)?;
        }
        same("effects", &frozen.effects, &today.effects)?;
        same("records", &frozen.records, &today.records)?;
        same("what it cost", &frozen.work, &today.work)?;
        let next = self.subjects.each_ref().map(|it| it.next_deadline());
        same("the next deadline", &next[0], &next[1])?;
        if self.inputs.is_multiple_of(FIGURES_EVERY) {
            let [frozen, today] = self.subjects.each_ref().map(|it| it.figures());
            same("figures", &frozen, &today)?;
        }
        Ok(frozen)
    }

    fn apply_until_rest(&mut self, now: Ns, what: &What) -> Verdict<Heard> {
        let what = &match *what {
            // The last records need not be the same ones.
            What::Restart(how) => What::Restart(Restart { lost: 0, ..how }),
            ref what => what.clone(),
        };
        let [frozen, today] = self
            .subjects
            .each_mut()
            .map(|it| rest(&mut **it, now, what));
        let (frozen, today) = (frozen?, today?);
        same("answers", &by_conn(&frozen), &by_conn(&today))?;
        if matches!(what, What::Restart(_)) {
            self.compare_images()?;
        }
        Ok(frozen)
    }

    fn compare_images(&self) -> Verdict {
        let [frozen, today] = self.subjects.each_ref().map(|it| it.image());
        same("what the records amount to", &frozen, &today)
    }
}

/// Applies an input, and runs turns at the same instant until no work is left. A request that is
/// put off is applied again.
fn rest(subject: &mut dyn Subject, now: Ns, what: &What) -> Verdict<Heard> {
    let mut all = subject.apply(now, what);
    for _ in 0..TURNS_MAX {
        let is_put_off = all.effects.iter().any(|it| it.news == News::NotYet);
        all.effects.retain(|it| it.news != News::NotYet);
        let has_more = subject.next_deadline().is_some_and(|it| it <= now);
        if !is_put_off && !has_more {
            return Ok(all);
        }
        let mut turn = |what: &What| {
            let Heard {
                effects, records, ..
            } = subject.apply(now, what);
            all.effects.extend(effects);
            all.records.extend(records);
        };
        turn(&What::Time(u64::MAX));
        if is_put_off {
            turn(what);
        }
    }
    Err("does not come to rest".to_owned())
}

/// The effects for each connection, in order. Marks say when an effect may be sent, not what it
/// says.
fn by_conn(heard: &Heard) -> BTreeMap<Conn, Vec<&str>> {
    let mut all: BTreeMap<Conn, Vec<&str>> = BTreeMap::new();
    for Said { text, to, .. } in &heard.effects {
        for &conn in to {
            all.entry(conn).or_default().push(text);
        }
    }
    all
}

impl Door for Pair {
    fn apply(&mut self, now: Ns, what: &What) -> Verdict<Heard> {
        self.note(now, what);
        let heard = match self.compare {
            Compare::Exactly => self.apply_exactly(now, what)?,
            Compare::AtRest => self.apply_until_rest(now, what)?,
        };
        if self.inputs.is_multiple_of(LOOK_EVERY) {
            self.look(now)?;
        }
        Ok(heard)
    }

    fn next_deadline(&self) -> Option<Ns> {
        self.subjects[0].next_deadline()
    }

    fn record_count(&self) -> u64 {
        self.subjects[0].record_count()
    }

    fn is_held(&self, now: Ns, key: Name, fence: u64) -> bool {
        self.subjects[0].is_held(now, key, fence)
    }

    fn proves(&self, owner: Name, key: Name, token: Token) -> bool {
        self.subjects[0].proves(owner, key, token)
    }

    fn may_speak_for(&mut self, of: OfClient) -> bool {
        // Of both, because it costs something.
        let both = self.subjects.each_mut().map(|it| it.may_speak_for(of));
        both[0]
    }

    fn has_ranges(&self, now: Ns, resource: Name, client: &str, owner: Name) -> bool {
        self.subjects[0].has_ranges(now, resource, client, owner)
    }

    fn note_conns(&mut self, conns: Vec<Conn>) {
        self.conns = conns;
    }
}

/// The frozen engine first.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, frozen: &T, today: &T) -> Verdict {
    match frozen == today {
        true => Ok(()),
        false => Err(format!("{what}:\n  frozen {frozen:?}\n  today  {today:?}")),
    }
}

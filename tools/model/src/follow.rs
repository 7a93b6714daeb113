//! Compares what the engine did with what it should have done, and follows it where it may choose.
//!
//! - The model names each grant by a symbol. It learns the token from the engine's answer, and the
//!   token must never change: a fence belongs to a grant of the same input, no fence is given
//!   twice, and the fences of one key rise in the order of the grants. Salts are free.
//! - Effects for one connection about one name are compared in order. Effects about different
//!   names, as when many leases end at one instant, are compared as sets.
//! - Records are compared in the order of each name. Each mark covers the effects under it.

use std::collections::BTreeMap;
use std::mem::discriminant;

use latchd::base::{ConnId, Fence, Token};
use latchd::engine::types::{Effect, NoteOf, Push, Record, Reply};

use crate::record::Mark;
use crate::{GrantId, Model, Name};

/// What is known of a grant's token.
#[derive(Debug)]
pub(crate) struct Known {
    pub key: Name,
    /// It is above the first number and not above the second.
    between: (u64, u64),
    pub fence: Option<u64>,
    salt: Option<u64>,
}

impl Known {
    /// Nothing: the grant was just made.
    pub(crate) fn new(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            between: (0, u64::MAX),
            fence: None,
            salt: None,
        }
    }

    /// Everything: the grant was restored.
    pub(crate) fn of(key: &[u8], token: Token) -> Self {
        let (fence, salt) = (Some(token.fence.0), Some(token.salt));
        Self {
            key: key.to_vec(),
            between: (0, u64::MAX),
            fence,
            salt,
        }
    }

    pub(crate) fn is_token(&self, token: Token) -> bool {
        self.fence == Some(token.fence.0) && self.salt == Some(token.salt)
    }
}

/// Effects of one lane are compared in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Reply(ConnId),
    NotYet(ConnId),
    Overrun(ConnId),
    Push(ConnId, Name),
    /// Losses of one key, of which several may end at the same instant.
    Lost(ConnId, Name),
    Note(Name),
    GraceOver,
}

fn lane(effect: &Effect) -> Lane {
    match effect {
        Effect::Reply(id, _) => Lane::Reply(*id),
        Effect::NotYet(id) => Lane::NotYet(*id),
        Effect::Overrun(id) => Lane::Overrun(*id),
        Effect::Push(id, push) => match push {
            Push::Lost { key, .. } => Lane::Lost(*id, key.as_bytes().to_vec()),
            Push::RangeLost { resource, .. } => Lane::Lost(*id, resource.as_bytes().to_vec()),
            Push::Watch { key, .. } | Push::Leader { key, .. } => {
                Lane::Push(*id, key.as_bytes().to_vec())
            }
            Push::Signal { channel, .. } => Lane::Push(*id, channel.to_vec()),
        },
        Effect::Note(note) => Lane::Note(note.key.as_bytes().to_vec()),
        Effect::GraceOver(_) => Lane::GraceOver,
        Effect::Mark(_) | Effect::Broadcast(..) => unreachable!("taken apart before"),
    }
}

impl Model {
    /// How the model calls the token of a grant.
    pub(crate) fn symbol(&self, grant: GrantId) -> Token {
        Token {
            fence: Fence(grant),
            salt: 0,
        }
    }

    /// The grant of this key with this token.
    pub(crate) fn find_grant(&self, key: &[u8], token: Option<Token>) -> Option<GrantId> {
        let token = token?;
        let mut holders = self.holders(key);
        holders
            .find(|it| self.tokens[&it.id].is_token(token))
            .map(|it| it.id)
    }

    /// The grant of this key with this fence. A grant whose fence is not known yet may match: the
    /// answer decides.
    pub(crate) fn find_by_fence(
        &mut self,
        asker: ConnId,
        key: &[u8],
        fence: Fence,
    ) -> Option<GrantId> {
        if let Some(grant) = self
            .holders(key)
            .find(|it| self.tokens[&it.id].fence == Some(fence.0))
        {
            return Some(grant.id);
        }
        let is_found = match self.seen_answer(asker) {
            Some(Reply::Done) => true,
            Some(Reply::Number(count)) => *count > 0,
            _ => false,
        };
        let grants: Vec<GrantId> = self.holders(key).map(|it| it.id).collect();
        grants
            .into_iter()
            .find(|grant| is_found && self.learn_fence(*grant, fence.0).is_ok())
    }

    /// Of several grants that end at one instant, the grant whose end the engine reported first.
    pub(crate) fn first_seen_to_end(&self, grants: Vec<GrantId>) -> GrantId {
        let recorded = self.seen_records.iter().filter_map(|it| match it {
            Record::Ended { fence, .. } => Some(fence.0),
            _ => None,
        });
        let said = self.seen.iter().filter_map(|it| match it {
            Effect::Push(_, Push::Lost { fence, .. }) => Some(fence.0),
            Effect::Note(note) => match note.of {
                NoteOf::Grant(fence) => Some(fence.0),
                NoteOf::Range { .. } => None,
            },
            _ => None,
        });
        let is_of = |fence: u64, grant: &&GrantId| self.tokens[*grant].fence == Some(fence);
        let mut told = recorded.chain(said);
        let first = told.find_map(|fence| grants.iter().find(|grant| is_of(fence, grant)));
        *first.unwrap_or(&grants[0])
    }

    /// The grants of this input have the next fences, in some order.
    pub(crate) fn number_grants(&mut self) {
        let born = std::mem::take(&mut self.born);
        let (after, upto) = (self.last_fence, self.last_fence + born.len() as u64);
        self.last_fence = upto;
        for grant in &born {
            let known = self.tokens.get_mut(grant).expect("it was just made");
            known.between = (after, upto);
            if born.len() == 1 {
                known.fence = Some(upto);
            }
        }
    }

    fn learn_fence(&mut self, grant: GrantId, fence: u64) -> Result<(), String> {
        let Some(known) = self.tokens.get(&grant) else {
            return Err(format!("fence {fence} of nothing"));
        };
        if let Some(expected) = known.fence {
            return match expected == fence {
                true => Ok(()),
                false => Err(format!("fence {fence} where {expected} was due")),
            };
        }
        let (after, upto) = known.between;
        if fence <= after || fence > upto {
            return Err(format!(
                "fence {fence} is not above {after} and at most {upto}"
            ));
        }
        let key = known.key.clone();
        for (other, it) in self
            .tokens
            .iter()
            .filter(|it| it.1.between == (after, upto))
        {
            let Some(theirs) = it.fence else { continue };
            if theirs == fence {
                return Err(format!("fence {fence} is given twice"));
            }
            if it.key == key && (*other < grant) != (theirs < fence) {
                return Err(format!(
                    "fences {theirs} and {fence} are out of order on one key"
                ));
            }
        }
        self.tokens.get_mut(&grant).expect("it is known").fence = Some(fence);
        Ok(())
    }

    fn learn_token(&mut self, symbol: Token, token: Token) -> Result<(), String> {
        self.learn_fence(symbol.fence.0, token.fence.0)?;
        let known = self
            .tokens
            .get_mut(&symbol.fence.0)
            .expect("its fence is known");
        match known.salt.replace(token.salt) {
            Some(salt) if salt != token.salt => {
                Err(format!("fence {} has two tokens", token.fence))
            }
            _ => Ok(()),
        }
    }

    /// Whether this is what was expected, but for symbols.
    fn learn(&mut self, expected: &Effect, seen: &Effect) -> Result<(), String> {
        let mut named = expected.clone();
        match (&mut named, seen) {
            (
                Effect::Reply(_, Reply::Granted { token, .. } | Reply::Acquired { token, .. }),
                Effect::Reply(
                    _,
                    Reply::Granted { token: theirs, .. } | Reply::Acquired { token: theirs, .. },
                ),
            ) => {
                let symbol = std::mem::replace(token, *theirs);
                if named == *seen {
                    return self.learn_token(symbol, *theirs);
                }
            }
            (
                Effect::Reply(_, Reply::Renewed { fence, .. }),
                Effect::Reply(_, Reply::Renewed { fence: theirs, .. }),
            )
            | (
                Effect::Push(_, Push::Lost { fence, .. }),
                Effect::Push(_, Push::Lost { fence: theirs, .. }),
            ) => {
                let symbol = std::mem::replace(fence, *theirs);
                if named == *seen {
                    return self.learn_fence(symbol.0, theirs.0);
                }
            }
            (Effect::Note(note), Effect::Note(other)) => {
                if let (NoteOf::Grant(fence), NoteOf::Grant(theirs)) = (&mut note.of, &other.of) {
                    let symbol = std::mem::replace(fence, *theirs);
                    if named == *seen {
                        return self.learn_fence(symbol.0, theirs.0);
                    }
                }
            }
            _ => {}
        }
        match named == *seen {
            true => Ok(()),
            false => Err(String::new()),
        }
    }

    /// Compares all effects and records of the present input.
    pub(crate) fn compare(&mut self, records: &[Record]) -> Result<(), String> {
        self.number_grants();
        self.compare_records(records)?;
        let seen = std::mem::take(&mut self.seen);
        let mut mark = 0;
        let mut said = Vec::new();
        for effect in seen {
            match effect {
                Effect::Mark(number) => {
                    if !self.rules.durable || number > self.records.count {
                        return Err(format!("a mark of record {number}, which there is not"));
                    }
                    mark = number;
                }
                Effect::Broadcast(to, _) if to.is_empty() => {
                    return Err("a broadcast to nobody".to_owned());
                }
                Effect::Broadcast(to, push) => {
                    said.extend(
                        to.into_iter()
                            .map(|id| (Effect::Push(id, push.clone()), mark)),
                    );
                }
                other => said.push((other, mark)),
            }
        }
        let mut expected: BTreeMap<Lane, Vec<crate::Expected>> = BTreeMap::new();
        for it in std::mem::take(&mut self.expected) {
            expected.entry(lane(&it.effect)).or_default().push(it);
        }
        for (effect, mark) in said {
            let lane = lane(&effect);
            let due = expected.remove(&lane).unwrap_or_default();
            let (rest, due) = self.take_matching(&lane, due, &effect)?;
            expected.insert(lane, rest);
            if self.number_of(due.mark) > mark {
                let needed = self.number_of(due.mark);
                return Err(format!(
                    "{effect:?}: marked {mark}, but it reveals record {needed}"
                ));
            }
        }
        let missing: Vec<_> = expected.into_values().flatten().collect();
        match missing.first() {
            Some(it) => Err(format!(
                "not said: {:?} (about {:?})",
                it.effect,
                shown(&it.about)
            )),
            None => Ok(()),
        }
    }

    fn take_matching(
        &mut self,
        lane: &Lane,
        mut due: Vec<crate::Expected>,
        effect: &Effect,
    ) -> Result<(Vec<crate::Expected>, crate::Expected), String> {
        let is_free = matches!(lane, Lane::Lost(..) | Lane::Note(_));
        let candidates = if is_free { due.len() } else { due.len().min(1) };
        let mut why = String::new();
        for at in 0..candidates {
            match self.learn(&due[at].effect.clone(), effect) {
                Ok(()) => {
                    // Whichever came first, it reveals what the first one reveals.
                    let (mark, first) = (due[at].mark, due[0].mark);
                    (due[0].mark, due[at].mark) = (mark, first);
                    let it = due.remove(at);
                    return Ok((due, it));
                }
                Err(it) => why = it,
            }
        }
        let expected: Vec<_> = due.iter().map(|it| &it.effect).collect();
        Err(format!(
            "said: {effect:?}\n  expected: {expected:?}\n  {why}"
        ))
    }

    fn number_of(&self, mark: Mark) -> u64 {
        match mark {
            Mark::Number(number) => number,
            Mark::Expected(_) => unreachable!("all records of the input have numbers"),
        }
    }

    /// Compares records, and numbers the expected ones.
    fn compare_records(&mut self, records: &[Record]) -> Result<(), String> {
        if !self.rules.durable && !records.is_empty() {
            return Err(format!("recorded, though nothing is to be: {records:?}"));
        }
        let expected = std::mem::take(&mut self.records.expected);
        let mut numbers = vec![None; expected.len()];
        let mut last_fence = 0;
        for record in records {
            self.records.count += 1;
            let number = self.records.count;
            if let Record::Fences { upto } = record {
                self.records.fences_upto = self.records.fences_upto.max(upto.0);
                continue;
            }
            // Grants of one key that end at one instant end in any order, and so do locks of bytes.
            let mut found = Err(format!("recorded, but not expected: {record:?}"));
            for at in 0..expected.len() {
                if numbers[at].is_some() || expected[at].key() != record.key() {
                    continue;
                }
                let learned = self.learn_record(&expected[at], record);
                let may_be_later = matches!(record, Record::Ended { .. } | Record::Ranged { .. });
                let is_like = discriminant(&expected[at]) == discriminant(record);
                let may_wait = may_be_later && is_like;
                found = learned.map(|()| at);
                if found.is_ok() || !may_wait {
                    break;
                }
            }
            let at = found?;
            numbers[at] = Some(number);
            if let Record::Granted { token, .. } = record {
                if token.fence.0 <= last_fence || token.fence.0 > self.records.fences_upto {
                    return Err(format!(
                        "fence {} is out of order or not reserved",
                        token.fence
                    ));
                }
                last_fence = token.fence.0;
            }
        }
        if let Some(at) = numbers.iter().position(Option::is_none) {
            return Err(format!("not recorded: {:?}", expected[at]));
        }
        // Ends in another order than expected still come one after the other.
        for at in 0..expected.len() {
            for later in at + 1..expected.len() {
                if expected[later].key() == expected[at].key() && numbers[later] < numbers[at] {
                    numbers.swap(at, later);
                }
            }
        }
        let name = |mark: &mut Mark| {
            if let Mark::Expected(at) = *mark {
                *mark = Mark::Number(numbers[at].expect("all are numbered"));
            }
        };
        self.records.last.values_mut().for_each(name);
        self.expected.iter_mut().for_each(|it| name(&mut it.mark));
        let begins = self
            .grants
            .iter_mut()
            .filter_map(|it| it.recorded.begins_with.as_mut());
        begins.for_each(name);
        Ok(())
    }

    fn learn_record(&mut self, expected: &Record, seen: &Record) -> Result<(), String> {
        let mut named = expected.clone();
        let learned = match (&mut named, seen) {
            (Record::Granted { token, .. }, Record::Granted { token: theirs, .. }) => {
                let symbol = std::mem::replace(token, *theirs);
                self.learn_token(symbol, *theirs)
            }
            (Record::Ended { fence, .. }, Record::Ended { fence: theirs, .. })
            | (Record::Lengthened { fence, .. }, Record::Lengthened { fence: theirs, .. })
            | (Record::Owned { fence, .. }, Record::Owned { fence: theirs, .. }) => {
                let symbol = std::mem::replace(fence, *theirs);
                self.learn_fence(symbol.0, theirs.0)
            }
            (Record::Client { id, secret, .. }, Record::Client { secret: theirs, .. }) => {
                *secret = *theirs;
                match self.is_hash_of(id.as_bytes(), *theirs) {
                    true => Ok(()),
                    false => Err("the hash of another secret".to_owned()),
                }
            }
            (Record::Ranged { grant, .. }, Record::Ranged { grant: theirs, .. }) => {
                let id = std::mem::replace(&mut grant.id, theirs.id);
                match named == *seen {
                    true => self.learn_range_id(id, theirs.id),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        };
        match named == *seen {
            true => learned,
            false => Err(format!("recorded: {seen:?}\n  expected: {expected:?}")),
        }
    }
}

fn shown(name: &Option<Name>) -> String {
    name.as_ref()
        .map_or_else(String::new, |it| it.escape_ascii().to_string())
}

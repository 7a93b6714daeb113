//! What a player has, and what each of its requests makes of it.
//!
//! Nothing here talks to anybody: the checker plays the requests once with the daemon and once here.

use std::collections::{BTreeMap, VecDeque};

use latchd::wire::client::frame;

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// None if its answer was not read.
    pub(crate) token: Option<String>,
    /// The longest lease it was given, in seconds: what it has after a restart.
    pub(crate) lease_s: u64,
}

pub(crate) fn fence_of(token: &str) -> u64 {
    u64::from_str_radix(&token[..16], 16).unwrap()
}

/// Everything a player has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) grants: BTreeMap<String, Vec<Grant>>,
    pub(crate) counters: BTreeMap<String, i64>,
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) lists: BTreeMap<String, VecDeque<String>>,
}

/// What can be held, and how it is taken, let go and renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) take: &'static str,
    pub(crate) let_go: &'static str,
    pub(crate) renew: &'static str,
    /// What stands before the lease in the argument of `take`.
    pub(crate) argument: &'static str,
    pub(crate) slots: usize,
}

pub(crate) const KINDS: [Kind; 6] = [
    kind("lock", ["l", "r", "n"], "0 ", 1),
    kind("place", ["e", "r", "n"], "", 1),
    kind("slots", ["sl", "sr", "sn"], "0 3 ", 3),
    kind("read", ["rl", "rr", "rn"], "0 ", 4),
    kind("write", ["wl", "wr", "wn"], "0 ", 1),
    kind("lead", ["elect", "resign", "n"], "0 ", 1),
];

const fn kind(
    name: &'static str,
    [take, let_go, renew]: [&'static str; 3],
    argument: &'static str,
    slots: usize,
) -> Kind {
    Kind {
        name,
        take,
        let_go,
        renew,
        argument,
        slots,
    }
}

/// The kind of a key, which is the second part of its name.
pub(crate) fn kind_of(key: &str) -> &'static Kind {
    let name = key.split('-').nth(1);
    let mut kinds = KINDS.iter();
    kinds.find(|kind| name == Some(kind.name)).unwrap()
}

/// A request that changes something, as its player understands it.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Take(Kind, String, u64),
    LetGo(Kind, String, String),
    Renew(Kind, String, String, u64),
    Add(String, i64),
    Set(String, i64),
    Store(String, String),
    StoreFor(String, String, u64),
    Swap(String, String, String),
    Delete(String),
    Push(bool, String, String),
    Pop(bool, String),
}

impl Op {
    pub(crate) fn frame(&self) -> String {
        match self {
            Self::Take(kind, key, lease_s) => {
                frame(&format!("{} {key} {}{lease_s}", kind.take, kind.argument))
            }
            Self::LetGo(kind, key, token) => frame(&format!("{} {key} {token}", kind.let_go)),
            Self::Renew(kind, key, token, lease_s) => {
                frame(&format!("{} {key} {token} {lease_s}", kind.renew))
            }
            Self::Add(key, by) => frame(&format!("incr {key} {by}")),
            Self::Set(key, to) => frame(&format!("cset {key} {to}")),
            Self::Store(key, value) => format!("kset\n{key}\n{value}\n"),
            Self::StoreFor(key, value, ttl_s) => format!("kset\n{key}\n{value}\t{ttl_s}\n"),
            Self::Swap(key, old, new) => format!("kcas\n{key}\n{old}\t{new}\t\n"),
            Self::Delete(key) => frame(&format!("kdel {key} _")),
            Self::Push(left, key, value) => {
                format!(
                    "{}\n{key}\n{value}\n",
                    if *left { "lpush" } else { "rpush" }
                )
            }
            Self::Pop(left, key) => {
                frame(&format!("{} {key} _", if *left { "lpop" } else { "rpop" }))
            }
        }
    }

    /// What becomes of the state. `token` is that of the grant, if it is one and was heard of.
    pub(crate) fn apply(&self, state: &mut State, token: Option<String>) {
        match self {
            Self::Take(_, key, lease_s) => {
                let grants = state.grants.entry(key.clone()).or_default();
                let lease_s = *lease_s;
                grants.push(Grant { token, lease_s });
            }
            Self::LetGo(_, key, token) => {
                let grants = state.grants.get_mut(key).unwrap();
                grants.retain(|grant| grant.token.as_ref() != Some(token));
            }
            Self::Renew(_, key, token, lease_s) => {
                for grant in state.grants.get_mut(key).unwrap() {
                    if grant.token.as_ref() == Some(token) {
                        grant.lease_s = grant.lease_s.max(*lease_s);
                    }
                }
            }
            Self::Add(key, by) => *state.counters.entry(key.clone()).or_default() += by,
            Self::Set(key, to) => *state.counters.entry(key.clone()).or_default() = *to,
            Self::Store(key, value) | Self::StoreFor(key, value, _) | Self::Swap(key, _, value) => {
                state.values.insert(key.clone(), value.clone());
            }
            Self::Delete(key) => drop(state.values.remove(key)),
            Self::Push(left, key, value) => {
                let list = state.lists.entry(key.clone()).or_default();
                match left {
                    true => list.push_front(value.clone()),
                    false => list.push_back(value.clone()),
                }
            }
            Self::Pop(left, key) => {
                let list = state.lists.entry(key.clone()).or_default();
                match left {
                    true => list.pop_front(),
                    false => list.pop_back(),
                };
            }
        }
    }

    /// What the answer must be, given the state before it; `None` for a grant, which is new.
    pub(crate) fn answer(&self, state: &State) -> Option<String> {
        let mut after = state.clone();
        Some(match self {
            Self::Take(..) => return None,
            Self::Renew(_, _, token, lease_s) => format!("ok {lease_s} {}", fence_of(token)),
            Self::Add(key, _) => {
                self.apply(&mut after, None);
                format!("ok {}", after.counters[key])
            }
            Self::Push(_, key, _) => {
                self.apply(&mut after, None);
                format!("ok {}", after.lists[key].len())
            }
            Self::Pop(left, key) => {
                let list = after.lists.entry(key.clone()).or_default();
                let value = if *left {
                    list.pop_front()
                } else {
                    list.pop_back()
                };
                answer_with(value.as_ref())
            }
            _ => "ok".to_owned(),
        })
    }
}

/// What is answered with a value, or with none.
pub(crate) fn answer_with(value: Option<&String>) -> String {
    match value {
        Some(value) => format!("ok {value}"),
        None => "nil".to_owned(),
    }
}

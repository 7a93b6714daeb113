//! Random histories, and a twin that knows only the records: after every step the two have the same
//! holders, counters, values and lists, and nothing is heard before its record.
//!
//! The twin never lets time pass, as a standby that only follows. After every single record it is
//! checked, so every prefix of the records is one that can be restored: a release is before the
//! grant it makes possible, and nobody ever holds beside another who must not.

use std::collections::BTreeMap;

use latchd::base::{ConnId, Fence, Millis, Nanos, Token};
use latchd::engine::types::{
    Attach, By, Effect, Effects, End, Input, Mode, Popped, Push, Record, Refusal, Reply, Request,
    Secret,
};
use latchd::engine::{Engine, Rules};
use latchd::wire::answer::LIST_FORM;
use proptest::collection::vec;
use proptest::prelude::*;

use super::table::{Table, id, restore, restored, rules};

const CLIENTS: usize = 4;

/// One name is too long to be stored inline.
const KEYS: [&[u8]; 3] = [b"a", b"b", b"a name of more than 22 bytes"];

/// Clients that connections attach to.
const ATTACHED: [&str; 2] = ["gw/1", "gw/2"];

/// Owners that are known by a name, and the ids of their requests: whichever connection repeats an
/// id asks for the same grant.
const OWNERS: [&str; 2] = ["host:1", "host:2"];
const REQUESTS: [&[u8]; 3] = [b"", b"first", b"second"];

/// Who looks at both engines; nobody else has its slot.
const OBSERVER: ConnId = ConnId {
    slot: CLIENTS as u32,
    serial: u32::MAX,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask {
        who: usize,
        key: usize,
        verb: Verb,
        by: Option<(usize, usize)>,
    },
    /// Whether grants of this connection outlive it from now on.
    Keep {
        who: usize,
        keeps: bool,
    },
    /// Time passes, and perhaps nobody notices yet.
    Pass {
        ms: u64,
        asleep: bool,
    },
    /// What it acquires belongs to a client from now on, which is kept for so long without a connection.
    Attach {
        who: usize,
        client: usize,
        ttl: u64,
    },
    Leave {
        who: usize,
        cut_off: bool,
    },
    /// What was popped last could not be sent.
    Unsent,
    DiskFull(bool),
    Drain,
    /// The process is gone; so many of the last records did not reach the disk.
    Restart {
        lost: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Acquire(Mode, u64, u64),
    Enqueue(Mode, u64),
    Wait(u64),
    Release,
    Resign,
    Renew(u64),
    Reclaim,
    Position,
    Observe,
    Watch,
    Add(i64),
    Set(i64),
    Put(u8, u64),
    Swap(u8, u8),
    Fetch,
    Delete,
    Push(End, u8),
    Pop(End),
    AwaitPop(End, u64),
    Range,
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Slot { limit: 1 }),
        2 => Just(Mode::Slot { limit: 2 }),
        2 => Just(Mode::Read),
        1 => Just(Mode::Write),
        1 => Just(Mode::Lead),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Left), Just(End::Right)]
}

fn verb() -> impl Strategy<Value = Verb> {
    let ms = || prop_oneof![Just(0_u64), 1..20_u64];
    let lease = || 1..20_u64;
    prop_oneof![
        8 => (mode(), ms(), lease()).prop_map(|(mode, wait, lease)| Verb::Acquire(mode, wait, lease)),
        3 => (mode(), lease()).prop_map(|(mode, lease)| Verb::Enqueue(mode, lease)),
        3 => ms().prop_map(Verb::Wait),
        6 => Just(Verb::Release),
        1 => Just(Verb::Resign),
        4 => lease().prop_map(Verb::Renew),
        2 => Just(Verb::Reclaim),
        1 => Just(Verb::Position),
        1 => Just(Verb::Observe),
        1 => Just(Verb::Watch),
        2 => (-2..3_i64).prop_map(Verb::Add),
        1 => (-1..2_i64).prop_map(Verb::Set),
        3 => (0..3_u8, ms()).prop_map(|(value, ttl)| Verb::Put(value, ttl)),
        2 => (0..3_u8, 0..3_u8).prop_map(|(old, new)| Verb::Swap(old, new)),
        1 => Just(Verb::Fetch),
        1 => Just(Verb::Delete),
        4 => (end(), 0..9_u8).prop_map(|(end, value)| Verb::Push(end, value)),
        2 => end().prop_map(Verb::Pop),
        2 => (end(), ms()).prop_map(|(end, wait)| Verb::AwaitPop(end, wait)),
        1 => Just(Verb::Range),
    ]
}

/// The owner that asks, and the id of its request, if it is not the connection.
fn by() -> impl Strategy<Value = Option<(usize, usize)>> {
    prop::option::weighted(0.3, (0..OWNERS.len(), 0..REQUESTS.len()))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..CLIENTS, 0..KEYS.len(), verb(), by())
            .prop_map(|(who, key, verb, by)| Step::Ask { who, key, verb, by }),
        1 => (0..CLIENTS, any::<bool>()).prop_map(|(who, keeps)| Step::Keep { who, keeps }),
        6 => (0..15_u64, any::<bool>()).prop_map(|(ms, asleep)| Step::Pass { ms, asleep }),
        3 => (0..CLIENTS, 0..ATTACHED.len(), prop_oneof![Just(0_u64), 1..40_u64])
            .prop_map(|(who, client, ttl)| Step::Attach { who, client, ttl }),
        2 => (0..CLIENTS, any::<bool>()).prop_map(|(who, cut_off)| Step::Leave { who, cut_off }),
        1 => Just(Step::Unsent),
        1 => (0..4_u8).prop_map(|it| Step::DiskFull(it == 0)),
        1 => (0..8_usize).prop_map(|lost| Step::Restart { lost }),
    ]
}

struct World {
    rules: Rules,
    table: Table,
    twin: Engine,
    clients: [Client; CLIENTS],
    serial: u32,
    /// Every token that was ever told, with its key.
    tokens: Vec<(usize, Token)>,
    popped: Option<Popped>,
    /// The number of the last record of each key, in this life.
    marks: BTreeMap<Vec<u8>, u64>,
    /// The highest fence that was told to anyone, and is on disk.
    fence: u64,
}

/// What one input has changed, by the numbers of its records.
#[derive(Default)]
struct Changes {
    granted: BTreeMap<Fence, u64>,
    ended: BTreeMap<Fence, u64>,
    /// What everything said about a key must wait for at least.
    before: BTreeMap<Vec<u8>, u64>,
}

fn mark_of(marks: &BTreeMap<Vec<u8>, u64>, key: &[u8]) -> u64 {
    marks.get(key).copied().unwrap_or(0)
}

#[derive(Clone, Copy)]
struct Client {
    id: ConnId,
    /// The key of the command it waits in.
    parked: Option<usize>,
}

impl World {
    fn new(auto_release: bool) -> Self {
        let rules = Rules {
            auto_release,
            gc_idle_max: Millis(5),
            gc_interval: Millis(1),
            ..rules()
        };
        Self {
            table: Table::new(rules.clone()),
            twin: restored(rules.clone(), Nanos(1), &[]),
            rules,
            clients: Self::newcomers(0),
            serial: CLIENTS as u32,
            tokens: Vec::new(),
            popped: None,
            marks: BTreeMap::new(),
            fence: 0,
        }
    }

    fn newcomers(serial: u32) -> [Client; CLIENTS] {
        std::array::from_fn(|slot| Client {
            id: id(slot, serial + slot as u32 + 1),
            parked: None,
        })
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Ask { who, key, verb, by } => self.ask(who, key, verb, by),
            Step::Keep { who, keeps } => self.apply(Input::Keep(self.clients[who].id, keeps)),
            Step::Pass { ms, asleep } => {
                self.table.now = self.table.now.after(Millis(ms));
                if !asleep {
                    self.apply(Input::Time(u64::MAX));
                }
            }
            Step::Attach { who, client, ttl } => {
                let attach = Attach {
                    adapter: None,
                    id: ATTACHED[client],
                    ttl: Millis(ttl),
                    secret: Secret(b"secret"),
                };
                if self.clients[who].parked.is_none() {
                    self.apply(Input::Attach(self.clients[who].id, attach));
                }
            }
            Step::Leave { who, cut_off } => {
                let id = self.clients[who].id;
                self.serial += 1;
                self.clients[who] = Client {
                    id: super::table::id(who, self.serial),
                    parked: None,
                };
                self.apply(if cut_off {
                    Input::CutOff(id)
                } else {
                    Input::Disconnected(id)
                });
            }
            Step::Unsent => {
                if let Some(popped) = self.popped.take() {
                    self.apply(Input::Unsent(popped));
                }
            }
            Step::DiskFull(full) => self.apply(Input::StorageFull(full)),
            Step::Drain => self.apply(Input::Drain),
            Step::Restart { lost } => self.restart(lost),
        }
        self.compare();
    }

    fn ask(&mut self, who: usize, key: usize, verb: Verb, by: Option<(usize, usize)>) {
        if self.clients[who].parked.is_some() {
            return;
        }
        let token = self.tokens.iter().rev().find(|(of, _)| *of == key);
        let token = token.map(|(_, token)| *token);
        let name = KEYS[key];
        let (old, new);
        let request = match verb {
            Verb::Acquire(mode, wait, lease) => Request::Acquire {
                key: name,
                mode,
                wait: Millis(wait),
                lease: Some(Millis(lease)),
            },
            Verb::Enqueue(mode, lease) => Request::Enqueue {
                key: name,
                mode,
                lease: Some(Millis(lease)),
            },
            Verb::Wait(wait) => Request::Wait {
                key: name,
                wait: Millis(wait),
            },
            Verb::Release => Request::Release { key: name, token },
            Verb::Resign => Request::Resign { key: name, token },
            Verb::Renew(lease) => Request::Renew {
                key: name,
                token,
                lease: Some(Millis(lease)),
            },
            Verb::Reclaim => Request::Reclaim {
                key: name,
                token,
                lease: None,
            },
            Verb::Position => Request::Position { key: name },
            Verb::Observe => Request::Observe { key: name },
            Verb::Watch => Request::Watch { pattern: name },
            Verb::Add(delta) => Request::Add {
                key: name,
                delta,
                down: delta < 0,
            },
            Verb::Set(value) => Request::SetCount { key: name, value },
            Verb::Put(value, ttl) => {
                new = [value];
                Request::Put {
                    key: name,
                    value: &new,
                    ttl: Millis(ttl),
                }
            }
            Verb::Swap(from, to) => {
                (old, new) = ([from], [to]);
                Request::Swap {
                    key: name,
                    old: if from == 0 { &[] } else { &old },
                    new: &new,
                    ttl: Millis::ZERO,
                }
            }
            Verb::Fetch => Request::Fetch { key: name },
            Verb::Delete => Request::Delete { key: name },
            Verb::Push(end, value) => {
                new = [value];
                Request::Push {
                    key: name,
                    value: &new,
                    end,
                }
            }
            Verb::Pop(end) => Request::Pop { key: name, end },
            Verb::AwaitPop(end, wait) => Request::AwaitPop {
                key: name,
                end,
                wait: Millis(wait),
            },
            Verb::Range => Request::Range {
                key: name,
                start: 0,
                stop: -1,
                form: LIST_FORM,
            },
        };
        self.clients[who].parked = Some(key);
        let id = self.clients[who].id;
        let by = by.filter(|_| {
            use Request::{Acquire, Release, Renew};
            matches!(request, Acquire { .. } | Release { .. } | Renew { .. })
        });
        self.apply(match by {
            Some((owner, request_id)) => {
                let (owner, request_id) = (OWNERS[owner], REQUESTS[request_id]);
                let by = By {
                    owner,
                    request: request_id,
                };
                Input::RequestBy(id, by, request)
            }
            None => Input::Request(id, request),
        });
    }

    fn apply(&mut self, input: Input<'_>) {
        let (made, numbered) = (self.table.records.len(), self.table.engine.record_count());
        let is_request = matches!(input, Input::Request(..) | Input::RequestBy(..));
        let is_attach = matches!(input, Input::Attach(..));
        let effects = self.table.apply(input);
        let before = self.marks.clone();
        let mut changes = Changes::default();
        for (number, record) in (numbered + 1..).zip(&self.table.records[made..]) {
            if let Some(key) = record.key() {
                self.marks.insert(key.as_bytes().to_vec(), number);
            }
            match record {
                Record::Ended { fence, .. } => {
                    changes.ended.insert(*fence, number);
                }
                Record::Granted { token, .. } => {
                    let above = self.fence;
                    assert!(token.fence.0 > above, "{} is not new", token.fence);
                    self.fence = token.fence.0;
                    changes.granted.insert(token.fence, number);
                }
                _ => {}
            }
            restore(&mut self.twin, self.table.now, record);
            self.twin.check();
        }
        // All that a request brings about is about one key, and is said when all is done.
        changes.before = if is_request {
            self.marks.clone()
        } else {
            before
        };
        match is_attach {
            true => self.hear_of_attached(&effects, self.table.records.len() > made),
            false => self.hear(&effects, &changes),
        }
    }

    /// Whoever attaches hears of it when all is kept that was recorded then.
    fn hear_of_attached(&self, effects: &Effects, has_recorded: bool) {
        let last = self.table.engine.record_count();
        match effects[..] {
            [Effect::Mark(mark), Effect::Reply(_, Reply::Attached { .. })] => {
                assert!(mark == last || !has_recorded, "{mark} is not {last}");
            }
            [Effect::Reply(_, Reply::Attached { .. })] => assert!(!has_recorded),
            [Effect::Reply(_, Reply::Refused(_))] => assert!(!has_recorded),
            [Effect::Mark(_), Effect::Reply(_, Reply::Refused(_))] => assert!(!has_recorded),
            [Effect::NotYet(_)] => {} // what it left behind is being undone
            _ => panic!("{effects:?}"),
        }
    }

    /// Nothing is heard before the last record of the key it speaks of, and nothing waits for
    /// others.
    fn hear(&mut self, effects: &Effects, changes: &Changes) {
        let mut mark = 0;
        for effect in effects {
            match effect {
                Effect::Mark(it) => {
                    assert_ne!(*it, mark, "a mark that changes nothing");
                    mark = *it;
                }
                Effect::Reply(id, reply) => {
                    let who = id.slot as usize;
                    assert_eq!(self.clients[who].id, *id, "somebody who left is answered");
                    let key = self.clients[who].parked.take().expect("nothing was asked");
                    let mut least = mark_of(&changes.before, KEYS[key]);
                    match reply {
                        Reply::Granted { token, .. } | Reply::Acquired { token, .. } => {
                            self.tokens.push((key, *token));
                            let granted = changes.granted.get(&token.fence);
                            least = least.max(granted.copied().unwrap_or(0));
                        }
                        Reply::Popped(popped) => self.popped = Some(popped.clone()),
                        _ => {}
                    }
                    match reply {
                        Reply::Refused(Refusal::Storage) => assert_eq!(mark, 0),
                        Reply::Refused(Refusal::Draining) if mark == 0 => {}
                        // A watch begins, which is not about a key.
                        Reply::Done if mark == 0 => {}
                        _ => self.check_mark(mark, least, KEYS[key], effect),
                    }
                }
                Effect::Push(_, push) | Effect::Broadcast(_, push) => match push {
                    Push::Lost { key, fence, .. } => {
                        let least = changes.ended[fence];
                        self.check_mark(mark, least, key.as_bytes(), effect);
                    }
                    Push::Watch { key, .. } | Push::Leader { key, .. } => {
                        let least = mark_of(&changes.before, key.as_bytes());
                        self.check_mark(mark, least, key.as_bytes(), effect);
                    }
                    Push::Signal { .. } | Push::RangeLost { .. } => {}
                },
                Effect::NotYet(_) | Effect::Overrun(_) | Effect::GraceOver(_) | Effect::Note(_) => {
                    panic!("{effect:?}, though nothing is large here")
                }
            }
        }
    }

    fn check_mark(&self, mark: u64, least: u64, key: &[u8], effect: &Effect) {
        let most = mark_of(&self.marks, key);
        assert!(
            (least..=most).contains(&mark),
            "{mark} is not from {least} to {most}: {effect:?}"
        );
        let first = self.table.records.len() as u64 - self.table.engine.record_count();
        let marked = mark
            .checked_sub(1)
            .map(|it| &self.table.records[(first + it) as usize]);
        let marked = marked.and_then(Record::key);
        assert!(
            marked.is_none_or(|it| it.as_bytes() == key),
            "{effect:?} waits for another key"
        );
    }

    /// The last records are lost, as those that nobody was told of may be.
    fn restart(&mut self, lost: usize) {
        let now = self.table.now;
        let mut records = std::mem::take(&mut self.table.records);
        let held = |engine: &Engine| leases(engine, now);
        let before = held(&self.table.engine);
        let is_all = lost == 0;
        records.truncate(records.len().saturating_sub(lost));
        self.table = Table::restarted(self.rules.clone(), now, records);
        let after = held(&self.table.engine);
        if is_all {
            assert!(before.keys().eq(after.keys()), "a hold is lost");
            for (before, after) in before.values().zip(after.values()) {
                assert!(before <= after, "a restored lease would end early");
            }
        }
        self.twin = restored(self.rules.clone(), now, &self.table.records);
        self.clients = Self::newcomers(self.serial);
        self.serial += CLIENTS as u32;
        self.popped = None;
        self.marks.clear();
        let granted = self.table.records.iter().filter_map(|it| match it {
            Record::Granted { token, .. } => Some(token.fence.0),
            Record::Fences { upto } => Some(upto.0),
            _ => None,
        });
        self.fence = granted.max().unwrap_or(0);
        self.tokens.retain(|(_, token)| token.fence.0 <= self.fence);
    }

    /// Both engines show the same of everything that outlives the process.
    fn compare(&mut self) {
        let ours = state(&mut self.table.engine, self.table.now);
        // What is over and was only noticed by looking is a record as any other.
        let records: Vec<Record> = self.table.engine.take_records().collect();
        let last = self.table.engine.record_count();
        for (number, record) in (last + 1 - records.len() as u64..).zip(&records) {
            if let Some(key) = record.key() {
                self.marks.insert(key.as_bytes().to_vec(), number);
            }
            restore(&mut self.twin, self.table.now, record);
        }
        self.table.records.extend(records);
        assert_eq!(ours, state(&mut self.twin, self.table.now));
        assert_eq!(image(&self.table.engine), image(&self.twin));
    }
}

/// The same as the records would be that bring it back, in no order that counts.
fn image(engine: &Engine) -> Vec<String> {
    let image = engine.image();
    let mut image: Vec<String> = image.iter().map(|it| format!("{it:?}")).collect();
    image.sort_unstable();
    image
}

/// How each key is held, by fence, and what is left of its lease.
fn leases(engine: &Engine, now: Nanos) -> BTreeMap<(usize, Fence), u64> {
    let mut leases = BTreeMap::new();
    for (index, name) in KEYS.iter().enumerate() {
        for holder in engine
            .view(now)
            .key(name)
            .iter()
            .flat_map(|it| it.holders())
        {
            leases.insert((index, holder.fence), holder.lease_left_ns);
        }
    }
    leases
}

/// Everything that outlives the process, as clients see it.
fn state(engine: &mut Engine, now: Nanos) -> Vec<String> {
    let mut state = Vec::new();
    for name in KEYS {
        let key = engine.view(now).key(name);
        if let Some(key) = key.filter(|it| it.holder_count() > 0) {
            let holders: Vec<_> = key.holders().map(|it| (it.fence, it.hold)).collect();
            state.push(format!("{:?} {holders:?}", key.kind()));
        }
        for request in [
            Request::Count { key: name },
            Request::Fetch { key: name },
            Request::Range {
                key: name,
                start: 0,
                stop: -1,
                form: LIST_FORM,
            },
        ] {
            let mut out = Effects::new();
            engine.apply(now, Input::Request(OBSERVER, request), &mut out);
            let reply = out.iter().find_map(|it| match it {
                Effect::Reply(_, reply) => Some(format!("{reply:?}")),
                _ => None,
            });
            state.push(reply.expect("a look is answered at once"));
        }
    }
    state
}

#[test]
fn whoever_waits_behind_one_that_was_cut_off_is_not_granted_and_not_missed() {
    let mut world = World::new(false);
    let ask = |who, verb| Step::Ask {
        who,
        key: 2,
        verb,
        by: None,
    };
    for step in [
        ask(0, Verb::Acquire(Mode::Read, 0, 1)),
        ask(0, Verb::Enqueue(Mode::Write, 1)),
        ask(1, Verb::Enqueue(Mode::Read, 1)),
        Step::Leave {
            who: 0,
            cut_off: true,
        },
        Step::Restart { lost: 0 },
    ] {
        world.run(step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn records_are_all_that_is_needed(
        auto_release in any::<bool>(),
        steps in vec(step(), 1..200),
        drains in any::<bool>(),
        last in vec(step(), 0..20),
    ) {
        let mut world = World::new(auto_release);
        for step in steps {
            world.run(step);
        }
        if drains {
            world.run(Step::Drain);
        }
        for step in last {
            world.run(step);
        }
        world.run(Step::Restart { lost: 0 });
    }
}

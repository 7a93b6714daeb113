//! etcd, and what is on the way to it and back: everything can be lost, be late, or overtake.
//!
//! Whatever is written into the log is looked at as it is written: nothing is written twice, there is no
//! hole, and leaders, epochs and records only grow.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use latch_sim::etcd::Model;
use latchd::base::Nanos;
use latchd::etcd::{Answer, Ask, Compare, Op, Trouble, Watched};
use latchd::store::etcd::{Keys, Logged};

use crate::cluster_sim::plan::{Break, Plan};
use crate::cluster_sim::world::MS;

/// A thread of a node, and which of its questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) node: usize,
    pub(crate) task: usize,
    pub(crate) call: u64,
}

enum Message {
    Question(Asker, Ask),
    /// It was received, and takes a while.
    Work(Asker, Ask),
    BeginWatch(Asker, Vec<u8>, Vec<u8>, u64),
    Back(Asker, Back),
    Told(u64, Result<Watched, Trouble>),
}

/// What comes back.
pub(crate) enum Back {
    Answer(Result<Answer, Trouble>),
    Watches(Result<u64, Trouble>),
}

struct Watch {
    asker: Asker,
    key: Vec<u8>,
    end: Vec<u8>,
    next: u64,
    /// Nothing overtakes on one connection.
    last_at: u64,
    is_silent: bool,
    is_over: bool,
    ready: VecDeque<Result<Watched, Trouble>>,
}

/// Between a node and etcd questions, or answers, do not arrive: from when to when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Cut {
    /// Until when it is, if it is.
    fn at(self, now: u64) -> Option<u64> {
        (self.from <= now && now < self.until).then_some(self.until)
    }
}

/// What was seen of etcd.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Appends that were refused because another one led.
    pub(crate) refused: u64,
    pub(crate) lost: u64,
    pub(crate) entries: u64,
    pub(crate) trims: u64,
    pub(crate) compactions: u64,
    pub(crate) full: u64,
    pub(crate) broken_watches: u64,
    /// Renewals that were granted although the lease was over.
    pub(crate) stale_renewals: u64,
}

pub(crate) struct EtcdSide {
    pub(crate) model: Model,
    keys: Keys,
    plan: Plan,
    rng: Rng,
    messages: BTreeMap<(u64, u64), Message>,
    sent: u64,
    watches: BTreeMap<u64, Watch>,
    next_watch: u64,
    pub(crate) cuts: Vec<[Cut; 2]>,
    /// Until when everything between a node and etcd takes long.
    pub(crate) far_until: Vec<u64>,
    pub(crate) away_until: u64,
    pub(crate) slow_until: u64,
    busy_until: u64,
    /// How late leases end, as etcd looks only now and then.
    pub(crate) lag: u64,
    pub(crate) seen: Seen,
}

impl EtcdSide {
    pub(crate) fn new(plan: Plan, nodes: usize, seed: u64) -> Self {
        Self {
            model: Model::default(),
            keys: Keys::new("sim", 0),
            plan,
            rng: Rng::with_seed(seed ^ 0xe7cd),
            messages: BTreeMap::new(),
            sent: 0,
            watches: BTreeMap::new(),
            next_watch: 0,
            cuts: vec![[Cut::default(); 2]; nodes],
            far_until: vec![0; nodes],
            away_until: 0,
            slow_until: 0,
            busy_until: 0,
            lag: 0,
            seen: Seen::default(),
        }
    }

    /// When something happens by itself.
    pub(crate) fn next_time(&self) -> Option<u64> {
        let message = self.messages.first_key_value().map(|((at, _), _)| *at);
        let ends = self.model.next_end().map(|end| end.0 + self.lag);
        let ends = ends.map(|end| end.max(self.away_until));
        [message, ends].into_iter().flatten().min()
    }

    pub(crate) fn ask(&mut self, now: u64, asker: Asker, mut ask: Ask) {
        self.break_guards(&mut ask);
        let is_append = is_append(&ask);
        if is_append && self.plan.breaks == Break::SpeaksAhead {
            // It is on its way, which is as good as done.
            let done = Answer::Txn {
                revision: self.model.revision(),
                succeeded: true,
                got: Vec::new(),
            };
            self.put(now, Message::Back(asker, Back::Answer(Ok(done))));
        }
        self.post(now, asker.node, 0, Message::Question(asker, ask));
    }

    /// What is left of a transaction if a guard was forgotten.
    fn break_guards(&self, ask: &mut Ask) {
        if !is_append(ask) {
            return;
        }
        let Ask::Txn { compare, .. } = ask else {
            return;
        };
        match self.plan.breaks {
            Break::NoGuards => compare.retain(|it| matches!(it, Compare::Exists(_))),
            Break::NoPredecessorGuard => compare.retain(|it| !matches!(it, Compare::Exists(_))),
            Break::NoAbsentGuard => compare.retain(|it| !matches!(it, Compare::Created(_, 0))),
            _ => {}
        }
    }

    pub(crate) fn begin_watch(
        &mut self,
        now: u64,
        asker: Asker,
        key: Vec<u8>,
        end: Vec<u8>,
        from: u64,
    ) {
        self.watches
            .retain(|_, watch| watch.asker.task != asker.task);
        let begin = Message::BeginWatch(asker, key, end, from);
        self.post(now, asker.node, 0, begin);
    }

    /// What a watch has told by now.
    pub(crate) fn hear(&mut self, watch: u64) -> Option<Result<Watched, Trouble>> {
        let Some(it) = self.watches.get_mut(&watch) else {
            return Some(Err(Trouble::Unanswered("the watch is broken".to_owned())));
        };
        it.ready.pop_front()
    }

    /// Puts something on its way, in this direction; it may never arrive.
    fn post(&mut self, now: u64, node: usize, way: usize, message: Message) {
        let rng = &mut self.rng;
        let mut arrives = now + rng.u64(50..4_000) * 1_000 + self.plan.one_way;
        if self.plan.has_faults(now) {
            match rng.u32(..1_000) {
                0..=4 => {
                    self.seen.lost += 1;
                    return;
                }
                5..=9 => arrives += rng.u64(..3_000) * MS,
                _ => {}
            }
            if self.far_until[node] > now || self.plan.is_far {
                arrives += rng.u64(20..240) * MS;
            }
        }
        if let Some(cut) = self.cuts[node][way].at(now) {
            if rng.bool() {
                self.seen.lost += 1;
                return;
            }
            arrives = arrives.max(cut + rng.u64(..200) * MS);
        }
        self.put(arrives, message);
    }

    fn put(&mut self, at: u64, message: Message) {
        self.sent += 1;
        self.messages.insert((at, self.sent), message);
    }

    /// Everything that happens by now. Returns what has arrived.
    pub(crate) fn step(&mut self, now: u64) -> Vec<(Asker, Back)> {
        let mut arrived = Vec::new();
        if self.away_until > now {
            // It elects: nothing ends meanwhile, and then every lease begins anew.
            self.model.restart_leases(Nanos(self.away_until));
        } else {
            self.model.expire(Nanos(now.saturating_sub(self.lag)));
        }
        self.tell(now);
        while let Some(entry) = self.messages.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Message::Question(..) | Message::BeginWatch(..) | Message::Work(..)
                    if self.away_until > now && self.rng.u8(..4) == 0 =>
                {
                    self.seen.lost += 1;
                }
                message @ (Message::Question(..) | Message::BeginWatch(..) | Message::Work(..))
                    if self.away_until > now =>
                {
                    let later = self.away_until + self.rng.u64(..100) * MS;
                    self.put(later, message);
                }
                Message::Question(asker, ask) => {
                    let is_slow = self.slow_until > now && matches!(ask, Ask::Txn { .. });
                    if is_slow {
                        let takes = self.rng.u64(20..400) * MS;
                        self.busy_until = self.busy_until.max(now) + takes;
                    }
                    let at = if is_slow { self.busy_until } else { now };
                    let at = match is_write(&ask) {
                        true => at + self.plan.writes_take,
                        false => at + self.read_takes(now, &ask),
                    };
                    self.put(at, Message::Work(asker, ask));
                }
                Message::Work(asker, ask) => {
                    let answer = self.apply(now, &ask);
                    self.tell(now);
                    let back = Message::Back(asker, Back::Answer(answer));
                    self.post(now, asker.node, 1, back);
                }
                Message::BeginWatch(asker, key, end, from) => {
                    self.next_watch += 1;
                    let number = self.next_watch;
                    self.watches.insert(
                        number,
                        Watch {
                            asker,
                            key,
                            end,
                            next: from,
                            last_at: now,
                            is_silent: self.plan.has_faults(now) && self.rng.u8(..20) == 0,
                            is_over: false,
                            ready: VecDeque::new(),
                        },
                    );
                    let back = Message::Back(asker, Back::Watches(Ok(number)));
                    self.post(now, asker.node, 1, back);
                    self.tell(now);
                }
                Message::Back(asker, back) => arrived.push((asker, back)),
                Message::Told(number, told) => {
                    if let Some(watch) = self.watches.get_mut(&number) {
                        watch.ready.push_back(told);
                    }
                }
            }
        }
        arrived
    }

    /// How long it takes to say what there is.
    fn read_takes(&self, now: u64, ask: &Ask) -> u64 {
        let is_read = matches!(ask, Ask::Range(_) | Ask::Txn { .. });
        let slow = self
            .plan
            .slow_reads
            .filter(|[from, _]| is_read && *from <= now);
        slow.map_or(0, |[_, takes]| takes)
    }

    /// Tells those that watch what has changed.
    fn tell(&mut self, now: u64) {
        let revision = self.model.revision();
        let has_faults = self.plan.has_faults(now);
        let mut told = Vec::new();
        for (number, watch) in &mut self.watches {
            if watch.is_over || watch.is_silent || watch.next > revision {
                continue;
            }
            let what = match self.model.changed(watch.next, &watch.key, &watch.end) {
                Ok(events) if events.is_empty() => None,
                Ok(events) => Some(Ok(Watched::Changed(events))),
                Err(trouble) => {
                    watch.is_over = true;
                    Some(Err(trouble))
                }
            };
            watch.next = revision + 1;
            let Some(what) = what else {
                continue;
            };
            let cut = self.cuts[watch.asker.node][1].at(now);
            let takes = self.rng.u64(50..4_000) * 1_000 + self.plan.one_way;
            let mut at = watch.last_at.max(now + takes);
            if let Some(cut) = cut {
                watch.is_silent = self.rng.bool(); // for ever, whatever comes
                at = at.max(cut);
            } else if has_faults && self.rng.u16(..100) == 0 {
                watch.is_over = true;
                self.seen.broken_watches += 1;
                told.push((at, *number, Err(Trouble::Unanswered("broken".to_owned()))));
                continue;
            }
            watch.last_at = at;
            if !watch.is_silent {
                told.push((at, *number, what));
            }
        }
        for (at, number, what) in told {
            self.put(at, Message::Told(number, what));
        }
    }

    fn apply(&mut self, now: u64, ask: &Ask) -> Result<Answer, Trouble> {
        let before = match ask {
            Ask::Txn { success, .. } => self.entries_in(success),
            _ => Vec::new(),
        };
        self.model.is_full = self.plan.is_full(now);
        let mut answer = self.model.apply(Nanos(now), ask);
        if let (Ask::KeepAlive { .. }, Ok(Answer::KeptAlive { ttl_s: 0 })) = (ask, &answer)
            && self.plan.has_faults(now)
            && self.rng.bool()
        {
            // A member of etcd that led until a moment ago does not know that the lease is over.
            self.seen.stale_renewals += 1;
            answer = Ok(Answer::KeptAlive {
                ttl_s: self.plan.ttl_s,
            });
        }
        if self.plan.has_faults(now) && self.rng.u8(..8) == 0 {
            self.lag = self.rng.u64(..500) * MS * u64::from(self.rng.bool());
        }
        match (&answer, ask) {
            (Err(Trouble::NoSpace(_)), _) => self.seen.full += 1,
            (Ok(Answer::Done), Ask::Compact { .. }) => self.seen.compactions += 1,
            (Ok(Answer::Txn { succeeded, .. }), Ask::Txn { success, .. }) => {
                if !succeeded && is_append(ask) {
                    self.seen.refused += 1;
                }
                if *succeeded {
                    for (seq, was_there) in before {
                        assert!(!was_there, "entry {seq} is written twice");
                        self.check_entry(seq);
                    }
                    if success.iter().any(|op| matches!(op, Op::Delete(..))) {
                        self.seen.trims += 1;
                    }
                }
            }
            _ => {}
        }
        answer
    }

    /// The entries that would be written, and whether they are there already.
    fn entries_in(&self, ops: &[Op]) -> Vec<(u64, bool)> {
        let seq = |op: &Op| match op {
            Op::Put { key, .. } => {
                let seq = self.keys.seq_of(key)?;
                Some((seq, self.model.value(key).is_some()))
            }
            _ => None,
        };
        ops.iter().filter_map(seq).collect()
    }

    fn entry(&self, seq: u64) -> Option<Logged> {
        let kv = self.model.value(&self.keys.entry(seq))?;
        Some(Logged::decode(&kv.value).expect("an entry that can be read"))
    }

    /// An entry was written.
    fn check_entry(&mut self, seq: u64) {
        self.seen.entries += 1;
        let written = self.entry(seq).expect("it was written");
        assert!(
            self.entry(seq + 1).is_none(),
            "{seq} in the middle of the log"
        );
        if seq == 0 {
            return;
        }
        let Some(before) = self.entry(seq - 1) else {
            panic!("a hole before entry {seq}");
        };
        assert_eq!(
            written.first,
            before.last() + 1,
            "entry {seq}: a record is missing"
        );
        let is_same = (written.leader, written.epoch) == (before.leader, before.epoch);
        let is_next = written.leader > before.leader && written.epoch == before.epoch + 1;
        assert!(
            is_same || is_next,
            "entry {seq} of leader {} and epoch {} behind leader {} and epoch {}",
            written.leader,
            written.epoch,
            before.leader,
            before.epoch
        );
    }

    /// It is as it was then. Nothing of what is on its way arrives.
    pub(crate) fn restore(&mut self, now: u64, backup: Model) {
        self.model = backup;
        self.model.restart_leases(Nanos(now));
        self.messages.clear();
        self.watches.clear();
    }

    /// Somebody else has it forget everything that was.
    pub(crate) fn compact(&mut self, now: u64) {
        let revision = self.model.revision();
        let _ = self.apply(now, &Ask::Compact { revision });
    }

    /// Nothing of a node is on its way any more.
    pub(crate) fn forget_node(&mut self, node: usize) {
        self.watches.retain(|_, watch| watch.asker.node != node);
        self.messages
            .retain(|_, message| !matches!(message, Message::Back(asker, _) if asker.node == node));
    }
}

/// Whether etcd's members have to agree on this and write it down. A renewal is the business of their leader alone.
fn is_write(ask: &Ask) -> bool {
    let is_change = |op: &Op| !matches!(op, Op::Get(_));
    match ask {
        Ask::Txn {
            success, failure, ..
        } => success.iter().chain(failure).any(is_change),
        Ask::Grant { .. } | Ask::Revoke { .. } | Ask::Compact { .. } => true,
        Ask::Range(_) | Ask::KeepAlive { .. } | Ask::TimeToLive { .. } | Ask::Status => false,
    }
}

/// Whether this puts an entry into the log.
pub(crate) fn is_append(ask: &Ask) -> bool {
    matches!(ask, Ask::Txn { compare, success, .. }
        if compare.len() >= 2
            && matches!(&success[..], [Op::Put { lease: 0, key, .. }] if key.windows(5).any(|it| it == b"/log/"))
            && compare.iter().any(|it| matches!(it, Compare::Exists(_))))
}

//! The store of a leader with its thread, on a model of etcd whose answers can be lost.

use std::sync::atomic::AtomicU64 as Counter;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::base::{Fence, Millis};
use crate::cluster::role::{Role, Terms};
use crate::etcd::{Answer, Ask, Compare, Get, Model, Op, Trouble};

#[path = "store_snapshot_tests.rs"]
mod snapshots;

const WITHIN: Duration = Duration::from_secs(5);

/// Time stands still but for what a test says; all tests share it, and each has leases of its own.
static NOW: Counter = Counter::new(1_000_000_000);

/// Where the threads of the tests are: threads of the system, at that time.
struct TestPlace {
    woken: Mutex<Sender<()>>,
}

impl Place for TestPlace {
    fn now(&self) -> Nanos {
        Nanos(NOW.load(Ordering::SeqCst))
    }

    fn wake(&self) {
        let _ = self.woken.lock().unwrap().send(());
    }

    fn spawn(&self, name: &'static str, run: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(run).map(|_| ())
    }

    fn wait(&self, bell: &Arc<Bell>, heard: u64, most: Duration) {
        bell.sleep(heard, most);
    }

    fn etcd(&self, _: usize) -> Box<dyn Etcd + Send> {
        panic!("it is given one")
    }

    fn watch(&self, _: usize) -> Box<dyn crate::etcd::Watching + Send> {
        panic!("a store does not watch")
    }
}

/// An etcd that several can ask.
#[derive(Clone, Default)]
struct TestEtcd {
    model: Arc<Mutex<Model>>,
    /// How many of the next transactions are done, and their answers lost.
    loses: Arc<AtomicU64>,
    /// Every transaction that would change something is answered with nonsense, and not done.
    refuses: Arc<AtomicBool>,
    /// How many of these there were.
    asked: Arc<AtomicU64>,
    /// How many of the next questions are not answered, whatever they are.
    silent: Arc<AtomicU64>,
    /// For how long each was waited for at most.
    patience: Arc<Mutex<Vec<Duration>>>,
}

impl TestEtcd {
    fn ask(&self, ask: &Ask) -> Result<Answer, Trouble> {
        self.model.lock().unwrap().apply(Nanos(0), ask)
    }

    fn value(&self, key: &[u8]) -> Option<crate::etcd::Kv> {
        self.model.lock().unwrap().value(key)
    }
}

impl Etcd for TestEtcd {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        self.patience.lock().unwrap().push(within);
        let is_write = matches!(ask, Ask::Txn { compare, .. } if !compare.is_empty());
        if is_write && self.refuses.load(Ordering::SeqCst) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            return Err(Trouble::Garbled("what?".to_owned()));
        }
        let one_less = |left: u64| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.silent.fetch_update(order, order, one_less).is_ok() {
            return Err(Trouble::Unanswered("it is busy".to_owned()));
        }
        let answer = self.ask(ask);
        if is_write && self.loses.fetch_update(order, order, one_less).is_ok() {
            return Err(Trouble::Unanswered("lost".to_owned()));
        }
        answer
    }
}

struct World {
    etcd: TestEtcd,
    keys: Keys,
    tenancy: Arc<Tenancy>,
    store: EtcdStore,
    woken: Receiver<()>,
    lease: u64,
}

/// A leader whose log has two entries: the first, and the one with which it began to lead.
fn world() -> World {
    let keys = Keys::new("test", 0);
    let mut etcd = TestEtcd::default();
    create(&mut etcd, &keys, WITHIN).unwrap();
    let Ok(Answer::Granted { lease, ttl_s }) = etcd.ask(&Ask::Grant { ttl_s: 5 }) else {
        panic!("no lease");
    };
    let take = Ask::Txn {
        compare: vec![Compare::Created(keys.leader(), 0)],
        success: vec![Op::Put {
            key: keys.leader(),
            value: b"us".to_vec(),
            lease,
        }],
        failure: Vec::new(),
    };
    let Ok(Answer::Txn {
        revision: leader, ..
    }) = etcd.ask(&take)
    else {
        panic!("not taken");
    };
    let (sender, woken) = channel();
    let terms = Terms {
        ttl_s: 5,
        margin: Millis(500),
    };
    let woken_by = Mutex::new(sender);
    let place = TestPlace { woken: woken_by };
    let tenancy = Arc::new(Tenancy::new(terms, Arc::new(place)));
    tenancy.change(|standing, now| {
        standing.granted(now, lease, ttl_s);
        standing.leads(now, now);
    });
    let mut appender = Appender::new(keys.clone(), leader, 0);
    let epoch = Logged {
        leader,
        nonce: [9, 9],
        epoch: 1,
        first: 1,
        frames: Vec::new(),
    };
    let began = etcd.ask(&appender.begin(&epoch));
    assert_eq!(appender.answered(began), Next::Committed { proves: true });
    let lead = Lead {
        tenancy: Arc::clone(&tenancy),
        appender,
        position: Position {
            seq: 1,
            leader,
            epoch: 1,
            ..Position::default()
        },
        nonce: 7,
        batch_bytes: 4 << 10,
        figures: Arc::default(),
    };
    let store = EtcdStore::new(lead, Box::new(etcd.clone()), Box::new(|| 0)).unwrap();
    World {
        etcd,
        keys,
        tenancy,
        store,
        woken,
        lease,
    }
}

fn record(value: i64) -> Record {
    Record::Counted {
        key: b"hits"[..].into(),
        value,
    }
}

impl World {
    fn keep(&mut self, values: std::ops::Range<i64>) {
        for value in values {
            self.store.append(Nanos(0), &record(value));
        }
        self.store.commit(Nanos(0));
    }

    /// Waits until this much may be spoken of.
    fn await_durable(&mut self, number: u64) {
        while self.store.progress().durable < number {
            assert_eq!(self.store.progress().failed, None);
            self.woken.recv_timeout(WITHIN).expect("it is never kept");
        }
    }

    fn await_role(&self, role: Role) {
        while self.tenancy.role() != role {
            self.woken
                .recv_timeout(WITHIN)
                .expect("it never comes to that");
        }
    }

    /// Everything that was kept, read back.
    /// Its lease was over for a moment, and was renewed since.
    fn fall_silent(&self) {
        let lease = self.lease;
        // It has to look as if the time was over already, without moving the clock of the other tests.
        self.tenancy.change(|standing, now| {
            let long_ago = Nanos(now.0 - 900_000_000);
            let mut old = crate::cluster::role::Standing::new(Terms {
                ttl_s: 1,
                margin: Millis(500),
            });
            old.granted(long_ago, lease, 1);
            old.leads(long_ago, long_ago);
            assert_eq!(old.role(now), Role::Paused);
            old.kept_alive(lease, now, now, 5);
            *standing = old;
        });
    }

    fn read(&mut self) -> (Position, Vec<i64>) {
        let mut values = Vec::new();
        let keys = self.keys.clone();
        let position = load(&mut self.etcd, &keys, WITHIN, &mut |bytes| {
            for frame in frames(bytes) {
                if let super::super::Entry::Counted { value, .. } = frame.unwrap().1 {
                    values.push(value);
                }
            }
        });
        (position.unwrap().unwrap(), values)
    }
}

#[test]
fn what_was_appended_is_in_the_log_in_order_and_then_may_be_spoken_of() {
    let mut world = world();
    assert_eq!(world.store.progress().durable, 0);
    world.keep(0..1);
    world.await_durable(1);
    world.keep(1..4);
    world.await_durable(4);
    let (position, values) = world.read();
    assert_eq!(values, [0, 1, 2, 3]);
    assert_eq!((position.number, position.epoch), (4, 1));
    assert_eq!(world.store.memory(), 0);
}

#[test]
fn more_than_fits_becomes_several_entries() {
    let mut world = world();
    world.keep(0..1_000);
    world.await_durable(1_000);
    let (position, values) = world.read();
    assert!(values.into_iter().eq(0..1_000));
    assert!(position.seq > 5, "{position:?}");
    for seq in 2..=position.seq {
        let kv = world.etcd.value(&world.keys.entry(seq)).unwrap();
        assert!(kv.value.len() <= 4 << 10, "entry {seq}");
    }
}

#[test]
fn an_answer_that_was_lost_is_neither_forgotten_nor_written_twice() {
    let mut world = world();
    for round in 0..20 {
        world
            .etcd
            .loses
            .store(u64::from(round % 3 == 0), Ordering::SeqCst);
        world.keep(round..round + 1);
        world.await_durable(round as u64 + 1);
    }
    let (position, values) = world.read();
    assert!(values.into_iter().eq(0..20));
    assert_eq!(position.number, 20);
    assert!(world.store.figures.doubts.load(Ordering::SeqCst) >= 7);
}

#[test]
fn when_another_leads_nothing_more_is_kept_or_said() {
    let mut world = world();
    world.keep(0..1);
    world.await_durable(1);
    assert!(world.store.may_speak());
    world.etcd.ask(&Ask::Revoke { lease: world.lease }).unwrap();
    world.keep(1..2);
    world.await_role(Role::Fenced);
    assert!(!world.store.may_speak());
    assert_eq!(world.store.progress().durable, 1);
    assert_eq!(world.store.progress().failed, None);
    assert_eq!(world.read().1, [0]);
}

#[test]
fn after_a_silence_it_proves_that_it_leads_before_it_speaks() {
    let mut world = world();
    world.fall_silent();
    world.await_role(Role::Leader);
    assert!(world.store.may_speak());
    // The proof is an entry without records.
    let (position, values) = world.read();
    assert_eq!((position.seq, values.len()), (2, 0));
}

#[test]
fn a_full_etcd_can_still_say_that_it_leads() {
    let mut world = world();
    world.etcd.model.lock().unwrap().is_full = true;
    world.fall_silent();
    world.await_role(Role::Leader);
    assert!(world.store.may_speak());
    assert_eq!(world.read().0.seq, 1, "nothing was written");
    // Who has lost the key meanwhile is not told so.
    let gone = Ask::Txn {
        compare: Vec::new(),
        success: vec![Op::Delete(world.keys.leader(), Vec::new())],
        failure: Vec::new(),
    };
    world.etcd.ask(&gone).unwrap();
    world.fall_silent();
    world.await_role(Role::Fenced);
    assert!(!world.store.may_speak());
}

#[test]
fn a_stranger_in_the_entries_ends_everything() {
    let mut world = world();
    let strange = Ask::Txn {
        compare: Vec::new(),
        success: vec![Op::Put {
            key: world.keys.entry(2),
            value: b"what?".to_vec(),
            lease: 0,
        }],
        failure: Vec::new(),
    };
    world.etcd.ask(&strange).unwrap();
    world.keep(0..1);
    while world.store.progress().failed.is_none() {
        world.woken.recv_timeout(WITHIN).unwrap();
    }
    assert!(!world.store.may_speak());
}

#[test]
fn a_resignation_keeps_what_was_handed_over_and_gives_the_lease_back() {
    let mut world = world();
    world.keep(0..3);
    assert_eq!(world.store.stop(), Ok(()));
    assert!(!world.store.may_speak());
    assert_eq!(world.read().1, [0, 1, 2]);
    assert!(world.etcd.value(&world.keys.leader()).is_none());
}

/// What it had not sent was dropped, so whatever comes behind that would stand behind a gap, which nobody can read.
#[test]
fn who_goes_hands_over_nothing_more() {
    let mut world = world();
    world.keep(0..2);
    world.await_durable(2);
    world.store.resign();
    world.keep(2..4);
    assert_eq!(world.store.memory(), 0, "it would be written");
    while !world.store.has_resigned() {
        std::thread::yield_now();
    }
    assert_eq!(world.store.stop(), Ok(()));
    assert_eq!(world.read().1, [0, 1]);
}

#[test]
fn without_space_changes_are_refused_until_there_is_some() {
    let mut world = world();
    world.etcd.model.lock().unwrap().is_full = true;
    world.keep(0..1);
    while !world.store.progress().is_full {
        world.woken.recv_timeout(WITHIN).unwrap();
    }
    world.etcd.model.lock().unwrap().is_full = false;
    world.await_durable(1);
    assert!(!world.store.progress().is_full);
}

/// A member of etcd that refuses at once is not asked as fast as it can refuse.
#[test]
fn an_etcd_that_refuses_is_given_time() {
    let mut world = world();
    world.etcd.refuses.store(true, Ordering::SeqCst);
    world.keep(0..1);
    let bell = Arc::new(Bell::default());
    bell.sleep(bell.heard(), Duration::from_millis(500));
    let asked = world.etcd.asked.load(Ordering::SeqCst);
    assert!(asked < 20, "asked {asked} times");
    world.etcd.refuses.store(false, Ordering::SeqCst);
    world.await_durable(1);
}

#[test]
fn an_answer_is_waited_for_longer_each_time_and_for_eight_seconds_at_most() {
    let mut world = world();
    world.etcd.silent.store(5, Ordering::SeqCst);
    world.etcd.patience.lock().unwrap().clear();
    world.keep(0..1);
    world.await_durable(1);
    let patience = world.etcd.patience.lock().unwrap().clone();
    let tried: Vec<u64> = patience.iter().map(Duration::as_secs).collect();
    assert_eq!(tried[..6], [1, 2, 4, 8, 8, 8], "{tried:?}");
    // The next entry begins anew.
    world.etcd.patience.lock().unwrap().clear();
    world.keep(1..2);
    world.await_durable(2);
    assert_eq!(world.etcd.patience.lock().unwrap()[0].as_secs(), 1);
}

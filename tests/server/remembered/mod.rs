//! Remembered before spoken: no byte that speaks of a change leaves before the change is kept, and
//! nobody waits for the changes of others. The store here keeps what a test says it has kept.
//!
//! Here is what is said when; `leases.rs`, `behind.rs` and `ends.rs` have the rest.

mod behind;
mod ends;
mod leases;

use std::cell::RefCell;
use std::rc::Rc;

use latch_sim::pipe::{ORIGIN, Pipes};
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Record;
use latchd::engine::{Engine, Rules};
use latchd::server::{Server, Settings};
use latchd::store::{Progress, Store};

/// What the test and the server's store share.
#[derive(Default)]
struct Kept {
    records: Vec<Record>,
    commits: usize,
    progress: Progress,
    is_behind: bool,
    memory: usize,
}

#[derive(Clone, Default)]
struct ByHand(Rc<RefCell<Kept>>);

impl Store for ByHand {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, _: Nanos, record: &Record) {
        self.0.borrow_mut().records.push(record.clone());
    }

    fn commit(&mut self, _: Nanos) {
        self.0.borrow_mut().commits += 1;
    }

    fn progress(&mut self) -> Progress {
        self.0.borrow().progress.clone()
    }

    fn is_behind(&self) -> bool {
        self.0.borrow().is_behind
    }

    fn memory(&self) -> usize {
        self.0.borrow().memory
    }

    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A server whose store keeps nothing until it is told to.
struct World {
    pipes: Pipes<ByHand>,
    store: ByHand,
}

impl World {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let rules = Rules {
            durable: true,
            ..Rules::default()
        };
        let store = ByHand::default();
        let engine = Engine::new(rules, ORIGIN);
        let server = Server::with_store(settings, engine, store.clone());
        Self {
            pipes: Pipes::new(server),
            store,
        }
    }

    /// Everything that was recorded so far is on disk now.
    fn keep_all(&mut self) {
        self.keep(self.recorded());
    }

    fn keep(&mut self, durable: u64) {
        self.store.0.borrow_mut().progress.durable = durable;
        self.pipes.settle();
    }

    fn recorded(&self) -> u64 {
        self.store.0.borrow().records.len() as u64
    }

    fn connect<const N: usize>(&mut self) -> [usize; N] {
        std::array::from_fn(|_| self.pipes.connect())
    }

    fn ask(&mut self, who: usize, frame: &str) -> String {
        self.pipes.ask(who, frame)
    }

    fn read(&mut self, who: usize) -> String {
        self.pipes.read(who)
    }

    /// Time passes, and more of it than a lease of 33 seconds has.
    fn pass_40_s(&mut self) {
        for _ in 0..40 {
            self.pipes.pass(Millis::from_secs(1));
            self.pipes.settle();
        }
    }

    /// The names of grants that ended, in order.
    fn ended(&self) -> Vec<String> {
        let name = |record: &Record| match record {
            Record::Ended { key, .. } => Some(String::from_utf8_lossy(key.as_bytes()).into_owned()),
            _ => None,
        };
        self.store
            .0
            .borrow()
            .records
            .iter()
            .filter_map(name)
            .collect()
    }

    /// Takes a lock and has it kept; returns the token.
    fn take(&mut self, who: usize, key: &str) -> String {
        assert_eq!(self.ask(who, &format!("l {key} 0")), "");
        self.keep_all();
        let answer = self.read(who);
        let token = answer.split(' ').nth(1);
        token.expect("granted").to_owned()
    }
}

#[test]
fn a_grant_is_said_when_it_is_kept_and_not_before() {
    let mut world = World::new();
    let [a] = world.connect();
    assert_eq!(world.ask(a, "l job 0"), "");
    assert!(
        world.store.0.borrow().commits > 0,
        "nobody asked for it to be kept"
    );
    // The reservation of the fence alone is not enough.
    world.keep(world.recorded() - 1);
    assert_eq!(world.read(a), "");
    world.keep_all();
    assert!(world.read(a).starts_with("ok "));
}

#[test]
fn only_those_wait_who_speak_of_what_is_not_kept() {
    let mut world = World::new();
    let [a, b, c] = world.connect();
    let token = world.take(a, "old");
    assert_eq!(world.ask(b, "l new 0"), "");
    // A renewal of what is on disk, a look at another key, a ping: none of them waits.
    assert!(world.ask(a, &format!("n old {token}")).starts_with("ok "));
    assert_eq!(world.ask(c, "get hits _"), "ok 0\n");
    assert_eq!(world.ask(c, "ping _ _"), "ok\n");
    // That the new lock is taken is not to be known yet.
    assert_eq!(world.ask(c, "l new 0"), "");
    // And its own later answers wait behind it.
    assert_eq!(world.ask(c, "ping _ _"), "");
    world.keep_all();
    assert_eq!(world.read(c), "timeout\nok\n");
    assert!(world.read(b).starts_with("ok "));
}

#[test]
fn a_release_and_the_grant_it_makes_possible_are_kept_in_this_order() {
    let mut world = World::new();
    let [a, b] = world.connect();
    let token = world.take(a, "job");
    assert_eq!(world.ask(b, "l job 10"), "");
    let before = world.recorded();
    assert_eq!(world.ask(a, &format!("r job {token}")), "");
    {
        let kept = world.store.0.borrow();
        let [Record::Ended { .. }, Record::Granted { .. }] = &kept.records[before as usize..]
        else {
            panic!("{:?}", &kept.records[before as usize..]);
        };
    }
    // The release alone on disk: nobody holds the lock, so nobody may be told that it does.
    world.keep(before + 1);
    assert_eq!(world.read(b), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok\n");
    assert!(world.read(b).starts_with("ok "));
}

#[test]
fn pushes_wait_as_answers_do() {
    let mut world = World::new();
    let [a, watcher] = world.connect();
    assert_eq!(world.ask(watcher, "watch hits _"), "ok\n");
    assert_eq!(world.ask(a, "incr hits 1"), "");
    assert_eq!(world.read(watcher), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok 1\n");
    assert_eq!(world.read(watcher), "watch incr hits\n");
}

#[test]
fn a_deletion_is_not_to_be_seen_before_it_is_kept() {
    let mut world = World::new();
    let [a, b] = world.connect();
    assert_eq!(world.ask(a, "kset name value"), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok\n");
    assert_eq!(world.ask(a, "kdel name _"), "");
    assert_eq!(world.ask(b, "kget name _"), "");
    world.keep_all();
    assert_eq!(
        (world.read(a), world.read(b)),
        ("ok\n".into(), "nil\n".into())
    );
}

#[test]
fn stats_speak_of_everything_and_wait_for_everything() {
    let mut world = World::new();
    let [a, b] = world.connect();
    assert_eq!(world.ask(a, "l job 0"), "");
    assert_eq!(world.ask(b, "stats _ _"), "");
    world.keep_all();
    assert!(world.read(b).contains("\"job\""));
}

#[test]
fn when_the_store_has_failed_nothing_more_is_said() {
    let mut world = World::new();
    let [a] = world.connect();
    assert_eq!(world.ask(a, "l job 0"), "");
    {
        let progress = &mut world.store.0.borrow_mut().progress;
        progress.failed = Some("cannot sync".to_owned());
        progress.durable = 100;
    }
    world.pipes.send(a, b"ping\n_\n\n");
    world.pipes.turn();
    assert_eq!(world.read(a), "");
    assert_eq!(world.pipes.server.failure(), Some("cannot sync"));
}

#[test]
fn a_popped_value_that_was_never_sent_goes_back_also_on_disk() {
    let mut world = World::new();
    let [a, b] = world.connect();
    assert_eq!(world.ask(a, "rpush jobs one"), "");
    world.keep_all();
    assert_eq!(world.ask(b, "lpop jobs _"), "");
    world.pipes.reset(b);
    world.pipes.settle();
    let kept = world.store.0.borrow();
    let [.., Record::Popped { .. }, Record::Pushed { .. }] = &kept.records[..] else {
        panic!("{:?}", kept.records);
    };
}

/// Two connections of one client: what one of them is told depends on what the other has changed, so it waits for
/// that, too.
#[test]
fn range_locks_wait_for_a_change_of_the_time_to_live_of_their_client() {
    let mut world = World::new();
    let [a, b, c] = world.connect();
    assert_eq!(world.ask(a, "attach gw/1 100 s3cret"), "");
    world.keep_all();
    assert!(world.read(a).ends_with(" new\n"));
    assert!(
        world
            .ask(b, "attach gw/1 100 s3cret")
            .ends_with(" resumed\n")
    );
    assert_eq!(world.ask(b, "rangelock f ex 0 10 0"), "");
    world.keep_all();
    assert_eq!(world.read(b), "ok\n");
    assert_eq!(world.ask(a, "attach gw/1 0 s3cret"), "");
    assert_eq!(world.ask(b, "rangelock g ex 0 10 0"), "");
    assert_eq!(world.ask(b, "rangeunlock f 0 0"), "");
    assert_eq!(world.ask(c, "rangelock f ex 0 10 0"), "");
    assert_eq!(world.ask(c, "rangelock other ex 0 10 0"), "");
    world.keep_all();
    assert!(world.read(a).ends_with(" resumed\n"));
    assert_eq!(world.read(b), "ok\nok\n");
    assert_eq!(world.read(c), "ok\nok\n");
    // From now on nothing of the client is recorded, and nothing waits.
    assert_eq!(world.ask(b, "rangelock g ex 10 10 0"), "ok\n");
}

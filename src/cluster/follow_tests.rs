//! A standby that follows an etcd which remembers next to nothing of what was.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::super::testing::{member, options};
use super::*;
use crate::etcd::Model;
use crate::store::etcd::{Appender, Logged, Next, SALT, frames};
use crate::store::format::push_record;

/// An etcd that forgets everything but the present behind every few questions, and in which the log goes on.
struct World {
    model: Model,
    keys: Keys,
    appender: Appender,
    /// The next record.
    number: u64,
    asked: u64,
    every: u64,
}

type Shared = Arc<Mutex<World>>;

impl World {
    fn new(every: u64) -> Self {
        let mut world = Self::empty(every);
        world.begin();
        world
    }

    /// An etcd without a log.
    fn empty(every: u64) -> Self {
        let keys = Keys::new("test", 0);
        Self {
            model: Model::default(),
            appender: Appender::new(keys.clone(), 0, 0),
            keys,
            number: 1,
            asked: 0,
            every,
        }
    }

    /// Another member creates the log, leads, and writes.
    fn begin(&mut self) {
        let mut first = TestEtcd::Plain(&mut self.model);
        create(&mut first, &self.keys, PAGE_WITHIN).unwrap();
        self.put_leader(b"another".to_vec(), 0);
        let leader = self.model.revision();
        self.appender = Appender::new(self.keys.clone(), leader, 0);
        for _ in 0..200 {
            self.append();
        }
    }

    fn put_leader(&mut self, value: Vec<u8>, lease: u64) {
        let lead = Ask::Txn {
            compare: Vec::new(),
            success: vec![Op::Put {
                key: self.keys.leader(),
                value,
                lease,
            }],
            failure: Vec::new(),
        };
        self.model.apply(Nanos(0), &lead).unwrap();
    }

    /// Another entry, with one record.
    fn append(&mut self) {
        let mut logged = Logged {
            leader: self.model.value(&self.keys.leader()).unwrap().created,
            nonce: [1, self.number],
            epoch: 1,
            first: self.number,
            frames: Vec::new(),
        };
        let record = crate::engine::types::Record::Counted {
            key: b"hits"[..].into(),
            value: 1,
        };
        let clocks = || crate::store::Clocks {
            now: Nanos(0),
            wall_ms: 0,
        };
        push_record(&mut logged.frames, SALT, self.number, &record, clocks);
        let ask = self.appender.begin(&logged);
        let answer = self.model.apply(Nanos(0), &ask);
        let next = self.appender.answered(answer);
        assert_eq!(next, Next::Committed { proves: true });
        self.number += 1;
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, Trouble> {
        let answer = self.model.apply(Nanos(0), ask);
        self.asked += 1;
        if self.asked.is_multiple_of(self.every) {
            self.append();
            let revision = self.model.revision();
            self.model.apply(Nanos(0), &Ask::Compact { revision })?;
        }
        answer
    }
}

/// A way to it.
enum TestEtcd<'a> {
    Plain(&'a mut Model),
    Forgetful(Shared),
}

impl Etcd for TestEtcd<'_> {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        match self {
            Self::Plain(model) => model.apply(Nanos(0), ask),
            Self::Forgetful(world) => world.lock().unwrap().ask(ask),
        }
    }
}

/// Tells what has changed since it was begun, and ends the member when there is nothing more to tell.
struct TestWatch {
    world: Shared,
    member: Arc<Member>,
    from: Option<u64>,
    begun: Arc<Mutex<u64>>,
}

impl Watching for TestWatch {
    fn begin(&mut self, _: &[u8], _: &[u8], from: u64, _: Duration) -> Result<(), Trouble> {
        self.from = Some(from);
        *self.begun.lock().unwrap() += 1;
        Ok(())
    }

    fn is_begun(&self) -> bool {
        self.from.is_some()
    }

    fn next(&mut self, _: Duration) -> Result<Watched, Trouble> {
        let world = self.world.lock().unwrap();
        let (first, end) = (world.keys.leader(), world.keys.entries_end());
        let from = self.from.take().unwrap();
        let events = world.model.changed(from, &first, &end)?;
        self.from = Some(world.model.revision() + 1);
        if events.is_empty() {
            self.member.end();
            return Ok(Watched::Nothing);
        }
        Ok(Watched::Changed(events))
    }

    fn end(&mut self) {
        self.from = None;
    }
}

/// How often it was loaded from the beginning, and how many records it has heard of then.
fn heard(news: &Receiver<News>) -> (u64, u64) {
    let (mut loads, mut records) = (0, 0);
    while let Ok(news) = news.try_recv() {
        match news {
            News::Reset => (loads, records) = (loads + 1, 0),
            News::Frames(bytes) => records += frames(&bytes).count() as u64,
            _ => {}
        }
    }
    (loads, records)
}

fn follower(
    member: &Arc<Member>,
    news: SyncSender<News>,
    etcd: Box<dyn Etcd + Send>,
    watch: TestWatch,
) -> Follower {
    Follower {
        member: Arc::clone(member),
        news,
        etcd,
        watch: Box::new(watch),
        keys: Keys::new("test", 0),
        map_revision: 0,
        is_resharded: false,
        complaint: String::new(),
        known_since: None,
        looked: None,
        late_lease: 0,
        poll_within: member.ttl_part(5),
        grant_within: member.ttl_part(2),
    }
}

#[test]
fn a_standby_follows_however_little_etcd_remembers() {
    for every in 2..8 {
        let (member, _) = member(options());
        let world = Arc::new(Mutex::new(World::new(every)));
        let (sender, news) = sync_channel(10_000);
        let begun = Arc::default();
        let watch = TestWatch {
            world: Arc::clone(&world),
            member: Arc::clone(&member),
            from: None,
            begun: Arc::clone(&begun),
        };
        let etcd = TestEtcd::Forgetful(Arc::clone(&world));
        let mut follower = follower(&member, sender, Box::new(etcd), watch);
        assert!(follower.live().is_ok(), "every {every}");
        let (loads, records) = heard(&news);
        assert_eq!(loads, 1, "every {every}: what was loaded stays");
        let world = world.lock().unwrap();
        assert_eq!(records, world.number - 1, "every {every}");
        let begun = *begun.lock().unwrap();
        assert!(begun <= 3, "every {every}: watched {begun} times");
    }
}

/// An etcd in which another member creates the log after this many requests.
struct Raced(Shared, u64);

impl Etcd for Raced {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        let mut world = self.0.lock().unwrap();
        let answer = world.ask(ask);
        if world.asked == self.1 {
            world.begin();
        }
        answer
    }
}

/// Two members start at once. One creates the log between two reads of the other.
#[test]
fn log_that_another_member_creates_meanwhile_is_followed() {
    for behind in 1..=7 {
        let (member, _) = member(options());
        let world = Arc::new(Mutex::new(World::empty(u64::MAX)));
        let (sender, news) = sync_channel(10_000);
        let watch = TestWatch {
            world: Arc::clone(&world),
            member: Arc::clone(&member),
            from: None,
            begun: Arc::default(),
        };
        let etcd = Raced(Arc::clone(&world), behind);
        let mut follower = follower(&member, sender, Box::new(etcd), watch);
        if let Err(Anew::NotRead(why)) = follower.live() {
            panic!("behind {behind} questions: {why}");
        }
        assert_eq!(heard(&news).1, 200, "behind {behind} questions");
    }
}

/// A way to an etcd where time passes.
struct Timed(Arc<Mutex<(Model, Nanos)>>);

impl Etcd for Timed {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        let mut it = self.0.lock().unwrap();
        let now = it.1;
        it.0.apply(now, ask)
    }
}

#[test]
fn leader_whose_lease_is_over_is_late_although_its_key_is_there() {
    assert!(is_late(0, 0), "etcd knows nothing of a lease that is over");
    assert!(is_late(0, 5));
    assert!(is_late(2, 5));
    assert!(!is_late(3, 5));
}

#[test]
fn standby_does_not_redirect_to_a_leader_that_has_missed_renewals() {
    let (member, _) = member(options());
    let mut world = World::empty(u64::MAX);
    let granted = world.model.apply(Nanos(0), &Ask::Grant { ttl_s: 5 });
    assert!(matches!(granted, Ok(Answer::Granted { lease: 1, .. })));
    world.begin();
    let leader = LeaderKey {
        attempt: [9, 1],
        line: "a:1".to_owned(),
        http: String::new(),
    };
    world.put_leader(leader.encode(), 1);
    let model = Arc::new(Mutex::new((world.model.clone(), Nanos(0))));
    let (sender, _news) = sync_channel(10_000);
    let watch = TestWatch {
        world: Arc::new(Mutex::new(world)),
        member: Arc::clone(&member),
        from: None,
        begun: Arc::default(),
    };
    let etcd = Timed(Arc::clone(&model));
    let mut follower = follower(&member, sender, Box::new(etcd), watch);
    assert!(follower.read_map().is_ok());
    let keys = follower.keys.clone();
    let loaded = load(&mut *follower.etcd, &keys, PAGE_WITHIN, &mut |_| {});
    let mut position = loaded.unwrap().unwrap();
    let mut at = |ms: u64, renews: bool| {
        let mut it = model.lock().unwrap();
        it.1 = Nanos(ms * 1_000_000);
        let now = it.1;
        if renews {
            it.0.apply(now, &Ask::KeepAlive { lease: 1 }).unwrap();
        }
        drop(it);
        assert!(follower.poll(&mut position, true).is_ok());
        member.leader().line
    };
    let known = Some("a:1".to_owned());
    assert_eq!(at(0, false), known);
    assert_eq!(at(1_900, false), known, "one renewal is late");
    assert_eq!(at(2_100, false), None, "two are");
    assert_eq!(at(2_200, true), known, "it was only slow");
    assert_eq!(at(7_100, false), None);
    assert_eq!(at(7_300, false), None, "its key is gone");
}

/// A way that remembers what was asked.
struct Noted(Shared, Arc<Mutex<Vec<Ask>>>);

impl Etcd for Noted {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        self.1.lock().unwrap().push(ask.clone());
        self.0.lock().unwrap().ask(ask)
    }
}

/// Whoever has to be asked one after the other is what a change of leaders takes.
#[test]
fn who_has_all_of_the_log_leads_after_three_questions_and_who_has_not_reads_the_rest_with_the_second()
 {
    for missing in [0, 1, 5] {
        let (member, _) = member(options());
        let world = Arc::new(Mutex::new(World::new(u64::MAX)));
        let (sender, news) = sync_channel(10_000);
        let watch = TestWatch {
            world: Arc::clone(&world),
            member: Arc::clone(&member),
            from: None,
            begun: Arc::default(),
        };
        let asked = Arc::default();
        let etcd = Noted(Arc::clone(&world), Arc::clone(&asked));
        let mut follower = follower(&member, sender, Box::new(etcd), watch);
        assert!(follower.read_map().is_ok());
        let keys = follower.keys.clone();
        let loaded = load(&mut *follower.etcd, &keys, PAGE_WITHIN, &mut |_| {});
        let mut position = loaded.unwrap().unwrap();
        {
            let mut world = world.lock().unwrap();
            (0..missing).for_each(|_| world.append());
            let nobody_leads = Ask::Txn {
                compare: Vec::new(),
                success: vec![Op::Delete(keys.leader(), Vec::new())],
                failure: Vec::new(),
            };
            world.ask(&nobody_leads).unwrap();
        }
        asked.lock().unwrap().clear();
        assert!(matches!(follower.stand(&mut position), Ok(true)));
        let asked = asked.lock().unwrap();
        assert!(matches!(asked[0], Ask::Grant { .. }), "{:?}", asked[0]);
        assert_eq!(asked.len(), 3, "missing {missing}: {asked:?}");
        assert_eq!(heard(&news), (0, missing));
        assert_eq!(position.number, world.lock().unwrap().number - 1);
        assert_eq!(member.tenancy.role(), Role::Leader);
    }
}

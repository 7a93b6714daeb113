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
        let keys = Keys::new("test", 0);
        let mut model = Model::default();
        let mut first = TestEtcd::Plain(&mut model);
        create(&mut first, &keys, PAGE_WITHIN).unwrap();
        let lead = Ask::Txn {
            compare: Vec::new(),
            success: vec![Op::Put {
                key: keys.leader(),
                value: b"another".to_vec(),
                lease: 0,
            }],
            failure: Vec::new(),
        };
        model.apply(Nanos(0), &lead).unwrap();
        let leader = model.revision();
        let mut world = Self {
            model,
            appender: Appender::new(keys.clone(), leader, 0),
            keys,
            number: 1,
            asked: 0,
            every,
        };
        for _ in 0..200 {
            world.append();
        }
        world
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

//! The thread that writes the log, alone, with an etcd that answers when the test says so and a clock that stands still:
//! who is in which entry, that a resignation ends also if etcd does not answer, and what is remembered of a loss.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use latch_sim::pipe::{Pipe, pipe};
use latchd::base::{Millis, Nanos};
use latchd::cluster::role::{Role, Terms};
use latchd::cluster::{Change, Member, News, Options, Scene, Seat, Stage};
use latchd::engine::types::Record;
use latchd::engine::{Origin, Rules};
use latchd::etcd::{Answer, Ask, Etcd, Op, Trouble, Watching};
use latchd::server::{Event, Host, Server, Settings};
use latchd::shard::Shard;
use latchd::store::etcd::{
    Appender, Bell, EtcdStore, Keys, Lead, Logged, Place, Position, SALT, frames,
};
use latchd::store::format::push_record;
use latchd::store::{Clocks, Store};

const LEASE: u64 = 7;
const TTL_S: u64 = 5;

/// Where the thread is. Its clock is the test's, unless it is told to run.
struct Still {
    now_ns: AtomicU64,
    runs: AtomicBool,
    ways: Mutex<Vec<Box<dyn Etcd + Send>>>,
}

impl Place for Still {
    fn now(&self) -> Nanos {
        let step_ns = 100_000_000 * u64::from(self.runs.load(Ordering::SeqCst));
        Nanos(self.now_ns.fetch_add(step_ns, Ordering::SeqCst))
    }

    fn wake(&self) {}

    fn spawn(&self, _: &'static str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::Builder::new().spawn(run).map(drop)
    }

    fn wait(&self, _: &Arc<Bell>, _: u64, _: Duration) {
        thread::yield_now(); // it looks again and again: its clock does not tell it how long
    }

    fn etcd(&self, _: usize) -> Box<dyn Etcd + Send> {
        self.ways.lock().unwrap().pop().unwrap()
    }

    fn watch(&self, _: usize) -> Box<dyn Watching + Send> {
        panic!("nobody follows here")
    }
}

/// Shows what it was asked, and answers when it is told to.
struct Told {
    asked: Sender<Ask>,
    answers: Receiver<()>,
}

impl Etcd for Told {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        let _ = self.asked.send(ask.clone());
        match self.answers.recv() {
            Ok(()) => Ok(Answer::Txn {
                revision: 9,
                succeeded: true,
                got: Vec::new(),
            }),
            Err(_) => Err(Trouble::Unanswered("the test is over".to_owned())),
        }
    }
}

/// A member that has just begun to lead, and its etcd.
struct Scenery {
    place: Arc<Still>,
    member: Arc<Member>,
    asked: Receiver<Ask>,
    answer: Sender<()>,
}

impl Scenery {
    fn new() -> Self {
        let (asked_by, asked) = channel();
        let (answer, answers) = channel();
        let etcd: Box<dyn Etcd + Send> = Box::new(Told {
            asked: asked_by,
            answers,
        });
        let place = Arc::new(Still {
            now_ns: AtomicU64::new(0),
            runs: AtomicBool::new(false),
            ways: Mutex::new(vec![etcd]),
        });
        let options = Options {
            cluster: "test".to_owned(),
            shard: Shard::WHOLE,
            terms: Terms {
                ttl_s: TTL_S,
                margin: Millis(500),
            },
            advertise: String::new(),
            advertise_http: String::new(),
            batch_bytes: 1 << 16,
            trim_bytes: 1 << 20,
            quota_bytes: 1 << 30,
            compacts: true,
            nonce: 1,
        };
        let member = Member::new(options, Arc::clone(&place) as Arc<dyn Place>);
        let it = Self {
            place,
            member,
            asked,
            answer,
        };
        it.begin();
        it
    }

    /// It leads from now on, as far as etcd is concerned.
    fn begin(&self) {
        self.begin_with(LEASE);
    }

    /// With another lease than before: the thread of an earlier one may end only now, and ends that one.
    fn begin_with(&self, lease: u64) {
        self.member.tenancy.change(|standing, now| {
            standing.granted(now, lease, TTL_S);
            standing.leads(now, now);
        });
        assert_eq!(self.member.tenancy.role(), Role::Leader);
    }

    fn lead(&self) -> Lead {
        Lead {
            tenancy: Arc::clone(&self.member.tenancy),
            appender: Appender::new(Keys::new("test", 0), 3, 0),
            position: Position {
                leader: 3,
                epoch: 1,
                ..Position::default()
            },
            nonce: 1,
            batch_bytes: 1 << 16,
            figures: Arc::clone(&self.member.figures),
        }
    }

    /// Another way to etcd, which answers everything at once.
    fn offer_way(&self) {
        let (asked, _) = channel();
        let (answer, answers) = channel();
        (0..50).for_each(|_| answer.send(()).unwrap());
        let etcd = Box::new(Told { asked, answers });
        self.place.ways.lock().unwrap().push(etcd);
    }

    fn pass(&self, ms: u64) {
        self.place
            .now_ns
            .fetch_add(ms * 1_000_000, Ordering::SeqCst);
    }

    /// How many records are in the entry that etcd is asked for next.
    fn entry(&self) -> usize {
        let Ask::Txn { success, .. } = self.asked.recv().unwrap() else {
            panic!("no transaction");
        };
        let [Op::Put { value, .. }] = &success[..] else {
            panic!("{success:?}");
        };
        frames(&Logged::decode(value).unwrap().frames).count()
    }
}

fn write(store: &mut EtcdStore, records: i64) {
    for value in 0..records {
        let key = b"hits"[..].into();
        store.append(Nanos(0), &Record::Counted { key, value });
    }
    store.commit(Nanos(0));
}

fn scene() -> Scene {
    Scene {
        rules: Rules {
            durable: true,
            ..Rules::default()
        },
        settings: Settings::default(),
        origin: Rc::new(|fence| Origin {
            fence,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        }),
        clock: Box::new(|| Nanos(0)),
        wall_us: Arc::new(|| 0),
    }
}

#[test]
fn those_who_were_just_answered_and_those_who_wait_are_in_one_entry() {
    let it = Scenery::new();
    let mut store = EtcdStore::new(it.lead(), it.place.etcd(0), Box::new(|| 0)).unwrap();
    write(&mut store, 2);
    assert_eq!(it.entry(), 2, "nobody was answered before");
    write(&mut store, 1);
    it.pass(6);
    it.answer.send(()).unwrap();
    while store.progress().durable < 2 {
        thread::yield_now();
    }
    write(&mut store, 1);
    assert!(it.asked.try_recv().is_err(), "one more is expected");
    write(&mut store, 1);
    assert_eq!(it.entry(), 3, "the one that waited, and the two");
    it.pass(6);
    it.answer.send(()).unwrap();
    while store.progress().durable < 5 {
        thread::yield_now();
    }
    // Of three only one asks again: it is not kept waiting for long.
    write(&mut store, 1);
    it.pass(2);
    assert_eq!(it.entry(), 1);
    it.pass(6);
    it.answer.send(()).unwrap();
    while store.progress().durable < 6 {
        thread::yield_now();
    }
    // And who is alone is all that is to be expected.
    write(&mut store, 1);
    assert_eq!(it.entry(), 1);
    it.answer.send(()).unwrap();
}

#[test]
fn who_is_told_to_resign_follows_although_etcd_does_not_answer() {
    let it = Scenery::new();
    let (sender, news) = sync_channel(4);
    let mut stage = Stage::new(&it.member, news, scene());
    let mut server: Server<Pipe, Seat> = stage.standby();
    sender.send(News::Lead(Box::new(it.lead()))).unwrap();
    let leads = stage.between(&mut server, 0);
    assert!(matches!(leads, Change::Leads { .. }), "{leads:?}");
    // It was silent for too long, and has to prove that it leads: so there is an entry under way.
    it.pass(10_000);
    let renew = |standing: &mut latchd::cluster::role::Standing, now| {
        standing.kept_alive(LEASE, now, now, TTL_S);
    };
    it.member.tenancy.change(renew);
    assert_eq!(it.entry(), 0);
    it.place.runs.store(true, Ordering::SeqCst);
    let mut change = stage.resign(&mut server);
    while matches!(change, Change::Leaves(_)) {
        change = stage.between(&mut server, 0);
    }
    assert_eq!(change, Change::Follows);
    assert_eq!(it.member.tenancy.role(), Role::Standby);
    assert!(!stage.leads());
    // Nothing that the old thread finds out later changes that.
    drop(it.answer);
    while Arc::strong_count(&it.member.tenancy) > 1 {
        thread::yield_now();
    }
    assert_eq!(it.member.tenancy.role(), Role::Standby);
}

/// Records with these numbers, as they are read from etcd.
fn records(numbers: std::ops::RangeInclusive<u64>) -> News {
    let mut bytes = Vec::new();
    for number in numbers {
        let (key, value) = (b"hits"[..].into(), number as i64);
        let clocks = || Clocks {
            now: Nanos(0),
            wall_ms: 0,
        };
        push_record(
            &mut bytes,
            SALT,
            number,
            &Record::Counted { key, value },
            clocks,
        );
    }
    News::Frames(bytes)
}

/// What somebody is told who asks for bytes that nobody has.
fn ask_for_bytes(server: &mut Server<Pipe, Seat>) -> String {
    let (here, peer) = pipe(1, Host::Unknown);
    let conn = server.accept(Nanos(0), here).unwrap();
    peer.send(b"rangelock\nfile\nex 0 10 0\n");
    peer.arrive(usize::MAX);
    let readiness = peer.readiness();
    server.turn(&|| Nanos(0), [Event { conn, readiness }].into_iter(), 0);
    loop {
        if let Some(line) = peer.receive_line() {
            return String::from_utf8(line).unwrap();
        }
        server.turn(&|| Nanos(0), [].into_iter(), 0);
        thread::yield_now();
    }
}

/// etcd was restored, others have written more than was lost, and then this one leads; and lets another one lead; and leads
/// again.
#[test]
fn who_has_seen_that_etcd_went_back_takes_care_for_the_grace_period_however_often_leaders_change() {
    let grace_ms = Rules::default().grace_period.0;
    for (waits_ms, is_told) in [(0, true), (grace_ms - 1_000, true), (grace_ms, false)] {
        let it = Scenery::new();
        let (sender, news) = sync_channel(20);
        let mut stage = Stage::new(&it.member, news, scene());
        let mut server: Server<Pipe, Seat> = stage.standby();
        // Nobody waits for what it writes here.
        (0..50).for_each(|_| it.answer.send(()).unwrap());
        let tell = |all: Vec<News>| all.into_iter().for_each(|it| sender.send(it).unwrap());
        tell(vec![News::Reset, records(1..=10), News::Loaded]);
        assert_eq!(stage.between(&mut server, 0), Change::Serve);
        tell(vec![News::Reset, records(1..=3), News::Loaded]);
        assert_eq!(stage.between(&mut server, 0), Change::Serve);
        tell(vec![records(4..=12)]);
        assert_eq!(stage.between(&mut server, 0), Change::Serve);
        it.pass(waits_ms);
        let renew = |standing: &mut latchd::cluster::role::Standing, now| {
            standing.fence();
            standing.reload();
            standing.granted(now, LEASE, TTL_S);
            standing.leads(now, now);
        };
        it.member.tenancy.change(renew);
        tell(vec![News::Lead(Box::new(it.lead()))]);
        let may_have_lost = is_told;
        let leads = Change::Leads { may_have_lost };
        assert_eq!(stage.between(&mut server, 0), leads, "after {waits_ms} ms");
        if !is_told {
            continue;
        }
        let told = ask_for_bytes(&mut server);
        assert!(told.starts_with("error_grace"), "{told}");
        // It knows still when it has let another one lead, who has written more.
        it.place.runs.store(true, Ordering::SeqCst);
        let mut change = stage.resign(&mut server);
        while matches!(change, Change::Leaves(_)) {
            change = stage.between(&mut server, 0);
        }
        assert_eq!(change, Change::Follows);
        it.place.runs.store(false, Ordering::SeqCst);
        tell(vec![News::Reset, records(1..=20), News::Loaded]);
        assert_eq!(stage.between(&mut server, 0), Change::Serve);
        it.pass(2_000);
        it.begin_with(LEASE + 1);
        it.offer_way();
        tell(vec![News::Lead(Box::new(it.lead()))]);
        assert_eq!(stage.between(&mut server, 0), leads, "again");
        let told = ask_for_bytes(&mut server);
        assert!(told.starts_with("error_grace"), "{told}");
    }
}

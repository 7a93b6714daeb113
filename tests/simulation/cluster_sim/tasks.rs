//! The threads of members, one at a time: each is a thread of the system that runs only while the world
//! waits for it, until it asks for something that takes time. So the shipped threads run in virtual time,
//! and the same seed is the same run.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use latchd::base::Nanos;
use latchd::etcd::{Answer, Ask, Etcd, Trouble, Watched, Watching};
use latchd::store::etcd::{Bell, Place};

use crate::cluster_sim::plan::Break;

/// What a thread wants, and waits for.
pub(crate) enum Wants {
    Call {
        ask: Ask,
        within: Duration,
    },
    BeginWatch {
        key: Vec<u8>,
        end: Vec<u8>,
        from: u64,
        within: Duration,
    },
    Hear {
        watch: u64,
        within: Duration,
    },
    Ring {
        bell: Arc<Bell>,
        heard: u64,
        most: Duration,
    },
    /// Nothing: it has ended. If it panicked, with which words.
    Over(Option<String>),
}

/// What it gets.
pub(crate) enum Gets {
    /// It goes on.
    Go,
    Answer(Result<Answer, Trouble>),
    /// The number of the watch.
    Watches(Result<u64, Trouble>),
    Heard(Result<Watched, Trouble>),
    /// Its process is gone.
    Die,
}

/// A thread that has come to be.
pub(crate) struct Born {
    pub(crate) id: usize,
    pub(crate) node: usize,
    pub(crate) name: &'static str,
    pub(crate) gets: Sender<Gets>,
}

/// What all threads share with the world.
pub(crate) struct Hub {
    wants: Mutex<Sender<(usize, Wants)>>,
    pub(crate) born: Mutex<Vec<Born>>,
    next: AtomicUsize,
}

impl Hub {
    pub(crate) fn new() -> (Arc<Self>, Receiver<(usize, Wants)>) {
        let (wants, wanted) = channel();
        let hub = Self {
            wants: Mutex::new(wants),
            born: Mutex::default(),
            next: AtomicUsize::new(0),
        };
        (Arc::new(hub), wanted)
    }

    /// Begins a thread of this node, which waits for its first turn.
    pub(crate) fn spawn(
        &self,
        node: usize,
        name: &'static str,
        run: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, gets) = channel();
        let wants = self.wants.lock().unwrap().clone();
        let body = move || {
            let link = Link {
                id,
                gets,
                wants: wants.clone(),
            };
            LINK.with(|it| *it.borrow_mut() = Some(link));
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let _: Gets = receive();
                run();
            }));
            let why = ended.err().filter(|it| !it.is::<Died>()).map(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                text.or_else(|| panic.downcast_ref::<&str>().map(|&it| it.to_owned()))
                    .unwrap_or_default()
            });
            let _ = wants.send((id, Wants::Over(why)));
        };
        let thread = thread::Builder::new()
            .name(format!("{name}-{node}"))
            .stack_size(1 << 20);
        thread.spawn(body)?;
        self.born.lock().unwrap().push(Born {
            id,
            node,
            name,
            gets: sender,
        });
        Ok(())
    }
}

/// With this a thread unwinds whose process is gone.
struct Died;

struct Link {
    id: usize,
    gets: Receiver<Gets>,
    wants: Sender<(usize, Wants)>,
}

thread_local! {
    static LINK: RefCell<Option<Link>> = const { RefCell::new(None) };
}

/// Waits for its turn.
fn receive() -> Gets {
    let gets = LINK.with(|link| {
        let link = link.borrow();
        let link = link.as_ref().expect("only threads of members wait");
        link.gets.recv().unwrap_or(Gets::Die)
    });
    if matches!(gets, Gets::Die) {
        resume_unwind(Box::new(Died));
    }
    gets
}

/// Has the world do what takes time. `None` for one that is unwinding already.
fn want(wants: Wants) -> Option<Gets> {
    if thread::panicking() {
        return None;
    }
    LINK.with(|link| {
        let link = link.borrow();
        let link = link.as_ref().expect("only threads of members ask");
        let _ = link.wants.send((link.id, wants));
    });
    Some(receive())
}

/// The clock of a machine: faster or slower than others, and ahead of the world while its process is stopped in
/// the middle of a turn.
pub(crate) struct MachineClock {
    /// The time of the world.
    world: Arc<AtomicU64>,
    pub(crate) rate_ppm: i64,
    ahead: AtomicU64,
    /// Before so many looks at the clock nothing happens; with the last one the process is stopped.
    looks_left: AtomicU64,
    stop_ns: AtomicU64,
}

/// No clock shows 0.
const BEGINNING: u64 = 1_000_000_000;

impl MachineClock {
    pub(crate) fn new(world: &Arc<AtomicU64>, rate_ppm: i64) -> Self {
        Self {
            world: Arc::clone(world),
            rate_ppm,
            ahead: AtomicU64::new(0),
            looks_left: AtomicU64::new(0),
            stop_ns: AtomicU64::new(0),
        }
    }

    fn of_world(&self, world: u64) -> Nanos {
        let drift = i128::from(world) * i128::from(self.rate_ppm) / 1_000_000;
        Nanos(world.saturating_add_signed(drift as i64) + BEGINNING)
    }

    /// When the world's clock shows at least what this one shows then.
    pub(crate) fn in_world(&self, then: Nanos) -> u64 {
        let own = i128::from(then.0.saturating_sub(BEGINNING));
        let world = own * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm));
        u64::try_from(world).unwrap_or(u64::MAX).saturating_add(2)
    }

    pub(crate) fn now(&self) -> Nanos {
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.of_world(self.world.load(Ordering::Relaxed) + ahead)
    }

    /// The same, seen by the process itself: it may be stopped right behind it.
    pub(crate) fn look(&self) -> Nanos {
        let now = self.now();
        let left = self.looks_left.load(Ordering::Relaxed);
        if left > 0 {
            self.looks_left.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                let stop_ns = self.stop_ns.load(Ordering::Relaxed);
                self.ahead.fetch_add(stop_ns, Ordering::Relaxed);
            }
        }
        now
    }

    /// With this look at the clock from now on, the process is stopped for so long.
    pub(crate) fn stop_at_look(&self, looks: u64, stop_ns: u64) {
        self.stop_ns.store(stop_ns, Ordering::Relaxed);
        self.looks_left.store(looks, Ordering::Relaxed);
    }

    /// By how much it is ahead of the world; from now on by nothing, since its process does not run before the
    /// world has caught up.
    pub(crate) fn take_ahead(&self) -> u64 {
        self.looks_left.store(0, Ordering::Relaxed);
        self.ahead.swap(0, Ordering::Relaxed)
    }
}

/// Where the threads of a member are.
pub(crate) struct SimPlace {
    pub(crate) hub: Arc<Hub>,
    pub(crate) node: usize,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) woken: AtomicBool,
    pub(crate) breaks: Break,
    /// What its clock showed when the turn began.
    pub(crate) turn_began: AtomicU64,
    /// The reactor has its turn.
    pub(crate) in_turn: AtomicBool,
}

impl Place for SimPlace {
    fn now(&self) -> Nanos {
        if !self.in_turn.load(Ordering::Relaxed) {
            return self.clock.now();
        }
        match self.breaks {
            Break::SpeaksLate => Nanos(1),
            Break::LooksOnce => Nanos(self.turn_began.load(Ordering::Relaxed)),
            _ => self.clock.look(),
        }
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Relaxed);
    }

    fn spawn(&self, name: &'static str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.hub.spawn(self.node, name, run)
    }

    fn wait(&self, bell: &Arc<Bell>, heard: u64, most: Duration) {
        let bell = Arc::clone(bell);
        want(Wants::Ring { bell, heard, most });
    }

    fn etcd(&self, _: usize) -> Box<dyn Etcd + Send> {
        Box::new(Way {
            believes_first: self.breaks == Break::NoProof,
            asked: None,
            first: None,
        })
    }

    fn watch(&self, _: usize) -> Box<dyn Watching + Send> {
        let never_ends = self.breaks == Break::NeverPolls;
        Box::new(Watch(None, never_ends))
    }
}

/// A way to etcd.
struct Way {
    /// Whoever only looks whether it still leads, again and again, is told what was so the first time, as it must not
    /// be.
    believes_first: bool,
    /// What is asked here, if it is always the same.
    asked: Option<Ask>,
    first: Option<Answer>,
}

fn gone() -> Trouble {
    Trouble::Unreachable("gone".to_owned())
}

impl Etcd for Way {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        let is_same = self.asked.get_or_insert_with(|| ask.clone()) == ask;
        self.believes_first &= is_same && matches!(ask, Ask::Range(_));
        let is_look = self.believes_first;
        if let (true, Some(first)) = (is_look, &self.first) {
            return Ok(first.clone());
        }
        let ask = ask.clone();
        let answer = match want(Wants::Call { ask, within }) {
            Some(Gets::Answer(answer)) => answer,
            None => Err(gone()),
            Some(_) => panic!("not what was asked for"),
        };
        if is_look {
            self.first = answer.as_ref().ok().cloned();
        }
        answer
    }
}

/// A watch, and whether it is waited for without end, as it must not be.
struct Watch(Option<u64>, bool);

impl Watching for Watch {
    fn begin(
        &mut self,
        key: &[u8],
        end: &[u8],
        from: u64,
        within: Duration,
    ) -> Result<(), Trouble> {
        let (key, end) = (key.to_vec(), end.to_vec());
        let begin = Wants::BeginWatch {
            key,
            end,
            from,
            within,
        };
        self.0 = None;
        match want(begin) {
            Some(Gets::Watches(begun)) => begun.map(|watch| self.0 = Some(watch)),
            None => Err(gone()),
            Some(_) => panic!("not what was asked for"),
        }
    }

    fn is_begun(&self) -> bool {
        self.0.is_some()
    }

    fn next(&mut self, within: Duration) -> Result<Watched, Trouble> {
        let watch = self.0.expect("it is begun");
        let within = match self.1 {
            true => Duration::from_secs(3_600),
            false => within,
        };
        match want(Wants::Hear { watch, within }) {
            Some(Gets::Heard(heard)) => heard.inspect_err(|_| self.0 = None),
            None => Err(gone()),
            Some(_) => panic!("not what was asked for"),
        }
    }

    fn end(&mut self) {
        self.0 = None;
    }
}

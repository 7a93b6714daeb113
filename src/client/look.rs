//! Whether a server that is silent still has a key, or whether another member of its cluster has it by now: looked up on
//! a thread of its own, for all that wait there.
//!
//! However many guards, waits and subscriptions want to know, there is one such thread for each part of the keys, and only
//! while there is something to look for. It takes one question after the other, and what it has just seen of a server is good for
//! all of them. Whoever asks never waits for it, and comes back for the answer.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::address::Server;
use super::clock;
use super::conn::{Conn, Fault};
use super::error::Error;
use super::find;
use super::locked;
use super::options::Options;
use crate::base::Nanos;

/// How often whoever waits or listens at a member of a cluster wants to know. All of a process ask together, so this is
/// one connection a second at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same if an answer is late that should have come.
const LOOK_EVERY_LATE: Duration = Duration::from_millis(500);

/// How soon it wants to know again if nobody was found: then something is wrong, and another member may lead any moment.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How often it comes back for the answer.
const COME_BACK_EVERY: Duration = Duration::from_millis(50);

/// How long one look may take: one member that does not answer, and another one that does.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// Time limit for the silent server itself, and how long the result of a look is shared.
pub(super) const SAME_TIME: Duration = Duration::from_millis(500);
const GOOD_FOR: Duration = Duration::from_millis(500);

/// How long it is good for others that nobody was found.
const IN_VAIN_FOR: Duration = Duration::from_millis(100);

/// What was seen.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// The server lives as before.
    Same,
    /// Neither the server nor anybody else was found.
    Nobody,
    /// This one has it, with this epoch, which is higher.
    Elsewhere(Arc<Server>, u64),
}

/// A question that was asked. Whoever drops it does not want to know any more.
#[derive(Debug)]
pub(super) struct Look {
    question: Arc<Question>,
}

#[derive(Debug)]
struct Question {
    shard: usize,
    /// Where the key was, and in which life of that server.
    server: Arc<Server>,
    epoch: u64,
    /// None: whoever leads this part of the keys.
    key: Option<Box<[u8]>>,
    seen: Mutex<Option<Seen>>,
}

impl Look {
    /// Asks whether this connection still leads to who has the key.
    pub(super) fn begin(options: &Arc<Options>, conn: &Conn, key: Option<&[u8]>) -> Self {
        let question = Arc::new(Question {
            shard: conn.shard,
            server: Arc::clone(&conn.server),
            epoch: conn.epoch,
            key: key.map(Into::into),
            seen: Mutex::new(None),
        });
        options.clusters[conn.shard].looks.ask(options, &question);
        Self { question }
    }

    /// What came of it, once there is something.
    pub(super) fn seen(&self) -> Option<Seen> {
        locked(&self.question.seen).clone()
    }
}

/// Looks again and again while a member of a cluster is silent: one that was stopped, or cut off,
/// would be silent for ever.
#[derive(Debug)]
pub(super) struct Lookout {
    look: Option<Look>,
    next_at: Nanos,
    every: Duration,
}

impl Lookout {
    /// For a wait, in which silence is usual.
    pub(super) fn new() -> Self {
        Self {
            look: None,
            next_at: clock::after(LOOK_EVERY),
            every: LOOK_EVERY,
        }
    }

    /// For an answer that should have come: looks at once.
    pub(super) fn late() -> Self {
        Self {
            look: None,
            next_at: Nanos(0),
            every: LOOK_EVERY_LATE,
        }
    }

    /// When there is something to do.
    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// The server has said something, so it need not be looked for.
    pub(super) fn heard(&mut self) {
        self.look = None;
        self.next_at = clock::after(self.every);
    }

    /// Whether another member is known to have the key. Looks if it is time to, and never waits.
    pub(super) fn is_led_elsewhere(
        &mut self,
        options: &Arc<Options>,
        conn: &Conn,
        key: Option<&[u8]>,
    ) -> bool {
        matches!(self.seen(options, conn, key), Some(Seen::Elsewhere(..)))
    }

    /// What came of the look that was begun last; none if that is not known yet, or if it is not
    /// time to look. Never waits.
    pub(super) fn seen(
        &mut self,
        options: &Arc<Options>,
        conn: &Conn,
        key: Option<&[u8]>,
    ) -> Option<Seen> {
        if clock::now() < self.next_at {
            return None;
        }
        let begin = || Look::begin(options, conn, key);
        let seen = self.look.get_or_insert_with(begin).seen();
        match seen {
            None => self.next_at = clock::after(COME_BACK_EVERY),
            Some(Seen::Nobody) => {
                self.look = None;
                self.next_at = clock::after(LOOK_AGAIN);
            }
            Some(Seen::Same | Seen::Elsewhere(..)) => self.heard(),
        }
        seen
    }
}

/// Why a connection is of no further use then.
pub(super) fn led_elsewhere() -> Fault {
    let why = "another member of the cluster leads by now";
    io::Error::new(ErrorKind::ConnectionAborted, why).into()
}

/// The questions about one part of the keys.
#[derive(Debug, Default)]
pub(super) struct Looks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// At most one for each that waits.
    queue: VecDeque<Arc<Question>>,
    /// There is a thread.
    is_looking: bool,
    /// Servers that have answered a moment ago.
    alive: Vec<Alive>,
    /// When nobody was found last.
    in_vain_at: Option<Nanos>,
}

#[derive(Debug)]
struct Alive {
    server: Arc<Server>,
    epoch: u64,
    at: Nanos,
}

impl State {
    /// What was seen a moment ago, if it need not be looked for again.
    fn knows(&self, question: &Question) -> Option<Seen> {
        let is_it = |it: &Alive| {
            Arc::ptr_eq(&it.server, &question.server)
                && it.epoch == question.epoch
                && is_within(GOOD_FOR, it.at)
        };
        if self.in_vain_at.is_some_and(|at| is_within(IN_VAIN_FOR, at)) {
            return Some(Seen::Nobody);
        }
        self.alive.iter().any(is_it).then_some(Seen::Same)
    }
}

fn is_within(span: Duration, since: Nanos) -> bool {
    clock::now().since(since) < clock::nanos(span)
}

impl Looks {
    fn ask(&self, options: &Arc<Options>, question: &Arc<Question>) {
        let mut state = locked(&self.state);
        if let Some(seen) = state.knows(question) {
            return question.answer(seen);
        }
        state.queue.push_back(Arc::clone(question));
        if mem::replace(&mut state.is_looking, true) {
            return;
        }
        drop(state);
        let (theirs, shard) = (Arc::clone(options), question.shard);
        let thread = thread::Builder::new().name("latch-look".to_owned());
        let thread = thread.spawn(move || theirs.clusters[shard].looks.run(&theirs));
        if thread.is_err() {
            // They look again later.
            let mut state = locked(&self.state);
            state.is_looking = false;
            state.queue.drain(..).for_each(|it| it.answer(Seen::Nobody));
        }
    }

    fn run(&self, options: &Arc<Options>) {
        // Who had one key may have the next one, too.
        let mut last = None;
        while let Some(question) = self.next() {
            let found = question.look(options, last.take());
            let seen = match &found {
                // One with a lower epoch led before, and has not noticed yet that it does not any more.
                Ok(conn) if conn.epoch > question.epoch => {
                    Seen::Elsewhere(Arc::clone(&conn.server), conn.epoch)
                }
                Ok(_) => Seen::Same,
                Err(_) => Seen::Nobody,
            };
            last = self.note(found);
            question.answer(seen);
        }
    }

    /// The next question that somebody still wants to have answered.
    fn next(&self) -> Option<Arc<Question>> {
        let mut state = locked(&self.state);
        while let Some(question) = state.queue.pop_front() {
            if Arc::strong_count(&question) == 1 {
                continue;
            }
            match state.knows(&question) {
                Some(seen) => question.answer(seen),
                None => return Some(question),
            }
        }
        state.is_looking = false;
        None
    }

    fn note(&self, found: Result<Conn, Error>) -> Option<Conn> {
        let mut state = locked(&self.state);
        let at = clock::now();
        let Ok(conn) = found else {
            state.in_vain_at = Some(at);
            return None;
        };
        state.in_vain_at = None;
        let (server, epoch) = (Arc::clone(&conn.server), conn.epoch);
        let is_same = |it: &Alive| Arc::ptr_eq(&it.server, &server);
        state
            .alive
            .retain(|it| is_within(GOOD_FOR, it.at) && !is_same(it));
        state.alive.push(Alive { server, epoch, at });
        Some(conn)
    }
}

impl Question {
    fn answer(&self, seen: Seen) {
        *locked(&self.seen) = Some(seen);
    }

    /// A connection to whoever has the key, or leads.
    fn look(&self, options: &Arc<Options>, last: Option<Conn>) -> Result<Conn, Error> {
        let Some(key) = &self.key else {
            return self.look_for_leader(options);
        };
        let cluster = &options.clusters[self.shard];
        let last = last.filter(|it| it.is_fresh() && cluster.is_asked_first(&it.server, key));
        let found = last.map(|it| find::ask_for_key(options, it, key, clock::after(SAME_TIME)));
        if let Some(Ok(conn)) = found {
            return Ok(conn);
        }
        let deadline = clock::after(LOOK_TIME);
        let conn = find::look(options, self.shard, Some(key), &self.server, deadline)?;
        find::ask_for_key(options, conn, key, deadline)
    }

    /// The server itself is asked first: one that leads another part of the keys is no news.
    fn look_for_leader(&self, options: &Arc<Options>) -> Result<Conn, Error> {
        let until = clock::after(SAME_TIME);
        match Conn::open(options, self.shard, &self.server, until) {
            Ok(conn) if conn.epoch == self.epoch => Ok(conn),
            _ => find::look(
                options,
                self.shard,
                None,
                &self.server,
                clock::after(LOOK_TIME),
            ),
        }
    }
}

//! The one thread that renews: it keeps the connections of all that is held, asks for every lease again
//! at a third of it, and hears at once what the server has to say.
//!
//! It starts with the first guard and waits in a `Poller`. Nothing in it blocks, and no connection is heard for
//! long at a time, so a server that hangs or never stops talking takes no time from the renewals of
//! another. Where renewals are rare it asks in between whether the server is still there. The rules for a connection that breaks are in
//! `docs/client.md`: what hung on it is in doubt until a new connection has shown whether the server was
//! started anew (then it may have kept the grant), or whether the grant outlives connections. In a cluster that is a
//! connection to whoever leads by then: members are asked one after the other (`rotation.rs`).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::Duration;

use super::address::Server;
use super::callbacks::Calls;
use super::clock;
use super::cluster::Follow;
use super::conn::{Conn, Fault, Heard, Reply};
use super::error::Lost;
use super::hold::{Hold, Standing};
use super::locked;
use super::look::{Lookout, Seen};
use super::options::Options;
use super::renewal::{ask_for_key, check, release_command, renew, renewal_time};
use super::rotation::{Life, Rotation, resolve_again};
use super::sys::Poller;
use crate::base::Nanos;
use crate::engine::types::{Change, Mode};
use crate::wire::client::{Line, News, Told, push_request};
use crate::wire::verbs::Verb;

/// A connection that lasted so long was a good one: the next attempt is made at once.
const GOOD_TIME: Duration = Duration::from_secs(2);

/// An answer that takes longer is late, and in a cluster another member may lead by now.
const LATE: Duration = Duration::from_secs(1);

/// How many bytes of one connection are heard at a time, and what each line counts besides its length. What
/// is more waits until the others were heard.
const HEARD_BYTES_MAX: usize = 64 * 1024;
const LINE_COST_BYTES: usize = 64;

/// A server that closes a connection after a silence of this length, or longer, may have done so for the
/// silence: from then on it is asked at half that time.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// All that is held by one client.
pub(super) struct Keeper {
    options: Arc<Options>,
    /// The callbacks of those that were lost.
    pub(super) calls: Arc<Calls>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    kept: HashMap<u64, Kept>,
    /// When each of them has to be looked at next.
    due: BTreeSet<(Nanos, u64)>,
    last_number: u64,
    /// There once the thread is.
    poller: Option<Arc<Poller>>,
    /// When the thread wakes up by itself.
    wakes_at: Nanos,
    is_closing: bool,
}

/// One grant that is kept.
struct Kept {
    hold: Arc<Hold>,
    link: Link,
    /// Where it belongs to a connection, or may do: where it was promised, or where its renewal was sent last. What was not
    /// answered may have been carried out.
    life: Life,
    /// The one before, while a renewal is not answered that made it belong elsewhere.
    life_before: Option<Life>,
    is_guest: bool,
    /// Who is asked next when there is no connection.
    rotation: Rotation,
    /// The renewal that is asked for only shows whether this is another life of the server.
    is_probe: bool,
    /// What is asked for is not a renewal yet, but whether this server has the key.
    asks_first: bool,
    /// An answer is late: looks whether another member of the cluster leads.
    lookout: Option<Lookout>,
    /// When the renewal was sent that is not answered yet.
    asked_at: Option<Nanos>,
    /// When the next one is to be sent.
    renew_at: Nanos,
    /// When the server was asked whether it is still there, and has not answered yet.
    checked_at: Option<Nanos>,
    /// When something was last sent, and how long after that it is asked so.
    sent_at: Nanos,
    check_every: Duration,
    /// How long nothing was sent before the server closed the last connection.
    silence: Option<Duration>,
    /// More has come than was heard.
    has_more: bool,
    /// When the first renewal on this connection was answered.
    good_since: Option<Nanos>,
    /// It does not end with its connection while the server lives.
    outlives: bool,
    answer_timeout: Duration,
    due: Nanos,
}

/// How it is connected with its server.
enum Link {
    Up(Conn),
    /// Until then.
    Opening(Conn, Nanos),
    /// There is none; the next attempt is at this time.
    Away(Nanos),
}

impl Keeper {
    pub(super) fn new(options: Arc<Options>) -> Self {
        Self {
            options,
            calls: Arc::default(),
            table: Mutex::default(),
        }
    }

    /// Renews this from now on, over the connection that it was granted to. Returns its number.
    pub(super) fn keep(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        conn: Conn,
        asked_at: Nanos,
    ) -> io::Result<u64> {
        let mut table = locked(&self.table);
        let poller = self.poller(&mut table)?;
        table.last_number += 1;
        let number = table.last_number;
        poller.add(&conn, number)?;
        let kept = Kept {
            hold: Arc::clone(hold),
            life: Life::of(&conn),
            life_before: None,
            is_guest: conn.is_guest,
            rotation: Rotation::new(&self.options.clusters[conn.shard]),
            is_probe: false,
            asks_first: false,
            lookout: None,
            link: Link::Up(conn),
            asked_at: None,
            renew_at: renewal_time(asked_at, hold.renew_every()),
            checked_at: None,
            sent_at: asked_at,
            check_every: self.options.check_every,
            silence: None,
            has_more: false,
            good_since: Some(asked_at),
            outlives: self.options.outlives(),
            answer_timeout: self.options.answer_timeout,
            due: Nanos::NEVER,
        };
        table.kept.insert(number, kept);
        table.serve(&self.options, number); // news may have come with the grant
        if table.first_due() < table.wakes_at {
            table.wakes_at = Nanos(0); // woken once is enough
            poller.wake();
        }
        Ok(number)
    }

    /// Keeps this no longer. Returns its connection, if that is up.
    pub(super) fn give_up(&self, number: u64) -> Option<Conn> {
        let mut table = locked(&self.table);
        let kept = table.remove(number)?;
        match kept.link {
            Link::Up(conn) => Some(conn),
            Link::Opening(..) | Link::Away(_) => None,
        }
    }

    /// The fences of all that is kept of this key.
    pub(super) fn fences(&self, key: &[u8]) -> Vec<u64> {
        let table = locked(&self.table);
        let of_key = table.kept.values().filter(|it| *it.hold.key == *key);
        of_key.map(|it| it.hold.token.fence.0).collect()
    }

    /// In a forked child: closes the connection of this one, or of all. Neither the server nor the
    /// `epoll`, which is the parent's as well, hears of it. If the parent's renewal thread had the
    /// table at the time of the fork, it is never free here, and the connections stay open until
    /// the child ends.
    pub(super) fn abandon(&self, number: Option<u64>) {
        let mut table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        match number {
            Some(number) => drop(table.kept.remove(&number)),
            None => table.kept.clear(),
        }
    }

    /// The thread ends.
    pub(super) fn close(&self) {
        let mut table = locked(&self.table);
        table.is_closing = true;
        if let Some(poller) = &table.poller {
            poller.wake();
        }
    }

    fn poller(self: &Arc<Self>, table: &mut Table) -> io::Result<Arc<Poller>> {
        if let Some(poller) = &table.poller {
            return Ok(Arc::clone(poller));
        }
        let poller = Arc::new(Poller::new()?);
        let keeper = Arc::clone(self);
        let theirs = Arc::clone(&poller);
        let thread = thread::Builder::new().name("latch-renew".to_owned());
        thread.spawn(move || keeper.run(&theirs))?;
        self.calls.set_poller(&poller);
        table.wakes_at = Nanos::NEVER;
        table.poller = Some(Arc::clone(&poller));
        Ok(poller)
    }

    fn run(&self, poller: &Poller) {
        loop {
            let mut table = locked(&self.table);
            table.serve_due(&self.options);
            if table.is_closing {
                drop(table);
                return self.calls.catch_up();
            }
            table.wakes_at = table.first_due().min(self.calls.help_at());
            let left = match table.wakes_at {
                Nanos::NEVER => None,
                due => Some(clock::nap(due)),
            };
            drop(table);
            // It is ours, and so are all pointers: only a bug is an error here, and then no renewal
            // comes any more. Every guard is lost when its time is over, by the clock alone.
            let Ok(numbers) = poller.wait(left) else {
                return;
            };
            self.calls.catch_up();
            for number in numbers {
                // One at a time, so that whoever acquires or lets go meanwhile has not to wait for all.
                locked(&self.table).serve(&self.options, number);
            }
        }
    }
}

impl Table {
    fn first_due(&self) -> Nanos {
        self.due.first().map_or(Nanos::NEVER, |(due, _)| *due)
    }

    /// Notes when this is to be looked at next.
    fn schedule(&mut self, number: u64) {
        let Some(kept) = self.kept.get_mut(&number) else {
            return;
        };
        self.due.remove(&(kept.due, number));
        kept.due = kept.hold.until().min(kept.next_step());
        self.due.insert((kept.due, number));
    }

    fn remove(&mut self, number: u64) -> Option<Kept> {
        let kept = self.kept.remove(&number)?;
        self.due.remove(&(kept.due, number));
        if let (Some(poller), Link::Up(conn) | Link::Opening(conn, _)) = (&self.poller, &kept.link)
        {
            poller.delete(conn);
        }
        Some(kept)
    }

    /// Everything whose time has come.
    fn serve_due(&mut self, options: &Arc<Options>) {
        let now = clock::now();
        while let Some(&(due, number)) = self.due.first()
            && due <= now
        {
            self.serve(options, number);
            // Whatever it is, it must not be due again at once.
            if let Some(kept) = self.kept.get_mut(&number)
                && kept.due <= now
            {
                self.due.remove(&(kept.due, number));
                kept.due = Nanos(now.0 + 1_000_000);
                self.due.insert((kept.due, number));
            }
        }
    }

    /// Whatever can be done for this one now.
    fn serve(&mut self, options: &Arc<Options>, number: u64) {
        let (Some(kept), Some(poller)) = (self.kept.get_mut(&number), &self.poller) else {
            return;
        };
        kept.serve(options, poller, number);
        if matches!(kept.hold.standing(), Standing::Held | Standing::Doubtful) {
            return self.schedule(number);
        }
        if let Some(kept) = self.remove(number) {
            kept.dismiss();
        }
    }
}

impl Kept {
    /// When there is something to do besides what the socket tells.
    fn next_step(&self) -> Nanos {
        match &self.link {
            _ if self.has_more => Nanos(0),
            Link::Up(conn) => {
                let renews_at = self.asked_at.map_or(self.renew_at, |_| Nanos::NEVER);
                renews_at.min(match self.waits_since() {
                    None => self.check_at(),
                    Some(since) if !conn.has_no_other() => self.looks_at(since),
                    // Only what outlives its connection can be saved by another one.
                    Some(since) if self.outlives => self.patience(since),
                    Some(_) => Nanos::NEVER,
                })
            }
            Link::Opening(_, until) => *until,
            Link::Away(again_at) => *again_at,
        }
    }

    /// Since when an answer is waited for.
    fn waits_since(&self) -> Option<Nanos> {
        self.asked_at.into_iter().chain(self.checked_at).min()
    }

    /// When the server is to be asked whether it is still there.
    fn check_at(&self) -> Nanos {
        let span = clock::nanos(self.check_every);
        Nanos(self.sent_at.0.saturating_add(span))
    }

    /// How long something may go unanswered before the connection is given up, so that there is time
    /// to make another one: a sixth of the lease, or 1 s if that is more, but a third at most.
    fn patience(&self, asked_at: Nanos) -> Nanos {
        let lease = clock::duration(self.hold.span());
        let span = (lease / 6).max(LATE).min(lease / 3);
        let span = span.min(self.answer_timeout);
        Nanos(asked_at.0.saturating_add(clock::nanos(span)))
    }

    /// When to look whether another member leads, or what came of that.
    fn looks_at(&self, since: Nanos) -> Nanos {
        let late = LATE.min(clock::duration(self.hold.span()) / 6);
        let late_at = Nanos(since.0.saturating_add(clock::nanos(late)));
        self.lookout.as_ref().map_or(late_at, Lookout::next_at)
    }

    fn serve(&mut self, options: &Arc<Options>, poller: &Poller, number: u64) {
        let now = clock::now();
        match &mut self.link {
            Link::Away(again_at) if *again_at <= now => self.reconnect(options, poller, number),
            Link::Away(_) => return,
            Link::Opening(_, until) if *until <= now => self.failed(options, poller, false),
            Link::Opening(..) | Link::Up(_) => {}
        }
        self.greeted(options, poller, now);
        // First what has come: after a pause of the whole machine the answer may be there already.
        self.hear(options, poller);
        if self.ask(poller, now) {
            self.hear(options, poller);
        }
        self.look(options, poller, now);
        if let Link::Up(conn) | Link::Opening(conn, _) = &self.link {
            poller.update(conn, number);
        }
    }

    /// Asks what is due, and says whether there was something. A connection to a server alone on
    /// which nothing was answered for long is given up, if another one can save the grant. To a
    /// member of a cluster see `look`.
    fn ask(&mut self, poller: &Poller, now: Nanos) -> bool {
        let has_no_other = matches!(&self.link, Link::Up(conn) if conn.has_no_other());
        let (gives_up_at, check_at) = match self.waits_since() {
            Some(since) if self.outlives && has_no_other => (self.patience(since), Nanos::NEVER),
            Some(_) => (Nanos::NEVER, Nanos::NEVER),
            None => (Nanos::NEVER, self.check_at()),
        };
        let Link::Up(conn) = &mut self.link else {
            return false;
        };
        if gives_up_at <= now {
            self.broken(poller);
        } else if self.asked_at.is_none() && self.renew_at <= now {
            (self.asked_at, self.sent_at) = (Some(now), now);
            renew(conn, &self.hold);
        } else if check_at <= now {
            (self.checked_at, self.sent_at) = (Some(now), now);
            check(conn);
        } else {
            return false;
        }
        true
    }

    /// A member of a cluster does not answer: looks whether another one leads by now. Then that one
    /// has the grant, and this connection is of no use any more. If the same one answers elsewhere,
    /// what outlives its connection gets another one.
    fn look(&mut self, options: &Arc<Options>, poller: &Poller, now: Nanos) {
        let (conn, since) = match (&self.link, self.waits_since()) {
            (Link::Up(conn), Some(since)) if !conn.has_no_other() => (conn, since),
            _ => {
                self.lookout = None;
                return;
            }
        };
        if self.looks_at(since) > now {
            return;
        }
        let lookout = self.lookout.get_or_insert_with(Lookout::late);
        match lookout.seen(options, conn, Some(&self.hold.key)) {
            // It may have been asked there already, and not answered.
            Some(Seen::Elsewhere(server, epoch)) if epoch > self.life.epoch => {
                self.rotation.go_to(server);
                self.broken(poller);
            }
            Some(Seen::Same) if self.outlives && self.patience(since) <= now => self.broken(poller),
            _ => {}
        }
    }

    /// A new connection is ready: whether the grant can have outlived the old one.
    fn greeted(&mut self, options: &Arc<Options>, poller: &Poller, now: Nanos) {
        self.hear_greeting(options, poller);
        let Link::Opening(conn, _) = &mut self.link else {
            return;
        };
        if !conn.is_ready() {
            return;
        }
        let is_another_life = conn.epoch != self.life.epoch;
        if !is_another_life && !self.outlives && Arc::ptr_eq(&conn.server, &self.life.server) {
            // It ended with its connection, or will when the server notices.
            return self.hold.lose(Lost::Disconnected);
        }
        // Epochs grow with every leader. But another server with such a number may have other keys, and count its lives for
        // itself. It says so.
        self.is_probe = !self.outlives && conn.epoch <= self.life.epoch;
        (self.asked_at, self.sent_at) = (Some(now), now);
        // A renewal would bind it to this connection, also if this is a server that breaks off before it says that
        // it has other keys.
        self.asks_first = !self.outlives && !self.is_probe;
        match self.asks_first {
            true => ask_for_key(conn, &self.hold),
            false => renew(conn, &self.hold),
        }
        if let Some(silence) = self.silence.take()
            && !is_another_life
        {
            self.check_every = self.check_every.min(silence / 2);
        }
        if let Link::Opening(conn, _) = mem::replace(&mut self.link, Link::Away(now)) {
            self.link = Link::Up(conn);
        }
    }

    /// What comes before a new connection may be used.
    fn hear_greeting(&mut self, options: &Arc<Options>, poller: &Poller) {
        let mut budget = HEARD_BYTES_MAX;
        self.has_more = false;
        while let Link::Opening(conn, _) = &mut self.link {
            match conn.next() {
                Ok(Some(Heard::News(line))) => {
                    let is_ready = conn.is_ready();
                    self.told(&line);
                    budget = budget.saturating_sub(line.len() + LINE_COST_BYTES);
                    self.has_more = budget == 0;
                    if is_ready || self.has_more {
                        return;
                    }
                }
                Ok(_) => return,
                Err(Fault::NotLeader(told)) => {
                    let server = Arc::clone(&conn.server);
                    self.sent_elsewhere(options, &server, told.as_deref());
                    self.failed(options, poller, true);
                }
                Err(Fault::Broken(_)) => self.failed(options, poller, false),
                Err(Fault::Garbage(_) | Fault::Refused { .. }) => {
                    self.failed(options, poller, true);
                }
            }
        }
    }

    /// Another server has it: it is asked next, if it may be.
    fn sent_elsewhere(&mut self, options: &Options, teller: &Arc<Server>, told: Option<&str>) {
        let cluster = &options.clusters[self.hold.shard];
        cluster.forget_leader(teller);
        if let Some(told) = told
            && let Follow::To(server) = options.follow(self.hold.shard, teller, told)
        {
            self.rotation.hop_to(server);
        }
    }

    /// Reads what has come, but not for long.
    fn hear(&mut self, options: &Arc<Options>, poller: &Poller) {
        let mut budget = HEARD_BYTES_MAX;
        while let Link::Up(conn) = &mut self.link {
            self.has_more = budget == 0;
            if self.has_more {
                return;
            }
            let heard = match conn.kept_news() {
                Some(line) => Ok(Some(Heard::News(line))),
                None => conn.next(),
            };
            let cost = match heard {
                Ok(Some(Heard::Answer(reply))) => {
                    if let Some(told) = reply.sends_elsewhere() {
                        let server = Arc::clone(&conn.server);
                        // It leads, and has other keys; or it leads no longer, and its word is worth nothing.
                        self.sent_elsewhere(options, &server, told.as_deref());
                        self.is_guest = told.is_some();
                        // It has not done what it was asked for.
                        if let Some(before) = self.life_before.take() {
                            self.life = before;
                        }
                        return self.failed(options, poller, true);
                    }
                    self.answered(&reply);
                    reply.line().len()
                }
                Ok(Some(Heard::News(line))) => {
                    self.told(&line);
                    line.len()
                }
                Ok(None) => return,
                Err(Fault::Broken(error)) => {
                    self.note_silence(&error);
                    return self.broken(poller);
                }
                Err(_) => return self.broken(poller),
            };
            budget = budget.saturating_sub(cost + LINE_COST_BYTES);
        }
    }

    /// A server closes connections that own nothing and are silent, after a time that it does not tell. What
    /// outlives its connection may be renewed on such a one. It need not happen twice: see `greeted`.
    fn note_silence(&mut self, error: &io::Error) {
        let is_closed = error.kind() == io::ErrorKind::UnexpectedEof;
        if is_closed && self.outlives && self.waits_since().is_none() {
            let silence = Duration::from_nanos(clock::now().since(self.sent_at));
            self.silence = Some(silence).filter(|it| *it >= SILENCE_MIN);
        }
    }

    fn answered(&mut self, reply: &Reply) {
        let asked_at = match reply.verb() {
            Verb::Ping => self.checked_at.take(),
            _ => self.asked_at.take(),
        };
        let Some(asked_at) = asked_at else {
            return;
        };
        if mem::take(&mut self.asks_first) {
            return self.bind();
        }
        self.hold.heard(asked_at);
        match reply.told() {
            _ if reply.verb() == Verb::Ping => {}
            // It has the key, and lives as before: the grant ended with its connection.
            _ if self.is_probe => self.hold.lose(Lost::Disconnected),
            Told::Renewed { lease, .. } => {
                self.hold.renewed(asked_at, lease);
                self.good_since.get_or_insert_with(clock::now);
                if let Link::Up(conn) = &self.link {
                    (self.life, self.life_before) = (Life::of(conn), None);
                }
                self.rotation.is_good();
                self.renew_at = renewal_time(asked_at, self.hold.renew_every());
            }
            Told::Refused(b"error") => self.hold.lose(Lost::Forgotten),
            Told::Refused(b"error_lease_expired") => self.hold.lose(Lost::Expired),
            // Not now, it seems. There is time for some more attempts.
            _ => {
                self.renew_at = clock::after(self.hold.renew_every() / 4);
            }
        }
    }

    /// This server has the key, in a life that is new. From now on the grant may belong to this connection, whether we hear of
    /// that or not: the first renewal in a life binds it.
    fn bind(&mut self) {
        if let Link::Up(conn) = &mut self.link {
            let now = clock::now();
            (self.asked_at, self.sent_at) = (Some(now), now);
            self.life_before = Some(mem::replace(&mut self.life, Life::of(conn)));
            renew(conn, &self.hold);
        }
    }

    fn told(&self, line: &[u8]) {
        let hold = &self.hold;
        match Line::read(line) {
            Some(Line::Push(News::Lost { key, fence, why }))
                if *key == *hold.key && fence == hold.token.fence =>
            {
                hold.lose(why.into());
            }
            // Somebody else has resigned for us.
            Some(Line::Push(News::Leader { change, key }))
                if change == Change::Resigned && *key == *hold.key && hold.mode == Mode::Lead =>
            {
                hold.lose(Lost::Forgotten);
            }
            _ => {}
        }
    }

    /// The connection has broken.
    fn broken(&mut self, poller: &Poller) {
        // A server that hangs up as soon as it has greeted or renewed is not asked ever faster.
        let was_good = self
            .good_since
            .is_some_and(|since| clock::now().since(since) >= clock::nanos(GOOD_TIME));
        self.cut(poller);
        let pause = self.rotation.broke(was_good);
        self.link = Link::Away(clock::after(pause));
    }

    /// A connection was not to be had, or not to the right server.
    fn failed(&mut self, options: &Options, poller: &Poller, is_there: bool) {
        let server = match &self.link {
            Link::Up(conn) | Link::Opening(conn, _) => Some(Arc::clone(&conn.server)),
            Link::Away(_) => None,
        };
        self.cut(poller);
        self.wait_for_next(options, server, is_there);
    }

    fn wait_for_next(&mut self, options: &Options, server: Option<Arc<Server>>, is_there: bool) {
        let cluster = &options.clusters[self.hold.shard];
        let before = &self.life.server;
        let pause = self.rotation.failed(cluster, before, server, is_there);
        self.link = Link::Away(clock::after(pause));
    }

    fn cut(&mut self, poller: &Poller) {
        if let Link::Up(conn) | Link::Opening(conn, _) = &self.link {
            poller.delete(conn);
        }
        self.hold.doubt();
        (self.asked_at, self.checked_at, self.has_more) = (None, None, false);
        (self.good_since, self.life_before, self.asks_first) = (None, None, false);
        self.lookout = None;
    }

    fn reconnect(&mut self, options: &Arc<Options>, poller: &Poller, number: u64) {
        let shard = self.hold.shard;
        let cluster = &options.clusters[shard];
        let server = self.rotation.next(cluster, &self.life.server);
        resolve_again(&server);
        let spots = server.known();
        let spot = spots.get(self.rotation.failures() as usize % spots.len().max(1));
        let conn = spot.map(|spot| Conn::begin(options, shard, &server, spot));
        let Some(Ok(mut conn)) = conn else {
            return self.wait_for_next(options, Some(server), false);
        };
        conn.is_guest = self.is_guest;
        if poller.add(&conn, number).is_err() {
            return self.broken(poller);
        }
        let limit = self
            .rotation
            .limit(conn.has_no_other(), options.connect_timeout);
        self.link = Link::Opening(conn, clock::after(limit));
    }

    /// It has ended. If the server does not know that yet, it is told: nobody should have to wait for the
    /// end of a lease that nobody uses.
    fn dismiss(self) {
        if let (Link::Up(mut conn) | Link::Opening(mut conn, _), Standing::Lost(_)) =
            (self.link, self.hold.standing())
            && conn.is_ready()
        {
            let mut frame = Vec::new();
            if let Ok(verb) = push_request(&mut frame, &release_command(&self.hold)) {
                conn.send(&frame, verb);
                let _ = conn.next(); // it sends what it can
            }
        }
    }
}

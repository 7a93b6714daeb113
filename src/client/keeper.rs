//! The one thread that renews: it keeps the connections of all that is held, asks for every lease again
//! at a third of it, and hears at once what the server has to say.
//!
//! It starts with the first guard and waits in `epoll`. Nothing in it blocks, so a server that hangs
//! takes no time from the renewals of another. The rules for a connection that breaks are in
//! `docs/client.md`: what hung on it is in doubt until a new connection has shown whether the server was
//! started anew (then it may have kept the grant), or whether the grant outlives connections.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::clock;
use super::conn::{Conn, Fault, Heard, Reply};
use super::error::Lost;
use super::hold::{Hold, Standing};
use super::locked;
use super::options::Options;
use crate::base::Nanos;
use crate::engine::types::{Change, Mode, Request};
use crate::wire::client::{Line, News, Told, push_request};
use crate::wire::command::Command;

/// A lease is asked for again when this part of it is over.
const RENEW_PART: u64 = 3;

/// Earlier by up to this part of that, so that many clients do not ask at once.
const JITTER_PART: u64 = 10;

/// The first pause after an attempt to connect that failed, and the longest.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The number of the event that only wakes the thread.
const WAKE: u64 = 0;

/// All that is held by one client.
pub(super) struct Keeper {
    options: Arc<Options>,
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

struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// One grant that is kept.
struct Kept {
    hold: Arc<Hold>,
    link: Link,
    /// The life of the server that has promised it.
    epoch: u64,
    /// When the renewal was sent that is not answered yet.
    asked_at: Option<Nanos>,
    /// When the next one is to be sent.
    renew_at: Nanos,
    /// Attempts to connect that failed, one after the other.
    failures: u32,
    /// It does not end with its connection while the server lives.
    outlives: bool,
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
        let table = Mutex::default();
        Self { options, table }
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
            epoch: conn.epoch,
            link: Link::Up(conn),
            asked_at: None,
            renew_at: renewal_time(asked_at, hold),
            failures: 0,
            outlives: self.options.outlives(),
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
        table.wakes_at = Nanos::NEVER;
        table.poller = Some(Arc::clone(&poller));
        Ok(poller)
    }

    fn run(&self, poller: &Poller) {
        let mut events = Vec::with_capacity(64);
        loop {
            let mut table = locked(&self.table);
            table.serve_due(&self.options);
            if table.is_closing {
                return;
            }
            table.wakes_at = table.first_due();
            let left = match table.wakes_at {
                Nanos::NEVER => None,
                due => Some(clock::timespec(clock::until(due))),
            };
            drop(table);
            events.clear();
            match epoll::wait(&poller.epoll, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // It is ours, and so are all pointers: only a bug can get here, and then no renewal
                // comes any more. Every guard is lost when its time is over, by the clock alone.
                Err(_) => return,
            }
            let mut table = locked(&self.table);
            for event in events.drain(..) {
                match event.data.u64() {
                    WAKE => poller.hush(),
                    number => table.serve(&self.options, number),
                }
            }
        }
    }
}

impl Poller {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Self { epoll, wake })
    }

    fn wake(&self) {
        // It can only fail because it was woken very often already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn add(&self, conn: &Conn, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, conn, data, interest(conn))?)
    }

    fn update(&self, conn: &Conn, number: u64) {
        let data = epoll::EventData::new_u64(number);
        let _ = epoll::modify(&self.epoll, conn, data, interest(conn));
    }

    fn delete(&self, conn: &Conn) {
        let _ = epoll::delete(&self.epoll, conn);
    }
}

fn interest(conn: &Conn) -> epoll::EventFlags {
    match conn.wants_write() {
        true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        false => epoll::EventFlags::IN,
    }
}

/// A third of the lease after it was asked for, or a little earlier.
fn renewal_time(asked_at: Nanos, hold: &Hold) -> Nanos {
    let third = hold.lease().nanos() / RENEW_PART;
    let early = clock::chance(third / JITTER_PART + 1);
    Nanos(asked_at.0.saturating_add(third - early))
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
            Link::Up(_) => match self.asked_at {
                // Only what outlives its connection can be saved by another one.
                Some(asked_at) if self.outlives => self.patience(asked_at),
                Some(_) => Nanos::NEVER,
                None => self.renew_at,
            },
            Link::Opening(_, until) => *until,
            Link::Away(again_at) => *again_at,
        }
    }

    /// How long a renewal may go unanswered before the connection is given up.
    fn patience(&self, asked_at: Nanos) -> Nanos {
        Nanos(
            asked_at
                .0
                .saturating_add(self.hold.lease().nanos() / RENEW_PART),
        )
    }

    fn serve(&mut self, options: &Arc<Options>, poller: &Poller, number: u64) {
        let now = clock::now();
        match &mut self.link {
            Link::Away(again_at) if *again_at <= now => self.reconnect(options, poller, number),
            Link::Away(_) => return,
            Link::Opening(_, until) if *until <= now => self.broken(poller),
            Link::Opening(..) | Link::Up(_) => {}
        }
        self.greeted(poller, now);
        if let Link::Up(conn) = &mut self.link {
            match self.asked_at {
                None if self.renew_at <= now => {
                    self.asked_at = Some(now);
                    renew(conn, &self.hold);
                }
                Some(asked_at) if self.outlives && self.patience(asked_at) <= now => {
                    self.broken(poller);
                }
                _ => {}
            }
        }
        self.hear(poller);
        if let Link::Up(conn) | Link::Opening(conn, _) = &self.link {
            poller.update(conn, number);
        }
    }

    /// A new connection is ready: whether the grant can have outlived the old one.
    fn greeted(&mut self, poller: &Poller, now: Nanos) {
        let Link::Opening(conn, _) = &mut self.link else {
            return;
        };
        match conn.next() {
            Err(_) => return self.broken(poller),
            Ok(_) if !conn.is_ready() => return,
            Ok(_) => {}
        }
        let is_another_life = conn.epoch != self.epoch;
        if !is_another_life && !self.outlives {
            // It ended with its connection, or will when the server notices.
            return self.hold.lose(Lost::Disconnected);
        }
        self.failures = 0;
        self.asked_at = Some(now);
        renew(conn, &self.hold);
        if let Link::Opening(conn, _) = std::mem::replace(&mut self.link, Link::Away(now)) {
            self.link = Link::Up(conn);
        }
    }

    /// Reads whatever has come.
    fn hear(&mut self, poller: &Poller) {
        while let Link::Up(conn) = &mut self.link {
            if let Some(line) = conn.kept_news() {
                self.told(&line);
                continue;
            }
            match conn.next() {
                Ok(Some(Heard::Answer(reply))) => self.answered(&reply),
                Ok(Some(Heard::News(line))) => self.told(&line),
                Ok(None) => return,
                Err(Fault::Broken(_) | Fault::Garbage(_) | Fault::Refused { .. }) => {
                    self.broken(poller);
                }
            }
        }
    }

    fn answered(&mut self, reply: &Reply) {
        let Some(asked_at) = self.asked_at.take() else {
            return;
        };
        match reply.told() {
            Told::Renewed { lease, .. } => {
                self.hold.renewed(asked_at, lease);
                if let Link::Up(conn) = &self.link {
                    self.epoch = conn.epoch;
                }
                self.renew_at = renewal_time(asked_at, &self.hold);
            }
            Told::Refused(b"error") => self.hold.lose(Lost::Forgotten),
            Told::Refused(b"error_lease_expired") => self.hold.lose(Lost::Expired),
            // Not now, it seems. There is time for some more attempts.
            _ => {
                let part = self.hold.lease().nanos() / (RENEW_PART * 4);
                self.renew_at = Nanos(clock::now().0.saturating_add(part));
            }
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

    fn broken(&mut self, poller: &Poller) {
        if let Link::Up(conn) | Link::Opening(conn, _) = &self.link {
            poller.delete(conn);
        }
        self.hold.doubt();
        self.asked_at = None;
        let now = clock::now();
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => BACKOFF
                .saturating_mul(1 << (failures - 1).min(10))
                .min(BACKOFF_MAX),
        };
        self.failures += 1;
        let pause = clock::nanos(clock::jittered(pause));
        self.link = Link::Away(Nanos(now.0.saturating_add(pause)));
    }

    fn reconnect(&mut self, options: &Arc<Options>, poller: &Poller, number: u64) {
        let shard = self.hold.shard;
        let spots = options.servers[shard].known();
        let spot = spots.get(self.failures as usize % spots.len().max(1));
        let Some(Ok(conn)) = spot.map(|spot| Conn::begin(options, shard, spot)) else {
            return self.broken(poller);
        };
        if poller.add(&conn, number).is_err() {
            return self.broken(poller);
        }
        self.link = Link::Opening(conn, clock::after(options.connect_timeout));
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

fn renew(conn: &mut Conn, hold: &Hold) {
    let mut frame = Vec::new();
    let request = Request::Renew {
        key: &hold.key,
        token: Some(hold.token),
        lease: Some(hold.lease()),
    };
    match push_request(&mut frame, &Command::Engine(request)) {
        Ok(verb) => conn.send(&frame, verb),
        // It was spelled when it was asked for, so this cannot be. What cannot be renewed is lost.
        Err(_) => hold.lose(Lost::Forgotten),
    }
}

/// How a grant is let go.
pub(super) fn release_command(hold: &Hold) -> Command<'_> {
    let (key, token) = (&*hold.key, Some(hold.token));
    Command::Engine(match hold.mode {
        Mode::Lead => Request::Resign { key, token },
        _ => Request::Release { key, token },
    })
}

//! What stands behind the listeners of a member: a server that only tells where to go, or one that serves. On
//! the reactor's thread, between its turns.
//!
//! Changing from one to the other closes all connections: what a client was not told by then it never is. A
//! leader that is told to go says first what it has decided, and gives its lease back before anybody looks for
//! another one. And nothing that the old server would do when a connection closes is done, because what its
//! clients hold is theirs at the next leader.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use log::{error, info, warn};

use super::member::Member;
use super::news::News;
use super::replica::Replica;
use super::role::Role;
use super::seat::Seat;
use crate::base::{Fence, Millis, Nanos};
use crate::engine::types::{Effects, Input};
use crate::engine::{Engine, Origin, Rules};
use crate::server::{Rest, Server, Settings, Transport};
use crate::store::Clocks;
use crate::store::etcd::{EtcdStore, Lead};

/// How much is replayed in one turn: about a millisecond.
const REPLAY_BYTES_MAX: usize = 256 << 10;

/// How long a leader that goes waits until what it has decided is in the log, so that it can be said.
const SAY_MOST: Millis = Millis(1_000);

/// How long it waits for its lease to be given back: then that ends by itself.
const GIVE_BACK_MOST: Millis = Millis(4_000);

/// What a stage is set with.
pub struct Scene {
    /// What the settings say about keys.
    pub rules: Rules,
    /// What they say about connections.
    pub settings: Settings,
    /// Where fences and tokens of a new table begin, above this fence.
    pub origin: Rc<dyn Fn(u64) -> Origin>,
    /// The clock of lock tables.
    pub clock: Box<dyn Fn() -> Nanos>,
    /// The time of day in microseconds.
    pub wall_us: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// What has become of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It goes on.
    Serve,
    /// Another one has taken its place, which serves. Something that was acknowledged may be lost.
    Leads {
        /// Whether that is so.
        may_have_lost: bool,
    },
    /// Another one has taken its place, which tells where to go.
    Follows,
    /// It is about to go: it has no turn any more and lets nobody in. To be asked again when something has happened,
    /// or after so long at most.
    Leaves(Duration),
    /// It was told to end.
    End,
    /// It cannot go on, and why.
    Failed(String),
    /// It was started for another cluster than this is, and why: it must not go on.
    Unfit(String),
}

/// The reactor's side of a member.
pub struct Stage {
    member: Arc<Member>,
    news: Receiver<News>,
    replica: Replica,
    scene: Scene,
    /// The server that stands behind the listeners is one that serves.
    leads: bool,
    /// It was told to go.
    leaving: Option<Leaving>,
}

/// How far a leader has got that goes. First it says what it has decided, which has to be in the log for that; then it
/// gives its lease back; and only then its connections are closed. So nothing is granted that nobody was
/// told of, and nobody looks for another leader before there can be one.
struct Leaving {
    /// It waits no longer than this for what it is at.
    until: Nanos,
    gives_back: bool,
    /// The process ends with it.
    ends: bool,
}

impl Stage {
    /// Hears `news` of the thread that follows.
    #[must_use]
    pub fn new(member: &Arc<Member>, news: Receiver<News>, scene: Scene) -> Self {
        let (rules, origin) = (scene.rules.clone(), Rc::clone(&scene.origin));
        let make = move |floor| Engine::new(rules.clone(), origin(floor));
        Self {
            member: Arc::clone(member),
            news,
            replica: Replica::new(Box::new(make)),
            scene,
            leads: false,
            leaving: None,
        }
    }

    /// What was replayed, to look at.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The same, to break it: only a simulator does.
    pub fn replica_to_break(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// Whether the server serves.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// To be called before every turn. `stops` is how often we were told to stop since the last time.
    pub fn between<T: Transport>(&mut self, server: &mut Server<T, Seat>, stops: u32) -> Change {
        if stops > 0 {
            let is_told_again = self.leaving.as_ref().is_some_and(|it| it.ends);
            // Nobody is kept waiting: the next leader is there in a moment.
            if !self.leads {
                self.member.give_up();
            }
            self.member.end();
            let has_no_lease = !self.leads && server.store_mut().has_resigned();
            if has_no_lease || is_told_again {
                server.store_mut().resign();
                return Change::End;
            }
            match &mut self.leaving {
                Some(leaving) => leaving.ends = true,
                None if self.leads => self.begin_to_leave(server, true),
                None => self.begin_to_give_up(),
            }
        }
        if self.leaving.is_some() {
            return self.leave(server);
        }
        let mut bytes = 0;
        while bytes < REPLAY_BYTES_MAX && !self.leads {
            match self.news.try_recv() {
                Ok(News::Reset) => {
                    self.replica.reset();
                    self.member.figures.forget_lag();
                }
                Ok(News::Frames(frames)) => {
                    bytes += frames.len();
                    self.replay(&frames);
                }
                Ok(News::Loaded) => self.replica.note_loaded(self.member.tenancy.now()),
                Ok(News::Known(since)) => {
                    let now = self.member.tenancy.now();
                    self.member.figures.note_replayed(now, since);
                }
                Ok(News::Lead(lead)) => return self.lead(server, *lead),
                Ok(News::Unfit(why)) => {
                    self.member.end();
                    return Change::Unfit(why);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return self.fail("the thread that follows is gone".to_owned());
                }
            }
        }
        if bytes >= REPLAY_BYTES_MAX {
            self.member.tenancy.wake(); // there may be more
        }
        // If the store has failed the server is about to say so, and the process ends.
        let has_failed = self.member.figures.has_failed.load(Ordering::Acquire);
        if self.leads && self.member.tenancy.role() == Role::Fenced && !has_failed {
            warn!(
                "this member leads no longer: {} connections are closed",
                server.connections()
            );
            self.note_seen(server);
            // In this order: the old server must be gone before this member can lead again.
            self.keep_reloaded(server);
            *server = self.standby();
            self.leads = false;
            self.member.reload();
            return Change::Follows;
        }
        Change::Serve
    }

    /// Lets another member lead, as if this one were told to stop, and follows. Nothing happens if it does not
    /// lead.
    pub fn resign<T: Transport>(&mut self, server: &mut Server<T, Seat>) -> Change {
        if !self.leads {
            info!("told to let another member lead, but this one does not lead");
            return Change::Serve;
        }
        self.member.rest();
        if self.leaving.is_none() {
            self.begin_to_leave(server, false);
        }
        self.leave(server)
    }

    fn begin_to_leave<T: Transport>(&mut self, server: &Server<T, Seat>, ends: bool) {
        let open = server.connections();
        match ends {
            true => info!("told to stop: another member shall lead, {open} connections are closed"),
            false => info!("told to let another member lead: {open} connections are closed"),
        }
        self.leaving = Some(Leaving {
            until: self.member.tenancy.now().after(SAY_MOST),
            gives_back: false,
            ends,
        });
    }

    /// It was about to lead. Until its lease is given back, or is over, no other member can.
    fn begin_to_give_up(&mut self) {
        let ttl = Millis::from_secs(self.member.options.terms.ttl_s);
        let most = match self.scene.settings.shutdown_timeout {
            Millis::ZERO => ttl,
            timeout => timeout.min(ttl),
        };
        self.leaving = Some(Leaving {
            until: self.member.tenancy.now().after(most),
            gives_back: true,
            ends: true,
        });
    }

    /// Goes as far as it can without waiting.
    fn leave<T: Transport>(&mut self, server: &mut Server<T, Seat>) -> Change {
        let Some(mut leaving) = self.leaving.take() else {
            return Change::Serve;
        };
        let rest = server.say_the_rest(&self.scene.clock);
        if let Some(why) = server.failure() {
            return self.fail(why.to_owned());
        }
        let now = self.member.tenancy.now();
        let may_wait = now < leaving.until && self.member.tenancy.role() == Role::Leader;
        if !leaving.gives_back && (rest == Rest::Said || !may_wait) {
            server.store_mut().resign();
            leaving.gives_back = true;
            leaving.until = now.after(GIVE_BACK_MOST);
        }
        let is_done = leaving.gives_back
            && (server.store_mut().has_resigned() || self.member.tenancy.now() >= leaving.until);
        if !is_done {
            let left = match rest {
                Rest::More => Duration::ZERO,
                Rest::Said | Rest::Waits => Duration::from_nanos(leaving.until.since(now)),
            };
            self.leaving = Some(leaving);
            return Change::Leaves(left);
        }
        if leaving.ends {
            return Change::End;
        }
        self.note_seen(server);
        self.keep_reloaded(server);
        *server = self.standby(); // the old one must be gone before this member can lead again
        // If etcd was too slow for a farewell it may not be so yet; what is under way still is guarded.
        self.member.tenancy.change(|standing, _| standing.fence());
        self.leads = false;
        self.member.reload();
        Change::Follows
    }

    /// Fences that the server may have given out, and records that it has put into the log, stay known, and that
    /// something is lost and clients have not had their time.
    fn note_seen<T: Transport>(&mut self, server: &Server<T, Seat>) {
        if server.engine().is_in_doubt() {
            self.replica.note_lost(self.member.tenancy.now());
        }
        self.replica.note_fences(server.engine().fence_ceiling());
        let kept = self.member.figures.number.load(Ordering::Relaxed);
        self.replica.note_seen(kept);
    }

    fn fail(&self, why: String) -> Change {
        self.member.end();
        Change::Failed(why)
    }

    /// Tokens and shares may have been read again since the start. Those that count now count for the
    /// next server, too.
    fn keep_reloaded<T: Transport>(&mut self, server: &Server<T, Seat>) {
        self.scene.settings.access = server.access().clone();
        self.scene.settings.shares = server.shares().to_vec();
    }

    /// A server that tells where to go.
    #[must_use]
    pub fn standby<T: Transport>(&self) -> Server<T, Seat> {
        let rules = Rules {
            durable: false,
            ..self.scene.rules.clone()
        };
        let engine = Engine::new(rules, (self.scene.origin)(0));
        let seat = Seat::Standby(Arc::clone(&self.member));
        Server::with_store(self.scene.settings.clone(), engine, seat)
    }

    fn replay(&mut self, frames: &[u8]) {
        // In this order, so that no value ends early.
        let wall_ms = (self.scene.wall_us)() / 1_000;
        let now = (self.scene.clock)();
        let replayed = self.replica.replay(frames, Clocks { now, wall_ms });
        if let Err(why) = replayed {
            // They were read once already before they came here.
            panic!("records that were checked cannot be read: {}", why.0);
        }
    }

    fn lead<T: Transport>(&mut self, server: &mut Server<T, Seat>, lead: Lead) -> Change {
        let now = self.member.tenancy.now();
        let has_lost = self.replica.has_lost();
        if has_lost {
            self.replica.note_lost(now);
            error!(
                "etcd has gone back: it knows less than this member has seen before, as after a restored \
                 backup; some of what was acknowledged is lost, fences go on above all that were seen"
            );
        }
        let grace = self.scene.rules.grace_period;
        let may_have_lost = self.replica.is_in_doubt(now, grace) || has_lost;
        if may_have_lost && !has_lost {
            warn!(
                "etcd has gone back lately, as after a restored backup: clients may not know yet"
            );
        }
        match self.leader(server, lead, may_have_lost) {
            Ok(leader) => {
                self.member.figures.forget_lag();
                *server = leader;
                self.leads = true;
                self.member.tenancy.wake(); // it may be over already, and nobody else would say so
                Change::Leads { may_have_lost }
            }
            Err(why) => self.fail(why.to_string()),
        }
    }

    /// A server that serves what was replayed, to take the place of this one.
    fn leader<T: Transport>(
        &mut self,
        before: &Server<T, Seat>,
        lead: Lead,
        may_have_lost: bool,
    ) -> io::Result<Server<T, Seat>> {
        self.keep_reloaded(before);
        let epoch = lead.position.epoch;
        let mut engine = self.replica.take();
        engine.set_epoch(epoch);
        // The table may have been made long ago, and etcd may have forgotten since what others gave out.
        engine.raise_fences(Fence((self.scene.origin)(0).fence));
        let now = (self.scene.clock)();
        let serve = Input::Serve { may_have_lost };
        engine.apply(now, serve, &mut Effects::new());
        let counts = engine.counts();
        info!(
            "leads with epoch {epoch}: {} held, {} counters, values and lists",
            counts.holders, counts.others
        );
        let etcd = self.member.take_warm();
        let wall_us = Arc::clone(&self.scene.wall_us);
        let not_before = move || wall_us().div_ceil(1_000);
        let store = EtcdStore::new(lead, etcd, Box::new(not_before))?;
        let seat = Seat::Leader(Arc::clone(&self.member), store);
        let settings = Settings {
            epoch,
            ..self.scene.settings.clone()
        };
        Ok(Server::with_store(settings, engine, seat))
    }
}

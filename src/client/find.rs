//! Finds the server that leads: asks one member of a cluster after the other, and goes where it is told.
//!
//! A round asks every member once, the one that led last first. If nobody leads, and somebody is there who says so,
//! another round follows after a pause, up to a deadline that the caller has. One server alone that cannot be reached
//! is reported at once.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use super::address::Server;
use super::clock;
use super::cluster::{Cluster, Follow, contains};
use super::conn::{Conn, Fault};
use super::error::Error;
use super::look::SAME_TIME;
use super::options::Options;
use crate::base::Nanos;
use crate::wire::client::push_request;
use crate::wire::command::Command;

/// How long a member may take to answer while there are others to be asked; twice as long each time it does not.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How long a member that did not answer is left out while others do.
const COOL_DOWN: Duration = Duration::from_secs(2);

/// How often in a round somebody who says where the leader is is believed.
const HOPS_MAX: usize = 8;

/// How an error begins that says that all members were asked.
pub(crate) const NO_LEADER: &str = "no member of the cluster leads";

/// The pause after each of the first rounds, and the longest.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// So many rounds have the shortest pause: a leader that goes politely is followed by another one within that time.
const ROUNDS_SHORT: u32 = 4;

/// Longer each time after the first ones, with jitter.
pub(super) fn pause_of(rounds: u32) -> Duration {
    let pause = BACKOFF.saturating_mul(1 << rounds.saturating_sub(ROUNDS_SHORT).min(10));
    clock::jittered(pause.min(BACKOFF_MAX))
}

/// A connection to whoever leads this part of the keys, or has this key of it.
pub(super) fn open(
    options: &Arc<Options>,
    shard: usize,
    key: Option<&[u8]>,
    deadline: Nanos,
) -> Result<Conn, Error> {
    let mut search = Search::new(options, shard, key, deadline);
    loop {
        if let Some(conn) = search.round()? {
            return Ok(conn);
        }
        search.rounds += 1;
        if !search.may_go_on() {
            return Err(search.failed());
        }
        clock::pause(pause_of(search.rounds).min(clock::until(deadline)));
    }
}

/// The same in one round, while this server does not answer: it has less time than the others, and
/// unless it is known to lead it is asked last.
pub(super) fn look(
    options: &Arc<Options>,
    shard: usize,
    key: Option<&[u8]>,
    silent: &Arc<Server>,
    deadline: Nanos,
) -> Result<Conn, Error> {
    let mut search = Search::new(options, shard, key, deadline);
    search.silent = Some(silent);
    match search.round()? {
        Some(conn) => Ok(conn),
        None => Err(search.failed()),
    }
}

/// So often somebody who is sent elsewhere goes there without a pause.
const HOPS_AT_ONCE: u32 = 2;

/// A request that stayed where it was for so long was not sent round.
const STAYED: Duration = Duration::from_secs(5);

/// How often one request was sent elsewhere, and until when that may go on.
pub(super) struct Hops {
    count: u32,
    /// How long somebody who leads may be looked for.
    deadline: Nanos,
    /// How long servers may send it from one to the other, if none of them lets it stay.
    round_max: Duration,
    /// Since when they do, and when one last did.
    since: Nanos,
    last_at: Nanos,
    /// Who has done so, and in which life.
    senders: Vec<(Arc<Server>, u64)>,
}

/// So many different senders are remembered. Whoever makes up more of them gains no more time.
const SENDERS_MAX: usize = 64;

impl Hops {
    pub(super) const fn until(deadline: Nanos) -> Self {
        Self::within(deadline, Duration::MAX)
    }

    /// For a request that may wait for long, and goes on elsewhere.
    pub(super) const fn within(deadline: Nanos, round_max: Duration) -> Self {
        Self {
            count: 0,
            deadline,
            round_max,
            since: Nanos(0),
            last_at: Nanos(0),
            senders: Vec::new(),
        }
    }

    /// One more, by this server in this life. Says whether there is time for it. One that is new among the senders
    /// shows that something moves: leaders come and go, and nobody is sent round.
    fn hop(&mut self, server: &Arc<Server>, epoch: u64) -> bool {
        let now = clock::now();
        let mut senders = self.senders.iter();
        let is_known = senders.any(|(it, at)| Arc::ptr_eq(it, server) && *at == epoch);
        if !is_known && self.senders.len() < SENDERS_MAX {
            self.senders.push((Arc::clone(server), epoch));
            self.since = now;
        }
        if now.since(self.last_at) >= clock::nanos(STAYED) {
            (self.count, self.since) = (0, now);
        }
        self.count += 1;
        self.last_at = now;
        now < self.deadline && now.since(self.since) < clock::nanos(self.round_max)
    }
}

/// A server that we were let in at has said that another one decides, there if it knows that: a connection to whoever
/// does.
pub(super) fn elsewhere(
    options: &Arc<Options>,
    conn: &Conn,
    key: Option<&[u8]>,
    told: Option<String>,
    hops: &mut Hops,
) -> Result<Conn, Error> {
    let (shard, cluster) = (conn.shard, &options.clusters[conn.shard]);
    let follow = told.as_deref();
    let follow = follow.map(|told| options.follow(shard, &conn.server, told));
    match (follow, key) {
        // It leads, and has other keys than this one.
        (Some(Follow::To(next)), Some(key)) if !Arc::ptr_eq(&next, &conn.server) => {
            cluster.set_route(key, &next);
        }
        (Some(Follow::Unprotected), _) => {
            let why = unprotected(&told.unwrap_or_default());
            return Err(conn
                .server
                .down(io::Error::new(ErrorKind::NotConnected, why)));
        }
        (_, key) => {
            if let Some(key) = key {
                cluster.forget_route(key);
            }
            cluster.forget_leader(&conn.server);
        }
    }
    if !hops.hop(&conn.server, conn.epoch) {
        let why = "sent from one server to another until the time was over";
        return Err(cluster.down(io::Error::new(ErrorKind::TimedOut, why)));
    }
    if hops.count > HOPS_AT_ONCE {
        let pause = pause_of(hops.count - HOPS_AT_ONCE);
        clock::pause(pause.min(clock::until(hops.deadline)));
    }
    open(options, shard, key, hops.deadline)
}

/// A connection to the server that has this key, which was asked whether it does, beginning with
/// this one.
pub(super) fn ask_for_key(
    options: &Arc<Options>,
    mut conn: Conn,
    key: &[u8],
    deadline: Nanos,
) -> Result<Conn, Error> {
    let mut frame = Vec::new();
    let verb = push_request(&mut frame, &Command::Who { key })?;
    let mut hops = Hops::until(deadline);
    loop {
        let reply = conn.ask(&frame, verb, deadline);
        match reply.map(|reply| reply.sends_elsewhere()) {
            Ok(None) => return Ok(conn),
            Ok(Some(told)) => conn = elsewhere(options, &conn, Some(key), told, &mut hops)?,
            Err(fault) => return Err(conn.error(fault)),
        }
    }
}

fn unprotected(told: &str) -> String {
    format!("sends to {told}, which is not in the list: the token would be shown there in the open")
}

struct Search<'a> {
    options: &'a Arc<Options>,
    cluster: &'a Cluster,
    shard: usize,
    key: Option<&'a [u8]>,
    deadline: Nanos,
    /// This one did not answer in time on another connection.
    silent: Option<&'a Arc<Server>>,
    /// Whom we asked, and what came of it last: members, and whoever was told of in this round or the last one.
    tried: Vec<Tried>,
    /// Somebody has said that it does not lead.
    is_somebody_there: bool,
    rounds: u32,
}

struct Tried {
    server: Arc<Server>,
    fault: Fault,
    /// Somebody is not gone to, because a secret would be shown there in the open.
    is_unprotected: bool,
    at: Nanos,
    round: u32,
    /// How often it did not answer in time.
    timeouts: u32,
}

struct Candidate {
    server: Arc<Server>,
    /// It has our key, and need not lead this part of the keys.
    is_guest: bool,
}

impl<'a> Search<'a> {
    fn new(
        options: &'a Arc<Options>,
        shard: usize,
        key: Option<&'a [u8]>,
        deadline: Nanos,
    ) -> Self {
        Self {
            options,
            cluster: &options.clusters[shard],
            shard,
            key,
            deadline,
            silent: None,
            tried: Vec::new(),
            is_somebody_there: false,
            rounds: 0,
        }
    }

    fn is_silent(&self, server: &Arc<Server>) -> bool {
        self.silent.is_some_and(|it| Arc::ptr_eq(it, server))
    }

    /// Asks everybody once.
    fn round(&mut self) -> Result<Option<Conn>, Error> {
        // Who names ever new servers must not fill our memory with them.
        let (members, round) = (&self.cluster.members, self.rounds);
        self.tried
            .retain(|it| contains(members, &it.server) || it.round + 1 >= round);
        let route = self.key.and_then(|key| self.cluster.route(key));
        let guest = route.map(|server| Candidate {
            server,
            is_guest: true,
        });
        let others = self.cluster.candidates().into_iter();
        let others = others.map(|server| Candidate {
            server,
            is_guest: false,
        });
        let mut queue: VecDeque<_> = guest.into_iter().chain(others).collect();
        if !self.silent.is_some_and(|it| self.cluster.is_leader(it)) {
            // Others say at once whether they lead.
            queue
                .make_contiguous()
                .sort_by_key(|it| self.is_silent(&it.server));
        }
        let mut asked = Vec::new();
        let mut hops = 0;
        while let Some(Candidate { server, is_guest }) = queue.pop_front() {
            if contains(&asked, &server) || self.is_cooling(&server) {
                continue;
            }
            if !self.tried.is_empty() && clock::now() >= self.deadline {
                break;
            }
            asked.push(Arc::clone(&server));
            let fault = match self.attempt(&server, queue.len()) {
                Ok(conn) => return Ok(Some(self.found(conn, is_guest))),
                Err(fault) => fault,
            };
            self.forget(&server, is_guest);
            let mut is_unprotected = false;
            if let Fault::NotLeader(told) = &fault {
                self.is_somebody_there = true;
                let follow = told.as_deref();
                let follow = follow.map(|it| self.options.follow(self.shard, &server, it));
                is_unprotected = matches!(follow, Some(Follow::Unprotected));
                if let Some(Follow::To(server)) = follow
                    && hops < HOPS_MAX
                {
                    hops += 1;
                    let is_silent = self.is_silent(&server);
                    let candidate = Candidate { server, is_guest };
                    match is_silent {
                        true => queue.push_back(candidate),
                        false => queue.push_front(candidate),
                    }
                }
            } else if self.ends_it(&fault) {
                return Err(fault.of(&server));
            }
            self.note(server, fault, is_unprotected);
        }
        Ok(None)
    }

    fn attempt(&self, server: &Arc<Server>, others: usize) -> Result<Conn, Fault> {
        let left = clock::until(self.deadline);
        let is_only = others == 0 && self.cluster.is_alone() && !self.is_somebody_there;
        let limit = match is_only {
            true => left,
            false if self.is_silent(server) => SAME_TIME,
            // One that is slow is given more time each time.
            false => ATTEMPT.saturating_mul(1 << self.timeouts(server).min(4)),
        };
        let until = clock::after(limit.min(left));
        Conn::open(self.options, self.shard, server, until)
    }

    fn timeouts(&self, server: &Arc<Server>) -> u32 {
        let tried = self.tried.iter();
        let mut tried = tried.filter(|it| Arc::ptr_eq(&it.server, server));
        tried.next().map_or(0, |it| it.timeouts)
    }

    /// Whether it has just not answered, and there are others who do.
    fn is_cooling(&self, server: &Arc<Server>) -> bool {
        let cool_down = clock::nanos(COOL_DOWN);
        let is_silent = |it: &Tried| {
            Arc::ptr_eq(&it.server, server)
                && is_timeout(&it.fault)
                && clock::now().since(it.at) < cool_down
        };
        self.is_somebody_there && self.tried.iter().any(is_silent)
    }

    fn found(&self, mut conn: Conn, is_guest: bool) -> Conn {
        match self.key {
            Some(key) if is_guest => {
                conn.is_guest = true;
                self.cluster.set_route(key, &conn.server);
            }
            _ => self.cluster.set_leader(&conn.server),
        }
        conn
    }

    fn forget(&self, server: &Arc<Server>, is_guest: bool) {
        match self.key {
            Some(key) if is_guest => self.cluster.forget_route(key),
            _ => self.cluster.forget_leader(server),
        }
    }

    /// Whether nobody else needs to be asked: all members have the same tokens, and one that is no latchd is the
    /// only one there is.
    fn ends_it(&self, fault: &Fault) -> bool {
        match fault {
            Fault::Broken(_) | Fault::NotLeader(_) => false,
            Fault::Refused { word, .. } => self.cluster.is_alone() || word != "error_draining",
            Fault::Garbage(_) => self.cluster.is_alone(),
        }
    }

    fn note(&mut self, server: Arc<Server>, fault: Fault, is_unprotected: bool) {
        let timeouts = self.timeouts(&server) + u32::from(is_timeout(&fault));
        // What it said before tells more than that there was no time left for it to say it again.
        let is_known = self.tried.iter().any(|it| Arc::ptr_eq(&it.server, &server));
        if is_known && is_timeout(&fault) && clock::now() >= self.deadline {
            return;
        }
        self.tried.retain(|it| !Arc::ptr_eq(&it.server, &server));
        self.tried.push(Tried {
            server,
            fault,
            is_unprotected,
            at: clock::now(),
            round: self.rounds,
            timeouts,
        });
    }

    /// Whether somebody may lead soon: a member says that it does not, or one of several was slow.
    fn may_go_on(&self) -> bool {
        let is_slow = !self.cluster.is_alone() && self.tried.iter().any(|it| is_timeout(&it.fault));
        (self.is_somebody_there || is_slow) && clock::now() < self.deadline
    }

    fn failed(mut self) -> Error {
        if self.cluster.is_alone()
            && matches!(&*self.tried, [only] if !only.is_unprotected)
            && let Some(Tried { server, fault, .. }) = self.tried.pop()
        {
            return fault.of(&server);
        }
        let tried: Vec<_> = self.tried.iter().map(Tried::text).collect();
        let why = format!("{NO_LEADER}: tried {}", tried.join(", "));
        self.cluster
            .down(io::Error::new(ErrorKind::NotConnected, why))
    }
}

impl Tried {
    fn text(&self) -> String {
        let why = match &self.fault {
            Fault::NotLeader(Some(told)) if self.is_unprotected => unprotected(told),
            Fault::NotLeader(Some(told)) => format!("sends to {told}"),
            Fault::NotLeader(None) => "knows of nobody who leads".to_owned(),
            Fault::Broken(why) => why.to_string(),
            Fault::Garbage(_) => "is no latchd".to_owned(),
            Fault::Refused { word, .. } => word.clone(),
        };
        format!("{} ({why})", self.server)
    }
}

fn is_timeout(fault: &Fault) -> bool {
    matches!(fault, Fault::Broken(why) if why.kind() == ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_sent_round_has_more_time_while_leaders_change() {
        let server = Server::parse("localhost")
            .map(Arc::new)
            .expect("an address");
        let never = Duration::ZERO;
        let mut hops = Hops::within(Nanos::NEVER, never);
        // So little time that one hop later it is over, but for one that shows something new.
        assert!(!hops.hop(&server, 1));
        let began = hops.since;
        assert!(!hops.hop(&server, 1));
        assert_eq!(hops.since, began, "the same again");
        while clock::now() == began {}
        hops.hop(&server, 2);
        assert!(hops.since > began, "another life");
        let since = hops.since;
        for epoch in 3..1_000 {
            hops.hop(&server, epoch);
        }
        assert!(hops.since >= since && hops.senders.len() == SENDERS_MAX);
        let since = hops.since;
        hops.hop(&server, 1_000);
        assert_eq!(hops.since, since, "not for ever");
    }
}

//! Clients of the simulated cluster, and what they are entitled to.
//!
//! A client counts a lease from when it sent the request, as all are told to. While it may rely on a grant
//! nobody else may be told that they have the key, and its renewals must be granted.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use latch_sim::pipe::{Peer, pipe};
use latchd::base::{ConnId, Token};
use latchd::server::{Event, Host};

use crate::cluster_sim::errands::{Errand, Known, Runner};
use crate::cluster_sim::node::Node;
use crate::cluster_sim::plan::{Break, Plan};
use crate::cluster_sim::world::MS;

/// So many do other things than most.
const RUNNERS: usize = 3;

struct Connection {
    node: usize,
    boots: u64,
    /// The epoch in which its server serves; 0 if it only tells where to go.
    epoch: u64,
    id: ConnId,
    peer: Peer,
    /// What was written to it did not leave before then: the process was stopped.
    deaf_until: u64,
    /// When what was sent arrives.
    arrives_at: Option<u64>,
}

#[derive(Clone)]
struct Grant {
    key: usize,
    token: String,
    /// Until when it may be relied on.
    until: u64,
}

enum Waits {
    Grant {
        key: usize,
        lease_s: u64,
    },
    Renewal {
        key: usize,
        token: String,
        lease_s: u64,
    },
    Release,
    /// A counter, read or counted up; so much had been told of it when it was asked.
    Count {
        told: u64,
        adds: bool,
    },
    Errand(Errand),
}

struct Client {
    connection: Option<Connection>,
    waits: Option<(u64, Waits)>,
    /// When it waits no longer: some are patient, and others are soon with the next leader.
    gives_up_at: u64,
    holds: Option<Grant>,
    acts_at: u64,
    /// Where it was told to go.
    sent_to: Option<usize>,
    /// When it was served last.
    served_at: u64,
    /// It does other things than most.
    runner: Option<Runner>,
}

/// What clients were told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) grants: u64,
    pub(crate) renewals: u64,
    pub(crate) timeouts: u64,
    pub(crate) counts: u64,
    pub(crate) redirects: u64,
    pub(crate) no_room: u64,
    /// What was heard late, because a process was stopped between the gate and the write.
    pub(crate) late: u64,
    pub(crate) others: u64,
}

/// All clients, and what is known of what they were told.
pub(crate) struct Clients {
    all: Vec<Client>,
    plan: Plan,
    /// The fences that anybody was told, by key, and when.
    fences: BTreeMap<usize, BTreeMap<u64, u64>>,
    /// The fences of all tokens that anybody was told.
    tokens: BTreeSet<u64>,
    /// The latest epoch of which anybody has heard.
    latest: u64,
    /// When anybody heard first in an epoch.
    first_heard: BTreeMap<u64, u64>,
    /// What those know who run errands.
    known: Known,
    /// What is known of the counter: it is at least this.
    counted: u64,
    acknowledged: u64,
    /// So much was to be added to it, whatever came of it.
    asked: u64,
    /// Whoever leads since before the backup that was restored does not know of fences that others gave out
    /// since, and nothing can tell it.
    epoch_of_backup: u64,
    /// What is heard before then is not judged: etcd was restored from a backup.
    pub(crate) in_doubt_until: u64,
    pub(crate) told: Told,
}

impl Clients {
    pub(crate) fn new(plan: Plan) -> Self {
        let count = plan.clients;
        let client = |index| Client {
            connection: None,
            waits: None,
            gives_up_at: 0,
            holds: None,
            acts_at: 0,
            sent_to: None,
            served_at: 0,
            runner: (index >= count).then(|| Runner::new(index)),
        };
        Self {
            all: (0..count + RUNNERS).map(client).collect(),
            plan,
            fences: BTreeMap::new(),
            tokens: BTreeSet::new(),
            latest: 0,
            first_heard: BTreeMap::new(),
            known: Known::default(),
            counted: 0,
            acknowledged: 0,
            asked: 0,
            epoch_of_backup: 0,
            in_doubt_until: 0,
            told: Told::default(),
        }
    }

    /// When one of them does something by itself.
    pub(crate) fn next_time(&self) -> u64 {
        let next = |it: &Client| {
            let arrives = it.connection.as_ref().and_then(|it| it.arrives_at);
            let hears = it.connection.as_ref().map(|it| it.deaf_until);
            let acts = match it.waits {
                Some(_) => it.gives_up_at,
                None => it.acts_at,
            };
            let hears = hears.filter(|&at| at > 0).unwrap_or(u64::MAX);
            acts.min(arrives.unwrap_or(u64::MAX)).min(hears)
        };
        self.all.iter().map(next).min().unwrap_or(u64::MAX)
    }

    /// etcd was restored from a backup: what was told before counts no more, but for fences.
    pub(crate) fn doubt(&mut self, until: u64, epoch: u64) {
        self.epoch_of_backup = epoch;
        (self.latest, self.counted, self.acknowledged) = (0, 0, 0);
        self.in_doubt_until = until;
        self.known.doubt();
        for (index, client) in self.all.iter_mut().enumerate() {
            (client.connection, client.waits, client.holds) = (None, None, None);
            client.runner = client.runner.take().map(|_| Runner::new(index));
            client.acts_at = until;
        }
    }

    /// Sends what they have to say, and has it arrive.
    pub(crate) fn act(&mut self, now: u64, nodes: &mut [Node], up: &[bool], rng: &mut Rng) {
        for index in 0..self.all.len() {
            self.act_one(now, index, nodes, up, rng);
        }
    }

    fn act_one(&mut self, now: u64, index: usize, nodes: &mut [Node], up: &[bool], rng: &mut Rng) {
        let floor = self.counted.max(self.acknowledged);
        let plan = self.plan;
        let client = &mut self.all[index];
        let is_closed = |it: &Connection| it.peer.is_closed() && it.deaf_until <= now;
        if client.connection.as_ref().is_some_and(is_closed) {
            // Nobody knows what has become of the request. What is held is held.
            (client.connection, client.waits) = (None, None);
            client.acts_at = now + plan.haste(now, rng.u64(10..200));
        }
        if client.holds.as_ref().is_some_and(|it| it.until <= now) {
            client.holds = None;
        }
        if let Some(it) = &mut client.connection
            && it.arrives_at.is_some_and(|at| at <= now)
        {
            it.arrives_at = None;
            it.peer.arrive(usize::MAX);
            report(nodes, it);
        }
        if client.waits.is_some() && now >= client.gives_up_at {
            // It gives up, and hangs up: the server may let go of what it holds.
            if let Some(it) = client.connection.take() {
                it.peer.close();
                report(nodes, &it);
            }
            (client.waits, client.holds) = (None, None);
            self.known.hangs_up(index);
        }
        if now < client.acts_at || client.waits.is_some() {
            return;
        }
        let Some(connection) = &mut client.connection else {
            let anywhere = rng.usize(..nodes.len());
            let node = client.sent_to.take().unwrap_or(anywhere);
            client.acts_at = now + plan.haste(now, rng.u64(10..150));
            if up[node] {
                client.connection = connect(&mut nodes[node], index);
            }
            if let Some(runner) = &mut client.runner {
                runner.disconnect();
            }
            return;
        };
        let lease_s = rng.u64(1..=4);
        let (request, waits) = match &client.holds {
            None if let Some(runner) = &mut client.runner => {
                let (request, errand) = runner.next(now, plan.trust_ppm(), &mut self.known, rng);
                (request, Waits::Errand(errand))
            }
            None if rng.u8(..3) == 0 => {
                let adds = rng.bool();
                let request = match (adds, plan.breaks) {
                    (true, Break::CountsTwice) => "incr\nhits\n2\n",
                    (true, _) => "incr\nhits\n1\n",
                    (false, _) => "get\nhits\n\n",
                };
                self.asked += u64::from(adds);
                (request.to_owned(), Waits::Count { told: floor, adds })
            }
            None => {
                let key = rng.usize(..plan.keys);
                let wait_s = rng.u64(0..=3);
                let request = format!("l\nkey{key}\n{wait_s} {lease_s}\n");
                (request, Waits::Grant { key, lease_s })
            }
            Some(grant) if rng.u8(..4) > 0 => {
                let Grant { key, token, .. } = grant.clone();
                let request = format!("n\nkey{key}\n{token} {lease_s}\n");
                let waits = Waits::Renewal {
                    key,
                    token,
                    lease_s,
                };
                (request, waits)
            }
            Some(grant) => {
                let request = format!("r\nkey{}\n{}\n", grant.key, grant.token);
                (request, Waits::Release)
            }
        };
        if matches!(waits, Waits::Release) {
            client.holds = None; // from now on it relies on nothing
        }
        connection.peer.send(request.as_bytes());
        let late = match rng.u8(..20) {
            0 => rng.u64(..300) * MS,
            _ => rng.u64(50..2_000) * 1_000,
        };
        connection.arrives_at = Some(now + late);
        client.waits = Some((now, waits));
        client.gives_up_at = now + plan.haste(now, rng.u64(500..12_000));
    }

    /// A process is stopped in the middle of a turn. Who is told anything is told when it goes on; how many are?
    pub(crate) fn deafen(&mut self, node: usize, until: u64) -> usize {
        let connections = self.all.iter_mut().filter_map(|it| it.connection.as_mut());
        let mut count = 0;
        for it in connections.filter(|it| it.node == node && it.epoch != 0) {
            if it.peer.has_answer() {
                it.deaf_until = until;
                count += 1;
            }
        }
        count
    }

    /// Judges what they have been told by now.
    pub(crate) fn listen(&mut self, now: u64, rng: &mut Rng) {
        for index in 0..self.all.len() {
            let Some(connection) = &mut self.all[index].connection else {
                continue;
            };
            if connection.deaf_until > now {
                continue;
            }
            let was_deaf = std::mem::take(&mut connection.deaf_until) > 0;
            let epoch = connection.epoch;
            // What nobody asked for is that somebody leads no longer.
            let lines = || connection.peer.receive_line();
            let Some(line) = std::iter::from_fn(lines).find(|it| !it.starts_with(b"leader "))
            else {
                continue;
            };
            let line = String::from_utf8(line).unwrap();
            let tokens = line.split(' ').filter_map(|it| Token::parse(it.as_bytes()));
            self.tokens.extend(tokens.map(|it| it.fence.0));
            self.all[index].acts_at = now + self.plan.haste(now, rng.u64(5..300));
            if epoch == 0 {
                self.send_away(now, index, &line, rng);
                continue;
            }
            if now < self.in_doubt_until {
                self.all[index].waits = None;
                continue;
            }
            if was_deaf {
                // It had left the server's hands in time, and the system was slow to take it.
                self.told.late += 1;
            } else {
                assert!(
                    epoch >= self.latest,
                    "at {} ms client {index} hears {line:?} in epoch {epoch}, after epoch {} was heard",
                    now / MS,
                    self.latest
                );
                self.latest = epoch;
                self.first_heard.entry(epoch).or_insert(now);
            }
            self.judge(now, index, &line, epoch, was_deaf);
            self.all[index].served_at = now;
        }
    }

    /// It has asked one that does not lead.
    fn send_away(&mut self, now: u64, index: usize, line: &str, rng: &mut Rng) {
        let client = &mut self.all[index];
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("error_not_leader"), "{line}");
        let to = words.next().map(|it| {
            let number = it
                .strip_prefix("node")
                .and_then(|it| it.strip_suffix(":6388"));
            number.expect(line).parse().expect(line)
        });
        client.sent_to = to;
        (client.connection, client.waits) = (None, None);
        client.acts_at = now + self.plan.haste(now, rng.u64(5..100));
        self.told.redirects += 1;
    }

    fn judge(&mut self, now: u64, index: usize, line: &str, epoch: u64, was_deaf: bool) {
        let Some((sent, waits)) = self.all[index].waits.take() else {
            panic!("client {index} is told {line:?} and has not asked");
        };
        let words: Vec<&str> = line.split(' ').collect();
        let trust_ppm = self.plan.trust_ppm();
        let until = |lease_s: u64| sent + lease_s * 1_000 * trust_ppm;
        match (waits, &words[..]) {
            (Waits::Grant { key, lease_s }, ["ok", token, ..]) => {
                self.told.grants += 1;
                let fence = Token::parse(token.as_bytes()).unwrap().fence.0;
                self.check_fence(now, key, fence, epoch, was_deaf);
                let token = (*token).to_owned();
                let until = until(lease_s);
                self.rely(now, index, Grant { key, token, until });
            }
            (Waits::Grant { .. }, ["timeout"]) => self.told.timeouts += 1,
            (Waits::Grant { .. } | Waits::Count { .. }, ["error_storage"]) => {
                self.told.no_room += 1;
            }
            (
                Waits::Renewal {
                    key,
                    token,
                    lease_s,
                },
                ["ok", left_s, ..],
            ) => {
                self.told.renewals += 1;
                // Without room a lease becomes no longer than it was.
                let left_s: u64 = left_s.parse().unwrap();
                let until = until(lease_s.min(left_s));
                self.rely(now, index, Grant { key, token, until });
            }
            (Waits::Renewal { .. }, _) => {
                let relied = self.all[index].holds.take();
                assert!(
                    relied.as_ref().is_none_or(|it| it.until <= now),
                    "at {} ms client {index} has lost key{} ({line}), {} ms before its lease ends",
                    now / MS,
                    relied.as_ref().map_or(0, |it| it.key),
                    relied.as_ref().map_or(0, |it| (it.until - now) / MS)
                );
            }
            (Waits::Release, _) => {}
            (Waits::Errand(errand), words) => {
                self.told.others += 1;
                let runner = self.all[index].runner.as_mut();
                let runner = runner.expect("only they run errands");
                runner.judge(now, until, errand, words, &mut self.known);
            }
            (Waits::Count { told, adds }, ["ok", count]) => {
                let count: u64 = count.parse().unwrap();
                assert!(
                    count >= told + u64::from(adds),
                    "at {} ms client {index} counts {count}, and {told} was told before it asked",
                    now / MS
                );
                assert!(
                    count <= self.asked,
                    "at {} ms client {index} counts {count}, and only {} were to be added",
                    now / MS,
                    self.asked
                );
                self.counted = self.counted.max(count);
                self.acknowledged += u64::from(adds);
                self.told.counts += 1;
            }
            (Waits::Grant { .. } | Waits::Count { .. }, other) => {
                panic!("at {} ms client {index} is told {other:?}", now / MS)
            }
        }
    }

    /// A fence that is heard is above all that were heard of the key before, unless it is heard late: then it is
    /// at least none of them. What is heard at the same instant has no order: a leader that was silent for
    /// longer than a lease tells of two grants at once.
    fn check_fence(&mut self, now: u64, key: usize, fence: u64, epoch: u64, was_deaf: bool) {
        let told = self.fences.entry(key).or_default();
        let earlier = told.iter().rev().find(|(_, at)| **at < now);
        let before = earlier.map_or(0, |(fence, _)| *fence);
        let is_new = told.insert(fence, now).is_none();
        let is_right = is_new && (fence > before || was_deaf);
        assert!(
            is_right || epoch <= self.epoch_of_backup,
            "at {} ms key{key}: fence {fence} after {before}",
            now / MS
        );
    }

    /// A client was told that it has a key until then. If that is not over nobody else may rely on the key.
    fn rely(&mut self, now: u64, index: usize, grant: Grant) {
        if grant.until <= now {
            self.all[index].holds = None; // it relies on nothing, and lets it go by
            return;
        }
        for (other, it) in self.all.iter().enumerate() {
            let relies = |it: &&Grant| other != index && it.key == grant.key && it.until > now;
            let relies = it.holds.as_ref().filter(relies);
            assert!(
                relies.is_none(),
                "at {} ms client {index} is told that it has key{}, and client {other} has it for {} ms",
                now / MS,
                grant.key,
                relies.map_or(0, |it| (it.until - now) / MS)
            );
        }
        self.all[index].holds = Some(grant);
    }

    /// Whether anybody was told a token with this fence.
    pub(crate) fn know(&self, fence: u64) -> bool {
        self.tokens.contains(&fence)
    }

    /// When anybody heard first in this epoch.
    pub(crate) fn served_in(&self, epoch: u64) -> Option<u64> {
        self.first_heard.get(&epoch).copied()
    }

    /// Everybody was served since then.
    pub(crate) fn check_served(&self, since: u64) {
        for (index, client) in self.all.iter().enumerate() {
            assert!(
                client.served_at >= since,
                "client {index} was served last at {} ms",
                client.served_at / MS
            );
        }
    }
}

fn connect(node: &mut Node, index: usize) -> Option<Connection> {
    if node.is_leaving() {
        return None;
    }
    let now = node.clock.now();
    let (here, peer) = pipe(index as u32, Host::Unknown);
    let id = node.server.as_mut()?.accept(now, here)?;
    node.conns.push(id);
    Some(Connection {
        node: node.index,
        boots: node.boots,
        epoch: node.epoch,
        id,
        peer,
        deaf_until: 0,
        arrives_at: None,
    })
}

/// What a poll of its server would report of a connection.
fn report(nodes: &mut [Node], connection: &Connection) {
    let node = &mut nodes[connection.node];
    let is_there = node.boots == connection.boots && node.epoch == connection.epoch;
    if is_there && !connection.peer.is_closed() {
        node.events.push(Event {
            conn: connection.id,
            readiness: connection.peer.readiness(),
        });
    }
}

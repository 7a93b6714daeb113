//! Clients of the simulated cluster, and what they are entitled to.
//!
//! A client counts a lease from when it sent the request, as all are told to. While it may rely on a grant
//! nobody else may be told that they have the key, and its renewals must be granted.

use std::collections::BTreeMap;

use fastrand::Rng;
use latchd::base::{ConnId, Token};
use latchd::pipe::{Peer, pipe};
use latchd::server::{Event, Host};

use crate::node::Node;
use crate::world::MS;

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
        lease_s: u64,
    },
    Release,
    /// A counter, read or counted up; so much had been told of it when it was asked.
    Count {
        told: u64,
        adds: bool,
    },
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
}

/// All clients, and what is known of what they were told.
pub(crate) struct Clients {
    all: Vec<Client>,
    trust_ppm: u64,
    /// The highest fence that anybody was told, by key.
    fences: BTreeMap<usize, u64>,
    /// The latest epoch of which anybody has heard.
    latest: u64,
    /// What is known of the counter: it is at least this.
    counted: u64,
    acknowledged: u64,
    /// Whoever leads since before the backup that was restored does not know of fences that others gave out
    /// since, and nothing can tell it.
    epoch_of_backup: u64,
    /// What is heard before then is not judged: etcd was restored from a backup.
    pub(crate) in_doubt_until: u64,
    pub(crate) told: Told,
}

impl Clients {
    pub(crate) fn new(count: usize, trust_ppm: u64) -> Self {
        let client = |_| Client {
            connection: None,
            waits: None,
            gives_up_at: 0,
            holds: None,
            acts_at: 0,
            sent_to: None,
            served_at: 0,
        };
        Self {
            all: (0..count).map(client).collect(),
            trust_ppm,
            fences: BTreeMap::new(),
            latest: 0,
            counted: 0,
            acknowledged: 0,
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
        for client in &mut self.all {
            (client.connection, client.waits, client.holds) = (None, None, None);
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
        let client = &mut self.all[index];
        let is_closed = |it: &Connection| it.peer.is_closed() && it.deaf_until <= now;
        if client.connection.as_ref().is_some_and(is_closed) {
            // Nobody knows what has become of the request. What is held is held.
            (client.connection, client.waits) = (None, None);
            client.acts_at = now + rng.u64(10..200) * MS;
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
        }
        if now < client.acts_at || client.waits.is_some() {
            return;
        }
        let Some(connection) = &mut client.connection else {
            let anywhere = rng.usize(..nodes.len());
            let node = client.sent_to.take().unwrap_or(anywhere);
            client.acts_at = now + rng.u64(10..150) * MS;
            if up[node] {
                client.connection = connect(&mut nodes[node], index);
            }
            return;
        };
        let lease_s = rng.u64(1..=4);
        let (request, waits) = match &client.holds {
            None if rng.u8(..3) == 0 => {
                let adds = rng.bool();
                let request = match adds {
                    true => "incr\nhits\n1\n",
                    false => "get\nhits\n\n",
                };
                (request.to_owned(), Waits::Count { told: floor, adds })
            }
            None => {
                let key = rng.usize(..3);
                let wait_s = rng.u64(0..=3);
                let request = format!("l\nkey{key}\n{wait_s} {lease_s}\n");
                (request, Waits::Grant { key, lease_s })
            }
            Some(grant) if rng.u8(..4) > 0 => {
                let request = format!("n\nkey{}\n{} {lease_s}\n", grant.key, grant.token);
                (request, Waits::Renewal { lease_s })
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
        client.gives_up_at = now + rng.u64(500..12_000) * MS;
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
            let Some(line) = connection.peer.receive_line() else {
                continue;
            };
            let line = String::from_utf8(line).unwrap();
            self.all[index].acts_at = now + rng.u64(5..300) * MS;
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
            }
            self.judge(now, index, &line, epoch);
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
        client.acts_at = now + rng.u64(5..100) * MS;
        self.told.redirects += 1;
    }

    fn judge(&mut self, now: u64, index: usize, line: &str, epoch: u64) {
        let Some((sent, waits)) = self.all[index].waits.take() else {
            panic!("client {index} is told {line:?} and has not asked");
        };
        let words: Vec<&str> = line.split(' ').collect();
        let until = |lease_s: u64| sent + lease_s * 1_000 * self.trust_ppm;
        match (waits, &words[..]) {
            (Waits::Grant { key, lease_s }, ["ok", token, ..]) => {
                self.told.grants += 1;
                let until = until(lease_s);
                if until <= now {
                    return; // it relies on nothing, and lets it go by
                }
                let fence = Token::parse(token.as_bytes()).unwrap().fence.0;
                let before = self.fences.get(&key).copied().unwrap_or(0);
                self.fences.insert(key, fence.max(before));
                assert!(
                    fence > before || epoch <= self.epoch_of_backup,
                    "at {} ms key{key}: fence {fence} after {before}",
                    now / MS
                );
                for (other, it) in self.all.iter().enumerate() {
                    let relies = |it: &&Grant| it.key == key && it.until > now;
                    let relies = it.holds.as_ref().filter(relies);
                    assert!(
                        relies.is_none(),
                        "at {} ms client {index} is granted key{key}, and client {other} has it for {} ms",
                        now / MS,
                        relies.map_or(0, |it| (it.until - now) / MS)
                    );
                }
                self.all[index].holds = Some(Grant {
                    key,
                    token: (*token).to_owned(),
                    until,
                });
            }
            (Waits::Grant { .. }, ["timeout"]) => self.told.timeouts += 1,
            (Waits::Grant { .. } | Waits::Count { .. }, ["error_storage"]) => {
                self.told.no_room += 1;
            }
            (Waits::Renewal { lease_s }, ["ok", left_s, ..]) => {
                self.told.renewals += 1;
                // Without room a lease becomes no longer than it was.
                let left_s: u64 = left_s.parse().unwrap();
                let until = until(lease_s.min(left_s));
                if let Some(grant) = &mut self.all[index].holds {
                    grant.until = until;
                }
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
            (Waits::Count { told, adds }, ["ok", count]) => {
                let count: u64 = count.parse().unwrap();
                assert!(
                    count >= told + u64::from(adds),
                    "at {} ms client {index} counts {count}, and {told} was told before it asked",
                    now / MS
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

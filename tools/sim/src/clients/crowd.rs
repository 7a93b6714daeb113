//! Crowds: thousands of connections, or of holds, leases, values, waiters and subscriptions of a
//! few, that do one thing in one moment, while ordinary clients go on.
//!
//! A crowd is there to be in the way: each scene has more of something than any budget of a turn.
//! It has keys and channels of its own, so that what the checks know of the ordinary clients stays
//! exact; they must not notice the crowd except by a little time. What its members read is looked
//! at only now and then, and only for what is cheap to know (`checks::crowd`).

use std::collections::BTreeSet;
use std::ops::RangeBounds;

use crate::pipe::{Peer, metered_pipe};
use crate::plan::pick;
use crate::simulation::{Scheduled, Simulation};
use latchd::base::{ConnId, Millis};
use latchd::server::Host;
use latchd::tls::MaybeTls;
use latchd::wire::client::push_frame;

/// The number of a crowd's first member; ordinary connections have lower ones.
pub(crate) const FIRST_MEMBER: u32 = 1 << 30;

/// What a crowd does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Thousands hold or wait, and all hang up at once.
    HangUps,
    /// A few clients with tens of thousands of holds leave.
    Holds,
    /// Thousands of leases end in one moment.
    Leases,
    /// Thousands of values end in one moment, or are set again just before.
    Values,
    /// Thousands wait for what one client lets go.
    Resumed,
    /// Thousands of groups hear one signal.
    Groups,
    /// Hundreds send requests without a pause.
    Flood,
    /// Long values are asked for again and again.
    Large,
    /// Long signals to clients that do not read.
    Unread,
    /// Thousands of patterns fit one key.
    Patterns,
    /// Thousands meet at a barrier, or wait there for one more that never comes.
    Meetings,
    /// A few clients, each with several connections, do everything with the same keys. They are no
    /// crowd, but what they hold does not belong to a connection, as the other checks expect.
    Shared,
}

impl Scene {
    /// Those that are drawn. `Shared` has seeds of its own.
    pub(crate) const CROWDS: [Self; 11] = [
        Self::HangUps,
        Self::Holds,
        Self::Leases,
        Self::Values,
        Self::Resumed,
        Self::Groups,
        Self::Flood,
        Self::Large,
        Self::Unread,
        Self::Patterns,
        Self::Meetings,
    ];

    /// How many connections it takes.
    fn members(self) -> usize {
        match self {
            Self::HangUps => 2_500,
            Self::Meetings => 3_500,
            Self::Resumed => 4_500,
            Self::Flood => 300,
            Self::Large => 120,
            Self::Patterns => 40,
            Self::Groups => 100,
            Self::Unread => 24,
            Self::Shared => 3 * CONNECTIONS_EACH,
            Self::Holds | Self::Leases | Self::Values => 4,
        }
    }

    /// What its members may be told: that they ask for more than they can have, or that another
    /// connection of the same client came first.
    pub(crate) fn refusals(self) -> &'static [&'static [u8]] {
        match self {
            Self::Patterns => &[b"error"],
            Self::Shared => &[
                b"error_not_enqueued",
                b"error_already_enqueued",
                b"error_lease_expired",
            ],
            _ => &[],
        }
    }

    /// How many requests of a member may wait for others.
    pub(crate) fn waits_each(self) -> usize {
        match self {
            Self::HangUps | Self::Resumed => 1,
            Self::Meetings => 2, // it may wait for one who never comes, and ask again meanwhile
            Self::Shared => OPEN_MAX,
            _ => 0,
        }
    }
}

/// How many connections each client has that several share.
const CONNECTIONS_EACH: usize = 3;

/// Most requests that one of them leaves without an answer.
const OPEN_MAX: usize = 3;

/// How many holds each of a few members has that leave.
const HOLDS_EACH: usize = 15_000;

/// How many leases or values each of a few members has that are due together.
const DUE_EACH: usize = 6_000;

/// In how many groups each member listens.
const GROUPS_EACH: usize = 60;

/// Parts of a key that a pattern may name or leave open, so there are two to this many patterns:
/// more than the server takes.
const PATTERN_PARTS: u32 = 11;

/// How many bytes a member of a flood sends at once: more than its share of a turn.
const FLOOD_BYTES: usize = 20_000;

/// What a long value or signal has besides its name.
const LARGE_BYTES: usize = 60_000;

/// How many of those that signal to clients that do not read.
const SENDERS: usize = 4;

/// How long a lease or a value of a crowd lasts that is to end together with the others.
const SHORT: Millis = Millis(200);

/// One connection of a crowd.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) peer: Peer,
    /// The id that the server gave it, once it is accepted.
    pub(crate) id: Option<ConnId>,
    /// It came during a shutdown.
    pub(crate) is_newcomer: bool,
    /// The server wants to hear of room to write.
    pub(crate) watches_write: bool,
    /// How many answers it is owed.
    pub(crate) owed: usize,
    pub(crate) has_left: bool,
    /// It never reads.
    is_deaf: bool,
    /// What it read of a line that has no end yet.
    pub(crate) received: Vec<u8>,
}

impl Member {
    /// Whether it takes what it is written.
    pub(crate) fn reads(&self) -> bool {
        !self.has_left && !self.is_deaf
    }
}

/// All members so far, by number.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    pub(crate) members: Vec<Member>,
    /// The fences they were granted.
    pub(crate) fences: BTreeSet<u64>,
}

/// When a crowd does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Gather,
    Storm,
    Leave,
}

impl Simulation {
    /// Lets the crowd act, if there is one and its time has come: it comes, acts twice and leaves,
    /// spread over the run.
    pub(crate) fn perhaps_crowd(&mut self) {
        let Some(scene) = self.plan.crowd else {
            return;
        };
        if scene == Scene::Shared {
            self.shared_clients_act();
        }
        let eighth = self.plan.actions_max / 8;
        let step = match self.actions_left {
            it if it == 7 * eighth => Step::Gather,
            it if it == 6 * eighth || it == 5 * eighth => Step::Storm,
            it if it == 4 * eighth => Step::Leave,
            _ => return,
        };
        if self.life.draining.is_some() || !self.life.is_up {
            return;
        }
        self.trace
            .say(self.now, format_args!("the crowd: {step:?} for {scene:?}"));
        match step {
            Step::Gather if scene == Scene::Resumed => self.crowd_gathers(scene, 1),
            Step::Gather if scene == Scene::Shared && !self.life.crowd.members.is_empty() => {}
            Step::Gather => self.crowd_gathers(scene, scene.members()),
            // A new life of the server has no crowd yet.
            Step::Storm if self.life.crowd.members.is_empty() => {
                self.crowd_gathers(scene, scene.members());
            }
            Step::Storm => self.crowd_storms(scene),
            Step::Leave if scene == Scene::Shared => self.crowd_leaves(..CONNECTIONS_EACH),
            Step::Leave => self.crowd_leaves(..),
        }
        // Somebody who holds something leaves in the same moment: it must not stand behind them.
        if self.life.crowd.members.iter().any(|it| it.has_left) {
            let mut numbers = self.clients.iter().flatten().copied();
            let owns = |number: &u32| self.life.known_grants.owns_something(*number, self.now);
            if let Some(number) = numbers.find(owns) {
                self.reset(number);
            }
        }
    }

    fn crowd_gathers(&mut self, scene: Scene, count: usize) {
        let begin = self.life.crowd.members.len();
        for index in begin..begin + count {
            let number = FIRST_MEMBER + index as u32;
            let (server_end, peer) = metered_pipe(number, Host::User(number), &self.meter);
            let is_deaf = scene == Scene::Unread && index >= begin + SENDERS;
            if is_deaf {
                peer.set_room(0);
            }
            self.life.crowd.members.push(Member {
                peer,
                id: None,
                is_newcomer: false,
                watches_write: false,
                owed: 0,
                has_left: false,
                is_deaf,
                received: Vec::new(),
            });
            let server_end = MaybeTls::Plain(server_end);
            self.life.backlog.push_back((number, server_end));
            let mut requests = Requests::default();
            match scene {
                Scene::HangUps if index.is_multiple_of(2) => {
                    requests.ask("l", &format!("crowd.of.{index}"), "0 60");
                }
                Scene::HangUps => requests.ask("l", "crowd.queue", "60 60"),
                Scene::Resumed if index == 0 => requests.ask("wl", "crowd.rw", "0 60"),
                Scene::Resumed => requests.ask("rl", "crowd.rw", "60 60"),
                Scene::Holds => {
                    for _ in 0..HOLDS_EACH {
                        requests.ask("sl", "crowd.slots", "0 1000000 300");
                    }
                }
                Scene::Groups => {
                    for group in 0..GROUPS_EACH {
                        requests.ask("listen", "crowd.groups", &format!("{index}g{group}"));
                    }
                }
                Scene::Large if index == begin => {
                    let value = "v".repeat(LARGE_BYTES);
                    requests.ask("kset", "crowd.large", &format!("{value}\t600"));
                }
                Scene::Shared => {
                    let client = format!("crowd/{}", index / CONNECTIONS_EACH);
                    requests.ask("attach", &client, "1 secret");
                }
                Scene::Unread if is_deaf => requests.ask("listen", "crowd.loud", ""),
                Scene::Patterns => {
                    for choice in (index..1 << PATTERN_PARTS).step_by(count) {
                        let part = |bit| if choice >> bit & 1 == 0 { ".a" } else { ".*" };
                        let parts: String = (0..PATTERN_PARTS).map(part).collect();
                        requests.ask("watch", &format!("crowd{parts}"), "");
                    }
                }
                _ => {}
            }
            self.crowd_asks(index, requests);
        }
        self.expect_turn();
    }

    fn crowd_storms(&mut self, scene: Scene) {
        let count = self.life.crowd.members.len();
        let asking = match scene {
            Scene::HangUps => {
                self.crowd_leaves(..);
                return self.crowd_gathers(scene, scene.members());
            }
            Scene::Resumed if count == 1 => return self.crowd_gathers(scene, scene.members()),
            Scene::Holds => return self.crowd_leaves(..count / 2),
            Scene::Resumed => return self.crowd_leaves(..1),
            Scene::Groups => 0..2,
            Scene::Unread => 0..SENDERS,
            Scene::Patterns => 0..1,
            Scene::Shared => 0..0,
            Scene::Leases | Scene::Values | Scene::Flood | Scene::Large | Scene::Meetings => {
                0..count
            }
        };
        let times = self.rng.usize(1..=2);
        for index in asking {
            let requests = storm_of(scene, index, times, count);
            self.crowd_asks(index, requests);
        }
        if matches!(scene, Scene::Leases | Scene::Values) && self.rng.bool() {
            // Then all are due when it goes on.
            self.schedule(self.now.after(SHORT), Scheduled::Pause(SHORT.0));
        }
    }

    /// Some connections of clients that have several ask for something, often while another one
    /// waits for the same. Sometimes the server is late.
    fn shared_clients_act(&mut self) {
        const ASKS: usize = 4;
        let count = self.life.crowd.members.len();
        if count == 0 {
            return;
        }
        if self.rng.u8(..8) == 0 {
            let late_ms = self.rng.u64(1..=20);
            self.schedule(self.now, Scheduled::Pause(late_ms));
        }
        for _ in 0..ASKS {
            let index = self.rng.usize(..count);
            if self.life.crowd.members[index].owed >= OPEN_MAX {
                continue;
            }
            let rng = &mut self.rng;
            let [wait, lease] = [(); 2].map(|()| format!("{}ms", pick(rng, &[1, 2, 5, 20])));
            let asks = [
                ("e", "crowd.lock", lease.clone()),
                ("w", "crowd.lock", wait.clone()),
                ("l", "crowd.lock", format!("{wait} {lease}")),
                ("se", "crowd.slots", format!("2 {lease}")),
                ("sw", "crowd.slots", wait.clone()),
                ("re", "crowd.rw", lease.clone()),
                ("we", "crowd.rw", lease.clone()),
                ("ww", "crowd.rw", wait.clone()),
            ];
            let (verb, key, argument) = pick(rng, &asks);
            let mut requests = Requests::default();
            requests.ask(verb, key, argument);
            self.crowd_asks(index, requests);
        }
    }

    /// Some or all of the crowd hang up, all in one moment.
    pub(crate) fn crowd_leaves(&mut self, who: impl RangeBounds<usize>) {
        for index in 0..self.life.crowd.members.len() {
            let member = &mut self.life.crowd.members[index];
            if !who.contains(&index) || member.has_left {
                continue;
            }
            member.has_left = true;
            if member.is_deaf || self.rng.bool() {
                member.peer.reset();
            } else {
                member.peer.close();
            }
            if member.id.is_some() {
                self.report(FIRST_MEMBER + index as u32);
            }
        }
    }

    fn crowd_asks(&mut self, index: usize, requests: Requests) {
        let member = &mut self.life.crowd.members[index];
        if requests.count == 0 || member.has_left {
            return;
        }
        member.owed += requests.count;
        member.peer.send(&requests.bytes);
        member.peer.arrive(usize::MAX);
        if member.id.is_some() {
            self.report(FIRST_MEMBER + index as u32);
        }
    }
}

/// What one member sends in one go.
#[derive(Debug, Default)]
struct Requests {
    bytes: Vec<u8>,
    count: usize,
}

impl Requests {
    fn ask(&mut self, verb: &str, key: &str, argument: &str) {
        push_frame(
            &mut self.bytes,
            verb.as_bytes(),
            key.as_bytes(),
            argument.as_bytes(),
        );
        self.count += 1;
    }
}

/// What a member sends when the crowd acts.
fn storm_of(scene: Scene, index: usize, times: usize, count: usize) -> Requests {
    let mut requests = Requests::default();
    match scene {
        Scene::Leases => {
            let argument = format!("0 1000000 {}ms", SHORT.0);
            for _ in 0..DUE_EACH {
                requests.ask("sl", "crowd.slots", &argument);
            }
        }
        Scene::Values => {
            let argument = format!("x\t{}ms", SHORT.0);
            for number in 0..DUE_EACH * times {
                let key = format!("crowd.of.{index}.{}", number % DUE_EACH);
                requests.ask("kset", &key, &argument);
            }
        }
        Scene::Groups => requests.ask("signal", "crowd.groups", "x"),
        Scene::Flood => {
            let key = format!("crowd.{}", "p".repeat(200));
            while requests.bytes.len() < FLOOD_BYTES * times {
                requests.ask("get", &key, "");
            }
        }
        Scene::Large => {
            for _ in 0..5 {
                requests.ask("kget", "crowd.large", "");
            }
        }
        Scene::Unread => {
            let signal = "s".repeat(LARGE_BYTES);
            for _ in 0..10 {
                requests.ask("signal", "crowd.loud", &signal);
            }
        }
        Scene::Patterns => {
            let key = format!("crowd{}", ".a".repeat(PATTERN_PARTS as usize));
            for _ in 0..20 {
                requests.ask("kset", &key, "x\t1");
            }
        }
        Scene::Meetings => {
            let count = count + times - 1;
            requests.ask(
                "bwait",
                &format!("crowd.meeting.{times}"),
                &format!("{count} 60"),
            );
        }
        Scene::HangUps | Scene::Holds | Scene::Resumed | Scene::Shared => {}
    }
    requests
}

//! Conversations about primitives that take very much, or that are easier to read than to draw.
//!
//! Random histories of every primitive are compared with the reference model in `tests/engine/model`.

mod drains;
mod elections;
mod lists;
mod subscriptions;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Effect, Effects, Input, Push, Reply, Request};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, Rules};

/// Connections in every conversation.
pub(crate) const CLIENTS: usize = 5;

/// What one client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Reply(Reply),
    Push(Push),
}

/// What a call made the engine say, and to whom; one client's in order, clients by number.
pub(crate) type Heard = Vec<(usize, Said)>;

/// An engine, its clock and its clients.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: Nanos,
}

impl World {
    pub(crate) fn new(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            now: Nanos(1),
        }
    }

    pub(crate) fn ask(&mut self, who: usize, request: Request<'_>) -> Heard {
        self.tell(Input::Request(id(who), request))
    }

    pub(crate) fn leave(&mut self, who: usize) -> Heard {
        self.tell(Input::Disconnected(id(who)))
    }

    pub(crate) fn drain(&mut self) -> Heard {
        self.tell(Input::Drain)
    }

    /// Everyone leaves and an hour passes: nothing is left but what was stored for good.
    pub(crate) fn end(&mut self, others: usize) {
        for who in 0..CLIENTS {
            self.leave(who);
        }
        for _ in 0..2 {
            self.now = self.now.after(Millis::from_secs(3600));
            assert_eq!(self.tell(Input::Time(u64::MAX)), [], "nobody is there");
        }
        let expected = Counts {
            others,
            ..Counts::default()
        };
        assert_eq!(self.engine.counts(), expected, "nobody is there");
    }

    fn tell(&mut self, input: Input<'_>) -> Heard {
        let mut out = Effects::new();
        self.engine.apply(self.now, input, &mut out);
        self.engine.check();
        let mut heard = Heard::new();
        for effect in out {
            match effect {
                Effect::Reply(id, reply) => heard.push((id.slot as usize, Said::Reply(reply))),
                Effect::Push(id, push) => heard.push((id.slot as usize, Said::Push(push))),
                Effect::Broadcast(ids, push) => {
                    let told = |id: ConnId| (id.slot as usize, Said::Push(push.clone()));
                    heard.extend(ids.into_iter().map(told));
                }
                other => panic!("nobody asked for {other:?}"),
            }
        }
        heard.sort_by_key(|&(who, _)| who);
        heard
    }
}

fn id(who: usize) -> ConnId {
    ConnId {
        slot: who as u32,
        serial: who as u32 + 1,
    }
}

pub(crate) fn reply(who: usize, reply: Reply) -> (usize, Said) {
    (who, Said::Reply(reply))
}

//! Random histories of every primitive, each against a model so naive that it is plainly right.
//!
//! The models are written from the protocol's text, not from the engine: lists are a `VecDeque`,
//! values a `BTreeMap` with a clock, recipients a walk over all subscriptions. What the engine says
//! is compared client by client after every call, since nobody can tell the order between two
//! connections. In half of the histories pairs of connections are attached to one client, which
//! changes who owns a grant and nothing else. More cases with `PROPTEST_CASES`.

#![allow(clippy::unwrap_used, missing_docs)]

mod barriers;
mod counters;
mod drains;
mod elections;
mod lists;
mod subscriptions;
mod values;
mod watches;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{
    Attach, Effect, Effects, Input, Mode, Popped, Push, Reply, Request, Secret,
};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, Rules};
use proptest::prelude::*;

/// Connections in every history; each that leaves is followed by another one.
pub(crate) const CLIENTS: usize = 5;

/// What one client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Reply(Reply),
    Push(Push),
    Overrun,
}

/// What a call made the engine say, and to whom; one client's in order, clients by number.
pub(crate) type Heard = Vec<(usize, Said)>;

/// Time as histories let it pass. A late turn is one in which requests come before what is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Time {
    /// So many milliseconds.
    Ms(u64),
    /// To the last nanosecond before something is due.
    BeforeNext,
    /// To the instant at which something is due.
    AtNext,
}

/// An engine, its clock and its clients.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: Nanos,
    ids: [ConnId; CLIENTS],
    serial: u32,
    parked: [bool; CLIENTS],
    /// Which connections are attached to the client of their pair; `None` if none ever is.
    attached: Option<[bool; CLIENTS]>,
    /// The request that was made last is to be made again.
    is_put_off: bool,
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
            ids: std::array::from_fn(|slot| ConnId {
                slot: slot as u32,
                serial: slot as u32 + 1,
            }),
            serial: CLIENTS as u32,
            parked: [false; CLIENTS],
            attached: None,
            is_put_off: false,
        }
    }

    /// Each connection attaches before it asks for the first time: 0 and 1 to one client, 2 and 3
    /// to another, 4 to a third.
    pub(crate) fn sharing_clients(mut self, shared: bool) -> Self {
        self.attached = shared.then_some([false; CLIENTS]);
        self
    }

    /// The client of each connection; `None` if it has not attached yet.
    pub(crate) fn clients(&self) -> [Option<usize>; CLIENTS] {
        std::array::from_fn(|who| match self.attached {
            Some(attached) => attached[who].then_some(who / 2),
            None => Some(who),
        })
    }

    /// Attaches the connection, if it is to share a client and has not yet.
    pub(crate) fn attach(&mut self, who: usize) {
        let id = self.ids[who];
        if let Some(attached) = &mut self.attached
            && !std::mem::replace(&mut attached[who], true)
        {
            let heard = self.put(who, Input::Attach(id, client_of(who)));
            assert!(matches!(
                heard[..],
                [(_, Said::Reply(Reply::Attached { .. }))]
            ));
        }
    }

    /// Whether the client is in a command that has not been answered, and so cannot ask.
    pub(crate) fn is_parked(&self, who: usize) -> bool {
        self.parked[who]
    }

    pub(crate) fn ask(&mut self, who: usize, request: Request<'_>) -> Heard {
        self.attach(who);
        self.put(who, Input::Request(self.ids[who], request))
    }

    fn put(&mut self, who: usize, input: Input<'_>) -> Heard {
        assert!(!self.parked[who], "one question at a time");
        self.parked[who] = true;
        let now = self.now;
        let again = input.clone();
        let heard = self.call(|engine, out| engine.apply(now, input, out));
        if !std::mem::take(&mut self.is_put_off) {
            return heard;
        }
        // What is over is ended first, as the server does at the end of a turn.
        assert_eq!((heard, self.expire()), (Heard::new(), Heard::new()));
        let heard = self.call(|engine, out| engine.apply(now, again, out));
        assert!(!self.is_put_off, "for ever, though nothing is large here");
        heard
    }

    pub(crate) fn expire(&mut self) -> Heard {
        let now = self.now;
        self.call(|engine, out| engine.apply(now, Input::Time(u64::MAX), out))
    }

    /// The connection ends, and the next one takes its slot.
    pub(crate) fn leave(&mut self, who: usize) -> Heard {
        let (now, id) = (self.now, self.ids[who]);
        self.parked[who] = false;
        if let Some(attached) = &mut self.attached {
            attached[who] = false;
        }
        self.serial += 1;
        self.ids[who].serial = self.serial;
        self.call(|engine, out| engine.apply(now, Input::Disconnected(id), out))
    }

    pub(crate) fn give_back(&mut self, popped: Popped) -> Heard {
        let now = self.now;
        self.call(|engine, out| engine.apply(now, Input::Unsent(popped), out))
    }

    pub(crate) fn drain(&mut self) -> Heard {
        let now = self.now;
        self.call(|engine, out| engine.apply(now, Input::Drain, out))
    }

    /// As the server would say of a client whose outbox is full, which must have asked something.
    pub(crate) fn set_overrun(&mut self, who: usize, overrun: bool) {
        if !self.parked[who] {
            self.ask(who, Request::Count { key: b"unheard of" });
        }
        let input = Input::Overrun(self.ids[who], overrun);
        self.engine.apply(self.now, input, &mut Effects::new());
    }

    /// Moves the clock; `next` is when the model has something due.
    pub(crate) fn advance(&mut self, time: Time, next: Option<Nanos>) {
        let next = next.unwrap_or(self.now);
        self.now = self.now.max(match time {
            Time::Ms(ms) => self.now.after(Millis(ms)),
            Time::BeforeNext => Nanos(next.0 - 1),
            Time::AtNext => next,
        });
    }

    /// Everyone leaves and an hour passes: nothing is left but what was stored for good.
    pub(crate) fn end(&mut self, others: usize) {
        for who in 0..CLIENTS {
            self.leave(who);
        }
        let Counts {
            subscriptions,
            holders,
            waiters,
            tickets,
            owners,
            connections,
            ..
        } = self.engine.counts();
        assert_eq!(
            [
                subscriptions,
                holders,
                waiters,
                tickets,
                owners,
                connections
            ],
            [0; 6],
            "left behind"
        );
        for _ in 0..2 {
            self.now = self.now.after(Millis::from_secs(3600));
            assert_eq!(self.expire(), [], "nobody is there");
        }
        let expected = Counts {
            others,
            ..Counts::default()
        };
        assert_eq!(self.engine.counts(), expected, "nobody is there");
    }

    fn call(&mut self, door: impl FnOnce(&mut Engine, &mut Effects)) -> Heard {
        let mut out = Effects::new();
        door(&mut self.engine, &mut out);
        self.engine.check_at(self.now);
        let mut heard = Heard::new();
        for effect in out {
            match effect {
                Effect::Reply(id, reply) => {
                    let who = self.who(id);
                    assert!(self.parked[who], "{who} is answered twice: {reply:?}");
                    self.parked[who] = false;
                    heard.push((who, Said::Reply(reply)));
                }
                Effect::Push(id, push) => heard.push((self.who(id), Said::Push(push))),
                Effect::Broadcast(ids, push) => {
                    assert!(!ids.is_empty(), "told to nobody: {push:?}");
                    let told = |id: ConnId| (self.who(id), Said::Push(push.clone()));
                    heard.extend(ids.into_iter().map(told));
                }
                Effect::Mark(mark) => panic!("marked {mark}, though nothing is recorded"),
                Effect::Note(note) => panic!("{note:?}, though nobody reads it"),
                Effect::Overrun(id) => heard.push((self.who(id), Said::Overrun)),
                Effect::NotYet(id) => {
                    assert!(self.parked[self.who(id)]);
                    self.is_put_off = true;
                }
                Effect::GraceOver(_) => {
                    panic!("the grace period ends, though nothing was restored")
                }
            }
        }
        in_order(heard)
    }

    fn who(&self, id: ConnId) -> usize {
        let who = id.slot as usize;
        assert_eq!(self.ids[who], id, "somebody who left is told something");
        who
    }
}

fn client_of(who: usize) -> Attach<'static> {
    Attach {
        adapter: None,
        id: ["gw/0", "gw/1", "gw/2"][who / 2],
        ttl: Millis::ZERO,
        secret: Secret(b"secret"),
    }
}

/// By client; of one client, as it was.
pub(crate) fn in_order(mut heard: Heard) -> Heard {
    heard.sort_by_key(|&(who, _)| who);
    heard
}

pub(crate) fn reply(who: usize, reply: Reply) -> (usize, Said) {
    (who, Said::Reply(reply))
}

pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) fn client() -> impl Strategy<Value = usize> {
    0..CLIENTS
}

pub(crate) fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        (0..6u64).prop_map(|s| Time::Ms(s * 500)),
        Just(Time::BeforeNext),
        Just(Time::AtNext),
    ]
}

/// A wait or a lease: few values, so that deadlines meet.
pub(crate) fn span() -> impl Strategy<Value = Millis> {
    (1..6u64).prop_map(|s| Millis(s * 1000))
}

/// Every third one is none at all: try once, or for ever.
pub(crate) fn span_or_zero() -> impl Strategy<Value = Millis> {
    prop_oneof![1 => Just(Millis::ZERO), 3 => span()]
}

/// A key and how to hold it: mostly as others do, so that few are refused.
pub(crate) fn hold() -> impl Strategy<Value = (&'static [u8], Mode)> {
    let (lock, pool) = (Mode::Slot { limit: 1 }, Mode::Slot { limit: 2 });
    prop_oneof![
        4 => Just((&b"a"[..], lock)),
        2 => Just((&b"a"[..], Mode::Lead)),
        6 => Just((&b"b"[..], pool)),
        5 => Just((&b"a.b"[..], Mode::Read)),
        3 => Just((&b"a.b"[..], Mode::Write)),
        1 => Just((&b"a"[..], Mode::Read)),
        1 => Just((&b"b"[..], lock)),
        1 => Just((&b"a.b"[..], pool)),
    ]
}

/// However often a client could not be told something, it is reported once until it has read.
pub(crate) fn report_once(overruns: &mut [usize; CLIENTS], reported: &mut [bool; CLIENTS]) {
    for (count, reported) in overruns.iter_mut().zip(reported) {
        let is_first = *count > 0 && !*reported;
        *reported |= *count > 0;
        *count = usize::from(is_first);
    }
}

//! What a verb is sent with: one request for each verb of the table.

use crate::lockstep::names::{
    BARRIERS, CHANNELS, COUNTERS, GROUPS, KEY_PATTERNS, LISTS, OWNERS, PATTERNS, RANGE_OWNERS,
    REQUEST_IDS, RESOURCES, STORED, VALUES, keys,
};
use crate::lockstep::scene::{Aim, LONG, SHORT, Scene, Session};
use crate::lockstep::step::{
    Ask, Conn, End, Mode, Ms, Name, RangeRequest, Request, Span, Token, What,
};
use crate::lockstep::table::{Kind, Verb};

/// What a sender has decided; the rest is chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct With {
    pub key: Option<Name>,
    pub token: Option<Token>,
    pub wait: Option<Ms>,
    pub lease: Option<Ms>,
    /// The id of the request of an owner that is known by its name.
    pub id: Option<Name>,
    /// The resource, the owner and the bytes.
    pub bytes: Option<(Name, Name, Span)>,
    /// The pattern and the group.
    pub topic: Option<(Name, Name)>,
}

impl Scene<'_> {
    /// The request of this verb, by this session on this connection.
    pub fn request(&mut self, conn: Conn, session: Session, verb: Verb, with: With) -> (What, Aim) {
        if verb.is_of_ranges() {
            return self.range_request(conn, session, verb, with);
        }
        let key = match with.key {
            Some(key) => key,
            None => {
                let of = if self.one_in(40) {
                    Verb::Semaphore
                } else {
                    verb
                };
                self.one_of(keys(of))
            }
        };
        let wait = match with.wait {
            Some(wait) => wait,
            None => self.one_of(&[0, 1, SHORT, 300, LONG]),
        };
        let lease = match with.lease {
            None if !self.one_in(6) => Some(self.one_of(&[5, SHORT, 200, LONG])),
            lease => lease,
        };
        let token = with.token;
        let mut aim = Aim::Key { key, token, wait };
        let request = match verb {
            Verb::Lock | Verb::Semaphore | Verb::Read | Verb::Write | Verb::Elect => {
                Request::Acquire {
                    key,
                    mode: self.mode(verb),
                    wait,
                    lease,
                }
            }
            Verb::EnqueueLock | Verb::EnqueueSemaphore | Verb::EnqueueRead | Verb::EnqueueWrite => {
                Request::Enqueue {
                    key,
                    mode: self.mode(verb),
                    lease,
                }
            }
            Verb::Wait => Request::Wait { key, wait },
            Verb::Release => Request::Release { key, token },
            Verb::Renew => Request::Renew { key, token, lease },
            Verb::Reclaim => Request::Reclaim { key, token, lease },
            Verb::Position => Request::Position { key },
            Verb::Resign => Request::Resign { key, token },
            Verb::Observe | Verb::Unobserve => {
                let (key, group) = with.topic.unwrap_or((key, ""));
                aim = Aim::Topic {
                    pattern: key,
                    group,
                };
                match verb {
                    Verb::Observe => Request::Observe { key },
                    _ => Request::Unobserve { key },
                }
            }
            Verb::Listen | Verb::Unlisten | Verb::Watch | Verb::Unwatch => {
                let (pattern, group) = with.topic.unwrap_or_else(|| self.topic(verb));
                aim = Aim::Topic { pattern, group };
                match verb {
                    Verb::Listen => Request::Listen { pattern, group },
                    Verb::Unlisten => Request::Unlisten { pattern, group },
                    Verb::Watch => Request::Watch { pattern },
                    _ => Request::Unwatch { pattern },
                }
            }
            verb => {
                aim = Aim::Other { wait };
                self.data_request(verb, with.key, wait)
            }
        };
        let what = match session.kind {
            Kind::Owner => {
                let id = with.id.unwrap_or_else(|| self.one_of(&REQUEST_IDS));
                What::RequestBy(conn, [OWNERS[session.index], id], request)
            }
            _ => What::Request(conn, request),
        };
        (what, aim)
    }

    /// Nearly always the usual one.
    fn mode(&mut self, verb: Verb) -> Mode {
        if self.one_in(40) {
            return self.one_of(&[Mode::Slot(1), Mode::Slot(2), Mode::Slot(3), Mode::Read]);
        }
        match verb {
            Verb::Semaphore | Verb::EnqueueSemaphore => Mode::Slot(2),
            Verb::Read | Verb::EnqueueRead => Mode::Read,
            Verb::Write | Verb::EnqueueWrite => Mode::Write,
            Verb::Elect => Mode::Lead,
            _ => Mode::Slot(1),
        }
    }

    fn topic(&mut self, verb: Verb) -> (Name, Name) {
        match verb {
            Verb::Listen | Verb::Unlisten => (self.one_of(&PATTERNS), self.one_of(&GROUPS)),
            _ => (self.one_of(&KEY_PATTERNS), ""),
        }
    }

    /// What is about no lock.
    fn data_request(&mut self, verb: Verb, key: Option<Name>, wait: Ms) -> Request {
        let counter = key.unwrap_or_else(|| self.one_of(&COUNTERS));
        let name = key.unwrap_or_else(|| self.one_of(&VALUES));
        let list = key.unwrap_or_else(|| self.one_of(&LISTS));
        let barrier = key.unwrap_or_else(|| self.one_of(&BARRIERS));
        let value = self.one_of(&STORED);
        let ttl = self.one_of(&[0, 0, SHORT, LONG]);
        let end = self.one_of(&[End::Left, End::Right]);
        let [start, stop] = [(); 2].map(|()| self.one_of(&[0, 1, -1, -2, 5, i64::MIN]));
        match verb {
            Verb::Add => {
                let delta = self.one_of(&[1, 1, 2, i64::MAX]);
                let down = self.one_in(3);
                let delta = if down { -delta } else { delta };
                let key = counter;
                Request::Add { key, delta, down }
            }
            Verb::Count => Request::Count { key: counter },
            Verb::SetCount => Request::SetCount {
                key: counter,
                value: self.one_of(&[0, 5, i64::MAX]),
            },
            Verb::Put => Request::Put {
                key: name,
                value,
                ttl,
            },
            Verb::Fetch => Request::Fetch { key: name },
            Verb::Delete => Request::Delete { key: name },
            Verb::Swap => Request::Swap {
                key: name,
                old: self.one_of(&["", STORED[0], STORED[1]]),
                new: value,
                ttl,
            },
            Verb::Push => Request::Push {
                key: list,
                value,
                end,
            },
            Verb::Pop => Request::Pop { key: list, end },
            Verb::AwaitPop => Request::AwaitPop {
                key: list,
                end,
                wait,
            },
            Verb::Length => Request::Length { key: list },
            Verb::ListRange => Request::ListRange {
                key: list,
                start,
                stop,
            },
            Verb::Meet => Request::Meet {
                key: barrier,
                count: self.one_of(&[1, 2, 2, 3]),
                wait,
            },
            Verb::Signal => Request::Signal {
                channel: self.one_of(&CHANNELS),
                payload: value,
            },
            other => unreachable!("{other:?} is about a lock"),
        }
    }

    fn range_request(
        &mut self,
        conn: Conn,
        session: Session,
        verb: Verb,
        with: With,
    ) -> (What, Aim) {
        let (resource, owner, span) = match with.bytes {
            Some(bytes) => bytes,
            None => (
                self.one_of(&RESOURCES),
                self.one_of(&RANGE_OWNERS),
                self.span(),
            ),
        };
        let wait = match with.wait {
            Some(wait) => wait,
            None => self.one_of(&[0, 1, SHORT, LONG]),
        };
        let exclusive = with.bytes.is_some() || !self.one_in(3);
        let ask = match verb {
            Verb::RangeLock => Ask::Lock {
                exclusive,
                span,
                wait,
            },
            Verb::RangeUnlock => Ask::Unlock { span },
            Verb::RangeTest => Ask::Test { exclusive, span },
            Verb::RangeCancel => Ask::Cancel { exclusive, span },
            _ => Ask::Reclaim { exclusive, span },
        };
        let of = match session.kind {
            Kind::Registered => Some(self.client(session.index)),
            _ => None,
        };
        let request = RangeRequest {
            resource,
            owner,
            ask,
        };
        let aim = Aim::Bytes {
            resource,
            owner,
            span,
            wait,
        };
        (What::Range(conn, of, request), aim)
    }

    pub fn span(&mut self) -> Span {
        match self.chance.u8(..30) {
            0 => Span { start: 0, len: 0 },
            1 => Span {
                start: u64::MAX,
                len: 5, // there are no such bytes
            },
            2 => Span {
                start: u64::MAX,
                len: 1,
            },
            _ => Span {
                start: self.chance.u64(..20),
                len: self.chance.u64(1..8),
            },
        }
    }
}

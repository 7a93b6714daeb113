//! Requests about byte ranges and attached clients, as frames of the real protocol.
//!
//! A client locks for the id that it has attached to, or for itself. It knows what it was told, and what
//! it held before a restart, and sometimes asks for something else. It attaches and detaches only
//! when it has no other request under way, because nobody could say for whom that would be.

use fastrand::Rng;

use super::connection::Connection;
use super::lock_requests::{WrittenRequest, written};
use super::request::RequestKind;
use crate::checks::known_ranges::KnownRanges;
use crate::plan::{Plan, SECRET, pick};
use crate::range_plan::{Cells, OWNERS, SECRETS};
use latchd::base::Millis;
use latchd::engine::types::Sharing;

/// Some bytes of a resource, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) resource: usize,
    pub(crate) cells: Cells,
    /// An index of [`OWNERS`].
    pub(crate) name: usize,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAsked {
    Attach {
        id: usize,
        ttl: Millis,
        secret: usize,
    },
    Detach {
        id: usize,
        secret: usize,
    },
    /// `wait` is as long as the server lets anybody wait.
    Lock {
        bytes: Bytes,
        mode: Sharing,
        wait: Millis,
    },
    Unlock(Bytes),
    Test(Bytes, Sharing),
    Cancel(Bytes, Sharing),
    Reclaim(Bytes, Sharing),
    ReclaimDone {
        id: usize,
    },
    List {
        resource: usize,
    },
    Waits,
    Grace {
        ends: bool,
    },
    /// Of these cells, or of all.
    Break {
        resource: usize,
        cells: Option<Cells>,
    },
    /// Bytes that do not exist.
    NoBytes,
}

impl RangeAsked {
    /// The resource that it may change.
    pub(crate) fn resource(&self) -> Option<usize> {
        match *self {
            Self::Lock { bytes, .. }
            | Self::Unlock(bytes)
            | Self::Cancel(bytes, _)
            | Self::Reclaim(bytes, _) => Some(bytes.resource),
            Self::Break { resource, .. } => Some(resource),
            _ => None,
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Test(..) | Self::List { .. } | Self::Waits | Self::NoBytes
        ) || *self == (Self::Grace { ends: false })
    }
}

/// Writes one request about ranges.
pub(crate) struct RangeWriter<'w> {
    pub(crate) rng: &'w mut Rng,
    pub(crate) plan: &'w Plan,
    pub(crate) known: &'w KnownRanges,
    pub(crate) number: u32,
    pub(crate) conn: &'w Connection,
    /// To which client it attaches, if it does.
    pub(crate) home: Option<usize>,
}

impl RangeWriter<'_> {
    /// Whatever this client does next; none if that would have to wait for an answer.
    pub(crate) fn write(&mut self) -> Option<WrittenRequest> {
        if self.plan.settings.access.asks_for_token() && !self.conn.has_shown_secret {
            return Some(written(RequestKind::Ok, "auth", b"_", SECRET));
        }
        let is_idle = self.conn.open_requests.is_empty();
        let client = self.known.client_of(self.number);
        let mut draw = self.rng.u8(..100);
        if draw < self.plan.ranges.operator_pct {
            return Some(self.operate());
        }
        if client.is_none() && self.home.is_some() && self.rng.u8(..8) != 0 {
            return is_idle.then(|| self.attach());
        }
        if self.known.has_pending(client) && self.rng.u8(..3) != 0 {
            return Some(self.reclaim(client));
        }
        draw = self.rng.u8(..100);
        match draw {
            0..56 => Some(self.lock()),
            56..70 => Some(self.unlock(client)),
            70..76 => {
                let (bytes, mode) = (self.bytes(), self.mode());
                Some(self.about(RangeAsked::Test(bytes, mode)))
            }
            76..83 => Some(self.cancel(client)),
            83..86 => Some(self.reclaim(client)),
            86..88 => Some(self.list()),
            88 => Some(written(kind(RangeAsked::Waits), "waits", b"_", b"")),
            89 => Some(self.grace(false)),
            90 => Some(self.no_bytes()),
            91 => Some(written(RequestKind::Hello, "hello", b"_", b"name=sim")),
            92 => Some(written(RequestKind::Ok, "ping", b"", b"_")),
            93 | 94 if is_idle => Some(self.attach()),
            95 if is_idle => Some(self.detach(client)),
            96 => {
                let id = client.unwrap_or_else(|| self.rng.usize(..self.plan.ranges.ids.len()));
                let asked = RangeAsked::ReclaimDone { id };
                let id = self.plan.ranges.ids[id].as_bytes();
                Some(written(kind(asked), "reclaimdone", id, b""))
            }
            _ => None,
        }
    }

    fn attach(&mut self) -> WrittenRequest {
        let is_home = self.rng.u8(..12) != 0;
        let id = match self.home.filter(|_| is_home) {
            Some(id) => id,
            None => self.rng.usize(..self.plan.ranges.ids.len()),
        };
        let ttl = Millis(*pick(self.rng, &self.plan.ranges.ttls_ms));
        let secret = self.secret();
        let asked = RangeAsked::Attach { id, ttl, secret };
        let argument = format!("{}ms {}", ttl.0, SECRETS[secret]);
        let id = self.plan.ranges.ids[id].as_bytes();
        written(kind(asked), "attach", id, argument.as_bytes())
    }

    fn detach(&mut self, client: Option<usize>) -> WrittenRequest {
        let other = self.rng.usize(..self.plan.ranges.ids.len());
        let id = client.filter(|_| self.rng.u8(..4) != 0).unwrap_or(other);
        let secret = self.secret();
        let asked = RangeAsked::Detach { id, secret };
        let id = self.plan.ranges.ids[id].as_bytes();
        written(kind(asked), "detach", id, SECRETS[secret].as_bytes())
    }

    fn secret(&mut self) -> usize {
        usize::from(self.rng.u8(..100) < self.plan.ranges.wrong_pct)
    }

    fn lock(&mut self) -> WrittenRequest {
        let (bytes, mode) = (self.bytes(), self.mode());
        let waits = self.rng.u8(..100) < self.plan.ranges.wait_pct;
        let asked_ms = match waits {
            true => *pick(self.rng, &self.plan.waits_ms),
            false => 0,
        };
        self.lock_for(bytes, mode, asked_ms)
    }

    fn lock_for(&mut self, bytes: Bytes, mode: Sharing, asked_ms: u64) -> WrittenRequest {
        let wait = match self.plan.rules.range_wait_max {
            Millis::ZERO => Millis(asked_ms),
            most => Millis(asked_ms).min(most),
        };
        let asked = RangeAsked::Lock { bytes, mode, wait };
        let span = bytes.cells.spell(self.rng);
        let argument = format!("{} {span} {asked_ms}ms{}", mode.word(), owner(bytes));
        let resource = &self.plan.ranges.resources[bytes.resource];
        written(kind(asked), "rangelock", resource, argument.as_bytes())
    }

    /// Mostly of something that its client holds.
    fn unlock(&mut self, client: Option<usize>) -> WrittenRequest {
        let held = self.known.held_by(self.number, client);
        let mut bytes = match held.is_empty() || self.rng.u8(..6) == 0 {
            true => self.bytes(),
            false => *pick(self.rng, &held),
        };
        if self.rng.u8(..4) == 0 {
            bytes.cells = Cells::draw(self.rng);
        }
        self.about(RangeAsked::Unlock(bytes))
    }

    /// Mostly of something that another connection of its client waits for.
    fn cancel(&mut self, client: Option<usize>) -> WrittenRequest {
        let waits = self.known.waits_of(client);
        let (bytes, mode) = match waits.is_empty() || self.rng.u8(..6) == 0 {
            true => (self.bytes(), self.mode()),
            false => *pick(self.rng, &waits),
        };
        match self.rng.u8(..5) {
            0 => self.about(RangeAsked::Unlock(bytes)),
            1 => {
                // The same once more: it waits in the place of the first.
                let wait = *pick(self.rng, &self.plan.waits_ms);
                self.lock_for(bytes, mode, wait)
            }
            _ => self.about(RangeAsked::Cancel(bytes, mode)),
        }
    }

    /// Mostly what is still to be had back, or what was held before.
    fn reclaim(&mut self, client: Option<usize>) -> WrittenRequest {
        let mut held = self.known.pending_of(client);
        if held.is_empty() || self.rng.u8(..6) == 0 {
            held = self.known.held_before(client);
        }
        let (mut bytes, mut mode) = match held.is_empty() || self.rng.u8(..8) == 0 {
            true => (self.bytes(), self.mode()),
            false => *pick(self.rng, &held),
        };
        match self.rng.u8(..8) {
            0 => mode = self.mode(),
            1 => bytes.cells = Cells::draw(self.rng),
            _ => {}
        }
        self.about(RangeAsked::Reclaim(bytes, mode))
    }

    fn operate(&mut self) -> WrittenRequest {
        let resource = self.rng.usize(..self.plan.ranges.resources.len());
        if self.rng.u8(..4) == 0 {
            return self.grace(true);
        }
        let cells = self.rng.bool().then(|| Cells::draw(self.rng));
        let argument = match cells {
            Some(cells) => format!("range {}", cells.spell(self.rng)),
            None => "range *".to_owned(),
        };
        let asked = RangeAsked::Break { resource, cells };
        let resource = &self.plan.ranges.resources[resource];
        written(kind(asked), "break", resource, argument.as_bytes())
    }

    fn grace(&mut self, ends: bool) -> WrittenRequest {
        let argument: &[u8] = if ends { b"end" } else { b"" };
        written(kind(RangeAsked::Grace { ends }), "grace", b"_", argument)
    }

    fn list(&mut self) -> WrittenRequest {
        let resource = self.rng.usize(..self.plan.ranges.resources.len());
        let asked = kind(RangeAsked::List { resource });
        written(
            asked,
            "rangelist",
            &self.plan.ranges.resources[resource],
            b"",
        )
    }

    fn no_bytes(&mut self) -> WrittenRequest {
        const SPANS: [&str; 4] = [
            "2 18446744073709551615",
            "18446744073709551615 2",
            "9223372036854775808 9223372036854775809",
            "100 18446744073709551615",
        ];
        let span = *pick(self.rng, &SPANS);
        let (verb, argument) = match self.rng.u8(..3) {
            0 => ("rangelock", format!("ex {span} 5")),
            1 => ("rangeunlock", span.to_owned()),
            _ => ("rangetest", format!("sh {span} a")),
        };
        let resource = &self.plan.ranges.resources[0];
        let asked = kind(RangeAsked::NoBytes);
        written(asked, verb, resource, argument.as_bytes())
    }

    fn bytes(&mut self) -> Bytes {
        Bytes {
            resource: self.rng.usize(..self.plan.ranges.resources.len()),
            cells: Cells::draw(self.rng),
            name: self.rng.usize(..OWNERS.len()),
        }
    }

    fn mode(&mut self) -> Sharing {
        *pick(self.rng, &[Sharing::Shared, Sharing::Exclusive])
    }

    /// The frame for something about some bytes.
    fn about(&mut self, asked: RangeAsked) -> WrittenRequest {
        let (verb, bytes, mode) = match asked {
            RangeAsked::Unlock(bytes) => ("rangeunlock", bytes, None),
            RangeAsked::Test(bytes, mode) => ("rangetest", bytes, Some(mode)),
            RangeAsked::Cancel(bytes, mode) => ("rangecancel", bytes, Some(mode)),
            RangeAsked::Reclaim(bytes, mode) => ("rangereclaim", bytes, Some(mode)),
            _ => unreachable!("others have their own arguments"),
        };
        let mode = mode.map_or_else(String::new, |mode| format!("{} ", mode.word()));
        let span = bytes.cells.spell(self.rng);
        let argument = format!("{mode}{span}{}", owner(bytes));
        let resource = &self.plan.ranges.resources[bytes.resource];
        written(kind(asked), verb, resource, argument.as_bytes())
    }
}

fn kind(asked: RangeAsked) -> RequestKind {
    RequestKind::Range(asked)
}

fn owner(bytes: Bytes) -> String {
    match OWNERS[bytes.name] {
        "" => String::new(),
        name => format!(" {name}"),
    }
}

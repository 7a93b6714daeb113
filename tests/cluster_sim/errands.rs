//! What some clients do besides: everything that is recorded and that the others do not use. What they are told is
//! judged as far as one of them can know; that all members have come to the same is found out elsewhere.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::world::MS;

/// What a grant is let go with and renewed with, the key, and the token.
struct Held {
    verbs: [&'static str; 2],
    key: &'static str,
    token: String,
}

/// What may be refused to one that does not look what it has.
const REFUSALS: [&str; 7] = [
    "error",
    "error_already_enqueued",
    "error_deadlock",
    "error_grace",
    "error_lease_expired",
    "error_not_enqueued",
    "error_storage",
];

/// What is done with a grant once it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// It is let go with this and renewed with that.
    Acquire([&'static str; 2], &'static str),
    Pop,
    Attach,
    Else,
}

/// One who runs errands.
pub(crate) struct Runner {
    index: usize,
    held: Option<Held>,
    has_place: bool,
    is_attached: bool,
}

/// What all of them know.
#[derive(Default)]
pub(crate) struct Known {
    /// How many values were to be pushed: each is the number of its own.
    pushed: u64,
    popped: BTreeSet<u64>,
}

impl Known {
    /// etcd was restored from a backup: what was taken out may be there again.
    pub(crate) fn doubt(&mut self) {
        self.popped.clear();
    }
}

impl Runner {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            held: None,
            has_place: false,
            is_attached: false,
        }
    }

    /// It has a new connection, or none.
    pub(crate) fn disconnect(&mut self) {
        (self.is_attached, self.has_place) = (false, false);
    }

    /// What it asks for next.
    pub(crate) fn next(&mut self, known: &mut Known, rng: &mut Rng) -> (String, Errand) {
        let lease_s = rng.u64(1..=4);
        let acquire = |verb: &str, key: &'static str, more: &str, verbs| {
            let request = format!("{verb}\n{key}\n{more} {lease_s}\n");
            (request, Errand::Acquire(verbs, key))
        };
        let plain = |request: String| (request, Errand::Else);
        if let Some(Held { verbs, key, token }) = &self.held
            && rng.bool()
        {
            let request = match rng.bool() {
                true => format!("{}\n{key}\n{token} {lease_s}\n", verbs[1]),
                false => format!("{}\n{key}\n{token}\n", verbs[0]),
            };
            if request.starts_with(verbs[0]) {
                self.held = None;
            }
            return plain(request);
        }
        if std::mem::take(&mut self.has_place) {
            return (
                "w\nplace\n1\n".to_owned(),
                Errand::Acquire(["r", "n"], "place"),
            );
        }
        let index = self.index;
        match rng.u8(..13) {
            0 => acquire("sl", "slots", "1 2", ["sr", "sn"]),
            1 => acquire("rl", "shared", "1", ["rr", "rn"]),
            2 => acquire("wl", "shared", "1", ["wr", "wn"]),
            3 => acquire("elect", "boss", "1", ["resign", "n"]),
            4 => {
                self.has_place = true;
                let request = format!("e\nplace\n{lease_s}\n");
                (request, Errand::Acquire(["r", "n"], "place"))
            }
            5 => plain(format!(
                "kset\nvalue{}\nof {index}\t{lease_s}\n",
                rng.u8(..3)
            )),
            6 => plain(format!("kdel\nvalue{}\n\n", rng.u8(..3))),
            7..=8 => {
                known.pushed += 1;
                plain(format!("rpush\nlist\n{}\n", known.pushed))
            }
            9 => ("lpop\nlist\n\n".to_owned(), Errand::Pop),
            10 if !self.is_attached => {
                let request = format!("attach\nclient{index}\n6 secret{index}\n");
                (request, Errand::Attach)
            }
            10 | 11 => {
                let mode = if rng.bool() { "sh" } else { "ex" };
                let (first, count) = (rng.u8(..20), rng.u8(1..20));
                plain(format!("rangelock\nfile\n{mode} {first} {count} 1\n"))
            }
            _ => plain(format!("rangeunlock\nfile\n{} 10\n", rng.u8(..20))),
        }
    }

    /// Judges what it was told.
    pub(crate) fn judge(&mut self, now: u64, errand: Errand, words: &[&str], known: &mut Known) {
        let index = self.index;
        match (errand, words) {
            (Errand::Acquire(verbs, key), ["ok" | "acquired", token, ..]) => {
                (self.held, self.has_place) = (
                    Some(Held {
                        verbs,
                        key,
                        token: (*token).to_owned(),
                    }),
                    false,
                );
            }
            (Errand::Pop, ["ok", value]) => {
                let value: u64 = value.parse().unwrap();
                assert!(
                    value <= known.pushed && known.popped.insert(value),
                    "at {} ms client {index} takes {value} out of the list, and it was not there",
                    now / MS
                );
            }
            (Errand::Attach, ["ok", ..]) => {
                // Whoever renews as a client what nobody had claimed makes it the client's, and that is not
                // recorded: of these things it lets go.
                (self.is_attached, self.held) = (true, None);
            }
            (_, ["ok" | "queued" | "nil" | "timeout", ..]) => {}
            // It has lost what it shows the token of, or somebody waits for what it has.
            (_, [refusal, ..]) if REFUSALS.contains(refusal) => self.has_place = false,
            _ => panic!("at {} ms client {index} is told {words:?}", now / MS),
        }
    }
}

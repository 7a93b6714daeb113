//! What some clients do besides: everything that is recorded and that the others do not use. What they are told is
//! judged as far as one of them can know; that all members have come to the same is found out elsewhere.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::cluster_sim::world::MS;

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
    /// What they may rely on.
    relied: Vec<Relied>,
}

/// A grant that one of them may rely on.
struct Relied {
    index: usize,
    key: &'static str,
    token: String,
    /// The verb that lets it go, which says what kind it is.
    release: &'static str,
    until: u64,
}

/// How many may have one of the slots.
const SLOTS: usize = 2;

impl Known {
    /// etcd was restored from a backup: what was taken out may be there again, and what was granted is doubtful.
    pub(crate) fn doubt(&mut self) {
        self.popped.clear();
        self.relied.clear();
    }

    /// One of them hangs up: whatever it has may be let go.
    pub(crate) fn hangs_up(&mut self, index: usize) {
        self.relied.retain(|it| it.index != index);
    }

    /// It lets go of this, or asks for another lease, which counts from now.
    fn counts_on(&mut self, token: &str, until: u64) {
        for it in self.relied.iter_mut().filter(|it| it.token == token) {
            it.until = it.until.min(until);
        }
    }

    /// One of them was told that it has something. Who else relies on it must be able to have it, too.
    fn rely(&mut self, now: u64, grant: Relied) {
        self.relied.retain(|it| it.until > now);
        if grant.until <= now {
            return;
        }
        let Relied {
            index,
            key,
            release,
            ..
        } = grant;
        let others = || self.relied.iter().filter(|it| it.key == key);
        let is_right = match release {
            "sr" => others().count() < SLOTS,
            "rr" => others().all(|it| it.release == "rr"),
            _ => others().count() == 0,
        };
        let whose: Vec<_> = others().map(|it| (it.index, it.release)).collect();
        assert!(
            is_right,
            "at {} ms client {index} is told that it has {key} ({release}), which these rely on: {whose:?}",
            now / MS
        );
        self.relied.push(grant);
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
    pub(crate) fn next(
        &mut self,
        now: u64,
        trust_ppm: u64,
        known: &mut Known,
        rng: &mut Rng,
    ) -> (String, Errand) {
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
                known.counts_on(token, now);
                self.held = None;
            } else {
                known.counts_on(token, now + lease_s * 1_000 * trust_ppm);
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

    /// Judges what it was told. A lease counts from when it asked, by `until`.
    pub(crate) fn judge(
        &mut self,
        now: u64,
        until: impl Fn(u64) -> u64,
        errand: Errand,
        words: &[&str],
        known: &mut Known,
    ) {
        let index = self.index;
        match (errand, words) {
            (Errand::Acquire(verbs, key), ["ok" | "acquired", token, lease_s, ..]) => {
                known.rely(
                    now,
                    Relied {
                        index,
                        key,
                        token: (*token).to_owned(),
                        release: verbs[0],
                        until: until(lease_s.parse().unwrap()),
                    },
                );
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

/// Who may be told that it has something while others rely on it.
mod tests {
    use super::*;

    fn is_right(key: &'static str, told: &[(&'static str, u64)], next: &'static str) -> bool {
        let grant = |index: usize, release: &'static str, until: u64| Relied {
            index,
            key,
            token: format!("{index}"),
            release,
            until,
        };
        let mut known = Known::default();
        for (index, (release, until)) in told.iter().enumerate() {
            known.rely(10, grant(index, release, *until));
        }
        let rely = || known.rely(50, grant(9, next, 100));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(rely)).is_ok()
    }

    #[test]
    fn slots_are_for_two_and_a_write_lock_or_an_office_for_one() {
        assert!(is_right("slots", &[("sr", 100)], "sr"));
        assert!(!is_right("slots", &[("sr", 100), ("sr", 100)], "sr"));
        assert!(is_right("slots", &[("sr", 100), ("sr", 40)], "sr"), "over");
        assert!(is_right("shared", &[("rr", 100), ("rr", 100)], "rr"));
        assert!(!is_right("shared", &[("rr", 100)], "wr"));
        assert!(!is_right("shared", &[("wr", 100)], "rr"));
        assert!(!is_right("boss", &[("resign", 100)], "resign"));
        assert!(is_right("boss", &[("resign", 50)], "resign"), "over");
    }

    #[test]
    fn who_lets_go_or_hangs_up_relies_on_nothing() {
        let boss = |index: usize| Relied {
            index,
            key: "boss",
            token: format!("{index}"),
            release: "resign",
            until: 100,
        };
        let mut known = Known::default();
        known.rely(1, boss(1));
        known.counts_on("1", 5);
        known.rely(6, boss(2));
        known.hangs_up(2);
        known.rely(7, boss(3));
        known.doubt();
        known.rely(8, boss(4));
    }
}

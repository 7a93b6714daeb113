//! Segments beside a model that knows of each byte who has it, and nothing of segments.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{ByteRange, Grant, Position, Segment, Segments, Sharing};

const OWNERS: usize = 3;

/// What one owner has of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    mode: Sharing,
    life: u16,
    since: u64,
    id: u64,
}

impl Held {
    fn grant(self) -> Grant {
        Grant {
            id: self.id,
            since: self.since,
            life: self.life,
        }
    }

    fn same_kind(self, other: Option<Self>) -> bool {
        other.is_some_and(|other| (other.mode, other.life) == (self.mode, self.life))
    }
}

/// Who has which byte. There are few bytes at the start and few at the very end, and all between
/// count as one.
struct Model {
    bytes: Vec<[Option<Held>; OWNERS]>,
    /// How many of them are at the start.
    low: usize,
}

impl Model {
    fn new(low: usize, high: usize) -> Self {
        Self {
            bytes: vec![[None; OWNERS]; low + 1 + high],
            low,
        }
    }

    /// The first and the last byte that this one stands for.
    fn ends(&self, at: usize) -> (u64, u64) {
        let high = (self.bytes.len() - 1 - self.low) as u64;
        let (at, low) = (at as u64, self.low as u64);
        match at {
            _ if at < low => (at, at),
            _ if at == low => (low, u64::MAX - high),
            _ => {
                let byte = u64::MAX - high + (at - low);
                (byte, byte)
            }
        }
    }

    fn range(&self, first: usize, last: usize) -> ByteRange {
        ByteRange::between(self.ends(first).0, self.ends(last).1).expect("in order")
    }

    fn segments_of(&self, owner: usize) -> Vec<Segment> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.bytes.len() {
            let first = at;
            at += 1;
            let Some(held) = self.bytes[first][owner] else {
                continue;
            };
            while at < self.bytes.len() && held.same_kind(self.bytes[at][owner]) {
                assert_eq!(
                    self.bytes[at][owner],
                    Some(held),
                    "one age for each segment"
                );
                at += 1;
            }
            found.push(Segment {
                range: self.range(first, at - 1),
                mode: held.mode,
                id: held.id,
                since: held.since,
                life: held.life,
            });
        }
        found
    }

    fn all(&self) -> Vec<(u32, Segment)> {
        let of = |owner| {
            let segments = self.segments_of(owner).into_iter();
            segments.map(move |segment| (owner as u32, segment))
        };
        let mut all: Vec<_> = (0..OWNERS).flat_map(of).collect();
        all.sort_by_key(|(owner, it)| (it.range.start(), it.since, *owner));
        all
    }

    fn conflicts(&self, owner: usize, range: ByteRange, mode: Sharing) -> Vec<(u32, Segment)> {
        let mut all = self.all();
        all.retain(|(other, it)| {
            *other != owner as u32 && it.range.overlaps(range) && it.mode.excludes(mode)
        });
        // The order that is promised, in full.
        all.sort_by_key(|(_, it)| (it.range.start(), it.mode == Sharing::Shared, it.since));
        all
    }

    /// What the owner has, with the first and the last byte of each.
    fn pieces(&self, owner: usize) -> Vec<(usize, usize, Held)> {
        let mut pieces: Vec<(usize, usize, Held)> = Vec::new();
        for (at, byte) in self.bytes.iter().enumerate() {
            let Some(held) = byte[owner] else { continue };
            match pieces.last_mut() {
                Some((_, last, it)) if *last + 1 == at && *it == held => *last = at,
                _ => pieces.push((at, at, held)),
            }
        }
        pieces
    }

    fn set(&mut self, owner: usize, (first, last): (usize, usize), mut held: Held) {
        let (pieces, split_id) = (self.pieces(owner), held.id + 1);
        let (mut from, mut to) = (first, last);
        let mut identities = vec![(held.since, held.id)];
        for &(begin, end, piece) in &pieces {
            let overlaps = begin <= last && first <= end;
            let touches = end + 1 == first || last + 1 == begin;
            if piece.same_kind(Some(held)) && (overlaps || touches) {
                // All of its kind that it overlaps or touches becomes one with it.
                (from, to) = (from.min(begin), to.max(end));
                identities.push((piece.since, piece.id));
            } else if piece.life != held.life && overlaps {
                // It is had back, and its id stays with its first byte.
                let id = if begin >= first { piece.id } else { held.id };
                identities.push((piece.since, id));
            }
        }
        // The oldest counts.
        (held.since, held.id) = identities.into_iter().min().expect("its own");
        self.split(owner, (first, last), split_id, Some(held));
        for byte in &mut self.bytes[from..=to] {
            byte[owner] = Some(held);
        }
    }

    fn unlock(&mut self, owner: usize, (first, last): (usize, usize), split_id: u64) {
        self.split(owner, (first, last), split_id, None);
        for byte in &mut self.bytes[first..=last] {
            byte[owner] = None;
        }
    }

    /// What is left behind the bytes has another id if the first byte, with the id, is elsewhere.
    fn split(&mut self, owner: usize, (first, last): (usize, usize), id: u64, new: Option<Held>) {
        for (begin, end, piece) in self.pieces(owner) {
            let is_behind = begin <= last && end > last;
            let id_is_elsewhere = begin < first || new.is_some_and(|it| it.id == piece.id);
            if is_behind && id_is_elsewhere && !piece.same_kind(new) {
                for byte in &mut self.bytes[last + 1..=end] {
                    byte[owner] = Some(Held { id, ..piece });
                }
            }
        }
    }

    /// Compares everything that can be asked.
    fn compare(&self, segments: &Segments) {
        segments.check();
        assert_eq!(segments.iter().collect::<Vec<_>>(), self.all());
        assert_eq!(segments.len(), self.all().len());
        assert_eq!(segments.is_empty(), self.all().is_empty());
        for owner in 0..OWNERS {
            let own = self.segments_of(owner);
            assert_eq!(segments.of_owner(owner as u32).collect::<Vec<_>>(), own);
            assert_eq!(segments.first_of(owner as u32), own.first().copied());
        }
    }

    /// Compares what is said about one range.
    fn compare_range(
        &self,
        segments: &Segments,
        owner: usize,
        (first, last): (usize, usize),
        mode: Sharing,
    ) {
        let range = self.range(first, last);
        let id = owner as u32;
        let conflicts = self.conflicts(owner, range, mode);
        assert_eq!(
            segments.first_conflict(id, range, mode),
            conflicts.first().copied()
        );
        assert_eq!(
            segments.conflicts(id, range, mode).collect::<Vec<_>>(),
            conflicts
        );

        // The same with a stop behind each one.
        let (mut position, mut found) = (Position::START, Vec::new());
        loop {
            let mut walk = segments.conflicts_from(position, id, range, mode);
            let Some(conflict) = walk.next() else { break };
            found.push(conflict);
            assert!(found.len() <= conflicts.len(), "it goes on where it was");
            position = walk.position();
        }
        assert_eq!(found, conflicts);

        let mut own = self.segments_of(owner);
        own.retain(|segment| segment.range.overlaps(range));
        assert_eq!(
            segments.of_owner_overlapping(id, range).collect::<Vec<_>>(),
            own
        );

        for live_only in [false, true] {
            let covered = self.bytes[first..=last].iter().all(|byte| {
                let counts = |held: Held| held.mode.covers(mode) && !(live_only && held.life != 0);
                byte[owner].is_some_and(counts)
            });
            assert_eq!(segments.is_covered(id, range, mode, live_only), covered);
        }
    }
}

/// Both, and what is done to both.
struct Both {
    model: Model,
    segments: Segments,
    now: u64,
    last_id: u64,
}

impl Both {
    fn new(low: usize, high: usize) -> Self {
        Self {
            model: Model::new(low, high),
            segments: Segments::new(),
            now: 1_000,
            last_id: 0,
        }
    }

    /// Returns whether it was granted.
    fn set(&mut self, owner: usize, bytes: (usize, usize), mode: Sharing, pending: bool) -> bool {
        let (id, range) = (owner as u32, self.model.range(bytes.0, bytes.1));
        self.model.compare_range(&self.segments, owner, bytes, mode);
        if self.segments.first_conflict(id, range, mode).is_some() {
            return false;
        }
        // Not always later than all before, as after a restart.
        self.now = self.now * 7 % 1_009;
        let (since, life) = (self.now, u16::from(pending));
        self.last_id += 2;
        let held = Held {
            mode,
            life,
            since,
            id: self.last_id,
        };
        let before = self.segments.len() as i64;
        let growth = self.segments.growth_of_set(id, range, mode);
        let own_before = self.model.segments_of(owner);
        let touched = self.segments.set(id, range, mode, held.grant());
        self.model.set(owner, bytes, held);
        if !pending {
            assert_eq!(self.segments.len() as i64 - before, growth);
        }
        assert_eq!(
            touched,
            differing(&own_before, &self.model.segments_of(owner))
        );
        true
    }

    fn unlock(&mut self, owner: usize, bytes: (usize, usize)) {
        let (id, range) = (owner as u32, self.model.range(bytes.0, bytes.1));
        let before = self.segments.len() as i64;
        let growth = self.segments.growth_of_unlock(id, range);
        let own_before = self.model.segments_of(owner);
        self.last_id += 2;
        let touched = self.segments.unlock(id, range, self.last_id);
        self.model.unlock(owner, bytes, self.last_id);
        assert_eq!(self.segments.len() as i64 - before, growth);
        assert_eq!(
            touched,
            differing(&own_before, &self.model.segments_of(owner))
        );
    }

    fn remove_some(&mut self, owner: usize, max: u32) {
        let mut gone = Vec::new();
        let count = self
            .segments
            .remove_some(owner as u32, max, |it| gone.push(it));
        let mut expected = self.model.segments_of(owner);
        expected.truncate(max as usize);
        assert_eq!(gone, expected);
        assert_eq!(count as usize, gone.len());
        for at in 0..self.model.bytes.len() {
            let byte = self.model.range(at, at);
            if gone.iter().any(|it| it.range.overlaps(byte)) {
                self.model.bytes[at][owner] = None;
            }
        }
    }
}

/// How many segments are only in one of two lists.
fn differing(before: &[Segment], behind: &[Segment]) -> u32 {
    let gone = before.iter().filter(|it| !behind.contains(it)).count();
    let new = behind.iter().filter(|it| !before.contains(it)).count();
    (gone + new) as u32
}

/// Every state of five bytes that two owners can be in, and everything that one of them can do then.
#[test]
fn nothing_that_can_happen_to_five_bytes_leaves_a_gap_or_an_overlap() {
    use Sharing::{Exclusive, Shared};
    const BYTES: usize = 5;
    // What A and B have of one byte.
    let kinds = [
        (None, None),
        (Some(Shared), None),
        (Some(Exclusive), None),
        (None, Some(Shared)),
        (None, Some(Exclusive)),
        (Some(Shared), Some(Shared)),
    ];
    let ranges = (0..BYTES).flat_map(|first| (first..BYTES).map(move |last| (first, last)));
    let ranges: Vec<(usize, usize)> = ranges.collect();
    let mut refused = 0;
    for state in 0..kinds.len().pow(BYTES as u32) {
        let build = || {
            // Three bytes at the start, all between, and the last one of all.
            let mut both = Both::new(BYTES - 2, 1);
            for at in 0..BYTES {
                let kind = kinds[state / kinds.len().pow(at as u32) % kinds.len()];
                for (owner, mode) in [kind.0, kind.1].into_iter().enumerate() {
                    if let Some(mode) = mode {
                        let (range, since) = (both.model.range(at, at), 5 - at as u64);
                        both.last_id += 2;
                        let held = Held {
                            mode,
                            since,
                            life: 0,
                            id: both.last_id,
                        };
                        both.segments.set(owner as u32, range, mode, held.grant());
                        both.model.set(owner, (at, at), held);
                    }
                }
            }
            both
        };
        let both = build();
        both.model.compare(&both.segments);
        for &range in &ranges {
            for mode in [None, Some(Shared), Some(Exclusive)] {
                let mut both = build();
                match mode {
                    None => both.unlock(0, range),
                    Some(mode) => refused += u32::from(!both.set(0, range, mode, false)),
                }
                let Both {
                    model, segments, ..
                } = both;
                assert_eq!(
                    segments.of_owner(0).collect::<Vec<_>>(),
                    model.segments_of(0)
                );
                assert_eq!(
                    segments.of_owner(1).collect::<Vec<_>>(),
                    model.segments_of(1)
                );
            }
        }
    }
    assert!(refused > 10_000, "{refused}: A and B hardly met");
}

#[derive(Clone, Debug)]
enum Step {
    Set(usize, (usize, usize), Sharing, bool),
    Unlock(usize, (usize, usize)),
    Look(usize, (usize, usize), Sharing),
    RemoveSome(usize, u32),
}

/// Steps among so many bytes, with ranges of up to `longest`.
fn steps(bytes: usize, longest: usize, count: usize) -> impl Strategy<Value = Vec<Step>> {
    let range = (0..bytes, 0..longest);
    let range = range.prop_map(move |(first, more)| (first, (first + more).min(bytes - 1)));
    let mode = prop_oneof![3 => Just(Sharing::Shared), 2 => Just(Sharing::Exclusive)];
    let step = (0..20, 0..OWNERS, range, mode, 0..4_u32);
    let step = step.prop_map(|(what, owner, range, mode, few)| match what {
        0..=10 => Step::Set(owner, range, mode, few == 0),
        11..=14 => Step::Unlock(owner, range),
        15..=18 => Step::Look(owner, range, mode),
        _ => Step::RemoveSome(owner, few),
    });
    vec(step, 1..count)
}

fn run(both: &mut Both, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Set(owner, range, mode, pending) => {
                both.set(owner, range, mode, pending);
            }
            Step::Unlock(owner, range) => both.unlock(owner, range),
            Step::Look(owner, range, mode) => {
                both.model.compare_range(&both.segments, owner, range, mode);
            }
            Step::RemoveSome(owner, max) => both.remove_some(owner, max),
        }
        both.model.compare(&both.segments);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn few_bytes_and_both_ends(steps in steps(14, 14, 30)) {
        run(&mut Both::new(8, 5), steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// So many that trees have three levels, which grow and shrink.
    #[test]
    fn many_short_segments(
        filled in vec((0..OWNERS, 0..2_000_usize, any::<bool>()), 1..4_000),
        steps in steps(2_000, 300, 12),
    ) {
        let mut both = Both::new(1_990, 9);
        for (owner, at, shared) in filled {
            let mode = if shared { Sharing::Shared } else { Sharing::Exclusive };
            let (id, range) = (owner as u32, both.model.range(at, at));
            if both.segments.first_conflict(id, range, mode).is_none() {
                both.last_id += 2;
                let life = u16::from(at % 3 == 0);
                let held = Held { mode, life, since: at as u64 % 7, id: both.last_id };
                both.segments.set(id, range, mode, held.grant());
                both.model.set(owner, (at, at), held);
            }
        }
        both.model.compare(&both.segments);
        run(&mut both, steps);
    }
}

//! The shapes of patterns: where their wildcards are. All patterns of one shape are found with one
//! lookup, however many there are.
//!
//! `a.*.c` and `x.*.z` have the same shape: three tokens, the second is a star. A name that such a
//! pattern matches has the pattern's tokens at the other two positions, so the hash of these two
//! tokens finds the pattern. To find all patterns that match a name takes one lookup per shape.
//! Clients could make more shapes than can be looked up, so their number is bounded.
//!
//! This file knows shapes and hashes, but no pattern: `subscriptions.rs` keeps those.

use siphasher::sip::SipHasher13;

use super::arena::{Arena, Chain, Link, Linked, Stored};
use super::pattern::{self, Step};
use crate::keymap::KeyMap;
use crate::memory::block_bytes;

/// Patterns of up to so many tokens may have any shape: there are 757 of them, and a name fits at
/// most 510.
const SHORT_TOKENS_MAX: usize = 8;

/// Most shapes of longer patterns that exist at a time. A pattern that would need one more is
/// refused.
pub const LONG_SHAPES_MAX: u32 = 1024;

/// Where the wildcards of a pattern are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wildcards {
    /// How many tokens there are, without a `>` at the end.
    tokens: u32,
    has_rest: bool,
    /// A bit for each token, which is set if it is not a star; eight to a byte, the first one
    /// lowest.
    literals: Box<[u8]>,
}

impl Wildcards {
    /// Those of a valid pattern; `None` if it has none.
    pub(super) fn of(pattern: &[u8]) -> Option<Self> {
        let (mut tokens, mut has_star, mut has_rest) = (0, false, false);
        let mut literals = Vec::new();
        for step in pattern::steps(pattern) {
            if step == Step::Rest {
                has_rest = true;
                break; // not counted
            }
            let (byte, bit) = (tokens as usize / 8, tokens % 8);
            if bit == 0 {
                literals.push(0);
            }
            has_star |= step == Step::Any;
            literals[byte] |= u8::from(step != Step::Any) << bit;
            tokens += 1;
        }
        (has_star || has_rest).then(|| Self {
            tokens,
            has_rest,
            literals: literals.into(),
        })
    }

    fn is_long(&self) -> bool {
        self.tokens as usize + usize::from(self.has_rest) > SHORT_TOKENS_MAX
    }

    /// The sum of the hashes of all tokens that are no wildcards.
    fn sum(&self, sums: &Sums) -> u64 {
        let halves = self.literals.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        sums.0.iter().zip(halves).fold(0, |sum, (sums, half)| {
            sum.wrapping_add(sums[usize::from(half)])
        })
    }

    fn hash(&self, map: &KeyMap) -> u32 {
        map.hash(&self.literals) ^ (self.tokens << 1 | u32::from(self.has_rest))
    }
}

/// Wildcards that some pattern has.
struct Shape {
    wildcards: Wildcards,
    /// How many patterns have it.
    patterns: u32,
    of_length: Link,
}

impl Stored for Shape {
    fn heap_bytes(&self) -> usize {
        block_bytes(self.wildcards.literals.len())
    }
}

/// The chain of the shapes of one length.
struct OfLength;

impl Linked<OfLength> for Shape {
    fn link(&self) -> Link {
        self.of_length
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_length
    }
}

/// The tokens of a text, hashed, four at a time: the sums over each selection of the four. A token
/// hashes differently at each position.
#[derive(Default)]
pub(super) struct Sums(Vec<[u64; 16]>);

pub(super) struct Shapes {
    shapes: Arena<Shape>,
    by_wildcards: KeyMap,
    /// Shapes by number of tokens, of patterns that end with their last token and with `>`.
    by_length: [Vec<Chain<OfLength>>; 2],
    /// How many of them are of long patterns.
    long: u32,
    /// Keyed with the seed, so that a client cannot choose tokens that hash alike.
    hasher: SipHasher13,
}

impl Shapes {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            shapes: Arena::new(),
            by_wildcards: KeyMap::new(seed),
            by_length: [Vec::new(), Vec::new()],
            long: 0,
            hasher: SipHasher13::new_with_keys(seed[0], seed[1]),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.shapes.memory() + self.by_wildcards.memory()
    }

    pub(super) fn find(&self, wildcards: &Wildcards) -> Option<u32> {
        let hash = wildcards.hash(&self.by_wildcards);
        self.by_wildcards
            .find(hash, |shape| self.shapes[shape].wildcards == *wildcards)
    }

    /// Whether a shape with these wildcards may be added.
    pub(super) fn has_room_for(&self, wildcards: &Wildcards) -> bool {
        !wildcards.is_long() || self.long < LONG_SHAPES_MAX
    }

    /// One pattern more has these wildcards.
    pub(super) fn add(&mut self, wildcards: Wildcards) -> u32 {
        let shape = self
            .find(&wildcards)
            .unwrap_or_else(|| self.insert(wildcards));
        self.shapes[shape].patterns += 1;
        shape
    }

    fn insert(&mut self, wildcards: Wildcards) -> u32 {
        debug_assert!(self.has_room_for(&wildcards), "one shape too many");
        self.long += u32::from(wildcards.is_long());
        let (hash, length) = (
            wildcards.hash(&self.by_wildcards),
            wildcards.tokens as usize,
        );
        let by_length = &mut self.by_length[usize::from(wildcards.has_rest)];
        if by_length.len() <= length {
            by_length.resize_with(length + 1, Chain::new);
        }
        let shape = self.shapes.insert(Shape {
            wildcards,
            patterns: 0,
            of_length: Link::OUT,
        });
        self.by_wildcards.insert(hash, shape);
        by_length[length].push_back(&mut self.shapes, shape);
        shape
    }

    /// One pattern less has this shape.
    pub(super) fn remove(&mut self, shape: u32) {
        self.shapes[shape].patterns -= 1;
        if self.shapes[shape].patterns > 0 {
            return;
        }
        let wildcards = &self.shapes[shape].wildcards;
        let (hash, length) = (
            wildcards.hash(&self.by_wildcards),
            wildcards.tokens as usize,
        );
        self.long -= u32::from(wildcards.is_long());
        let by_length = &mut self.by_length[usize::from(wildcards.has_rest)];
        by_length[length].unlink(&mut self.shapes, shape);
        self.by_wildcards.remove(hash, shape);
        self.shapes.remove(shape);
    }

    /// The shapes whose patterns can match a name of so many tokens: as many, or fewer and `>`.
    pub(super) fn fitting(&self, tokens: usize) -> impl Iterator<Item = u32> {
        let [whole, begun] = &self.by_length;
        let whole = whole.get(tokens).into_iter();
        whole
            .chain(begun.iter().take(tokens))
            .flat_map(|chain| chain.iter(&self.shapes))
    }

    /// The shapes whose patterns can match a name, with the hash that such a pattern has. `sums` is
    /// room to work in.
    pub(super) fn hashes(&self, name: &[u8], sums: &mut Sums, mut each: impl FnMut(u32, u32)) {
        let tokens = pattern::tokens(name).count();
        if self.shapes.is_empty() || self.fitting(tokens).next().is_none() {
            return;
        }
        self.sum_up(name, sums);
        for shape in self.fitting(tokens) {
            each(shape, self.hash_of(shape, sums));
        }
    }

    /// The hash of a pattern of this shape.
    pub(super) fn hash(&self, shape: u32, pattern: &[u8]) -> u32 {
        let mut sums = Sums::default();
        self.sum_up(pattern, &mut sums);
        self.hash_of(shape, &sums)
    }

    fn hash_of(&self, shape: u32, sums: &Sums) -> u32 {
        let sum = self.shapes[shape].wildcards.sum(sums);
        mix(sum ^ salt(shape)) as u32
    }

    fn sum_up(&self, text: &[u8], sums: &mut Sums) {
        sums.0.clear();
        for (position, token) in (0..).zip(pattern::tokens(text)) {
            if position % 4 == 0 {
                sums.0.push([0; 16]);
            }
            let hash = mix(self.hasher.hash(token).wrapping_add(salt(position)));
            let four = &mut sums.0[position as usize / 4];
            // The selections with this token are those without it, and it.
            let bit = 1 << (position % 4);
            for selection in 0..bit {
                four[bit | selection] = four[selection].wrapping_add(hash);
            }
        }
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    pub(super) fn tidy(&mut self) -> bool {
        self.shapes.tidy()
    }

    /// Everything that must hold between two calls. `patterns` says how many patterns there are of
    /// each shape.
    pub(super) fn check(&self, patterns: impl Fn(u32) -> u32) {
        let mut long = 0;
        for (shape, it) in self.shapes.iter() {
            assert_eq!(
                it.patterns,
                patterns(shape),
                "patterns of a shape are miscounted"
            );
            long += u32::from(it.wildcards.is_long());
        }
        assert_eq!(long, self.long, "shapes are miscounted");
        assert!(long <= LONG_SHAPES_MAX, "more shapes than are looked up");
    }
}

/// A different number for each position and each shape.
const fn salt(number: u32) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Makes every bit of the result depend on every bit of the number (this ends each step of
/// SplitMix64). Without it, sums of other tokens that are equal by chance would stay equal whatever
/// is added to both.
const fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

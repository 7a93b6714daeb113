//! Salts make a token unguessable. They come from a seeded generator (ChaCha with eight rounds).
//!
//! Without the key the salts cannot be told from random numbers; with the key and the inputs of a
//! run its tokens can be made again, because the key is an argument and nothing else is random. No
//! supply from outside can run out in the middle of a turn, however much one input grants. Eight
//! salts are made at a time, and each costs a third of a keyed hash.

/// The key: 256 bits.
pub type SaltKey = [u64; 4];

/// Four words: one row of the cipher's square.
type Row = [u32; 4];

/// "expand 32-byte k", the constant of the cipher.
const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

const SALTS_PER_BLOCK: usize = 8;

pub(super) struct Salts {
    key: [Row; 2],
    /// How many blocks were made.
    blocks: u64,
    block: [u64; SALTS_PER_BLOCK],
    /// How many salts of the block are left, counted from its front.
    left: usize,
}

impl Salts {
    pub(super) fn new(key: SaltKey) -> Self {
        let row = |low: u64, high: u64| {
            let half = |word: u64| [word as u32, (word >> 32) as u32];
            let ([a, b], [c, d]) = (half(low), half(high));
            [a, b, c, d]
        };
        Self {
            key: [row(key[0], key[1]), row(key[2], key[3])],
            blocks: 0,
            block: [0; SALTS_PER_BLOCK],
            left: 0,
        }
    }

    #[inline(always)] // with every grant
    pub(super) fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.refill();
        }
        self.left -= 1;
        // A salt that was given out need not stay in memory.
        std::mem::take(&mut self.block[self.left])
    }

    #[inline(never)] // once for several
    fn refill(&mut self) {
        let counter = [self.blocks as u32, (self.blocks >> 32) as u32, 0, 0];
        self.blocks += 1;
        let rows = chacha8([CONSTANTS, self.key[0], self.key[1], counter]);
        let words = rows.as_flattened().as_chunks::<2>().0;
        for (salt, [low, high]) in self.block.iter_mut().zip(words) {
            *salt = u64::from(*high) << 32 | u64::from(*low);
        }
        self.left = SALTS_PER_BLOCK;
    }
}

/// One block of the cipher's stream. Written row by row, so that the compiler handles four columns
/// at once.
fn chacha8(start: [Row; 4]) -> [Row; 4] {
    let mut rows = start;
    for _ in 0..4 {
        quarter_rounds(&mut rows);
        // Turns the diagonals into columns, and back.
        let [a, b, c, d] = rows;
        rows = [a, turned(b, 1), turned(c, 2), turned(d, 3)];
        quarter_rounds(&mut rows);
        let [a, b, c, d] = rows;
        rows = [a, turned(b, 3), turned(c, 2), turned(d, 1)];
    }
    for (row, start) in rows.iter_mut().zip(start) {
        *row = add(*row, start);
    }
    rows
}

fn quarter_rounds([a, b, c, d]: &mut [Row; 4]) {
    for (second, fourth) in [(12, 16), (7, 8)] {
        *a = add(*a, *b);
        *d = mix(*d, *a, fourth);
        *c = add(*c, *d);
        *b = mix(*b, *c, second);
    }
}

fn turned(row: Row, by: usize) -> Row {
    std::array::from_fn(|column| row[(column + by) % 4])
}

fn add(a: Row, b: Row) -> Row {
    std::array::from_fn(|column| a[column].wrapping_add(b[column]))
}

fn mix(a: Row, b: Row, bits: u32) -> Row {
    std::array::from_fn(|column| (a[column] ^ b[column]).rotate_left(bits))
}

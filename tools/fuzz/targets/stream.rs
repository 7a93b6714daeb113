//! Makes a stream of bytes from the input of a fuzzer, and cuts it into reads.

/// How often a byte is repeated: around the limits that readers have.
const COUNTS: [usize; 16] = [
    8, 62, 64, 255, 256, 257, 300, 1_024, 4_096, 8_192, 16_383, 16_384, 16_400, 65_535, 65_536,
    65_800,
];

/// No stream is longer: it is a little more than the longest request of either protocol.
const STREAM_BYTES_MAX: usize = 300_000;

/// The stream that an input stands for. A byte 0xff, a byte and a number repeat that byte, so that short inputs
/// reach the limits of lengths.
pub fn expand(mut input: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(input.len());
    while let [first, rest @ ..] = input {
        match (first, rest) {
            (0xff, [byte, count, rest @ ..]) => {
                let count = COUNTS[usize::from(*count) % COUNTS.len()];
                if stream.len() + count <= STREAM_BYTES_MAX {
                    stream.resize(stream.len() + count, *byte);
                }
                input = rest;
            }
            _ => {
                stream.push(*first);
                input = rest;
            }
        }
    }
    stream
}

/// A longer stream is not also read byte by byte, nor in very small pieces: that takes too long.
pub const SINGLE_BYTES_MAX: usize = 2_000;

/// The lengths of reads: the seed chooses how long they are at most, and draws them.
pub struct Cuts {
    longest: usize,
    state: u32,
}

impl Cuts {
    pub fn new(seed: u8, stream: &[u8]) -> Self {
        const LONGEST: [usize; 4] = [3, 20, 300, 5_000];
        let longest = LONGEST[usize::from(seed) % LONGEST.len()];
        Self {
            longest: match stream.len() {
                ..=SINGLE_BYTES_MAX => longest,
                len => longest.max(len / 32),
            },
            state: u32::from(seed) + 1,
        }
    }

    /// How long the next read is.
    pub fn next(&mut self) -> usize {
        self.state = self
            .state
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.state >> 16) as usize % self.longest + 1
    }
}

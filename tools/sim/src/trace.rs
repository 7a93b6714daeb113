//! What happened, one line per event: for people to read, and as one number to compare runs by.
//!
//! Every line goes into the hash, whether it is kept or not, so two runs of one seed have the same
//! hash exactly when they are the same. Never prints.

use std::collections::VecDeque;
use std::fmt;

use latchd::base::Nanos;

/// How many lines are kept when only the end of a run is of interest.
pub const TAIL_LINES_MAX: usize = 60;

/// As much of a line as tells it from all others; some lines have tens of kilobytes.
pub(super) const LINE_BYTES_KEPT: usize = 400;

/// How much of a run is kept for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The last [`TAIL_LINES_MAX`] lines.
    Tail,
    /// Every line.
    All,
}

/// The trace of one run.
#[derive(Debug)]
pub(super) struct Trace {
    keep: Keep,
    lines: VecDeque<String>,
    hash: u64,
}

impl Trace {
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            lines: VecDeque::new(),
            // The offset and, below, the prime of FNV-1a: small, and good enough to tell runs
            // apart.
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Adds a line about an event at this instant.
    pub(super) fn say(&mut self, now: Nanos, what: fmt::Arguments<'_>) {
        let (ms, us) = (now.0 / 1_000_000, now.0 / 1_000 % 1_000);
        let line = format!("{ms:>8}.{us:03}  {what}");
        self.mix(line.as_bytes());
        if self.keep == Keep::Tail && self.lines.len() == TAIL_LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Adds bytes that count but are not shown in full.
    pub(super) fn mix(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a line of the protocol, which may be long: its beginning and its length tell it apart.
    pub(super) fn mix_line(&mut self, line: &[u8]) {
        self.mix(&line[..line.len().min(LINE_BYTES_KEPT)]);
        self.mix(&line.len().to_le_bytes());
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.drain(..).collect()
    }
}

/// A line of the protocol as the trace shows it: escaped, not too long, and every token by its
/// fence, as `#1234`, because nobody reads 32 digits.
pub(super) fn readable(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 120;
    let bytes = &bytes[..bytes.len().min(LINE_BYTES_KEPT)];
    let words = bytes.split(|&byte| byte == b' ').map(|word| {
        let is_token = word.len() == 32 && word.iter().all(u8::is_ascii_hexdigit);
        let fence = str::from_utf8(word).ok().filter(|_| is_token);
        match fence.and_then(|word| u64::from_str_radix(&word[..16], 16).ok()) {
            Some(fence) => format!("#{fence}"),
            None => word.escape_ascii().to_string(),
        }
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if text.len() > SHOWN_BYTES_MAX {
        text.truncate(SHOWN_BYTES_MAX); // ASCII by now
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_knows_every_line_and_the_tail_only_the_last() {
        let told = |count: u64, keep| {
            let mut trace = Trace::new(keep);
            for n in 0..count {
                trace.say(Nanos(n), format_args!("line {n}"));
            }
            (trace.hash(), trace.take_lines().len())
        };
        assert_eq!(told(100, Keep::Tail).0, told(100, Keep::All).0);
        assert_ne!(told(100, Keep::All).0, told(101, Keep::All).0);
        assert_eq!(told(100, Keep::Tail).1, TAIL_LINES_MAX);
        assert_eq!(told(100, Keep::All).1, 100);
    }

    #[test]
    fn tokens_are_shown_by_their_fence() {
        let line = b"ok 000000000000002a9f8e7d6c5b4a3921 33";
        assert_eq!(readable(line), "ok #42 33");
        assert_eq!(readable(b"a\0b \xff"), "a\\x00b \\xff");
    }
}

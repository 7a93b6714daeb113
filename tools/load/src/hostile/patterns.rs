//! Patterns made of `a` and `*`: all of them match the same key, and none is like another.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, one as request};
use crate::run::codec::spell;

/// Patterns of one connection, if there are many: no more than a server may allow it.
const PATTERNS_EACH: usize = 64;

/// One client watches, one counts up.
pub(super) fn one(crowd: &mut Crowd) -> io::Result<()> {
    watch_and_count(crowd, usize::MAX, 1)
}

/// One client watches, 16 count up.
pub(super) fn sixteen(crowd: &mut Crowd) -> io::Result<()> {
    watch_and_count(crowd, usize::MAX, 16)
}

/// Many connections watch a few each, 16 count up.
pub(super) fn spread(crowd: &mut Crowd) -> io::Result<()> {
    watch_and_count(crowd, PATTERNS_EACH, 16)
}

fn watch_and_count(crowd: &mut Crowd, each: usize, counting: usize) -> io::Result<()> {
    // Each token is one bit of the number of a pattern.
    let tokens = crowd.size.ilog2().max(1);
    let patterns = 1 << tokens;
    let name = |number: usize| {
        let token = |at: u32| match number >> at & 1 {
            0 => "a",
            _ => "*",
        };
        let tokens: Vec<&str> = (0..tokens).map(token).collect();
        tokens.join(".")
    };
    for first in (0..patterns).step_by(each) {
        let count = each.min(patterns - first);
        let watcher = crowd.set_up("patterns watched", count, |at, out| {
            spell(Verb::Watch, name(first + at).as_bytes(), b"", out);
        })?;
        crowd.keep(watcher, true)?;
    }
    let count = request(Verb::Incr, name(0).as_bytes(), b"1");
    crowd.ask_again(counting, count)
}

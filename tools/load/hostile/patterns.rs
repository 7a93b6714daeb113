//! Patterns made of `a` and `*`: all of them match the same key, and none is like another.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, one as request};
use crate::run::codec::spell;

/// One client watches, one counts up.
pub(super) fn one(crowd: &mut Crowd) -> io::Result<()> {
    watch_and_count(crowd, 1)
}

/// One client watches, 16 count up.
pub(super) fn sixteen(crowd: &mut Crowd) -> io::Result<()> {
    watch_and_count(crowd, 16)
}

fn watch_and_count(crowd: &mut Crowd, counting: usize) -> io::Result<()> {
    // Each token is one bit of the number of a pattern.
    let tokens = crowd.size.ilog2().max(1);
    let name = |number: usize| {
        let token = |at: u32| match number >> at & 1 {
            0 => "a",
            _ => "*",
        };
        let tokens: Vec<&str> = (0..tokens).map(token).collect();
        tokens.join(".")
    };
    let watcher = crowd.set_up("patterns watched", 1 << tokens, |at, out| {
        spell(Verb::Watch, name(at).as_bytes(), b"", out);
    })?;
    crowd.keep(watcher, true)?;
    let count = request(Verb::Incr, name(0).as_bytes(), b"1");
    crowd.ask_again(counting, count)
}

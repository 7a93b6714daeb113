//! The owners of very many holds, who all leave when the process is told to.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, numbered};
use crate::run::codec::{Key, spell};
use crate::run::keys::key_name;

/// Holds of one owner.
const HOLDS_EACH: usize = 10_000;

/// How many flood beside it.
const FLOODERS: usize = 16;

/// They leave.
pub(super) fn leave(crowd: &mut Crowd) -> io::Result<()> {
    for first in (0..crowd.size).step_by(HOLDS_EACH) {
        let count = HOLDS_EACH.min(crowd.size - first);
        let owner = crowd.set_up("holds", count, |at, out| {
            numbered(Verb::Lock, "hold", first + at, b"0 3600", out);
        })?;
        crowd.owner(owner);
    }
    let last = crowd.set_up("holds that are waited for", 1, |_, out| {
        spell(Verb::Lock, &waited_for(), b"0 3600", out);
    })?;
    crowd.owner(last);
    Ok(())
}

/// What the last of them holds, and somebody else waits for.
pub(super) fn waited_for() -> Key {
    key_name("pass", 0, 0)
}

/// They leave while others flood.
pub(super) fn leave_flooded(crowd: &mut Crowd) -> io::Result<()> {
    leave(crowd)?;
    crowd.flood_with_pings(FLOODERS)
}

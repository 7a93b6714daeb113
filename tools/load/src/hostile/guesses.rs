//! Wrong secrets, each on a connection of its own.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, one};
use crate::hostile::member::Block;

/// Most connections at one time; the server keeps each for a tenth of a second.
pub(super) const CONNECTIONS_MAX: usize = 4_000;

/// So many a second.
pub(super) fn wrong(crowd: &mut Crowd) -> io::Result<()> {
    crowd.come_and_leave(CONNECTIONS_MAX, Some(crowd.size as u64), guess());
    Ok(())
}

/// So many guessers. Each guesses again when its last guess is answered or closed.
pub(super) fn one_after_the_other(crowd: &mut Crowd) -> io::Result<()> {
    crowd.guess(crowd.size, guess())
}

fn guess() -> Block {
    one(Verb::Auth, b"_", b"open-barley")
}

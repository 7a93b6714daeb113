//! Connections that send without waiting for answers: cheap requests, or such with long answers.

use std::io;

use latchd::wire::verbs::{VALUE_BYTES_MAX, Verb};

use crate::hostile::crowd::Crowd;
use crate::hostile::member::Block;
use crate::run::codec::spell;

/// Cheap requests without pause.
pub(super) fn pings(crowd: &mut Crowd) -> io::Result<()> {
    crowd.flood_with_pings(crowd.size)
}

/// Long answers, which are read.
pub(super) fn kget_read(crowd: &mut Crowd) -> io::Result<()> {
    kget(crowd, true)
}

/// Long answers, which nobody reads.
pub(super) fn kget_unread(crowd: &mut Crowd) -> io::Result<()> {
    kget(crowd, false)
}

fn kget(crowd: &mut Crowd, reads: bool) -> io::Result<()> {
    let value = vec![b'x'; VALUE_BYTES_MAX];
    let writer = crowd.set_up("values", 1, |_, out| {
        spell(Verb::Kset, b"value", &value, out);
    })?;
    crowd.keep(writer, true)?;
    let mut block = Block::default();
    for _ in 0..1_000 {
        block.push(Verb::Kget, b"value", b"");
    }
    crowd.flood(crowd.size, block, reads)
}

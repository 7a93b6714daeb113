//! Very many values of a stranger that end in one moment, or would have ended had they not been
//! stored again.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, numbered};

/// How many flood beside it.
const FLOODERS: usize = 16;

/// They end.
pub(super) fn end(crowd: &mut Crowd) -> io::Result<()> {
    let writer = crowd.set_up_until("values", crowd.size, 1, store)?;
    crowd.keep(writer.into_stream()?, true)
}

/// They end while others flood.
pub(super) fn end_flooded(crowd: &mut Crowd) -> io::Result<()> {
    end(crowd)?;
    crowd.flood_with_pings(FLOODERS)
}

/// They are stored again before they end, for an hour.
pub(super) fn rearmed(crowd: &mut Crowd) -> io::Result<()> {
    let mut writer = crowd.set_up_until("values", crowd.size, 2, store)?;
    crowd.ask(&mut writer, "values stored again", crowd.size, |at, out| {
        numbered(Verb::Kset, "value", at, b"x\t3600", out);
    })?;
    crowd.keep(writer.into_stream()?, true)
}

fn store(at: usize, left_ms: u64, out: &mut Vec<u8>) {
    let argument = format!("x\t{left_ms}ms");
    numbered(Verb::Kset, "value", at, argument.as_bytes(), out);
}

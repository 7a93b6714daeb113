//! Very many holders of one semaphore: their leases end together, or somebody asks for a slot while
//! they hold.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::{Crowd, one};
use crate::run::codec::spell;

/// More slots than are ever held.
const SLOTS: usize = 400_000_000;

/// All leases end together; in that moment one client asks.
pub(super) fn end_together(crowd: &mut Crowd) -> io::Result<()> {
    let take = |_, left_ms, out: &mut Vec<u8>| {
        let argument = format!("0 {SLOTS} {left_ms}ms");
        spell(Verb::SemLock, b"crowd", argument.as_bytes(), out);
    };
    let holder = crowd.set_up_until("slots held", crowd.size, 1, take)?;
    crowd.keep(holder.into_stream()?, true)?;
    let ask = format!("0 {SLOTS} 60");
    crowd.at_moment(one(Verb::SemLock, b"crowd", ask.as_bytes()));
    Ok(())
}

/// All go on to hold, and 16 clients take slots whose leases end at once, so that whoever comes next
/// has to find them among the others.
pub(super) fn held(crowd: &mut Crowd) -> io::Result<()> {
    let argument = format!("0 {SLOTS} 3600");
    let holder = crowd.set_up("slots held", crowd.size, |_, out| {
        spell(Verb::SemLock, b"crowd", argument.as_bytes(), out);
    })?;
    crowd.keep(holder, true)?;
    let ask = format!("0 {SLOTS} 1ms");
    crowd.ask_again(16, one(Verb::SemLock, b"crowd", ask.as_bytes()))
}

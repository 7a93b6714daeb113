//! Long lists and long queues: walks over them, and waiters who come and leave.

use std::io;

use latchd::wire::verbs::{VALUE_BYTES_MAX, Verb};

use crate::hostile::crowd::{Crowd, connections_max, one};
use crate::run::codec::spell;

/// The longest answer that `lrange` gives.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Who asks gets a MiB, as much as there is in one answer.
pub(super) fn lrange(crowd: &mut Crowd) -> io::Result<()> {
    let value = vec![b'x'; VALUE_BYTES_MAX];
    push(crowd, &value)?;
    let ask = one(Verb::Lrange, b"list", b"0 -1");
    crowd.ask_again(crowd.size, ask)
}

/// Each byte becomes six in the answer: no longer than a MiB before it is spelled, and refused when
/// it is.
pub(super) fn lrange_refused(crowd: &mut Crowd) -> io::Result<()> {
    let value = vec![b'\x01'; VALUE_BYTES_MAX];
    push(crowd, &value)?;
    let ask = one(Verb::Lrange, b"list", b"0 -1");
    crowd.ask_again(crowd.size, ask)
}

/// As many values as one answer can hold.
fn push(crowd: &mut Crowd, value: &[u8]) -> io::Result<()> {
    let count = ANSWER_BYTES_MAX / VALUE_BYTES_MAX - 1;
    let writer = crowd.set_up("values in the list", count, |_, out| {
        spell(Verb::Rpush, b"list", value, out);
    })?;
    crowd.keep(writer, true)
}

/// One holds, and the others come, ask, and leave before they are served.
pub(super) fn waiters(crowd: &mut Crowd) -> io::Result<()> {
    let places = crowd.size.min(connections_max());
    hold(crowd)?;
    let ask = one(Verb::Lock, b"queue", b"600 60");
    crowd.come_and_leave(places, None, ask);
    crowd.count("places for waiters", places as u64);
    Ok(())
}

/// The last of the queue asks for its place.
pub(super) fn pos(crowd: &mut Crowd) -> io::Result<()> {
    let places = crowd.size.min(connections_max());
    hold(crowd)?;
    // A connection has one place in a queue.
    let enqueue = one(Verb::Enqueue, b"queue", b"3600");
    crowd.join("length of the queue", places, &enqueue, |crowd, stream| {
        crowd.keep(stream, true)
    })?;
    crowd.last_asks_again(one(Verb::Pos, b"queue", b""));
    Ok(())
}

fn hold(crowd: &mut Crowd) -> io::Result<()> {
    let holder = crowd.set_up("holders", 1, |_, out| {
        spell(Verb::Lock, b"queue", b"0 3600", out);
    })?;
    crowd.keep(holder, true)
}

//! Subscribers: some never read, and some are a million.

use std::io;
use std::rc::Rc;

use latchd::wire::verbs::{VALUE_BYTES_MAX, Verb};

use crate::hostile::crowd::{Crowd, connections_max, one};
use crate::run::codec::spell;

/// Groups of one connection: fewer than a server may allow, and few enough to be read.
const GROUPS_EACH: usize = 60;

/// Long signals to listeners who never read.
pub(super) fn signals(crowd: &mut Crowd) -> io::Result<()> {
    let listen = Rc::new(one(Verb::Listen, b"news", b""));
    crowd.never_read(crowd.size, &listen)?;
    // `sig news ` stands before it on the line that they would read.
    let payload = vec![b'x'; VALUE_BYTES_MAX - 9];
    crowd.ask_again(16, one(Verb::Signal, b"news", &payload))
}

/// Small events for watchers who never read.
pub(super) fn watches(crowd: &mut Crowd) -> io::Result<()> {
    let watch = Rc::new(one(Verb::Watch, b">", b""));
    crowd.never_read(crowd.size, &watch)?;
    crowd.ask_again(16, one(Verb::Incr, b"counter", b"1"))
}

/// One signal is for a member of each of very many groups.
pub(super) fn groups(crowd: &mut Crowd) -> io::Result<()> {
    let groups = crowd.size.min(GROUPS_EACH * connections_max());
    for first in (0..groups).step_by(GROUPS_EACH) {
        let count = GROUPS_EACH.min(groups - first);
        let member = crowd.set_up("groups joined", count, |at, out| {
            let group = format!("group-{}", first + at);
            spell(Verb::Listen, b"news", group.as_bytes(), out);
        })?;
        crowd.keep(member, true)?;
    }
    crowd.ask_again(1, one(Verb::Signal, b"news", b"x"))
}

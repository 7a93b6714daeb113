//! Strangers that show no token at all: silent connections, and `auth` requests without an end. A
//! connection that is closed comes again.

use std::io;

use latchd::wire::verbs::{LINE_BYTES_MAX, Verb};

use crate::hostile::crowd::{Crowd, connections_max, one};
use crate::hostile::member::Block;

/// How long a connection may take to authenticate, by default.
const AUTH_NS_MAX: u64 = 5_000_000_000;

/// How much of an unfinished request the server keeps of a connection that has not authenticated.
const KEPT_BYTES: usize = 8 * 1024;

/// They connect and say nothing.
pub(super) fn silent(crowd: &mut Crowd) -> io::Result<()> {
    crowd.begin_again(crowd.size, Block::default())
}

/// They connect together and say nothing, so that the time of all to authenticate ends together.
pub(super) fn silent_together(crowd: &mut Crowd) -> io::Result<()> {
    let began_ns = crowd.clock.now_ns();
    silent(crowd)?;
    crowd.moment_ns = Some(began_ns + AUTH_NS_MAX);
    Ok(())
}

/// Each sends an `auth` request without its end: most of the strangers the longest there is, the
/// others as much as the server keeps of a stranger.
pub(super) fn half_auth(crowd: &mut Crowd) -> io::Result<()> {
    let secret = vec![b'x'; Verb::Auth.argument_bytes_max()];
    let longest = one(Verb::Auth, &[b'_'; LINE_BYTES_MAX], &secret).bytes;
    let count = crowd.size.min(connections_max());
    let kept = count / 4;
    for (count, bytes) in [(kept, KEPT_BYTES), (count - kept, longest.len())] {
        let block = Block {
            bytes: longest[..bytes - 1].to_vec(),
            ..Block::default()
        };
        crowd.begin_again(count, block)?;
    }
    crowd.count("`auth` requests without an end", count as u64);
    Ok(())
}

//! Attacks on the port that speaks TLS: handshakes that never end, come a byte at a time, begin
//! again or name no host, and records that take their time.

use std::io;

use latchd::wire::verbs::Verb;

use crate::hostile::crowd::Crowd;
use crate::hostile::member::Block;
use crate::servers::target::{Stream, Target};
use crate::servers::tls::{self, RECORD_BYTES_MAX};

/// Most connections at one time of those who send a hello and leave.
const CONNECTIONS_MAX: usize = 2_000;

/// They send a hello, and nothing after it.
pub(super) fn never_finished(crowd: &mut Crowd) -> io::Result<()> {
    crowd.begin_again(crowd.size, hellos(1)?)
}

/// Each sends a hello with a host name that is none. A connection that is closed comes again.
pub(super) fn bad_names(crowd: &mut Crowd) -> io::Result<()> {
    let hello = Block {
        bytes: tls::hello_with_bad_name()?,
        requests: 1,
        over_http: false,
    };
    crowd.begin_again(crowd.size, hello)
}

/// So many hellos a second, each on a connection of its own.
pub(super) fn hellos_per_s(crowd: &mut Crowd) -> io::Result<()> {
    let per_s = crowd.size as u64;
    crowd.come_and_leave(CONNECTIONS_MAX, Some(per_s), hellos(1)?);
    Ok(())
}

/// A byte of a hello at a time.
pub(super) fn hellos_slow(crowd: &mut Crowd) -> io::Result<()> {
    crowd.drip(crowd.size, hellos(1)?, 0)
}

/// They begin again where they should go on: whoever is sent away comes again.
pub(super) fn begin_again(crowd: &mut Crowd) -> io::Result<()> {
    crowd.flood(crowd.size, hellos(2)?, true)
}

/// They agree on keys, and send the longest record there is a byte at a time.
pub(super) fn records_slow(crowd: &mut Crowd) -> io::Result<()> {
    let target = Target {
        is_encrypted: true,
        ..crowd.target.clone()
    };
    let mut pings = Block::default();
    while pings.bytes.len() < RECORD_BYTES_MAX - 16 {
        pings.push(Verb::Ping, b"_", b"");
    }
    for _ in 0..crowd.size {
        let Stream::Tls(stream) = target.connect()? else {
            return Err(io::Error::other("the server speaks no TLS"));
        };
        let (socket, bytes) = stream.take_apart(&pings.bytes)?;
        let block = Block {
            bytes,
            requests: pings.requests,
            over_http: false,
        };
        crowd.drip_over(Stream::Tcp(socket), block)?;
    }
    Ok(())
}

/// So many hellos behind each other.
fn hellos(count: usize) -> io::Result<Block> {
    let mut block = Block::default();
    for _ in 0..count {
        block.bytes.extend(tls::hello()?);
        block.requests += 1;
    }
    Ok(block)
}

//! Whatever makes the server keep more and more, until it refuses or keeps twice what it may.

use std::io;
use std::rc::Rc;

use latchd::wire::verbs::{LINE_BYTES_MAX, VALUE_BYTES_MAX, Verb};

use crate::hostile::crowd::{Crowd, connections_max, one};
use crate::machine::rss_peak_bytes;
use crate::run::client::Client;
use crate::run::codec::spell;

/// Most requests of each kind, far beyond the bound.
const REQUESTS_MAX: usize = 14_000_000;

/// Requests between two looks.
const CHUNK: usize = 2_000;

/// How many times so many are refused before it gives up: nothing shall grow meanwhile.
const REFUSED_MAX: usize = 64;

/// Connections that share the work, so that no limit of one connection is reached first.
const CONNECTIONS: usize = 64;

/// Keys that are queued for, for each MiB of the bound.
const KEYS_PER_MIB: usize = 256;

/// A long name of a connection.
const NAME_BYTES: usize = 60;

/// Subscribers who never read.
const SUBSCRIBERS: usize = 1_000;

/// Most signals to them.
const SIGNALS_MAX: usize = 1_000;

pub(super) fn values(crowd: &mut Crowd) -> io::Result<()> {
    let value = vec![b'x'; VALUE_BYTES_MAX];
    fill(crowd, "values", VALUE_BYTES_MAX, |at, out| {
        spell(Verb::Kset, format!("v{at}").as_bytes(), &value, out);
    })
}

pub(super) fn lists(crowd: &mut Crowd) -> io::Result<()> {
    let value = vec![b'x'; VALUE_BYTES_MAX];
    fill(crowd, "values in lists", VALUE_BYTES_MAX, |at, out| {
        spell(
            Verb::Rpush,
            format!("l{}", at / 100).as_bytes(),
            &value,
            out,
        );
    })
}

pub(super) fn slots(crowd: &mut Crowd) -> io::Result<()> {
    fill(crowd, "slots", 32, |_, out| {
        spell(Verb::SemLock, b"crowd", b"0 4000000000 3600", out);
    })
}

pub(super) fn keys(crowd: &mut Crowd) -> io::Result<()> {
    fill(crowd, "locks with long names", LINE_BYTES_MAX, |at, out| {
        let name = format!("{at:0>LINE_BYTES_MAX$}");
        spell(Verb::Lock, name.as_bytes(), b"0 3600", out);
    })
}

pub(super) fn places(crowd: &mut Crowd) -> io::Result<()> {
    fill(crowd, "places", 32, |at, out| {
        spell(Verb::Enqueue, format!("p{at}").as_bytes(), b"3600", out);
    })
}

/// Places behind somebody else's, and many of them for each key. One connection has one place in a
/// queue.
pub(super) fn queued(crowd: &mut Crowd) -> io::Result<()> {
    let keys = crowd.size * KEYS_PER_MIB;
    let holder = crowd.set_up("keys", keys, |at, out| {
        spell(Verb::Lock, format!("q{at}").as_bytes(), b"0 3600", out);
    })?;
    crowd.keep(holder, true)?;
    fill(crowd, "places", 32, |at, out| {
        let (round, in_chunk) = (at / (CHUNK * CONNECTIONS), at % CHUNK);
        let key = format!("q{}", round * CHUNK + in_chunk);
        spell(Verb::Enqueue, key.as_bytes(), b"3600", out);
    })
}

/// As many slots as the size says.
pub(super) fn many_slots(crowd: &mut Crowd) -> io::Result<()> {
    let each = crowd.size.div_ceil(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let stream = crowd.set_up("slots", each, |_, out| {
            spell(Verb::SemLock, b"crowd", b"0 4000000000 3600", out);
        })?;
        crowd.keep(stream, true)?;
    }
    Ok(())
}

/// As many parked requests as there can be connections.
pub(super) fn waiters(crowd: &mut Crowd) -> io::Result<()> {
    let holder = crowd.set_up("holders", 1, |_, out| {
        spell(Verb::Lock, b"queue", b"0 3600", out);
    })?;
    crowd.keep(holder, true)?;
    let count = crowd.size.min(connections_max());
    let mut wait = one(Verb::Lock, b"queue", b"3600 60");
    wait.requests = 0; // none is answered
    let wait = Rc::new(wait);
    for _ in 0..count {
        crowd.begin(&wait)?;
    }
    crowd.count("waiters", count as u64);
    Ok(())
}

/// As many names as there can be connections.
pub(super) fn names(crowd: &mut Crowd) -> io::Result<()> {
    let count = crowd.size.min(connections_max());
    let name = format!("name={}", "n".repeat(NAME_BYTES));
    let hello = one(Verb::Hello, b"_", name.as_bytes());
    crowd.join("names", count, &hello, |crowd, stream| {
        crowd.keep(stream, true)
    })
}

pub(super) fn observe(crowd: &mut Crowd) -> io::Result<()> {
    fill_with_names(crowd, Verb::Observe)
}

pub(super) fn listen(crowd: &mut Crowd) -> io::Result<()> {
    fill_with_names(crowd, Verb::Listen)
}

pub(super) fn watch(crowd: &mut Crowd) -> io::Result<()> {
    fill_with_names(crowd, Verb::Watch)
}

fn fill_with_names(crowd: &mut Crowd, verb: Verb) -> io::Result<()> {
    fill(crowd, "names", LINE_BYTES_MAX, |at, out| {
        spell(verb, dotted(at).as_bytes(), b"", out);
    })
}

/// A name with as many tokens as fit, and no token in the place of another name's.
fn dotted(number: usize) -> String {
    let digits = format!("{number:08x}");
    let tokens = digits.chars().rev().map(String::from).cycle();
    tokens
        .take(LINE_BYTES_MAX / 2)
        .collect::<Vec<_>>()
        .join(".")
}

/// Long signals to subscribers who never read; they are sent away, or the sender is refused.
pub(super) fn unread(crowd: &mut Crowd) -> io::Result<()> {
    let listen = Rc::new(one(Verb::Listen, b"news", b""));
    crowd.never_read(SUBSCRIBERS, &listen)?;
    let payload = vec![b'x'; VALUE_BYTES_MAX - 9];
    let mut sender = Client::connect(&crowd.target)?;
    let signals = SIGNALS_MAX.min(crowd.size * 4);
    for _ in 0..signals {
        let write = |_, out: &mut Vec<u8>| spell(Verb::Signal, b"news", &payload, out);
        let refused = crowd.ask(&mut sender, "signals", 1, write)?;
        if refused > 0 || is_beyond(crowd) {
            break;
        }
    }
    crowd.keep(sender.into_stream()?, true)
}

/// Connections that send most of a long request, and not its end.
pub(super) fn inboxes(crowd: &mut Crowd) -> io::Result<()> {
    let mut block = one(Verb::Kset, b"value", &[b'x'; VALUE_BYTES_MAX]);
    block.bytes.pop(); // the end of its last line
    block.requests = 0;
    let block = Rc::new(block);
    // Twice what fits, if there can be so many connections.
    let wanted = (crowd.size << 20) / VALUE_BYTES_MAX * 2;
    let count = wanted.min(crate::machine::descriptors_max() * 9 / 10);
    for _ in 0..count {
        crowd.begin(&block)?;
    }
    crowd.count("requests without an end", count as u64);
    Ok(())
}

/// Sends requests of about so many bytes over several connections in turn, until it is refused for
/// long enough, or nothing seems to end.
fn fill(
    crowd: &mut Crowd,
    what: &str,
    bytes: usize,
    mut write: impl FnMut(usize, &mut Vec<u8>),
) -> io::Result<()> {
    let connections = (0..CONNECTIONS).map(|_| Client::connect(&crowd.target));
    let mut clients = connections.collect::<io::Result<Vec<Client>>>()?;
    let chunk = (CHUNK * 64 / bytes).clamp(8, CHUNK);
    let (mut sent, mut refused) = (0, 0);
    for at in (0..CONNECTIONS).cycle() {
        if sent >= REQUESTS_MAX || refused >= REFUSED_MAX * chunk || is_beyond(crowd) {
            break;
        }
        let write = |at, out: &mut Vec<u8>| write(sent + at, out);
        refused += crowd.ask(&mut clients[at], what, chunk, write)?;
        sent += chunk;
    }
    for client in clients {
        crowd.keep(client.into_stream()?, true)?;
    }
    Ok(())
}

/// Whether the server keeps twice what it may: then it will not refuse any more.
fn is_beyond(crowd: &Crowd) -> bool {
    let bound = (crowd.size as u64) << 20;
    let peak = crowd.target.pid.and_then(rss_peak_bytes);
    peak.is_none_or(|it| it > 2 * bound)
}

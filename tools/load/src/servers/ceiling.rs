//! The ceiling: a server that does nothing but move as many bytes as latchd would.
//!
//! One mio thread, the same request and answer sizes, no keys, no table, no timers: the best that a
//! lock server could reach on this machine. The first bytes of a connection give the sizes; after
//! that, the first letter of a request tells which of the two it is. For one shared key it also
//! hands the lock from one connection to the next, which is the least that a hand-over can cost.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use slab::Slab;

use crate::clock::Clock;
use crate::run::codec::{Codec, Key, NO_TOKEN, Request};
use crate::run::conn::{Conn, Received};
use crate::run::spec::Keys;
use crate::servers::target::Stream;

/// The answer to an acquire, as many bytes as latchd's.
const TAKEN: &[u8] = b"ok 00000000000000010000000000000001 60\n";
const GIVEN: &[u8] = b"ok\n";

const TCP: Token = Token(usize::MAX);
const UNIX: Token = Token(usize::MAX - 1);

/// Length of what a connection sends first: two sizes, and whether all share one lock.
const PREAMBLE_BYTES: usize = 3;

/// How long one wait for events may take, so that the end is noticed in time.
const NAP: Duration = Duration::from_millis(200);

/// Writes what a connection to the ceiling sends first.
pub(crate) fn introduce(codec: &Codec, key: &Key, keys: Keys, conn: &mut Conn) {
    let size = |request| {
        let mut bytes = Vec::new();
        codec.encode(request, key, &mut bytes);
        u8::try_from(bytes.len()).expect("requests are short")
    };
    let preamble = [
        size(Request::Lock(&NO_TOKEN)),
        size(Request::Unlock(&NO_TOKEN)),
        u8::from(keys != Keys::Own),
    ];
    conn.outbox.extend_from_slice(&preamble);
}

/// Serves until a signal comes, or until `seconds` are over and no request comes. First prints its
/// address to standard error.
pub(crate) fn serve(port: u16, path: Option<&Path>, seconds: u64) -> io::Result<()> {
    let clock = Clock::start();
    let mut server = Server {
        poll: Poll::new()?,
        peers: Slab::new(),
        queue: VecDeque::new(),
        held: false,
        to_tell: Vec::new(),
    };
    // Before there is a socket file that a signal could leave behind.
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, asked_to_end.clone())?;
    }
    let mut tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port).into())?;
    server.listen(&mut tcp, TCP)?;
    let mut unix = path.map(UnixListener::bind).transpose()?;
    if let Some(unix) = &mut unix {
        server.listen(unix, UNIX)?;
    }
    eprintln!("ceiling: listening on {}", tcp.local_addr()?);
    let mut events = Events::with_capacity(1024);
    let mut scratch = Vec::new();
    while !asked_to_end.load(Ordering::Relaxed) {
        match server.poll.poll(&mut events, Some(NAP)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        // Only when nothing happened: reading the clock would lower the ceiling.
        if events.is_empty() && clock.now_ns() >= seconds.saturating_mul(1_000_000_000) {
            break;
        }
        for event in events.iter() {
            match event.token() {
                TCP => each_accepted(tcp.accept(), |(stream, _)| {
                    stream.set_nodelay(true)?;
                    server.accept(Stream::Tcp(stream))?;
                    Ok(tcp.accept())
                })?,
                UNIX => {
                    let Some(unix) = &unix else { continue };
                    each_accepted(unix.accept(), |(stream, _)| {
                        server.accept(Stream::Unix(stream))?;
                        Ok(unix.accept())
                    })?;
                }
                Token(index) => server.serve(index, &mut scratch),
            }
        }
    }
    path.map_or(Ok(()), fs::remove_file)
}

/// Goes on as long as there are connections to accept.
fn each_accepted<T>(
    mut next: io::Result<T>,
    mut each: impl FnMut(T) -> io::Result<io::Result<T>>,
) -> io::Result<()> {
    loop {
        match next {
            Ok(one) => next = each(one)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

struct Peer {
    conn: Conn,
    /// Sizes of the two requests, and whether all share one lock; `None` until they came.
    sizes: Option<(usize, usize, bool)>,
}

struct Server {
    poll: Poll,
    peers: Slab<Peer>,
    /// Who waits for the shared lock, and whether it is held.
    queue: VecDeque<usize>,
    held: bool,
    /// Who was granted the lock and has not been told.
    to_tell: Vec<usize>,
}

impl Server {
    fn listen(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        let registry = self.poll.registry();
        registry.register(source, token, Interest::READABLE)
    }

    fn accept(&mut self, stream: Stream) -> io::Result<()> {
        let entry = self.peers.vacant_entry();
        let token = Token(entry.key());
        entry.insert(Peer {
            conn: Conn::new(stream, token, self.poll.registry())?,
            sizes: None,
        });
        Ok(())
    }

    fn serve(&mut self, index: usize, scratch: &mut Vec<u8>) {
        loop {
            let Some(peer) = self.peers.get_mut(index) else {
                return;
            };
            let (length, more) = match peer.conn.read(scratch) {
                Ok(Received::Some(length)) => (length, true),
                Ok(Received::Last(length)) => (length, false),
                Ok(Received::Nothing) => (0, false),
                Ok(Received::End) | Err(_) => return self.close(index),
            };
            if length > 0 {
                let used = self.answer(index, &scratch[..length]);
                self.peers[index].conn.keep(&scratch[used..length]);
            }
            if !more {
                break;
            }
        }
        // Whoever was waiting first: the one that let go only has to be told so.
        self.tell();
        if let Some(peer) = self.peers.get_mut(index)
            && peer.conn.flush(self.poll.registry()).is_err()
        {
            self.close(index);
        }
    }

    /// Answers every complete request; returns how many bytes they were.
    fn answer(&mut self, index: usize, bytes: &[u8]) -> usize {
        let peer = &mut self.peers[index];
        let mut used = 0;
        if peer.sizes.is_none() {
            let [take, give, passes, ..] = *bytes else {
                return 0;
            };
            peer.sizes = Some((take.into(), give.into(), passes == 1));
            used = PREAMBLE_BYTES;
        }
        let Some((take, give, passes)) = peer.sizes else {
            return used;
        };
        while let Some(&letter) = bytes.get(used) {
            let takes = letter == b'l';
            let size = if takes { take } else { give };
            if bytes.len() - used < size || size == 0 {
                break;
            }
            used += size;
            if takes && passes && self.held {
                self.queue.push_back(index);
                continue;
            }
            peer.conn
                .outbox
                .extend_from_slice(if takes { TAKEN } else { GIVEN });
            if passes {
                self.held = takes;
                if let Some(next) = (!takes).then(|| self.queue.pop_front()).flatten() {
                    self.held = true;
                    self.to_tell.push(next);
                }
            }
        }
        used
    }

    /// Tells those who were granted the lock.
    fn tell(&mut self) {
        while let Some(index) = self.to_tell.pop() {
            if let Some(peer) = self.peers.get_mut(index) {
                peer.conn.outbox.extend_from_slice(TAKEN);
                if peer.conn.flush(self.poll.registry()).is_err() {
                    self.close(index);
                }
            }
        }
    }

    fn close(&mut self, index: usize) {
        self.peers.remove(index);
        if self.peers.is_empty() {
            self.queue.clear();
            self.held = false;
        }
    }
}

//! A connection without a network: bytes in memory, delivered when somebody says so.
//!
//! The server's end, [`Pipe`], is a [`Transport`]; the other end, [`Peer`], is a client that can
//! also be slow, silent or gone. What a peer sends is in flight until [`Peer::arrive`] lets the
//! server see it, which is the moment to report the connection readable: like a kernel, a pipe
//! tells nothing twice.

mod encrypted;
mod harness;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use self::encrypted::Session;
pub use self::encrypted::{Dialect, encrypted_pipe};
pub use self::harness::{ORIGIN, Pipes};
use latchd::server::identity::{self, Identity};
use latchd::server::{Host, Readiness, Transport};

/// What a system call of the server's end takes, in nanoseconds, roughly as over a socket.
const READ_NS: u64 = 1_500;
const WRITE_NS: u64 = 5_000;
const CLOSE_NS: u64 = 5_000;

/// What a thousand bytes, read or written, add to it.
const NS_PER_1000_BYTES: u64 = 300;

/// How many nanoseconds the server would have spent on its sockets. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter(Rc<Spent>);

#[derive(Debug, Default)]
struct Spent {
    ns: Cell<u64>,
    lines: Cell<u64>,
}

impl Meter {
    /// What has been spent since [`Meter::reset`].
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.0.ns.get()
    }

    /// Something else took time.
    pub fn spend(&self, ns: u64) {
        self.0.ns.set(self.ns() + ns);
    }

    /// Begins again at 0, and says how much it was.
    pub fn reset(&self) -> u64 {
        self.0.ns.take()
    }

    /// How many lines the server wrote since the last call.
    #[must_use]
    pub fn take_lines(&self) -> u64 {
        self.0.lines.take()
    }

    fn spend_on(&self, call_ns: u64, bytes: usize) {
        self.spend(call_ns + bytes as u64 * NS_PER_1000_BYTES / 1_000);
    }
}

/// What both ends see.
#[derive(Debug, Default)]
struct Shared {
    /// Sent by the peer, not yet arrived.
    in_flight: VecDeque<u8>,
    /// Arrived at the server, not yet read.
    arrived: VecDeque<u8>,
    /// Written by the server, not yet read by the peer.
    answered: VecDeque<u8>,
    /// The peer will send no more: the end comes after what has arrived.
    closed_by_peer: bool,
    /// The connection is broken: neither end can use it.
    reset: bool,
    /// The server will write no more.
    half_closed_by_server: bool,
    /// The server has dropped its end.
    closed_by_server: bool,
    /// Most bytes `answered` may hold; the server's writes stop there.
    room: usize,
    /// What passes is encrypted; `in_flight` and `answered` are not.
    session: Option<Box<Session>>,
}

impl Shared {
    /// How much the server may write.
    fn room_left(&self) -> usize {
        let half = self.session.as_ref().map_or(0, |it| it.half());
        self.room.saturating_sub(self.answered.len() + half)
    }
}

/// The server's end.
#[derive(Debug)]
pub struct Pipe {
    shared: Rc<RefCell<Shared>>,
    name: u32,
    host: Host,
    meter: Meter,
}

/// The client's end.
#[derive(Clone, Debug)]
pub struct Peer {
    shared: Rc<RefCell<Shared>>,
}

/// A connection from this host; `name` is what the log calls the peer.
#[must_use]
pub fn pipe(name: u32, host: Host) -> (Pipe, Peer) {
    metered_pipe(name, host, &Meter::default())
}

/// The same; what the server does with it is counted.
#[must_use]
pub fn metered_pipe(name: u32, host: Host, meter: &Meter) -> (Pipe, Peer) {
    let shared = Rc::new(RefCell::new(Shared {
        room: usize::MAX,
        ..Shared::default()
    }));
    (
        Pipe {
            shared: Rc::clone(&shared),
            name,
            host,
            meter: meter.clone(),
        },
        Peer { shared },
    )
}

impl Transport for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut shared = self.shared.borrow_mut();
        if shared.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let count = into.len().min(shared.arrived.len());
        self.meter.spend_on(READ_NS, count);
        if count == 0 && !shared.closed_by_peer {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&take(&mut shared.arrived, count));
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.shared.borrow_mut();
        if shared.reset || shared.half_closed_by_server {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(shared.room_left());
        self.meter.spend_on(WRITE_NS, count);
        let said = match &mut shared.session {
            None => Cow::Borrowed(&bytes[..count]),
            Some(session) => Cow::Owned(session.decrypt(&bytes[..count])),
        };
        let lines = memchr::memchr_iter(b'\n', &said).count();
        self.meter
            .0
            .lines
            .set(self.meter.0.lines.get() + lines as u64);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        shared.answered.extend(&*said);
        Ok(count)
    }

    fn shutdown_write(&mut self) {
        self.shared.borrow_mut().half_closed_by_server = true;
    }

    fn peer(&self) -> String {
        format!("peer {}", self.name)
    }

    fn host(&self) -> Host {
        self.host
    }

    /// The simulator gives each connection its own user. They count as one peer, so that a client
    /// may repeat a request over any connection.
    fn identity(&self) -> Identity {
        identity::of_host(match self.host {
            Host::User(_) => Host::User(0),
            host => host,
        })
    }
}

/// The first bytes, in one piece: megabytes pass here, so not one by one.
fn take(from: &mut VecDeque<u8>, count: usize) -> Vec<u8> {
    let rest = from.split_off(count);
    std::mem::replace(from, rest).into()
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.meter.spend(CLOSE_NS);
        self.shared.borrow_mut().closed_by_server = true;
    }
}

impl Peer {
    /// Puts bytes on their way.
    pub fn send(&self, bytes: &[u8]) {
        self.shared.borrow_mut().in_flight.extend(bytes);
    }

    /// Lets up to `count` bytes arrive and says how many did; then the server is to be told.
    pub fn arrive(&self, count: usize) -> usize {
        let shared = &mut *self.shared.borrow_mut();
        let count = count.min(shared.in_flight.len());
        let mut arrived = take(&mut shared.in_flight, count);
        if let Some(session) = &mut shared.session {
            arrived = session.encrypt(&arrived);
        }
        shared.arrived.extend(&arrived);
        count
    }

    /// Bytes on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.borrow().in_flight.len()
    }

    /// Everything the server has written since the last time.
    #[must_use]
    pub fn receive(&self) -> Vec<u8> {
        std::mem::take(&mut self.shared.borrow_mut().answered).into()
    }

    /// Whether the server has written anything that was not received yet.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        !self.shared.borrow().answered.is_empty()
    }

    /// The next whole line the server has written, without its end.
    #[must_use]
    pub fn receive_line(&self) -> Option<Vec<u8>> {
        let answered = &mut self.shared.borrow_mut().answered;
        let end = answered.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = answered.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// How much the server may write before the peer reads; a stalled reader has none.
    pub fn set_room(&self, bytes: usize) {
        self.shared.borrow_mut().room = bytes;
    }

    /// Sends no more: what has arrived is read, then the end. What is in flight is lost.
    pub fn close(&self) {
        let shared = &mut *self.shared.borrow_mut();
        shared.in_flight.clear();
        if let Some(session) = &mut shared.session
            && !shared.closed_by_peer
        {
            let end = session.end();
            shared.arrived.extend(end);
        }
        shared.closed_by_peer = true;
    }

    /// Breaks the connection: the server's next read or write fails.
    pub fn reset(&self) {
        let shared = &mut *self.shared.borrow_mut();
        shared.in_flight.clear();
        shared.arrived.clear();
        shared.reset = true;
    }

    /// Whether the peer would read the end by now: the server has closed, or said it writes no
    /// more.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let shared = self.shared.borrow();
        shared.closed_by_server || shared.half_closed_by_server
    }

    /// Whether the server has dropped its end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.borrow().closed_by_server
    }

    /// Whether the server has read all that arrived. If it closes before, a real peer is reset, and
    /// may lose answers.
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.shared.borrow().arrived.is_empty()
    }

    /// What the server would be told about this connection now.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let shared = self.shared.borrow();
        Readiness {
            readable: shared.reset || shared.closed_by_peer || !shared.arrived.is_empty(),
            writable: shared.reset || shared.room_left() > 0,
            hung_up: shared.reset || shared.closed_by_peer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_does_with_a_connection_takes_time() {
        let meter = Meter::default();
        let (mut here, peer) = metered_pipe(1, Host::User(1), &meter);
        peer.send(&[0; 10_000]);
        peer.arrive(usize::MAX);
        assert_eq!(meter.ns(), 0, "what peers do costs the server nothing");
        assert!(here.read(&mut [0; 10_000]).is_ok());
        assert_eq!(meter.reset(), READ_NS + 10 * NS_PER_1000_BYTES);
        assert!(here.read(&mut [0; 10_000]).is_err());
        assert_eq!(meter.reset(), READ_NS);
        assert!(here.write(&[b'\n'; 1_000]).is_ok());
        assert_eq!(meter.reset(), WRITE_NS + NS_PER_1000_BYTES);
        assert_eq!((meter.take_lines(), meter.take_lines()), (1_000, 0));
        drop(here);
        assert_eq!(meter.reset(), CLOSE_NS);
    }
}

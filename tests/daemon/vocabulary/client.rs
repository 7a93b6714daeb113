//! A client that can do everything a peer may do to a daemon: talk, stutter, flood, fall silent,
//! leave.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::{Duration, Instant};

use latchd::base::Millis;
use latchd::wire::client::{self, Told, frame};
use latchd::wire::verbs::Verb;
use serde_json::Value;
use socket2::{SockAddr, Socket, Type};

use super::PATIENCE;

/// A connection and what it has received so far.
pub(crate) struct Client {
    socket: Socket,
    received: Vec<u8>,
    /// How much of it was read; cut off when more is received, not line by line.
    read: usize,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

/// A lock as it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: String,
    pub(crate) lease: Millis,
    /// The field of its own, where there is one.
    pub(crate) fence: Option<u64>,
}

impl Client {
    #[track_caller]
    pub(crate) fn unix(path: &Path) -> Self {
        Self::connect(&SockAddr::unix(path).unwrap())
    }

    #[track_caller]
    pub(crate) fn connect(address: &SockAddr) -> Self {
        Self::over(
            Socket::new(address.domain(), Type::STREAM, None).unwrap(),
            address,
        )
    }

    #[track_caller]
    pub(super) fn over(socket: Socket, address: &SockAddr) -> Self {
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.connect(address).expect("the daemon is there");
        if address.is_ipv4() {
            socket.set_tcp_nodelay(true).unwrap();
        }
        Self {
            socket,
            received: Vec::new(),
            read: 0,
        }
    }

    /// Where the daemon sees it come from.
    #[track_caller]
    pub(crate) fn local_address(&self) -> String {
        let address = self.socket.local_addr().unwrap();
        address.as_socket().expect("over TCP").to_string()
    }

    /// Sends these bytes.
    #[track_caller]
    pub(crate) fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket
            .write_all(bytes.as_ref())
            .expect("room to write");
    }

    /// Sends a frame.
    #[track_caller]
    pub(crate) fn put(&mut self, request: &str) {
        self.raw(frame(request));
    }

    /// Sends a frame and waits for its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.put(request);
        self.line()
    }

    /// The next line.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.line_within(PATIENCE) {
            Some(line) => line,
            None => panic!("no line in time, only {:?}", self.shown()),
        }
    }

    /// The next line, unless it takes longer than this.
    #[track_caller]
    pub(crate) fn line_within(&mut self, patience: Duration) -> Option<String> {
        loop {
            if let Some(length) = memchr::memchr(b'\n', self.unread()) {
                let line = String::from_utf8_lossy(&self.unread()[..length]).into_owned();
                self.read += length + 1;
                return Some(line);
            }
            match self.receive(patience) {
                Ok(0) => panic!("closed instead of a line, after {:?}", self.shown()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error} instead of a line, after {:?}", self.shown()),
            }
        }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// The next line, which must grant something.
    #[track_caller]
    pub(crate) fn grant(&mut self) -> Grant {
        Grant::of(&self.line())
    }

    /// Acquires: `l` with this key and argument.
    #[track_caller]
    pub(crate) fn lock(&mut self, key: &str, argument: &str) -> Grant {
        self.put(&format!("l {key} {argument}"));
        self.grant()
    }

    #[track_caller]
    pub(crate) fn release(&mut self, key: &str, grant: &Grant) {
        let answer = self.ask(&format!("r {key} {}", grant.token));
        assert_eq!(answer, "ok");
    }

    #[track_caller]
    pub(crate) fn stats(&mut self) -> Value {
        json(Verb::Stats, &self.ask("stats _ _"))
    }

    /// Waits until this many clients are in the queue for the key, one round trip at a time.
    #[track_caller]
    pub(crate) fn wait_for_waiters(&mut self, key: &str, waiters: usize) {
        let start = Instant::now();
        loop {
            let who = json(Verb::Who, &self.ask(&format!("who {key} _")));
            let count = who["waiter_count"].as_u64().unwrap_or(0);
            if count == waiters as u64 {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{count} waiters, not {waiters}");
        }
    }

    /// Expects the daemon to close in good order, without another byte.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.end(), End::Closed);
    }

    /// Expects the end of the connection, without another byte.
    #[track_caller]
    pub(crate) fn end(&mut self) -> End {
        let (bytes, end) = self.rest();
        assert!(bytes.is_empty(), "{:?} before the end", lossy(&bytes));
        end
    }

    /// Everything up to the end of the connection.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> (Vec<u8>, End) {
        let end = loop {
            match self.receive(PATIENCE) {
                Ok(0) => break End::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break End::Reset,
                Err(error) => panic!("{error} instead of an end, after {:?}", self.shown()),
            }
        };
        (self.received.split_off(self.read), end)
    }

    /// Whether the connection is open and nothing was received, up to now.
    pub(crate) fn is_open_and_quiet(&mut self) -> bool {
        let received = self.receive(Duration::from_millis(1));
        matches!(received, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Says that no more will be sent, as `nc -N` does at the end of its input.
    pub(crate) fn half_close(&mut self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
    }

    /// Leaves with a reset instead of a goodbye.
    pub(crate) fn reset(self) {
        self.socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Sends as much as the daemon takes without our reading anything, and says how much it was.
    /// `asks_meanwhile` is a round trip of somebody else's: after some of them without any progress
    /// the daemon has stopped reading.
    #[track_caller]
    pub(crate) fn flood(&mut self, bytes: &[u8], mut asks_meanwhile: impl FnMut()) -> usize {
        self.socket.set_nonblocking(true).unwrap();
        let (mut sent, mut refusals_in_a_row) = (0, 0);
        while refusals_in_a_row < 50 {
            match self.socket.write(&bytes[sent % bytes.len()..]) {
                Ok(more) => {
                    sent += more;
                    refusals_in_a_row = 0;
                    assert!(sent < 1 << 26, "it takes everything and forgets nothing");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    asks_meanwhile();
                    refusals_in_a_row += 1;
                }
                Err(error) => panic!("{error} after {sent} bytes"),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        sent
    }

    fn receive(&mut self, patience: Duration) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 64 * 1024];
        let count = loop {
            match self.socket.read(&mut bytes) {
                // This process was stopped and goes on; nothing is said about the daemon.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.received.drain(..std::mem::take(&mut self.read));
        self.received.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn unread(&self) -> &[u8] {
        &self.received[self.read..]
    }

    fn shown(&self) -> String {
        lossy(self.unread())
    }
}

impl Grant {
    #[track_caller]
    pub(crate) fn of(line: &str) -> Self {
        let Some(grant) = client::Grant::read(line.as_bytes()) else {
            panic!("{line:?} grants nothing");
        };
        Self {
            token: String::from_utf8(grant.token.hex().to_vec()).unwrap(),
            lease: grant.lease,
            fence: grant.fence.map(|fence| fence.0),
        }
    }

    /// The fence inside the token, which is always there.
    pub(crate) fn token_fence(&self) -> u64 {
        u64::from_str_radix(&self.token[..16], 16).unwrap()
    }
}

#[track_caller]
fn json(verb: Verb, answer: &str) -> Value {
    match Told::read(verb, answer.as_bytes()) {
        Some(Told::Json(json)) => serde_json::from_slice(json).unwrap(),
        _ => panic!("{answer:?} is no document"),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(1_000)]).into_owned()
}

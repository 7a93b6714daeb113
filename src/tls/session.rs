//! One encrypted connection: a session of rustls over a transport, as a [`Transport`] itself.
//!
//! The server knows little of it. A read that returns less than was asked for has emptied both the
//! socket and the session, as it has without TLS. A write counts only when all of its record has left:
//! until then the bytes stay in the outbox, so whatever is kept for a peer, or waits for it, is seen
//! there. What the session has to say itself (its part of the handshake, an alert, the end) is in no
//! outbox; the server is told of it and has it sent. The first bytes bring the session to life: who
//! connects and says nothing has none.
//!
//! An end of the peer's sending is the end of its input, whether it was announced (`close_notify`) or
//! not: a request says itself where it ends, so one that was cut off is never taken for a whole one.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::ServerConnection;

use super::keys::Terms;
use super::records::Records;
use crate::server::identity::{self, Identity};
use crate::server::{Handshake, Host, Transport, TransportMemory, Upkeep};

/// Most bytes of a handshake: a hello, and a client's certificates with those that lead to its
/// authority. A peer that needs more is refused.
pub const HANDSHAKE_BYTES_MAX: usize = 32 * 1024;

/// What a session takes besides what it has received and not sent, about: keys, states, and the
/// buffer that records are received in. `tests/server/tls_pipe.rs` compares it with what is
/// allocated.
pub const SESSION_BYTES: usize = 9 * 1024;

/// Most plaintext of one record.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Most ciphertext that one read takes from the socket, besides what it has room for: a peer may send
/// records that say nothing.
const READ_BYTES_MORE: usize = 4 * 1024;

/// Most that the session keeps to be sent: the record that is being sent, and a few of its own.
const UNSENT_BYTES_MAX: usize = 32 * 1024;

/// What it costs to open or to close a record, and each two bytes of it.
const RECORD_NS: u64 = 1_200;
const NS_PER_2_BYTES: u64 = 1;

/// What it costs to read a socket that had nothing for the server.
const READ_NS: u64 = 2_000;

/// A transport with TLS over it.
pub struct Tls<T: Transport> {
    inner: T,
    terms: Arc<Terms>,
    session: Option<Box<ServerConnection>>,
    state: State,
    records: Records,
    /// How much of the handshake was received.
    handshake_bytes: usize,
    /// The peer will send no more.
    has_ended: bool,
    /// So many bytes that the server wants to write are in a record that has not all left.
    ahead: usize,
    /// What was decrypted and not read, and encrypted and not sent, about.
    unread: usize,
    unsent: usize,
    /// What the peer's certificates take.
    peer_bytes: usize,
    upkeep: Upkeep,
    /// What goes wrong is told when everything before it was read.
    failure: Option<io::Error>,
    counted: usize,
    memory: TransportMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Both sides are agreeing on keys.
    Handshake,
    /// Bytes pass both ways.
    Open,
    /// Something was wrong: nothing more is understood.
    Failed,
}

impl<T: Transport> Tls<T> {
    /// A connection of somebody who has said nothing yet. What it takes is counted in `memory`.
    #[must_use]
    pub fn new(inner: T, terms: Arc<Terms>, memory: TransportMemory) -> Self {
        let mut tls = Self {
            inner,
            terms,
            session: None,
            state: State::Handshake,
            records: Records::default(),
            handshake_bytes: 0,
            has_ended: false,
            ahead: 0,
            unread: 0,
            unsent: 0,
            peer_bytes: 0,
            upkeep: Upkeep::default(),
            failure: None,
            counted: 0,
            memory,
        };
        tls.count();
        tls
    }

    /// What it is over.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    pub(super) fn inner(&self) -> &T {
        &self.inner
    }

    /// Takes what was decrypted, as far as there is room.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let Some(session) = &mut self.session else {
            return 0;
        };
        // Without anything to read it says why, which is known here.
        let taken = session.reader().read(into).unwrap_or_default();
        self.unread -= taken.min(self.unread);
        taken
    }

    /// Reads the socket once and decrypts what has come; says how much that was, and whether there may
    /// be more.
    fn receive(&mut self) -> io::Result<(usize, bool)> {
        let session = match &mut self.session {
            Some(session) => session,
            None => {
                let config = Arc::clone(&self.terms.config);
                let session = ServerConnection::new(config);
                let mut session = session.map_err(|error| io::Error::other(error.to_string()))?;
                session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
                self.session.insert(Box::new(session))
            }
        };
        let mut source = Source {
            inner: &mut self.inner,
            records: &mut self.records,
            asked: 0,
            begun: 0,
        };
        let received = session.read_tls(&mut source)?;
        let (is_short, records) = (received < source.asked, source.begun);
        self.upkeep.work_ns +=
            READ_NS + u64::from(records) * RECORD_NS + received as u64 / 2 * NS_PER_2_BYTES;
        self.has_ended |= received == 0;
        let was_silent = !session.wants_write();
        let processed = session.process_new_packets();
        let is_in_handshake = self.state == State::Handshake;
        if is_in_handshake && was_silent && session.wants_write() {
            self.upkeep.work_ns += self.terms.hello_ns;
        }
        match processed {
            Ok(state) => {
                self.unread = state.plaintext_bytes_to_read();
                self.unsent = state.tls_bytes_to_write();
                self.has_ended |= state.peer_has_closed();
                if is_in_handshake && !session.is_handshaking() {
                    self.state = State::Open;
                    self.handshake_bytes = 0;
                    let certificates = session.peer_certificates().unwrap_or_default();
                    self.peer_bytes = certificates.iter().map(|it| it.len()).sum();
                    self.upkeep.work_ns += self.terms.finish_ns;
                    self.upkeep.handshake = Some(Handshake::Done);
                } else if is_in_handshake {
                    self.handshake_bytes += received;
                }
            }
            Err(error) => {
                if is_in_handshake {
                    self.upkeep.work_ns += self.terms.finish_ns;
                }
                self.fail(io::Error::new(ErrorKind::InvalidData, error.to_string()));
            }
        }
        if self.handshake_bytes > HANDSHAKE_BYTES_MAX {
            let why = format!("its handshake is longer than {HANDSHAKE_BYTES_MAX} bytes");
            self.fail(io::Error::new(ErrorKind::InvalidData, why));
        }
        Ok((received, is_short))
    }

    fn fail(&mut self, error: io::Error) {
        if self.state == State::Handshake {
            self.upkeep.handshake = Some(Handshake::Failed);
        }
        self.state = State::Failed;
        self.failure = Some(error);
    }

    /// Sends what is encrypted, as far as the socket takes it.
    fn push(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        while session.wants_write() {
            let sent = session.write_tls(&mut Sink(&mut self.inner))?;
            if sent == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.unsent = self.unsent.saturating_sub(sent);
        }
        self.unsent = 0;
        Ok(())
    }

    /// Has the memory that it takes counted.
    fn count(&mut self) {
        let session = self.session.as_ref().map_or(0, |_| SESSION_BYTES);
        let held = self.handshake_bytes + self.unread + self.unsent + self.peer_bytes;
        let bytes = size_of::<Self>() + session + held;
        self.memory.recount(self.counted, bytes);
        self.counted = bytes;
    }

    fn read_counted(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.upkeep.has_more = false;
        let (mut got, mut received) = (0, 0);
        let received_max = into.len() + READ_BYTES_MORE;
        let mut is_drained = false;
        loop {
            got += self.take(&mut into[got..]);
            // An end and a failure come behind what was said before them: the next read tells.
            let is_over = self.has_ended || self.failure.is_some();
            if got == into.len() || is_drained {
                break;
            }
            if is_over && got > 0 {
                self.upkeep.has_more = true;
                break;
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.has_ended {
                return Ok(0);
            }
            if self.state == State::Failed {
                return self.discard(into);
            }
            if received >= received_max {
                self.upkeep.has_more = true;
                break;
            }
            match self.receive() {
                Ok((count, is_short)) => {
                    received += count;
                    is_drained = is_short && !self.has_ended && self.failure.is_none();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => is_drained = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.fail(error),
            }
        }
        if got == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(got)
    }

    /// Nothing that a peer sends is understood any more; it is read so that the last alert arrives.
    fn discard(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read(into)
    }
}

impl<T: Transport> Transport for Tls<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.read_counted(into);
        self.count();
        read
    }

    /// Puts some of the bytes into a record and sends that. If it does not all leave, nothing counts as
    /// written, and the next call has to begin with the same bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.state != State::Open {
            self.push()?; // what the server wants to say comes behind what the session has to
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.ahead == 0
            && let Some(session) = &mut self.session
        {
            let record = &bytes[..bytes.len().min(RECORD_BYTES_MAX)];
            let before = session.wants_write();
            self.ahead = session.writer().write(record)?;
            debug_assert!(before || self.ahead == record.len(), "one record fits");
            if self.ahead == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.unsent += self.ahead;
            self.upkeep.work_ns += RECORD_NS + self.ahead as u64 / 2 * NS_PER_2_BYTES;
        }
        debug_assert!(self.ahead <= bytes.len(), "the same bytes again");
        let pushed = self.push();
        self.count();
        pushed.map(|()| std::mem::take(&mut self.ahead))
    }

    fn shutdown_write(&mut self) {
        if let Some(session) = &mut self.session
            && self.state == State::Open
        {
            session.send_close_notify();
        }
        let _ = self.push(); // without room for it, the end is not announced
        self.inner.shutdown_write();
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn host(&self) -> Host {
        self.inner.host()
    }

    fn identity(&self) -> Identity {
        let session = self.session.as_ref();
        match session.and_then(|it| it.peer_certificates()?.first()) {
            Some(certificate) => identity::of_certificate(certificate),
            None => self.inner.identity(),
        }
    }

    fn is_encrypted(&self) -> bool {
        true
    }

    fn is_in_handshake(&self) -> bool {
        self.state == State::Handshake
    }

    fn upkeep(&mut self) -> Upkeep {
        std::mem::take(&mut self.upkeep)
    }

    fn memory(&self) -> usize {
        self.counted
    }

    fn unsent(&self) -> usize {
        match &self.session {
            Some(session) if session.wants_write() => self.unsent.max(1),
            _ => 0,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let pushed = self.push();
        self.count();
        pushed
    }
}

/// The end is announced, if there is room for that. Not behind a record that has not all left: its peer does
/// not take it, or the rest of it was held back and must not be said at all.
impl<T: Transport> Drop for Tls<T> {
    fn drop(&mut self) {
        if self.ahead == 0 {
            if let Some(session) = &mut self.session
                && self.state == State::Open
            {
                session.send_close_notify();
            }
            let _ = self.push();
        }
        self.memory.recount(self.counted, 0);
    }
}

impl<T: Transport> fmt::Debug for Tls<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("peer", &self.peer())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Where a session reads: notes how much was asked for, and which records begin.
struct Source<'s, T> {
    inner: &'s mut T,
    records: &'s mut Records,
    asked: usize,
    begun: u32,
}

impl<T: Transport> Read for Source<'_, T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.asked = into.len();
        let count = self.inner.read(into)?;
        let begun = self.records.note(&into[..count]);
        self.begun =
            begun.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it does not speak TLS"))?;
        Ok(count)
    }
}

/// Where a session writes.
struct Sink<'s, T>(&'s mut T);

impl<T: Transport> Write for Sink<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! Anywhere but on Linux: `poll` over copies of all sockets, and a datagram to itself to end a wait.
//!
//! Every change ends the wait of another thread, because `poll` does not hear of it. A copy is closed with
//! [`Poller::delete`], so that the peer sees the end of a connection.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::client::clock;
use crate::client::conn::Conn;

pub(in crate::client) struct Poller {
    /// Connected to itself, so that it hears nothing of others.
    wake: UdpSocket,
    /// By the descriptor of the connection, which is open as long as it stands here.
    entries: Mutex<HashMap<RawFd, Entry>>,
}

#[derive(Clone)]
struct Entry {
    copy: Arc<OwnedFd>,
    number: u64,
    wanted: PollFlags,
}

impl Poller {
    pub(in crate::client) fn new() -> io::Result<Self> {
        let wake = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        wake.connect(wake.local_addr()?)?;
        wake.set_nonblocking(true)?;
        let entries = Mutex::default();
        Ok(Self { wake, entries })
    }

    /// Ends a wait, or the next one.
    pub(in crate::client) fn wake(&self) {
        // It can only fail because it was woken very often already.
        let _ = self.wake.send(&[0]);
    }

    /// Waits until something happens, or for so long. Returns the numbers of the connections.
    pub(in crate::client) fn wait(&self, left: Option<Duration>) -> io::Result<Vec<u64>> {
        let entries: Vec<Entry> = self.entries().values().cloned().collect();
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(entries.iter().map(|it| PollFd::new(&it.copy, it.wanted)));
        match poll(&mut fds, left.map(clock::timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        while self.wake.recv(&mut [0]).is_ok() {}
        let ready = fds.iter().skip(1).map(|fd| !fd.revents().is_empty());
        let numbers = entries.iter().zip(ready);
        Ok(numbers
            .filter(|(_, ready)| *ready)
            .map(|(it, _)| it.number)
            .collect())
    }

    pub(in crate::client) fn add(&self, conn: &Conn, number: u64) -> io::Result<()> {
        let copy = Arc::new(conn.as_fd().try_clone_to_owned()?);
        let wanted = interest(conn);
        let entry = Entry {
            copy,
            number,
            wanted,
        };
        self.entries().insert(conn.as_fd().as_raw_fd(), entry);
        self.wake();
        Ok(())
    }

    pub(in crate::client) fn update(&self, conn: &Conn, _number: u64) {
        let wanted = interest(conn);
        if let Some(entry) = self.entries().get_mut(&conn.as_fd().as_raw_fd())
            && entry.wanted != wanted
        {
            entry.wanted = wanted;
            self.wake();
        }
    }

    pub(in crate::client) fn delete(&self, conn: &Conn) {
        if self.entries().remove(&conn.as_fd().as_raw_fd()).is_some() {
            self.wake();
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<RawFd, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn interest(conn: &Conn) -> PollFlags {
    match conn.wants_write() {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    }
}

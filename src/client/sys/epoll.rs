//! Linux: `epoll`, and an `eventfd` to end a wait.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use crate::client::clock;
use crate::client::conn::Conn;

/// The number of the event that only wakes the thread.
const WAKE: u64 = 0;

/// How many events are taken at a time.
const EVENTS: usize = 64;

pub(in crate::client) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Poller {
    pub(in crate::client) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Self { epoll, wake })
    }

    /// Ends a wait, or the next one.
    pub(in crate::client) fn wake(&self) {
        // It can only fail because it was woken very often already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until something happens, or for so long. Returns the numbers of the connections.
    pub(in crate::client) fn wait(&self, left: Option<Duration>) -> io::Result<Vec<u64>> {
        let mut events = Vec::with_capacity(EVENTS);
        let left = left.map(clock::timespec);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let numbers = events.iter().map(|event| event.data.u64());
        let numbers: Vec<_> = numbers.collect();
        if numbers.contains(&WAKE) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(numbers.into_iter().filter(|it| *it != WAKE).collect())
    }

    pub(in crate::client) fn add(&self, conn: &Conn, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, conn, data, interest(conn))?)
    }

    pub(in crate::client) fn update(&self, conn: &Conn, number: u64) {
        let data = epoll::EventData::new_u64(number);
        let _ = epoll::modify(&self.epoll, conn, data, interest(conn));
    }

    pub(in crate::client) fn delete(&self, conn: &Conn) {
        let _ = epoll::delete(&self.epoll, conn);
    }
}

fn interest(conn: &Conn) -> epoll::EventFlags {
    match conn.wants_write() {
        true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        false => epoll::EventFlags::IN,
    }
}

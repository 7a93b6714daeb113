//! What the renewal thread waits in: all connections that it keeps, and a bell to wake it.
//!
//! Each connection has a number, and whoever waits is told the numbers of those where something happened.

use std::io;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::conn::Conn;

/// The number of the event that only wakes the thread.
const WAKE: u64 = 0;

pub(super) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Self { epoll, wake })
    }

    /// Ends a wait, or the next one.
    pub(super) fn wake(&self) {
        // It can only fail because it was woken very often already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until something happens, or for so long. Returns the numbers of the connections.
    pub(super) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        left: Option<&Timespec>,
    ) -> io::Result<Vec<u64>> {
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), left) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let numbers = events.drain(..).map(|event| event.data.u64());
        let numbers: Vec<_> = numbers.collect();
        if numbers.contains(&WAKE) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(numbers.into_iter().filter(|it| *it != WAKE).collect())
    }

    pub(super) fn add(&self, conn: &Conn, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, conn, data, interest(conn))?)
    }

    pub(super) fn update(&self, conn: &Conn, number: u64) {
        let data = epoll::EventData::new_u64(number);
        let _ = epoll::modify(&self.epoll, conn, data, interest(conn));
    }

    pub(super) fn delete(&self, conn: &Conn) {
        let _ = epoll::delete(&self.epoll, conn);
    }
}

fn interest(conn: &Conn) -> epoll::EventFlags {
    match conn.wants_write() {
        true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        false => epoll::EventFlags::IN,
    }
}

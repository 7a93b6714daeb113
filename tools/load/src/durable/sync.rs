//! How long the disk itself takes: small writes into a file that has its room, a sync after each.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use hdrhistogram::Histogram;
use latchd::base::{Fence, Millis, Token};
use latchd::engine::types::{Mode, Record};
use latchd::key::Key;
use latchd::store::format::{MARK_BYTES, push_record};

use crate::durable::folder::{Folder, written_file};
use crate::run::keys::key_name;
use crate::run::outcome::latencies;
use crate::session::Session;

/// The file's length; at its end writing begins at the front.
const FILE_BYTES: usize = 4 << 20;

/// The disk, asked again and again.
pub(super) struct DiskSync {
    file: File,
    at: u64,
    bytes: Vec<u8>,
    pub(super) took: Histogram<u64>,
}

impl DiskSync {
    /// Every byte of the file was written before, so a sync has only the bytes themselves to write:
    /// nothing is faster on this disk and file system.
    pub(super) fn open(folder: &Folder) -> io::Result<Self> {
        Ok(Self {
            file: written_file(folder.path(), "synced", FILE_BYTES)?,
            at: 0,
            bytes: vec![1; MARK_BYTES + grant_bytes(key_name("lock", 0, 0).len())],
            took: latencies(),
        })
    }

    /// Writes and syncs for so long, on the core on which servers do: the disk's interrupts may be
    /// nearer to one than to another.
    pub(super) fn measure(&mut self, session: &Session, ns: u64) -> io::Result<()> {
        session.say("the disk alone");
        session.on_servers_core(|| self.write_and_sync(session, ns))?;
        session.say("");
        Ok(())
    }

    fn write_and_sync(&mut self, session: &Session, ns: u64) -> io::Result<()> {
        let until = session.clock.now_ns() + ns;
        loop {
            let began = session.clock.now_ns();
            if began >= until {
                break;
            }
            self.file.write_all_at(&self.bytes, self.at)?;
            self.file.sync_data()?;
            let took = session.clock.now_ns() - began;
            self.took.saturating_record(took);
            self.at += self.bytes.len() as u64;
            if self.at + self.bytes.len() as u64 > FILE_BYTES as u64 {
                self.at = 0;
            }
        }
        Ok(())
    }
}

/// How many bytes the journal needs for a lock that is held, if its key has so many.
pub(super) fn grant_bytes(key_bytes: usize) -> usize {
    let record = Record::Granted {
        key: Key::from(&vec![b'k'; key_bytes][..]),
        mode: Mode::Slot { limit: 1 },
        token: Token {
            fence: Fence(1),
            salt: 1,
        },
        lease: Millis(1),
        client: 1,
        name: None,
        request: Box::default(),
    };
    let mut bytes = Vec::new();
    let no_clock = || unreachable!("a grant has no time of day");
    push_record(&mut bytes, 1, 1, &record, no_clock);
    bytes.len()
}

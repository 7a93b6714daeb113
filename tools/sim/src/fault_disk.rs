//! A disk in memory that fails as disks do: for tests and for the simulator.
//!
//! What was not synced when the power goes is there or not, sector by sector, in any combination,
//! and so are names. It can be full, its sync can fail, and the power can go at any step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::rc::Rc;

use rustix::io::Errno;

use latchd::store::{Disk, DiskFile};

/// What is written as one, or not at all; but see [`FaultDisk::crash`].
const SECTOR_BYTES: usize = 512;

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Default)]
pub struct FaultDisk(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    /// Names as they are after a crash, if no later change of a name survives.
    synced_names: BTreeMap<String, usize>,
    /// Changes of names since they were synced.
    unsynced_names: Vec<NameChange>,
    /// How many changes and syncs there were.
    steps: u64,
    dies_at: Option<u64>,
    fails_sync_at: Option<u64>,
    capacity_bytes: Option<u64>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Renamed(String, String, usize),
    Removed(String),
}

#[derive(Clone, Default)]
struct Contents {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Sectors that were written since.
    unsynced: BTreeSet<usize>,
    /// Sectors whose sync failed. They are read as they were written, but the system takes them for
    /// written: no later sync writes them.
    dropped: BTreeSet<usize>,
}

impl FaultDisk {
    /// An empty one that works.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many steps there were: changes and syncs of files and names.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.borrow().steps
    }

    /// The power goes at this step: it is done in part or not at all, and from then on nothing works
    /// until [`FaultDisk::crash`].
    pub fn die_at(&self, step: u64) {
        self.0.borrow_mut().dies_at = Some(step);
    }

    /// Whether the power is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let state = self.0.borrow();
        state.dies_at.is_some_and(|at| state.steps >= at)
    }

    /// The first sync from this step on fails, of a file or of names. The bytes of the file are read
    /// as before, but are as good as never written: see [`FaultDisk::forget_dropped`].
    pub fn fail_sync_at(&self, step: u64) {
        self.0.borrow_mut().fails_sync_at = Some(step);
    }

    /// How much all files may take together; `None` is as much as there is.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.0.borrow_mut().capacity_bytes = capacity_bytes;
    }

    /// How much all files take together.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.borrow().used_bytes()
    }

    /// The bytes of a file as they are now.
    #[must_use]
    pub fn bytes_of(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.borrow();
        let file = *state.names.get(name)?;
        Some(state.files[file].now.clone())
    }

    /// Puts a file there, on the disk for good.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.0.borrow_mut();
        let file = state.files.len();
        state.files.push(Contents {
            synced: bytes.clone(),
            now: bytes,
            ..Contents::default()
        });
        state.names.insert(name.to_owned(), file);
        state.synced_names.insert(name.to_owned(), file);
    }

    /// A directory with the same files, which goes its own way from here.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        for name in self.0.borrow().names.keys() {
            copy.put(name, self.bytes_of(name).unwrap_or_default());
        }
        copy
    }

    /// The process that used the disk is gone, and another begins: what was written is there, synced
    /// or not.
    pub fn revive(&self) {
        let mut state = self.0.borrow_mut();
        state.dies_at = None;
        state.fails_sync_at = None;
    }

    /// The system needs memory, and reads again from the disk what it took for written: from now on
    /// the bytes of a failed sync are gone.
    pub fn forget_dropped(&self) {
        for file in &mut self.0.borrow_mut().files {
            file.forget_dropped();
        }
    }

    /// The power goes and comes back. Of what was not synced each sector and each name is as it was
    /// or as it became, and a sector is sometimes half of each.
    pub fn crash(&self, chance: &mut fastrand::Rng) {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        for file in &mut state.files {
            file.crash(chance);
        }
        let mut names = std::mem::take(&mut state.synced_names);
        for change in state.unsynced_names.drain(..) {
            if chance.bool() {
                change.apply(&mut names);
            }
        }
        state.names = names.clone();
        state.synced_names = names;
        state.dies_at = None;
        state.fails_sync_at = None;
    }
}

impl fmt::Debug for FaultDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.borrow().names.keys()).finish()
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, file) => {
                names.insert(name, file);
            }
            // It is this file that gets the name, whatever became of earlier changes.
            Self::Renamed(from, to, file) => {
                if names.get(&from) == Some(&file) {
                    names.remove(&from);
                }
                names.insert(to, file);
            }
            Self::Removed(name) => {
                names.remove(&name);
            }
        }
    }
}

impl Contents {
    fn crash(&mut self, chance: &mut fastrand::Rng) {
        let mut after = self.synced.clone();
        if chance.bool() {
            after.resize(self.now.len(), 0);
        }
        self.unsynced.append(&mut self.dropped);
        for sector in std::mem::take(&mut self.unsynced) {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(after.len()).min(self.now.len());
            let survives = match chance.u8(..5) {
                0 | 1 => 0,
                2 | 3 => SECTOR_BYTES,
                _ => chance.usize(..SECTOR_BYTES),
            };
            let end = end.min(start + survives);
            if start < end {
                after[start..end].copy_from_slice(&self.now[start..end]);
            }
        }
        self.now.clone_from(&after);
        self.synced = after;
    }

    fn sync(&mut self) {
        self.synced.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.unsynced) {
            let end = ((sector + 1) * SECTOR_BYTES).min(self.now.len());
            let start = (sector * SECTOR_BYTES).min(end);
            self.synced[start..end].copy_from_slice(&self.now[start..end]);
        }
    }

    fn fail_sync(&mut self) {
        self.dropped.append(&mut self.unsynced);
    }

    fn forget_dropped(&mut self) {
        for sector in std::mem::take(&mut self.dropped) {
            let start = sector * SECTOR_BYTES;
            for at in start..self.now.len().min(start + SECTOR_BYTES) {
                self.now[at] = self.synced.get(at).copied().unwrap_or(0);
            }
        }
    }

    fn truncate(&mut self, len: usize) {
        // What was there is not to come back if the file grows again.
        let sectors = len / SECTOR_BYTES..self.now.len().div_ceil(SECTOR_BYTES);
        self.unsynced.extend(sectors);
        self.now.truncate(len);
    }

    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            let sectors = offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES;
            self.dropped.retain(|sector| !sectors.contains(sector));
            self.unsynced.extend(sectors);
        }
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        let files: BTreeSet<usize> = self.names.values().copied().collect();
        files
            .iter()
            .map(|&it| self.files[it].now.len() as u64)
            .sum()
    }

    /// Counts a step. False: the power goes during this one.
    fn step(&mut self) -> io::Result<bool> {
        self.steps += 1;
        match self.dies_at {
            Some(at) if self.steps > at => Err(gone()),
            Some(at) => Ok(self.steps < at),
            None => Ok(true),
        }
    }

    /// Whether this sync is the one that fails.
    fn sync_fails(&mut self) -> bool {
        let steps = self.steps;
        let fails = self.fails_sync_at.take_if(|at| steps >= *at);
        fails.is_some()
    }

    fn has_room(&self, more: u64) -> io::Result<()> {
        match self.capacity_bytes {
            Some(capacity) if more > 0 && self.used_bytes() + more > capacity => {
                Err(Errno::NOSPC.into())
            }
            _ => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        let lives = self.step()?;
        change.clone().apply(&mut self.names);
        self.unsynced_names.push(change);
        if lives { Ok(()) } else { Err(gone()) }
    }

    fn file(&self, name: &str) -> io::Result<usize> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| Errno::NOENT.into())
    }
}

fn gone() -> io::Error {
    io::Error::other("the power is gone")
}

impl Disk for FaultDisk {
    type File = FaultFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<FaultFile> {
        let mut state = self.0.borrow_mut();
        let known = state.names.get(name).copied();
        let file = known.unwrap_or(state.files.len());
        if known.is_some() {
            // The name stays with the file it has, which becomes empty.
            let lives = state.step()?;
            state.files[file].truncate(0);
            if !lives {
                return Err(gone());
            }
        } else {
            state.files.push(Contents::default());
            state.change_name(NameChange::Set(name.to_owned(), file))?;
        }
        let state = Rc::clone(&self.0);
        Ok(FaultFile { state, file })
    }

    fn open(&self, name: &str) -> io::Result<FaultFile> {
        let file = self.0.borrow().file(name)?;
        let state = Rc::clone(&self.0);
        Ok(FaultFile { state, file })
    }

    fn look_at(&self, name: &str) -> io::Result<FaultFile> {
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let file = state.file(from)?;
        state.change_name(NameChange::Renamed(from.to_owned(), to.to_owned(), file))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let file = state.file(from)?;
        state.change_name(NameChange::Set(to.to_owned(), file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.file(name)?;
        state.change_name(NameChange::Removed(name.to_owned()))
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if !state.step()? {
            return Err(gone());
        }
        if state.sync_fails() {
            return Err(Errno::IO.into());
        }
        state.unsynced_names.clear();
        state.synced_names = state.names.clone();
        Ok(())
    }

    fn check_name(&self, name: &str, file: &FaultFile) -> io::Result<()> {
        match self.0.borrow().file(name)? == file.file {
            true => Ok(()),
            false => Err(io::Error::other("the file was replaced")),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.0.borrow();
        let capacity = state.capacity_bytes.unwrap_or(u64::MAX);
        Ok(capacity.saturating_sub(state.used_bytes()))
    }
}

/// A file of a [`FaultDisk`].
pub struct FaultFile {
    state: Rc<RefCell<State>>,
    file: usize,
}

impl fmt::Debug for FaultFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.file)
    }
}

impl DiskFile for FaultFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.borrow().files[self.file].now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state.borrow();
        let there = &state.files[self.file].now;
        let there = there.get(offset as usize..).unwrap_or_default();
        let got = there.len().min(bytes.len());
        bytes[..got].copy_from_slice(&there[..got]);
        Ok(got)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let lives = state.step()?;
        let len = state.files[self.file].now.len() as u64;
        state.has_room((offset + bytes.len() as u64).saturating_sub(len))?;
        state.files[self.file].write(bytes, offset as usize);
        if lives { Ok(()) } else { Err(gone()) }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let lives = state.step()?;
        let before = state.files[self.file].now.len() as u64;
        state.has_room(len.saturating_sub(before))?;
        if len > before {
            state.files[self.file].now.resize(len as usize, 0);
        }
        if lives { Ok(()) } else { Err(gone()) }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let lives = state.step()?;
        state.files[self.file].truncate(len as usize);
        if lives { Ok(()) } else { Err(gone()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        if !state.step()? {
            return Err(gone());
        }
        if state.sync_fails() {
            state.files[self.file].fail_sync();
            return Err(Errno::IO.into());
        }
        state.files[self.file].sync();
        Ok(())
    }
}

//! A disk in memory that never fails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use latchd::store::{Disk, DiskFile};

/// The content of one file, which has any number of names.
#[derive(Clone, Debug, Default)]
pub struct Content(Rc<RefCell<Vec<u8>>>);

/// A directory. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Memory(Rc<RefCell<BTreeMap<String, Content>>>);

impl Memory {
    /// A directory with these files.
    pub fn of(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let content = |bytes: &Vec<u8>| Content(Rc::new(RefCell::new(bytes.clone())));
        let files = files
            .iter()
            .map(|(name, bytes)| (name.clone(), content(bytes)));
        Self(Rc::new(RefCell::new(files.collect())))
    }

    /// All files as they are now.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.0.borrow();
        let files = files
            .iter()
            .map(|(name, content)| (name.clone(), content.0.borrow().clone()));
        files.collect()
    }
}

impl Disk for Memory {
    type File = Content;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Content> {
        let content = Content::default();
        self.0.borrow_mut().insert(name.to_owned(), content.clone());
        Ok(content)
    }

    fn open(&self, name: &str) -> io::Result<Content> {
        self.0
            .borrow()
            .get(name)
            .cloned()
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn look_at(&self, name: &str) -> io::Result<Content> {
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let content = self.open(from)?;
        let mut files = self.0.borrow_mut();
        files.remove(from);
        files.insert(to.to_owned(), content);
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let content = self.open(from)?;
        assert!(!self.0.borrow().contains_key(to), "{to} is there");
        self.0.borrow_mut().insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.0.borrow_mut().remove(name);
        removed.map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn check_name(&self, name: &str, file: &Content) -> io::Result<()> {
        assert!(
            Rc::ptr_eq(&self.open(name)?.0, &file.0),
            "{name} is another file"
        );
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }
}

impl DiskFile for Content {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.0.borrow();
        let rest = content.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(bytes.len());
        bytes[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (start, mut content) = (offset as usize, self.0.borrow_mut());
        let end = start + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        let len = content.len().max(len as usize);
        content.resize(len, 0);
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(len as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

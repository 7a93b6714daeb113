//! Reading one file: its header, its frames in order, and what can be found behind damage.
//!
//! Never writes, and never holds more of a file than a window and one frame.

use std::io;
use std::ops::RangeInclusive;

use memchr::memmem;

use super::disk::{Disk, DiskFile};
use super::entry::Entry;
use super::format::{
    BadHeader, FRAME_BYTES_MIN, Frame, HEADER_BYTES, Header, KIND_MARK, Life, MARK_BYTES,
};

/// How much is read at a time.
const WINDOW_BYTES: usize = 1 << 18;

/// What comes next in a file.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// A frame, where it begins and what it says.
    Frame(u64, Frame<'a>, Entry<'a>),
    /// Nothing comes but zeros.
    End,
    /// Something that is not a frame, and why not.
    Bad(&'static str),
}

/// The frames of a file, one after the other.
pub(super) struct Frames<F> {
    file: F,
    header: Header,
    len: u64,
    window: Vec<u8>,
    /// Where the window begins in the file.
    window_at: u64,
    /// Where the next frame begins.
    offset: u64,
}

impl<F: DiskFile> Frames<F> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The outer one is the disk's, the inner one says what is wrong with the header.
    pub(super) fn open<D: Disk<File = F>>(
        disk: &D,
        name: &str,
    ) -> io::Result<Result<Self, BadHeader>> {
        let file = disk.look_at(name)?;
        let len = file.len()?;
        let mut bytes = [0; HEADER_BYTES];
        let got = read_full(&file, &mut bytes, 0)?;
        Ok(Header::decode(&bytes[..got]).map(|header| Self::behind(file, len, header)))
    }

    /// The same for a file whose header cannot be read; it is said what it was.
    pub(super) fn open_without_header<D: Disk<File = F>>(
        disk: &D,
        name: &str,
        header: Header,
    ) -> io::Result<Self> {
        let file = disk.look_at(name)?;
        let len = file.len()?;
        Ok(Self::behind(file, len, header))
    }

    /// The salt of a file whose header is damaged: the one with which its first two frames are right,
    /// or the one in the header if any frame is right with it.
    pub(super) fn find_salt<D: Disk<File = F>>(
        disk: &D,
        name: &str,
        header: Header,
    ) -> io::Result<Option<u32>> {
        let with = |salt| {
            let life = Life {
                salt,
                ..header.life
            };
            Self::open_without_header(disk, name, Header { life, ..header })
        };
        let mut frames = with(0)?;
        let length = frames.bytes(FRAME_BYTES_MIN)?;
        let length = (length.len() == FRAME_BYTES_MIN).then(|| Frame::length(length));
        if let Some(length) = length.flatten() {
            let salt = match frames.bytes(length)? {
                first if first.len() == length => Frame::salt_of(first),
                _ => 0,
            };
            let mut frames = with(salt)?;
            if (0..2).all(|_| matches!(frames.next(), Ok(Next::Frame(..)))) {
                return Ok(Some(salt));
            }
        }
        let mut bytes = [0; HEADER_BYTES];
        read_full(&frames.file, &mut bytes, 0)?;
        let salt = Header::salt_in(&bytes);
        let mut frames = with(salt)?;
        let is_right =
            matches!(frames.next()?, Next::Frame(..)) || frames.skip_damage(&(0..=u64::MAX))?;
        Ok(is_right.then_some(salt))
    }

    fn behind(file: F, len: u64, header: Header) -> Self {
        Self {
            file,
            header,
            len,
            window: Vec::new(),
            window_at: HEADER_BYTES as u64,
            offset: HEADER_BYTES as u64,
        }
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Where the next frame begins, or would.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes back to a place that was passed.
    pub(super) fn go_to(&mut self, offset: u64) {
        if offset < self.window_at {
            self.window.clear();
            self.window_at = offset;
        }
        self.offset = offset;
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The next frame. After one that is bad the same is returned again.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        let head = self.bytes(FRAME_BYTES_MIN)?;
        if head.iter().all(|&byte| byte == 0) {
            let is_end = self.is_zero_from_here()?;
            return Ok(if is_end {
                Next::End
            } else {
                Next::Bad("there are bytes behind the end")
            });
        }
        if head.len() < FRAME_BYTES_MIN {
            return Ok(Next::Bad("the file ends within a record"));
        }
        let Some(length) = Frame::length(head) else {
            return Ok(Next::Bad("no record has this length"));
        };
        let (salt, at) = (self.header.life.salt, self.offset);
        if self.bytes(length)?.len() < length {
            return Ok(Next::Bad("the file ends within a record"));
        }
        let start = (at - self.window_at) as usize;
        let Some(frame) = Frame::decode(&self.window[start..start + length], salt) else {
            return Ok(Next::Bad("the checksum is wrong"));
        };
        let Some(entry) = frame.entry() else {
            return Ok(Next::Bad("there is no such record"));
        };
        self.offset += length as u64;
        Ok(Next::Frame(at, frame, entry))
    }

    /// Goes on at the next frame behind the present place, wherever that is. False if there is none
    /// up to the end of the file.
    ///
    /// Only frames with a number in this range are looked for: nearly all places are ruled out by
    /// it, without a checksum.
    pub(super) fn skip_damage(&mut self, numbers: &RangeInclusive<u64>) -> io::Result<bool> {
        loop {
            self.offset += 1;
            let head = self.bytes(FRAME_BYTES_MIN)?;
            if head.len() < FRAME_BYTES_MIN {
                return Ok(false);
            }
            if Frame::length(head).is_none() || !numbers.contains(&Frame::number_in(head)) {
                continue;
            }
            let offset = self.offset;
            let is_frame = matches!(self.next()?, Next::Frame(..));
            self.offset = offset;
            if is_frame {
                return Ok(true);
            }
        }
    }

    /// Whether a mark from the present place on says that this number was on the disk.
    pub(super) fn proves(&mut self, number: u64) -> io::Result<bool> {
        let needle = (MARK_BYTES as u32).to_le_bytes();
        let finder = memmem::Finder::new(&needle);
        let mut at = self.offset;
        let mut window = vec![0; WINDOW_BYTES];
        while at < self.len {
            let got = read_full(&self.file, &mut window, at)?;
            if got < MARK_BYTES {
                return Ok(false);
            }
            // The length stands behind the checksum.
            for length_at in finder.find_iter(&window[..got]) {
                let Some(start) = length_at.checked_sub(4) else {
                    continue;
                };
                let Some(bytes) = window[..got].get(start..start + MARK_BYTES) else {
                    break;
                };
                if bytes[16] != KIND_MARK {
                    continue;
                }
                let entry = Frame::decode(bytes, self.header.life.salt).and_then(|it| it.entry());
                if matches!(entry, Some(Entry::Mark { durable }) if durable >= number) {
                    return Ok(true);
                }
            }
            // So far that a mark on the border is found in one of the two windows.
            at += (got - MARK_BYTES + 1) as u64;
        }
        Ok(false)
    }

    /// Up to so many bytes from the present place on; fewer only at the end of the file.
    fn bytes(&mut self, wanted: usize) -> io::Result<&[u8]> {
        let mut start = (self.offset - self.window_at) as usize;
        if self.window.len() < start + wanted {
            let ahead = (self.len.saturating_sub(self.offset)) as usize;
            let wanted = wanted.max(WINDOW_BYTES).min(ahead);
            self.window.drain(..start.min(self.window.len()));
            self.window_at = self.offset;
            start = 0;
            let have = self.window.len();
            if have < wanted {
                self.window.resize(wanted, 0);
                let at = self.offset + have as u64;
                let got = read_full(&self.file, &mut self.window[have..], at)?;
                self.window.truncate(have + got);
            }
        }
        let end = self.window.len().min(start + wanted);
        Ok(&self.window[start..end])
    }

    /// Where the last byte ends that is not zero, from the present place on.
    pub(super) fn end_of_bytes(&self) -> io::Result<u64> {
        let mut window = vec![0; WINDOW_BYTES];
        let (mut at, mut end) = (self.offset, self.offset);
        while at < self.len {
            let got = read_full(&self.file, &mut window, at)?;
            if let Some(last) = window[..got].iter().rposition(|&byte| byte != 0) {
                end = at + last as u64 + 1;
            }
            if got == 0 {
                break;
            }
            at += got as u64;
        }
        Ok(end)
    }

    fn is_zero_from_here(&self) -> io::Result<bool> {
        Ok(self.end_of_bytes()? == self.offset)
    }
}

/// Reads as much as fits, less only at the end of the file.
pub(super) fn read_full(file: &impl DiskFile, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64)? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

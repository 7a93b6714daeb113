//! Where decoded text goes: a buffer that is as long as it has to be before the first piece is taken.
//!
//! Pieces live as long as the buffer, and others can be taken meanwhile. What needs no decoding is
//! never put here.

use std::mem;

/// What is left of the buffer.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    room: &'a mut [u8],
    /// How much decoding that took: escapes, and bytes that were no characters.
    pub(super) looks: usize,
}

impl<'a> Arena<'a> {
    /// Room for so many bytes. The buffer keeps its memory for the next request.
    pub(super) fn new(scratch: &'a mut Vec<u8>, bytes: usize) -> Self {
        scratch.clear();
        scratch.resize(bytes, 0);
        Self {
            room: scratch,
            looks: 0,
        }
    }

    /// The next piece: what `write` has put into the room, and says the length of. Nothing is taken
    /// if it says none.
    pub(super) fn piece(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<&'a [u8]> {
        let length = write(self.room)?;
        let (piece, rest) = mem::take(&mut self.room).split_at_mut(length);
        self.room = rest;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_while_others_are_taken() {
        let mut scratch = vec![b'x'; 100];
        let mut arena = Arena::new(&mut scratch, 5);
        let copy = |text: &'static [u8]| {
            move |room: &mut [u8]| {
                room[..text.len()].copy_from_slice(text);
                Some(text.len())
            }
        };
        let first = arena.piece(copy(b"abc")).unwrap();
        assert_eq!(arena.piece(|_| None), None);
        let second = arena.piece(copy(b"de")).unwrap();
        assert_eq!((first, second), (&b"abc"[..], &b"de"[..]));
    }
}

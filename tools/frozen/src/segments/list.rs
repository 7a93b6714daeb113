//! A short list inside its node, so that no search follows a pointer to reach it.

use std::mem;
use std::ops::{Deref, DerefMut};

/// Up to `N` entries. Behind the last one there are entries that mean nothing.
pub(super) struct List<T, const N: usize> {
    len: usize,
    entries: [T; N],
}

impl<T: Default, const N: usize> List<T, N> {
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            entries: std::array::from_fn(|_| T::default()),
        }
    }

    /// Puts an entry before the one that is at this place. The caller knows that there is room.
    pub(super) fn insert(&mut self, at: usize, entry: T) {
        self.entries[at..=self.len].rotate_right(1);
        self.entries[at] = entry;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) -> T {
        let entry = mem::take(&mut self.entries[at]);
        self.entries[at..self.len].rotate_left(1);
        self.len -= 1;
        entry
    }

    /// Moves all entries but the first `keep` to the front of `right`.
    pub(super) fn move_to_front_of(&mut self, right: &mut Self, keep: usize) {
        let count = self.len - keep;
        right.entries[..right.len + count].rotate_right(count);
        right.entries[..count].swap_with_slice(&mut self.entries[keep..self.len]);
        right.len += count;
        self.len = keep;
    }

    /// Moves the first `count` entries to the end of `left`.
    pub(super) fn move_to_end_of(&mut self, left: &mut Self, count: usize) {
        let end = left.len + count;
        left.entries[left.len..end].swap_with_slice(&mut self.entries[..count]);
        self.entries[..self.len].rotate_left(count);
        left.len = end;
        self.len -= count;
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.entries[..self.len]
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.entries[..self.len]
    }
}

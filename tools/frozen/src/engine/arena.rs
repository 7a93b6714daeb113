//! A slab indexed by `u32` ([`Arena`]), and linked lists through it ([`Chain`]).
//!
//! Every list in the lock table is a [`Chain`]: the holders of a key, its waiters, the holds of an
//! owner, the idle keys. The links are inside the entries, so that to join and to leave, also from
//! the middle, costs the same whether the chain has one entry or a million, and allocates nothing.
//! This file decides nothing: the order and the meaning of a chain are the caller's.

use std::mem;
use std::ops::{Index, IndexMut};

use crate::memory;

/// The index of no entry.
pub(super) const NONE: u32 = u32::MAX;

/// Most slots an empty arena keeps.
const KEPT_MAX: usize = 1024;

/// Most slots given back in one call: about a megabyte, which takes a tenth of a millisecond.
const TIDIED_MAX: usize = 16 * 1024;

/// A slab whose keys are `u32`, so that every link has half the size. Unlike the crate `slab` it
/// gives the memory of many removed entries back bit by bit: a million grants are 56 megabytes, and
/// to unmap those at once would stop the loop for five milliseconds.
///
/// It is one vector because many small ones would cost a quarter more instructions per request.
/// Growing it does not stop the loop, because the system moves pages and copies nothing.
pub(super) struct Arena<T> {
    slots: Vec<Slot<T>>,
    /// The slot that became vacant last, or `NONE`.
    vacant: u32,
    len: usize,
    /// What the entries have on the heap, all together.
    heap_bytes: usize,
    /// An earlier `slots`, all vacant, whose memory is being given back.
    retired: Vec<Slot<T>>,
}

pub(super) enum Slot<T> {
    /// With the next vacant slot, or `NONE`.
    Vacant(u32),
    Taken(T),
}

/// What can be kept in an arena.
pub(super) trait Stored {
    /// How much memory it takes besides its slot, with the allocator's share. It changes only in
    /// [`Arena::change`].
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl<T: Stored> Arena<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: NONE,
            len: 0,
            heap_bytes: 0,
            retired: Vec::new(),
        }
    }

    /// The index that the next insertion will get.
    pub(super) fn next_index(&self) -> u32 {
        match self.vacant {
            NONE => self.slots.len() as u32,
            vacant => vacant,
        }
    }

    #[inline(always)] // with every grant
    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        self.heap_bytes += value.heap_bytes();
        let index = self.vacant;
        if index == NONE {
            let index = self.slots.len();
            assert!(index < NONE as usize, "more than 2^32 - 1 entries");
            if index == self.slots.capacity() {
                memory::grow(&mut self.slots);
            }
            self.slots.push(Slot::Taken(value));
            return index as u32;
        }
        let slot = &mut self.slots[index as usize];
        let Slot::Vacant(next) = *slot else {
            misused_slot(index);
        };
        *slot = Slot::Taken(value);
        self.vacant = next;
        index
    }

    pub(super) fn remove(&mut self, index: u32) -> T {
        let slot = &mut self.slots[index as usize];
        let Slot::Taken(gone) = mem::replace(slot, Slot::Vacant(self.vacant)) else {
            misused_slot(index);
        };
        self.vacant = index;
        self.len -= 1;
        self.heap_bytes -= gone.heap_bytes();
        if self.len <= 1 && self.slots.capacity() > KEPT_MAX {
            self.move_out();
        }
        gone
    }

    /// Leaves the vacant slots to [`Arena::tidy`], once no entry is left but perhaps number 0. An
    /// entry keeps its number, so it cannot move; only number 0 can, to be number 0 again. Any other
    /// last entry keeps all of the memory until it is removed too.
    fn move_out(&mut self) {
        if self.len == 1 && matches!(self.slots[0], Slot::Vacant(_)) {
            return;
        }
        let earlier = mem::replace(&mut self.retired, mem::take(&mut self.slots));
        self.vacant = NONE;
        if self.len == 1 {
            let first = mem::replace(&mut self.retired[0], Slot::Vacant(NONE));
            self.slots.push(first);
        }
        // If some is still being given back, the smaller one of the two is freed at once, the
        // larger one bit by bit.
        if earlier.len() > self.retired.len() {
            self.retired = earlier;
        }
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more. Called
    /// for every arena in every turn, so it must cost nothing if there is nothing to do.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.retired.capacity() > 0 && self.tidy_some()
    }

    #[cold]
    fn tidy_some(&mut self) -> bool {
        let rest = self.retired.len().saturating_sub(TIDIED_MAX);
        self.retired.truncate(rest);
        self.retired.shrink_to_fit();
        self.retired.capacity() > 0
    }

    /// Changes an entry so that it may take more memory than before, or less.
    #[inline(always)]
    pub(super) fn change<R>(&mut self, index: u32, change: impl FnOnce(&mut T) -> R) -> R {
        let entry = &mut self[index];
        let before = entry.heap_bytes();
        let result = change(entry);
        let after = entry.heap_bytes();
        self.heap_bytes = self.heap_bytes - before + after;
        result
    }

    /// What one entry takes, without what it has on the heap.
    pub(super) const ENTRY_BYTES: usize = size_of::<Slot<T>>();

    /// How much memory it takes: its slots, vacant ones too, and what its entries have on the heap.
    pub(super) fn memory(&self) -> usize {
        let slots = self.slots.capacity() + self.retired.capacity();
        slots * size_of::<Slot<T>>() + self.heap_bytes
    }

    /// Whether the next insertion takes no more memory, but for what the entry has on the heap.
    pub(super) fn has_vacancy(&self) -> bool {
        self.vacant != NONE || self.slots.len() < self.slots.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks what is counted against the entries themselves; for tests and the simulator.
    pub(super) fn check(&self) {
        let heap_bytes: usize = self.iter().map(|(_, it)| it.heap_bytes()).sum();
        assert_eq!(self.heap_bytes, heap_bytes, "an entry changed unnoticed");
    }

    /// The entry, unless it was removed; another may have its index by then.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.slots.get(index as usize) {
            Some(Slot::Taken(value)) => Some(value),
            Some(Slot::Vacant(_)) | None => None,
        }
    }

    /// Every slot from this one on, with its entry if there is one.
    pub(super) fn slots_from(&self, slot: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        let slots = self.slots.get(slot as usize..).unwrap_or_default();
        // In this order, because the number behind the last slot may be too large for a `u32`.
        slots.iter().zip(slot..).map(|(it, index)| match it {
            Slot::Taken(value) => (index, Some(value)),
            Slot::Vacant(_) => (index, None),
        })
    }

    /// In the order of indices, which depends on the calls before, never on chance.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| match slot {
                Slot::Taken(value) => Some((index, value)),
                Slot::Vacant(_) => None,
            })
    }
}

/// An index was used after its entry was removed. That is a bug, and to go on would be worse than
/// to stop.
#[cold]
#[inline(never)]
fn misused_slot(index: u32) -> ! {
    panic!("slot {index} has the wrong state: an index was used after its entry was removed")
}

impl<T: Stored> Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        match &self.slots[index as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => misused_slot(index),
        }
    }
}

impl<T: Stored> IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.slots[index as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => misused_slot(index),
        }
    }
}

/// An entry's neighbours in one chain. An entry in two chains has two links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    pub(super) const OUT: Self = Self {
        prev: NONE,
        next: NONE,
    };

    pub(super) fn prev(self) -> Option<u32> {
        (self.prev != NONE).then_some(self.prev)
    }

    pub(super) fn next(self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }
}

/// Entries that can be in the chain named by `C`.
pub(super) trait Linked<C>: Stored {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// A doubly linked list through an arena, in the order of joining.
///
/// `C` names the chain, so that a holder's position among a key's holders cannot be mistaken for
/// its position among an owner's holds.
#[derive(Debug)]
pub(super) struct Chain<C> {
    head: u32,
    tail: u32,
    len: u32,
    name: std::marker::PhantomData<C>,
}

impl<C> Default for Chain<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Chain<C> {
    pub(super) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
            name: std::marker::PhantomData,
        }
    }

    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push_back<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) {
        *arena[index].link_mut() = self.append(arena, index);
    }

    /// The same for an entry that is inserted next, with this index, and with the link that is returned.
    /// So it is not looked up again, nor written twice.
    #[inline(always)] // every grant does it twice
    pub(super) fn append<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) -> Link {
        let prev = self.tail;
        match prev {
            NONE => self.head = index,
            tail => arena[tail].link_mut().next = index,
        }
        self.tail = index;
        self.len += 1;
        Link { prev, next: NONE }
    }

    #[inline(always)]
    pub(super) fn unlink<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) {
        let link = arena[index].link();
        self.cut(arena, link);
        *arena[index].link_mut() = Link::OUT;
    }

    /// The same for an entry with this link that is removed next: its own link is left as it is.
    #[inline(always)] // every release does it twice
    pub(super) fn cut<T: Linked<C>>(&mut self, arena: &mut Arena<T>, link: Link) {
        let Link { prev, next } = link;
        match prev {
            NONE => self.head = next,
            prev => arena[prev].link_mut().next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => arena[next].link_mut().prev = prev,
        }
        self.len -= 1;
    }

    /// From head to tail.
    pub(super) fn iter<'a, T: Linked<C>>(
        &self,
        arena: &'a Arena<T>,
    ) -> impl Iterator<Item = u32> + use<'a, T, C> {
        std::iter::successors(self.head(), |&index| arena[index].link().next())
    }
}

/// A chain without ends: entries that take turns, and whose turn it is. It is a third of the size
/// of a [`Chain`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<C> {
    turn: u32,
    name: std::marker::PhantomData<C>,
}

impl<C> Ring<C> {
    pub(super) const fn new() -> Self {
        Self {
            turn: NONE,
            name: std::marker::PhantomData,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turn == NONE
    }

    /// Joins as the last whose turn comes.
    pub(super) fn push_back<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) {
        if self.turn == NONE {
            self.turn = index;
            *arena[index].link_mut() = Link {
                prev: index,
                next: index,
            };
            return;
        }
        let (prev, next) = (arena[self.turn].link().prev, self.turn);
        *arena[index].link_mut() = Link { prev, next };
        arena[prev].link_mut().next = index;
        arena[next].link_mut().prev = index;
    }

    /// If it is the entry's turn, it becomes the next one's.
    pub(super) fn unlink<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) {
        let Link { prev, next } = arena[index].link();
        arena[prev].link_mut().next = next;
        arena[next].link_mut().prev = prev;
        if self.turn == index {
            self.turn = if next == index { NONE } else { next };
        }
        *arena[index].link_mut() = Link::OUT;
    }

    /// Makes it this entry's turn.
    pub(super) fn turn_to(&mut self, index: u32) {
        self.turn = index;
    }

    /// The entry whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        (self.turn != NONE).then_some(self.turn)
    }

    /// The entry whose turn comes after this one's, if it does before it is the first one's again.
    pub(super) fn behind<T: Linked<C>>(&self, arena: &Arena<T>, index: u32) -> Option<u32> {
        let next = arena[index].link().next;
        (next != self.turn).then_some(next)
    }
}

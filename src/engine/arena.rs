//! Things that refer to each other by number: a slab indexed by `u32`, and chains through it.
//!
//! Every list in the lock table is a [`Chain`]: who holds a key, who waits for it, what a client
//! owns, which keys are idle. The links sit inside the things themselves, so that joining and
//! leaving, also from the middle, costs the same whether one or a million are in the chain, and
//! allocates nothing. Never owns a policy: order and meaning belong to the caller.

use std::mem;
use std::ops::{Index, IndexMut};

/// The number that refers to nothing.
pub(super) const NONE: u32 = u32::MAX;

/// Most slots an empty arena keeps.
const KEPT_MAX: usize = 1024;

/// Most slots given back at one go: about a megabyte, a tenth of a millisecond.
const TIDIED_MAX: usize = 16 * 1024;

/// A slab whose keys are `u32`: half the size in every link. Unlike the crate of that name it gives
/// the memory of a crowd back bit by bit: a million grants are 56 megabytes, and to unmap those is a
/// stop of five milliseconds.
///
/// One vector, not many small ones: those would cost a quarter more instructions per request, and
/// growing is no stop, since the system moves pages and copies nothing.
pub(super) struct Arena<T> {
    slots: Vec<Slot<T>>,
    /// The slot that became vacant last, or `NONE`.
    vacant: u32,
    len: usize,
    /// Where a crowd was that has left: nothing but vacant slots.
    retired: Vec<Slot<T>>,
}

pub(super) enum Slot<T> {
    /// And the next such slot, or `NONE`.
    Vacant(u32),
    Taken(T),
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: NONE,
            len: 0,
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

    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let index = self.vacant;
        if index == NONE {
            let index = self.slots.len();
            assert!(index < NONE as usize, "more than 2^32 - 1 of one thing");
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
        if self.len <= 1 && self.slots.capacity() > KEPT_MAX {
            self.move_out();
        }
        gone
    }

    /// The crowd has left: what it leaves behind is for [`Arena::tidy`]. Nothing can be moved but for
    /// the one that came first, under its number 0: the root of a tree, which stays when all others
    /// have gone. Anybody else who stays keeps all of it, until it goes too.
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
        // Two crowds in short order: the smaller one's memory goes at once, the larger one's slowly.
        if earlier.len() > self.retired.len() {
            self.retired = earlier;
        }
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more. Asked in every
    /// turn of every arena, so to have nothing to do must cost nothing.
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

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// In the order of indices, which depends on history but never on chance.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| match slot {
                Slot::Taken(value) => Some((index, value)),
                Slot::Vacant(_) => None,
            })
    }
}

/// Somebody kept a number beyond its time: a bug, and worse to live with than to stop.
#[cold]
#[inline(never)]
fn misused_slot(index: u32) -> ! {
    panic!("slot {index} is not what it was thought to be")
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        match &self.slots[index as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => misused_slot(index),
        }
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.slots[index as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => misused_slot(index),
        }
    }
}

/// A thing's neighbours in one chain. A thing in two chains has two links.
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

/// Things that can stand in the chain named by `C`.
pub(super) trait Linked<C> {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// A doubly linked list through an arena, in the order of joining.
///
/// `C` names the chain, so that a holder's position among a key's holders cannot be mistaken for its
/// position among a client's.
#[derive(Debug)]
pub(super) struct Chain<C> {
    head: u32,
    tail: u32,
    len: u32,
    name: std::marker::PhantomData<C>,
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
        *arena[index].link_mut() = Link {
            prev: self.tail,
            next: NONE,
        };
        match self.tail {
            NONE => self.head = index,
            tail => arena[tail].link_mut().next = index,
        }
        self.tail = index;
        self.len += 1;
    }

    pub(super) fn unlink<T: Linked<C>>(&mut self, arena: &mut Arena<T>, index: u32) {
        let Link { prev, next } = arena[index].link();
        match prev {
            NONE => self.head = next,
            prev => arena[prev].link_mut().next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => arena[next].link_mut().prev = prev,
        }
        *arena[index].link_mut() = Link::OUT;
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    struct Awaiting;
    struct Bead(Link);

    impl Linked<Awaiting> for Bead {
        fn link(&self) -> Link {
            self.0
        }
        fn link_mut(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    #[test]
    fn an_arena_keeps_what_it_was_given_and_knows_the_next_index() {
        let mut arena = Arena::new();
        let mut model = BTreeMap::new();
        let mut chance = fastrand::Rng::with_seed(7);
        // A crowd, nobody, a few, a crowd again; with tidying in between.
        for target in [5_000, 0, 5, 2_000, 1, 3_000, 0] {
            while model.len() != target {
                let grows = model.len() < target;
                if model.is_empty() || chance.u8(..10) < if grows { 8 } else { 2 } {
                    let (value, expected) = (chance.u64(..), arena.next_index());
                    let index = arena.insert(value);
                    assert_eq!(index, expected);
                    assert_eq!(model.insert(index, value), None, "an index in use");
                } else {
                    let nth = chance.usize(..model.len().min(50));
                    let (&index, _) = model.iter().nth(nth).unwrap();
                    assert_eq!(Some(arena.remove(index)), model.remove(&index));
                }
                if chance.u8(..) == 0 {
                    arena.tidy();
                }
                assert_eq!(
                    (arena.len(), arena.is_empty()),
                    (model.len(), model.is_empty())
                );
            }
            let all: BTreeMap<u32, u64> = arena.iter().map(|(at, &value)| (at, value)).collect();
            assert_eq!(all, model);
            assert!(model.iter().all(|(&index, value)| arena[index] == *value));
        }
    }

    #[test]
    fn when_a_crowd_has_left_its_memory_is_given_back_bit_by_bit() {
        let mut arena = Arena::new();
        let root = arena.insert(0);
        for value in 1..100_000 {
            arena.insert(value);
        }
        for index in 1..100_000 {
            assert!(!arena.tidy(), "nobody has left");
            arena.remove(index);
        }
        assert_eq!(
            (arena.len(), arena[root]),
            (1, 0),
            "the first one is still there"
        );
        assert!(arena.slots.capacity() < KEPT_MAX);
        let mut before = arena.retired.capacity();
        assert!(before >= 100_000);
        while arena.tidy() {
            let after = arena.retired.capacity();
            // The first time the vector's spare room goes too, which was never touched.
            let spare = 131_072 - 100_000;
            assert!(
                (1..=TIDIED_MAX + spare).contains(&(before - after)),
                "{before} {after}"
            );
            before = after;
        }
        assert_eq!(arena.retired.capacity(), 0);
    }

    #[test]
    fn who_comes_while_it_is_tidied_is_not_swept_out() {
        let mut arena = Arena::new();
        let crowd: Vec<u32> = (0..50_000).map(|value| arena.insert(value)).collect();
        for index in crowd {
            arena.remove(index);
        }
        let late = arena.insert(7);
        while arena.tidy() {}
        assert_eq!(arena[late], 7);
        assert_eq!(arena.iter().count(), 1);
    }

    #[test]
    fn a_chain_keeps_the_order_of_joining_whoever_leaves() {
        let mut arena = Arena::new();
        let mut chain = Chain::<Awaiting>::new();
        let mut model = VecDeque::new();
        let mut chance = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            if model.is_empty() || chance.bool() {
                let index = arena.insert(Bead(Link::OUT));
                chain.push_back(&mut arena, index);
                model.push_back(index);
            } else {
                let index = model.remove(chance.usize(..model.len())).unwrap();
                chain.unlink(&mut arena, index);
                arena.remove(index);
            }
            assert_eq!(chain.len() as usize, model.len());
            assert_eq!(chain.head(), model.front().copied());
        }
        assert!(chain.iter(&arena).eq(model.iter().copied()));
    }
}

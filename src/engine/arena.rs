//! Things that refer to each other by number: a slab indexed by `u32`, and chains through it.
//!
//! Every list in the lock table is a [`Chain`]: who holds a key, who waits for it, what a client
//! owns, which keys are idle. The links sit inside the things themselves, so that joining and
//! leaving, also from the middle, costs the same whether one or a million are in the chain, and
//! allocates nothing. Never owns a policy: order and meaning belong to the caller.

use std::ops::{Index, IndexMut};

use slab::Slab;

/// The number that refers to nothing.
pub(super) const NONE: u32 = u32::MAX;

/// Most places an empty arena keeps.
const KEPT_MAX: usize = 1024;

/// A slab whose keys are `u32`: half the size in every link.
pub(super) struct Arena<T>(Slab<T>);

impl<T> Arena<T> {
    pub(super) fn new() -> Self {
        Self(Slab::new())
    }

    /// The index that the next insertion will get.
    pub(super) fn next_index(&self) -> u32 {
        self.0.vacant_key() as u32
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let index = self.0.insert(value);
        assert!(index < NONE as usize, "more than 2^32 - 1 of one thing");
        index as u32
    }

    pub(super) fn remove(&mut self, index: u32) -> T {
        let gone = self.0.remove(index as usize);
        self.shrink();
        gone
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of indices, which depends on history but never on chance.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().map(|(index, value)| (index as u32, value))
    }

    /// Gives memory back when a crowd has left, unless it is little: then it is kept for the next
    /// one. A slab cannot move what lives in it; the one survivor that is common, the root of a tree,
    /// was there first and is in nobody's way.
    fn shrink(&mut self) {
        if self.0.len() <= 1 && self.0.capacity() > KEPT_MAX {
            self.0.shrink_to_fit();
        }
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.0[index as usize]
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.0[index as usize]
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
/// `C` names the chain, so that a holder's place among a key's holders cannot be mistaken for its
/// place among a client's.
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
    use std::collections::VecDeque;

    use super::*;

    struct Line;
    struct Bead(Link);

    impl Linked<Line> for Bead {
        fn link(&self) -> Link {
            self.0
        }
        fn link_mut(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    #[test]
    fn a_chain_keeps_the_order_of_joining_whoever_leaves() {
        let mut arena = Arena::new();
        let mut chain = Chain::<Line>::new();
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

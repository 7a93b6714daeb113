//! An allocator that counts, on the thread that asks, so that each test has counts of its own:
//! every byte that is allocated and not freed, and how often something is allocated.

#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        note(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        note(size as isize - layout.size() as isize);
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

/// How often this thread has allocated something.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

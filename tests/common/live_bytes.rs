//! Counts every byte that is allocated and not freed, on the thread that asks: each test has a count
//! of its own.

#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize);
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

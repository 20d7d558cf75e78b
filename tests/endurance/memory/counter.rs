//! An allocator that counts allocated bytes.
#![allow(unsafe_code, reason = "there is no other way to be an allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// The allocated bytes of this thread, rounded like the allocator of the static binary rounds them.
pub(crate) fn held() -> usize {
    HELD.with(Cell::get)
}

/// The sizes of slots of musl's allocator, in units of 16 bytes. Larger slots follow the same pattern. Each slot has 4
/// bytes of overhead.
///
/// Source: musl 1.2, `src/malloc/mallocng`.
const SLOTS: [usize; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127];

fn slot(size: usize) -> usize {
    let units = (size + 4).div_ceil(16);
    SLOTS.into_iter().find(|slot| *slot >= units).unwrap_or(units) * 16
}

struct Counter;

#[global_allocator]
static COUNTER: Counter = Counter;

// SAFETY: every call goes to the system's allocator; counting neither allocates nor touches allocated memory.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.with(|held| held.set(held.get() + slot(layout.size())));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.with(|held| held.set(held.get().saturating_sub(slot(layout.size()))));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

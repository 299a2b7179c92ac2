//! A guest that never gives back the memory of what it has returned: the loop is in the function that the host calls after the
//! return.

use std::alloc::{GlobalAlloc, Layout, System};

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

/// Bytes of the text that is never given back; no other one has as many.
const BYTES: usize = 12_345;

struct Snare;

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Snare {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        while layout.size() == BYTES && layout.align() == 1 {
            std::hint::black_box(());
        }
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Snare = Snare;

struct Loops;

impl Runner for Loops {
    fn manifest() -> Manifest {
        Manifest::new("test", "post-return-loops").label("en", "Loops")
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Err(Failure::new("acme.kept", "x".repeat(BYTES)))
    }
}

agent_host_sdk::export!(Loops);

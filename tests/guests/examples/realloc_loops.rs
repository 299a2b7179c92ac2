//! A guest that never gives the host memory for the arguments of a call: the loop is before the code of its runner.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

/// True while the code of the guest runs: its own memory it does get.
static INSIDE: AtomicBool = AtomicBool::new(false);

struct Snare;

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Snare {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Text has no alignment; what the bindings themselves need before the code of the guest has.
        while layout.align() == 1 && !INSIDE.load(Relaxed) {
            std::hint::black_box(());
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Snare = Snare;

struct Loops;

impl Runner for Loops {
    fn manifest() -> Manifest {
        INSIDE.store(true, Relaxed);
        Manifest::new("test", "realloc-loops").label("en", "Loops")
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Loops);

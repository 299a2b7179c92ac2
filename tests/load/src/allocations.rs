//! The number and the size of this process's allocations.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use mimalloc::MiMalloc;

/// The allocator of the host, `mimalloc`, which counts on request. Otherwise it only reads one flag, so times are those of
/// the host.
pub(crate) struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Starts counting the allocations of all threads.
pub(crate) fn start() {
    COUNTS.store(true, Ordering::SeqCst);
}

/// Ends counting.
pub(crate) fn stop() {
    COUNTS.store(false, Ordering::SeqCst);
}

/// The count since the start of the process. A block that grows or shrinks counts again.
pub(crate) fn count() -> u64 {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// The bytes of these allocations. A block that grows or shrinks counts with its new size.
pub(crate) fn bytes() -> u64 {
    BYTES.load(Ordering::SeqCst)
}

fn note(size: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
    }
}

#[allow(unsafe_code, reason = "an allocator cannot be made otherwise; see SAFETY")]
// SAFETY: each method passes its arguments on to mimalloc as they are and gives what mimalloc gives, so mimalloc's own
// promises hold. Counting touches three atomics and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as for the whole.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as for the whole.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as for the whole.
        unsafe { MiMalloc.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as for the whole.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn allocations_in_between_are_counted() {
        let (before, bytes_before) = (super::count(), super::bytes());
        super::start();
        let boxes: Vec<_> = (0..100_u64).map(|number| std::hint::black_box(Box::new(number))).collect();
        super::stop();
        let (counted, bytes) = (super::count() - before, super::bytes() - bytes_before);
        // Other tests of this process may allocate meanwhile.
        assert!(counted >= 101, "{counted} allocations for {} boxes and their list", boxes.len());
        assert!(bytes >= 100 * 2 * 8, "{bytes} bytes for {} boxes and their list", boxes.len());
    }
}

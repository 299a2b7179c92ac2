//! The setting of the allocator, `mimalloc`: the time after which freed memory goes back to the system.
//!
//! A host under load frees and asks again: a merge of the ledger takes some megabytes each time. Memory that went back to the
//! system meanwhile is cleared by the kernel before it is used again, which was a tenth of the CPU of a run
//! (docs/PERFORMANCE.md). `MIMALLOC_PURGE_DELAY` in the environment, in ms, takes precedence.

use libmimalloc_sys::{mi_option_get, mi_option_set_default, mi_option_t};

/// `mi_option_purge_delay`, for which the binding has no name.
const PURGE_DELAY: mi_option_t = 15;
/// The default of mimalloc, by which the option is recognized.
const MIMALLOC_DELAY_MS: std::ffi::c_long = 1_000;
/// Several times the time between two merges of a busy ledger. After this time, an idle host has given its memory back.
const DELAY_MS: std::ffi::c_long = 10_000;

/// Keeps freed memory longer. A mimalloc with other options is left as it is.
#[allow(unsafe_code, reason = "options of the allocator have no safe binding; see SAFETY")]
pub(crate) fn keep_freed_memory() {
    // SAFETY: both functions take any number as an option, and read or write one integer of mimalloc.
    unsafe {
        if mi_option_get(PURGE_DELAY) == MIMALLOC_DELAY_MS {
            mi_option_set_default(PURGE_DELAY, DELAY_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "as for `keep_freed_memory`")]
    fn the_delay_of_mimalloc_is_replaced() {
        keep_freed_memory();
        // SAFETY: as for `keep_freed_memory`.
        let delay = unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay, DELAY_MS, "mimalloc has another number or default for `mi_option_purge_delay`");
    }
}

//! A boundary around redb: a damaged file can make it panic, and whoever opens or checks a ledger gets an error instead.
//!
//! redb reports most damage as errors, but promises that only for its check of all pages, which takes as long as reading the
//! file: an opening would take minutes. A panic within the boundary unwinds to it, prints nothing, and becomes the error. What
//! redb held is dropped on the way; redb writes nothing while a panic unwinds.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Once,
};

use crate::error::OpenError;

thread_local! {
    /// True while this thread is within the boundary.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Leaves the boundary, however its work ends.
struct Leave(bool);

impl Drop for Leave {
    fn drop(&mut self) {
        WITHIN.set(self.0);
    }
}

/// Silences the panics of threads within the boundary. Other panics go to the hook that was there before.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !WITHIN.try_with(Cell::get).unwrap_or(false) {
                before(info);
            }
        }));
    });
}

/// The text of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Does work with redb on this thread.
///
/// # Errors
/// The text of a panic of the work, in one line.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    silence();
    let _leave = Leave(WITHIN.replace(true));
    // What the work changes is not used after a panic: the callers give up the store.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = text(panic.as_ref()).split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = text.chars().take(200).collect();
        format!("its pages contradict each other ({short})")
    })
}

/// Opens or checks the ledger in a directory; a panic of redb is [`OpenError::Damaged`].
pub(crate) fn guard_open<T, E: From<OpenError>>(dir: &Path, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    guarded(work).unwrap_or_else(|reason| Err(OpenError::Damaged { dir: dir.to_owned(), reason }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_one_error_and_the_boundary_ends_with_it() {
        let error = guard_open::<(), OpenError>(Path::new("d"), || panic!("assertion `left == right`\n  left: 1")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("contradict each other (assertion `left == right` left: 1)") && text.contains("salvage"), "{text}");
        assert!(!WITHIN.get());
        let inner = guarded(|| {
            assert!(guarded(|| panic::panic_any(7)).is_err());
            WITHIN.get()
        });
        assert_eq!((inner, WITHIN.get()), (Ok(true), false));
    }
}

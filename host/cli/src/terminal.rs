//! Standard error as it is shared by lines of text and by bars of progress.

use std::sync::{
    LazyLock,
    atomic::{AtomicUsize, Ordering},
};

use indicatif::{MultiProgress, ProgressBar};

/// All bars and spinners of the process, at the bottom of the terminal.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// Number of bars and spinners that are shown.
static SHOWN: AtomicUsize = AtomicUsize::new(0);

/// Puts a bar onto the terminal.
pub(crate) fn show(bar: ProgressBar) -> ProgressBar {
    SHOWN.fetch_add(1, Ordering::AcqRel);
    BARS.add(bar)
}

/// Takes a bar that [`show`] gave off the terminal.
pub(crate) fn remove(bar: &ProgressBar) {
    BARS.remove(bar);
    SHOWN.fetch_sub(1, Ordering::AcqRel);
}

/// Writes to the terminal while no bar is on it, so that lines and bars do not mix.
pub(crate) fn suspend<T>(write: impl FnOnce() -> T) -> T {
    // Without bars, an error of the terminal is an error of `write` alone.
    if SHOWN.load(Ordering::Acquire) == 0 { write() } else { BARS.suspend(write) }
}

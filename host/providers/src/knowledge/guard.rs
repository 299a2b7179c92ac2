//! Work on hostile input, in a thread that may panic or never end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Stack of a parser's thread: parsers of nested formats recurse. Only the used part takes memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Number of threads that may hang: a thread cannot be stopped from outside. With this many, no further work is started.
const MAX_LOST: usize = 4;
static LOST: AtomicUsize = AtomicUsize::new(0);

/// The result of `work`, or why there is none: it panicked, or took longer than `limit`.
///
/// Work over its time limit continues in the background until it ends; its result is dropped.
pub(crate) fn run<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    if LOST.load(Ordering::Relaxed) >= MAX_LOST {
        return Err(format!("{MAX_LOST} files before it keep their readers busy without an end: start again without those"));
    }
    let (result, waiting) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("knowledge-reader".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let found = catch_unwind(AssertUnwindSafe(work));
            // The receiver gave up, and the thread has ended after all.
            if result.send(found).is_err() {
                LOST.fetch_sub(1, Ordering::Relaxed);
            }
        })
        .map_err(|error| format!("no thread can be started: {error}"))?;
    match waiting.recv_timeout(limit) {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => Err("it is corrupt: reading it failed in the middle".into()),
        Err(_) => {
            LOST.fetch_add(1, Ordering::Relaxed);
            Err(format!("reading it takes longer than {} s: it is corrupt or made to be so", limit.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_timeouts_of_parsers_are_errors() {
        let second = Duration::from_secs(60);
        assert_eq!(run(second, || Ok(1)), Ok(1));
        assert_eq!(run(second, || Err::<(), _>("no".into())), Err("no".into()));
        assert!(run(second, || -> Result<(), String> { panic!("corrupt") }).unwrap_err().contains("corrupt"));
        let (end, ends) = mpsc::channel::<()>();
        let slow = run(Duration::from_millis(10), move || {
            let _ = ends.recv();
            Ok(())
        });
        assert!(slow.unwrap_err().contains("longer"));
        drop(end);
    }
}

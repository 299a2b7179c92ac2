//! A boundary around redb: a damaged file can make it panic, and whoever opens or checks a ledger gets an error instead.
//!
//! redb reports most damage as errors, but promises that only for its check of all pages, which takes as long as reading the
//! file: an opening would take minutes. A panic within the boundary unwinds to it, prints nothing, and becomes the error. What
//! redb held is dropped on the way; redb writes nothing while a panic unwinds.
//!
//! A second panic while the first one unwinds (redb drops a transaction, which finds the same damage) would end the process.
//! [`guard_apart`] does its work on a thread of its own: the hook of the second panic gives the error to the caller and stops that
//! thread for good, with the file of redb open. The caller gives the ledger up, and usually the process ends soon after. Until then
//! the hook runs, so nobody can set another one: `panic::set_hook` and `panic::take_hook` would wait for ever.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Once, mpsc},
    thread,
};

use crate::error::OpenError;

/// Stack of the thread of [`guard_apart`]: as that of a main thread, on which redb was tried.
const STACK_BYTES: usize = 8 * 1024 * 1024;

thread_local! {
    /// True while this thread is within the boundary.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
    /// The text of the panic that unwinds within the innermost boundary.
    static UNWINDS: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The way of the text of that panic to the caller, where a second one follows. Only a thread of [`guard_apart`] has one.
    static REPORT: RefCell<Option<Report>> = const { RefCell::new(None) };
}

/// Gives a text to the caller.
type Report = Box<dyn FnOnce(String)>;

/// A message of a thread of [`guard_apart`].
enum Message<T> {
    Progress(f64),
    /// The result of the work, or the text of its panic.
    Done(Result<T, String>),
    /// The text of the first of two panics.
    Stopped(String),
}

/// Leaves the boundary, however its work ends.
struct Leave {
    within: bool,
    unwinds: Option<String>,
}

impl Leave {
    fn enter() -> Self {
        Self { within: WITHIN.replace(true), unwinds: UNWINDS.take() }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        WITHIN.set(self.within);
        UNWINDS.replace(self.unwinds.take());
    }
}

/// Silences the panics of threads within the boundary. Other panics go to the hook that was there before.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !WITHIN.try_with(Cell::get).unwrap_or(false) {
                return before(info);
            }
            let second = UNWINDS.try_with(|unwinds| {
                let mut unwinds = unwinds.borrow_mut();
                let first = unwinds.clone();
                unwinds.get_or_insert_with(|| one_line(text(info.payload())));
                first
            });
            if let Some(first) = second.ok().flatten() {
                stop(first);
            }
        }));
    });
}

/// Gives the text of the first panic to the caller and never returns, where somebody waits for it. Otherwise the process ends.
fn stop(first: String) {
    if let Ok(Some(report)) = REPORT.try_with(RefCell::take) {
        report(first);
        loop {
            thread::park();
        }
    }
}

/// The text of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

fn reason(short: &str) -> String {
    format!("its pages contradict each other ({short})")
}

/// Does work with redb on this thread.
///
/// # Errors
/// The text of a panic of the work, in one line.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    silence();
    let _leave = Leave::enter();
    // What the work changes is not used after a panic: the callers give up the store.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| reason(&one_line(text(panic.as_ref()))))
}

/// Opens or checks the ledger in a directory; a panic of redb is [`OpenError::Damaged`].
pub(crate) fn guard_open<T, E: From<OpenError>>(dir: &Path, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    guarded(work).unwrap_or_else(|reason| Err(OpenError::Damaged { dir: dir.to_owned(), reason }.into()))
}

/// As [`guard_open`], on a thread of its own, so that a second panic while the first one unwinds is the same error. The thread is
/// left behind then. `progress` is called on this thread.
pub(crate) fn guard_apart<T: Send + 'static, E: From<OpenError> + Send + 'static>(
    dir: &Path,
    mut progress: impl FnMut(f64),
    work: impl FnOnce(&mut dyn FnMut(f64)) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let (sender, messages) = mpsc::channel();
    let apart = move || {
        // The caller waits for one of these messages, and is there for all of them.
        let report = sender.clone();
        REPORT.replace(Some(Box::new(move |first| drop(report.send(Message::Stopped(first))))));
        let done = guarded(|| work(&mut |fraction| drop(sender.send(Message::Progress(fraction)))));
        REPORT.take();
        drop(sender.send(Message::Done(done)));
    };
    let thread = thread::Builder::new().name("ledger-open".to_owned()).stack_size(STACK_BYTES).spawn(apart);
    thread.map_err(|source| OpenError::Io { action: "start a thread for", path: dir.to_owned(), source })?;
    for message in messages {
        match message {
            Message::Progress(fraction) => progress(fraction),
            Message::Done(Ok(done)) => return done,
            Message::Done(Err(reason)) => return Err(OpenError::Damaged { dir: dir.to_owned(), reason }.into()),
            Message::Stopped(first) => return Err(OpenError::Damaged { dir: dir.to_owned(), reason: reason(&first) }.into()),
        }
    }
    Err(OpenError::Damaged { dir: dir.to_owned(), reason: reason("without a message") }.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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

    /// A value that finds the damage again while it is dropped.
    struct Transaction;

    impl Drop for Transaction {
        fn drop(&mut self) {
            panic!("the same damage");
        }
    }

    /// Set in the process in which the two panics happen: the test harness takes the hook at its end, and would wait for ever.
    const PANICS: &str = "AGENT_HOST_TEST_PANICS";

    #[test]
    fn a_second_panic_while_the_first_one_unwinds_is_the_same_error() {
        if std::env::var_os(PANICS).is_some() {
            [false, true].into_iter().for_each(two_panics);
            std::process::exit(0);
        }
        let test = "boundary::tests::a_second_panic_while_the_first_one_unwinds_is_the_same_error";
        let process =
            Command::new(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(PANICS, "1").output();
        let output = String::from_utf8(process.unwrap().stdout).unwrap();
        assert_eq!(output.matches("[0.5] Some(Damaged").count(), 2, "{output}");
        assert_eq!(output.matches("contradict each other (first damage)").count(), 2, "{output}");
    }

    /// Prints the error of a work that panics while it unwinds from a panic, and its progress before.
    fn two_panics(nested: bool) {
        let mut fractions = Vec::new();
        let error = guard_apart::<(), OpenError>(
            Path::new("d"),
            |fraction| fractions.push(fraction),
            move |progress| {
                progress(0.5);
                let panics = || {
                    let _transaction = Transaction;
                    panic!("first damage")
                };
                if nested { guard_open(Path::new("d"), panics) } else { panics() }
            },
        );
        println!("{fractions:?} {:?}", error.err());
    }

    #[test]
    fn panics_that_were_caught_before_are_no_second_ones() {
        let done = guard_apart::<_, OpenError>(
            Path::new("d"),
            |_| (),
            |_| Ok((guarded(|| panic!("one")).is_err(), guarded(|| panic!("two")).is_err())),
        );
        assert_eq!(done.unwrap(), (true, true));
        let error = guard_apart::<(), OpenError>(Path::new("d"), |_| (), |_| panic!("three")).unwrap_err();
        assert!(error.to_string().contains("(three)"), "{error}");
    }
}

//! The number of system calls of this process.

use std::{fs, io};

use anyhow::Context;
use perf_event::{Builder, Counter, events::Tracepoint};

/// The entry of every system call, in the two places where the kernel shows tracepoints.
const TRACEPOINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const ENTRY: &str = "events/raw_syscalls/sys_enter/id";

/// A counter of the kernel. Needs root or CAP_PERFMON.
pub(crate) enum Syscalls {
    /// Of this thread and all threads that start after it.
    Counted(Counter),
    /// Counting was not requested, or the kernel does not allow it.
    NotCounted,
}

impl Syscalls {
    /// Counts from now on, for this thread and the threads that it starts; not for other processes that it starts.
    #[allow(clippy::print_stderr, reason = "the reader should know why a figure is missing")]
    pub(crate) fn count() -> Self {
        match start() {
            Ok(counter) => Self::Counted(counter),
            Err(error) => {
                eprintln!("system calls are not counted: {error:#}");
                Self::NotCounted
            }
        }
    }

    /// The count so far.
    pub(crate) fn now(&mut self) -> anyhow::Result<Option<u64>> {
        match self {
            Self::Counted(counter) => Ok(Some(counter.read().context("the counter of system calls cannot be read")?)),
            Self::NotCounted => Ok(None),
        }
    }
}

fn start() -> anyhow::Result<Counter> {
    let read = |root: &str| fs::read_to_string(format!("{root}/{ENTRY}"));
    let [first, second] = TRACEPOINTS;
    let id = read(first).or_else(|_| read(second)).context("the kernel shows no tracepoints")?;
    let id = id.trim().parse().context("a tracepoint has a number")?;
    let opened = || -> io::Result<Counter> {
        let mut builder = Builder::new(Tracepoint::with_id(id));
        let mut counter = builder.include_kernel().inherit(true).inherit_thread(true).observe_self().any_cpu().build()?;
        counter.enable()?;
        Ok(counter)
    };
    opened().context("perf_event_open is refused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_later_threads_count() {
        let mut syscalls = Syscalls::count();
        // If the kernel refuses, nothing can be counted, and the result says so.
        let Some(before) = syscalls.now().unwrap() else { return };
        let read = || (0..50).for_each(|_| assert!(fs::read("/proc/self/io").is_ok()));
        std::thread::spawn(read).join().unwrap();
        let after = syscalls.now().unwrap().unwrap();
        assert!(after >= before + 150, "{before} calls, then {after}: each reading opens, reads and closes");
    }
}

//! The writer thread, its queue, and what it shares with the handles.

mod queue;
mod shared;
mod thread;
mod watch;

pub(crate) use queue::Queue;
pub use queue::QueueShare;
pub(crate) use shared::{Commits, Counters, MergeFailure, Shared, WriterEnd};
pub(crate) use thread::Writer;
pub use watch::Watch;

//! Reads: runs, parked runs, pages, values and numbers.

mod cursor;
mod feed;
mod pages;
mod runs;
pub(crate) mod statistics;
pub(crate) mod stats;
mod values;
pub(crate) mod workspaces;

pub(crate) use cursor::Sequence;
pub use feed::{Feed, FeedBounds, FeedStep};
pub(crate) use pages::item;

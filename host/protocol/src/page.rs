//! Pages: bounded pieces of something long.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One page. A cursor is opaque: only the host makes one, and only for the sequence that it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next page begins, where there is one or may be one later.
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// Where the page before begins.
    #[serde(default)]
    pub prev_cursor: Option<String>,
    /// Whether there is more in the direction of reading.
    pub has_more: bool,
}

impl<T> Page<T> {
    /// The same page of other items.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Page<U> {
        Page {
            items: self.items.into_iter().map(f).collect(),
            next_cursor: self.next_cursor,
            prev_cursor: self.prev_cursor,
            has_more: self.has_more,
        }
    }
}

/// Which way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From newer to older.
    Backward,
    /// From older to newer.
    Forward,
}

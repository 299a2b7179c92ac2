//! Pages: bounded pieces of something long.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A page of a list. A cursor is opaque: only the host makes cursors, and each is valid for its list only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Cursor of the next page, if there is one or may be one later.
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub prev_cursor: Option<String>,
    /// True if there are more items in the direction of reading.
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

/// The direction of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From newer to older.
    Backward,
    /// From older to newer.
    Forward,
}

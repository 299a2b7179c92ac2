//! Earlier events of the event log.
//!
//! ```
//! use agent_host_sdk::{ApiError, Context};
//!
//! /// Counts the messages among the newest events.
//! fn messages(ctx: &Context) -> Result<usize, ApiError> {
//!     let mut count = 0;
//!     for page in ctx.events().backward().types(["message.received"]).limit(50).take(3) {
//!         count += page?.items.len();
//!     }
//!     Ok(count)
//! }
//! ```

use crate::contract::{Event, EventPage};
use crate::error::ApiError;
use crate::host::events as host;

/// Events that this run may see, from [`Context::events`](crate::Context::events). The manifest must declare
/// [`EventOperation`](crate::EventOperation)s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events(());

impl Events {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Returns one event.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn get(self, event_id: &str) -> Result<Event, ApiError> {
        Ok(host::get(event_id)?)
    }

    /// Returns pages from the newest event to the oldest.
    pub fn backward(self) -> EventPages {
        EventPages { before: None, types: Vec::new(), limit: 50, more: true }
    }
}

/// Iterator over pages of events. Each page is one host call. Ends after the last page or after the first error.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Clone, Debug)]
pub struct EventPages {
    before: Option<String>,
    types: Vec<String>,
    limit: u32,
    more: bool,
}

impl EventPages {
    /// Number of events of a page, 1 to 100. Default: 50.
    pub fn limit(mut self, events: u32) -> Self {
        self.limit = events;
        self
    }

    /// Returns only events of these types. Default: all types.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Starts before this cursor.
    pub fn starting_at(mut self, cursor: impl Into<String>) -> Self {
        self.before = Some(cursor.into());
        self
    }
}

impl Iterator for EventPages {
    type Item = Result<EventPage, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.more {
            return None;
        }
        let page = host::page(self.before.as_deref(), &self.types, self.limit).map_err(ApiError::from);
        self.more = match &page {
            Ok(EventPage { has_more: true, next: Some(cursor), .. }) => {
                self.before = Some(cursor.clone());
                true
            }
            _ => false,
        };
        Some(page)
    }
}

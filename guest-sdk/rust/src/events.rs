//! Earlier events.
//!
//! ```
//! use agent_host_sdk::{ApiError, Context};
//!
//! /// How many of the newest events were messages.
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

/// The event log, as far as this run may see it. The manifest must declare
/// [`EventOperation`](crate::EventOperation)s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events(());

impl Events {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// One event.
    ///
    /// # Errors
    /// As the host answers.
    pub fn get(self, event_id: &str) -> Result<Event, ApiError> {
        Ok(host::get(event_id)?)
    }

    /// From the newest event to the oldest.
    pub fn backward(self) -> EventPages {
        EventPages { before: None, types: Vec::new(), limit: 50, more: true }
    }
}

/// Pages of events, one host call each, until there are no more or one is refused.
#[must_use = "an iterator does nothing until it is asked"]
#[derive(Clone, Debug)]
pub struct EventPages {
    before: Option<String>,
    types: Vec<String>,
    limit: u32,
    more: bool,
}

impl EventPages {
    /// Events of a page: 1 to 100, 50 where nothing is said.
    pub fn limit(mut self, events: u32) -> Self {
        self.limit = events;
        self
    }

    /// Only events of these types. All, where nothing is said.
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

//! Transcript of the conversation: pages and full-text search.
//!
//! ```
//! use agent_host_sdk::{ApiError, Context};
//!
//! /// Returns the newest texts, newest first.
//! fn recent(ctx: &Context) -> Result<Vec<String>, ApiError> {
//!     let mut texts = Vec::new();
//!     for page in ctx.history().backward().limit(20).take(1) {
//!         texts.extend(page?.items.into_iter().filter_map(|item| item.text));
//!     }
//!     Ok(texts)
//! }
//! ```

use crate::contract::{Direction, PageRequest, TranscriptItem, TranscriptPage};
use crate::error::ApiError;
use crate::host::history as host;
use crate::json::IntoJson;

/// Transcript, from [`Context::history`](crate::Context::history). The manifest must declare
/// [`HistoryOperation::Page`](crate::HistoryOperation), and the grant of the run must allow the operation: see
/// [`Context::available_apis`](crate::Context::available_apis).
#[derive(Clone, Copy, Debug, Default)]
pub struct History(());

impl History {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Returns pages from the newest item to the oldest.
    pub fn backward(self) -> Pages {
        Pages::new(Direction::Backward)
    }

    /// Returns pages from the oldest item to the newest.
    pub fn forward(self) -> Pages {
        Pages::new(Direction::Forward)
    }

    /// Starts a full-text search; see [`Search`].
    pub fn search(self, query: impl Into<String>) -> Search {
        Search { query: query.into(), top_k: 10, filters: Vec::new() }
    }

    /// Returns one page for a request of the contract.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn page(self, request: &PageRequest) -> Result<TranscriptPage, ApiError> {
        Ok(host::page(request)?)
    }
}

/// Iterator over pages of the transcript. Each page is one host call. Ends after the last page or after the first error.
///
/// Each step continues at the cursor `next` of the previous page: as `before` if backward, as `after` if forward.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Clone, Debug)]
pub struct Pages {
    /// `None` after the last page.
    next: Option<PageRequest>,
}

impl Pages {
    fn new(direction: Direction) -> Self {
        Self {
            next: Some(PageRequest {
                conversation_id: None,
                before: None,
                after: None,
                limit: 50,
                direction,
                include_artifacts: false,
            }),
        }
    }

    /// Number of items of a page, 1 to 100. Default: 50.
    pub fn limit(self, items: u32) -> Self {
        self.with(|request| request.limit = items)
    }

    /// Starts after this cursor, in the direction of the pages.
    pub fn starting_at(self, cursor: impl Into<String>) -> Self {
        self.with(|request| turn_to(request, cursor.into()))
    }

    /// Selects another conversation of the workspace than that of the run: its main thread. Needs
    /// [`ConversationReach::Workspace`](crate::ConversationReach), in the manifest and in the binding.
    pub fn conversation(self, conversation_id: impl Into<String>) -> Self {
        self.with(|request| request.conversation_id = Some(conversation_id.into()))
    }

    /// Selects a thread of a conversation; an empty thread is the main one. Another thread of the run's own conversation needs
    /// [`ConversationReach::Threads`](crate::ConversationReach).
    pub fn thread(self, conversation_id: &str, thread_id: &str) -> Self {
        self.conversation(format!("{conversation_id}\u{1f}{thread_id}"))
    }

    /// Includes the artifacts of each item.
    pub fn with_artifacts(self) -> Self {
        self.with(|request| request.include_artifacts = true)
    }

    fn with(mut self, change: impl FnOnce(&mut PageRequest)) -> Self {
        if let Some(request) = &mut self.next {
            change(request);
        }
        self
    }

    fn step(
        &mut self,
        page: impl FnOnce(&PageRequest) -> Result<TranscriptPage, ApiError>,
    ) -> Option<Result<TranscriptPage, ApiError>> {
        let mut request = self.next.take()?;
        let page = page(&request);
        if let Ok(TranscriptPage { has_more: true, next: Some(cursor), .. }) = &page {
            turn_to(&mut request, cursor.clone());
            self.next = Some(request);
        }
        Some(page)
    }
}

impl Iterator for Pages {
    type Item = Result<TranscriptPage, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(|request| History::new().page(request))
    }
}

/// Full-text search in the transcript. [`run`](Self::run) sends the query to the host. Needs
/// [`HistoryOperation::Search`](crate::HistoryOperation).
///
/// ```
/// # use agent_host_sdk::{ApiError, Context};
/// fn promised(ctx: &Context) -> Result<bool, ApiError> {
///     let found = ctx.history().search("refund").roles(["assistant"]).top_k(1).run()?;
///     Ok(!found.is_empty())
/// }
/// ```
#[must_use = "a search asks nothing until it runs"]
#[derive(Clone, Debug)]
pub struct Search {
    query: String,
    top_k: u32,
    /// Names and JSON values.
    filters: Vec<(&'static str, String)>,
}

impl Search {
    /// Maximum number of items, 1 to 50. Default: 10.
    pub fn top_k(mut self, items: u32) -> Self {
        self.top_k = items;
        self
    }

    /// Returns only items of these roles, such as `user`.
    pub fn roles<R: AsRef<str>>(self, roles: impl IntoIterator<Item = R>) -> Self {
        self.filter("roles", list(roles))
    }

    /// Returns only items of events of these types.
    pub fn event_types<T: AsRef<str>>(self, types: impl IntoIterator<Item = T>) -> Self {
        self.filter("event_types", list(types))
    }

    /// Returns only items from this time on, in ms since the Unix epoch.
    pub fn since(self, at: u64) -> Self {
        self.filter("since", at.into_json())
    }

    /// Returns only items before this time, in ms since the Unix epoch.
    pub fn until(self, at: u64) -> Self {
        self.filter("until", at.into_json())
    }

    /// Selects another conversation of the workspace than that of the run. Needs
    /// [`ConversationReach::Workspace`](crate::ConversationReach), in the manifest and in the binding.
    pub fn conversation(self, conversation_id: &str) -> Self {
        self.filter("conversation_id", conversation_id.into_json())
    }

    /// Selects a thread of a conversation; an empty thread is the main one.
    pub fn thread(self, conversation_id: &str, thread_id: &str) -> Self {
        self.conversation(conversation_id).filter("thread_id", thread_id.into_json())
    }

    fn filter(mut self, name: &'static str, json: String) -> Self {
        self.filters.retain(|(old, _)| *old != name);
        self.filters.push((name, json));
        self
    }

    fn filters(&self) -> Option<String> {
        if self.filters.is_empty() {
            return None;
        }
        let members: Vec<_> = self.filters.iter().map(|(name, json)| format!("\"{name}\":{json}")).collect();
        Some(format!("{{{}}}", members.join(",")))
    }

    /// Runs the search. Returns the best item first.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn run(&self) -> Result<Vec<TranscriptItem>, ApiError> {
        Ok(host::search(&self.query, self.filters().as_deref(), self.top_k)?)
    }
}

/// Returns a JSON array of texts.
fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.as_ref().into_json()).collect();
    format!("[{}]", items.join(","))
}

fn turn_to(request: &mut PageRequest, cursor: String) {
    match request.direction {
        Direction::Backward => request.before = Some(cursor),
        Direction::Forward => request.after = Some(cursor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ErrorCode;

    fn page(next: Option<&str>) -> Result<TranscriptPage, ApiError> {
        Ok(TranscriptPage { items: Vec::new(), next: next.map(str::to_owned), prev: None, has_more: next.is_some() })
    }

    #[test]
    fn pages_follow_the_cursor_until_there_are_no_more() {
        let mut pages = History::new().backward().limit(20);
        let first = pages.step(|request| {
            assert_eq!((request.limit, request.before.as_deref()), (20, None));
            page(Some("c1"))
        });
        assert!(first.is_some());
        let second = pages.step(|request| {
            assert_eq!((request.before.as_deref(), request.after.as_deref()), (Some("c1"), None));
            page(None)
        });
        assert!(second.is_some());
        assert!(pages.step(|_| panic!("there is no third page")).is_none());
    }

    #[test]
    fn forward_pages_go_on_after_the_cursor() {
        let mut pages = History::new().forward().starting_at("c0");
        let _first = pages.step(|request| {
            assert_eq!((request.before.as_deref(), request.after.as_deref()), (None, Some("c0")));
            page(None)
        });
    }

    #[test]
    fn a_refusal_is_the_last_item() {
        let mut pages = History::new().backward();
        let refused = pages.step(|_| {
            Err(ApiError {
                code: ErrorCode::Unauthorized,
                message: "history is not granted".to_owned(),
                retryable: false,
                details: None,
            })
        });
        assert!(matches!(refused, Some(Err(_))));
        assert!(pages.step(|_| page(None)).is_none());
    }
}

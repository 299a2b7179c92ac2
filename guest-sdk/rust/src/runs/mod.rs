//! Child runs: start runs of other runners, wait for them, read their events, cancel them.
//!
//! ```
//! use std::time::Duration;
//!
//! use agent_host_sdk::runs::StartRun;
//! use agent_host_sdk::{Completion, Context, Failure};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let mut children = Vec::new();
//!     for language in ["French", "Chinese"] {
//!         let task = StartRun::new("plugin:acme/translator/default")
//!             .text(format!("Into {language}: {}", ctx.text()))
//!             .objective(format!("the {language} version"));
//!         children.push(ctx.runs().start(&task)?);
//!     }
//!     // Both run concurrently. Each end is a value, so a failed child does not affect the other.
//!     for child in ctx.runs().gather(&children, Duration::from_secs(60))? {
//!         match child.end.text() {
//!             Some(text) => ctx.reply(text)?,
//!             None => ctx.reply(&format!("No translation: {}", child.end))?,
//!         }
//!     }
//!     Ok(Completion::stop())
//! }
//! ```
//!
//! The grant of a child is at most that of its parent, and the child is cancelled with its parent. The manifest of the
//! parent therefore declares the permissions of its children, even if the parent does not use them. A child has no
//! conversation: its input must contain all that it needs. The manifest must also declare
//! [`RunOperation`](crate::RunOperation)s: `Start` and `Get` to start and to wait, `Events` to read answers, `Cancel`.

mod end;
mod gather;

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::contract::{ArtifactRef, Input, StartRequest};
use crate::error::ApiError;
use crate::host::runs as host;
use crate::json::{IntoJson, JsonError, from_str};
use crate::limits::millis32;

pub use self::end::{ChildAnswer, ChildEnd};
pub use self::gather::{Bounds, ChildResult};
pub use crate::contract::{RunEvent, RunEventPage, RunStatus, RunSummary};

/// Default number of events of a page: the maximum, since the answer of a run is at its end.
const PAGE_EVENTS: u32 = 100;

/// Request for a child run.
#[must_use = "nothing is started until it is given to `Runs::start`"]
#[derive(Clone, Debug, PartialEq)]
pub struct StartRun {
    contract: StartRequest,
}

impl StartRun {
    /// Creates a request without input for the runner with this id, such as `plugin:acme/translator/default`.
    pub fn new(runner_id: impl Into<String>) -> Self {
        let input = Input { text: None, contents: Vec::new(), attachments: Vec::new(), message_chain: None };
        Self { contract: StartRequest { runner_id: runner_id.into(), input, objective: String::new(), config: None } }
    }

    /// Sets the text of the input.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.contract.input.text = Some(text.into());
        self
    }

    /// Adds an artifact to the input.
    pub fn attachment(mut self, artifact: ArtifactRef) -> Self {
        self.contract.input.attachments.push(artifact);
        self
    }

    /// Sets the purpose of the run, for people who read the tree of runs.
    pub fn objective(mut self, objective: impl Into<String>) -> Self {
        self.contract.objective = objective.into();
        self
    }

    /// Sets the configuration, a JSON object.
    pub fn config(mut self, config: impl IntoJson) -> Self {
        self.contract.config = Some(config.into_json());
        self
    }

    /// Returns the record that the host receives.
    #[must_use]
    pub fn contract(&self) -> &StartRequest {
        &self.contract
    }

    /// Returns the record, for fields without a builder method.
    pub fn contract_mut(&mut self) -> &mut StartRequest {
        &mut self.contract
    }
}

/// Child runs of this run, from [`Context::runs`](crate::Context::runs).
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs(());

impl Runs {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Starts a child, which runs concurrently with this run.
    ///
    /// # Errors
    /// Fails with `unauthorized` for a runner that is not granted and above the total number of children; with
    /// `rate_limited` above the number of concurrent children; with `invalid_argument` if the configuration does not fit
    /// the runner.
    pub fn start(self, task: &StartRun) -> Result<ChildRun, ApiError> {
        Ok(ChildRun { id: host::start(&task.contract)? })
    }

    /// Waits until one of the children has ended and returns its summary; `None` on timeout. A child that has already
    /// ended is returned immediately, by every call: leave it out of the next call.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn wait_any<'c>(
        self,
        children: impl IntoIterator<Item = &'c ChildRun>,
        at_most: Duration,
    ) -> Result<Option<RunSummary>, ApiError> {
        let ids: Vec<_> = children.into_iter().map(|child| child.id.clone()).collect();
        Ok(host::wait_any(&ids, millis32(at_most))?)
    }

    /// Returns the summary of a child.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn get(self, run_id: &str) -> Result<RunSummary, ApiError> {
        Ok(host::get(run_id)?)
    }

    /// Returns up to `limit` children (1 to 100), newest first.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn list(self, limit: u32) -> Result<Vec<RunSummary>, ApiError> {
        Ok(host::list(None, limit)?)
    }

    /// Returns the events of a child, from the first event on.
    pub fn events(self, run_id: impl Into<String>) -> RunEvents {
        RunEvents { run_id: run_id.into(), after: None, limit: PAGE_EVENTS, ready: Vec::new().into_iter(), more: true }
    }

    /// Cancels a child. Has no effect on a child that has ended.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn cancel(self, run_id: &str, reason: &str) -> Result<(), ApiError> {
        Ok(host::cancel(run_id, reason)?)
    }
}

/// A child run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChildRun {
    id: String,
}

impl ChildRun {
    /// Creates a handle from a stored id, for example from the state.
    pub fn from_id(id: impl Into<String>) -> Self {
        Self { id: id.into() }
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the present summary.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn summary(&self) -> Result<RunSummary, ApiError> {
        Runs::new().get(&self.id)
    }

    /// Waits until the child has ended and returns its summary; `None` on timeout.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn wait(&self, at_most: Duration) -> Result<Option<RunSummary>, ApiError> {
        Runs::new().wait_any([self], at_most)
    }

    /// Returns the events so far.
    pub fn events(&self) -> RunEvents {
        Runs::new().events(self.id.as_str())
    }

    /// Returns the end of the child, read from its events; [`ChildEnd::Unfinished`] if the child has not ended. Needs
    /// `RunOperation::Events`.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn end(&self) -> Result<ChildEnd, ApiError> {
        ChildEnd::read(self.events())
    }

    /// Cancels the child.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn cancel(&self, reason: &str) -> Result<(), ApiError> {
        Runs::new().cancel(&self.id, reason)
    }
}

/// Iterator over the events of a run; one host call per page. Ends with the newest event. For a run that has not ended,
/// continue later with [`starting_after`](Self::starting_after).
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Debug)]
pub struct RunEvents {
    run_id: String,
    after: Option<String>,
    limit: u32,
    ready: std::vec::IntoIter<RunEvent>,
    more: bool,
}

impl RunEvents {
    /// Number of events of a page, 1 to 100. Default: 100.
    pub fn limit(mut self, events: u32) -> Self {
        self.limit = events;
        self
    }

    /// Starts after this cursor.
    pub fn starting_after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }

    /// Returns the cursor after the pages read so far, for [`starting_after`](Self::starting_after).
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.after.as_deref()
    }
}

impl Iterator for RunEvents {
    type Item = Result<RunEvent, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.next() {
                return Some(Ok(event));
            }
            if !self.more {
                return None;
            }
            match host::events_page(&self.run_id, self.after.as_deref(), self.limit) {
                Ok(page) => {
                    // A page with `has_more` but without a cursor would be read repeatedly without end.
                    self.more = page.has_more && page.next.is_some();
                    self.after = page.next.or_else(|| self.after.take());
                    self.ready = page.items.into_iter();
                }
                Err(error) => {
                    self.more = false;
                    return Some(Err(error.into()));
                }
            }
        }
    }
}

impl RunEvent {
    /// Parses the data of the event.
    ///
    /// # Errors
    /// Fails if the data does not have the shape of `T`.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        from_str(&self.data)
    }
}

impl RunStatus {
    /// Returns true for a final status.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout)
    }

    /// Returns the status in the spelling of the protocol, such as `waiting`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Created => "created",
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::Other(status) => status,
        }
    }
}

//! Other runs: hand work to another runner, and look after it.
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
//!     // Both at the same time. What became of each is a value: one that failed takes nothing from the other.
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
//! A child gets at most what its parent was granted, and is cancelled with it: a parent declares in its manifest what its
//! children need, also where it does not use it itself. It has no conversation: what it shall know is in its input. The
//! manifest must declare [`RunOperation`](crate::RunOperation)s too: `Start` and `Get` to start and to wait, `Events` to read
//! answers, `Cancel`.

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
pub use self::gather::{Bounds, Gathered};
pub use crate::contract::{RunEvent, RunEventPage, RunStatus, RunSummary};

/// Events of a page, where nothing is said: the most that a page has, since the answer of a run stands at its end.
const PAGE_EVENTS: u32 = 100;

/// What a child is to do.
#[must_use = "nothing is started until it is given to `Runs::start`"]
#[derive(Clone, Debug, PartialEq)]
pub struct StartRun {
    contract: StartRequest,
}

impl StartRun {
    /// A run of this runner, by its stable id such as `plugin:acme/translator/default`, without input.
    pub fn new(runner_id: impl Into<String>) -> Self {
        let input = Input { text: None, contents: Vec::new(), attachments: Vec::new(), message_chain: None };
        Self { contract: StartRequest { runner_id: runner_id.into(), input, objective: String::new(), config: None } }
    }

    /// What it is told.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.contract.input.text = Some(text.into());
        self
    }

    /// An artifact that it is given.
    pub fn attachment(mut self, artifact: ArtifactRef) -> Self {
        self.contract.input.attachments.push(artifact);
        self
    }

    /// Why, for people who read the tree of runs.
    pub fn objective(mut self, objective: impl Into<String>) -> Self {
        self.contract.objective = objective.into();
        self
    }

    /// Its configuration, a JSON object.
    pub fn config(mut self, config: impl IntoJson) -> Self {
        self.contract.config = Some(config.into_json());
        self
    }

    /// The record that the host gets.
    #[must_use]
    pub fn contract(&self) -> &StartRequest {
        &self.contract
    }

    /// The record, to change what this builder has no method for.
    pub fn contract_mut(&mut self) -> &mut StartRequest {
        &mut self.contract
    }
}

/// The runs that this run started, as [`Context::runs`](crate::Context::runs) gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs(());

impl Runs {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Starts a child. It runs beside this run.
    ///
    /// # Errors
    /// As the host answers: `unauthorized` for a runner that was not granted, and where this run may start no more at all;
    /// `rate_limited` where it has as many children beside each other as it may; `invalid_argument` where the configuration
    /// does not fit the runner.
    pub fn start(self, task: &StartRun) -> Result<ChildRun, ApiError> {
        Ok(ChildRun { id: host::start(&task.contract)? })
    }

    /// Waits until one of them has ended, at most so long, and gives it. None, where none has. One that had ended before is
    /// given at once, and again by the next call: leave it out then.
    ///
    /// # Errors
    /// As the host answers.
    pub fn wait_any<'c>(
        self,
        children: impl IntoIterator<Item = &'c ChildRun>,
        at_most: Duration,
    ) -> Result<Option<RunSummary>, ApiError> {
        let ids: Vec<_> = children.into_iter().map(|child| child.id.clone()).collect();
        Ok(host::wait_any(&ids, millis32(at_most))?)
    }

    /// How a run is that this run started.
    ///
    /// # Errors
    /// As the host answers.
    pub fn get(self, run_id: &str) -> Result<RunSummary, ApiError> {
        Ok(host::get(run_id)?)
    }

    /// The runs that this run started, the newest first, at most `limit` (1 to 100).
    ///
    /// # Errors
    /// As the host answers.
    pub fn list(self, limit: u32) -> Result<Vec<RunSummary>, ApiError> {
        Ok(host::list(None, limit)?)
    }

    /// What a run has done, from its first event on.
    pub fn events(self, run_id: impl Into<String>) -> RunEvents {
        RunEvents { run_id: run_id.into(), after: None, limit: PAGE_EVENTS, ready: Vec::new().into_iter(), more: true }
    }

    /// Ends a run early. One that has ended already stays as it is.
    ///
    /// # Errors
    /// As the host answers.
    pub fn cancel(self, run_id: &str, reason: &str) -> Result<(), ApiError> {
        Ok(host::cancel(run_id, reason)?)
    }
}

/// A run that this run started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChildRun {
    id: String,
}

impl ChildRun {
    /// A child whose id was kept, such as in the state.
    pub fn from_id(id: impl Into<String>) -> Self {
        Self { id: id.into() }
    }

    /// The run.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How it is now.
    ///
    /// # Errors
    /// As the host answers.
    pub fn summary(&self) -> Result<RunSummary, ApiError> {
        Runs::new().get(&self.id)
    }

    /// Waits until it has ended, at most so long. None, where it has not.
    ///
    /// # Errors
    /// As the host answers.
    pub fn wait(&self, at_most: Duration) -> Result<Option<RunSummary>, ApiError> {
        Runs::new().wait_any([self], at_most)
    }

    /// What it has done so far.
    pub fn events(&self) -> RunEvents {
        Runs::new().events(self.id.as_str())
    }

    /// How it ended, read from its events; [`ChildEnd::Unfinished`] where it has not. Needs `RunOperation::Events`.
    ///
    /// # Errors
    /// As the host answers.
    pub fn end(&self) -> Result<ChildEnd, ApiError> {
        ChildEnd::read(self.events())
    }

    /// Ends it early.
    ///
    /// # Errors
    /// As the host answers.
    pub fn cancel(&self, reason: &str) -> Result<(), ApiError> {
        Runs::new().cancel(&self.id, reason)
    }
}

/// The events of a run, one after the other; a host call for each page. It ends with what is there now: for a run that
/// goes on, ask again with [`starting_after`](Self::starting_after).
#[must_use = "an iterator does nothing until it is asked"]
#[derive(Debug)]
pub struct RunEvents {
    run_id: String,
    after: Option<String>,
    limit: u32,
    ready: std::vec::IntoIter<RunEvent>,
    more: bool,
}

impl RunEvents {
    /// Events of a page: 1 to 100, 100 where nothing is said.
    pub fn limit(mut self, events: u32) -> Self {
        self.limit = events;
        self
    }

    /// Starts after this cursor.
    pub fn starting_after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }

    /// Where the pages that were read end, for [`starting_after`](Self::starting_after).
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
                    // A page that says that there is more and does not say where would come again and again.
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
    /// The data of the event.
    ///
    /// # Errors
    /// When it has not the shape of `T`.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        from_str(&self.data)
    }
}

impl RunStatus {
    /// Whether nothing can follow.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout)
    }

    /// The status as the protocol spells it, such as `waiting`.
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

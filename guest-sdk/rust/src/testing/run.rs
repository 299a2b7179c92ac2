//! What a run did.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{TestAction, TestChild};
use crate::contract::{ArtifactRef, AskedQuestion, HttpRequest, Message, Request, RunResult, StateScope, StorageArea, ToolCall};
use crate::log::Level;
use crate::{Completion, Failure};

/// What a run did, and what it left behind.
#[derive(Debug)]
pub struct TestRun {
    /// How it ended, where it ended well.
    pub completion: Option<Completion>,
    /// How it ended, where it failed.
    pub failure: Option<Failure>,
    /// What it emitted, in order.
    pub results: Vec<RunResult>,
    /// How many results each `emit` had.
    pub batches: Vec<usize>,
    /// What models were asked, by id.
    pub requests: Vec<(String, Request)>,
    /// What tools of the host were called. Those of the runner are among the results.
    pub tool_calls: Vec<ToolCall>,
    /// Every host call, such as `models.invoke`, in order.
    pub calls: Vec<&'static str>,
    /// What it wrote to the log.
    pub log: Vec<(Level, String)>,
    /// The platform actions that it asked for and waited for. Those that it did not wait for are among the results.
    pub actions: Vec<TestAction>,
    /// What it asked people.
    pub questions: Vec<AskedQuestion>,
    /// Input that had arrived, or was to arrive, and that it did not take: each becomes a run of its own.
    pub steering_left: Vec<String>,
    /// The runs that it started.
    pub children: Vec<TestChild>,
    /// How many of them ran at the same time at most.
    pub most_children_at_once: usize,
    /// The requests that it sent to the outside; secrets are still placeholders.
    pub http: Vec<HttpRequest>,
    pub(super) state: BTreeMap<(u8, String), String>,
    pub(super) storage: BTreeMap<(u8, String), Vec<u8>>,
    pub(super) artifacts: Vec<(ArtifactRef, Vec<u8>)>,
}

impl TestRun {
    /// The text of all completed messages, one line after the other; that of the completion is the
    /// last.
    #[must_use]
    pub fn text(&self) -> String {
        let last = self.completion.as_ref().and_then(|completion| completion.contract().message.clone());
        let texts: Vec<_> = self.messages().into_iter().chain(last).map(|message| message.text()).collect();
        texts.join("\n")
    }

    /// The completed messages.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let done = |result: &RunResult| match result {
            RunResult::MessageCompleted(done) => Some(done.message.clone()),
            _ => None,
        };
        self.results.iter().filter_map(done).collect()
    }

    /// The text that was streamed: all deltas, put together.
    #[must_use]
    pub fn streamed(&self) -> String {
        let delta = |result: &RunResult| match result {
            RunResult::MessageDelta(chunk) => Some(chunk.text.clone()),
            _ => None,
        };
        self.results.iter().filter_map(delta).collect()
    }

    /// How it ended.
    ///
    /// # Panics
    /// When the run failed; the message says how.
    #[must_use]
    pub fn completion(&self) -> &Completion {
        self.completion.as_ref().unwrap_or_else(|| panic!("the run failed: {:?}", self.failure))
    }

    /// How it failed.
    ///
    /// # Panics
    /// When the run did not fail.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        self.failure.as_ref().unwrap_or_else(|| panic!("the run did not fail, it said: {}", self.text()))
    }

    /// A value of the state after the run.
    #[must_use]
    pub fn state(&self, scope: StateScope, key: &str) -> Option<Value> {
        let json = self.state.get(&(scope as u8, key.to_owned()))?;
        serde_json::from_str(json).ok()
    }

    /// Bytes of the storage after the run.
    #[must_use]
    pub fn storage(&self, area: StorageArea, key: &str) -> Option<&[u8]> {
        self.storage.get(&(area as u8, key.to_owned())).map(Vec::as_slice)
    }

    /// The artifacts after the run, with their content.
    #[must_use]
    pub fn artifacts(&self) -> &[(ArtifactRef, Vec<u8>)] {
        &self.artifacts
    }

    /// The last thing that a model was asked.
    ///
    /// # Panics
    /// When none was.
    #[must_use]
    pub fn last_request(&self) -> &Request {
        self.requests.last().map_or_else(|| panic!("no model was asked"), |(_, request)| request)
    }
}

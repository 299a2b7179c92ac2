//! Record of a run in a test.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{TestAction, TestChild};
use crate::contract::{ArtifactRef, AskedQuestion, HttpRequest, Message, Request, RunResult, StateScope, StorageArea, ToolCall};
use crate::log::Level;
use crate::{Completion, Failure};

/// Record of a run: its end, its results, its calls, and the data that it stored.
#[derive(Debug)]
pub struct TestRun {
    /// Completion; `None` if the run failed.
    pub completion: Option<Completion>,
    /// Failure; `None` if the run completed.
    pub failure: Option<Failure>,
    /// Emitted results, in order.
    pub results: Vec<RunResult>,
    /// Number of results of each `emit`.
    pub batches: Vec<usize>,
    /// Model requests, by id of the model.
    pub requests: Vec<(String, Request)>,
    /// Calls of tools of the host. Calls of local tools are among the results.
    pub tool_calls: Vec<ToolCall>,
    /// All host calls in order, such as `models.invoke`.
    pub calls: Vec<&'static str>,
    /// Log lines.
    pub log: Vec<(Level, String)>,
    /// Platform actions that the run waited for. Background actions are among the results.
    pub actions: Vec<TestAction>,
    /// Questions to people.
    pub questions: Vec<AskedQuestion>,
    /// Scripted input that the run did not take. Each becomes a run of its own.
    pub steering_left: Vec<String>,
    /// Child runs.
    pub children: Vec<TestChild>,
    /// Maximum number of concurrent child runs.
    pub most_children_at_once: usize,
    /// HTTP requests; secrets are still placeholders.
    pub http: Vec<HttpRequest>,
    pub(super) state: BTreeMap<(u8, String), String>,
    pub(super) storage: BTreeMap<(u8, String), Vec<u8>>,
    pub(super) artifacts: Vec<(ArtifactRef, Vec<u8>)>,
}

impl TestRun {
    /// Returns the text of all completed messages, joined by line ends; the message of the completion is the last.
    #[must_use]
    pub fn text(&self) -> String {
        let last = self.completion.as_ref().and_then(|completion| completion.contract().message.clone());
        let texts: Vec<_> = self.messages().into_iter().chain(last).map(|message| message.text()).collect();
        texts.join("\n")
    }

    /// Returns the completed messages.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let done = |result: &RunResult| match result {
            RunResult::MessageCompleted(done) => Some(done.message.clone()),
            _ => None,
        };
        self.results.iter().filter_map(done).collect()
    }

    /// Returns the streamed text: all deltas, joined.
    #[must_use]
    pub fn streamed(&self) -> String {
        let delta = |result: &RunResult| match result {
            RunResult::MessageDelta(chunk) => Some(chunk.text.clone()),
            _ => None,
        };
        self.results.iter().filter_map(delta).collect()
    }

    /// Returns the completion.
    ///
    /// # Panics
    /// Panics if the run failed, with the failure as the message.
    #[must_use]
    pub fn completion(&self) -> &Completion {
        self.completion.as_ref().unwrap_or_else(|| panic!("the run failed: {:?}", self.failure))
    }

    /// Returns the failure.
    ///
    /// # Panics
    /// Panics if the run did not fail.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        self.failure.as_ref().unwrap_or_else(|| panic!("the run did not fail, it said: {}", self.text()))
    }

    /// Returns a value of the state after the run.
    #[must_use]
    pub fn state(&self, scope: StateScope, key: &str) -> Option<Value> {
        let json = self.state.get(&(scope as u8, key.to_owned()))?;
        serde_json::from_str(json).ok()
    }

    /// Returns bytes of the storage after the run.
    #[must_use]
    pub fn storage(&self, area: StorageArea, key: &str) -> Option<&[u8]> {
        self.storage.get(&(area as u8, key.to_owned())).map(Vec::as_slice)
    }

    /// Returns the artifacts after the run, with their content.
    #[must_use]
    pub fn artifacts(&self) -> &[(ArtifactRef, Vec<u8>)] {
        &self.artifacts
    }

    /// Returns the last model request.
    ///
    /// # Panics
    /// Panics if no model was called.
    #[must_use]
    pub fn last_request(&self) -> &Request {
        self.requests.last().map_or_else(|| panic!("no model was asked"), |(_, request)| request)
    }
}

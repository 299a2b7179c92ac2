//! What a guest may call. This crate declares it; the kernel implements it, behind its one gate.

use std::sync::Arc;

use agent_host_protocol::{
    ApiError, Interface, Page, manifest::StateScope, page::Direction, result::RunResult, transcript::TranscriptItem,
};
use async_trait::async_trait;
use serde_json::Value;

use crate::{bindings::results as wit, convert};

/// The host calls of one run. One value belongs to one run, so no function says which run is calling.
///
/// A refusal is an `Err`, which the guest can read; nothing here can trap it. Arguments that are JSON arrive
/// as text, because the gate looks at the size of a thing before anybody parses it.
#[async_trait]
pub trait HostCalls: Send + 'static {
    /// `results.emit`: all of the batch or none; gives the sequence number of the last.
    async fn emit(&mut self, batch: Batch) -> Result<u64, ApiError>;

    /// `history.page`.
    async fn history_page(&mut self, request: PageRequest) -> Result<Page<TranscriptItem>, ApiError>;

    /// `state.get`.
    async fn state_get(&mut self, scope: StateScope, key: String) -> Result<Option<Value>, ApiError>;

    /// `state.set`; the value is JSON text.
    async fn state_set(&mut self, scope: StateScope, key: String, value: String) -> Result<(), ApiError>;

    /// `state.delete`.
    async fn state_delete(&mut self, scope: StateScope, key: String) -> Result<(), ApiError>;

    /// `state.list-keys`.
    async fn state_list_keys(&mut self, scope: StateScope, prefix: Option<String>, limit: u32) -> Result<Vec<String>, ApiError>;

    /// Any function behind a closed door: gives the refusal, and records it.
    async fn refuse(&mut self, interface: Interface, function: &'static str, why: Closed) -> ApiError;
}

/// Why a door is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The run was not granted the interface.
    NotGranted,
    /// The run was granted it, and this build of the host does not have it.
    NotAvailable,
}

/// Where the diagnostic lines of a run go: its `log` calls, its standard output and its standard error.
///
/// Called from the guest's own turn, so it must not block.
pub trait RunLog: Send + Sync + 'static {
    /// Takes bytes as they come; a line may arrive in pieces.
    fn write(&self, source: LogSource, bytes: &[u8]);
}

/// A log that can be shared with the guest's streams.
pub type SharedLog = Arc<dyn RunLog>;

/// Where a piece of log comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum LogSource {
    Stdout,
    Stderr,
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// A request for a page of the transcript, as the guest made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Another conversation than the run's own.
    pub conversation_id: Option<String>,
    /// Read what is older than this.
    pub before: Option<String>,
    /// Read what is newer than this.
    pub after: Option<String>,
    /// How many items.
    pub limit: u32,
    /// Which way.
    pub direction: Direction,
    /// Whether items bring references to their artifacts.
    pub include_artifacts: bool,
}

/// Results that a guest emits together, not yet parsed.
#[derive(Debug)]
pub struct Batch(Vec<wit::RunResult>);

impl Batch {
    pub(crate) fn new(results: Vec<wit::RunResult>) -> Self {
        Self(results)
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty batch is refused, so nobody asks")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of text in each, in order. Counting them parses nothing.
    pub fn bytes(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(convert::result_bytes)
    }

    /// The results, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place in the batch.
    pub fn parse(self) -> Result<Vec<RunResult>, ApiError> {
        self.0
            .into_iter()
            .enumerate()
            .map(|(place, result)| {
                convert::result(result)
                    .map_err(|error| ApiError { message: format!("result {place}: {}", error.message), ..error })
            })
            .collect()
    }
}

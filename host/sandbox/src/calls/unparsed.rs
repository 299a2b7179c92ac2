//! Arguments that hold JSON of a guest: their size is known before anybody parses them.

use agent_host_protocol::{ApiError, context::Input, message::Message, model::ModelRequest, result::RunResult};

use crate::{
    bindings::{context as wc, models as wm, results as wr, types as wt},
    convert,
};

/// Results that a guest emits together, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct Batch(Vec<wr::RunResult>);

impl Batch {
    pub(crate) fn new(results: Vec<wr::RunResult>) -> Self {
        Self(results)
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty batch is refused, so nobody asks")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether any of them sets state.
    #[must_use]
    pub fn sets_state(&self) -> bool {
        self.0.iter().any(|result| matches!(result, wr::RunResult::StateUpdated(_)))
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

/// A request to a chat model, not yet parsed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct ChatRequest(wm::Request);

impl ChatRequest {
    pub(crate) fn new(request: wm::Request) -> Self {
        Self(request)
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        convert::request_bytes(&self.0)
    }

    /// The request, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<ModelRequest, ApiError> {
        convert::request(self.0)
    }
}

/// Messages, not yet parsed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct ChatMessages(Vec<wt::Message>);

impl ChatMessages {
    pub(crate) fn new(messages: Vec<wt::Message>) -> Self {
        Self(messages)
    }

    /// Bytes of text in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(convert::message_bytes).sum()
    }

    /// The messages, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place.
    pub fn parse(self) -> Result<Vec<Message>, ApiError> {
        convert::messages(self.0)
    }
}

/// The input of a run that a run starts, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct StartInput(wc::Input);

impl StartInput {
    pub(crate) fn new(input: wc::Input) -> Self {
        Self(input)
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        convert::input_bytes(&self.0)
    }

    /// The input, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<Input, ApiError> {
        convert::input(self.0)
    }
}

//! Arguments that hold JSON of a guest, or of an executor: their size is known before anybody parses them.

use agent_host_protocol::{
    ApiError, ResultKind, SentResult, context::Input, encoded::JsonText, message::Message, model::ModelRequest,
    result::RunResult, sent,
};
use serde_json::value::RawValue;

use crate::{
    bindings::{context as wc, models as wm, results as wr, types as wt},
    convert,
};

/// The source of an argument. The argument is recorded as it came, so that a guest's requests keep their recorded form.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(untagged)]
enum ArgumentSource<G, S> {
    /// A guest, in the types of the contract.
    Guest(G),
    /// An executor, as JSON text.
    Sent(S),
}

/// Results that a run emits together, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct Batch(ArgumentSource<Vec<wr::RunResult>, Vec<SentResult>>);

impl Batch {
    pub(crate) fn new(results: Vec<wr::RunResult>) -> Self {
        Self(ArgumentSource::Guest(results))
    }

    /// The results that an executor has sent.
    #[must_use]
    pub fn sent(results: Vec<SentResult>) -> Self {
        Self(ArgumentSource::Sent(results))
    }

    /// The number of results.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty batch is refused, so nobody asks")]
    pub fn len(&self) -> usize {
        match &self.0 {
            ArgumentSource::Guest(results) => results.len(),
            ArgumentSource::Sent(results) => results.len(),
        }
    }

    /// True if any result sets state.
    #[must_use]
    pub fn sets_state(&self) -> bool {
        match &self.0 {
            ArgumentSource::Guest(results) => results.iter().any(|result| matches!(result, wr::RunResult::StateUpdated(_))),
            ArgumentSource::Sent(results) => results.iter().any(|result| result.kind == ResultKind::StateUpdated.as_str()),
        }
    }

    /// The metadata of each result, in order; empty for the results of a guest, which have none.
    #[must_use]
    pub fn metadata(&self) -> Vec<Option<JsonText>> {
        match &self.0 {
            ArgumentSource::Guest(_) => Vec::new(),
            ArgumentSource::Sent(results) => results.iter().map(|result| result.metadata.clone().map(JsonText::from)).collect(),
        }
    }

    /// Bytes of text in each, in order. Counting them parses nothing.
    pub fn bytes(&self) -> impl Iterator<Item = usize> {
        let (guest, sent) = match &self.0 {
            ArgumentSource::Guest(results) => (results.as_slice(), [].as_slice()),
            ArgumentSource::Sent(results) => ([].as_slice(), results.as_slice()),
        };
        guest.iter().map(convert::result_bytes).chain(sent.iter().map(SentResult::bytes))
    }

    /// The results, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place in the batch.
    pub fn parse(self) -> Result<Vec<RunResult>, ApiError> {
        match self.0 {
            ArgumentSource::Guest(results) => each(results, convert::result),
            ArgumentSource::Sent(results) => each(results, SentResult::parse),
        }
    }
}

fn each<T>(results: Vec<T>, parse: impl Fn(T) -> Result<RunResult, ApiError>) -> Result<Vec<RunResult>, ApiError> {
    let named = |(place, result)| {
        parse(result).map_err(|error| ApiError { message: format!("result {place}: {}", error.message), ..error })
    };
    results.into_iter().enumerate().map(named).collect()
}

/// A request to a chat model, not yet parsed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct ChatRequest(ArgumentSource<wm::Request, Box<RawValue>>);

impl ChatRequest {
    pub(crate) fn new(request: wm::Request) -> Self {
        Self(ArgumentSource::Guest(request))
    }

    /// A request that an executor has sent.
    #[must_use]
    pub fn sent(request: Box<RawValue>) -> Self {
        Self(ArgumentSource::Sent(request))
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            ArgumentSource::Guest(guest) => convert::request_bytes(guest),
            ArgumentSource::Sent(text) => text.get().len(),
        }
    }

    /// The request, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<ModelRequest, ApiError> {
        match self.0 {
            ArgumentSource::Guest(guest) => convert::request(guest),
            ArgumentSource::Sent(text) => sent::model_request(&text),
        }
    }
}

/// Messages, not yet parsed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct ChatMessages(ArgumentSource<Vec<wt::Message>, Box<RawValue>>);

impl ChatMessages {
    pub(crate) fn new(messages: Vec<wt::Message>) -> Self {
        Self(ArgumentSource::Guest(messages))
    }

    /// Messages that an executor has sent.
    #[must_use]
    pub fn sent(messages: Box<RawValue>) -> Self {
        Self(ArgumentSource::Sent(messages))
    }

    /// Bytes of text in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            ArgumentSource::Guest(guest) => guest.iter().map(convert::message_bytes).sum(),
            ArgumentSource::Sent(text) => text.get().len(),
        }
    }

    /// The messages, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place.
    pub fn parse(self) -> Result<Vec<Message>, ApiError> {
        match self.0 {
            ArgumentSource::Guest(guest) => convert::messages(guest),
            ArgumentSource::Sent(text) => sent::messages(&text),
        }
    }
}

/// The input of a run that a run starts, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct StartInput(ArgumentSource<wc::Input, Box<RawValue>>);

impl StartInput {
    pub(crate) fn new(input: wc::Input) -> Self {
        Self(ArgumentSource::Guest(input))
    }

    /// An input that an executor has sent.
    #[must_use]
    pub fn sent(input: Box<RawValue>) -> Self {
        Self(ArgumentSource::Sent(input))
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            ArgumentSource::Guest(guest) => convert::input_bytes(guest),
            ArgumentSource::Sent(text) => text.get().len(),
        }
    }

    /// The input, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<Input, ApiError> {
        match self.0 {
            ArgumentSource::Guest(guest) => convert::input(guest),
            ArgumentSource::Sent(text) => sent::input(&text),
        }
    }
}

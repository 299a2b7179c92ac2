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
enum Unparsed<G, S> {
    /// A guest, in the types of the contract.
    Guest(G),
    /// An executor, as JSON text.
    Sent(S),
}

/// Results that a run emits together, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct Batch(Unparsed<Vec<wr::RunResult>, Vec<SentResult>>);

impl Batch {
    pub(crate) fn new(results: Vec<wr::RunResult>) -> Self {
        Self(Unparsed::Guest(results))
    }

    /// The results that an executor has sent.
    #[must_use]
    pub fn sent(results: Vec<SentResult>) -> Self {
        Self(Unparsed::Sent(results))
    }

    /// The number of results.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty batch is refused, so nobody asks")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Unparsed::Guest(results) => results.len(),
            Unparsed::Sent(results) => results.len(),
        }
    }

    /// True if any result sets state.
    #[must_use]
    pub fn sets_state(&self) -> bool {
        match &self.0 {
            Unparsed::Guest(results) => results.iter().any(|result| matches!(result, wr::RunResult::StateUpdated(_))),
            Unparsed::Sent(results) => results.iter().any(|result| result.kind == ResultKind::StateUpdated.as_str()),
        }
    }

    /// The metadata of each result, in order; empty for the results of a guest, which have none.
    #[must_use]
    pub fn metadata(&self) -> Vec<Option<JsonText>> {
        match &self.0 {
            Unparsed::Guest(_) => Vec::new(),
            Unparsed::Sent(results) => results.iter().map(|result| result.metadata.clone().map(JsonText::from)).collect(),
        }
    }

    /// Bytes of text in each, in order. Counting them parses nothing.
    pub fn bytes(&self) -> impl Iterator<Item = usize> {
        let (guest, sent) = match &self.0 {
            Unparsed::Guest(results) => (results.as_slice(), [].as_slice()),
            Unparsed::Sent(results) => ([].as_slice(), results.as_slice()),
        };
        guest.iter().map(convert::result_bytes).chain(sent.iter().map(SentResult::bytes))
    }

    /// The results, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place in the batch.
    pub fn parse(self) -> Result<Vec<RunResult>, ApiError> {
        match self.0 {
            Unparsed::Guest(results) => each(results, convert::result),
            Unparsed::Sent(results) => each(results, SentResult::parse),
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
pub struct ChatRequest(Unparsed<wm::Request, Box<RawValue>>);

impl ChatRequest {
    pub(crate) fn new(request: wm::Request) -> Self {
        Self(Unparsed::Guest(request))
    }

    /// A request that an executor has sent.
    #[must_use]
    pub fn sent(request: Box<RawValue>) -> Self {
        Self(Unparsed::Sent(request))
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Unparsed::Guest(guest) => convert::request_bytes(guest),
            Unparsed::Sent(text) => text.get().len(),
        }
    }

    /// The request, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<ModelRequest, ApiError> {
        match self.0 {
            Unparsed::Guest(guest) => convert::request(guest),
            Unparsed::Sent(text) => sent::model_request(&text),
        }
    }
}

/// Messages, not yet parsed.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct ChatMessages(Unparsed<Vec<wt::Message>, Box<RawValue>>);

impl ChatMessages {
    pub(crate) fn new(messages: Vec<wt::Message>) -> Self {
        Self(Unparsed::Guest(messages))
    }

    /// Messages that an executor has sent.
    #[must_use]
    pub fn sent(messages: Box<RawValue>) -> Self {
        Self(Unparsed::Sent(messages))
    }

    /// Bytes of text in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Unparsed::Guest(guest) => guest.iter().map(convert::message_bytes).sum(),
            Unparsed::Sent(text) => text.get().len(),
        }
    }

    /// The messages, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming the first that is malformed by its place.
    pub fn parse(self) -> Result<Vec<Message>, ApiError> {
        match self.0 {
            Unparsed::Guest(guest) => convert::messages(guest),
            Unparsed::Sent(text) => sent::messages(&text),
        }
    }
}

/// The input of a run that a run starts, not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(transparent)]
pub struct StartInput(Unparsed<wc::Input, Box<RawValue>>);

impl StartInput {
    pub(crate) fn new(input: wc::Input) -> Self {
        Self(Unparsed::Guest(input))
    }

    /// An input that an executor has sent.
    #[must_use]
    pub fn sent(input: Box<RawValue>) -> Self {
        Self(Unparsed::Sent(input))
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Unparsed::Guest(guest) => convert::input_bytes(guest),
            Unparsed::Sent(text) => text.get().len(),
        }
    }

    /// The input, parsed.
    ///
    /// # Errors
    /// `invalid_argument`, naming what is malformed.
    pub fn parse(self) -> Result<Input, ApiError> {
        match self.0 {
            Unparsed::Guest(guest) => convert::input(guest),
            Unparsed::Sent(text) => sent::input(&text),
        }
    }
}

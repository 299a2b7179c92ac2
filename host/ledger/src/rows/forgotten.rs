//! Rows of a conversation that was forgotten: the parts that stay.

use agent_host_protocol::{
    Event, ResultKind, Run,
    event::Envelope,
    run::{RunCompletion, RunFailure},
};
use serde_json::{Map, Value};

use crate::{
    error::LedgerError,
    rows::{StoredEvent, TranscriptRow},
};

/// Stands in the metadata of a run, and in the data of an event, that has been forgotten.
pub(crate) const FORGOTTEN: &str = "forgotten";

/// Type of the item that stands at the end of a forgotten transcript.
const END: &str = "forgotten";

/// Text in place of the message of a failure.
const NO_MESSAGE: &str = "the content was deleted with its conversation";

impl TranscriptRow {
    /// True if the item is only the placeholder of deleted items.
    pub(crate) fn is_end(&self) -> bool {
        self.item_type == END && self.role.is_empty()
    }

    /// The item that holds the place of this one, the last that was forgotten.
    pub(crate) fn ended(self) -> Self {
        Self {
            item_type: END.into(),
            role: "".into(),
            run_id: None,
            content: Vec::new(),
            artifacts: Vec::new(),
            event_id: self.event_id,
            created_at: self.created_at,
        }
    }
}

fn marked() -> Map<String, Value> {
    Map::from_iter([(FORGOTTEN.to_owned(), true.into())])
}

fn without_words(failure: RunFailure) -> RunFailure {
    RunFailure { message: NO_MESSAGE.to_owned(), details: None, ..failure }
}

/// A run without what was said in it.
pub(crate) fn forgotten_run(run: Run) -> Run {
    Run {
        failure: run.failure.map(without_words),
        cancel_reason: run.cancel_reason.map(|_| String::new()),
        metadata: marked(),
        ..run
    }
}

/// An event without what was said by it.
pub(crate) fn forgotten_event(event: Event) -> Event {
    let Envelope { event_type, source, event_time, conversation, trace_id, .. } = event.envelope;
    let mut envelope = Envelope::message(String::new(), &source);
    envelope.input = agent_host_protocol::context::Input::default();
    Event { envelope: Envelope { event_type, event_time, conversation, trace_id, data: marked(), ..envelope }, ..event }
}

/// The data of the last event of a run without what it said.
pub(crate) fn forgotten_end(end: &StoredEvent<'_>, run: &Run) -> Result<String, LedgerError> {
    let data = if ResultKind::from_name(&end.kind) == Some(ResultKind::RunCompleted) {
        let completion = serde_json::from_str::<RunCompletion>(end.data);
        let (finish_reason, usage) =
            completion.map_or_else(|_| (String::new(), None), |completion| (completion.finish_reason, completion.usage));
        serde_json::to_string(&RunCompletion { finish_reason, message: None, usage, metadata: None })
    } else {
        let failure = serde_json::from_str(end.data).ok().or_else(|| run.failure.clone());
        let none = || RunFailure { code: run.status.to_string(), message: String::new(), retryable: false, details: None };
        serde_json::to_string(&without_words(failure.unwrap_or_else(none)))
    };
    data.map_err(|error| LedgerError::not_json(&error))
}

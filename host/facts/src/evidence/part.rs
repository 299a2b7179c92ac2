//! The lines of evidence, as they are made.

use agent_host_protocol::{EventId, RecordDigest, Run, RunEvent, RunId, hex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    Hash,
    canonical::{beyond_as_text, canonical},
    hash_after,
};
use crate::Fact;

/// The version of the form.
pub const VERSION: &str = "agent-host-evidence/v1";

/// A line that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("a line of evidence cannot be made: {0}")]
pub struct EvidenceError(#[from] serde_json::Error);

/// The worth of the record lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// All events are there, as the host wrote them: the digest that is stored with the run is theirs.
    Whole,
    /// The ledger was changed: the digest that is stored with the run is that of other events, or of another event that it answers.
    Changed,
    /// The conversation was forgotten: all events but the last are gone.
    Forgotten,
    /// The run was created before the host kept digests: nothing tells whether its events are those that were written.
    Unsealed,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completeness {
    /// True for a run that has ended: two exports of it are equal.
    pub ended: bool,
    /// The record.
    pub record: RecordState,
    /// Number of record lines.
    pub events: u64,
    /// True if the lines of facts are there: they need the record from its beginning.
    pub facts: bool,
    /// Number of artifacts that the record names and the ledger does not have any more.
    pub missing_artifacts: u64,
}

/// The first line of a run: whose evidence it is, and what there is of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: String,
    /// The run.
    pub run_id: RunId,
    /// The event that it answers.
    pub event_id: EventId,
    /// The run that started it.
    pub parent_run_id: Option<RunId>,
    /// The run that it is another attempt at.
    pub retry_of: Option<RunId>,
    /// The conversation.
    pub conversation_id: Option<String>,
    /// The thread of the conversation.
    pub thread_id: Option<String>,
    /// The workspace.
    pub workspace_id: Option<String>,
    /// The bot.
    pub bot_id: Option<String>,
    /// The agent.
    pub agent_id: String,
    /// The binding.
    pub binding_id: String,
    /// The runner.
    pub runner_id: String,
    /// Version of the plugin.
    pub runner_version: String,
    /// Digest of the component, `sha256:HEX`.
    pub component: Option<String>,
    /// The trace of the event.
    pub trace_id: Option<String>,
    /// Status of the run.
    pub status: String,
    /// The digest that the host stored with the run.
    pub record_digest: Option<RecordDigest>,
    /// The content of the file.
    pub completeness: Completeness,
}

/// The first line of the evidence of a thread: the turns whose evidence follows, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadHeader {
    /// [`VERSION`].
    pub version: String,
    /// The conversation.
    pub session_id: String,
    /// The thread.
    pub thread_id: String,
    /// The workspace.
    pub workspace_id: Option<String>,
    /// The runs of the turns, in the order of the thread; those that wait for their place come last.
    pub turns: Vec<RunId>,
}

/// A part of a run, or of a thread.
#[derive(Debug)]
pub enum Part<'a> {
    /// The first line of a thread.
    Thread(&'a ThreadHeader),
    /// The first line of a run.
    Header(&'a Header),
    /// The run.
    Run(&'a Run),
    /// The grant; `None` for a run that ended before one was made.
    Grant(Option<&'a RawValue>),
    /// The event that the run answers, byte for byte; `None` where the ledger does not have it.
    Event(Option<&'a RawValue>),
    /// An event of the run, and the digest of the record up to it.
    Record {
        /// The event.
        event: &'a RunEvent,
        /// `None` where the record does not begin with its first event.
        link: Option<RecordDigest>,
    },
    /// A runtime fact of the turn.
    Fact(&'a Fact),
    /// An artifact that the record names: its digest, not its bytes.
    Artifact(Value),
    /// An audit record.
    Audit(Value),
    /// The last line of a run.
    End,
}

/// The chain of lines so far.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    head: Hash,
    lines: u64,
}

impl Chain {
    /// The line of a part, with its line feed.
    ///
    /// # Errors
    /// [`EvidenceError`] for a part that JSON does not take.
    pub fn line(&mut self, part: &Part<'_>) -> Result<String, EvidenceError> {
        let mut text = self.body(part)?;
        // Events are told apart by every byte, whatever readers make of a doubled key or a long number in them.
        let value: Value = serde_json::from_str(&text)?;
        self.head = hash_after(&self.head, &canonical(&value)?);
        self.lines += 1;
        // Behind the last member.
        text.pop();
        text.push_str(",\"hash\":\"");
        text.push_str(&hex::encode(&self.head));
        text.push_str("\"}\n");
        Ok(text)
    }

    /// The hash of the last line, in hexadecimal.
    #[must_use]
    pub fn head(&self) -> String {
        hex::encode(&self.head)
    }

    /// The object of a part, without a hash.
    fn body(&self, part: &Part<'_>) -> Result<String, serde_json::Error> {
        let raw = |json: Option<&RawValue>| json.map_or("null", RawValue::get).to_owned();
        Ok(match part {
            Part::Thread(thread) => exact("thread", "thread", serde_json::to_value(thread)?)?,
            Part::Header(header) => exact("header", "header", serde_json::to_value(header)?)?,
            Part::Run(run) => exact("run", "run", serde_json::to_value(run)?)?,
            Part::Grant(grant) => exact("grant", "grant", serde_json::from_str(&raw(*grant))?)?,
            Part::Event(event) => format!("{{\"type\":\"event\",\"event\":{}}}", raw(*event)),
            Part::Record { event, link } => {
                let event = serde_json::to_string(event)?;
                let link = serde_json::to_string(link)?;
                format!("{{\"type\":\"record\",\"event\":{event},\"link\":{link}}}")
            }
            Part::Fact(fact) => exact("fact", "fact", serde_json::to_value(fact)?)?,
            Part::Artifact(artifact) => exact("artifact", "artifact", artifact.clone())?,
            Part::Audit(audit) => exact("audit", "audit", audit.clone())?,
            Part::End => format!("{{\"type\":\"end\",\"lines\":{}}}", self.lines + 1),
        })
    }
}

/// The object of a part whose numbers canonical JSON carries: others become texts, and the line says where.
fn exact(kind: &str, member: &str, mut value: Value) -> Result<String, serde_json::Error> {
    let mut places = Vec::new();
    beyond_as_text(&mut value, &format!("/{member}"), &mut places);
    let mut text = format!("{{\"type\":\"{kind}\",\"{member}\":{}", serde_json::to_string(&value)?);
    if !places.is_empty() {
        text.push_str(",\"numbers_as_text\":");
        text.push_str(&serde_json::to_string(&places)?);
    }
    text.push('}');
    Ok(text)
}

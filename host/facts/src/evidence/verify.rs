//! Evidence, verified line by line.

use std::collections::BTreeSet;

use agent_host_protocol::{RecordDigest, Run, RunEvent, RunId, hex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    Hash, RecordState,
    canonical::{canonical, has_beyond},
    hash_after,
    part::{Header, ThreadHeader, VERSION},
};
use crate::{
    json,
    rules::{Line, Lines},
};

/// The longest line, in bytes. An event that the host accepts is shorter.
pub const MAX_EVIDENCE_LINE_BYTES: usize = 64 << 20;

/// Levels of a line: 64 of a stored value, and those around it.
const MAX_LEVELS: usize = json::MAX_DEPTH + 8;

/// Artifacts that are compared with the record. The limit of events of a run is lower.
const MAX_ARTIFACTS: usize = 1_000_000;

/// The first line that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The line, counted from 1.
    pub line: u64,
    /// Code of the fault: `json`, `hash`, `order`, `version`, `ids`, `record`, `artifact` or `torn`.
    pub code: &'static str,
    /// The fault, with what to do.
    pub message: String,
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// True if no line is wrong.
    pub verified: bool,
    /// Number of lines that are right.
    pub lines: u64,
    /// The hash of the last of them.
    pub head: String,
    /// The first line of a thread, where it is right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadHeader>,
    /// The first line of a run, where it is right; of a thread, that of the last turn that was read.
    pub header: Option<Header>,
    /// The first line that is wrong.
    pub fault: Option<Fault>,
}

/// The place in the order of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Start,
    Thread,
    Header,
    Run,
    Grant,
    Event,
    Record,
    Fact,
    Artifact,
    Audit,
    End,
}

impl Stage {
    fn of(kind: &str) -> Option<Self> {
        Some(match kind {
            "thread" => Self::Thread,
            "header" => Self::Header,
            "run" => Self::Run,
            "grant" => Self::Grant,
            "event" => Self::Event,
            "record" => Self::Record,
            "fact" => Self::Fact,
            "artifact" => Self::Artifact,
            "audit" => Self::Audit,
            "end" => Self::End,
            _ => return None,
        })
    }

    /// True if a line of this stage may follow one of another.
    fn follows(self, before: Self) -> bool {
        match self {
            Self::Start => false,
            // Exactly one of each, in order.
            Self::Thread => before == Self::Start,
            // The next turn of a thread follows the end of the one before; `next_run` knows whether there is one.
            Self::Header => matches!(before, Self::Start | Self::Thread | Self::End),
            Self::Run => before == Self::Header,
            Self::Grant => before == Self::Run,
            Self::Event => before == Self::Grant,
            Self::Record | Self::Fact | Self::Artifact | Self::Audit => before >= Self::Event && before <= self,
            Self::End => before >= Self::Event && before < Self::End,
        }
    }
}

/// A verification in progress. It stops at the first line that is wrong.
#[derive(Debug)]
pub struct Verifier {
    lines: Lines,
    state: State,
}

#[derive(Debug)]
struct State {
    line: u64,
    head: Hash,
    stage: Stage,
    thread: Option<ThreadHeader>,
    /// Headers of runs that were read.
    runs: usize,
    header: Option<Header>,
    last_sequence: u64,
    /// Number of the last event that was read.
    sequence: u64,
    events: u64,
    digest: Option<RecordDigest>,
    /// Artifacts that the record names and no line has had.
    artifacts: BTreeSet<String>,
    fault: Option<Fault>,
}

impl Default for Verifier {
    fn default() -> Self {
        let state = State {
            line: 0,
            head: Hash::default(),
            stage: Stage::Start,
            thread: None,
            runs: 0,
            header: None,
            last_sequence: 0,
            sequence: 0,
            events: 0,
            digest: None,
            artifacts: BTreeSet::new(),
            fault: None,
        };
        Self { lines: Lines::with_limit(MAX_EVIDENCE_LINE_BYTES), state }
    }
}

/// A refusal of a line.
struct Wrong(&'static str, String);

impl Wrong {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self(code, message.into())
    }
}

impl Verifier {
    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        let Self { lines, state } = self;
        if state.fault.is_none() {
            lines.push(bytes, |line| state.take(line));
        }
    }

    /// Takes the end of the file.
    #[must_use]
    pub fn finish(self) -> Verdict {
        let Self { lines, mut state } = self;
        if state.fault.is_none() {
            lines.finish(|line| state.take(line));
        }
        if state.fault.is_none() && !state.is_whole() {
            let message = "the file ends before its last line of type `end`: export it again".to_owned();
            state.fault = Some(Fault { line: state.line + 1, code: "torn", message });
        }
        let lines = state.line - u64::from(state.fault.as_ref().is_some_and(|fault| fault.line == state.line));
        Verdict {
            verified: state.fault.is_none(),
            lines,
            head: hex::encode(&state.head),
            thread: state.thread,
            header: state.header,
            fault: state.fault,
        }
    }
}

fn is_of_this_version(version: &str) -> Result<(), Wrong> {
    if version == VERSION {
        return Ok(());
    }
    Err(Wrong::new("version", format!("the version of the file is not `{VERSION}`: verify it with its own version")))
}

impl State {
    fn take(&mut self, line: Line<'_>) {
        if self.fault.is_some() {
            return;
        }
        self.line += 1;
        let result = match line {
            Line::Whole(bytes) => self.check(bytes),
            Line::Unended(_) => Err(Wrong::new("torn", "the last line does not end: export the file again")),
            Line::TooLong { bytes } => Err(Wrong::new("json", format!("the line has {bytes} bytes; evidence has shorter ones"))),
        };
        if let Err(Wrong(code, message)) = result {
            self.fault = Some(Fault { line: self.line, code, message });
        }
    }

    fn check(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let text = std::str::from_utf8(bytes).map_err(|_| Wrong::new("json", "the line is not UTF-8"))?;
        let form = |why: &dyn std::fmt::Display| Wrong::new("json", format!("the line is no line of evidence: {why}"));
        let (mut value, doubled) = match json::parse_within(text, MAX_LEVELS) {
            Ok(value) => (value, None),
            Err(error @ json::JsonError::DoubledKey(_)) => {
                (serde_json::from_str(text).map_err(|error| form(&error))?, Some(error))
            }
            Err(error) => return Err(form(&error)),
        };
        let members = value.as_object_mut().ok_or_else(|| form(&"it is no object"))?;
        let hash = members.remove("hash").and_then(|hash| hex::decode(hash.as_str()?)?.try_into().ok());
        let hash: Hash = hash.ok_or_else(|| form(&"it has no `hash` of 64 hexadecimal digits"))?;
        let kind = members.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let stage = Stage::of(&kind).ok_or_else(|| Wrong::new("order", "the line has no `type` of evidence"))?;
        // Events are as a runner or a client wrote them, and the digest of the record is of their bytes.
        let is_raw = matches!(stage, Stage::Event | Stage::Record);
        if let Some(error) = doubled.filter(|_| !is_raw) {
            return Err(form(&error));
        }
        if !is_raw && has_beyond(&value) {
            return Err(Wrong::new("json", "the line has a number beyond 2^53 - 1, which evidence writes as a text"));
        }
        if hash_after(&self.head, &canonical(&value).map_err(|error| form(&error))?) != hash {
            let message = "the hash is not that of this line and the line before: the line was changed, or one before it is missing or added";
            return Err(Wrong::new("hash", message));
        }
        if !stage.follows(self.stage) {
            return Err(Wrong::new("order", format!("a line of type `{kind}` does not stand here")));
        }
        self.leave(stage)?;
        self.content(stage, text, &value)?;
        (self.stage, self.head) = (stage, hash);
        Ok(())
    }

    /// True if everything that the first line announces has come.
    fn is_whole(&self) -> bool {
        let turns = self.thread.as_ref().map_or(1, |thread| thread.turns.len());
        self.runs == turns && (self.stage == Stage::End || self.thread.is_some() && turns == 0)
    }

    fn record_state(&self) -> Option<RecordState> {
        self.header.as_ref().map(|header| header.completeness.record)
    }

    fn run_id(&self) -> Option<RunId> {
        self.header.as_ref().map(|header| header.run_id)
    }

    fn content(&mut self, stage: Stage, text: &str, value: &Value) -> Result<(), Wrong> {
        match stage {
            Stage::Thread => self.read_thread(value),
            Stage::Header => self.read_header(value),
            Stage::Run => self.read_run(value),
            Stage::Event => self.read_event(text),
            Stage::Record => self.read_record(text),
            Stage::Artifact => {
                let id = value.pointer("/artifact/artifact_id").and_then(Value::as_str).unwrap_or_default();
                if !self.artifacts.remove(id) {
                    return Err(Wrong::new("artifact", "the record does not name this artifact, or it stands twice"));
                }
                Ok(())
            }
            Stage::Audit => {
                let own = self.run_id().map(|id| id.to_string());
                let of_run = value.pointer("/audit/run_id").and_then(Value::as_str) == own.as_deref();
                if of_run { Ok(()) } else { Err(Wrong::new("ids", "the audit record is of another run")) }
            }
            Stage::Fact => {
                let own = self.run_id().map(|id| id.to_string());
                let of_run = value.pointer("/fact/runId").and_then(Value::as_str).is_none_or(|id| Some(id) == own.as_deref());
                if of_run { Ok(()) } else { Err(Wrong::new("ids", "the fact is of another run")) }
            }
            Stage::End => {
                let lines = value.get("lines").and_then(Value::as_u64);
                if lines == Some(self.line) {
                    Ok(())
                } else {
                    Err(Wrong::new("order", "the file has another number of lines than it says"))
                }
            }
            Stage::Start | Stage::Grant => Ok(()),
        }
    }

    fn read_thread(&mut self, value: &Value) -> Result<(), Wrong> {
        let thread = value.get("thread").map(ThreadHeader::deserialize).and_then(Result::ok);
        let thread = thread.ok_or_else(|| Wrong::new("json", "the line has not the form of this version"))?;
        is_of_this_version(&thread.version)?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Reads the first line of a run: the only one, or the next of the thread.
    fn read_header(&mut self, value: &Value) -> Result<(), Wrong> {
        let header = value.get("header").map(Header::deserialize);
        let header =
            header.and_then(Result::ok).ok_or_else(|| Wrong::new("json", "the header has not the form of this version"))?;
        is_of_this_version(&header.version)?;
        let is_due = match &self.thread {
            Some(thread) => thread.turns.get(self.runs) == Some(&header.run_id),
            None => self.runs == 0,
        };
        if !is_due {
            return Err(Wrong::new("order", "the run is not the next turn of the thread"));
        }
        self.runs += 1;
        (self.last_sequence, self.sequence, self.events, self.digest) = (0, 0, 0, None);
        self.artifacts.clear();
        self.header = Some(header);
        Ok(())
    }

    fn read_run(&mut self, value: &Value) -> Result<(), Wrong> {
        let run = value.get("run").map(Run::deserialize).and_then(Result::ok);
        let run = run.ok_or_else(|| Wrong::new("json", "the run has not the form of this version"))?;
        let header = self.header.as_ref();
        let same = header.is_some_and(|header| {
            header.run_id == run.run_id
                && header.event_id == run.event_id
                && header.record_digest == run.record_digest
                && header.status == run.status.as_str()
        });
        if !same {
            return Err(Wrong::new("ids", "the run is not that of the header"));
        }
        self.last_sequence = run.last_sequence;
        Ok(())
    }

    fn read_event(&mut self, text: &str) -> Result<(), Wrong> {
        #[derive(Deserialize)]
        struct EventLine<'a> {
            #[serde(borrow)]
            event: &'a RawValue,
        }
        let line: EventLine<'_> = serde_json::from_str(text).map_err(|error| Wrong::new("json", error.to_string()))?;
        self.digest = self.run_id().map(|id| RecordDigest::begin(id, line.event.get().as_bytes()));
        Ok(())
    }

    fn read_record(&mut self, text: &str) -> Result<(), Wrong> {
        #[derive(Deserialize)]
        struct RecordLine {
            event: RunEvent,
            link: Option<RecordDigest>,
        }
        let line: RecordLine = serde_json::from_str(text).map_err(|error| Wrong::new("json", error.to_string()))?;
        let RecordLine { event, link } = line;
        if Some(event.run_id) != self.run_id() {
            return Err(Wrong::new("ids", "the event is of another run"));
        }
        let is_forgotten = self.record_state() == Some(RecordState::Forgotten);
        if event.sequence != self.sequence + 1 && !(is_forgotten && event.sequence > self.sequence) {
            return Err(Wrong::new("record", format!("event {} follows event {}", event.sequence, self.sequence)));
        }
        (self.sequence, self.events) = (event.sequence, self.events + 1);
        self.digest = self.digest.map(|digest| digest.and((&event).into()));
        if link.is_some() && link != self.digest {
            let message = "the event, or the event that the run answers, is not as the host stored it: its `link` differs. A file that was \
                           written again by another program may have other bytes: verify the file as it was exported";
            return Err(Wrong::new("record", message));
        }
        if link.is_none() && self.record_state() == Some(RecordState::Whole) {
            return Err(Wrong::new("record", "the event has no `link`"));
        }
        for artifact in event.artifact_refs() {
            if self.artifacts.len() < MAX_ARTIFACTS {
                self.artifacts.insert(artifact.artifact_id);
            }
        }
        Ok(())
    }

    /// Checks what must have come before a line of this stage.
    fn leave(&self, stage: Stage) -> Result<(), Wrong> {
        let Some(header) = self.header.as_ref().filter(|_| stage > Stage::Record && self.stage <= Stage::Record) else {
            return self.end_of_artifacts(stage);
        };
        let completeness = &header.completeness;
        let wrong = |message: String| Err(Wrong::new("record", message));
        if completeness.record == RecordState::Changed {
            return wrong(
                "the ledger was changed after the run was written: its record is not that of the stored digest".to_owned(),
            );
        }
        if self.events != completeness.events {
            return wrong(format!("the file has {} events; its header says {}", self.events, completeness.events));
        }
        if self.sequence != self.last_sequence {
            return wrong(format!("the record ends with event {}; the run has {}", self.sequence, self.last_sequence));
        }
        if completeness.record == RecordState::Whole && (self.digest != header.record_digest || self.digest.is_none()) {
            return wrong("the digest that the host stored with the run is not that of these events".to_owned());
        }
        self.end_of_artifacts(stage)
    }

    fn end_of_artifacts(&self, stage: Stage) -> Result<(), Wrong> {
        let Some(header) = self.header.as_ref().filter(|_| stage > Stage::Artifact && self.stage <= Stage::Artifact) else {
            return Ok(());
        };
        let missing = self.artifacts.len() as u64;
        if missing == header.completeness.missing_artifacts {
            return Ok(());
        }
        let message = format!(
            "the record names {missing} artifacts that have no line; the header says {}",
            header.completeness.missing_artifacts
        );
        Err(Wrong::new("artifact", message))
    }
}

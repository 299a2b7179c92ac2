//! The facts of the present event: numbered, with the ids of the turn.

use agent_host_protocol::{EventSource, Timestamp, message::ArtifactRef};
use serde_json::{Map, Value};

use super::turn::{ThreadIds, Turn};
use crate::{
    fact::{Fact, RefKind, Refs, SCHEMA_VERSION, ScopeIds, timestamp},
    kind::{FactType, is_of_host},
    safe::{MAX_TEXT_CHARS, PREVIEW_CHARS, beginning, is_longer},
};

/// The author of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Source {
    /// The host: a fact.
    #[default]
    Host,
    /// The runner, or the executor that holds the run: a claim.
    Runner,
    /// A capture of another framework: a claim of that capture, also about what only its runtime can know.
    Import,
}

impl Source {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Runner => "runner",
            Self::Import => "import",
        }
    }

    /// The source of what an event says. Answers of people and of clients are recorded by the host.
    pub(super) const fn of(event: EventSource) -> Self {
        match event {
            EventSource::Runner | EventSource::Executor => Self::Runner,
            EventSource::Host | EventSource::Person | EventSource::Client => Self::Host,
            EventSource::Import => Self::Import,
        }
    }
}

/// The facts of the present event.
#[derive(Debug)]
pub(super) struct Out {
    facts: Vec<Fact>,
    runtime_id: String,
    thread: ThreadIds,
    trace_id: Option<String>,
    run: String,
    turn: String,
    /// The number of the next fact in the thread.
    next: u64,
    /// The event of the record; 0 for the record of the run itself.
    event: u64,
    part: u32,
    timestamp: String,
    /// The time that `timestamp` shows.
    at: Timestamp,
    pub(super) source: Source,
}

/// A fact that is being made.
#[derive(Debug)]
pub(super) struct Draft {
    kind: FactType,
    scope: ScopeIds,
    refs: Refs,
    payload: Map<String, Value>,
    source: Option<Source>,
    of_thread: bool,
}

impl Draft {
    pub(super) fn new(kind: FactType) -> Self {
        Self { kind, scope: ScopeIds::default(), refs: Refs::new(), payload: Map::new(), source: None, of_thread: false }
    }

    /// A member of the payload.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.payload.insert(key.to_owned(), value.into());
        self
    }

    /// A member of the payload, where there is a value.
    pub(super) fn with_some(self, key: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// The ids of its scope.
    pub(super) fn scope(mut self, set: impl FnOnce(&mut ScopeIds)) -> Self {
        set(&mut self.scope);
        self
    }

    /// The scope of something else.
    pub(super) fn in_scope(mut self, scope: &ScopeIds) -> Self {
        self.scope = scope.clone();
        self
    }

    /// A reference.
    pub(super) fn refers(mut self, kind: RefKind, uri: impl Into<String>) -> Self {
        let uris = self.refs.entry(kind).or_default();
        let uri = uri.into();
        if !uris.contains(&uri) {
            uris.push(uri);
        }
        self
    }

    /// Said by somebody else than the event.
    pub(super) const fn by(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// A fact of the thread, which belongs to no turn.
    pub(super) const fn of_thread(mut self) -> Self {
        self.of_thread = true;
        self
    }
}

impl Out {
    pub(super) fn new(turn: &Turn) -> Self {
        Self {
            facts: Vec::new(),
            runtime_id: turn.runtime_id.clone(),
            thread: turn.thread.clone(),
            trace_id: turn.trace_id.clone(),
            run: turn.run_id.to_string(),
            turn: turn.turn_id.clone(),
            next: turn.first_sequence,
            event: 0,
            part: 0,
            timestamp: String::new(),
            at: Timestamp::MAX,
            source: Source::Host,
        }
    }

    /// Begins an event of the record.
    pub(super) fn begin(&mut self, event: u64, at: Timestamp, source: Source) {
        (self.event, self.part) = (event, 0);
        self.source = source;
        self.at(at);
    }

    /// The time of the next facts.
    pub(super) fn at(&mut self, at: Timestamp) {
        if self.at != at {
            self.at = at;
            self.timestamp = timestamp(at);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.facts)
    }

    /// The number of the next fact.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn say(&mut self, draft: Draft) {
        let Draft { kind, scope, refs, mut payload, source, of_thread } = draft;
        for (name, id) in scope.entries() {
            payload.insert(name.to_owned(), id.into());
        }
        let source = match (source, self.source) {
            (Some(Source::Host), _) => Source::Host,
            // A capture speaks for its runner and for its runtime.
            (_, Source::Import) => Source::Import,
            // What only the host knows, it says itself, whatever event of a runner it follows from.
            _ if is_of_host(kind.as_str()) => Source::Host,
            (source, own) => source.unwrap_or(own),
        };
        payload.insert("source".to_owned(), source.as_str().into());
        let (turn, run) = if of_thread { (None, None) } else { (Some(self.turn.clone()), Some(self.run.clone())) };
        self.facts.push(Fact {
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: self.runtime_id.clone(),
            session_id: self.thread.session_id.clone(),
            thread_id: self.thread.thread_id.clone(),
            turn_id: turn,
            run_id: run,
            trace_id: self.trace_id.clone(),
            event_id: format!("{}:{}.{}", self.run, self.event, self.part),
            sequence: self.next,
            timestamp: self.timestamp.clone(),
            kind,
            scope,
            refs,
            payload,
        });
        self.next += 1;
        self.part = self.part.saturating_add(1);
    }

    /// The run.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// A warning about the record.
    pub(super) fn warn(&mut self, code: &str, message: &str) {
        self.say(Draft::new(FactType::RuntimeWarning).with("code", code).with("message", message).by(Source::Host));
    }

    /// The address of the present event in the record of the run.
    pub(super) fn event_uri(&self) -> String {
        format!("/api/v1/runs/{0}/events#{0}:{1}", self.run, self.event)
    }

    /// Puts a text into the member `key`: the whole text, or a preview with a reference where the text is long. In the second
    /// case `output.spilled` comes before. `uri` is where all of the text is, if not in the present event.
    pub(super) fn spill(&mut self, draft: Draft, key: &str, text: &str, uri: Option<&str>, media_type: &str) -> Draft {
        if !is_longer(text, MAX_TEXT_CHARS) {
            return draft.with(key, text);
        }
        let preview = beginning(text, PREVIEW_CHARS);
        let uri = uri.map_or_else(|| self.event_uri(), str::to_owned);
        self.spilled(draft.with(key, preview), preview, &uri, Some(text.len() as u64), media_type)
    }

    /// Puts a text that was cut into the member `key`, with a reference to the artifact that has the whole; `output.spilled` comes
    /// before.
    pub(super) fn spill_to(&mut self, draft: Draft, key: &str, text: &str, whole: &ArtifactRef) -> Draft {
        let uri = artifact_uri(&whole.artifact_id);
        let draft = draft.with(key, beginning(text, MAX_TEXT_CHARS));
        self.spilled(draft, beginning(text, PREVIEW_CHARS), &uri, whole.size, &whole.media_type)
    }

    fn spilled(&mut self, draft: Draft, preview: &str, uri: &str, bytes: Option<u64>, media_type: &str) -> Draft {
        self.say(
            Draft::new(FactType::OutputSpilled)
                .in_scope(&draft.scope)
                .refers(RefKind::Output, uri)
                .with("outputRef", uri)
                .with("owner", "host")
                .with("mediaType", media_type)
                .with_some("bytes", bytes)
                .with("preview", preview)
                .with("truncated", true),
        );
        draft.refers(RefKind::Output, uri).with("outputRef", uri).with("outputTruncated", true).with_some("outputBytes", bytes)
    }
}

/// The address of an artifact.
pub(super) fn artifact_uri(id: &str) -> String {
    format!("/api/v1/artifacts/{id}")
}

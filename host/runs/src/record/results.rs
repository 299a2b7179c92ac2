//! Judging a batch of results: all of it is admitted, or none.

use agent_host_config::HARNESS_RESULTS;
use agent_host_facts::record::ActionRequest;
use agent_host_ledger::{NewEvent, NewItem, StateWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, EventId, EventSource, Limits, ResultKind, RunId, RunResult,
    encoded::json_raw,
    fact, import,
    manifest::StateScope,
    message::{ArtifactRef, ContentPart, Message},
    time, ui,
};
use agent_host_sandbox::Batch;
use serde_json::{Value, value::RawValue};

use super::{
    action::{Ask, background_action_id},
    facts::Fact,
    seen::{self, SeenValues},
    terms::Terms,
    transcript::ItemPlace,
};

/// The writes of a batch. `A` is a platform action that the batch asks for.
pub(crate) struct CheckedResults<A> {
    pub(crate) events: Vec<NewEvent>,
    pub(crate) transcript: Vec<NewItem>,
    pub(crate) state: Vec<StateWrite>,
    /// State that others may write as well, as the batch leaves it: scope key, key and tag.
    pub(crate) left: Vec<(String, String, Option<u64>)>,
    /// Artifacts that it names.
    pub(crate) refers_to: Vec<String>,
    /// Platform actions that it asks for, each with its id.
    pub(crate) actions: Vec<(String, A)>,
    /// Types that this version does not name, for the warning.
    pub(crate) unknown: Vec<String>,
}

/// The author of the results of a batch.
pub(crate) struct Speaker<'a> {
    pub(crate) run_id: RunId,
    pub(crate) event_id: EventId,
    pub(crate) terms: &'a Terms,
    /// The runner, the executor that holds the run, or an importer.
    pub(crate) source: EventSource,
}

impl Speaker<'_> {
    /// The place of the items of the run; `None` for a run without a conversation.
    pub(crate) fn place(&self) -> Option<ItemPlace> {
        let conversation = self.terms.grant.conversation.clone()?;
        Some(ItemPlace { conversation, event_id: self.event_id, run_id: self.run_id })
    }
}

/// Looks at the size of a batch, before anything in it is parsed.
pub(crate) fn check_size(batch: &Batch, limits: &Limits) -> Result<(), ApiError> {
    if batch.len() == 0 {
        return Err(ApiError::invalid_argument("a batch has at least one result"));
    }
    if batch.len() > limits.emit_results {
        return Err(ApiError::new(
            ErrorCode::PayloadTooLarge,
            format!("a batch has at most {} results, this one has {}: emit in several", limits.emit_results, batch.len()),
        ));
    }
    let mut total = 0;
    for bytes in batch.bytes() {
        if bytes > limits.result_bytes {
            return Err(ApiError::too_large("a result", bytes, limits.result_bytes));
        }
        total += bytes;
    }
    if total > limits.emit_bytes { Err(ApiError::too_large("a batch of results", total, limits.emit_bytes)) } else { Ok(()) }
}

/// A batch as its events would show it, for a person.
pub(crate) fn displayed(batch: Batch) -> Value {
    let event = |result: RunResult| {
        let data = result.data().ok().and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
        serde_json::json!({ "type": result.kind(), "data": data })
    };
    match batch.parse() {
        Ok(results) => results.into_iter().map(event).collect(),
        Err(error) => serde_json::json!({ "malformed": error.message }),
    }
}

/// Looks up the record of an artifact that a runner names. Fails if the run may not read the artifact.
pub(crate) type KnownArtifact<'a> = dyn Fn(&ArtifactRef) -> Result<ArtifactRef, ApiError> + Sync + 'a;

/// Judges a platform action that a runner asks for: gives what people are asked, and the action.
pub(crate) type JudgeAction<'a, A> = dyn Fn(String, Value, Value) -> Result<(Ask, A), ApiError> + Sync + 'a;

/// Judges each result and says what it writes, events numbered from `sequence` on.
pub(crate) fn judge<A>(
    results: Vec<RunResult>,
    mut sequence: u64,
    speaker: &Speaker<'_>,
    known: &KnownArtifact<'_>,
    judge_action: &JudgeAction<'_, A>,
    seen: &SeenValues,
    limits: &Limits,
) -> Result<CheckedResults<A>, ApiError> {
    let at = time::now();
    let mut judged = CheckedResults {
        events: Vec::with_capacity(results.len()),
        transcript: Vec::new(),
        state: Vec::new(),
        left: Vec::new(),
        refers_to: Vec::new(),
        actions: Vec::new(),
        unknown: Vec::new(),
    };
    for (place, mut result) in results.into_iter().enumerate() {
        let named = |error: ApiError| ApiError { message: format!("result {place}: {}", error.message), ..error };
        complete(&mut result, known, &mut judged.refers_to).map_err(named)?;
        let data = match &result {
            RunResult::ActionRequested { action, target, payload } => {
                let (ask, action) = judge_action(action.clone(), target.clone(), payload.clone()).map_err(named)?;
                let id = background_action_id(speaker.run_id, sequence);
                judged.actions.push((id.clone(), action));
                Fact::ActionRequested(ActionRequest { action_id: Some(id), request: ask }).data()
            }
            other => other.data().map_err(|error| named(ApiError::invalid_argument(error.to_string())))?,
        };
        if data.get().len() > limits.result_bytes {
            return Err(named(ApiError::too_large("`data`", data.get().len(), limits.result_bytes)));
        }
        let kind = result.kind();
        take_effect(result, at, speaker, seen, limits, &mut judged).map_err(named)?;
        let event = NewEvent { sequence, kind, data, timestamp: at, source: speaker.source, metadata: None };
        judged.transcript.extend(speaker.place().and_then(|place| place.of_event(&event)));
        judged.events.push(event);
        sequence += 1;
    }
    Ok(judged)
}

/// Puts what the host knows of an artifact in place of what the runner says of it.
fn complete(result: &mut RunResult, known: &KnownArtifact<'_>, refers_to: &mut Vec<String>) -> Result<(), ApiError> {
    let mut one = |artifact: &mut ArtifactRef| -> Result<(), ApiError> {
        *artifact = known(artifact)?;
        refers_to.push(artifact.artifact_id.clone());
        Ok(())
    };
    match result {
        RunResult::ArtifactCreated(artifact) => one(artifact),
        RunResult::MessageCompleted { message: Message { content, .. }, .. }
        | RunResult::ToolCallCompleted { outcome: Ok(content), .. } => content
            .iter_mut()
            .try_for_each(|part| if let ContentPart::Artifact(artifact) = part { one(artifact) } else { Ok(()) }),
        _ => Ok(()),
    }
}

fn take_effect<A>(
    result: RunResult,
    at: u64,
    speaker: &Speaker<'_>,
    seen: &SeenValues,
    limits: &Limits,
    judged: &mut CheckedResults<A>,
) -> Result<(), ApiError> {
    match result {
        RunResult::MessageDelta { .. }
        | RunResult::ReasoningDelta { .. }
        | RunResult::ToolCallStarted { .. }
        | RunResult::ToolCallCompleted { .. }
        | RunResult::ActionRequested { .. }
        | RunResult::ArtifactCreated(_) => Ok(()),
        RunResult::MessageCompleted { message, .. } => {
            judged.transcript.extend(transcript_item(speaker, message, at));
            Ok(())
        }
        RunResult::StateUpdated { scope, key, value } => {
            let scope_key = state_scope(speaker.terms, scope, &key, limits)?;
            // A second value for the same key follows the first, which is not written yet.
            let again = judged.state.iter().any(|other| other.scope_key == scope_key && other.key == key);
            let write = seen::state_write(seen, limits, scope, scope_key, key, Some(raw(&value)?))?;
            if scope != StateScope::Conversation {
                judged.left.push((write.scope_key.clone(), write.key.clone(), seen::left_by(&write)));
            }
            judged.state.push(if again { StateWrite { expected: None, ..write } } else { write });
            Ok(())
        }
        RunResult::Other { kind, .. } => {
            if let Some(known) = ResultKind::from_name(&kind) {
                let message = if known.is_host_only() {
                    format!("`{kind}` is written by the host alone; a run ends by returning")
                } else {
                    format!("`{kind}` has a form of its own in the contract: emit it as that")
                };
                return Err(ApiError::invalid_argument(message));
            }
            let named =
                |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
            if kind.len() > 128 || !kind.split('.').all(named) {
                return Err(ApiError::invalid_argument(
                    "the type of a result is names joined by dots, such as `acme.progress`, at most 128 characters",
                ));
            }
            let of_importers: &[&str] = if speaker.source == EventSource::Import { &import::ALL } else { &[] };
            if ![&ui::ALL[..], &fact::ALL, &HARNESS_RESULTS, of_importers].iter().any(|known| known.contains(&kind.as_str())) {
                judged.unknown.push(kind);
            }
            Ok(())
        }
    }
}

/// The transcript item of a message that a run has completed, where it has a conversation.
pub(crate) fn transcript_item(speaker: &Speaker<'_>, message: Message, at: u64) -> Option<NewItem> {
    Some(NewItem {
        conversation: speaker.terms.grant.conversation.clone()?,
        event_id: speaker.event_id,
        run_id: Some(speaker.run_id),
        role: message.role.as_str().into(),
        item_type: "message".into(),
        artifacts: message
            .content
            .iter()
            .filter_map(|part| if let ContentPart::Artifact(artifact) = part { Some(artifact.clone()) } else { None })
            .collect(),
        content: message.content,
        created_at: at,
    })
}

/// A value as the ledger keeps it.
pub(crate) fn raw(value: &Value) -> Result<Box<RawValue>, ApiError> {
    json_raw(value).map_err(|error| ApiError::invalid_argument(error.to_string()))
}

/// The scope key of a state value. Fails if this run may not store the key in the scope.
pub(crate) fn state_scope(terms: &Terms, scope: StateScope, key: &str, limits: &Limits) -> Result<String, ApiError> {
    check_key("a state key", key, limits)?;
    granted_scope(terms, scope)
}

/// Checks a key.
pub(crate) fn check_key(what: &str, key: &str, limits: &Limits) -> Result<(), ApiError> {
    if key.is_empty() || key.len() > limits.state_key_bytes || key.chars().any(char::is_control) {
        return Err(ApiError::invalid_argument(format!(
            "{what} has 1 to {} bytes and no control characters",
            limits.state_key_bytes
        )));
    }
    Ok(())
}

/// The key of a scope. Fails if this run was not granted the scope.
pub(crate) fn granted_scope(terms: &Terms, scope: StateScope) -> Result<String, ApiError> {
    terms.grant.state_key(scope).ok_or_else(|| {
        let scope = scope.as_str();
        ApiError::unauthorized(format!(
            "state of scope `{scope}` is not granted to this run: the manifest must ask for it, the binding must allow it, and the event must have a {scope}"
        ))
    })
}

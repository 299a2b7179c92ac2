//! The host calls of the contract, behind the gate: one module for each interface.

use std::sync::Arc;

use agent_host_ledger::{AppendMark, RunChange, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, Event, EventSource, Interface, RunResult, grant::ConversationKey, manifest::ConversationReach,
    message::ArtifactRef,
};
use agent_host_sandbox::{Batch, Refusals, ResultCalls};
use futures_util::future::BoxFuture;

use crate::{
    execution::{Execution, background::BackgroundActions, call::Call, gate::EMIT, neighbours::Neighbours, writer::PendingWrite},
    policy::{platform_action::PlatformAction, services::Services},
    record::{
        facts::shortened,
        results::{self, Speaker},
        seen,
    },
};

mod artifacts;
mod client_tools;
mod events;
mod history;
mod http;
mod interactions;
mod knowledge;
mod models;
mod platform;
pub(crate) mod remote;
mod runs;
mod state;
mod steering;
mod storage;
mod timers;
mod tools;

pub(crate) use artifacts::RunArtifacts;

/// Bytes of an event besides the content of its result: names of fields, braces.
const ENVELOPE_BYTES: usize = 64;

/// The host calls of one run.
#[derive(Clone)]
pub(crate) struct RunCalls {
    pub(crate) run: Arc<Execution>,
    pub(crate) event: Arc<Event>,
    pub(crate) services: Arc<Services>,
    pub(crate) neighbours: Arc<dyn Neighbours>,
}

impl RunCalls {
    fn speaker(&self) -> Speaker<'_> {
        Speaker { run_id: self.run.run_id, event_id: self.event.event_id, terms: &self.run.terms, source: self.run.source() }
    }

    /// True if the run may read this conversation: its own, or one that its grant reaches in the same workspace.
    fn reads(&self, key: &ConversationKey) -> bool {
        let grant = &self.run.terms.grant;
        let Some(own) = &grant.conversation else { return false };
        let reach = |reach| grant.permissions.conversations.contains(&reach);
        own == key
            || (own.workspace() == key.workspace()
                && (reach(ConversationReach::Workspace)
                    || (reach(ConversationReach::Threads) && own.conversation() == key.conversation())))
    }

    /// Passes a call through the gate that is refused there, so that the audit has it. Gives the refusal.
    async fn refused(&self, action: String, bytes: usize, refusal: ApiError) -> ApiError {
        let digest = self.run.journal.digest(&());
        let refuse = || Err(refusal.clone());
        let passed = self.run.pass(Call::read(action, digest).bytes(bytes), refuse, async |()| Ok(())).await;
        passed.outcome.err().unwrap_or(refusal)
    }

    pub(crate) fn artifacts(&self) -> RunArtifacts {
        RunArtifacts { run: Arc::clone(&self.run), event: Arc::clone(&self.event) }
    }
}

/// Step 3 of the gate: whether the run may do this at all.
fn granted<T: PartialEq>(granted: &[T], operation: &T, action: &str) -> Result<(), ApiError> {
    if granted.contains(operation) {
        return Ok(());
    }
    Err(ApiError::unauthorized(format!(
        "{action} is not granted to this run: the manifest must ask for it, and the binding must allow it"
    )))
}

/// Step 4 of the gate: a thing that is there, and not for this run.
fn not_granted(what: &str, id: &str, policy: &str) -> ApiError {
    ApiError::unauthorized(format!(
        "the {what} `{}` is not granted to this run: `{policy}` of the binding names it",
        printable(id)
    ))
}

/// Step 4 of the gate: a thing that is not there, or not for this run to know of.
fn not_found(what: &str, id: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("there is no {what} `{}`", printable(id)))
}

/// An id as a guest gave it.
fn printable(id: &str) -> String {
    shortened(id, 128).escape_debug().to_string()
}

/// Step 5 of the gate.
fn within(what: &str, bytes: usize, limit: usize) -> Result<(), ApiError> {
    if bytes > limit { Err(ApiError::too_large(what, bytes, limit)) } else { Ok(()) }
}

/// The number of hits that a call may ask for.
fn top_k(top_k: u32, most: u32) -> Result<usize, ApiError> {
    if (1..=most).contains(&top_k) {
        return Ok(top_k as usize);
    }
    Err(ApiError::invalid_argument(format!("`top-k` is between 1 and {most}, not {top_k}")))
}

impl RunCalls {
    /// An execution before has emitted these: the run knows the state that they left.
    fn note_state(&self, results: Vec<RunResult>) {
        let run = &*self.run;
        for result in results {
            let RunResult::StateUpdated { scope, key, value } = result else { continue };
            let Ok(scope_key) = results::granted_scope(&run.terms, scope) else { continue };
            run.knowledge.seen.note(&scope_key, &key, Some(seen::tag_of(&value)));
        }
    }
}

impl ResultCalls for RunCalls {
    fn emit(&mut self, batch: Batch) -> BoxFuture<'_, Result<u64, ApiError>> {
        Box::pin(async move { self.emit_with(batch, Vec::new(), &[]).await.map(|written| written.last) })
    }
}

impl RunCalls {
    /// `results.emit`, with changes of the run in the same commit. Results of an executor have marks, one for each from the first on.
    pub(crate) async fn emit_with(
        &mut self,
        batch: Batch,
        changes: Vec<RunChange>,
        marks: &[AppendMark],
    ) -> Result<PendingWrite, ApiError> {
        let sized = results::check_size(&batch, &self.run.limits);
        self.emit_as(self.run.source(), sized, batch, changes, marks).await
    }

    /// Emits what native events have become, in one commit however many results there are: the events were bounded when they
    /// came.
    pub(crate) async fn emit_imported(
        &mut self,
        batch: Batch,
        changes: Vec<RunChange>,
        marks: &[AppendMark],
    ) -> Result<PendingWrite, ApiError> {
        self.emit_as(EventSource::Import, Ok(()), batch, changes, marks).await
    }

    async fn emit_as(
        &mut self,
        source: EventSource,
        sized: Result<(), ApiError>,
        batch: Batch,
        changes: Vec<RunChange>,
        marks: &[AppendMark],
    ) -> Result<PendingWrite, ApiError> {
        let run = &*self.run;
        let (count, bytes) = (batch.len(), batch.bytes().sum());
        let room_bytes = (bytes + count * ENVELOPE_BYTES) as u64;
        let room = run.take_room(room_bytes);
        // A batch that is larger than the burst would wait for ever.
        let counted = count.min(run.limits.results_burst as usize);
        let allowed = || {
            sized?;
            room?;
            run.has_room(count)?;
            run.has_quota()
        };
        let digest = run.journal.digest_of_recorded(&batch, || results::displayed(batch.clone()));
        let (sets_state, metadata, mut batch, mut written_to) = (batch.sets_state(), batch.metadata(), Some(batch), None);
        let effect = async |ticket| {
            let results = batch.take().map_or_else(|| Ok(Vec::new()), Batch::parse)?;
            let artifacts = self.artifacts();
            let speaker = Speaker { source, ..self.speaker() };
            let known = |artifact: &ArtifactRef| artifacts.visible(&artifact.artifact_id).map(|record| record.reference());
            let (mut written, mut actions) = (Vec::new(), Vec::new());
            let judge_action = |action, target, payload| {
                let action = PlatformAction::judge(&run.terms, &self.services, action, target, payload)?;
                Ok((run.in_time(action.ask(&run.limits)), action))
            };
            let make = |first| {
                let mut judged =
                    results::judge(results, first, &speaker, &known, &judge_action, &run.knowledge.seen, &run.limits)?;
                judged.events.iter_mut().zip(metadata).for_each(|(event, metadata)| event.metadata = metadata);
                for (event, mark) in judged.events.iter_mut().zip(marks) {
                    event.metadata = mark.with(event.metadata.as_ref()).or(event.metadata.take());
                }
                actions = judged.actions;
                for kind in &judged.unknown {
                    tracing::warn!(run_id = %run.run_id, kind, "a result of unknown type is kept and has no effect");
                }
                written = judged.left;
                let last = first + judged.events.len() as u64 - 1;
                let write = RunWrite {
                    changes,
                    events: judged.events,
                    transcript: judged.transcript,
                    state: judged.state,
                    refers_to: judged.refers_to,
                    ..RunWrite::default()
                };
                Ok((write, last))
            };
            let (last, commit) = run.commit(ticket, make).await?;
            if let Some(metrics) = &run.metrics {
                metrics.emitted(count as u64);
            }
            written.iter().for_each(|(scope_key, key, tag)| run.knowledge.seen.note(scope_key, key, *tag));
            if actions.is_empty() {
                written_to = Some(commit);
            } else {
                // Every effect is in the record before its answer.
                commit.durable().await?;
                let background = BackgroundActions::new(&self.run, &self.services);
                actions.into_iter().for_each(|(id, action)| background.spawn(id, Ok(action)));
            }
            Ok(last)
        };
        let passed = run.pass(Call::results(EMIT, digest, counted).bytes(bytes), allowed, effect).await;
        if passed.outcome.is_err() {
            run.give_back_room(room_bytes);
        }
        let last = passed.outcome?;
        if let Some(replayed) = batch.filter(|_| sets_state && passed.past.is_some()) {
            self.note_state(replayed.parse()?);
        }
        Ok(written_to.unwrap_or_else(|| PendingWrite::done(last)))
    }
}

impl Refusals for RunCalls {
    fn refuse(&mut self, interface: Interface, function: &'static str) -> BoxFuture<'_, ApiError> {
        Box::pin(async move {
            let action = format!("{interface}.{function}");
            let refusal = ApiError::unauthorized(format!(
                "`{interface}` is not granted to this run: the manifest must ask for it, and the binding and the event must allow it"
            ));
            self.refused(action, 0, refusal).await
        })
    }
}

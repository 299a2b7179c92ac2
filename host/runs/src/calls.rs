//! What a guest may call, behind the gate.

use std::sync::{Arc, atomic::Ordering};

use agent_host_ledger::{Ledger, RunWrite, StateWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, EventId, Interface, Page,
    manifest::{HistoryOperation, StateScope},
    transcript::TranscriptItem,
};
use agent_host_sandbox::{Batch, Closed, HostCalls, PageRequest};
use async_trait::async_trait;
use serde_json::Value;

use crate::{
    error::HostError,
    gate::{Call, EMIT, RunState},
    results::{self, Speaker},
};

/// The host calls of one run.
pub(crate) struct RunCalls {
    pub(crate) run: Arc<RunState>,
    pub(crate) event_id: EventId,
}

impl RunCalls {
    fn speaker(&self) -> Speaker<'_> {
        Speaker { run_id: self.run.run_id, event_id: self.event_id, terms: &self.run.terms }
    }

    fn write(&self) -> RunWrite {
        RunWrite { run_no: self.run.run_no, audit: self.run.take_audit(), ..RunWrite::default() }
    }

    /// One call on a value of state: `granted` has found where it is kept.
    async fn on_state<T>(
        &self,
        action: &'static str,
        scope: StateScope,
        key: &str,
        bytes: usize,
        effect: impl AsyncFnOnce(&Ledger, &str) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let run = &*self.run;
        let call = Call { action, resource: Some(key), scope: Some(scope.as_str()), bytes };
        let found = results::state_scope(&run.terms, scope, key, &run.limits);
        let scope_key = found.clone().unwrap_or_default();
        let limit = run.limits.state_value_bytes;
        let allowed = || {
            found?;
            if bytes > limit { Err(ApiError::too_large("a state value", bytes, limit)) } else { Ok(()) }
        };
        let outcome = run.pass(call, allowed, effect(&run.ledger, &scope_key)).await;
        run.flush_audit().await;
        outcome
    }

    async fn put_state(&self, scope_key: &str, key: &str, value: Option<&Value>) -> Result<(), ApiError> {
        let value = value.map(results::raw).transpose()?;
        let write = StateWrite { scope_key: scope_key.to_owned(), key: key.to_owned(), value };
        let write = RunWrite { state: vec![write], ..self.write() };
        self.run.ledger.submit(write).await.map(drop).map_err(ledger_failed)
    }
}

/// What a guest is told when the ledger fails. Its author can do nothing about the reason, so the reason stays here.
fn ledger_failed(error: agent_host_ledger::LedgerError) -> ApiError {
    let error = HostError::from(error);
    match error {
        HostError::InvalidCursor(message) | HostError::Invalid(message) => ApiError::invalid_argument(message),
        HostError::Conflict(message) => ApiError::new(ErrorCode::Conflict, message),
        other => {
            tracing::error!(error = %other, "a host call failed");
            ApiError::retryable(ErrorCode::RuntimeError, "the host could not do it; its log says why")
        }
    }
}

#[async_trait]
impl HostCalls for RunCalls {
    async fn emit(&mut self, batch: Batch) -> Result<u64, ApiError> {
        let run = &*self.run;
        let (count, bytes) = (batch.len(), batch.bytes().sum());
        let sized = results::check_size(&batch, &run.limits);
        let allowed = || {
            sized?;
            let last = run.last_sequence.load(Ordering::Acquire);
            if last + count as u64 > run.limits.run_events {
                return Err(ApiError::new(
                    ErrorCode::PayloadTooLarge,
                    format!("a run has at most {} events", run.limits.run_events),
                ));
            }
            run.take_results(count)
        };
        let effect = async {
            let first = run.next_sequence();
            let judged = results::judge(batch.parse()?, first, &self.speaker(), &run.limits)?;
            for kind in &judged.unknown {
                tracing::warn!(run_id = %run.run_id, kind, "a result of unknown type is kept and has no effect");
            }
            let last = first + judged.events.len() as u64 - 1;
            let write = RunWrite { events: judged.events, transcript: judged.transcript, state: judged.state, ..self.write() };
            drop(run.ledger.submit(write).await.map_err(ledger_failed)?);
            // Nothing is awaited between the admission and this line, so a guest that is dropped leaves no gap.
            run.last_sequence.store(last, Ordering::Release);
            Ok(last)
        };
        let outcome = run.pass(Call { action: EMIT, resource: None, scope: None, bytes }, allowed, effect).await;
        run.flush_audit().await;
        outcome
    }

    async fn history_page(&mut self, request: PageRequest) -> Result<Page<TranscriptItem>, ApiError> {
        let run = &*self.run;
        let grant = &run.terms.grant;
        let own = grant.conversation.as_ref();
        let resource = request.conversation_id.clone().or_else(|| own.map(|key| key.conversation.clone()));
        let call = Call { action: "history.page", resource: resource.as_deref(), scope: Some("conversation"), bytes: 0 };
        let allowed = || {
            if !grant.permissions.history.contains(&HistoryOperation::Page) {
                return Err(ApiError::unauthorized("history.page is not granted to this run"));
            }
            match (own, &request.conversation_id) {
                (None, _) => Err(ApiError::new(
                    ErrorCode::NotFound,
                    "the event of this run belongs to no conversation, so it has no history",
                )),
                // Whether another conversation exists is not for this run to know.
                (Some(own), Some(asked)) if own.conversation != *asked => {
                    Err(ApiError::unauthorized("this run is granted the history of its own conversation only"))
                }
                _ => Ok(()),
            }
        };
        let effect = async {
            let key = own.cloned().unwrap_or_default();
            let (before, after) = (request.before.as_deref(), request.after.as_deref());
            let mut page = run.ledger.transcript(&key, before, after, request.limit, request.direction).map_err(ledger_failed)?;
            if !request.include_artifacts {
                page.items.iter_mut().for_each(|item| item.artifacts.clear());
            }
            Ok(page)
        };
        let outcome = run.pass(call, allowed, effect).await;
        run.flush_audit().await;
        outcome
    }

    async fn state_get(&mut self, scope: StateScope, key: String) -> Result<Option<Value>, ApiError> {
        let get = async |ledger: &Ledger, scope_key: &str| ledger.state_get(scope_key, &key).map_err(ledger_failed);
        self.on_state("state.get", scope, &key, 0, get).await
    }

    async fn state_set(&mut self, scope: StateScope, key: String, value: String) -> Result<(), ApiError> {
        let set = async |_: &Ledger, scope_key: &str| {
            let value = agent_host_sandbox::parse_json("the value", &value)?;
            self.put_state(scope_key, &key, Some(&value)).await
        };
        self.on_state("state.set", scope, &key, value.len(), set).await
    }

    async fn state_delete(&mut self, scope: StateScope, key: String) -> Result<(), ApiError> {
        let delete = async |_: &Ledger, scope_key: &str| self.put_state(scope_key, &key, None).await;
        self.on_state("state.delete", scope, &key, 0, delete).await
    }

    async fn state_list_keys(&mut self, scope: StateScope, prefix: Option<String>, limit: u32) -> Result<Vec<String>, ApiError> {
        let run = &*self.run;
        let call = Call { action: "state.list-keys", resource: prefix.as_deref(), scope: Some(scope.as_str()), bytes: 0 };
        let found = results::granted_scope(&run.terms, scope);
        let scope_key = found.clone().unwrap_or_default();
        let effect = async { run.ledger.state_keys(&scope_key, prefix.as_deref(), limit).map_err(ledger_failed) };
        let outcome = run.pass(call, || found.map(drop), effect).await;
        run.flush_audit().await;
        outcome
    }

    async fn refuse(&mut self, interface: Interface, function: &'static str, why: Closed) -> ApiError {
        let action = format!("{interface}.{function}");
        let refusal = match why {
            Closed::NotGranted => ApiError::unauthorized(format!(
                "`{interface}` is not granted to this run: the manifest must ask for it, and the binding and the event must allow it"
            )),
            Closed::NotAvailable => agent_host_providers::unavailable(interface, function),
        };
        let call = Call { action: &action, resource: None, scope: None, bytes: 0 };
        let outcome = self.run.pass(call, || Err::<(), _>(refusal.clone()), async { Ok(()) }).await;
        self.run.flush_audit().await;
        outcome.err().unwrap_or(refusal)
    }
}

//! Effects whose outcome is in doubt: the host died between their start and their end.
//!
//! One that is harmless to repeat is repeated. Of any other the guest is told, or a person decides, as the binding says:
//! then the run is parked with an `action.requested`, and the answer is an `action.resolved`.

use agent_host_ledger::{LedgerError, RunWrite};
use agent_host_protocol::{ApiError, ErrorCode, ResultKind, RunId, message::ToolCall, time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    beginning::fact,
    config::InDoubt,
    error::{HostError, ledger_failed},
    gate::RunState,
    host::Host,
    journal::Stop,
};

/// The action that is asked for.
const ACTION: &str = "effect.repeat";

/// What a person says of an effect in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Do it again: it did not happen, or twice does no harm.
    Repeat,
    /// Do not: the runner is told that nobody knows.
    Skip,
}

/// An effect in doubt, for whoever decides on it.
pub(crate) struct Doubt<'a> {
    /// Number of the call among those to models and tools.
    pub(crate) number: u64,
    pub(crate) call: &'a ToolCall,
}

fn action_id(run_id: RunId, number: u64) -> String {
    format!("{run_id}.{number}")
}

fn key(action_id: &str) -> String {
    format!("action/{action_id}")
}

impl RunState {
    /// What is to become of effects in doubt. Where a person is to say and has not, this does not return: the run is
    /// parked until then.
    pub(crate) async fn decided(&self, doubts: &[Doubt<'_>]) -> Result<Vec<Decision>, ApiError> {
        if self.terms.in_doubt == InDoubt::Error || !self.journal.can_resume() {
            return Ok(vec![Decision::Skip; doubts.len()]);
        }
        let events = self.ledger.run_events_after(self.run_no, self.run_id, 0, usize::MAX).map_err(ledger_failed)?;
        let said = |kind: ResultKind, id: &str| {
            let data = events.iter().filter(|event| event.kind == kind.as_str()).map(|event| event.data.get());
            let mut data = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
            data.find(|data| data.get("action_id").and_then(Value::as_str) == Some(id))
        };
        let (mut decisions, mut open) = (Vec::new(), Vec::new());
        for Doubt { number, call } in doubts {
            let id = action_id(self.run_id, *number);
            let resolved = said(ResultKind::ActionResolved, &id);
            match resolved.and_then(|data| serde_json::from_value(data.get("decision")?.clone()).ok()) {
                Some(decision) => decisions.push(decision),
                None => {
                    if said(ResultKind::ActionRequested, &id).is_none() {
                        self.record_fact(ResultKind::ActionRequested, &request(&id, call)).await?;
                    }
                    open.push(key(&id));
                }
            }
        }
        if open.is_empty() {
            return Ok(decisions);
        }
        self.stop(Stop::Park { until: None, reason: "effect_in_doubt", keys: open }).await
    }
}

fn request(id: &str, call: &ToolCall) -> Value {
    let parameters = call.parameters.to_string();
    json!({
        "action_id": id,
        "action": ACTION,
        "target": { "tool_name": call.tool_name, "tool_call_id": call.call_id },
        "payload": { "parameters": crate::facts::shortened(&parameters, 4096) },
        "message": format!(
            "the host stopped while `{}` was called, and nobody knows what came of it: find out, and say whether to call it again",
            call.tool_name
        ),
        "decisions": [Decision::Repeat, Decision::Skip],
    })
}

/// What the guest is told of an effect that is not repeated.
pub(crate) fn in_doubt(tool: &str) -> ApiError {
    ApiError {
        details: Some(json!({ "code": "effect_in_doubt" })),
        ..ApiError::new(
            ErrorCode::RuntimeError,
            format!(
                "the host stopped while `{tool}` was called, and nobody knows what came of it; it was not called again, since it \
                 is neither read-only nor idempotent: find out what it did, or ask somebody"
            ),
        )
    }
}

impl Host {
    /// Answers the question whether an effect in doubt is to be repeated. The run goes on by that.
    ///
    /// # Errors
    /// When no run waits for it: there is no such action, or it was answered before, which the error says.
    pub async fn decide(&self, action_id: &str, decision: Decision) -> Result<(), HostError> {
        let missing = || HostError::NotFound(format!("there is no action {action_id}"));
        let run_id: RunId = action_id.split_once('.').and_then(|(run_id, _)| run_id.parse().ok()).ok_or_else(missing)?;
        let ledger = &self.inner().ledger;
        loop {
            let record = ledger.run(run_id)?.ok_or_else(missing)?;
            let waits = ledger.parked(record.run_no)?.is_some_and(|park| park.keys.contains(&key(action_id)));
            let events = ledger.run_events_after(record.run_no, run_id, 0, usize::MAX)?;
            let about = |kind: ResultKind| {
                let mut events = events.iter().filter(|event| event.kind == kind.as_str());
                events.find_map(|event| {
                    let data: Value = serde_json::from_str(event.data.get()).ok()?;
                    (data.get("action_id")?.as_str()? == action_id).then_some(data)
                })
            };
            if let Some(answered) = about(ResultKind::ActionResolved) {
                let decision = answered.get("decision").and_then(Value::as_str).unwrap_or_default();
                return Err(HostError::Conflict(format!("action {action_id} was answered before, with `{decision}`")));
            }
            if about(ResultKind::ActionRequested).is_none() {
                return Err(missing());
            }
            if !waits {
                return Err(HostError::Conflict(format!(
                    "run {run_id} does not wait for an answer: it is {}",
                    record.run.status
                )));
            }
            let data = json!({ "action_id": action_id, "decision": decision });
            let event = fact(ResultKind::ActionResolved, record.run.last_sequence + 1, time::now(), &data);
            let write = RunWrite { run_no: record.run_no, events: vec![event], ..RunWrite::default() };
            match ledger.submit(write).await?.await {
                Ok(_) => return self.wake(record.run_no).await,
                // Somebody else has written to the run meanwhile: it is looked at again.
                Err(LedgerError::Sequence { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

//! The use of models by a run: a projection of the events that only the host writes.

use agent_host_protocol::{ResultKind, Run, message::TokenUsage, run::ModelUsage};
use serde::Deserialize;

use crate::record::NewEvent;

/// The use of models that one event reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MeasuredUse {
    /// The end of a call.
    Call { model_id: String, usage: Option<TokenUsage>, cost_micros: Option<u64> },
    /// The end of a child.
    Child(ModelUsage),
}

/// The data of `model.call.completed`.
#[derive(Deserialize)]
struct CallEnd {
    model_id: String,
    #[serde(default)]
    usage: Option<ReportedTokens>,
    #[serde(default)]
    cost_micros: Option<u64>,
}

/// Tokens, or the word `unknown`.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReportedTokens {
    Known(TokenUsage),
    Unknown(#[allow(dead_code, reason = "the word says nothing more")] String),
}

/// The data of `run.child.ended`.
#[derive(Deserialize)]
struct ChildEnd {
    #[serde(default)]
    usage: Option<ModelUsage>,
}

impl MeasuredUse {
    /// `None` for events that report no use of models.
    pub(crate) fn of(event: &NewEvent) -> Option<Self> {
        let data = event.data.get();
        if event.kind == ResultKind::ModelCallCompleted.as_str() {
            let CallEnd { model_id, usage, cost_micros } = serde_json::from_str(data).ok()?;
            let usage = usage.and_then(|usage| match usage {
                ReportedTokens::Known(usage) => Some(usage),
                ReportedTokens::Unknown(_) => None,
            });
            return Some(Self::Call { model_id, usage, cost_micros });
        }
        if event.kind == ResultKind::ChildEnded.as_str() {
            let ChildEnd { usage } = serde_json::from_str(data).ok()?;
            return usage.map(Self::Child);
        }
        None
    }

    /// Adds the use to the sums of the run.
    pub(crate) fn add_to(self, run: &mut Run) {
        match self {
            Self::Call { model_id, usage, cost_micros } => {
                run.usage.get_or_insert_default().count(usage.as_ref(), cost_micros);
                run.usage_by_model.entry(model_id).or_default().count(usage.as_ref(), cost_micros);
            }
            Self::Child(usage) => run.children_usage.get_or_insert_default().add(&usage),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::samples;

    fn event(kind: ResultKind, data: &Value) -> NewEvent {
        let data = agent_host_protocol::encoded::JsonText::of(data).unwrap();
        NewEvent {
            sequence: 1,
            kind: kind.as_str().into(),
            data,
            timestamp: 1,
            source: agent_host_protocol::EventSource::Host,
            metadata: None,
        }
    }

    #[test]
    fn sums_are_those_of_the_events() {
        let mut run = samples::run(agent_host_protocol::EventId::new());
        let call = |model: &str, rest: Value| {
            let mut data = json!({ "model_call_id": "c1", "model_id": model, "operation": "invoke", "duration_ms": 1 });
            data.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            event(ResultKind::ModelCallCompleted, &data)
        };
        let events = [
            call("a", json!({ "usage": { "input": 10, "output": 2, "cached_input": 4 }, "cost_micros": 30 })),
            call("b", json!({ "usage": "unknown" })),
            call("a", json!({ "error": { "category": "x", "code": "y", "message": "z" } })),
            event(
                ResultKind::ChildEnded,
                &json!({ "run_id": "r", "status": "completed", "usage": { "calls": 2, "input": 5, "output": 1 } }),
            ),
            event(ResultKind::ChildEnded, &json!({ "run_id": "r", "status": "failed" })),
            event(ResultKind::MessageDelta, &json!({ "content": "model.call.completed" })),
        ];
        events.iter().filter_map(MeasuredUse::of).for_each(|measured| measured.add_to(&mut run));
        let usage = run.usage.unwrap();
        assert_eq!((usage.calls, usage.unmeasured_calls, usage.input, usage.output), (3, 2, 10, 2));
        assert_eq!((usage.cached_input, usage.cost_micros), (4, Some(30)));
        assert_eq!((run.usage_by_model["a"].calls, run.usage_by_model["b"].unmeasured_calls), (2, 1));
        assert_eq!((run.children_usage.unwrap().tokens(), run.total_usage().tokens()), (6, 18));
    }
}

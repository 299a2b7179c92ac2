//! Calls of models, and what they cost.

use agent_host_protocol::{
    manifest::ModelOperation,
    message::TokenUsage,
    model::{Fallback, Retry},
    run::ModelUsage,
};
use serde_json::{Map, Value, json};

use super::{
    ids::{Ids, Kind},
    out::{Draft, Out, Source},
};
use crate::{
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::{CallFailure, ModelCallEnd, ModelCallStart, Usage},
    safe::line,
};

/// Calls of models that have not ended.
#[derive(Debug, Default)]
pub(super) struct Models {
    open: OpenElements<OpenCall>,
    /// True if a model was called in this attempt.
    any: bool,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    model: String,
}

/// The category of a failure, and whether another try may succeed.
fn judged(error: &CallFailure) -> (FailureCategory, bool) {
    let named = error.category.as_str().and_then(FailureCategory::of_code).or_else(|| FailureCategory::of_code(&error.code));
    let category = named.filter(|category| *category != FailureCategory::InternalError).unwrap_or(FailureCategory::ModelFailed);
    (category, is_retryable(category))
}

/// True if the same call may succeed later, by its category.
pub(super) const fn is_retryable(category: FailureCategory) -> bool {
    matches!(
        category,
        FailureCategory::RateLimit
            | FailureCategory::StreamInterrupted
            | FailureCategory::HostRestarted
            | FailureCategory::Conflict
    )
}

impl Models {
    /// True if a model was called in this attempt.
    pub(super) const fn any(&self) -> bool {
        self.any
    }

    pub(super) fn started(&mut self, out: &mut Out, ids: &mut Ids, start: &ModelCallStart) {
        self.any = true;
        if self.open.contains(&start.model_call_id) {
            return out.warn("duplicate_model_start", "a model call began that had begun before");
        }
        let id = ids.of(Kind::Model, &start.model_call_id);
        out.say(
            Draft::new(FactType::ModelRequested)
                .scope(|scope| scope.model_request_id = Some(id.clone()))
                .with("model", start.model_id.as_str())
                .with("origin", "host")
                .with_some("operation", start.operation.map(ModelOperation::as_str)),
        );
        self.open.insert(&start.model_call_id, OpenCall { id, model: start.model_id.clone() });
    }

    pub(super) fn ended(&mut self, out: &mut Out, end: ModelCallEnd) {
        let Some(call) = self.open.remove(&end.call.model_call_id) else {
            return out.warn("model_end_without_start", "a model call ended that had not begun");
        };
        let model = if end.call.model_id.is_empty() { call.model } else { end.call.model_id };
        for failed in &end.fallbacks {
            fell_back(out, &call.id, failed);
        }
        for retry in &end.retries {
            sent_again(out, &call.id, &model, retry);
        }
        if let Some(error) = &end.error {
            let (category, retryable) = judged(error);
            failed(out, &call.id, Some(&model), category, &error.message, error.name(), retryable);
            if category == FailureCategory::RateLimit {
                let reason = "the provider names no time, or the host has waited for it already";
                out.say(rate_limit(&call.id, &model).with("retryAfter", Value::Null).with("reason", reason));
            }
        }
        let (usage, reason) = match (end.usage, end.error.is_some()) {
            (Some(Usage::Known(usage)), _) => (Some(tokens(&usage)), None),
            (Some(Usage::Unknown(_)), _) => (None, Some("provider_did_not_report")),
            (None, true) => (None, Some("call_failed")),
            (None, false) => (None, Some("not_recorded")),
        };
        let draft = Draft::new(FactType::CostRecorded)
            .scope(|scope| scope.model_request_id = Some(call.id.clone()))
            .with("model", model)
            .with_some("durationMs", end.duration_ms)
            .with_some("stopReason", end.finish_reason);
        out.say(cost(draft, usage, reason, end.cost_micros));
    }

    /// Ends the calls that nobody waits for any more.
    pub(super) fn close(&mut self, out: &mut Out, category: FailureCategory, why: &str) {
        for (_, call) in self.open.take() {
            failed(out, &call.id, Some(&call.model), category, why, category.as_str(), is_retryable(category));
        }
        self.any = false;
    }
}

fn rate_limit(id: &str, model: &str) -> Draft {
    Draft::new(FactType::RateLimitHit)
        .scope(|scope| scope.model_request_id = Some(id.to_owned()))
        .with("kind", "model")
        .with("model", model)
}

/// A request to the provider failed, and the host has sent it again after a pause.
fn sent_again(out: &mut Out, id: &str, model: &str, retry: &Retry) {
    let category = FailureCategory::of_code(&retry.category).unwrap_or(FailureCategory::ModelFailed);
    if category == FailureCategory::RateLimit {
        let after = format!("{} ms", retry.pause_ms);
        return out.say(
            rate_limit(id, model).with("retryAfter", after).with("reason", "the host waited, and asked the provider again"),
        );
    }
    out.say(
        Draft::new(FactType::RuntimeWarning)
            .scope(|scope| scope.model_request_id = Some(id.to_owned()))
            .with("code", "provider_retry")
            .with("message", "a request to the provider failed, and the host sent it again")
            .with("model", model)
            .with("failureCategory", category.as_str())
            .with("pauseMs", retry.pause_ms),
    );
}

/// A model failed before it answered, and the host has asked the next one of its fallback chain.
fn fell_back(out: &mut Out, id: &str, fallback: &Fallback) {
    let category = FailureCategory::of_code(&fallback.category).unwrap_or(FailureCategory::ModelFailed);
    out.say(
        Draft::new(FactType::RuntimeWarning)
            .scope(|scope| scope.model_request_id = Some(id.to_owned()))
            .with("code", "model_fallback")
            .with("message", "a model failed before it answered, and the host asked the next one of its fallback chain")
            .with("model", fallback.model_id.as_str())
            .with("failureCategory", category.as_str())
            .with("durationMs", fallback.duration_ms),
    );
}

fn failed(out: &mut Out, id: &str, model: Option<&str>, category: FailureCategory, message: &str, code: &str, retryable: bool) {
    out.say(
        Draft::new(FactType::ModelFailed)
            .scope(|scope| scope.model_request_id = Some(id.to_owned()))
            .with_some("model", model)
            .with("failureCategory", category.as_str())
            .with("error", line(message))
            .with("code", line(code))
            .with("retryable", retryable)
            .with("recoveryHint", category.hint()),
    );
}

/// The cost of something: what is not known is said, with the reason.
fn cost(draft: Draft, usage: Option<Value>, reason: Option<&str>, micros: Option<u64>) -> Draft {
    let draft = match (usage, reason) {
        (Some(usage), _) => draft.with("status", "recorded").with("usage", usage),
        (None, reason) => {
            draft.with("status", "unknown").with("usage", Value::Null).with("reason", reason.unwrap_or("not_recorded"))
        }
    };
    match micros {
        Some(micros) => draft.with("amountMicros", micros).with("amountStatus", "recorded"),
        None => {
            draft.with("amountMicros", Value::Null).with("amountStatus", "unavailable").with("amountReason", "no_price_known")
        }
    }
}

fn tokens(usage: &TokenUsage) -> Value {
    let mut members = Map::new();
    members.insert("input".to_owned(), usage.input.into());
    members.insert("output".to_owned(), usage.output.into());
    members.insert("total".to_owned(), usage.input.saturating_add(usage.output).into());
    members.insert("cached".to_owned(), json!(usage.cached_input));
    members.insert("reasoning".to_owned(), json!(usage.reasoning));
    Value::Object(members)
}

/// The use of models that a runner reports of itself; `model` where it names one.
pub(super) fn claimed(out: &mut Out, usage: &TokenUsage, model: Option<&str>) {
    let draft = Draft::new(FactType::CostRecorded).with("model", model.map(line)).with("claimed", true).by(Source::Runner);
    out.say(cost(draft, Some(tokens(usage)), None, None));
}

/// The use of models by a child run.
pub(super) fn of_child(out: &mut Out, task: &str, usage: Option<&ModelUsage>) {
    let draft = Draft::new(FactType::CostRecorded)
        .scope(|scope| {
            scope.task_id = Some(task.to_owned());
            scope.subagent_id = Some(task.to_owned());
        })
        .with("model", Value::Null);
    let known = usage.filter(|usage| usage.calls > usage.unmeasured_calls);
    let value = known.map(|usage| {
        json!({
            "input": usage.input, "output": usage.output, "total": usage.tokens(),
            "cached": usage.cached_input, "reasoning": usage.reasoning, "unmeasuredCalls": usage.unmeasured_calls,
        })
    });
    let reason = if usage.is_none_or(|usage| usage.calls == 0) { "no_model_called" } else { "provider_did_not_report" };
    out.say(cost(draft, value, Some(reason), usage.and_then(|usage| usage.cost_micros)));
}

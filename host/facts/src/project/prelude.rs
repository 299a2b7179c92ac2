//! The facts of a turn that come before its record: those of its creation, its start and its terms.

use agent_host_protocol::{import::Form, run::Execution};
use serde_json::{Value, json};

use super::{
    out::{Draft, Out},
    turn::Turn,
};
use crate::{
    fact::RefKind,
    kind::FactType,
    safe::{line, redacted_text},
};

/// Names in a list of a fact: the grant of the run has all of them.
const MAX_NAMES: usize = 100;

/// The beginning of the input that is shown.
const INPUT_CHARS: usize = 280;

pub(super) fn say(out: &mut Out, turn: &Turn) {
    out.at(turn.created_at);
    if turn.is_first {
        out.say(Draft::new(FactType::SessionCreated).of_thread());
        out.say(Draft::new(FactType::ThreadStarted).of_thread());
    }
    let input_ref = format!("/api/v1/events/{}", turn.event_id);
    let mut submitted = Draft::new(FactType::TurnSubmitted)
        .refers(RefKind::Raw, input_ref.as_str())
        .with("inputRef", input_ref)
        .with("origin", turn.origin.as_str())
        .with("agent", turn.agent.as_str())
        .with("status", "accepted");
    submitted = match &turn.input {
        Some(text) => {
            let preview = crate::safe::beginning(text, INPUT_CHARS);
            submitted.with("inputPreview", redacted_text(preview.to_owned()))
        }
        None => submitted.with("inputPreview", Value::Null),
    };
    if let Some(parent) = turn.parent_run_id {
        submitted = submitted.with("parentRunId", parent.to_string());
    }
    if let Some(before) = turn.retry_of {
        submitted = submitted.with("retryOf", before.to_string());
    }
    out.say(submitted);
    if turn.has_queue || turn.started_at.is_none() {
        out.say(Draft::new(FactType::RunStatus).with("phase", "queued"));
    }
    if let Some(started_at) = turn.started_at {
        out.at(started_at);
        begun(out, turn);
    }
}

fn begun(out: &mut Out, turn: &Turn) {
    let deadline = turn.terms.deadline_ms;
    out.say(Draft::new(FactType::TurnStarted).with("runnerId", turn.runner_id.as_str()).with("agent", turn.agent.as_str()));
    out.say(Draft::new(FactType::RunStatus).with("phase", "preparing"));
    let context_ref = format!("/api/v1/runs/{}/context", turn.run_id);
    let grant_ref = format!("/api/v1/runs/{}/grant", turn.run_id);
    let Some(grant) = &turn.terms.grant else {
        let unknown = |kind| Draft::new(kind).with("status", "unknown").with("reason", "the run has no terms");
        out.say(unknown(FactType::ContextResolved).refers(RefKind::Raw, context_ref.as_str()).with("contextRef", context_ref));
        out.say(unknown(FactType::PermissionEvaluated).with("decision", Value::Null));
        out.say(unknown(FactType::SandboxApplied));
        return;
    };
    let client_tools = grant.client_tools.iter().map(|tool| &tool.name);
    out.say(
        Draft::new(FactType::ContextResolved)
            .refers(RefKind::Raw, context_ref.as_str())
            .with("contextRef", context_ref)
            .with("tools", names(grant.tools.iter().chain(client_tools)))
            .with("toolCount", grant.tools.len() + grant.client_tools.len())
            .with("knowledge", names(grant.knowledge_bases.iter())),
    );
    // The host executes nothing of a capture, and it does not say what its framework allowed.
    let is_capture = turn.execution == Execution::Host && Form::of_grant(grant).is_some();
    let evaluated = Draft::new(FactType::PermissionEvaluated).refers(RefKind::Raw, grant_ref.as_str());
    out.say(if is_capture {
        evaluated.with("decision", Value::Null).with("status", "unknown").with("reason", "the capture does not say it")
    } else {
        let interfaces: Vec<&str> = grant.interfaces().iter().map(|interface| interface.as_str()).collect();
        evaluated
            .with("decision", "allow")
            .with("decisionSource", "grant")
            .with("grantRef", grant_ref)
            .with("interfaces", interfaces)
            .with("bindingId", grant.binding_id.as_str())
    });
    let asks_for_models = !grant.permissions.models.is_empty();
    match grant.models.as_slice() {
        [] if asks_for_models => out.say(
            Draft::new(FactType::RoutingNotPossible)
                .with("candidateCount", 0)
                .with("reason", "no model is configured or granted")
                .with("failureCategory", "provider_not_ready"),
        ),
        [] => {}
        [only] => out.say(
            Draft::new(FactType::RoutingSingleCandidate)
                .with("candidateCount", 1)
                .with("selectedModel", only.as_str())
                .with("decisionSource", "grant"),
        ),
        several => out.say(
            Draft::new(FactType::RoutingCandidatesResolved)
                .with("candidateCount", several.len())
                .with("candidates", names(several.iter()))
                .with("decisionSource", "runner"),
        ),
    }
    out.say(match turn.execution {
        _ if is_capture => Draft::new(FactType::SandboxApplied)
            .with("profile", Value::Null)
            .with("status", "unknown")
            .with("reason", "the capture does not say it"),
        Execution::Host => Draft::new(FactType::SandboxApplied)
            .with("profile", "wasm-component")
            .with("component", grant.component.as_str())
            .with("network", if grant.permissions.http_hosts.is_empty() { "none" } else { "allowed_hosts" })
            .with("networkHosts", names(grant.permissions.http_hosts.iter()))
            .with("readRoots", Value::Array(Vec::new()))
            .with("writeRoots", Value::Array(Vec::new())),
        Execution::External => Draft::new(FactType::SandboxApplied)
            .with("profile", Value::Null)
            .with("status", "unknown")
            .with("reason", "an executor outside of the host executes the run"),
    });
    let budget = turn.terms.budget.unwrap_or_default();
    out.say(
        Draft::new(FactType::LimitChanged)
            .with("limits", json!({ "deadlineMs": deadline, "modelUsage": budget.tokens, "costMicros": budget.cost_micros })),
    );
}

fn names<T: ToString>(names: impl Iterator<Item = T>) -> Vec<String> {
    names.take(MAX_NAMES).map(|name| line(&name.to_string())).collect()
}

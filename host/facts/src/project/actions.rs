//! Requests of a run to people and clients: approvals, questions, effects in doubt, calls of client tools.

use std::collections::HashMap;

use agent_host_protocol::import::{self, ActionDecision};
use serde_json::{Map, Value, json};

use super::{
    ids::{Ids, Kind},
    out::{Draft, Out, Source},
    texts::Texts,
    tools::{Call, Measures, Outcome, Tools},
};
use crate::{
    fact::{RefKind, ScopeIds, timestamp},
    failure::FailureCategory,
    kind::FactType,
    open::OpenElements,
    record::{ActionAnswer, ActionEnd, ActionRequest, CallFailure, Decision},
    safe::{line, small},
};

/// The actions of an attempt.
#[derive(Debug, Default)]
pub(super) struct Actions {
    /// Without an end.
    open: OpenElements<OpenAction>,
    /// Decided, and being carried out: the calls that the outcome ends, by the action.
    acting: OpenElements<String>,
    /// The open actions of calls.
    by_call: HashMap<String, String>,
}

#[derive(Debug)]
struct OpenAction {
    scope: ScopeIds,
    asks_permission: bool,
    /// The call that ends with the action, as the runner names it.
    call: Option<String>,
    is_client_tool: bool,
    title: String,
}

impl Actions {
    pub(super) fn requested(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        texts: &mut Texts,
        tools: &mut Tools,
        request: ActionRequest,
        sequence: u64,
    ) {
        let ActionRequest { action_id, request: mut more } = request;
        let given = action_id.unwrap_or_else(|| format!("{}.e{sequence}", ids.run()));
        if self.open.contains(&given) || self.acting.contains(&given) {
            return out.warn("duplicate_action", "an action was asked for that had been asked for before");
        }
        let kind = text(&more, "kind").unwrap_or("platform_action").to_owned();
        let name = said(&more, "action").unwrap_or("action").to_owned();
        let is_client_tool = kind == "client_tool";
        let call = match kind.as_str() {
            "platform_action" => {
                let parameters = json!({
                    "target": more.remove("target").unwrap_or_default(), "payload": more.remove("payload").unwrap_or_default(),
                });
                let call = Call {
                    name: &given,
                    tool: &name,
                    parameters: Some(parameters),
                    parameters_bytes: None,
                    message: None,
                    executor: "platform",
                };
                self.release(out, &given);
                Some((given.clone(), tools.begin(out, ids, texts, call)))
            }
            "client_tool" => {
                let call_id = text(&more, "tool_call_id").unwrap_or(&given).to_owned();
                let tool = text(&more, "tool_name").unwrap_or_default().to_owned();
                let parameters = more.remove("parameters");
                let call =
                    Call { name: &call_id, tool: &tool, parameters, parameters_bytes: None, message: None, executor: "client" };
                self.release(out, &call_id);
                let scope = tools.begin(out, ids, texts, call);
                Some((call_id, scope))
            }
            _ => None,
        };
        let (call, of_call) = call.map_or((None, ScopeIds::default()), |(name, scope)| (Some(name), scope));
        if text(&more, "policy") == Some("allow") {
            out.say(
                Draft::new(FactType::PermissionEvaluated)
                    // The policy is the host's, whoever asks.
                    .by(Source::Host)
                    .in_scope(&of_call)
                    .with("decision", "allow")
                    .with("decisionSource", "policy")
                    .with("action", line(&name)),
            );
            if let Some(call) = call {
                self.acting.insert(&given, call);
            }
            return;
        }
        let scope = ScopeIds { action_id: Some(ids.of(Kind::Action, &given)), ..of_call };
        let asks_permission = matches!(kind.as_str(), "platform_action" | "effect_in_doubt");
        let tool = text(&more, "tool_name").unwrap_or_default();
        let title = said(&more, "title").map(line).unwrap_or_else(|| match kind.as_str() {
            "client_tool" => format!("Call of the client's tool {}", line(tool)),
            _ => line(&name),
        });
        let expires_at = more.get("expires_at").and_then(Value::as_u64).map(timestamp);
        if asks_permission {
            out.say(
                Draft::new(FactType::PermissionRequested)
                    .in_scope(&scope)
                    .with("decision", "ask")
                    .with("decisionSource", "policy")
                    .with("action", line(&name))
                    .with_some("expiresAt", expires_at.clone()),
            );
        }
        let action_type = match kind.as_str() {
            "platform_action" => "permission",
            "effect_in_doubt" => "interrupt",
            "client_tool" => "client_tool",
            _ if text(&more, "question") == Some("plan_review") => "plan_review",
            _ => "structured_input",
        };
        let decisions = more.get("decisions").and_then(Value::as_array).cloned().unwrap_or_default();
        let options: Vec<Value> = decisions
            .iter()
            .filter_map(Value::as_str)
            .take(16)
            .map(|decision| json!({ "id": decision, "label": decision, "destructive": matches!(decision, "deny" | "skip") }))
            .collect();
        let mut draft = Draft::new(FactType::ActionRequired)
            .in_scope(&scope)
            .with("actionType", action_type)
            .with("owner", if asks_permission { "policy" } else { "runtime" })
            .with("title", title.as_str())
            .with_some("description", text(&more, "description").or_else(|| text(&more, "message")).map(line))
            .with("options", options)
            .with_some("question", text(&more, "question").map(line))
            .with_some("expiresAt", expires_at);
        match more.remove("answer_schema").filter(|schema| !schema.is_null()) {
            // A form that would be another without its secrets is read where it is.
            Some(schema) => match small(schema.clone()) {
                Some(safe) if safe == schema => draft = draft.with("inputSchema", safe),
                _ => {
                    let uri = out.event_uri();
                    draft = draft.refers(RefKind::Raw, uri.as_str()).with("inputSchemaRef", uri);
                }
            },
            None => draft = draft.with("inputSchema", Value::Null),
        }
        out.say(draft);
        if let Some(call) = &call {
            self.by_call.insert(call.clone(), given.clone());
        }
        self.open.insert(&given, OpenAction { scope, asks_permission, call, is_client_tool, title });
    }

    /// An answer was given.
    pub(super) fn answered(&mut self, out: &mut Out, tools: &mut Tools, answer: ActionAnswer) {
        let Some(action) = self.close_one(&answer.action_id) else { return };
        let is_refusal = matches!(answer.decision, Decision::Deny | Decision::Decline | Decision::Skip);
        let uri = out.event_uri();
        let shown = answer.answer.clone().filter(|_| !action.is_client_tool).map(small);
        let draft = action
            .draft(FactType::ActionResolved)
            .with("decision", answer.decision.as_str())
            .with_some("decidedBy", answer.by.as_deref().map(line))
            .with_some("reason", answer.reason.as_deref().map(line));
        out.say(match shown {
            Some(Some(shown)) => draft.with("answer", shown),
            Some(None) => draft.refers(RefKind::Raw, uri.as_str()).with("answerRef", uri),
            None => draft,
        });
        if action.asks_permission {
            out.say(action.permission(if is_refusal { "deny" } else { "allow" }, answer.by.as_deref()));
        }
        if let Some(call) = &action.call {
            if is_refusal {
                let (reason_code, error) = match &answer.reason {
                    Some(reason) => ("denied_by_person", format!("refused: {reason}")),
                    None => ("denied_by_person", "refused".to_owned()),
                };
                out.say(action.draft(FactType::PermissionDenied).with("reasonCode", reason_code));
                let outcome =
                    Outcome::Failed { category: FailureCategory::PermissionDenied, code: "permission_denied", error: &error };
                tools.finish(out, call, outcome, Measures::default());
            } else if action.is_client_tool {
                let answer = answer.answer.unwrap_or_default();
                let error = answer.get("error").and_then(Value::as_str);
                let outcome = match error {
                    Some(error) => Outcome::Failed { category: FailureCategory::ToolFailed, code: "tool_error", error },
                    None => Outcome::Result(answer.get("content").cloned().unwrap_or_default()),
                };
                tools.finish(out, call, outcome, Measures::default());
            } else {
                self.acting.insert(&answer.action_id, call.clone());
            }
        }
        self.status(out);
    }

    /// The outcome, after which nothing comes.
    pub(super) fn ended(&mut self, out: &mut Out, tools: &mut Tools, end: ActionEnd) {
        if let Some(action) = self.close_one(&end.action_id) {
            // Nobody has answered, or the answer is in the outcome alone.
            let kind = match &*end.outcome {
                "expired" => FactType::ActionExpired,
                "executed" | "failed" | "denied" | "submitted" | "declined" | "repeat" | "skip" => FactType::ActionResolved,
                _ => FactType::ActionCanceled,
            };
            let decision = end.decision.map_or(&*end.outcome, |decision| decision.as_str());
            let draft = action.draft(kind).with("decision", line(decision));
            out.say(
                draft.with_some("decidedBy", end.by.as_deref().map(line)).with_some("reason", end.reason.as_deref().map(line)),
            );
            if action.asks_permission {
                let decision = match kind {
                    FactType::ActionExpired => "expired",
                    FactType::ActionCanceled => "canceled",
                    _ if matches!(&*end.outcome, "executed" | "failed" | "repeat") => "allow",
                    _ => "deny",
                };
                out.say(action.permission(decision, end.by.as_deref()));
            }
            if let Some(call) = &action.call {
                finish(out, tools, call, &end);
            }
            return self.status(out);
        }
        if let Some(call) = self.acting.remove(&end.action_id) {
            self.release(out, &call);
            finish(out, tools, &call, &end);
        }
    }

    /// A framework asked a person, and a capture says so.
    pub(super) fn imported_request(&mut self, out: &mut Out, ids: &mut Ids, tools: &Tools, request: import::ActionRequest) {
        let import::ActionRequest { action_id, tool_call_id, title, value, answer_schema } = request;
        if self.open.contains(&action_id) {
            return out.warn("duplicate_action", "an action was asked for that had been asked for before");
        }
        let call = tool_call_id.filter(|call| tools.scope_of(call).is_some());
        if let Some(call) = &call {
            self.release(out, call);
        }
        let of_call = call.as_ref().and_then(|call| tools.scope_of(call)).cloned().unwrap_or_default();
        let scope = ScopeIds { action_id: Some(ids.of(Kind::Action, &action_id)), ..of_call };
        let asks_permission = call.is_some();
        let title =
            title.as_deref().filter(|title| !title.is_empty()).map_or_else(|| "The framework asked a person".to_owned(), line);
        if asks_permission {
            out.say(Draft::new(FactType::PermissionRequested).in_scope(&scope).with("decision", "ask"));
        }
        let uri = out.event_uri();
        let mut draft = Draft::new(FactType::ActionRequired)
            .in_scope(&scope)
            .with("actionType", if asks_permission { "permission" } else { "interrupt" })
            .with("owner", "runtime")
            .with("title", title.as_str())
            .with("options", Value::Array(Vec::new()))
            .with("inputSchema", answer_schema.and_then(small).unwrap_or_default());
        draft = match value.map(small) {
            Some(Some(value)) => draft.with("value", value),
            Some(None) => draft.refers(RefKind::Raw, uri.as_str()).with("valueRef", uri),
            None => draft,
        };
        out.say(draft);
        if let Some(call) = &call {
            self.by_call.insert(call.clone(), action_id.clone());
        }
        self.open.insert(&action_id, OpenAction { scope, asks_permission, call, is_client_tool: false, title });
        out.say(Draft::new(FactType::RunStatus).with("phase", "waiting"));
    }

    /// The outcome of what a framework asked, as far as a capture says it.
    pub(super) fn imported_end(&mut self, out: &mut Out, tools: &mut Tools, end: &import::ActionEnd) {
        let Some(action) = self.close_one(&end.action_id) else { return };
        let (kind, permission) = match end.decision {
            ActionDecision::Approve => (FactType::ActionResolved, "allow"),
            ActionDecision::Deny => (FactType::ActionResolved, "deny"),
            ActionDecision::Cancel => (FactType::ActionCanceled, "canceled"),
            ActionDecision::Unknown => (FactType::ActionResolved, "unknown"),
        };
        let unsaid = (end.decision == ActionDecision::Unknown).then_some("the capture does not say what was answered");
        let reason = end.reason.as_deref().or(unsaid).map(line);
        let draft = action.draft(kind).with("decision", end.decision.as_str()).with_some("reason", reason.clone());
        let uri = out.event_uri();
        out.say(match end.answer.clone().map(small) {
            Some(Some(answer)) => draft.with("answer", answer),
            Some(None) => draft.refers(RefKind::Raw, uri.as_str()).with("answerRef", uri),
            None => draft,
        });
        if action.asks_permission {
            let resolved = Draft::new(FactType::PermissionResolved).in_scope(&action.scope).with("decision", permission);
            out.say(resolved.with("decisionSource", "unknown").with_some("reason", reason));
        }
        if let Some(call) = action.call.as_deref().filter(|_| end.decision == ActionDecision::Deny) {
            out.say(action.draft(FactType::PermissionDenied).with("reasonCode", "denied"));
            let error = end.reason.as_deref().unwrap_or("refused");
            let outcome = Outcome::Failed { category: FailureCategory::PermissionDenied, code: "permission_denied", error };
            tools.finish(out, call, outcome, Measures::default());
        }
        self.status(out);
    }

    /// A call ends by itself, or something else is asked about it: nothing may follow its end, and one answer ends it.
    pub(super) fn release(&mut self, out: &mut Out, call: &str) {
        let Some(action) = self.by_call.remove(call).and_then(|id| self.open.remove(&id)) else { return };
        out.say(action.draft(FactType::ActionCanceled).with("reason", "the call ended before the answer"));
        if action.asks_permission {
            out.say(action.permission("canceled", None));
        }
        self.status(out);
    }

    /// Takes an open action.
    fn close_one(&mut self, id: &str) -> Option<OpenAction> {
        let action = self.open.remove(id)?;
        if let Some(call) = &action.call {
            self.by_call.remove(call);
        }
        Some(action)
    }

    fn status(&self, out: &mut Out) {
        let phase = if self.open.is_empty() { "acting" } else { "waiting" };
        out.say(Draft::new(FactType::RunStatus).with("phase", phase));
    }

    /// Cancels what is open. The calls are ended by [`Tools::close`].
    pub(super) fn close(&mut self, out: &mut Out, why: &str) {
        for (_, action) in self.open.take() {
            out.say(action.draft(FactType::ActionCanceled).with("reason", why));
            if action.asks_permission {
                out.say(action.permission("canceled", None));
            }
        }
        self.acting.take();
        self.by_call.clear();
    }
}

impl OpenAction {
    fn draft(&self, kind: FactType) -> Draft {
        Draft::new(kind).in_scope(&self.scope).with("title", self.title.as_str())
    }

    fn permission(&self, decision: &str, by: Option<&str>) -> Draft {
        Draft::new(FactType::PermissionResolved)
            .in_scope(&self.scope)
            .with("decision", decision)
            .with("decisionSource", if by.is_some() { "person" } else { "host" })
    }
}

/// Ends the call of an action.
fn finish(out: &mut Out, tools: &mut Tools, call: &str, end: &ActionEnd) {
    let error = end.error.as_ref();
    let outcome = match &*end.outcome {
        "executed" | "submitted" => Outcome::Result(match &end.result {
            None | Some(Value::Null) => Value::Null,
            Some(Value::String(text)) => Value::String(text.clone()),
            Some(other) => Value::String(crate::safe::redacted(other.clone()).to_string()),
        }),
        "failed" => {
            let code = error.map_or("tool_error", CallFailure::name);
            let category = FailureCategory::of_code(code).unwrap_or(FailureCategory::ToolFailed);
            Outcome::Failed { category, code, error: error.map_or("the action failed", |error| &error.message) }
        }
        "denied" | "declined" | "skip" => {
            let error = end.reason.as_deref().unwrap_or("refused");
            Outcome::Failed { category: FailureCategory::PermissionDenied, code: "permission_denied", error }
        }
        "expired" => {
            let error = "nobody answered in time";
            Outcome::Failed { category: FailureCategory::RequiresUserAction, code: "expired", error }
        }
        _ => {
            let error = end.reason.as_deref().unwrap_or("the run no longer waits for it");
            Outcome::Failed { category: FailureCategory::Cancelled, code: "cancelled", error }
        }
    };
    tools.finish(out, call, outcome, Measures::of(end.duration_ms));
}

fn text<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    members.get(name).and_then(Value::as_str)
}

/// A text that is not empty: the profile asks for words that a person can read.
fn said<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    text(members, name).filter(|text| !text.is_empty())
}

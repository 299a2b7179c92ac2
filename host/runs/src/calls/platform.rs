//! `platform`.

use std::sync::Arc;

use agent_host_protocol::{ApiError, ErrorCode, Limits, ask::ActionOutcome, limits::is_shallow, time};
use agent_host_sandbox::{ActionRequest, PlatformCalls, parse_json};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{RunCalls, shown, within};
use crate::{
    approval::{self, ApprovalPolicy, Ruling},
    asks::{Ask, AskKind, Decision, Told, Wait, action_id},
    facts::Begun,
    gate::{Call, Entered},
    services::Services,
    terms::Terms,
};

/// Longest name of an action.
const MAX_ACTION_BYTES: usize = 128;

/// A platform action that a run may ask for, parsed, with what its policy says.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) action: String,
    pub(crate) target: Value,
    pub(crate) payload: Value,
    pub(crate) ruling: Ruling,
}

impl Wanted {
    /// Judges an action by all three: manifest and binding (frozen in the grant), and the approval policy.
    pub(crate) fn judge(
        terms: &Terms,
        services: &Services,
        action: String,
        target: Value,
        payload: Value,
    ) -> Result<Self, ApiError> {
        may_ask_for(terms, &action)?;
        let ruling = approval::judge(&terms.approvals, &action, &target);
        if ruling.policy == ApprovalPolicy::Deny {
            return Err(ApiError {
                details: Some(json!({ "code": "denied_by_policy" })),
                ..ApiError::unauthorized(format!("the approval policy of the binding refuses `{action}` on this target"))
            });
        }
        services.actions.available(&action)?;
        Ok(Self { action, target, payload, ruling })
    }

    /// As people are asked.
    pub(crate) fn ask(&self, limits: &Limits) -> Ask {
        let asks = self.ruling.policy == ApprovalPolicy::Ask;
        let expires_ms = self.ruling.expires_ms.unwrap_or(limits.ask_expires_ms);
        Ask {
            kind: AskKind::PlatformAction,
            expires_at: asks.then(|| time::now().saturating_add(expires_ms)),
            approvers: self.ruling.approvers.clone(),
            more: json!({
                "action": self.action,
                "target": self.target,
                "payload": self.payload,
                "policy": self.ruling.policy,
            }),
        }
    }

    /// What the operator's webhook is told.
    pub(crate) fn order(&self, terms: &Terms, run_id: agent_host_protocol::RunId, id: &str) -> Value {
        let grant = &terms.grant;
        json!({
            "action_id": id,
            "action": self.action,
            "target": self.target,
            "payload": self.payload,
            "run_id": run_id,
            "runner_id": grant.runner_id,
            "binding_id": grant.binding_id,
            "workspace_id": grant.workspace,
            "conversation": grant.conversation,
            "actor_id": grant.actor,
        })
    }
}

/// Steps 3 and 4 of the gate, for a platform action.
fn may_ask_for(terms: &Terms, action: &str) -> Result<(), ApiError> {
    if terms.grant.permissions.platform_api.iter().any(|granted| granted == action) {
        return Ok(());
    }
    Err(ApiError::unauthorized(format!(
        "the platform action `{}` is not granted to this run: the manifest must name it, and `resources.platform_api` of the \
         binding, too",
        shown(action)
    )))
}

fn parsed(request: &ActionRequest) -> Result<(Value, Value), ApiError> {
    let target = parse_json("the target", &request.target)?;
    let payload = parse_json("the payload", &request.payload)?;
    if is_shallow(&target) && is_shallow(&payload) {
        return Ok((target, payload));
    }
    Err(ApiError::invalid_argument("the target and the payload of an action nest at most 64 levels"))
}

#[async_trait]
impl PlatformCalls for RunCalls {
    async fn platform_request_action(&mut self, request: ActionRequest) -> Result<ActionOutcome, ApiError> {
        let run = &self.run;
        let (bytes, name) = (request.bytes(), request.action.clone());
        let allowed = || {
            may_ask_for(&run.terms, &name)?;
            within("the name of an action", name.len(), MAX_ACTION_BYTES)?;
            within("the target and the payload of an action", bytes, run.limits.ask_bytes)
        };
        let asked = run.journal.asked(&request);
        let call = Call { action: "platform.request-action", resource: Some(&name), scope: None, bytes, asked };
        let ticket = match run.enter(&call).await {
            Entered::Answered(outcome) => return outcome,
            Entered::Live(ticket) => ticket,
        };
        let effect = async {
            let (target, payload) = parsed(&request)?;
            let wanted = Wanted::judge(&run.terms, &self.services, request.action.clone(), target, payload)?;
            let begun = Begun::action(run, &ticket, wanted.ask(&run.limits)).await?;
            let id = action_id(run.run_id, begun.number());
            let outcome = match wanted.ruling.policy {
                ApprovalPolicy::Allow => None,
                _ => {
                    let wait = Wait::of(run);
                    not_approved(run.told(&id, AskKind::PlatformAction, wait).await?)
                }
            };
            if let Some(outcome) = outcome {
                // The record says so already.
                begun.ended_before();
                return Ok(outcome);
            }
            begun.asks(false);
            let order = wanted.order(&run.terms, run.run_id, &id);
            if run.is_outside() {
                // It is done, and the record says so, even where whoever asked goes away.
                let (services, deadline) = (Arc::clone(&self.services), run.deadline);
                let let_go = run.let_go.clone();
                let doing = run.passing.spawn(async move {
                    let done = tokio::select! {
                        done = services.actions.call(&wanted.action, &id, &order, deadline) => done,
                        () = let_go.cancelled() => return Err(ApiError::new(ErrorCode::Cancelled, "the run has ended")),
                    };
                    begun.acted(done.as_ref()).await;
                    done
                });
                let lost = || ApiError::new(ErrorCode::RuntimeError, "the host lost what came of the action; its log says why");
                return doing.await.unwrap_or_else(|_| Err(lost())).map(ActionOutcome::Executed);
            }
            let done = self.services.actions.call(&wanted.action, &id, &order, run.deadline).await;
            let outcome = done.clone().map(ActionOutcome::Executed);
            run.settle(&ticket, &outcome).await?;
            begun.acted(done.as_ref()).await;
            outcome
        };
        run.pass_live(&ticket, &call, allowed, effect).await
    }
}

/// The end of an action that nobody approved.
pub(crate) fn not_approved(told: Told) -> Option<ActionOutcome> {
    match told {
        Told::Expired => Some(ActionOutcome::Expired),
        Told::Given(given) if given.decision == Decision::Approve => None,
        Told::Given(given) => Some(ActionOutcome::Denied(given.reason.unwrap_or_default())),
    }
}

//! Platform actions: which a run may ask for, and who decides on each.

use agent_host_config::ApprovalPolicy;
use agent_host_protocol::{ApiError, Limits, RunId, time};
use serde_json::{Value, json};

use super::{
    approval::{self, Ruling},
    services::Services,
};
use crate::record::{
    action::{Ask, AskSubject},
    facts::shortened,
    terms::Terms,
};

/// A platform action that a run may ask for, parsed, with what its policy says.
#[derive(Debug, Clone)]
pub(crate) struct PlatformAction {
    pub(crate) action: String,
    pub(crate) target: Value,
    pub(crate) payload: Value,
    pub(crate) ruling: Ruling,
}

impl PlatformAction {
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
            expires_at: asks.then(|| time::now().saturating_add(expires_ms)),
            approvers: self.ruling.approvers.clone(),
            subject: AskSubject::PlatformAction {
                action: self.action.clone(),
                payload: self.payload.clone(),
                policy: self.ruling.policy,
                target: self.target.clone(),
            },
        }
    }

    /// The body of the request to the operator's webhook.
    pub(crate) fn order(&self, terms: &Terms, run_id: RunId, id: &str) -> Value {
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
pub(crate) fn may_ask_for(terms: &Terms, action: &str) -> Result<(), ApiError> {
    if terms.grant.permissions.platform_api.iter().any(|granted| granted == action) {
        return Ok(());
    }
    Err(ApiError::unauthorized(format!(
        "the platform action `{}` is not granted to this run: the manifest must name it, and `resources.platform_api` of the \
         binding, too",
        shortened(action, 128).escape_debug()
    )))
}

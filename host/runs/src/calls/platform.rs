//! `platform`.

use std::sync::Arc;

use agent_host_protocol::{ApiError, ErrorCode, ask::ActionOutcome, limits::is_shallow};
use agent_host_sandbox::{ActionRequest, PlatformCalls, parse_json};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{RunCalls, within};
use crate::{
    execution::{answers::WaitMode, call::Call, open_calls::OpenCall},
    policy::platform_action::{PlatformAction, may_ask_for},
    record::{
        action::{AskKind, action_id},
        facts::CallOutcome,
    },
};
use agent_host_config::ApprovalPolicy;

/// Longest name of an action.
const MAX_ACTION_BYTES: usize = 128;

fn parsed(request: &ActionRequest) -> Result<(Value, Value), ApiError> {
    let target = parse_json("the target", &request.target)?;
    let payload = parse_json("the payload", &request.payload)?;
    if is_shallow(&target) && is_shallow(&payload) {
        return Ok((target, payload));
    }
    Err(ApiError::invalid_argument("the target and the payload of an action nest at most 64 levels"))
}

impl PlatformCalls for RunCalls {
    fn platform_request_action(&mut self, request: ActionRequest) -> BoxFuture<'_, Result<ActionOutcome, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let (bytes, name) = (request.bytes(), request.action.clone());
            let allowed = || {
                may_ask_for(&run.terms, &name)?;
                within("the name of an action", name.len(), MAX_ACTION_BYTES)?;
                within("the target and the payload of an action", bytes, run.limits.ask_bytes)
            };
            let digest = run.journal.digest(&request);
            let effect = async |ticket| {
                let (target, payload) = parsed(&request)?;
                let action = PlatformAction::judge(&run.terms, &self.services, request.action.clone(), target, payload)?;
                let open_call = OpenCall::action(run, &ticket, action.ask(&run.limits)).await?;
                let id = action_id(run.run_id, open_call.number());
                let outcome = match action.ruling.policy {
                    ApprovalPolicy::Allow => None,
                    _ => {
                        let wait = WaitMode::of(run);
                        run.await_answer(&id, AskKind::PlatformAction, wait).await?.refusal()
                    }
                };
                if let Some(outcome) = outcome {
                    // The record says so already.
                    open_call.ended_before();
                    return Ok(outcome);
                }
                open_call.asks(false);
                let order = action.order(&run.terms, run.run_id, &id);
                if run.is_external() {
                    // The action is carried out and recorded even if the caller goes away.
                    let (services, deadline) = (Arc::clone(&self.services), run.deadline.at());
                    let let_go = run.family.tasks().released.clone();
                    let doing = run.family.tasks().background.spawn(async move {
                        let done = tokio::select! {
                            done = services.actions.call(&action.action, &id, &order, deadline) => done,
                            () = let_go.cancelled() => return Err(ApiError::new(ErrorCode::Cancelled, "the run has ended")),
                        };
                        open_call.end(CallOutcome::Action(done.as_ref())).await;
                        done
                    });
                    let lost = || {
                        ApiError::new(ErrorCode::RuntimeError, "the outcome of the action is lost; the host's log has the reason")
                    };
                    return doing.await.unwrap_or_else(|_| Err(lost())).map(ActionOutcome::Executed);
                }
                let done = self.services.actions.call(&action.action, &id, &order, run.deadline.at()).await;
                let outcome = done.clone().map(ActionOutcome::Executed);
                run.settle(ticket, &outcome).await?;
                open_call.end(CallOutcome::Action(done.as_ref())).await;
                outcome
            };
            let call = Call::effect("platform.request-action", digest).resource(name.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }
}

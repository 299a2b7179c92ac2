//! `tools`, those of the client: they are called as others are, and the client is asked for what they answer.
//!
//! Request and answer are in the record as `action.*` of kind `client_tool`; these calls leave no `tool.call.*`.

use agent_host_protocol::{
    ApiError, ErrorCode,
    manifest::ToolOperation,
    message::ContentPart,
    time,
    tool::{ClientTool, ToolOutput},
};
use agent_host_providers::tools::validate;
use agent_host_sandbox::ToolRequest;
use serde_json::{Value, json};

use super::{
    RunCalls, granted,
    tools::{is_call_id, parsed},
    within,
};
use crate::{
    execution::{
        answers::{Resolution, WaitMode},
        background::MAX_KEYS,
        call::{EffectTicket, OutsideEffect},
        gate::{AdmittedCall, EnteredCall},
        open_calls::OpenCall,
    },
    record::action::{Ask, AskKind, AskSubject, Decision, action_id, client_answer},
};

/// A call that the client is asked for, as one of many.
struct OpenPart<'a> {
    part: u32,
    admitted: AdmittedCall<'a, OutsideEffect>,
    begun: OpenCall,
}

/// The outcome of one part of a `call-many`, with its number.
type Outcome = (u32, Result<ToolOutput, ApiError>);

impl RunCalls {
    /// True if the client carries out this call.
    pub(super) fn is_of_client(&self, request: &ToolRequest) -> bool {
        self.run.terms.grant.client_tool(&request.tool_name).is_some()
    }

    /// Asks the client to carry out a call, and waits for its answer.
    pub(super) async fn await_client(&self, ticket: EffectTicket, request: &ToolRequest) -> Result<ToolOutput, ApiError> {
        let run = &self.run;
        let begun = self.ask_client(&ticket, request).await?;
        let id = action_id(run.run_id, begun.number());
        let told = run.await_answer(&id, AskKind::ClientTool, WaitMode::of(run)).await?;
        // The record says so already.
        begun.ended_before();
        output(told)
    }

    /// The parts of `tools.call-many` that the client carries out: it is asked for all of them at once, and the run waits until
    /// all are answered.
    pub(super) async fn parts_of_client(
        &self,
        within: &EffectTicket,
        requests: Vec<(u32, ToolRequest)>,
    ) -> Result<Vec<Outcome>, ApiError> {
        let run = &self.run;
        let (mut outcomes, mut waiting) = (Vec::new(), Vec::new());
        for (part, request) in &requests {
            let allowed = || self.may_ask_client(request);
            match run.enter_part(within, *part, self.call_of(request), allowed).await {
                EnteredCall::Over(passed) => outcomes.push((*part, passed.outcome)),
                EnteredCall::Admitted(admitted, ticket) => match self.ask_client(&ticket, request).await {
                    Ok(begun) => waiting.push(OpenPart { part: *part, admitted, begun }),
                    Err(refusal) => outcomes.push((*part, admitted.end(Err(refusal)).await)),
                },
            }
        }
        if waiting.is_empty() {
            return Ok(outcomes);
        }
        let ids: Vec<String> = waiting.iter().map(|open| action_id(run.run_id, open.begun.number())).collect();
        let wait = match WaitMode::of(run) {
            // More than a parked run is found by.
            WaitMode::Park if ids.len() > MAX_KEYS => WaitMode::InMemory,
            wait => wait,
        };
        let told = run.await_answers(&ids, AskKind::ClientTool, wait).await?;
        for (OpenPart { part, admitted, begun }, told) in waiting.into_iter().zip(told) {
            begun.ended_before();
            outcomes.push((part, admitted.end(output(told)).await));
        }
        Ok(outcomes)
    }

    /// Steps 3 to 5 of the gate. The request is stored in the record, so its limit is that of requests to people.
    pub(super) fn may_ask_client(&self, request: &ToolRequest) -> Result<(), ApiError> {
        let run = &self.run;
        granted(&run.terms.grant.permissions.tools, &ToolOperation::Call, "tools.call")?;
        is_call_id(&request.call_id)?;
        let limit = run.limits.ask_bytes.min(run.limits.tool_parameters_bytes);
        within("the parameters of a call to a tool of the client", request.parameters.len(), limit)
    }

    /// Asks the client; an execution before may have done that.
    async fn ask_client(&self, ticket: &EffectTicket, request: &ToolRequest) -> Result<OpenCall, ApiError> {
        let run = &self.run;
        let parameters = parsed(&request.parameters)?;
        // Skipped if an earlier execution has already asked the client: its answer is still wanted.
        if ticket.doubt().is_none()
            && let Some(tool) = run.terms.grant.client_tool(&request.tool_name)
        {
            check(tool.clone(), parameters.clone()).await?;
        }
        let ask = Ask {
            expires_at: Some(time::now().saturating_add(run.limits.ask_expires_ms)),
            approvers: Vec::new(),
            subject: AskSubject::ClientTool {
                parameters,
                tool_call_id: request.call_id.clone(),
                tool_name: request.tool_name.clone(),
            },
        };
        OpenCall::action(run, ticket, ask).await
    }
}

/// Validates parameters against the schema of a tool. Both come from strangers, so the work runs on a blocking thread.
async fn check(tool: ClientTool, parameters: Value) -> Result<(), ApiError> {
    let checking = tokio::task::spawn_blocking(move || validate(&tool.parameters, &parameters));
    checking.await.unwrap_or_else(|error| {
        tracing::error!(%error, "the parameters of a call could not be checked");
        Err(ApiError::new(ErrorCode::RuntimeError, "the host could not check the parameters; its log has the reason"))
    })
}

/// The output for the guest. A missing or declined answer is an ordinary output of the tool, so that a model can react to
/// it.
fn output(resolution: Resolution) -> Result<ToolOutput, ApiError> {
    let failed = |text: String, structured| ToolOutput {
        content: vec![ContentPart::Text(text)],
        structured: Some(structured),
        is_error: true,
    };
    Ok(match resolution {
        Resolution::Expired => failed("the client has not answered in time".to_owned(), json!({ "outcome": "expired" })),
        Resolution::Answered(given) if given.decision == Decision::Submit => {
            let answer = given.answer.and_then(client_answer);
            let lost = || ApiError::new(ErrorCode::RuntimeError, "the answer of the client in the record cannot be read");
            answer.ok_or_else(lost)?.output()
        }
        Resolution::Answered(given) => {
            let because = given.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            failed(format!("the client has declined to do it{because}"), json!({ "outcome": "declined", "reason": given.reason }))
        }
    })
}

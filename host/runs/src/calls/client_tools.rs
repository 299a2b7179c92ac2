//! `tools`, those of the client: they are called as others are, and the client is asked for what they answer.
//!
//! Request and answer are in the record as `action.*` of kind `client_tool`; these calls leave no `tool.call.*`, except for one
//! that is too large to ask for.

use agent_host_facts::record::Decision;
use agent_host_protocol::{
    ApiError, ErrorCode,
    manifest::ToolOperation,
    message::{ContentPart, ToolCall},
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
    record::{
        action::{Ask, AskKind, AskSubject, action_id, client_answer},
        facts::CallOutcome,
    },
};

/// A call that the client is asked for, as one of many.
struct OpenPart<'a> {
    part: u32,
    admitted: AdmittedCall<'a, OutsideEffect>,
    open_call: OpenCall,
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
        let open_call = self.ask_client(&ticket, request).await?;
        let id = action_id(run.run_id, open_call.number());
        let answer = run.await_answer(&id, AskKind::ClientTool, WaitMode::of(run)).await?;
        // The record says so already.
        open_call.ended_before();
        output(answer)
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
            match run.enter_part(within, *part, self.call_of(request), allowed) {
                EnteredCall::Over(over) => outcomes.push((*part, over.await.outcome)),
                EnteredCall::Admitted(admitted, ticket) => match self.ask_client(&ticket, request).await {
                    Ok(open_call) => waiting.push(OpenPart { part: *part, admitted, open_call }),
                    Err(refusal) => outcomes.push((*part, admitted.end(Err(refusal)).await)),
                },
            }
        }
        if waiting.is_empty() {
            return Ok(outcomes);
        }
        let ids: Vec<String> = waiting.iter().map(|open| action_id(run.run_id, open.open_call.number())).collect();
        let wait = match WaitMode::of(run) {
            // More than a parked run is found by.
            WaitMode::Park if ids.len() > MAX_KEYS => WaitMode::InMemory,
            wait => wait,
        };
        let answers = run.await_answers(&ids, AskKind::ClientTool, wait).await?;
        for (OpenPart { part, admitted, open_call }, answer) in waiting.into_iter().zip(answers) {
            open_call.ended_before();
            outcomes.push((part, admitted.end(output(answer)).await));
        }
        Ok(outcomes)
    }

    /// Steps 3 to 5 of the gate.
    pub(super) fn may_ask_client(&self, request: &ToolRequest) -> Result<(), ApiError> {
        let run = &self.run;
        granted(&run.terms.grant.permissions.tools, &ToolOperation::Call, "tools.call")?;
        is_call_id(&request.call_id)?;
        within("the parameters of a call to a tool of the client", request.parameters.len(), run.limits.tool_parameters_bytes)
    }

    /// Refuses a call that is larger than a request to people may be: the record shows the call with its failure, so that the
    /// client sees what it was not asked for.
    async fn refuse_too_large(&self, ticket: &EffectTicket, request: &ToolRequest, parameters: &Value) -> Result<(), ApiError> {
        let run = &self.run;
        let limit = run.limits.ask_bytes;
        let Err(error) = within("the parameters of a call to a tool of the client", request.parameters.len(), limit) else {
            return Ok(());
        };
        let call =
            ToolCall { call_id: request.call_id.clone(), tool_name: request.tool_name.clone(), parameters: parameters.clone() };
        let open_call = OpenCall::tool(run, ticket, &call).await?;
        open_call.end(CallOutcome::Tool(Err(&error))).await;
        Err(error)
    }

    /// Asks the client; an execution before may have done that.
    async fn ask_client(&self, ticket: &EffectTicket, request: &ToolRequest) -> Result<OpenCall, ApiError> {
        let run = &self.run;
        let parameters = parsed(&request.parameters)?;
        self.refuse_too_large(ticket, request, &parameters).await?;
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

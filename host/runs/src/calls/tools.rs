//! `tools`.

use std::sync::Arc;

use agent_host_protocol::{
    ApiError, ErrorCode,
    encoded::json_len,
    manifest::ToolOperation,
    message::{ContentPart, ToolCall},
    tool::{ToolDetail, ToolOutput},
};
use agent_host_providers::tools::{CallOptions, Progress, Tool, ToolContent, ToolResult};
use agent_host_sandbox::{ToolCalls, ToolRequest};
use futures_util::{StreamExt, future::BoxFuture, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{RunCalls, granted, not_found, not_granted, within};
use crate::{
    execution::{
        call::{Call, EffectTicket, OutsideEffect},
        doubt::{Doubt, in_doubt},
        open_calls::OpenCall,
    },
    record::{
        facts::{CallOutcome, OutputSize},
        journal::Effect,
    },
};

/// The configuration key that lists the tools of a binding.
const POLICY: &str = "resources.tool_names";

/// Longest id of a call, in bytes: every fact about the call repeats the id.
const MAX_CALL_ID: usize = 256;

/// Reports of progress that wait to be recorded; a tool that reports faster loses the ones in between.
const PROGRESS_WAITING: usize = 16;

impl RunCalls {
    /// Steps 3 and 4 of the gate, for a tool.
    fn tool(&self, name: &str, operation: ToolOperation, action: &str) -> Result<Arc<Tool>, ApiError> {
        let grant = &self.run.terms.grant;
        granted(&grant.permissions.tools, &operation, action)?;
        let tool = self.services.tools.get(name).ok_or_else(|| not_found("tool", name))?;
        if grant.tools.iter().any(|granted| granted == name) { Ok(tool) } else { Err(not_granted("tool", name, POLICY)) }
    }

    /// The description of a tool of the host or of the client.
    fn detail(&self, name: &str) -> Result<ToolDetail, ApiError> {
        let (grant, function) = (&self.run.terms.grant, "tools.get-detail");
        match grant.client_tool(name) {
            Some(tool) => granted(&grant.permissions.tools, &ToolOperation::Detail, function).map(|()| tool.detail()),
            None => self.tool(name, ToolOperation::Detail, function).map(|tool| tool.detail.clone()),
        }
    }

    /// A call of a tool, as the gate takes it.
    pub(super) fn call_of<'a>(&self, request: &'a ToolRequest) -> Call<'a, OutsideEffect> {
        let digest = self.run.journal.digest(request);
        Call::effect("tools.call", digest).resource(request.tool_name.as_str()).bytes(request.parameters.len())
    }

    /// Steps 3 to 5 of the gate, for a call of a tool.
    fn may_call(&self, request: &ToolRequest) -> Result<(), ApiError> {
        if self.is_of_client(request) {
            return self.may_ask_client(request);
        }
        self.tool(&request.tool_name, ToolOperation::Call, "tools.call")?;
        is_call_id(&request.call_id)?;
        within("the parameters of a tool call", request.parameters.len(), self.run.limits.tool_parameters_bytes)
    }

    /// The effect of a call of a tool.
    async fn carry_out(&self, ticket: EffectTicket, request: &ToolRequest) -> Result<ToolOutput, ApiError> {
        let run = &self.run;
        if self.is_of_client(request) {
            return self.await_client(ticket, request).await;
        }
        let ToolRequest { call_id, tool_name, parameters } = request;
        let parameters = parsed(parameters)?;
        let call = ToolCall { call_id: call_id.clone(), tool_name: tool_name.clone(), parameters };
        let open_call = OpenCall::tool(run, &ticket, &call).await?;
        let outcome = match self.may_be_done(&ticket, &call).await {
            Ok(()) => open_call.span().within(self.execute(&open_call, call)).await,
            Err(doubt) => Err(doubt),
        };
        run.settle(ticket, &outcome).await?;
        open_call.end(CallOutcome::Tool(outcome.as_ref())).await;
        outcome
    }

    /// Fails if the outcome of an earlier call is in doubt, unless repeating the call is harmless or a person has approved
    /// it.
    async fn may_be_done(&self, ticket: &EffectTicket, call: &ToolCall) -> Result<(), ApiError> {
        let Some(Effect { number }) = ticket.doubt() else { return Ok(()) };
        if self.is_harmless(&call.tool_name) {
            return Ok(());
        }
        match self.run.may_repeat(&[doubt(number, call)]).await?.as_slice() {
            [true] => Ok(()),
            _ => Err(in_doubt(&format!("`{}`", call.tool_name))),
        }
    }

    /// True if calling the tool twice has the effect of calling it once.
    fn is_harmless(&self, tool: &str) -> bool {
        let tool = self.tool(tool, ToolOperation::Call, "tools.call");
        tool.is_ok_and(|tool| tool.detail.read_only == Some(true) || tool.detail.idempotent == Some(true))
    }

    /// Asks for all that is in doubt among many calls before any of them is made: a run that waits for a person makes none.
    async fn ask_for_doubts(&self, within: &EffectTicket, requests: &[ToolRequest]) -> Result<(), ApiError> {
        let doubts = self.run.doubts(within);
        let of = |(part, effect): (u32, Effect)| {
            // A request to the client stays open across executions.
            let request = requests.get((part as usize).checked_sub(1)?).filter(|request| !self.is_of_client(request))?;
            let call = ToolCall {
                call_id: request.call_id.clone(),
                tool_name: request.tool_name.clone(),
                parameters: serde_json::from_str(&request.parameters).unwrap_or_default(),
            };
            (!self.is_harmless(&call.tool_name)).then(|| doubt(effect.number, &call))
        };
        let doubts: Vec<_> = doubts.into_iter().filter_map(of).collect();
        if doubts.is_empty() { Ok(()) } else { self.run.may_repeat(&doubts).await.map(drop) }
    }

    /// The effect itself: progress is recorded while the tool works.
    async fn execute(&self, open_call: &OpenCall, call: ToolCall) -> Result<ToolOutput, ApiError> {
        let run = &self.run;
        let (reports, mut waiting) = mpsc::channel::<Progress>(PROGRESS_WAITING);
        let report = |progress: Progress| drop(reports.try_send(progress));
        let options = CallOptions { deadline: run.deadline.at(), progress: Some(&report) };
        let working = self.services.tools.call(&call.tool_name, call.parameters, options);
        tokio::pin!(working);
        let recorded = async |progress: Progress| {
            let Progress { progress, total, message } = progress;
            match open_call.progress(progress, total, message) {
                Some(fact) => run.writer.record_fact(&fact).await,
                None => Ok(()),
            }
        };
        let result = loop {
            tokio::select! {
                biased;
                result = &mut working => break result,
                Some(progress) = waiting.recv() => recorded(progress).await?,
            }
        };
        // The last report often comes together with the result.
        while let Ok(progress) = waiting.try_recv() {
            recorded(progress).await?;
        }
        let (output, size) = self.store_large_content(&call.tool_name, result?).await?;
        open_call.note_output(size);
        Ok(output)
    }

    /// The output for the guest: bytes and long texts are stored as artifacts. The second is what the tool gave.
    async fn store_large_content(&self, tool: &str, result: ToolResult) -> Result<(ToolOutput, OutputSize), ApiError> {
        let limits = &self.run.limits;
        let artifacts = self.artifacts();
        let mut content = Vec::new();
        let mut room = limits.tool_output_chars;
        let mut size = OutputSize::default();
        for part in result.content {
            match part {
                ToolContent::Text(text) => {
                    size.bytes += text.len() as u64;
                    let chars = text.chars().count();
                    if chars <= room {
                        room -= chars;
                        content.push(ContentPart::Text(text));
                        continue;
                    }
                    room = 0;
                    size.is_cut = true;
                    let preview: String = text.chars().take(limits.tool_preview_chars).collect();
                    let whole = artifacts.keep(text.into_bytes(), "text/plain", Some(format!("{tool}.txt")), "tool").await?;
                    let id = &whole.artifact_id;
                    content.push(ContentPart::Text(format!(
                        "{preview}\n… [the beginning of {chars} characters; all of them are in artifact {id}]"
                    )));
                    content.push(ContentPart::Artifact(whole));
                }
                ToolContent::Bytes { media_type, name, bytes } => {
                    size.bytes += bytes.len() as u64;
                    content.push(ContentPart::Artifact(artifacts.keep(bytes.to_vec(), &media_type, name, "tool").await?));
                }
                ToolContent::Other(value) => {
                    let chars = json_len(&value);
                    size.bytes += chars as u64;
                    if chars <= room {
                        room -= chars;
                        content.push(ContentPart::Other(value));
                    } else {
                        let bytes = value.to_string().into_bytes();
                        let artifact = artifacts.keep(bytes, "application/json", Some(format!("{tool}.json")), "tool").await?;
                        content.push(ContentPart::Artifact(artifact));
                    }
                }
            }
        }
        let structured = match result.structured {
            Some(value) if json_len(&value) > limits.tool_output_chars => {
                let bytes = value.to_string().into_bytes();
                let artifact = artifacts.keep(bytes, "application/json", Some(format!("{tool}.json")), "tool").await?;
                content.push(ContentPart::Artifact(artifact));
                None
            }
            other => other,
        };
        Ok((ToolOutput { content, structured, is_error: result.is_error }, size))
    }
}

/// Checks the id of a call.
pub(super) fn is_call_id(id: &str) -> Result<(), ApiError> {
    if id.is_empty() || id.len() > MAX_CALL_ID {
        return Err(ApiError::invalid_argument(format!("`call-id` has 1 to {MAX_CALL_ID} bytes")));
    }
    Ok(())
}

/// The parameters of a call.
pub(super) fn parsed(parameters: &str) -> Result<Value, ApiError> {
    let parameters = agent_host_sandbox::parse_json("the parameters", parameters)?;
    if !parameters.is_object() {
        return Err(ApiError::invalid_argument("the parameters of a tool call are a JSON object"));
    }
    Ok(parameters)
}

fn doubt(number: u64, call: &ToolCall) -> Doubt {
    Doubt {
        number,
        what: format!("`{}`", call.tool_name),
        target: json!({ "tool_name": call.tool_name, "tool_call_id": call.call_id }),
        payload: json!({ "parameters": crate::record::facts::shortened(&call.parameters.to_string(), 4096) }),
    }
}

impl RunCalls {
    /// One part of a `call-many`.
    async fn part(&self, within: &EffectTicket, part: u32, request: ToolRequest) -> Result<ToolOutput, ApiError> {
        let effect = async |ticket| self.carry_out(ticket, &request).await;
        let call = self.call_of(&request);
        self.run.pass_part((within, part), call, || self.may_call(&request), effect).await.outcome
    }
}

impl ToolCalls for RunCalls {
    fn tool_detail(&mut self, tool_name: String) -> BoxFuture<'_, Result<ToolDetail, ApiError>> {
        Box::pin(async move {
            let found = self.detail(&tool_name);
            let digest = self.run.journal.digest(&tool_name);
            let call = Call::read("tools.get-detail", digest).resource(tool_name.as_str());
            self.run.pass(call, || found.clone().map(drop), async |()| found.clone()).await.outcome
        })
    }

    fn tool_call(&mut self, request: ToolRequest) -> BoxFuture<'_, Result<ToolOutput, ApiError>> {
        Box::pin(async move {
            let effect = async |ticket| self.carry_out(ticket, &request).await;
            self.run.pass(self.call_of(&request), || self.may_call(&request), effect).await.outcome
        })
    }

    fn tool_call_many(&mut self, calls: Vec<ToolRequest>) -> BoxFuture<'_, Vec<Result<ToolOutput, ApiError>>> {
        Box::pin(async move {
            let run = &self.run;
            let count = calls.len();
            let bytes = calls.iter().map(|call| call.parameters.len()).sum();
            let allowed = || {
                granted(&run.terms.grant.permissions.tools, &ToolOperation::Call, "tools.call-many")?;
                if count > run.limits.tool_calls {
                    return Err(ApiError::new(
                        ErrorCode::PayloadTooLarge,
                        format!("{count} tool calls at once; the limit is {}: call in several", run.limits.tool_calls),
                    ));
                }
                let mut ids: Vec<_> = calls.iter().map(|call| call.call_id.as_str()).collect();
                ids.sort_unstable();
                if ids.windows(2).any(|pair| pair.first() == pair.last()) {
                    return Err(ApiError::invalid_argument("two calls have the same `call-id`"));
                }
                Ok(())
            };
            let call = Call::effect("tools.call-many", run.journal.digest(&calls)).bytes(bytes);
            let refused = |refusal: ApiError| (0..count).map(|_| Err(refusal.clone())).collect();
            // Each goes through the gate by itself as well: it is judged by its own tool, and leaves its own record.
            let mut outcomes = Vec::new();
            let effect = async |ticket: EffectTicket| {
                run.start(&ticket);
                self.ask_for_doubts(&ticket, &calls).await?;
                let (of_client, of_host): (Vec<_>, Vec<_>) =
                    (1..).zip(calls.clone()).partition(|(_, request)| self.is_of_client(request));
                let each = stream::iter(of_host).map(async |(part, request)| (part, self.part(&ticket, part, request).await));
                let mut all: Vec<_> = each.buffered((run.limits.tool_calls_at_once as usize).max(1)).collect().await;
                // The host has nothing left to do when the client is asked, so the run may leave memory.
                all.extend(self.parts_of_client(&ticket, of_client).await?);
                all.sort_unstable_by_key(|(part, _)| *part);
                outcomes = all.into_iter().map(|(_, outcome)| outcome).collect();
                Ok(())
            };
            let passed = run.pass(call, allowed, effect).await;
            match (passed.outcome, passed.past) {
                (Ok(()), None) => outcomes,
                (Ok(()), Some(past)) => run.part_outcomes(past, "tools.call-many", count).await,
                (Err(refusal), _) => refused(refusal),
            }
        })
    }
}

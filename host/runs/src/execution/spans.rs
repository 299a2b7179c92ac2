//! Spans of a run and of what it does, named as the semantic conventions for generative AI name them.
//!
//! An execution of a run is a span in the trace of its event: a run that waited in line begins late, and a resumed run has
//! another span in the same trace, with a link. No span is open while a run waits on disk. Host calls are child spans, and
//! below them requests to models and calls of tools.
//!
//! Spans contain no content unless the operator asks for it (`telemetry.capture_content`).

use agent_host_protocol::{
    Run, RunStatus,
    event::Envelope,
    manifest::ModelOperation,
    message::{ContentPart, Message, TokenUsage, ToolCall},
    model::ModelRequest,
    tool::ToolOutput,
};
use agent_host_providers::{
    models::Model,
    trace::{self, Attribute, Link, Span, SpanContext, SpanKind},
};
use agent_host_sandbox::Runner;
use opentelemetry::{Array, StringValue, Value};
use serde_json::{Map, json};

use super::Resumption;
use crate::record::facts::shortened;

/// The key of the event's trace in the metadata of a run.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Longest content in a span.
const MAX_CONTENT: usize = 64 * 1024;

/// Notes in a run that is about to be created which trace it belongs to.
pub(crate) fn note(metadata: &mut Map<String, serde_json::Value>) {
    let Some(context) = trace::current() else { return };
    metadata.insert(TRACEPARENT.to_owned(), trace::traceparent(&context).into());
    if let Some(state) = trace::tracestate(&context) {
        metadata.insert(TRACESTATE.to_owned(), state.into());
    }
}

/// The trace that a run belongs to.
fn noted(run: &Run) -> Option<SpanContext> {
    let text = |name: &str| run.metadata.get(name)?.as_str();
    trace::parse(text(TRACEPARENT)?, text(TRACESTATE))
}

/// The span of a delivery to a webhook, in the trace of the event, however much later.
pub(crate) fn of_delivery(run: &Run, webhook: &str) -> Span {
    Span::start_in(
        &trace::remote(noted(run)),
        SpanKind::Client,
        || format!("deliver {webhook}"),
        || {
            vec![
                Attribute::new("agent_host.run.id", run.run_id.to_string()),
                Attribute::new("agent_host.webhook.name", webhook.to_owned()),
            ]
        },
    )
}

/// An event is being accepted.
pub(crate) fn of_event(envelope: &Envelope) -> Span {
    Span::start(
        SpanKind::Internal,
        || "accept event",
        || {
            vec![
                Attribute::new("agent_host.event.type", envelope.event_type.clone()),
                Attribute::new("agent_host.event.source", envelope.source.clone()),
            ]
        },
    )
}

/// The span of one execution.
pub(crate) fn of_run(run: &Run, resumption: Resumption, runner: &Runner, attempt: u32) -> RunSpan {
    let noted = noted(run);
    // A resumed execution is linked to the earlier one, not a child of it.
    let links = match (&noted, resumption) {
        (Some(context), Resumption::Interrupted | Resumption::Parked | Resumption::Forked) => {
            vec![Link::with_context(context.clone())]
        }
        _ => Vec::new(),
    };
    let manifest = &*runner.manifest;
    // A plugin with one runner calls it so.
    let agent =
        if manifest.name == "default" { manifest.plugin.clone() } else { format!("{}/{}", manifest.plugin, manifest.name) };
    let name = || format!("invoke_agent {agent}");
    let span = Span::start_linked(&trace::remote(noted), links, SpanKind::Internal, name, || {
        let execution = match resumption {
            Resumption::New => "first",
            Resumption::Interrupted if attempt > run.attempt => "retried",
            Resumption::Interrupted => "resumed",
            Resumption::Parked => "woken",
            Resumption::Forked => "forked",
        };
        let mut attributes = vec![
            Attribute::new("gen_ai.operation.name", "invoke_agent"),
            Attribute::new("gen_ai.agent.id", run.runner_id.to_string()),
            Attribute::new("gen_ai.agent.name", agent.clone()),
            Attribute::new("gen_ai.agent.version", manifest.version.to_string()),
            Attribute::new("agent_host.run.id", run.run_id.to_string()),
            Attribute::new("agent_host.event.id", run.event_id.to_string()),
            Attribute::new("agent_host.binding.id", run.binding_id.clone()),
            Attribute::new("agent_host.run.attempt", i64::from(attempt)),
            Attribute::new("agent_host.run.execution", execution),
        ];
        attributes.extend(run.conversation_id.clone().map(|id| Attribute::new("gen_ai.conversation.id", id)));
        attributes.extend(run.workspace_id.clone().map(|id| Attribute::new("agent_host.workspace.id", id)));
        attributes.extend(run.parent_run_id.map(|id| Attribute::new("agent_host.run.parent_id", id.to_string())));
        attributes
    });
    RunSpan(span)
}

/// The span of one execution of a run.
pub(crate) struct RunSpan(Span);

impl RunSpan {
    /// Makes the span the parent of what happens in this future.
    pub(crate) fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.within(future)
    }

    /// The execution has left its task: `outcome` is the run at its end, or why it left memory.
    pub(crate) fn close(self, outcome: Result<&Run, &'static str>) {
        let status = outcome.map_or_else(|reason| reason, |run| run.status.as_str());
        self.0.set(|| vec![Attribute::new("agent_host.run.status", status)]);
        if let Ok(run) = outcome
            && run.status != RunStatus::Completed
        {
            self.0.failed(run.failure.as_ref().map_or(status, |failure| failure.code.as_str()));
        }
    }

    /// The end of the execution could not be written.
    pub(crate) fn fail(self) {
        self.0.set(|| vec![Attribute::new("agent_host.run.status", "unwritten")]);
        self.0.failed("unwritten");
    }
}

/// A call through the gate.
pub(crate) fn of_host_call(function: &str) -> Span {
    Span::start(
        SpanKind::Internal,
        || function.to_owned(),
        || vec![Attribute::new("agent_host.host_call.function", function.to_owned())],
    )
}

/// A request to a model.
pub(crate) fn of_model(model: &Model, operation: ModelOperation) -> Span {
    let named = match operation {
        ModelOperation::Invoke | ModelOperation::Stream => "chat",
        ModelOperation::Embed => "embeddings",
        other => other.as_str(),
    };
    Span::start(
        SpanKind::Client,
        || format!("{named} {}", model.remote_name()),
        || {
            let mut attributes = vec![
                Attribute::new("gen_ai.operation.name", named),
                Attribute::new("gen_ai.provider.name", model.provider().as_str()),
                Attribute::new("gen_ai.request.model", model.remote_name().to_owned()),
                Attribute::new("agent_host.model.id", model.id().to_owned()),
            ];
            if let Some((address, port)) = model.address() {
                attributes.push(Attribute::new("server.address", address));
                attributes.push(Attribute::new("server.port", i64::from(port)));
            }
            attributes
        },
    )
}

/// Adds the request of a model call, if content is captured.
pub(crate) fn note_request(span: &Span, request: &ModelRequest) {
    if trace::captures_content() {
        span.set(|| vec![Attribute::new("gen_ai.input.messages", messages(&request.messages))]);
    }
}

/// Adds the answer of a model, if content is captured.
pub(crate) fn record_answer(span: &Span, message: &Message) {
    if trace::captures_content() {
        span.set(|| vec![Attribute::new("gen_ai.output.messages", messages(std::slice::from_ref(message)))]);
    }
}

/// Adds the end of a model's answer and its usage.
pub(crate) fn answered(span: &Span, finish_reason: Option<&str>, usage: Option<&TokenUsage>) {
    span.set(|| {
        let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut attributes = Vec::new();
        if let Some(reason) = finish_reason {
            let reasons = Value::Array(Array::String(vec![StringValue::from(reason.to_owned())]));
            attributes.push(Attribute::new("gen_ai.response.finish_reasons", reasons));
        }
        if let Some(usage) = usage {
            attributes.push(Attribute::new("gen_ai.usage.input_tokens", tokens(usage.input)));
            attributes.push(Attribute::new("gen_ai.usage.output_tokens", tokens(usage.output)));
            let cached = usage.cached_input.map(|count| Attribute::new("gen_ai.usage.cache_read.input_tokens", tokens(count)));
            attributes.extend(cached);
        }
        attributes
    });
}

/// A call of a tool.
pub(crate) fn of_tool(call: &ToolCall) -> Span {
    Span::start(
        SpanKind::Internal,
        || format!("execute_tool {}", call.tool_name),
        || {
            let mut attributes = vec![
                Attribute::new("gen_ai.operation.name", "execute_tool"),
                Attribute::new("gen_ai.tool.name", call.tool_name.clone()),
                Attribute::new("gen_ai.tool.type", "function"),
                Attribute::new("gen_ai.tool.call.id", call.call_id.clone()),
            ];
            if trace::captures_content() {
                let arguments = shortened(&call.parameters.to_string(), MAX_CONTENT);
                attributes.push(Attribute::new("gen_ai.tool.call.arguments", arguments));
            }
            attributes
        },
    )
}

/// Adds the output of a tool, if content is captured.
pub(crate) fn executed(span: &Span, output: &ToolOutput) {
    if trace::captures_content() {
        span.set(|| {
            let result = serde_json::to_string(&output.content).unwrap_or_default();
            vec![Attribute::new("gen_ai.tool.call.result", shortened(&result, MAX_CONTENT))]
        });
    }
}

/// Messages in the form of the conventions.
fn messages(messages: &[Message]) -> String {
    let entries: Vec<_> = messages
        .iter()
        .map(|message| {
            let part = |part: &ContentPart| match part {
                ContentPart::Text(text) => json!({ "type": "text", "content": text }),
                ContentPart::Artifact(artifact) => json!({ "type": "file", "file_id": artifact.artifact_id }),
                ContentPart::Other(value) => value.clone(),
            };
            let calls = message.tool_calls.iter().map(
                |call| json!({ "type": "tool_call", "id": call.call_id, "name": call.tool_name, "arguments": call.parameters }),
            );
            let parts: Vec<_> = message.content.iter().map(part).chain(calls).collect();
            json!({ "role": message.role.as_str(), "parts": parts })
        })
        .collect();
    shortened(&serde_json::Value::Array(entries).to_string(), MAX_CONTENT)
}

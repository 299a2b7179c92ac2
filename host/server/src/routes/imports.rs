//! Captures of other frameworks, and the form of native events.

use std::time::Duration;

use agent_host_protocol::{Run, Scope, context::Conversation, event::Envelope};
use agent_host_runs::{NewImport, facts::import::Form};
use axum::{
    http::{HeaderMap, StatusCode, header},
    response::Response,
};

use crate::{
    access::ApiRequest,
    artifacts::{
        names::plain_name,
        upload::{UploadBody, in_time},
    },
    http::{Problem, ProblemCode, Query, located},
    openapi::refusals,
};

/// Media types of native events.
const NATIVE: [&str; 2] = ["application/x-ndjson", "application/json"];

/// Native events, one JSON value a line, or one array.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the schema of a body that is read as text")]
pub(crate) struct NativeLines(String);

/// The form that a parameter names.
pub(crate) fn form(query: &mut Query, name: &'static str) -> Result<Option<Form>, Problem> {
    let Some(value) = query.value(name) else { return Ok(None) };
    let known = || Form::ALL.iter().map(|form| form.as_str()).collect::<Vec<_>>().join(", ");
    Form::from_name(&value).map(Some).ok_or_else(|| Problem::invalid(name, format!("`{name}` is one of {}", known())))
}

/// Refuses a body that does not say that it has native events.
pub(crate) fn require_native(headers: &HeaderMap) -> Result<(), Problem> {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = sent.split(';').next().unwrap_or_default().trim();
    if NATIVE.iter().any(|native| essence.eq_ignore_ascii_case(native)) {
        return Ok(());
    }
    let detail = "native events are sent as `Content-Type: application/x-ndjson`, one JSON value a line, or as one array of JSON";
    Err(Problem::new(ProblemCode::UnsupportedMediaType, detail))
}

refusals!(ImportRefusals = [JSON, WRITE] + [WorkspaceFull, QueueFull]);

/// Imports a capture of another framework
///
/// The native events become the results of a run of `plugin:agent-host/import/FORM`, and the capture its artifact. The same
/// capture in the same conversation is the same run. The answer comes at the end of the run, or after
/// `limits.http_wait_ms`.
#[utoipa::path(post, path = "/api/v1/imports", tag = "runs", security(("bearer" = ["runs:execute"])),
    params(
        ("form" = inline(Form), Query, description = "The form of the events."),
        ("name" = Option<String>, Query, description = "A name of the capture, to show."),
        ("conversation_id" = Option<String>, Query, description = "The run is a turn of this conversation. Without it, it is a thread of its own.", max_length = 256),
        ("thread_id" = Option<String>, Query, description = "The thread in that conversation.", max_length = 256),
        ("workspace_id" = Option<String>, Query, description = "The workspace of the run.", max_length = 256),
    ),
    request_body(content((NativeLines = "application/x-ndjson")), description = "The capture, at most `limits.upload_bytes`."),
    responses(
        (status = 200, description = "The run of the capture, which was imported before.", body = Run,
            headers(("Location" = String, description = "The run."))),
        (status = 201, description = "Its new run.", body = Run, headers(("Location" = String, description = "The run."))),
        ImportRefusals,
    ))]
pub(crate) async fn import(mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsExecute)?;
    let Some(form) = form(&mut request.query, "form")? else {
        return Err(Problem::invalid("form", "`form` names the framework that made the capture, such as `ai-sdk`"));
    };
    let name = request.query.text("name").and_then(|name| plain_name(&name));
    let mut envelope = Envelope::message("", "api");
    let (conversation_id, thread_id) = (request.query.text("conversation_id"), request.query.text("thread_id"));
    let workspace_id = request.query.text("workspace_id");
    request.query.finish()?;
    if thread_id.is_some() && conversation_id.is_none() {
        return Err(Problem::invalid("thread_id", "a thread needs a `conversation_id`"));
    }
    if conversation_id.is_some() || workspace_id.is_some() {
        envelope.conversation = Some(Conversation { conversation_id, thread_id, workspace_id, ..Conversation::default() });
    }
    envelope.check().map_err(|complaint| Problem::invalid("conversation_id", complaint))?;
    request.caller.place(&mut envelope)?;
    require_native(&request.headers)?;
    let ApiRequest { app, headers, body, .. } = request;
    let limits = app.host.config().limits.clone();
    let body = UploadBody::new(&headers, body, limits.upload_bytes.min(limits.artifact_bytes)).await?;
    let content = in_time(body.write(&app)).await?;
    let imported = app.host.import(NewImport { form, content, name, conversation: envelope.conversation }).await?;
    let run = app.host.wait(imported.run_id, Duration::from_millis(limits.http_wait_ms)).await?;
    let status = if imported.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok(located(status, format!("/api/v1/runs/{}", run.run_id), &*run))
}

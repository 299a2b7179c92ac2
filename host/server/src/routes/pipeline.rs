//! Queries of chat pipelines, taken as events.

use std::sync::Arc;

use agent_host_protocol::{Scope, event::Envelope, grant::ConversationKey, message::ContentPart};
use agent_host_runs::{PipelineQuery, inline_bytes};
use axum::{http::StatusCode, response::Response};

use super::accepted::Accepted;
use crate::{
    access::{ApiRequest, caller::Caller},
    agents::{media, read::SpooledFile},
    agui::event::{Content, Part, Source},
    app::App,
    http::{Problem, located, replayed},
    openapi::refusals,
};

refusals!(QueryRefusals = [JSON, WRITE, BEGIN] + [IdempotencyConflict, MediaInvalid, MediaTooLarge, MediaUnavailable]);

/// Takes a query of a chat pipeline
///
/// The query becomes an event of source `pipeline_adapter`, and the configuration of its pipeline a binding for the one run.
/// Both are durable when this answers. As no binding of the host bounds the run, it needs the scope `admin`. The answer has the names
/// of LangBot unless the client asks for others (docs/LANGBOT.md).
#[utoipa::path(post, path = "/api/v1/pipeline/queries", tag = "events", security(("bearer" = ["admin"])),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The same key with the same body gives the same run."),
    ),
    request_body = PipelineQuery,
    responses(
        (status = 202, description = "The event and its run.", body = Accepted, headers(
            ("Location" = String, description = "The run."),
            ("Idempotency-Replayed" = Option<String>, description = "`true` if it was accepted before."),
        )),
        QueryRefusals,
    ))]
pub(crate) async fn pipeline_query(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::Admin)?;
    let (query, idempotency): (PipelineQuery, _) = request.idempotent_json().await?;
    let ApiRequest { app, caller, dialect, .. } = request;
    let mut adapted = query.adapt(&app.host.config().runner_aliases).map_err(malformed)?;
    keep_bytes(&app, &caller, &mut adapted.envelope).await?;
    let accepted = app.host.run_pipeline_query(adapted, &caller.0, idempotency).await.map_err(Problem::of_field)?;
    let run = *accepted.runs.first().ok_or_else(|| {
        let detail = "this idempotency key was used for an event without runs: use a new key for a new query";
        Problem::invalid("Idempotency-Key", detail)
    })?;
    let run = caller.run(&app, run)?;
    // A client that follows the location gets the run in its own names.
    let names = if dialect.is_some() { "?dialect=langbot-4.11" } else { "" };
    let location = format!("/api/v1/runs/{}{names}", run.run_id);
    let repeated = accepted.repeated;
    let query = Accepted::query(accepted, Arc::unwrap_or_clone(run));
    let response = located(StatusCode::ACCEPTED, location, &query);
    Ok(replayed(response, repeated))
}

/// Bytes within a message become artifacts of its conversation.
async fn keep_bytes(app: &App, caller: &Caller, envelope: &mut Envelope) -> Result<(), Problem> {
    let conversation = envelope.conversation.as_ref().filter(|it| it.thread_id.is_none());
    let Some(id) = conversation.and_then(|it| it.conversation_id.clone()) else { return Ok(()) };
    let thread = ConversationKey::new(caller.0.workspace.as_deref().unwrap_or_default(), &id, "");
    for (place, part) in envelope.input.contents.iter_mut().enumerate() {
        let Some(bytes) = inline_bytes(part) else { continue };
        let field = format!("query.user_message.content[{place}]");
        let named = bytes.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
        let Some((mime_type, value)) = named else {
            let detail = format!("`{field}` has its bytes as `data:image/png;base64,...`, with their own media type");
            return Err(Problem::invalid(field, detail));
        };
        let source = Source::Data { value: value.to_owned(), mime_type: mime_type.to_owned() };
        let is_image = mime_type.starts_with("image/");
        let content = Content::Parts(vec![if is_image { Part::Image { source } } else { Part::Document { source } }]);
        let kept = media::stored(app, caller, &thread, 0, &content, &SpooledFile::default()).await.map_err(|problem| {
            let detail = problem.detail().replace("messages[0].content[0]", &field);
            Problem::new(problem.code(), detail).in_field(field.clone())
        })?;
        if let Some(artifact @ ContentPart::Artifact(_)) = kept.contents.into_iter().next() {
            *part = artifact;
        }
    }
    Ok(())
}

/// The complaint begins with the field, in backticks.
fn malformed(complaint: String) -> Problem {
    let field = complaint.strip_prefix('`').and_then(|rest| rest.split('`').next()).unwrap_or("query").to_owned();
    Problem::invalid(field, complaint)
}

//! Host calls of a run that an executor holds: the functions of the contract by their names, and content as it is.
//!
//! The caller sends the token of its claim, and needs no key: the token is valid for this one run while the claim is valid.
//! The gate of the run checks grants, sizes and rates, as for a guest.

use std::future::Future;

use agent_host_protocol::{RunId, auth::LEASE_PREFIX, message::ArtifactRef, model::ModelChunk, time};
use agent_host_runs::{Answer, CallError, Calls, Chunks, NewArtifact, media};
use axum::{
    body::{Body, Bytes},
    extract::{FromRequestParts, Path},
    http::{HeaderMap, Method, StatusCode, request::Parts},
    response::{Response, sse::Event},
};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    access::{ApiRequest, caller::bearer},
    app::App,
    artifacts::{
        download,
        names::{disposition_name, plain_name},
        upload::{UploadBody, declared_type, in_time},
    },
    http::{Id, Problem, ProblemCode, body, headers::content_length, json, raw_json, sse},
    langbot::{self, Plan},
    openapi::{self, refusals},
};

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unknown(message) => Self::not_found(message),
            CallError::Refused(refusal) => refusal.into(),
            CallError::Lost(error) => error.into(),
            other => Self::internal(format!("{other:?}")),
        }
    }
}

/// The host calls of the run in the path, for the holder of its claim's token. The second field has the other parts of the
/// path.
pub(crate) struct ClaimedCalls<T>(Calls, T);

impl FromRequestParts<App> for ClaimedCalls<String> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Ok(Path((id, name))) = Path::<(String, String)>::from_request_parts(parts, app).await else {
            return Err(Problem::not_found("a part of the path is not UTF-8"));
        };
        Ok(Self(calls(app, &id, &parts.headers)?, name))
    }
}

impl FromRequestParts<App> for ClaimedCalls<()> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Ok(Path(id)) = Path::<String>::from_request_parts(parts, app).await else {
            return Err(Problem::not_found("the id of a run is not UTF-8"));
        };
        Ok(Self(calls(app, &id, &parts.headers)?, ()))
    }
}

fn calls(app: &App, id: &str, headers: &HeaderMap) -> Result<Calls, Problem> {
    let Some(token) = bearer(headers).filter(|token| token.starts_with(LEASE_PREFIX)) else {
        let detail = "this takes the token of the claim of the run: `Authorization: Bearer ahl_…`";
        return Err(Problem::new(ProblemCode::Unauthenticated, detail));
    };
    let id: RunId = id.parse().map_err(|error| Problem::not_found(format!("no run: {error}")))?;
    Ok(app.host.claim_calls(id, token)?)
}

/// Waits for an answer, as long as the server is there.
async fn answered<T>(app: &App, answer: impl Future<Output = Result<T, CallError>>) -> Result<T, Problem> {
    tokio::select! {
        biased;
        answer = answer => Ok(answer?),
        () = app.closing.cancelled() => Err(shutting_down("call again")),
    }
}

fn shutting_down(what: &str) -> Problem {
    Problem::new(ProblemCode::ShuttingDown, format!("the host is going down: {what} when it is back"))
}

refusals!(
    CallRefusals = [JSON]
        + [NotFound, ClaimLost, Unauthorized, Cancelled, DeadlineExceeded, Conflict, RateLimited, RuntimeError, ShuttingDown]
);

/// The protocol's name of the route of an artifact's content (v1, section 7.6).
const OPEN_STREAM: &str = "artifacts.open_stream";
const MAX_OPEN_BYTES: usize = 4 * 1024;

/// The arguments of [`OPEN_STREAM`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenStream {
    artifact_id: String,
}

/// Calls a function of the contract for a run that an executor holds
///
/// Such as `models.invoke`, `tools.call` or `state.set`: the arguments are an object, and so is the answer
/// (docs/EXECUTORS.md). `models.stream` answers events: `chunk` with each piece, then one `done` with the whole response, or
/// one `problem`. A client that goes away gives up a call that lasts. Send the token of the claim.
#[utoipa::path(post, path = "/api/v1/runs/{id}/calls/{function}", tag = "queue", security(("bearer" = [])),
    params(
        Id<RunId>,
        ("function" = String, Path, description = "Such as `models.invoke`."),
    ),
    request_body(content = serde_json::Map<String, serde_json::Value>, description = "The arguments of the function."),
    responses(
        (status = 200, description = "The answer of the function.",
            content((serde_json::Map<String, serde_json::Value> = "application/json"), (String = "text/event-stream"))),
        CallRefusals,
    ))]
pub(crate) async fn call(
    ClaimedCalls(calls, function): ClaimedCalls<String>,
    mut request: ApiRequest,
) -> Result<Response, Problem> {
    request.query.finish()?;
    if function == OPEN_STREAM {
        let OpenStream { artifact_id } = request.json(MAX_OPEN_BYTES).await?;
        let (mut calls, method) = (calls, Method::GET);
        let record = answered(&request.app, calls.artifact(&artifact_id)).await?;
        let whole = |first, end| content(calls, artifact_id, first, end);
        return download::serve(&record, record.size, &method, &HeaderMap::new(), false, whole);
    }
    if request.dialect.is_some() && !function.contains('.') {
        return langbot_call(calls, &function, request).await;
    }
    let most = calls.body_bytes(&function)?;
    body::require_json(&request.headers)?;
    let body = match body::read(std::mem::take(&mut request.body), most).await {
        Err(problem) if problem.code() == ProblemCode::PayloadTooLarge => {
            let announced = content_length(&request.headers).and_then(|length| usize::try_from(length).ok());
            let size = announced.unwrap_or_default().max(most.saturating_add(1));
            match answered(&request.app, calls.refuse_body(&function, size)).await? {}
        }
        body => body?,
    };
    match answered(&request.app, calls.call(&function, body)).await? {
        Answer::Json(json) => Ok(raw_json(StatusCode::OK, json)),
        Answer::Stream(chunks) => Ok(streamed(&request.app, chunks, encode)),
    }
}

/// Calls a function of LangBot's API.
async fn langbot_call(calls: Calls, function: &str, mut request: ApiRequest) -> Result<Response, Problem> {
    body::require_json(&request.headers)?;
    let arguments = body::read(std::mem::take(&mut request.body), calls.largest_body_bytes()).await?;
    let app = &request.app;
    let run_id = calls.run_id();
    let found = app.host.records().run(run_id)?.ok_or_else(|| Problem::not_found(format!("there is no run {run_id}")))?;
    let run = found.run;
    let (function, arguments, form) = match langbot::plan(function, langbot::arguments(&arguments)?, &run)? {
        None => return Err(Problem::not_found(format!("LangBot has no function `{}`", function.escape_debug()))),
        Some(Plan::Version) => return Ok(json(StatusCode::OK, &langbot::version())),
        Some(Plan::OwnRun) => return Ok(json(StatusCode::OK, &langbot::run(&run)?)),
        Some(Plan::Prompt) => {
            let context = app.read(move |records| records.context(run_id)).await?;
            return Ok(json(StatusCode::OK, &langbot::prompt(context.as_deref().map(RawValue::get))?));
        }
        Some(Plan::Call { function, arguments, answer }) => (function, arguments, answer),
    };
    let body = serde_json::to_vec(&arguments).map_err(Problem::internal)?;
    let most = calls.body_bytes(function)?;
    if body.len() > most {
        match answered(app, calls.refuse_body(function, body.len())).await? {}
    }
    let value = match answered(app, calls.call(function, body.into())).await? {
        Answer::Stream(chunks) => return Ok(streamed(app, chunks, encode_langbot)),
        Answer::Json(json) => serde_json::from_slice(&json).map_err(Problem::internal)?,
    };
    let value = match langbot::run_to_read(&form) {
        Some(id) => {
            let found = app.host.records().run(id)?.ok_or_else(|| Problem::not_found(format!("there is no run {id}")))?;
            serde_json::to_value(&found.run).map_err(Problem::internal)?
        }
        None => value,
    };
    Ok(json(StatusCode::OK, &langbot::answered(&form, value, &run, time::now())?))
}

/// The place of a streamed answer.
enum StreamState {
    On(Box<Chunks>),
    Over,
}

/// Events `chunk` with the pieces as they come, then one `done` with the whole response, or one `problem`.
fn streamed(app: &App, chunks: Chunks, encode: fn(&ModelChunk) -> Result<Event, Problem>) -> Response {
    let closing = app.closing.clone();
    let events = stream::unfold(StreamState::On(Box::new(chunks)), move |streaming| {
        let closing = closing.clone();
        async move {
            let StreamState::On(mut chunks) = streaming else { return None };
            let next = tokio::select! {
                biased;
                next = chunks.next() => next.map_err(Problem::from),
                () = closing.cancelled() => Err(shutting_down("call again")),
            };
            let events = match next {
                Ok(pieces) if pieces.is_empty() => return None,
                Ok(pieces) => pieces.iter().map(encode).collect::<Result<Vec<_>, _>>(),
                Err(problem) => Err(problem),
            };
            Some(match events {
                Ok(events) => (events, StreamState::On(chunks)),
                Err(problem) => (vec![Event::default().event("problem").data(problem.to_json())], StreamState::Over),
            })
        }
    });
    sse::respond(events.flat_map(stream::iter), ())
}

fn encode(chunk: &ModelChunk) -> Result<Event, Problem> {
    let event = match chunk {
        ModelChunk::Done(response) => Event::default().event("done").json_data(response),
        piece => Event::default().event("chunk").json_data(piece),
    };
    event.map_err(Problem::internal)
}

/// A piece as LangBot has it; the last one is an event `chunk` like the others.
fn encode_langbot(chunk: &ModelChunk) -> Result<Event, Problem> {
    let piece = serde_json::to_value(chunk).map_err(Problem::internal)?;
    Event::default().event("chunk").json_data(langbot::streamed(piece)).map_err(Problem::internal)
}

refusals!(
    ContentRefusals = [
        NotFound,
        ClaimLost,
        Unauthorized,
        Cancelled,
        DeadlineExceeded,
        Conflict,
        RateLimited,
        RuntimeError,
        RangeNotSatisfiable,
        ShuttingDown,
    ]
);

/// The content of an artifact that a held run may read, or one range of it
///
/// Send the token of the claim.
#[utoipa::path(method(get, head), path = "/api/v1/runs/{id}/calls/artifacts/{artifact_id}", tag = "queue", security(("bearer" = [])),
    params(
        Id<RunId>,
        ("artifact_id" = String, Path, description = "Names the artifact."),
        ("Range" = Option<String>, Header, description = "One range of bytes (RFC 9110); several are answered with everything."),
        ("If-Range" = Option<String>, Header, description = "The range is wanted only of this content."),
    ),
    responses(
        (status = 200, description = "The content.", content((openapi::Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Accept-Ranges" = String, description = "`bytes`."),
                ("Content-Disposition" = String, description = "How it is shown, and its name."))),
        (status = 206, description = "One range of it.", content((openapi::Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Content-Range" = String, description = "Which."))),
        ContentRefusals,
    ))]
pub(crate) async fn artifact(
    ClaimedCalls(mut calls, id): ClaimedCalls<String>,
    method: Method,
    request: ApiRequest,
) -> Result<Response, Problem> {
    request.query.finish()?;
    let record = answered(&request.app, calls.artifact(&id)).await?;
    download::serve(&record, record.size, &method, &request.headers, false, |first, end| content(calls, id, first, end))
}

/// The content, read piece by piece as the client takes it; each piece passes the gate.
fn content(calls: Calls, id: String, first: u64, end: u64) -> Body {
    let pieces = stream::unfold(Some((calls, first)), move |state| {
        let id = id.clone();
        async move {
            let (mut calls, at) = state?;
            let left = end.saturating_sub(at);
            if left == 0 {
                return None;
            }
            match calls.read_artifact(&id, at, left).await {
                Ok(bytes) if bytes.is_empty() => Some((Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)), None)),
                Ok(bytes) => {
                    let next = at.saturating_add(bytes.len() as u64);
                    Some((Ok(Bytes::from(bytes)), Some((calls, next))))
                }
                Err(error) => Some((Err(std::io::Error::other(Problem::from(error).to_json())), None)),
            }
        }
    });
    Body::from_stream(pieces)
}

refusals!(
    CreateRefusals = [
        NotFound,
        ClaimLost,
        Unauthorized,
        Cancelled,
        DeadlineExceeded,
        Conflict,
        RateLimited,
        RuntimeError,
        PayloadTooLarge,
        UnsupportedMediaType,
        RequestTimeout,
        ShuttingDown,
    ]
);

/// Keeps the body as an artifact of a held run
///
/// The same as `artifacts.create` of a guest: it is recorded as `artifact.created`, and durable when this answers. Send the
/// token of the claim.
#[utoipa::path(post, path = "/api/v1/runs/{id}/calls/artifacts", tag = "queue", security(("bearer" = [])),
    params(
        Id<RunId>,
        ("name" = Option<String>, Query, description = "A name to show. It may also come in `Content-Disposition`."),
    ),
    request_body(content((Option<openapi::Upload> = "application/octet-stream")),
        description = "The content. The media type of the request is compared with it."),
    responses((status = 201, description = "The reference.", body = ArtifactRef), CreateRefusals))]
pub(crate) async fn create_artifact(
    ClaimedCalls(mut calls, ()): ClaimedCalls<()>,
    request: ApiRequest,
) -> Result<Response, Problem> {
    let ApiRequest { app, mut query, headers, body, .. } = request;
    let name = query.text("name");
    query.finish()?;
    let declared = match declared_type(&headers)? {
        declared if declared.is_empty() => media::UNKNOWN.to_owned(),
        declared => declared,
    };
    let named = || disposition_name(&headers).and_then(|name| plain_name(&name));
    let name = name.or_else(named);
    let limit = calls.artifact_bytes();
    let work = async {
        let new = calls.create_artifact(declared, name).await?;
        let body = UploadBody::new(&headers, body, limit).await?;
        in_time(received(new, body)).await
    };
    tokio::select! {
        biased;
        json = work => Ok(raw_json(StatusCode::CREATED, json?)),
        () = app.closing.cancelled() => Err(shutting_down("send it again")),
    }
}

async fn received(mut new: NewArtifact, mut body: UploadBody) -> Result<Vec<u8>, Problem> {
    while let Some(data) = body.next().await? {
        new.write(&data).await?;
    }
    Ok(new.finish().await?)
}

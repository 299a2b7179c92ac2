//! `/api/v1/artifacts`: bytes of clients and runs, in and out.

use agent_host_protocol::{PrincipalKind, Scope, artifact::ArtifactMetadata, grant::ConversationKey};
use agent_host_runs::{ArtifactScope, media};
use axum::{
    extract::{FromRequestParts, Path},
    http::{Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};

use crate::{
    access::{ApiRequest, caller::Caller},
    artifacts::{
        download::{self, describe},
        find,
        names::{disposition_name, plain_name},
        upload::{NewUpload, UploadBody, create_artifact, declared_type, in_time, refuse_pages},
    },
    http::{Problem, ProblemCode, Query, headers::matches_etag, json, located},
    openapi::{self, Bytes, Upload, refusals},
};

/// Longest id of a conversation, thread or workspace, as in events.
const MAX_ID_BYTES: usize = 256;

/// The presentation of content.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of a parameter that is read by hand")]
enum Disposition {
    Attachment,
    Inline,
}

impl utoipa::IntoParams for ArtifactId {
    fn into_params(_: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>) -> Vec<utoipa::openapi::path::Parameter> {
        vec![openapi::named("id", "Names the artifact.")]
    }
}

/// The `{id}` of a path. Only the ledger knows which ids exist.
pub(crate) struct ArtifactId(String);

impl<S: Send + Sync> FromRequestParts<S> for ArtifactId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(Problem::not_found("the id of an artifact is not UTF-8")),
        }
    }
}

refusals!(UploadRefusals = [WRITE] + [WorkspaceFull, UnsupportedMediaType, PayloadTooLarge, RequestTimeout]);

/// Keeps the body as an artifact
///
/// The body is the content. The artifact is durable when this request returns.
#[utoipa::path(post, path = "/api/v1/artifacts", tag = "artifacts", security(("bearer" = ["events:write"])),
    params(
        ("name" = Option<String>, Query, description = "A name to show. It may also come in `Content-Disposition`."),
        ("conversation_id" = Option<String>, Query, description = "Runs of this conversation may see it.", max_length = 256),
        ("thread_id" = Option<String>, Query, description = "Of that conversation, runs of this thread may see it.", max_length = 256),
        ("workspace_id" = Option<String>, Query, description = "Runs of this workspace may see it.", max_length = 256),
        ("expires_in_ms" = Option<u64>, Query, description = "The artifact is removed after this time, even when it is still referenced.", minimum = 1),
    ),
    request_body(content((Option<Upload> = "application/octet-stream")),
        description = "The content, of any media type. A media type that the request names is compared with the content; without one the content decides."),
    responses(
        (status = 201, description = "The metadata.", body = ArtifactMetadata, headers(("Location" = String, description = "The content."))),
        UploadRefusals,
    ))]
pub(crate) async fn upload(mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::EventsWrite)?;
    let scope = scope(&request.caller, &mut request.query)?;
    let name = request.query.text("name");
    let expires_in_ms: Option<u64> = request.query.parsed("expires_in_ms")?;
    if expires_in_ms == Some(0) {
        return Err(Problem::invalid("expires_in_ms", "`expires_in_ms` must be at least 1"));
    }
    request.query.finish()?;
    let ApiRequest { app, caller, headers, body, .. } = request;
    if caller.0.kind == PrincipalKind::Loopback {
        refuse_pages(&app, &headers)?;
    }
    let declared = declared_type(&headers)?;
    let name = name.or_else(|| disposition_name(&headers)).and_then(|name| plain_name(&name));
    let limits = app.host.config().limits.clone();
    let body = UploadBody::new(&headers, body, limits.upload_bytes.min(limits.artifact_bytes)).await?;
    let writer = in_time(body.write(&app)).await?;
    let media_type =
        media::judge(&declared, writer.head()).map_err(|reason| Problem::new(ProblemCode::UnsupportedMediaType, reason))?;
    let record = create_artifact(&app, writer, NewUpload { media_type, name, expires_in_ms, scope }).await?;
    Ok(located(StatusCode::CREATED, format!("/api/v1/artifacts/{}", record.artifact_id), &record.metadata()))
}

refusals!(MetadataRefusals = [NotFound]);

/// Metadata of an artifact
#[utoipa::path(get, path = "/api/v1/artifacts/{id}/metadata", tag = "artifacts", security(("bearer" = ["runs:read"])), params(ArtifactId),
    responses((status = 200, description = "The metadata.", body = ArtifactMetadata), MetadataRefusals))]
pub(crate) async fn metadata(ArtifactId(id): ArtifactId, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    Ok(json(StatusCode::OK, &find(&request.app, &request.caller, id).await?.metadata()))
}

refusals!(ContentRefusals = [NotFound, RangeNotSatisfiable]);

/// The content of an artifact, or one range of it
///
/// The content is a download, under a policy that forbids scripts.
#[utoipa::path(get, path = "/api/v1/artifacts/{id}", tag = "artifacts", security(("bearer" = ["runs:read"])),
    params(
        ArtifactId,
        ("disposition" = inline(Option<Disposition>), Query, description = "`inline` shows harmless content: some images, and plain text."),
        ("Range" = Option<String>, Header, description = "One range of bytes (RFC 9110); several are answered with everything."),
        ("If-None-Match" = Option<String>, Header, description = "The state of the client."),
        ("If-Range" = Option<String>, Header, description = "The range is wanted only of this content."),
    ),
    responses(
        (status = 200, description = "The content.", content((Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Accept-Ranges" = String, description = "`bytes`."),
                ("Content-Disposition" = String, description = "How it is shown, and its name."))),
        (status = 206, description = "One range of it.", content((Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Content-Range" = String, description = "Which."))),
        (status = 304, description = "The client has it already.", headers(("ETag" = String, description = "Strong: names the content."))),
        ContentRefusals,
    ))]
pub(crate) async fn content(id: ArtifactId, method: Method, request: ApiRequest) -> Result<Response, Problem> {
    answer(id, &method, request).await
}

refusals!(HeadRefusals = [NotFound]);

/// Headers of the content of an artifact
#[utoipa::path(head, path = "/api/v1/artifacts/{id}", tag = "artifacts", security(("bearer" = ["runs:read"])),
    params(
        ArtifactId,
        ("disposition" = inline(Option<Disposition>), Query, description = "As for the content."),
        ("If-None-Match" = Option<String>, Header, description = "The state of the client."),
    ),
    responses(
        (status = 200, description = "The content is there.", content((Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Content-Length" = u64, description = "Its bytes."))),
        (status = 304, description = "The client has it already.", headers(("ETag" = String, description = "Strong: names the content."))),
        HeadRefusals,
    ))]
pub(crate) async fn head(id: ArtifactId, request: ApiRequest) -> Result<Response, Problem> {
    answer(id, &Method::HEAD, request).await
}

async fn answer(ArtifactId(id): ArtifactId, method: &Method, request: ApiRequest) -> Result<Response, Problem> {
    let ApiRequest { app, caller, mut query, headers, .. } = request;
    caller.may(Scope::RunsRead)?;
    let inline = match query.value("disposition").as_deref() {
        None | Some("attachment") => false,
        Some("inline") => true,
        Some(_) => return Err(Problem::invalid("disposition", "`disposition` must be `attachment` or `inline`")),
    };
    query.finish()?;
    let record = find(&app, &caller, id).await?;
    let etag = format!("\"{}\"", record.sha256);
    if matches_etag(&headers, &etag) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        describe(response.headers_mut(), &record, &etag, inline)?;
        response.headers_mut().remove(header::CONTENT_TYPE);
        return Ok(response);
    }
    let sha256 = record.sha256.clone();
    let blob = app.read(move |records| records.blob(&sha256)).await?;
    let Some(blob) = blob else {
        // The artifact may have been collected meanwhile.
        find(&app, &caller, record.artifact_id.clone()).await?;
        return Err(Problem::internal(format!("the content of artifact {} is not there", record.artifact_id)));
    };
    let size = blob.len();
    download::serve(&record, size, method, &headers, inline, |first, end| download::body(blob, first, end))
}

/// The scope of an upload.
fn scope(caller: &Caller, query: &mut Query) -> Result<ArtifactScope, Problem> {
    let mut id = |name: &'static str| match query.text(name) {
        Some(id) if id.len() > MAX_ID_BYTES => Err(Problem::invalid(name, format!("`{name}` may have {MAX_ID_BYTES} bytes"))),
        id => Ok(id),
    };
    let (workspace, conversation, thread) = (id("workspace_id")?, id("conversation_id")?, id("thread_id")?);
    let workspace = caller.workspace("workspace_id", workspace)?.unwrap_or_default();
    let conversation = match (conversation, thread) {
        (None, Some(_)) => return Err(Problem::invalid("thread_id", "a thread needs a `conversation_id`")),
        (None, None) => None,
        (Some(conversation), thread) => Some(ConversationKey::new(&workspace, &conversation, &thread.unwrap_or_default())),
    };
    Ok(ArtifactScope { workspace, conversation, run_id: None, binding_id: None })
}

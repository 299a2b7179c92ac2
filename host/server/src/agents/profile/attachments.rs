//! Attachments: images that a client sends before the message that shows them, and their signed addresses.
//!
//! An attachment is an artifact of the caller's workspace. Its address is signed and valid for a limited time; a request to
//! it needs no key, so that a page can contain it. Uploads that no message names are deleted like other unused uploads.

use agent_host_protocol::{Principal, PrincipalKind, Scope, time};
use agent_host_runs::{ArtifactScope, BlobWriter, media};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use multer::{Constraints, Field, Multipart, SizeLimit};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::{Code, Refusal, agent_refusals};
use crate::{
    access::{ApiRequest, caller::Caller},
    agents::sign,
    app::App,
    artifacts::{
        self, download,
        names::plain_name,
        upload::{ARRIVAL, IDLE, NewUpload, Spool, create_artifact, refuse, refuse_pages, too_large},
    },
    http::{
        Path, Problem, Query,
        headers::{CROSS_ORIGIN_RESOURCE_POLICY, content_length, matches_etag},
        json,
    },
    openapi::Bytes,
};

/// The one bucket: the profile keeps its files in a store of objects, and this host keeps artifacts.
const BUCKET: &str = "artifacts";
/// The part of the form that is the file.
const FILE: &str = "file";
/// Bytes of a form besides its file.
const FORM_BYTES: u64 = 64 * 1024;
/// Types that models read and browsers show.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// A form with a file.
#[derive(ToSchema)]
#[schema(as = AgentAttachmentForm)]
#[expect(dead_code, reason = "the schema of a body that is read by hand")]
struct Form {
    /// The image.
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    file: String,
}

/// An attachment, and where it can be had.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentAttachment)]
struct Attachment {
    /// Bucket of the file.
    bucket: &'static str,
    /// Path in the bucket: the id of the artifact.
    path: String,
    /// Media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<String>,
    /// Signed address, valid for a limited time.
    url: String,
}

/// The signed address of an artifact: the same for half of `url_ttl_ms`, so that browsers find what they have.
pub(super) fn signed(app: &App, artifact_id: &str) -> String {
    sign::url(app, artifact_id, sign::expiry(time::now(), app.host.config().agui.api.url_ttl_ms))
}

agent_refusals!(
    UploadRefusals =
        [RequestTimeout, PayloadTooLarge, UnsupportedMediaType, AttachmentUnsupported, AttachmentEmpty, InsufficientStorage,]
);

/// Keeps an image, for a message to come
///
/// PNG, JPEG, GIF or WebP, as its bytes show; at most `limits.upload_bytes`. A message names it by its `url`.
#[utoipa::path(post, path = "/api/v1/agent/attachments", tag = "agent", security(("bearer" = ["events:write"])),
    request_body(content = Form, content_type = "multipart/form-data"),
    responses((status = 200, description = "Where it can be had.", body = Attachment), UploadRefusals))]
pub(crate) async fn upload_attachment(request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, query, headers, body, .. } = request;
    caller.may(Scope::EventsWrite)?;
    super::agent(&app)?;
    query.finish()?;
    if caller.0.kind == PrincipalKind::Loopback {
        refuse_pages(&app, &headers)?;
    }
    let limits = app.host.config().limits.clone();
    let limit = limits.upload_bytes.min(limits.artifact_bytes);
    let received = tokio::time::timeout(ARRIVAL, receive(&app, &headers, body, limit)).await;
    let late = |_| Refusal::new(Code::RequestTimeout, format!("the form did not arrive within {} seconds", ARRIVAL.as_secs()));
    let FormFile { writer, declared, name } = received.map_err(late)??;
    let media_type = image_type(&declared, writer.head())?.to_owned();
    let scope = ArtifactScope { workspace: caller.0.workspace.clone().unwrap_or_default(), ..ArtifactScope::default() };
    let record = create_artifact(&app, writer, NewUpload { media_type, name, expires_in_ms: None, scope }).await?;
    let url = signed(&app, &record.artifact_id);
    let path = match &caller.0.end_user {
        Some(user) => sign::path_of(&app, user, &record.artifact_id),
        None => record.artifact_id,
    };
    let attachment = Attachment { bucket: BUCKET, path, mime_type: Some(record.media_type), url };
    Ok(json(StatusCode::OK, &attachment))
}

/// A file on disk, and what its sender says of it.
struct FormFile {
    writer: BlobWriter,
    declared: String,
    name: Option<String>,
}

/// The type of the bytes. Fails unless they are an accepted image of the declared type.
fn image_type(declared: &str, head: &[u8]) -> Result<&'static str, Refusal> {
    if head.is_empty() {
        return Err(Refusal::new(Code::AttachmentEmpty, "the file has no bytes"));
    }
    let refused = |why: String| Refusal::new(Code::AttachmentUnsupported, why);
    let found = media::judge("", head).map_err(refused)?;
    let image = IMAGES.into_iter().find(|image| *image == found);
    let image = image.ok_or_else(|| refused(format!("an attachment is one of {}, and this is {found}", IMAGES.join(", "))))?;
    media::judge(declared, head).map_err(refused)?;
    media::check_picture(image, head).map_err(refused)?;
    Ok(image)
}

/// Stores the file of a form on disk. An abandoned upload leaves no file.
async fn receive(app: &App, headers: &HeaderMap, body: Body, limit: u64) -> Result<FormFile, Refusal> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|_| {
        let detail = format!("send a form, `multipart/form-data`, whose part `{FILE}` is the image");
        Refusal::new(Code::UnsupportedMediaType, detail)
    })?;
    let whole = limit.saturating_add(FORM_BYTES);
    if content_length(headers).is_some_and(|length| length > whole) {
        return Err(refuse(body, limit).await.into());
    }
    let sizes = SizeLimit::new().whole_stream(whole).for_field(FILE, limit);
    let mut form = Multipart::with_constraints(body.into_data_stream(), boundary, Constraints::new().size_limit(sizes));
    loop {
        let next = tokio::time::timeout(IDLE, form.next_field()).await.map_err(|_| stood_still())?;
        let Some(field) = next.map_err(|error| malformed(&error, limit))? else {
            let detail = format!("the form has no part `{FILE}`: it is the image");
            return Err(Refusal::new(Code::PayloadInvalid, detail).with("field", FILE));
        };
        if field.name() == Some(FILE) {
            return write(app, field, limit).await;
        }
    }
}

async fn write(app: &App, mut field: Field<'static>, limit: u64) -> Result<FormFile, Refusal> {
    let declared = field.content_type().map(|kind| kind.essence_str().to_owned()).unwrap_or_default();
    let name = field.file_name().and_then(plain_name);
    let mut spool = Spool::open(app, limit).await?;
    loop {
        let chunk = tokio::time::timeout(IDLE, field.chunk()).await.map_err(|_| stood_still())?;
        let Some(chunk) = chunk.map_err(|error| malformed(&error, limit))? else { break };
        spool = spool.push(&chunk).await?;
    }
    Ok(FormFile { writer: spool.end().await?, declared, name })
}

fn stood_still() -> Refusal {
    Refusal::new(Code::RequestTimeout, format!("the form stood still for {} seconds", IDLE.as_secs()))
}

fn malformed(error: &multer::Error, limit: u64) -> Refusal {
    match error {
        multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => too_large(limit).into(),
        error => Refusal::new(Code::PayloadInvalid, format!("the form cannot be read: {error}")),
    }
}

agent_refusals!(SignRefusals = [AttachmentNotFound]);

/// Signs the address of an attachment anew
#[utoipa::path(get, path = "/api/v1/agent/attachments/signed-url", tag = "agent", security(("bearer" = ["runs:read"])),
    params(
        ("bucket" = String, Query, description = "As the upload has answered."),
        ("path" = String, Query, description = "Likewise."),
    ),
    responses((status = 200, description = "Where it can be had.", body = Attachment), SignRefusals))]
pub(crate) async fn sign_attachment(request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, mut query, .. } = request;
    caller.may(Scope::RunsRead)?;
    super::agent(&app)?;
    let missing = |name: &str| Refusal::new(Code::PayloadInvalid, format!("`{name}` is missing")).with("field", name);
    let bucket = query.text("bucket").ok_or_else(|| missing("bucket"))?;
    let path = query.text("path").ok_or_else(|| missing("path"))?;
    query.finish()?;
    if bucket != BUCKET {
        return Err(Refusal::new(Code::AttachmentNotFound, format!("there is one bucket: `{BUCKET}`")));
    }
    let not_there = |problem: Problem| Refusal::from(problem).not_there(Code::AttachmentNotFound);
    let own = caller.0.end_user.as_ref().and_then(|user| sign::id_of(&app, user, &path).map(str::to_owned));
    let record = match own {
        // The path says whose upload it is.
        Some(id) => {
            let uploader = Caller(Principal { end_user: None, ..caller.0.clone() });
            artifacts::find(&app, &uploader, id).await
        }
        None => artifacts::find(&app, &caller, path.clone()).await,
    };
    let url = signed(&app, &record.map_err(not_there)?.artifact_id);
    Ok(json(StatusCode::OK, &Attachment { bucket: BUCKET, path, mime_type: None, url }))
}

agent_refusals!(ContentRefusals = [SignatureInvalid, AttachmentNotFound, UrlExpired, RangeNotSatisfiable]);

/// The content of an attachment, for who has its signed address
///
/// The signature replaces a key. The response has a policy that forbids scripts.
#[utoipa::path(get, path = "/api/v1/agent/attachments/{id}", tag = "agent", security(()),
    params(
        ("id" = String, Path, description = "Names the attachment."),
        ("expires" = String, Query, description = "Until when the address is good, as it was signed."),
        ("signature" = String, Query, description = "Of the rest of the address."),
        ("Range" = Option<String>, Header, description = "One range of bytes (RFC 9110)."),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of what the client has."),
    ),
    responses(
        (status = 200, description = "The content.", content((Bytes = "*/*"))),
        (status = 206, description = "One range of it.", content((Bytes = "*/*"))),
        (status = 304, description = "The client has it."),
        ContentRefusals,
    ))]
pub(crate) async fn attachment_content(
    State(app): State<App>,
    Path(id): Path<String>,
    mut query: Query,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (expires, signature) = (query.text("expires"), query.text("signature"));
    query.finish()?;
    match sign::check(&app, &id, expires.as_deref().unwrap_or_default(), signature.as_deref().unwrap_or_default()) {
        sign::SignatureCheck::Good => {}
        sign::SignatureCheck::Changed => {
            let detail = "the address differs from the one that the host signed: use it unchanged, or request a new one";
            return Err(Refusal::new(Code::SignatureInvalid, detail));
        }
        sign::SignatureCheck::Expired => {
            let detail = "the time of this address is over: GET /api/v1/agent/attachments/signed-url gives a new one";
            return Err(Refusal::new(Code::UrlExpired, detail));
        }
    }
    let missing = || Refusal::new(Code::AttachmentNotFound, "the attachment has been forgotten");
    let artifact_id = id.clone();
    let record = app.read(move |records| records.artifact(&artifact_id)).await?;
    let record = record.filter(|record| !record.is_expired(time::now())).ok_or_else(missing)?;
    let etag = format!("\"{}\"", record.sha256);
    if matches_etag(&headers, &etag) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        download::describe(response.headers_mut(), &record, &etag, true)?;
        response.headers_mut().remove(header::CONTENT_TYPE);
        response.headers_mut().insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("cross-origin"));
        return Ok(response);
    }
    let sha256 = record.sha256.clone();
    let blob = app.read(move |records| records.blob(&sha256)).await?.ok_or_else(missing)?;
    let size = blob.len();
    let mut response = download::serve(&record, size, &method, &headers, true, |first, end| download::body(blob, first, end))?;
    // Pages of other origins show it: who has the address was given it.
    response.headers_mut().insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("cross-origin"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0";
    const GIF: &[u8] = b"GIF89a\x01\0\x01\0";
    const WEBP: &[u8] = b"RIFF\x24\0\0\0WEBPVP8 ";

    #[test]
    fn an_image_is_what_its_bytes_are() {
        for (declared, head, image) in [
            ("image/png", PNG, "image/png"),
            ("", PNG, "image/png"),
            ("application/octet-stream", JPEG, "image/jpeg"),
            ("image/jpg", JPEG, "image/jpeg"),
            ("image/gif", GIF, "image/gif"),
            ("image/webp", WEBP, "image/webp"),
        ] {
            assert_eq!(image_type(declared, head).unwrap(), image, "{declared}");
        }
    }

    #[test]
    fn content_of_another_type_is_refused() {
        let check = |declared: &str, head: &[u8], code: Code| {
            assert_eq!(image_type(declared, head).unwrap_err().code(), code, "{declared} {head:?}");
        };
        check("image/png", b"", Code::AttachmentEmpty);
        check("image/png", JPEG, Code::AttachmentUnsupported);
        check("text/plain", PNG, Code::AttachmentUnsupported);
        for head in [
            &PNG[..8],
            &PNG[..16],
            &b"<svg xmlns='http://www.w3.org/2000/svg'/>"[..],
            b"<script>alert(1)</script>",
            b"%PDF-1.7\n",
            b"hello",
        ] {
            check("image/png", head, Code::AttachmentUnsupported);
            check("", head, Code::AttachmentUnsupported);
        }
    }
}

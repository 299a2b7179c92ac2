//! Artifacts: bytes that come and go as they are.
//!
//! Uploads are bounded while they arrive and go to disk piece by piece; nothing of one is in memory but the piece
//! that is on its way, and no thread waits for a slow client. Content is never trusted when it goes out: it is a
//! download, under a policy that lets it run nothing.

use std::time::Duration;

use agent_host_ledger::{ArtifactRecord, ArtifactScope, BlobReader, BlobWriter, LedgerError, UPLOAD, new_artifact_id};
use agent_host_protocol::{PrincipalKind, Scope, artifact::ArtifactMetadata, grant::ConversationKey, time};
use agent_host_runs::media;
use axum::{
    body::Body,
    extract::{FromRequestParts, Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http_body_util::BodyExt;
use http_range_header::{EndPosition, StartPosition, parse_range_header};

use crate::{
    app::{App, json},
    body::DISCARDED_BYTES,
    caller::Caller,
    door::is_allowed_origin,
    openapi::{self, Bytes, Upload, refusals},
    problem::{Problem, ProblemCode},
    query::Query,
};

/// A client that sends nothing for so long holds a connection for nothing.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// So long an upload may take: 64 MiB at 110 kB a second.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(600);
/// Pieces of an upload are gathered to so much before they go to disk.
const WRITE_BYTES: usize = 512 * 1024;
/// A download is read so much at a time: what a slow reader holds in memory.
const READ_BYTES: usize = 256 * 1024;
/// Longest name of a file that common file systems take.
const MAX_NAME_BYTES: usize = 255;
/// Longest id of a conversation, thread or workspace, as in events.
const MAX_ID_BYTES: usize = 256;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// How content is shown.
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

/// The `{id}` of a path. Which ids there are, the ledger knows.
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

refusals!(UploadRefusals = [WRITE] + [UnsupportedMediaType, PayloadTooLarge, RequestTimeout]);

/// Keeps the body as an artifact
///
/// The body is the content. It is durable when this answers.
#[utoipa::path(post, path = "/api/v1/artifacts", tag = "artifacts", security(("bearer" = ["events:write"])),
    params(
        ("name" = Option<String>, Query, description = "A name to show. It may also come in `Content-Disposition`."),
        ("conversation_id" = Option<String>, Query, description = "Runs of this conversation may see it.", max_length = 256),
        ("thread_id" = Option<String>, Query, description = "Of that conversation, runs of this thread may see it.", max_length = 256),
        ("workspace_id" = Option<String>, Query, description = "Runs of this workspace may see it.", max_length = 256),
        ("expires_in_ms" = Option<u64>, Query, description = "It is gone after so long, whoever refers to it.", minimum = 1),
    ),
    request_body(content((Option<Upload> = "application/octet-stream")),
        description = "The content, of any media type. The one that is named is held against it; without one the content decides."),
    responses(
        (status = 201, description = "What is said of it.", body = ArtifactMetadata, headers(("Location" = String, description = "The content."))),
        UploadRefusals,
    ))]
pub(crate) async fn upload(
    State(app): State<App>,
    caller: Caller,
    mut query: Query,
    request: Request,
) -> Result<Response, Problem> {
    caller.may(Scope::EventsWrite)?;
    let scope = scope(&caller, &mut query)?;
    let name = query.text("name");
    let expires_in_ms: Option<u64> = query.parsed("expires_in_ms")?;
    if expires_in_ms == Some(0) {
        return Err(Problem::invalid("expires_in_ms", "`expires_in_ms` must be at least 1"));
    }
    query.finish()?;
    let (parts, body) = request.into_parts();
    if caller.0.kind == PrincipalKind::Loopback {
        refuse_pages(&app, &parts.headers)?;
    }
    let declared = declared_type(&parts.headers)?;
    let name = name.or_else(|| disposition_name(&parts.headers)).and_then(|name| plain_name(&name));
    let limits = app.host.config().limits.clone();
    let writer = receive(&app, &parts.headers, body, limits.upload_bytes.min(limits.artifact_bytes)).await?;

    let media_type =
        media::judge(&declared, writer.head()).map_err(|reason| Problem::new(ProblemCode::UnsupportedMediaType, reason))?;
    // Held until the record is there: it keeps the content.
    let blob = blocking(move || writer.finish()).await?;
    let now = time::now();
    let record = ArtifactRecord {
        artifact_id: new_artifact_id(),
        sha256: blob.sha256.clone(),
        size: blob.size,
        media_type,
        name,
        created_at: now,
        expires_at: expires_in_ms.map(|ms| now.saturating_add(ms)),
        scope,
        source: UPLOAD.to_owned(),
    };
    app.host.ledger().add_artifact(record.clone()).await?;
    drop(blob);
    let mut response = json(StatusCode::CREATED, &record.metadata());
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/artifacts/{}", record.artifact_id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

refusals!(MetadataRefusals = [NotFound]);

/// What is said of an artifact
#[utoipa::path(get, path = "/api/v1/artifacts/{id}/metadata", tag = "artifacts", security(("bearer" = ["runs:read"])), params(ArtifactId),
    responses((status = 200, description = "What is said of it.", body = ArtifactMetadata), MetadataRefusals))]
pub(crate) async fn metadata(
    State(app): State<App>,
    caller: Caller,
    ArtifactId(id): ArtifactId,
    query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    Ok(json(StatusCode::OK, &find(&app, &caller, id).await?.metadata()))
}

refusals!(ContentRefusals = [NotFound, RangeNotSatisfiable]);

/// The content of an artifact, or one range of it
///
/// It is a download, under a policy that lets it run nothing.
#[utoipa::path(get, path = "/api/v1/artifacts/{id}", tag = "artifacts", security(("bearer" = ["runs:read"])),
    params(
        ArtifactId,
        ("disposition" = inline(Option<Disposition>), Query, description = "`inline` shows what is harmless to show: some images, and plain text."),
        ("Range" = Option<String>, Header, description = "One range of bytes (RFC 9110); several are answered with everything."),
        ("If-None-Match" = Option<String>, Header, description = "What the client has."),
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
pub(crate) async fn content(
    State(app): State<App>,
    caller: Caller,
    ArtifactId(id): ArtifactId,
    mut query: Query,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
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
    let blob = app.read(move |ledger| ledger.blob(&sha256)).await?;
    let Some(blob) = blob else {
        // It may have been collected between the two looks.
        find(&app, &caller, record.artifact_id.clone()).await?;
        return Err(Problem::internal(format!("the content of artifact {} is not there", record.artifact_id)));
    };
    let size = blob.len();
    serve(&record, size, &method, &headers, inline, |first, end| body(blob, first, end))
}

/// Content of so many bytes, or the range of it that is asked for; `body` gives it from one place up to another.
pub(crate) fn serve(
    record: &ArtifactRecord,
    size: u64,
    method: &Method,
    headers: &HeaderMap,
    inline: bool,
    body: impl FnOnce(u64, u64) -> Body,
) -> Result<Response, Problem> {
    let etag = format!("\"{}\"", record.sha256);
    let wanted = if *method == Method::GET && may_be_partial(headers, &etag) { range(headers, size) } else { Wanted::All };
    let (status, first, end) = match wanted {
        Wanted::All => (StatusCode::OK, 0, size),
        Wanted::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first, last + 1),
        Wanted::Nothing => {
            let detail = format!("the artifact has {size} bytes, and the range begins behind them");
            let mut response = Problem::new(ProblemCode::RangeNotSatisfiable, detail).into_response();
            insert(response.headers_mut(), header::CONTENT_RANGE, format!("bytes */{size}"))?;
            return Ok(response);
        }
    };
    let body = if *method == Method::HEAD { Body::empty() } else { body(first, end) };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    describe(headers, record, &etag, inline)?;
    insert(headers, header::CONTENT_LENGTH, (end - first).to_string())?;
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, header::CONTENT_RANGE, format!("bytes {first}-{}/{size}", end - 1))?;
    }
    Ok(response)
}

refusals!(HeadRefusals = [NotFound]);

/// What comes with the content of an artifact, without it
#[utoipa::path(head, path = "/api/v1/artifacts/{id}", tag = "artifacts", security(("bearer" = ["runs:read"])),
    params(
        ArtifactId,
        ("disposition" = inline(Option<Disposition>), Query, description = "As for the content."),
        ("If-None-Match" = Option<String>, Header, description = "What the client has."),
    ),
    responses(
        (status = 200, description = "The content is there.", content((Bytes = "*/*")),
            headers(("ETag" = String, description = "Strong: names the content."), ("Content-Length" = u64, description = "Its bytes."))),
        (status = 304, description = "The client has it already.", headers(("ETag" = String, description = "Strong: names the content."))),
        HeadRefusals,
    ))]
pub(crate) async fn head(
    app: State<App>,
    caller: Caller,
    id: ArtifactId,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    content(app, caller, id, query, Method::HEAD, headers).await
}

/// The record of an artifact that the caller sees and whose time is not over.
pub(crate) async fn find(app: &App, caller: &Caller, id: String) -> Result<ArtifactRecord, Problem> {
    let wanted = id.clone();
    let record = app.read(move |ledger| ledger.artifact(&wanted)).await?;
    let workspace = |record: &ArtifactRecord| Some(record.scope.workspace.clone()).filter(|workspace| !workspace.is_empty());
    let is_there = |record: &ArtifactRecord| !record.is_expired(time::now()) && caller.sees(workspace(record).as_deref());
    record.filter(is_there).ok_or_else(|| {
        let id: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
        Problem::not_found(format!("there is no artifact {id}: it never was, or it has been forgotten"))
    })
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(LedgerError::TooLarge { limit })) => Err(too_large(limit)),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(Problem::internal(error)),
    }
}

pub(crate) fn too_large(limit: u64) -> Problem {
    Problem::new(ProblemCode::PayloadTooLarge, format!("the body is larger than {limit} bytes, the limit of an upload"))
}

/// Where an upload belongs.
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
        (Some(conversation), thread) => {
            Some(ConversationKey { workspace: workspace.clone(), conversation, thread: thread.unwrap_or_default() })
        }
    };
    Ok(ArtifactScope { workspace, conversation, run_id: None, binding_id: None })
}

/// Refuses pages of other sites where nobody needs a key, but for those that the configuration names: unlike JSON, they may
/// send a plain body without asking first.
pub(crate) fn refuse_pages(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let is_foreign = headers.get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site" || site == "same-site");
    let config = app.host.config();
    if is_foreign && !headers.get(header::ORIGIN).is_some_and(|origin| is_allowed_origin(&config, origin)) {
        return Err(Problem::invalid("Sec-Fetch-Site", "pages of other sites may not upload here"));
    }
    Ok(())
}

/// What the client says that the content is. Forms are refused: they are how pages of other sites could post here
/// without asking, and their parts are not the content.
pub(crate) fn declared_type(headers: &HeaderMap) -> Result<String, Problem> {
    let declared = match headers.get(header::CONTENT_TYPE) {
        Some(value) => value.to_str().map_err(|_| Problem::invalid("Content-Type", "`Content-Type` is not ASCII"))?.to_owned(),
        None => String::new(),
    };
    let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "multipart/form-data" || essence == "application/x-www-form-urlencoded" {
        let detail = "send the content itself as the body, with its own media type as `Content-Type`";
        return Err(Problem::new(ProblemCode::UnsupportedMediaType, detail));
    }
    Ok(declared)
}

/// Takes the body to disk. What is given up on leaves nothing there.
async fn receive(app: &App, headers: &HeaderMap, body: Body, limit: u64) -> Result<BlobWriter, Problem> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()).and_then(|text| text.parse().ok());
    let announced: u64 = length.unwrap_or(0);
    if announced > limit {
        return Err(refuse(body, limit).await);
    }
    match tokio::time::timeout(ARRIVAL, collect(app, body, limit)).await {
        Ok(result) => result,
        Err(_) => {
            let detail = format!("the body did not arrive within {} seconds", ARRIVAL.as_secs());
            Err(Problem::new(ProblemCode::RequestTimeout, detail))
        }
    }
}

async fn collect(app: &App, mut body: Body, limit: u64) -> Result<BlobWriter, Problem> {
    let ledger = app.host.ledger().clone();
    let mut writer = blocking(move || ledger.blob_writer(limit)).await?;
    let mut gathered = Vec::new();
    let mut size = 0_u64;
    loop {
        let frame = tokio::time::timeout(IDLE, body.frame()).await.map_err(|_| {
            Problem::new(ProblemCode::RequestTimeout, format!("the body stood still for {} seconds", IDLE.as_secs()))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Problem::invalid("body", format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len() as u64);
        if size > limit {
            return Err(refuse(body, limit).await);
        }
        gathered.extend_from_slice(&data);
        if gathered.len() >= WRITE_BYTES {
            writer = append(writer, std::mem::take(&mut gathered)).await?;
        }
    }
    append(writer, gathered).await
}

async fn append(mut writer: BlobWriter, bytes: Vec<u8>) -> Result<BlobWriter, Problem> {
    blocking(move || writer.write(&bytes).map(|()| writer)).await
}

/// Of a body that is too large, some is read and thrown away, so that a client which writes all before it reads
/// still sees the refusal instead of a broken connection.
pub(crate) async fn refuse(mut body: Body, limit: u64) -> Problem {
    let discard = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, axum::body::Bytes::len);
            if discarded > DISCARDED_BYTES {
                break;
            }
        }
    };
    // Whether the client got so far or not, the answer is the same.
    let _ = tokio::time::timeout(IDLE, discard).await;
    too_large(limit)
}

/// The content from `first` up to `end`, read piece by piece as the client takes it.
pub(crate) fn body(blob: BlobReader, first: u64, end: u64) -> Body {
    let pieces = stream::unfold(Some((blob, first)), move |state| async move {
        let (blob, at) = state?;
        let left = end.saturating_sub(at);
        if left == 0 {
            return None;
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
        let read = tokio::task::spawn_blocking(move || {
            let bytes = blob.read_at(at, max);
            (blob, bytes)
        });
        match read.await {
            Ok((blob, Ok(bytes))) if !bytes.is_empty() => {
                let next = at.saturating_add(bytes.len() as u64);
                Some((Ok(axum::body::Bytes::from(bytes)), Some((blob, next))))
            }
            Ok((_, Ok(_))) => Some((Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)), None)),
            Ok((_, Err(error))) => Some((Err(std::io::Error::other(error)), None)),
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    Body::from_stream(pieces)
}

/// The headers that go with the content. They let it run nothing: it is a download unless the client asks for a kind
/// that is harmless to show, its type is not guessed at, and were it shown all the same, a policy puts it in a box.
fn describe(headers: &mut HeaderMap, record: &ArtifactRecord, etag: &str, inline: bool) -> Result<(), Problem> {
    let shown = inline && media::may_show(&record.media_type);
    insert(headers, header::CONTENT_TYPE, record.media_type.clone())?;
    insert(headers, header::ETAG, etag.to_owned())?;
    insert(headers, header::CONTENT_DISPOSITION, disposition(shown, record.name.as_deref()))?;
    for (name, value) in [
        (header::ACCEPT_RANGES, "bytes"),
        // Kept by the client alone, and asked for again: it may have been forgotten here.
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) -> Result<(), Problem> {
    headers.insert(name, HeaderValue::try_from(value).map_err(Problem::internal)?);
    Ok(())
}

/// `Content-Disposition` (RFC 6266): the name in ASCII for old clients, and as it is (RFC 8187) for all others.
fn disposition(shown: bool, name: Option<&str>) -> String {
    let kind = if shown { "inline" } else { "attachment" };
    let Some(name) = name.and_then(plain_name) else { return kind.to_owned() };
    // Percent signs are taken for an encoding by some clients.
    let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' };
    let ascii: String = name.chars().map(plain).collect();
    let mut text = format!("{kind}; filename=\"{ascii}\"");
    if ascii != name {
        text.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    text
}

/// A name without folders, control characters and marks that turn the direction of writing (which make `gpj.exe` look
/// like `exe.jpg`), or nothing where nothing is left.
pub(crate) fn plain_name(name: &str) -> Option<String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let kept: String = last.chars().filter(|c| !c.is_control() && !turns(*c)).collect();
    let mut kept = kept.trim().trim_start_matches('.');
    while kept.len() > MAX_NAME_BYTES {
        let mut chars = kept.chars();
        chars.next_back();
        kept = chars.as_str();
    }
    (!kept.is_empty()).then(|| kept.to_owned())
}

/// The name that a client gives in `Content-Disposition`; `filename*` before `filename`.
pub(crate) fn disposition_name(headers: &HeaderMap) -> Option<String> {
    // Some clients send UTF-8 where the standard has only ASCII.
    let value = std::str::from_utf8(headers.get(header::CONTENT_DISPOSITION)?.as_bytes()).ok()?;
    let parameters = parameters(value);
    let named = |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    named("filename*").and_then(|value| extended(&value)).or_else(|| named("filename"))
}

/// The parameters of a header, in lower case, quotes taken off.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut parts = vec![String::new()];
    let (mut quoted, mut escaped) = (false, false);
    for c in value.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => {
                escaped = true;
                continue;
            }
            '"' => {
                quoted = !quoted;
                continue;
            }
            ';' if !quoted => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let pair =
        |part: &String| part.split_once('=').map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    parts.iter().filter_map(pair).collect()
}

/// A value of RFC 8187: `UTF-8'language'percent%20encoded`.
fn extended(value: &str) -> Option<String> {
    let mut parts = value.splitn(3, '\'');
    let (charset, _, text) = (parts.next()?, parts.next()?, parts.next()?);
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => u8::try_from(digit(bytes.next())? << 4 | digit(bytes.next())?).ok()?,
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

/// Whether the client has this content already (`If-None-Match`, compared weakly).
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag))
}

/// Whether a part is of use (`If-Range`, compared strongly). Content has no date here, so a date never is.
fn may_be_partial(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes())
}

/// What a `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// Everything: there is no range, or one that is malformed, or several, which a server may pass over.
    All,
    Part {
        first: u64,
        last: u64,
    },
    /// A range that begins behind the end.
    Nothing,
}

fn range(headers: &HeaderMap, size: u64) -> Wanted {
    let mut values = headers.get_all(header::RANGE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Wanted::All };
    let Some(parsed) = value.to_str().ok().and_then(|value| parse_range_header(value).ok()) else { return Wanted::All };
    let [range] = parsed.ranges.as_slice() else { return Wanted::All };
    let Some(end) = size.checked_sub(1) else { return Wanted::Nothing };
    let first = match range.start {
        StartPosition::Index(first) if first > end => return Wanted::Nothing,
        StartPosition::Index(first) => first,
        // More than there is asks for all of it.
        StartPosition::FromLast(count) => size.saturating_sub(count),
    };
    match range.end {
        EndPosition::Index(last) if last < first => Wanted::All,
        EndPosition::Index(last) => Wanted::Part { first, last: last.min(end) },
        EndPosition::LastByte => Wanted::Part { first, last: end },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        [(name, HeaderValue::from_bytes(value.as_bytes()).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_single_range_is_served_and_all_others_are_passed_over() {
        let of = |value: &str, size| range(&headers(header::RANGE, value), size);
        let part = |first, last| Wanted::Part { first, last };
        assert_eq!(of("bytes=0-4", 10), part(0, 4));
        assert_eq!(of("bytes=4-", 10), part(4, 9));
        assert_eq!(of("bytes=9-99", 10), part(9, 9));
        assert_eq!(of("bytes=-3", 10), part(7, 9));
        assert_eq!(of("bytes=-30", 10), part(0, 9));
        assert_eq!(of("bytes=10-", 10), Wanted::Nothing);
        assert_eq!(of("bytes=0-", 0), Wanted::Nothing);
        assert_eq!(of("bytes=-1", 0), Wanted::Nothing);
        for passed_over in ["bytes=5-4", "bytes=0-1,3-4", "items=0-4", "bytes=", "bytes=a-b", "bytes=18446744073709551616-"] {
            assert_eq!(of(passed_over, 10), Wanted::All, "{passed_over}");
        }
        assert_eq!(range(&HeaderMap::new(), 10), Wanted::All);
    }

    #[test]
    fn a_tag_is_compared_weakly_for_reading_and_strongly_for_parts() {
        let none_match = |value: &str| matches_etag(&headers(header::IF_NONE_MATCH, value), "\"a\"");
        assert!(none_match("\"a\"") && none_match("W/\"a\"") && none_match("\"b\", \"a\"") && none_match("*"));
        assert!(!none_match("\"b\"") && !none_match("a") && !matches_etag(&HeaderMap::new(), "\"a\""));
        let partial = |value: &str| may_be_partial(&headers(header::IF_RANGE, value), "\"a\"");
        assert!(partial("\"a\"") && may_be_partial(&HeaderMap::new(), "\"a\""));
        assert!(!partial("W/\"a\"") && !partial("Sun, 06 Nov 1994 08:49:37 GMT"));
    }

    #[test]
    fn a_name_cannot_leave_its_place() {
        let check = |name: &str, expect: Option<&str>| assert_eq!(plain_name(name).as_deref(), expect, "{name:?}");
        check("a.txt", Some("a.txt"));
        check("../../etc/passwd", Some("passwd"));
        check("C:\\x\\y.txt", Some("y.txt"));
        check("a\r\nSet-Cookie: b", Some("aSet-Cookie: b"));
        check("photo\u{202e}gpj.exe", Some("photogpj.exe"));
        check(".bashrc", Some("bashrc"));
        for nothing in ["", "..", "a/", " ", "\0"] {
            check(nothing, None);
        }
        assert_eq!(plain_name(&"ä".repeat(200)).unwrap().len(), 254);
    }

    #[test]
    fn a_disposition_has_the_name_in_both_forms() {
        assert_eq!(disposition(false, None), "attachment");
        assert_eq!(disposition(true, Some("a b.png")), "inline; filename=\"a b.png\"");
        assert_eq!(
            disposition(false, Some("größe \"x\".txt")),
            "attachment; filename=\"gr__e _x_.txt\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%22x%22.txt"
        );
        assert!(HeaderValue::try_from(disposition(false, Some("a\r\nb: c"))).is_ok());
    }

    #[test]
    fn the_name_of_an_upload_is_read_from_its_disposition() {
        let of = |value: &str| disposition_name(&headers(header::CONTENT_DISPOSITION, value));
        assert_eq!(of("attachment; filename=\"a; b\\\"c.txt\"").as_deref(), Some("a; b\"c.txt"));
        assert_eq!(of("attachment; FileName=plain.txt").as_deref(), Some("plain.txt"));
        assert_eq!(of("attachment; filename=x; filename*=UTF-8'de'gr%C3%BCn.txt").as_deref(), Some("grün.txt"));
        assert_eq!(of("attachment; filename=x; filename*=UTF-8''%ff").as_deref(), Some("x"));
        assert_eq!(of("attachment"), None);
    }
}

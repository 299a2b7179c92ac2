//! Evidence of a run or of a thread, as a download.

use agent_host_protocol::{RunId, Scope};
use agent_host_runs::{Evidence, HostError};
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;

use crate::{
    access::ApiRequest,
    app::{App, off_thread},
    http::{Id, Problem},
    openapi::refusals,
};

refusals!(EvidenceRefusals = [NotFound, TooManyStreams]);

/// The evidence of a run, as a file of lines that are chained by hashes
///
/// JSON Lines: a header with all ids, the run, its grant, the event that it answers, its events, its runtime facts, the digests of its artifacts, its audit
/// records, and a last line. `hash` of a line is SHA-256 of the hash before and the canonical JSON (RFC 8785) of the line without it.
/// `agent-host evidence verify` names the first line that is wrong. The file has all that was said in the run: treat it like the
/// conversation.
#[utoipa::path(get, path = "/api/v1/runs/{id}/evidence", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The lines.", body = String, content_type = "application/x-ndjson",
        headers(("Content-Disposition" = String, description = "A download, with a name."))), EvidenceRefusals))]
pub(crate) async fn evidence(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    request.run(id)?;
    let host = request.app.host.clone();
    let evidence = off_thread(move || host.evidence(id)).await?;
    download(&request.app, evidence, &format!("run-{id}"))
}

/// A file of evidence: its lines as they are read.
pub(super) fn download(app: &App, evidence: Evidence, name: &str) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    // Each piece is read when the client takes it: a slow one holds a piece, and no thread.
    let pieces = stream::unfold(Some((evidence, place)), |state| async move {
        let (evidence, place) = state?;
        match off_thread(move || Ok::<_, HostError>(next_piece(evidence))).await {
            Ok((evidence, Some(Ok(piece)))) => Some((Ok(Bytes::from(piece)), Some((evidence, place)))),
            Ok((_, None)) => None,
            // The file ends without its last line, which says so to whoever verifies it.
            Ok((_, Some(Err(error)))) => Some((Err(std::io::Error::other(error)), None)),
            Err(problem) => Some((Err(std::io::Error::other(problem.code().as_str())), None)),
        }
    });
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}.evidence.jsonl\""));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_DISPOSITION, disposition.map_err(Problem::internal)?),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(pieces)).into_response())
}

fn next_piece(mut evidence: Evidence) -> (Evidence, Option<Result<String, HostError>>) {
    let piece = evidence.next();
    (evidence, piece)
}

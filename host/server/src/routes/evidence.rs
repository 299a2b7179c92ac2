//! Evidence of a run or of a thread, as a download.

use agent_host_protocol::{RunId, Scope};
use agent_host_runs::Evidence;
use axum::response::Response;

use super::download::download;
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
    lines(&request.app, evidence, &format!("run-{id}"))
}

/// A file of evidence. One that ends early has no last line, which says so to whoever verifies it.
pub(super) fn lines(app: &App, evidence: Evidence, name: &str) -> Result<Response, Problem> {
    download(app, evidence, "application/x-ndjson", &format!("{name}.evidence.jsonl"))
}

//! Artifacts that answers of agents link to.

use agent_host_protocol::{ApiError, ErrorCode, Principal, Scope, time};
use agent_host_runs::{ArtifactRecord, Host, LedgerError};
use base64::{Engine, engine::general_purpose::STANDARD};
use rmcp::model::{ErrorData, ReadResourceResult, ResourceContents};

use crate::mcp::outcome::{self, SCHEME};

/// The artifact with this id, where the principal sees it, and its content.
fn content(host: &Host, principal: &Principal, id: &str, most: usize) -> Result<Option<(ArtifactRecord, Vec<u8>)>, LedgerError> {
    let records = host.records();
    let found = records.artifact(id)?.filter(|record| !record.is_expired(time::now()));
    let workspace = |record: &ArtifactRecord| Some(record.scope.workspace.clone()).filter(|workspace| !workspace.is_empty());
    let Some(record) = found.filter(|record| principal.sees(workspace(record).as_deref())) else { return Ok(None) };
    let Some(blob) = records.blob(&record.sha256)? else { return Ok(None) };
    let bytes = if blob.len() > most as u64 { Vec::new() } else { blob.read_at(0, most)? };
    Ok(Some((record, bytes)))
}

/// Reads an artifact whole.
pub(super) async fn read(host: &Host, principal: &Principal, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let refused = |refusal: ApiError| outcome::protocol_error(&refusal);
    if !principal.may(Scope::RunsRead) {
        let message = format!("to read artifacts needs a key with the scope `{}`", Scope::RunsRead);
        return Err(refused(ApiError::unauthorized(message)));
    }
    let Some(id) = uri.strip_prefix(SCHEME).map(str::to_owned) else {
        return Err(refused(ApiError::invalid_argument(format!("an address is of the form `{SCHEME}ARTIFACT_ID`"))));
    };
    let most = host.config().limits.http_body_bytes;
    let (host, principal) = (host.clone(), principal.clone());
    let found = tokio::task::spawn_blocking(move || content(&host, &principal, &id, most)).await;
    let found = match found {
        Ok(Ok(found)) => found,
        error => {
            tracing::error!(?error, "an artifact could not be read over MCP");
            let message = "the host could not read the artifact; its log has the reason";
            return Err(refused(ApiError::new(ErrorCode::RuntimeError, message)));
        }
    };
    let Some((record, bytes)) = found else {
        let refusal = ApiError::new(ErrorCode::NotFound, "there is no such artifact");
        return Err(ErrorData::resource_not_found(refusal.message.clone(), serde_json::to_value(&refusal).ok()));
    };
    if record.size > most as u64 {
        let message = format!(
            "the artifact has {} bytes, and an answer at most {most}: download it (GET /api/v1/artifacts/{})",
            record.size, record.artifact_id
        );
        return Err(refused(ApiError::new(ErrorCode::PayloadTooLarge, message)));
    }
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(record.media_type)]))
}

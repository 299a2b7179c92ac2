//! Actions of operators on a running host: reload its configuration, make a backup.

use agent_host_protocol::Scope;
use agent_host_runs::{BackupReport, HostError, ReloadError, ReloadReport};
use axum::{http::StatusCode, response::Response};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    access::ApiRequest,
    http::{Problem, ProblemCode, json},
    openapi::refusals,
};

/// A name and its key fit many times over.
const MAX_BODY_BYTES: usize = 4 * 1024;

/// An empty object.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReloadRequest {}

refusals!(ReloadRefusals = [JSON, WRITE] + [Conflict, RestartNeeded, ConfigRefused]);

/// Reads the configuration of the host again
///
/// The host reads the file that it was started with. A valid configuration is applied as a whole; with an error, the
/// configuration before stays in force. Active runs keep their configuration.
#[utoipa::path(post, path = "/api/v1/config/reload", tag = "host", security(("bearer" = ["admin"])),
    request_body = Option<ReloadRequest>,
    responses((status = 200, description = "What changed.", body = ReloadReport), ReloadRefusals))]
pub(crate) async fn reload(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow_everywhere(Scope::Admin)?;
    let ReloadRequest {} = request.optional_json(MAX_BODY_BYTES).await?;
    Ok(json(StatusCode::OK, &request.app.host.reload_again().await?))
}

/// The request of a backup.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupRequest {
    /// Name: a folder of this name is made in the backup directory.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
    to: String,
}

refusals!(BackupRefusals = [JSON, WRITE] + [Conflict]);

/// Makes a backup of the host while it runs
///
/// Answers when the backup is complete. The backup is completed even if the client disconnects. Every event that was
/// acknowledged before the request is in it.
#[utoipa::path(post, path = "/api/v1/backup", tag = "host", security(("bearer" = ["admin"])),
    request_body = BackupRequest,
    responses((status = 201, description = "The backup.", body = BackupReport), BackupRefusals))]
pub(crate) async fn backup(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow_everywhere(Scope::Admin)?;
    let BackupRequest { to } = request.json(MAX_BODY_BYTES).await?;
    let report = request.app.host.backup(&to).await.map_err(|error| match error {
        HostError::Invalid(complaint) => Problem::invalid("to", complaint),
        other => other.into(),
    })?;
    Ok(json(StatusCode::CREATED, &report))
}

impl From<ReloadError> for Problem {
    fn from(error: ReloadError) -> Self {
        let detail = error.to_string();
        match error {
            ReloadError::NeedsRestart { fields } => Self::with_fields(ProblemCode::RestartNeeded, detail, fields),
            ReloadError::NoSource => Self::new(ProblemCode::Conflict, detail),
            ReloadError::ShuttingDown => Self::new(ProblemCode::ShuttingDown, detail),
            ReloadError::Internal(_) => Self::internal(detail),
            _ => Self::new(ProblemCode::ConfigRefused, detail),
        }
    }
}

//! Artifacts: bytes that come and go as they are.
//!
//! Uploads are bounded while they arrive and go to disk piece by piece; nothing of one is in memory but the piece
//! that is on its way, and no thread waits for a slow client. Content is never trusted when it goes out: it is a
//! download, under a policy that lets it run nothing.

pub(crate) mod download;
pub(crate) mod names;
pub(crate) mod upload;

use agent_host_protocol::time;
use agent_host_runs::ArtifactRecord;

use crate::{access::caller::Caller, app::App, http::Problem};

/// The record of an artifact that the caller sees and whose time is not over.
pub(crate) async fn find(app: &App, caller: &Caller, id: String) -> Result<ArtifactRecord, Problem> {
    let wanted = id.clone();
    let record = app.read(move |records| records.artifact(&wanted)).await?;
    let workspace = |record: &ArtifactRecord| Some(record.scope.workspace.clone()).filter(|workspace| !workspace.is_empty());
    let is_there = |record: &ArtifactRecord| !record.is_expired(time::now()) && caller.sees(workspace(record).as_deref());
    record.filter(is_there).ok_or_else(|| {
        let id: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
        Problem::not_found(format!("there is no artifact {id}: it never was, or it has been forgotten"))
    })
}

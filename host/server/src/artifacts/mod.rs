//! Artifacts: bytes that come and go as they are.
//!
//! Uploads are bounded while they arrive and go to disk piece by piece; nothing of one is in memory but the piece
//! that is on its way, and no thread waits for a slow client. Content is never trusted when it goes out: it is a
//! download, under a policy that lets it run nothing.

pub(crate) mod download;
pub(crate) mod names;
pub(crate) mod upload;

use agent_host_protocol::{
    grant::{ConversationKey, of_end_user},
    time,
};
use agent_host_runs::ArtifactRecord;

use crate::{access::caller::Caller, app::App, http::Problem};

/// The record of an artifact that the caller sees and whose time is not over.
pub(crate) async fn find(app: &App, caller: &Caller, id: String) -> Result<ArtifactRecord, Problem> {
    let artifact_id = id.clone();
    let record = app.read(move |records| records.artifact(&artifact_id)).await?;
    let workspace = |record: &ArtifactRecord| Some(record.scope.workspace.clone()).filter(|workspace| !workspace.is_empty());
    // An end user sees the artifacts of their own threads.
    let owns = |record: &ArtifactRecord| {
        let thread = record.scope.conversation.as_ref().map(ConversationKey::thread);
        caller.0.end_user.as_ref().is_none_or(|user| thread == Some(of_end_user(user).as_str()))
    };
    let is_there =
        |record: &ArtifactRecord| !record.is_expired(time::now()) && caller.sees(workspace(record).as_deref()) && owns(record);
    record.filter(is_there).ok_or_else(|| {
        let id: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
        Problem::not_found(format!("there is no artifact {id}: it never was, or it has been forgotten"))
    })
}

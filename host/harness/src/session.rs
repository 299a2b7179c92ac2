//! The session of an agent, as state of the conversation: a later run goes on with it.

use agent_host_protocol::context::RunContext;
use serde_json::{Value, json};

use crate::{acp_schema::Implementation, agent_run::AgentRun, results::Results, workspace::Workspace};

/// Longest reason why a session is not resumed, in bytes.
const MAX_REASON: usize = 2 * 1024;
/// Names of the state.
const SESSION_ID: &str = "external.session_id";
const WORKING_DIRECTORY: &str = "external.working_directory";
const AGENT_VERSION: &str = "external.agent_version";

/// The session that the conversation had before, if it belongs to this workspace.
///
/// # Errors
/// Says why there is none; empty where there never was one.
pub(crate) fn earlier(context: &RunContext, workspace: &Workspace) -> Result<String, String> {
    let state = |name: &str| context.state.conversation.get(name).and_then(Value::as_str);
    let session = state(SESSION_ID).ok_or_else(String::new)?;
    if state(WORKING_DIRECTORY) != workspace.dir.to_str() {
        return Err("the workspace is another one".to_owned());
    }
    if workspace.is_new {
        return Err("the workspace was deleted".to_owned());
    }
    Ok(session.to_owned())
}

/// Records which session answers, and keeps it for the next run. `resumed` says why an earlier one does not go on, if there was one.
pub(crate) async fn record(
    results: &mut Results,
    frame: &AgentRun,
    session_id: &str,
    info: &Implementation,
    resumed: Result<(), String>,
) {
    let mut fact = json!({ "session_id": session_id, "resumed": resumed.is_ok(), "agent": info.name, "version": info.version });
    if let (Some(fact), Err(reason)) = (fact.as_object_mut(), resumed)
        && !reason.is_empty()
    {
        fact.insert("reason".to_owned(), json!(results.excerpt(&reason, MAX_REASON)));
    }
    results.add("harness.session", fact, None).await;
    if frame.context.context.conversation_id.is_none() {
        return;
    }
    let directory = frame.workspace.dir.to_string_lossy().into_owned();
    for (key, value) in
        [(SESSION_ID, session_id), (WORKING_DIRECTORY, directory.as_str()), (AGENT_VERSION, info.version.as_str())]
    {
        if frame.context.state.conversation.get(key).and_then(Value::as_str) != Some(value) {
            results.add("state.updated", json!({ "scope": "conversation", "key": key, "value": value }), None).await;
        }
    }
}

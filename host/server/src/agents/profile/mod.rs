//! `/api/v1/agent`: the profile of AG-UI in which a request is answered with 202 and its events are read elsewhere.
//!
//! Another API of the engine behind `/agents/{agent}`: the same threads, the same runs, the same stream of AG-UI 1.0. One
//! agent answers here, `[agui.api] agent`. With `profile = "strict"` every rule of the profile is checked, with its
//! messages.

pub(crate) mod attachments;
mod day;
pub(crate) mod errors;
pub(crate) mod history;
pub(crate) mod runs;

use agent_host_config::AgentProfile;
use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};

use crate::{agui::strict, app::App, http::Query, openapi};
use errors::{Code, Refusal};

/// Longest id of a thread, as of conversations in events.
const MAX_THREAD_ID: usize = 256;
/// Longest id of a run, in characters.
const MAX_RUN_ID: usize = 128;

/// The agent that answers here.
fn agent(app: &App) -> Result<String, Refusal> {
    app.host.config().agui.api.agent.clone().ok_or_else(|| {
        let detail = "no agent answers here: name the binding that is to, as `agent` of `[agui.api]` in the configuration";
        Refusal::new(Code::NotEnabled, detail)
    })
}

/// True if the rules of the profile are checked.
fn is_strict(app: &App) -> bool {
    app.host.config().agui.api.profile == AgentProfile::Strict
}

/// The id of a thread, in its one form.
fn checked_thread(app: &App, id: String) -> Result<String, Refusal> {
    if !is_id(&id, MAX_THREAD_ID) {
        let detail = format!("`threadId` has 1 to {MAX_THREAD_ID} bytes and no control characters");
        return Err(Refusal::new(Code::SessionIdInvalid, detail));
    }
    if !is_strict(app) {
        return Ok(id);
    }
    strict::thread_id(&id).ok_or_else(|| Refusal::new(Code::SessionIdInvalid, "threadId must be a valid UUID"))
}

/// The run that a query names.
fn run_id(query: &mut Query) -> Result<String, Refusal> {
    let run_id = query.text("runId").ok_or_else(|| Refusal::new(Code::InvalidRunId, "`runId` is missing: it names the run"))?;
    if run_id.chars().count() > MAX_RUN_ID {
        return Err(Refusal::new(Code::InvalidRunId, "runId exceeds length limit"));
    }
    if run_id.chars().any(char::is_control) {
        return Err(Refusal::new(
            Code::InvalidRunId,
            format!("`runId` has 1 to {MAX_RUN_ID} characters and no control characters"),
        ));
    }
    Ok(run_id)
}

fn is_id(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// The `{threadId}` of a path.
pub(crate) struct ThreadId(String);

impl FromRequestParts<App> for ThreadId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let not_text = |_| Refusal::new(Code::SessionIdInvalid, "the id of the thread is not UTF-8");
        let Path(id) = Path::<String>::from_request_parts(parts, app).await.map_err(not_text)?;
        checked_thread(app, id).map(Self)
    }
}

impl utoipa::IntoParams for ThreadId {
    fn into_params(_: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>) -> Vec<utoipa::openapi::path::Parameter> {
        vec![openapi::named("threadId", "Names the thread. Under the strict profile, a UUID.")]
    }
}

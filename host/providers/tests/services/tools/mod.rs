//! Tool servers that are good, bad, and gone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

mod http;
mod server;
mod stdio;

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use agent_host_protocol::ApiError;
use agent_host_providers::tools::{CallOptions, McpServerConfig, McpServerStatus, Progress, ToolContent, ToolResult, Tools};
use serde_json::Value;

/// A time limit that no step reaches, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);

async fn start(configs: &[McpServerConfig]) -> Tools {
    let tools = Tools::start(configs);
    tools.ready(LONG).await;
    tools
}

/// The use by a host: calls in tasks, from clones.
fn assert_usable<'a>(
    tools: &'a Tools,
    options: CallOptions<'a>,
) -> impl Future<Output = Result<ToolResult, ApiError>> + Send + 'a {
    fn check<T: Send + Sync + Clone + 'static>() {}
    check::<Tools>();
    tools.call("a__b", Value::Null, options)
}

#[tokio::test]
async fn without_servers_there_are_no_tools() {
    let tools = start(&[]).await;
    assert!(tools.list().is_empty() && tools.reports().is_empty());
    let error = assert_usable(&tools, CallOptions { deadline: Instant::now(), progress: None }).await.unwrap_err();
    assert_eq!(codes(&error), ("not_found", "tool_not_found"));
    tools.shutdown().await;
}

async fn call(tools: &Tools, name: &str, parameters: Value) -> Result<ToolResult, ApiError> {
    tools.call(name, parameters, CallOptions { deadline: Instant::now() + LONG, progress: None }).await
}

async fn call_with_progress(tools: &Tools, name: &str, parameters: Value) -> (Result<ToolResult, ApiError>, Vec<Progress>) {
    let seen = Mutex::new(Vec::new());
    let report = |progress| seen.lock().unwrap().push(progress);
    let result = tools.call(name, parameters, CallOptions { deadline: Instant::now() + LONG, progress: Some(&report) }).await;
    (result, seen.into_inner().unwrap())
}

fn text(result: &ToolResult) -> &str {
    match result.content.as_slice() {
        [ToolContent::Text(text)] => text,
        other => panic!("not one text: {other:?}"),
    }
}

/// The code of the error and the category in its details.
fn codes(error: &ApiError) -> (&str, &str) {
    (error.code.as_str(), error.details.as_ref().and_then(|details| details["code"].as_str()).unwrap_or_default())
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < LONG, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_status(tools: &Tools, status: McpServerStatus) {
    until(&format!("{status:?}"), async || tools.reports()[0].status == status).await;
}

//! What is installed.

use std::collections::BTreeSet;

use agent_host_protocol::{PluginReport, RunnerId, RunnerManifest};
use agent_host_runs::BindingReport;
use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;

use crate::app::{App, json};

#[derive(Serialize)]
struct Runners<'a> {
    /// Every file of the plugins directory, the refused ones with the reason.
    plugins: &'a [PluginReport],
    /// The runners that answer events, by id.
    runners: Vec<RunnerManifest>,
    bindings: Vec<BindingReport>,
}

/// `GET /api/v1/runners`.
pub(crate) async fn list(State(app): State<App>) -> Response {
    let plugins = app.host.plugins();
    // A refused file may name runners that an older version of it still serves: ask which are really there.
    let named: BTreeSet<&RunnerId> = plugins.iter().flat_map(|plugin| &plugin.runners).map(|runner| &runner.id).collect();
    let runners = named.into_iter().filter_map(|id| app.host.runner(id)).collect();
    json(StatusCode::OK, &Runners { plugins: &plugins, runners, bindings: app.host.bindings() })
}

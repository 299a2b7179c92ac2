//! The installed runners.

use std::collections::BTreeSet;

use agent_host_protocol::{PluginReport, RunnerId, RunnerManifest, Scope};
use agent_host_runs::BindingReport;
use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    access::caller::Caller,
    app::App,
    http::{Problem, json},
    openapi::refusals,
};

/// The installed runners and the bindings.
#[derive(Serialize, ToSchema)]
struct Runners<'a> {
    /// Every file of the plugins directory, the refused ones with the reason.
    plugins: &'a [PluginReport],
    /// The runners that answer events, by id.
    runners: Vec<RunnerManifest>,
    /// Bindings of the configuration.
    bindings: Vec<BindingReport>,
}

refusals!(ListRefusals = []);

/// Lists runners and bindings
///
/// Plugins (admitted, or refused and why), runners and bindings.
#[utoipa::path(get, path = "/api/v1/runners", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "Installed runners.", body = Runners<'_>), ListRefusals))]
pub(crate) async fn list(State(app): State<App>, caller: Caller) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let plugins = app.host.plugins();
    // A refused file may name runners that an older version of it still serves: ask which are really there.
    let named: BTreeSet<&RunnerId> = plugins.iter().flat_map(|plugin| &plugin.runners).map(|runner| &runner.id).collect();
    let runners = named.into_iter().filter_map(|id| app.host.runner(id)).collect();
    Ok(json(StatusCode::OK, &Runners { plugins: &plugins, runners, bindings: app.host.bindings() }))
}

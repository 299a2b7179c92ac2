//! The installed runners.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The runners that answer events, by id: those of plugins, and those that executors serve.
    runners: Vec<RunnerManifest>,
    /// The ids of the runners that executors serve (`[[external_runners]]`, and manifests that executors have brought).
    external: Vec<RunnerId>,
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
    let mut runners: BTreeMap<RunnerId, RunnerManifest> =
        named.into_iter().filter_map(|id| Some((id.clone(), app.host.runner(id)?))).collect();
    let externals = app.host.external_runners().into_iter();
    let externals = externals.filter(|(_, workspace)| workspace.is_none() || caller.0.sees(workspace.as_deref()));
    let externals: Vec<RunnerManifest> = externals.map(|(manifest, _)| manifest).collect();
    let external = externals.iter().map(|manifest| manifest.id.clone()).collect();
    // Executors take the runs of a runner that is in both.
    runners.extend(externals.into_iter().map(|manifest| (manifest.id.clone(), manifest)));
    let runners = runners.into_values().collect();
    Ok(json(StatusCode::OK, &Runners { plugins: &plugins, runners, external, bindings: app.host.bindings() }))
}

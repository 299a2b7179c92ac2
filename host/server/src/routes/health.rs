//! Liveness of the process, and readiness for events.

use agent_host_protocol::{Principal, Scope};
use agent_host_runs::Readiness;
use axum::{
    Extension,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::{app::App, http::json};

/// Liveness of the process
///
/// 200 while it answers at all.
#[utoipa::path(get, path = "/healthz", tag = "host", security(()), responses((status = 200, description = "It lives.", body = String)))]
pub(crate) async fn healthz() -> impl IntoResponse {
    (StatusCode::OK, "ok")
}

/// Readiness for events
#[utoipa::path(get, path = "/readyz", tag = "host", security(()),
    responses((status = 200, description = "They can.", body = Readiness), (status = 503, description = "Not ready: the body has the reasons.", body = Readiness)))]
pub(crate) async fn readyz(State(app): State<App>, principal: Option<Extension<Principal>>) -> Response {
    let mut readiness = app.host.readiness();
    if !principal.is_some_and(|Extension(principal)| principal.may(Scope::RunsRead)) {
        readiness.problems.clear();
    }
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &readiness)
}

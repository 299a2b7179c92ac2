//! `GET /metrics`: the numbers of the host and of its HTTP face, for Prometheus (docs/OPERATIONS-metrics.md).

use std::fmt;

use agent_host_protocol::Scope;
use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{encoding::text, registry::Registry};

use crate::{
    access::ApiRequest,
    app::{App, off_thread},
    http::Problem,
    openapi::refusals,
};

/// The text format of OpenMetrics, which Prometheus reads since its version 2.
const OPEN_METRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

refusals!(MetricsRefusals = []);

/// Counts what the host does, for Prometheus
///
/// The numbers are those of the host, so a key of one workspace does not see them.
#[utoipa::path(get, path = "/metrics", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The text format of OpenMetrics.", body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"), MetricsRefusals))]
pub(crate) async fn show(request: ApiRequest) -> Result<Response, Problem> {
    request.allow_everywhere(Scope::RunsRead)?;
    let app = request.app;
    let page = off_thread(move || write(&app).map_err(Problem::internal)).await?;
    let cache_control = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS), cache_control], page).into_response())
}

fn write(app: &App) -> Result<String, fmt::Error> {
    let mut page = String::with_capacity(16 * 1024);
    app.host.write_metrics(&mut page)?;
    let mut registry = Registry::with_prefix("agent_host");
    registry.register_collector(app.http.clone().collector());
    text::encode_registry(&mut page, &registry)?;
    text::encode_eof(&mut page)?;
    Ok(page)
}

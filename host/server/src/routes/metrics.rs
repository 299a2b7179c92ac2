//! `GET /metrics`: the numbers of the host and of its HTTP face, for Prometheus (docs/OPERATIONS-metrics.md).

//!
//! The forms are the text format of Prometheus (version 0.0.4) and OpenMetrics (1.0), as `Accept` says. The library writes OpenMetrics; the
//! other form is made from it, line by line.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

use agent_host_protocol::Scope;
use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{encoding::text, registry::Registry};

use crate::{
    access::ApiRequest,
    app::{App, off_thread},
    http::{Problem, accept},
    openapi::refusals,
};

const OPEN_METRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

refusals!(MetricsRefusals = []);

/// Counts what the host does, for Prometheus
///
/// In the form that `Accept` names; in the text format of Prometheus for a client that names neither. The numbers are those of the host, so
/// a key of one workspace does not see them.
#[utoipa::path(get, path = "/metrics", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The numbers.", content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    )), MetricsRefusals))]
pub(crate) async fn show(request: ApiRequest) -> Result<Response, Problem> {
    request.allow_everywhere(Scope::RunsRead)?;
    // As the libraries of Prometheus do, also for a client that accepts neither.
    let form = accept::preferred(&request.headers, [("text", "plain"), ("application", "openmetrics-text")]);
    let is_prometheus = form.is_none_or(|form| form == 0);
    let app = request.app;
    let page = off_thread(move || {
        let page = write(&app).and_then(|page| if is_prometheus { prometheus(&page) } else { Ok(page) });
        page.map_err(Problem::internal)
    });
    let page = page.await?;
    let content_type = (header::CONTENT_TYPE, if is_prometheus { PROMETHEUS } else { OPEN_METRICS });
    let cache_control = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(([content_type, cache_control], page).into_response())
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

/// A page of OpenMetrics in the text format of Prometheus 0.0.4: a counter has the name of its samples, which end with `_total`; units and
/// the end of the page are not said.
fn prometheus(page: &str) -> Result<String, fmt::Error> {
    let counters: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut converted = String::with_capacity(page.len());
    for line in page.lines() {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|part| Some((part, line.strip_prefix(part)?)));
        match described.and_then(|(part, rest)| Some((part, rest.split_once(' ')?))) {
            Some((part, (family, text))) if counters.contains(family) => writeln!(converted, "{part}{family}_total {text}")?,
            None if line.starts_with('#') => {}
            _ => writeln!(converted, "{line}")?,
        }
    }
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_the_form_of_prometheus_names_counters_as_their_samples() {
        let page = "# HELP a_runs Runs.\n# TYPE a_runs counter\na_runs_total{x=\"# 1\"} 1\n# HELP a_time_seconds Time.\n\
                    # TYPE a_time_seconds histogram\n# UNIT a_time_seconds seconds\na_time_seconds_sum 1.5\n# TYPE a_runs_open gauge\n\
                    a_runs_open 2\n# EOF\n";
        let expect = "# HELP a_runs_total Runs.\n# TYPE a_runs_total counter\na_runs_total{x=\"# 1\"} 1\n# HELP a_time_seconds Time.\n\
                      # TYPE a_time_seconds histogram\na_time_seconds_sum 1.5\n# TYPE a_runs_open gauge\na_runs_open 2\n";
        assert_eq!(prometheus(page).unwrap(), expect);
    }
}

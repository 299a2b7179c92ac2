//! `GET /metrics`: the numbers of the host and of its HTTP face, for Prometheus (docs/OPERATIONS-metrics.md).

use std::{fmt, sync::Arc, time::Duration};

use agent_host_protocol::Scope;
use agent_host_runs::metrics::sheet::{Count, Labels, Sheet, Table, Timing};
use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};

use crate::{app::App, caller::Caller, openapi::refusals, problem::Problem, query::Query};

/// The text format of OpenMetrics, which Prometheus reads since its version 2.
const OPEN_METRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The numbers of the HTTP face. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpMetrics(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    requests: Table<Count>,
    times: Table<Timing>,
    streams: Count,
}

/// A stream that is open. It counts as long as it lives.
#[derive(Debug)]
pub(crate) struct Streaming(HttpMetrics);

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.0.streams.take();
    }
}

impl HttpMetrics {
    /// A request was answered: `route` is the template of the path, `status` the hundreds of the status.
    pub(crate) fn answered(&self, route: &str, method: &str, status: u16, took: Duration) {
        let class = match status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.0.requests.row(&[route, method, class], Count::default).add();
        self.0.times.row(&[route, method], Timing::short).took(took);
    }

    /// A stream begins.
    pub(crate) fn streaming(&self) -> Streaming {
        self.0.streams.add();
        Streaming(self.clone())
    }
}

#[derive(Debug)]
struct Page(HttpMetrics);

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let numbers = &self.0.0;
        let sheet = &mut Sheet::new(encoder);
        let named = |names: &[&'static str], labels: Vec<String>| names.iter().copied().zip(labels).collect::<Labels>();
        let requests = numbers.requests.rows().into_iter();
        let requests = requests.map(|(labels, count)| (named(&["route", "method", "status"], labels), count.get()));
        sheet.counts("http_requests", "Requests that were answered", requests)?;
        let times = numbers.times.rows().into_iter().map(|(labels, timing)| (named(&["route", "method"], labels), timing));
        sheet.timings("http_request_duration", "From a request to the head of its answer", times)?;
        let streams = u32::try_from(numbers.streams.get()).unwrap_or(u32::MAX);
        sheet.gauges("http_streams_open", "Streams of events that are open", [(Labels::new(), f64::from(streams))])
    }
}

refusals!(MetricsRefusals = []);

/// Counts what the host does, for Prometheus
///
/// The numbers are those of the host, so a key of one workspace does not see them.
#[utoipa::path(get, path = "/metrics", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The text format of OpenMetrics.", body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"), MetricsRefusals))]
pub(crate) async fn show(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, Problem> {
    caller.may_everywhere(Scope::RunsRead)?;
    query.finish()?;
    let (host, http) = (app.host.clone(), app.http.clone());
    let written = tokio::task::spawn_blocking(move || {
        let mut page = String::with_capacity(16 * 1024);
        host.write_metrics(&mut page)?;
        let mut registry = Registry::with_prefix("agent_host");
        registry.register_collector(Box::new(Page(http)));
        text::encode_registry(&mut page, &registry)?;
        text::encode_eof(&mut page)?;
        Ok::<_, fmt::Error>(page)
    });
    let page = written.await.map_err(Problem::internal)?.map_err(Problem::internal)?;
    let cache_control = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS), cache_control], page).into_response())
}

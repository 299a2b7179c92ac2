//! The numbers of the HTTP face, for Prometheus.

use std::{fmt, sync::Arc, time::Duration};

use agent_host_runs::metrics::sheet::{Count, Labels, Sheet, Table, Timing};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

/// The numbers of the HTTP face. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpMetrics(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    requests: Table<Count>,
    times: Table<Timing>,
    streams: Count,
}

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamCount(HttpMetrics);

impl Drop for StreamCount {
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
    pub(crate) fn streaming(&self) -> StreamCount {
        self.0.streams.add();
        StreamCount(self.clone())
    }

    /// The collector for Prometheus.
    pub(crate) fn collector(self) -> Box<dyn Collector> {
        Box::new(HttpCollector(self))
    }
}

#[derive(Debug)]
struct HttpCollector(HttpMetrics);

impl Collector for HttpCollector {
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

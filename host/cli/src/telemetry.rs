//! Traces of the process: to a collector, by a thread of their own, so that nothing waits for it.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use agent_host_config::TelemetryConfig;
use agent_host_runs::{secret::Secret, trace};
use opentelemetry::{KeyValue, global::BoxedTracer, trace::TracerProvider};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter},
};

/// Time limit of one request to the collector.
const EXPORT: Duration = Duration::from_secs(5);
/// Spans wait for others at most so long.
const GATHER: Duration = Duration::from_secs(1);
/// Spans that wait to be sent; what comes while so many wait is lost.
const WAITING: usize = 8 * 1024;
/// Time for the last spans at the end.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// As long as it lives, spans are sent.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Tracing is off.
    pub(crate) const fn off() -> Self {
        Self(None)
    }

    /// Starts sending spans if the configuration says so. Must not be called by a serving thread: the client of the
    /// exporter blocks.
    ///
    /// # Errors
    /// Fails with the problem, for the operator.
    pub(crate) fn start(config: &TelemetryConfig) -> Result<Self, String> {
        let Some(url) = config.traces_url()? else { return Ok(Self::off()) };
        let mut headers = HashMap::new();
        for (name, value) in &config.headers {
            let value = Secret::read(value).map_err(|error| format!("the header `{name}` of `telemetry`: {error}"))?;
            headers.insert(name.clone(), value.expose().to_owned());
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_timeout(EXPORT)
            .with_headers(headers)
            .build()
            .map_err(|error| format!("traces cannot be sent: {error}"))?;
        let resource = Resource::builder()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attributes(config.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone())))
            .build();
        let batches = BatchConfigBuilder::default().with_max_queue_size(WAITING).with_scheduled_delay(GATHER).build();
        let sent = NotedExporter { exporter, fails: AtomicBool::new(false) };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio))))
            .with_span_processor(BatchSpanProcessor::builder(sent).with_batch_config(batches).build())
            .build();
        trace::install(BoxedTracer::new(Box::new(provider.tracer("agent-host"))), config.capture_content);
        Ok(Self(Some(provider)))
    }

    /// Sends what is left, for a bounded time.
    pub(crate) fn finish(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(LAST_SPANS)
        {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// The exporter, which says once when the collector is away, and when it is back.
#[derive(Debug)]
struct NotedExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    fails: AtomicBool,
}

impl SpanExporter for NotedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        match &sent {
            Ok(()) if self.fails.swap(false, Ordering::Relaxed) => tracing::info!("the collector takes traces again"),
            Ok(()) => {}
            Err(error) => {
                trace::note_lost(spans as u64);
                if !self.fails.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the collector refuses traces; refused traces are lost");
                }
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

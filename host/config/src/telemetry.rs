//! `[telemetry]` of the configuration.

use std::{collections::BTreeMap, path::Path};

use http::{HeaderName, Uri};
use serde::{Deserialize, Serialize};

use crate::secret::SecretRef;

/// Export of traces and logs, besides `/metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Receiver of traces: a collector that accepts OTLP over HTTP, such as `http://127.0.0.1:4318`. Default: no traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Name of this host at the collector.
    pub service_name: String,
    /// Share of the traces that begin here and are kept, 0 to 1. For other traces, the caller's decision holds.
    pub sample_ratio: f64,
    /// Headers for the collector, by reference.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, SecretRef>,
    /// More attributes of this host at the collector, such as `deployment.environment.name`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resource: BTreeMap<String, String>,
    /// If true, spans contain content: messages, parameters and results of tools.
    pub capture_content: bool,
    /// If true, HTTP requests of runs carry their trace. The header shows strangers which requests belong together.
    pub propagate_egress: bool,
    /// Format of the log.
    pub log_format: LogFormat,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object on each line.
    Json,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            service_name: "agent-host".to_owned(),
            sample_ratio: 1.0,
            headers: BTreeMap::new(),
            resource: BTreeMap::new(),
            capture_content: false,
            propagate_egress: false,
            log_format: LogFormat::default(),
        }
    }
}

impl TelemetryConfig {
    /// Takes paths relative to `base`.
    pub(crate) fn relative_to(&mut self, base: &Path) {
        self.headers.values_mut().for_each(|value| value.relative_to(base));
    }

    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.traces_url()?;
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err("`sample_ratio` must be between 0 and 1".to_owned());
        }
        if self.service_name.trim().is_empty() {
            return Err("`service_name` must not be empty".to_owned());
        }
        match self.headers.keys().find(|name| HeaderName::try_from(name.as_str()).is_err()) {
            Some(name) => Err(format!("`headers` has `{name}`, which no header can be called")),
            None => Ok(()),
        }
    }

    /// The receiver of traces: the endpoint, with the path of OTLP unless it has a path of its own.
    ///
    /// # Errors
    /// The endpoint is no URL of a collector.
    pub fn traces_url(&self) -> Result<Option<String>, String> {
        let Some(text) = self.otlp_endpoint.as_deref() else { return Ok(None) };
        let invalid = || format!("`otlp_endpoint` must look like http://127.0.0.1:4318, not {text:?}");
        let url: Uri = text.parse().map_err(|_| invalid())?;
        let is_web = matches!(url.scheme_str(), Some("http" | "https"));
        let Some(authority) = url.authority().filter(|_| is_web) else { return Err(invalid()) };
        if authority.as_str().contains('@') {
            return Err("`otlp_endpoint` must not have a user or password in it: use `headers`".to_owned());
        }
        let has_path = !matches!(url.path(), "" | "/");
        Ok(Some(if has_path { text.to_owned() } else { format!("{}/v1/traces", text.trim_end_matches('/')) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(endpoint: &str) -> TelemetryConfig {
        TelemetryConfig { otlp_endpoint: Some(endpoint.to_owned()), ..TelemetryConfig::default() }
    }

    #[test]
    fn an_endpoint_without_a_path_has_that_of_the_protocol() {
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector/", "https://collector/v1/traces"),
            ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
        ] {
            assert_eq!(at(endpoint).traces_url().unwrap().as_deref(), Some(url));
        }
        assert_eq!(TelemetryConfig::default().traces_url().unwrap(), None);
    }

    #[test]
    fn invalid_values_are_named() {
        for endpoint in ["", "collector", "ftp://collector", "http://", "http://user:word@collector"] {
            assert!(at(endpoint).check().unwrap_err().contains("otlp_endpoint"), "{endpoint}");
        }
        for ratio in [-0.1, 1.1, f64::NAN] {
            let config = TelemetryConfig { sample_ratio: ratio, ..TelemetryConfig::default() };
            assert!(config.check().unwrap_err().contains("sample_ratio"));
        }
        let headers = [("not a name".to_owned(), SecretRef::Env("X".to_owned()))].into_iter().collect();
        assert!(TelemetryConfig { headers, ..TelemetryConfig::default() }.check().unwrap_err().contains("not a name"));
    }
}

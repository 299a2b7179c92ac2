//! HTTP requests to the hosts that both the manifest and the binding name.
//!
//! ```
//! use std::time::Duration;
//!
//! use agent_host_sdk::http::Request;
//! use agent_host_sdk::{Completion, Context, Failure, serde_json::json};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let response = Request::post("https://agent.example.com/v1/ask")
//!         .bearer_secret("AGENT_KEY") // the host inserts the secret; the runner never sees it
//!         .json(json!({"question": ctx.text()}))
//!         .timeout(Duration::from_secs(60))
//!         .send()?
//!         .error_for_status()?;
//!
//!     let mut out = ctx.message();
//!     for event in response.events() {
//!         out.write(&event?.data)?;
//!     }
//!     out.finish()?;
//!     Ok(Completion::stop())
//! }
//! ```
//!
//! The manifest must name the hosts ([`Manifest::http_hosts`](crate::Manifest::http_hosts)). The host sends a secret only
//! to the hosts that the operator named for this secret.

mod response;
mod sse;

use std::time::Duration;

use crate::contract::HttpRequest;
use crate::error::ApiError;
use crate::host::http as host;
use crate::json::IntoJson;
use crate::limits::millis32;

pub use self::response::{Lines, Pieces, Reader, Response};
pub use self::sse::{Event, Events, LINE_BYTES};

/// HTTP access of this run, from [`Context::http`](crate::Context::http). Equivalent to [`Request::get`] and
/// [`Request::post`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Http(());

impl Http {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Starts a GET request.
    pub fn get(self, url: impl Into<String>) -> Request {
        Request::get(url)
    }

    /// Starts a POST request.
    pub fn post(self, url: impl Into<String>) -> Request {
        Request::post(url)
    }

    /// Starts a request with another method.
    pub fn request(self, method: impl Into<String>, url: impl Into<String>) -> Request {
        Request::new(method, url)
    }
}

/// Builder for a request.
#[must_use = "a request goes out when it is sent"]
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    contract: HttpRequest,
}

impl Request {
    /// Creates a request with any method.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        let (method, url) = (method.into(), url.into());
        Self { contract: HttpRequest { method, url, headers: Vec::new(), body: Vec::new(), timeout_ms: None } }
    }

    /// Creates a GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// Creates a POST request.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// Creates a PUT request.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// Creates a DELETE request.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header. The value may contain `{{secret:NAME}}`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.contract.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a header with a secret of the host as its value.
    pub fn secret_header(self, name: impl Into<String>, secret: &str) -> Self {
        self.header(name, format!("{{{{secret:{secret}}}}}"))
    }

    /// Adds `authorization: Bearer` with a secret of the host.
    pub fn bearer_secret(self, secret: &str) -> Self {
        self.header("authorization", format!("Bearer {{{{secret:{secret}}}}}"))
    }

    /// Sets `idempotency-key`, which marks a request as safe to repeat. After a crash of the host, a POST that was cut
    /// off is then sent again. Without the key its effect is in doubt, and the rule of the binding for effects in doubt
    /// applies.
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        self.header("idempotency-key", key)
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.contract.body = body.into();
        self
    }

    /// Sets a JSON document as the body, and its media type.
    pub fn json(self, body: impl IntoJson) -> Self {
        self.header("content-type", "application/json").body(body.into_json())
    }

    /// Sets the timeout until the last byte of the response is read. Default: the limit of the host.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.contract.timeout_ms = Some(millis32(time));
        self
    }

    /// Returns the record that the host receives.
    #[must_use]
    pub fn contract(&self) -> &HttpRequest {
        &self.contract
    }

    /// Returns the record, for fields without a builder method.
    pub fn contract_mut(&mut self) -> &mut HttpRequest {
        &mut self.contract
    }

    /// Sends the request and waits for the head of the response. Any status is a response; [`Response::error_for_status`]
    /// turns an error status into an error.
    ///
    /// # Errors
    /// Fails with `unauthorized` for a host or a secret that is not granted; otherwise with the error of the host, such
    /// as `runtime_error` if no server was reached.
    pub fn send(&self) -> Result<Response, ApiError> {
        Ok(Response::new(host::send(&self.contract)?))
    }
}

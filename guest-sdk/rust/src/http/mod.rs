//! Requests to the outside: to the hosts that the manifest names and the binding grants, and nowhere else.
//!
//! ```
//! use std::time::Duration;
//!
//! use agent_host_sdk::http::Request;
//! use agent_host_sdk::{Completion, Context, Failure, serde_json::json};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let response = Request::post("https://agent.example.com/v1/ask")
//!         .bearer_secret("AGENT_KEY") // the host puts it in on the way out; the runner never sees it
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
//! The manifest must name the hosts ([`Manifest::http_hosts`](crate::Manifest::http_hosts)). A secret goes only to the hosts
//! that the operator named for it.

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

/// The outside, as [`Context::http`](crate::Context::http) gives it. [`Request::get`] and its like do the same.
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

    /// Starts a request by another method.
    pub fn request(self, method: impl Into<String>, url: impl Into<String>) -> Request {
        Request::new(method, url)
    }
}

/// A request that is being built.
#[must_use = "a request goes out when it is sent"]
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    contract: HttpRequest,
}

impl Request {
    /// A request by any method.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        let (method, url) = (method.into(), url.into());
        Self { contract: HttpRequest { method, url, headers: Vec::new(), body: Vec::new(), timeout_ms: None } }
    }

    /// A GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A POST request.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// A PUT request.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// A DELETE request.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header. Its value may hold `{{secret:NAME}}`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.contract.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a header whose value is a secret of the host.
    pub fn secret_header(self, name: impl Into<String>, secret: &str) -> Self {
        self.header(name, format!("{{{{secret:{secret}}}}}"))
    }

    /// Adds `authorization: Bearer` with a secret of the host.
    pub fn bearer_secret(self, secret: &str) -> Self {
        self.header("authorization", format!("Bearer {{{{secret:{secret}}}}}"))
    }

    /// Says that the request may be made twice for once (`idempotency-key`). A POST that was cut off when the host died is
    /// made again then; without the key nobody knows whether it had an effect, and it is answered as the binding says of
    /// effects in doubt.
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        self.header("idempotency-key", key)
    }

    /// The body, as it is.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.contract.body = body.into();
        self
    }

    /// A JSON document as the body, and its media type.
    pub fn json(self, body: impl IntoJson) -> Self {
        self.header("content-type", "application/json").body(body.into_json())
    }

    /// How long it may take until the last byte of the response is read. Where nothing is said, as long as the host allows.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.contract.timeout_ms = Some(millis32(time));
        self
    }

    /// The record that the host gets.
    #[must_use]
    pub fn contract(&self) -> &HttpRequest {
        &self.contract
    }

    /// The record, to change what this builder has no method for.
    pub fn contract_mut(&mut self) -> &mut HttpRequest {
        &mut self.contract
    }

    /// Sends it, and waits for the head of the response. Any status is a response:
    /// [`Response::error_for_status`] makes an error of it.
    ///
    /// # Errors
    /// `unauthorized` for a host or a secret that was not granted; otherwise as the host answers, such as `runtime_error`
    /// where nobody was reached.
    pub fn send(&self) -> Result<Response, ApiError> {
        Ok(Response::new(host::send(&self.contract)?))
    }
}

//! A request to a route of the API.

use std::sync::Arc;

use agent_host_protocol::{Run, RunId, Scope};
use agent_host_runs::Idempotency;
use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Request},
    http::HeaderMap,
};
use serde::de::DeserializeOwned;

use super::{caller::Caller, idempotency};
use crate::{
    app::App,
    http::{Problem, Query, body},
    langbot::Dialect,
};

/// A request with its caller. The route checks the scope before it reads parameters and body.
pub(crate) struct ApiRequest {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    /// The names that the client speaks, if they are not those of the protocol.
    pub(crate) dialect: Option<Dialect>,
    pub(crate) body: Body,
}

impl FromRequest<App> for ApiRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        let query = Query::from_request_parts(&mut parts, app).await?;
        let dialect = parts.extensions.get::<Dialect>().copied();
        Ok(Self { app: app.clone(), caller, query, headers: parts.headers, dialect, body })
    }
}

impl ApiRequest {
    /// Refuses a caller without the scope, then a parameter: for routes that take none.
    pub(crate) fn allow(&self, scope: Scope) -> Result<(), Problem> {
        self.caller.may(scope)?;
        self.query.finish()
    }

    /// Likewise, for what concerns the whole host.
    pub(crate) fn allow_everywhere(&self, scope: Scope) -> Result<(), Problem> {
        self.caller.may_everywhere(scope)?;
        self.query.finish()
    }

    /// Refuses a caller without the scope, then parameters other than those of a page: the cursor and the size.
    pub(crate) fn page(&mut self, scope: Scope) -> Result<(Option<String>, u32), Problem> {
        self.caller.may(scope)?;
        self.query.page()
    }

    /// A run that the caller sees.
    pub(crate) fn run(&self, id: RunId) -> Result<Arc<Run>, Problem> {
        self.caller.run(&self.app, id)
    }

    /// The body, a JSON object of at most `limit` bytes.
    pub(crate) async fn json<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, Problem> {
        body::require_json(&self.headers)?;
        body::parse(&body::read(std::mem::take(&mut self.body), limit).await?)
    }

    /// The body, which may be left out.
    pub(crate) async fn optional_json<T: DeserializeOwned + Default>(&mut self, limit: usize) -> Result<T, Problem> {
        let body = body::read(std::mem::take(&mut self.body), limit).await?;
        if body.is_empty() {
            return Ok(T::default());
        }
        body::require_json(&self.headers)?;
        body::parse(&body)
    }

    /// The body with the idempotency key of the request, within the limit of HTTP bodies.
    pub(crate) async fn idempotent_json<T: DeserializeOwned>(&mut self) -> Result<(T, Option<Idempotency>), Problem> {
        body::require_json(&self.headers)?;
        let limit = self.app.host.config().limits.http_body_bytes;
        let body = body::read(std::mem::take(&mut self.body), limit).await?;
        let idempotency = idempotency::of(&self.caller, &self.headers, &body)?;
        Ok((body::parse(&body)?, idempotency))
    }

    /// The idempotency key of a request without a body; `what` replaces the body.
    pub(crate) fn idempotency(&self, what: &str) -> Result<Option<Idempotency>, Problem> {
        idempotency::of(&self.caller, &self.headers, what.as_bytes())
    }
}

//! `http`, and `wasi:http`: both leave the host by the same way (`providers/egress`).
//!
//! A request of `http` is journaled with its response, piece by piece, so a run can be resumed over it. If an earlier
//! execution was interrupted in a request, a request whose method is safe or idempotent (RFC 9110, section 9.2) is sent
//! again; any other request is in doubt. Requests of `wasi:http` are not journaled: a run of such a component is not
//! resumed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ApiError, ErrorCode, hex,
    http::{HttpHead, HttpRequest},
};
use agent_host_providers::egress::{AllowedOwned, AllowedTargets, Bounds, Response};
use agent_host_sandbox::{HttpBody, HttpCalls, HttpResponse};
use futures_util::future::BoxFuture;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{RunCalls, within};
use crate::{
    execution::{
        Execution,
        answer::Content,
        call::{Call, EffectTicket},
        doubt::{Doubt, in_doubt},
        gate::{READ, SEND, WASI},
        open_calls::{OpenCall, OpenStream},
    },
    record::journal::RequestDigest,
};

impl Execution {
    fn allowed(&self) -> AllowedTargets<'_> {
        let grant = &self.terms.grant;
        AllowedTargets { hosts: &grant.permissions.http_hosts, secrets: &grant.http_secrets }
    }

    fn bounds(&self, timeout: Option<Duration>) -> Bounds {
        let most = Duration::from_millis(self.limits.http_timeout_ms);
        let timeout = timeout.map_or(most, |timeout| timeout.min(most));
        Bounds {
            deadline: self.deadline.at().min(Instant::now() + timeout),
            request_bytes: self.limits.http_request_bytes,
            response_bytes: self.limits.http_response_bytes,
        }
    }

    fn one_more(&self) -> Result<OpenStream, ApiError> {
        let most = self.limits.http_requests_at_once;
        self.open.streaming(most).ok_or_else(|| ApiError {
            details: Some(json!({ "code": "http_requests_at_once", "limit": most })),
            ..ApiError::retryable(
                ErrorCode::RateLimited,
                format!("a run has at most {most} requests open: read a response to its end, or drop it"),
            )
        })
    }

    fn request_digest(&self, request: &HttpRequest) -> RequestDigest {
        let body = hex::encode(&Sha256::digest(&request.body));
        let HttpRequest { method, url, headers, body: bytes, timeout_ms } = request;
        self.journal.digest(&json!({
            "method": method,
            "url": url,
            "headers": headers,
            "body": { "bytes": bytes.len(), "sha256": body },
            "timeout_ms": timeout_ms,
        }))
    }
}

/// True if sending a request twice has the effect of sending it once.
fn is_harmless(request: &HttpRequest) -> bool {
    matches!(request.method.to_ascii_uppercase().as_str(), "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE")
        || request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
}

/// The target of a request, without path and query, which may contain secrets.
fn origin(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            // A backslash is a slash in these (URL standard).
            let end = rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len());
            let authority = rest.get(..end).unwrap_or_default();
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            super::printable(&format!("{scheme}://{host}"))
        }
        None => String::new(),
    }
}

fn bytes_of(request: &HttpRequest) -> usize {
    let headers: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    request.url.len() + headers + request.body.len()
}

impl HttpCalls for RunCalls {
    fn http_send(&mut self, request: HttpRequest) -> BoxFuture<'_, Result<Box<dyn HttpResponse>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let egress = &self.services.egress;
            let origin = origin(&request.url);
            let bytes = bytes_of(&request);
            let digest = run.request_digest(&request);
            let respond = |head, open, timeout: Option<u32>, request| OpenResponse {
                calls: self.clone(),
                origin: origin.clone(),
                timeout: timeout.map(|ms| Duration::from_millis(ms.into())),
                request,
                head,
                open,
                received: ReceivedBody::default(),
                ended: false,
                failed: None,
            };
            let timeout_ms = request.timeout_ms;
            let allowed = || {
                within("the body of a request", request.body.len(), run.limits.http_request_bytes)?;
                egress.check(&request, &run.allowed())
            };
            let mut opened = None;
            let effect = async |ticket: EffectTicket| {
                let streaming = run.one_more()?;
                if !is_harmless(&request) {
                    let number = OpenCall::request(run, &ticket).await?;
                    let doubt = || Doubt {
                        number,
                        what: format!("{} {origin}", request.method),
                        target: json!({ "method": request.method, "origin": origin }),
                        payload: json!({ "body_bytes": request.body.len() }),
                    };
                    if ticket.doubt().is_some() && run.may_repeat(&[doubt()]).await? != [true] {
                        return Err(in_doubt(&doubt().what));
                    }
                }
                let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.into()));
                let response = egress.send(&request, &run.allowed(), &run.bounds(timeout)).await?;
                let head = response.head().clone();
                opened = Some((response, streaming));
                Ok(head)
            };
            let call = Call::effect(SEND, digest).resource(origin.as_str()).bytes(bytes);
            let head = run.pass(call, allowed, effect).await.outcome?;
            Ok(Box::new(respond(head, opened, timeout_ms, request)) as Box<dyn HttpResponse>)
        })
    }

    fn http_outgoing(
        &mut self,
        request: http::Request<HttpBody>,
    ) -> BoxFuture<'static, Result<http::Response<HttpBody>, ApiError>> {
        let calls = self.clone();
        Box::pin(async move {
            let run = &calls.run;
            let origin = origin(&request.uri().to_string());
            let call = Call::effect(WASI, RequestDigest::nothing()).resource(origin.as_str());
            let grant = &run.terms.grant;
            let allowed = AllowedOwned { hosts: grant.permissions.http_hosts.clone(), secrets: grant.http_secrets.clone() };
            let mut answer = None;
            let effect = async |_| {
                let streaming = run.one_more()?;
                let response = calls.services.egress.send_streaming(request, &allowed.as_ref(), &run.bounds(None)).await?;
                answer = Some(response.map(|body| HttpBody::new(OpenBody { body, _streaming: streaming })));
                Ok(())
            };
            let granted = || {
                if grant.permissions.http_hosts.is_empty() {
                    return Err(ApiError::unauthorized("`http` is not granted to this run"));
                }
                Ok(())
            };
            run.pass(call, granted, effect).await.outcome?;
            answer.ok_or_else(|| ApiError::new(ErrorCode::RuntimeError, "the host lost a response"))
        })
    }
}

/// A body that counts as open as long as it lives.
struct OpenBody {
    body: HttpBody,
    _streaming: OpenStream,
}

impl http_body::Body for OpenBody {
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// A response that is being read.
struct OpenResponse {
    calls: RunCalls,
    origin: String,
    timeout: Option<Duration>,
    /// To ask again where an execution before was cut off in its response.
    request: HttpRequest,
    head: HttpHead,
    /// `None` if an earlier execution read the response.
    open: Option<(Response, OpenStream)>,
    /// The part of the response that the guest has received.
    received: ReceivedBody,
    ended: bool,
    /// The error that ended the response early.
    failed: Option<ApiError>,
}

/// The part of a body that a guest has received.
#[derive(Default)]
struct ReceivedBody {
    bytes: u64,
    hash: Sha256,
}

impl ReceivedBody {
    fn note(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
    }
}

/// The host has stopped in the middle of a response, and it could not be had again.
fn interrupted() -> ApiError {
    ApiError {
        details: Some(json!({ "code": "response_interrupted" })),
        ..ApiError::retryable(
            ErrorCode::RuntimeError,
            "the host stopped while the response was read, and the repeated request had another response: make a new request",
        )
    }
}

impl OpenResponse {
    async fn more(&mut self, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.ended {
            return Ok(Vec::new());
        }
        if self.open.is_none() {
            self.open = Some(self.send_again().await?);
        }
        let Some((response, _)) = &mut self.open else { return Ok(Vec::new()) };
        let bytes = response.read(max_bytes).await?;
        self.received.note(&bytes);
        Ok(bytes)
    }

    /// After an error there is nothing more of it, in this execution and in the next, unless the call alone was refused.
    fn gave_up(&mut self, error: &ApiError) {
        if !matches!(error.code, ErrorCode::InvalidArgument | ErrorCode::RateLimited) {
            self.open = None;
            self.failed = Some(error.clone());
        }
    }

    /// The response once more, up to where the guest is.
    async fn send_again(&self) -> Result<(Response, OpenStream), ApiError> {
        if !is_harmless(&self.request) {
            return Err(interrupted());
        }
        let run = &self.calls.run;
        let streaming = run.one_more()?;
        let mut response = self.calls.services.egress.send(&self.request, &run.allowed(), &run.bounds(self.timeout)).await?;
        if response.head().status != self.head.status {
            return Err(interrupted());
        }
        let mut again = ReceivedBody::default();
        while again.bytes < self.received.bytes {
            let left = usize::try_from(self.received.bytes - again.bytes).unwrap_or(usize::MAX);
            let bytes = response.read(left.min(run.limits.artifact_read_bytes)).await?;
            if bytes.is_empty() {
                return Err(interrupted());
            }
            again.note(&bytes);
        }
        if again.hash.finalize() != self.received.hash.clone().finalize() {
            return Err(interrupted());
        }
        Ok((response, streaming))
    }
}

impl HttpResponse for OpenResponse {
    fn head(&self) -> &HttpHead {
        &self.head
    }

    fn read(&mut self, max_bytes: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async move {
            let run = Arc::clone(&self.calls.run);
            let origin = self.origin.clone();
            let digest = run.journal.digest(&max_bytes);
            let effect = async |_| {
                if max_bytes == 0 {
                    return Err(ApiError::invalid_argument("`max-bytes` is at least 1"));
                }
                let bytes = self.more((max_bytes as usize).min(run.limits.artifact_read_bytes)).await?;
                if bytes.is_empty() {
                    // The response is read, so the run can leave memory again.
                    self.ended = true;
                    self.open = None;
                }
                Ok(Content::new(Some(bytes)))
            };
            let call = Call::piece(READ, digest).resource(origin.as_str());
            let passed = run.pass(call, || Ok(()), effect).await;
            let bytes = passed.outcome.inspect_err(|error| self.gave_up(error))?.into_bytes();
            if passed.past.is_some() {
                self.received.note(&bytes);
                self.ended |= bytes.is_empty();
            }
            Ok(bytes)
        })
    }
}

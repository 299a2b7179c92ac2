//! Requests of an executor, with their answers as types: claims, and what the holder of a claim may do.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{RunId, SentResult, Timestamp, context::RunContext};
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::transport::{Answer, Registered, Request, Transport};

/// Largest answer of the host: a context, or what a host call returns.
const MAX_ANSWER: usize = 64 << 20;
/// Times that a request is sent before the host counts as gone. With the pauses between them, about a minute.
const TRIES: u32 = 20;
/// Pause before the second try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The media type of JSON.
const JSON: &str = "application/json";

/// The reason why a request did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HostError {
    /// The claim does not count any more: the run has ended, or belongs to another executor.
    #[error("the claim is lost")]
    ClaimLost,
    /// The end of the run was asked for.
    #[error("the end of the run was asked for")]
    Cancelled,
    /// The host refused, with the code of its problem document.
    #[error("the host refused: {code}: {detail}")]
    Refused {
        /// Such as `unauthorized`.
        code: String,
        /// Description, for people.
        detail: String,
    },
    /// The host did not answer, or not in its own protocol.
    #[error("{0}")]
    Unreachable(String),
}

impl HostError {
    fn of(answer: &Answer) -> Self {
        #[derive(Deserialize)]
        struct Document {
            code: String,
            #[serde(default)]
            detail: String,
        }
        match serde_json::from_slice::<Document>(&answer.body) {
            Ok(Document { code, .. }) if code == "claim_lost" => Self::ClaimLost,
            Ok(Document { code, .. }) if code == "cancelled" => Self::Cancelled,
            Ok(Document { code, detail }) => Self::Refused { code, detail },
            Err(_) => Self::Unreachable(format!("the host answered {} without a problem document", answer.status)),
        }
    }

    /// True if the code of the refusal is this one.
    pub(crate) fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }
}

/// Sends a request until it is answered with something that repeating would not change.
async fn send(transport: &dyn Transport, request: Request<'_>) -> Result<Answer, HostError> {
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    loop {
        tries += 1;
        let outcome = transport.send(request.clone()).await;
        let wait = match outcome {
            Ok(answer) if !matches!(answer.status, 429 | 502 | 503) => return Ok(answer),
            // A full queue is not an end: the host says when there is room.
            Ok(answer) if tries >= TRIES && answer.status != 429 => return Ok(answer),
            Err(error) if tries >= TRIES => return Err(HostError::Unreachable(error.to_string())),
            Ok(answer) => answer.retry_after.map(Duration::from_secs),
            Err(_) => None,
        };
        tokio::time::sleep(wait.unwrap_or(pause).min(MAX_PAUSE)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn post<T: DeserializeOwned>(
    transport: &dyn Transport,
    path: &str,
    token: &str,
    body: &Value,
) -> Result<Option<T>, HostError> {
    let body = Some((JSON, Bytes::from(body.to_string())));
    let answer = send(transport, Request { method: Method::POST, path, token, body, max_bytes: MAX_ANSWER }).await?;
    match answer.status {
        204 => Ok(None),
        200..=299 => match serde_json::from_slice(&answer.body) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(HostError::Unreachable(format!("the answer of the host to {path} cannot be read: {error}"))),
        },
        _ => Err(HostError::of(&answer)),
    }
}

/// The MCP endpoint of a run.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct McpEndpoint {
    /// Path at the host.
    pub(crate) path: String,
    /// Bearer token, for this run.
    pub(crate) token: String,
}

/// The run of a claim.
#[derive(Deserialize)]
pub(crate) struct ClaimedRun {
    pub(crate) run_id: RunId,
}

/// The answer to a claim.
#[derive(Deserialize)]
pub(crate) struct Claimed {
    pub(crate) run: ClaimedRun,
    pub(crate) lease_token: String,
    pub(crate) lease_expires_at: Timestamp,
    pub(crate) context: RunContext,
    #[serde(default)]
    pub(crate) mcp: Option<McpEndpoint>,
    /// Patterns of hosts that the run is granted.
    #[serde(default)]
    pub(crate) http_hosts: Vec<String>,
}

/// Claims a run, and starts it. Waits up to `wait` for one.
pub(crate) async fn claim(
    transport: &dyn Transport,
    executor: &Registered,
    wait: Duration,
) -> Result<Option<Claimed>, HostError> {
    let body = json!({ "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX), "start": true });
    post(transport, "/api/v1/claims", &executor.credential, &body).await
}

/// Deregisters an executor. Its runs go back to the queue, or fail.
pub(crate) async fn deregister(transport: &dyn Transport, executor: &Registered) -> Result<(), HostError> {
    let path = format!("/api/v1/executors/{}", executor.executor_id);
    let request = Request { method: Method::DELETE, path: &path, token: &executor.credential, body: None, max_bytes: MAX_ANSWER };
    let answer = transport.send(request).await.map_err(|error| HostError::Unreachable(error.to_string()))?;
    if (200..300).contains(&answer.status) { Ok(()) } else { Err(HostError::of(&answer)) }
}

/// The answer to a renewal.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RenewedClaim {
    #[serde(default)]
    pub(crate) cancel_requested_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Appended {
    appended: u64,
}

/// A run that is held by a claim.
pub(crate) struct HeldRun {
    transport: Arc<dyn Transport>,
    path: String,
    token: String,
    /// Number of the last result that the host has of this claim.
    appended: Mutex<u64>,
}

impl HeldRun {
    pub(crate) fn new(transport: Arc<dyn Transport>, claimed: &Claimed) -> Self {
        let path = format!("/api/v1/runs/{}", claimed.run.run_id);
        Self { transport, path, token: claimed.lease_token.clone(), appended: Mutex::new(0) }
    }

    pub(crate) fn base_url(&self) -> &str {
        self.transport.base_url()
    }

    async fn post<T: DeserializeOwned>(&self, what: &str, body: &Value) -> Result<T, HostError> {
        let path = format!("{}/{what}", self.path);
        let answer = post(&*self.transport, &path, &self.token, body).await?;
        answer.ok_or_else(|| HostError::Unreachable(format!("the host answered nothing to {path}")))
    }

    /// Adds results to the record of the run, all or none.
    pub(crate) async fn append(&self, results: &[SentResult]) -> Result<(), HostError> {
        let mut appended = self.appended.lock().await;
        let body = json!({ "first": *appended + 1, "results": results });
        let now: Appended = self.post("append", &body).await?;
        *appended = now.appended;
        Ok(())
    }

    /// A host call, through the gate of the run.
    pub(crate) async fn call(&self, function: &str, arguments: &Value) -> Result<Value, HostError> {
        self.post(&format!("calls/{function}"), arguments).await
    }

    pub(crate) async fn renew(&self) -> Result<RenewedClaim, HostError> {
        self.post("renew", &json!({})).await
    }

    pub(crate) async fn finalize(&self, how: &Value) -> Result<(), HostError> {
        self.post::<Value>("finalize", how).await.map(drop)
    }

    /// Gives the run back: it waits for another executor.
    pub(crate) async fn release(&self, reason: &str) -> Result<(), HostError> {
        self.post::<Value>("release", &json!({ "reason": reason })).await.map(drop)
    }

    /// The content of an artifact, if it has at most `max_bytes`.
    pub(crate) async fn read_artifact(&self, artifact_id: &str, max_bytes: usize) -> Result<Bytes, HostError> {
        let path = format!("{}/calls/artifacts/{}", self.path, encoded(artifact_id));
        let request = Request { method: Method::GET, path: &path, token: &self.token, body: None, max_bytes };
        let answer = send(&*self.transport, request).await?;
        if answer.status == 200 { Ok(answer.body) } else { Err(HostError::of(&answer)) }
    }

    /// Stores content as an artifact of the run. Returns the reference.
    pub(crate) async fn create_artifact(&self, name: &str, media_type: &str, content: Bytes) -> Result<Value, HostError> {
        let path = format!("{}/calls/artifacts?name={}", self.path, encoded(name));
        let body = Some((media_type, content));
        let request = Request { method: Method::POST, path: &path, token: &self.token, body, max_bytes: MAX_ANSWER };
        let answer = send(&*self.transport, request).await?;
        if answer.status == 201 {
            return serde_json::from_slice(&answer.body).map_err(|error| HostError::Unreachable(error.to_string()));
        }
        Err(HostError::of(&answer))
    }
}

/// `text` as a part of a path or a query.
fn encoded(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let answer = |body: &str| Answer { status: 409, retry_after: None, body: Bytes::from(body.to_owned()) };
        assert!(matches!(HostError::of(&answer(r#"{"code":"claim_lost"}"#)), HostError::ClaimLost));
        assert!(matches!(HostError::of(&answer(r#"{"code":"cancelled"}"#)), HostError::Cancelled));
        assert!(HostError::of(&answer(r#"{"code":"unauthorized","detail":"no"}"#)).is("unauthorized"));
        assert!(matches!(HostError::of(&answer("<html>")), HostError::Unreachable(_)));
    }
}

//! The audit of the control plane: who asked the host to do something to its runs, executors, keys or configuration, from
//! where, and with which result.
//!
//! Owns the list of audited routes and the form of their records. A record is admitted to the ledger before its answer leaves
//! the host, and durable with the next group commit. Host calls of runs have records of their own (the gate writes those).

use std::net::SocketAddr;

use agent_host_protocol::{Principal, PrincipalKind, RunId, time};
use agent_host_runs::AuditRecord;
use axum::{
    extract::{MatchedPath, Request},
    http::{Method, StatusCode},
    response::Response,
};
use serde_json::json;

use crate::{
    app::App,
    http::{ProblemCode, connections::Peer, forwarded::RequestPart},
};

/// The action of an append in the table: its record, where its last result ends the run, is `queue.finalize`. Other appends are
/// results, which the record of the run has.
const FINALIZE_BY_APPEND: &str = "queue.append";

/// The audited routes and their actions.
pub(crate) const AUDITED: [(Method, &str, &str); 26] = [
    (Method::POST, "/api/v1/executors", "executors.register"),
    (Method::DELETE, "/api/v1/executors/{id}", "executors.deregister"),
    (Method::POST, "/api/v1/executors/{id}/heartbeat", "executors.change"),
    (Method::POST, "/api/v1/claims", "queue.claim"),
    (Method::POST, "/api/v1/runs/{id}/start", "queue.start"),
    (Method::POST, "/api/v1/runs/{id}/renew", "queue.renew"),
    (Method::POST, "/api/v1/runs/{id}/release", "queue.release"),
    (Method::POST, "/api/v1/runs/{id}/finalize", "queue.finalize"),
    (Method::POST, "/api/v1/runs/{id}/append", FINALIZE_BY_APPEND),
    (Method::POST, "/api/v1/runs", "runs.create"),
    (Method::POST, "/api/v1/imports", "runs.import"),
    (Method::POST, "/api/v1/runs/{id}/cancel", "runs.cancel"),
    (Method::POST, "/api/v1/runs/{id}/retry", "runs.retry"),
    (Method::POST, "/api/v1/dead-letters/{id}/requeue", "runs.requeue"),
    (Method::POST, "/api/v1/runs/{id}/fork", "runs.fork"),
    (Method::POST, "/api/v1/actions/{id}/respond", "actions.respond"),
    (Method::POST, "/api/v1/config/reload", "config.reload"),
    (Method::POST, "/api/v1/backup", "host.backup"),
    (Method::POST, "/api/v1/keys", "keys.create"),
    (Method::DELETE, "/api/v1/keys/{id}", "keys.revoke"),
    (Method::POST, "/api/v1/deliveries/{run_id}/{webhook}/retry", "deliveries.retry"),
    (Method::POST, "/agents/{agent}/threads/{thread}/runs/{run}/cancel", "agents.cancel"),
    (Method::DELETE, "/agents/{agent}/threads/{thread}", "agents.forget"),
    (Method::POST, "/api/v1/agent/runs/{threadId}/cancel", "agents.cancel"),
    (Method::DELETE, "/api/v1/agent/threads/{threadId}", "agents.forget"),
    (Method::DELETE, "/api/v1/agent/sessions/{threadId}", "agents.forget"),
];

/// Marks the answer to a heartbeat that changed its executor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuditedChange;

/// Marks the answer to an append that ended its run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedRun;

/// A request to an audited route until it is answered.
pub(crate) struct AuditedRequest {
    action: &'static str,
    path: String,
    run_id: Option<RunId>,
    principal: Option<Principal>,
    peer: Option<SocketAddr>,
}

impl AuditedRequest {
    /// `None` for routes that are not audited, and for the parts of a request that the first partition records. To be called after the admission, which
    /// says who asks.
    pub(crate) fn begin(request: &Request) -> Option<Self> {
        if request.extensions().get::<RequestPart>().is_some() {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        let (.., action) = AUDITED.iter().find(|(method, audited, _)| request.method() == method && route == *audited)?;
        let path = request.uri().path();
        let rest = path.strip_prefix("/api/v1/runs/").or_else(|| path.strip_prefix("/api/v1/dead-letters/"));
        let run_id = rest.and_then(|rest| rest.split('/').next()?.parse().ok());
        let principal = request.extensions().get::<Principal>().cloned();
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
        Some(Self { action, path: path.to_owned(), run_id, principal, peer })
    }

    /// The record of the request. `None` for a claim that found no run, for a heartbeat that changed nothing, and for an append that
    /// did not end its run.
    pub(crate) fn record(self, response: &Response) -> Option<AuditRecord> {
        if response.status() == StatusCode::NO_CONTENT && self.action == "queue.claim" {
            return None;
        }
        if self.action == FINALIZE_BY_APPEND && response.extensions().get::<EndedRun>().is_none() {
            return None;
        }
        let is_changed = response.extensions().get::<AuditedChange>().is_some() || !response.status().is_success();
        if self.action == "executors.change" && !is_changed {
            return None;
        }
        let Self { action, path, run_id, principal, peer } = self;
        let outcome = match response.extensions().get::<ProblemCode>() {
            Some(code) => code.as_str().into(),
            None if response.status().is_success() => "ok".into(),
            None => response.status().as_str().to_owned().into(),
        };
        let (kind, id) = match principal.as_ref().map(|principal| &principal.kind) {
            None => ("unknown", None),
            Some(PrincipalKind::Loopback) => ("loopback", None),
            Some(PrincipalKind::Key(id)) => ("key", Some(id)),
            Some(PrincipalKind::Executor(id)) => ("executor", Some(id)),
            Some(PrincipalKind::Approver(id)) => ("approver", Some(id)),
            Some(PrincipalKind::IdentityProvider(name)) => ("identity_provider", Some(name)),
            Some(PrincipalKind::Lease) => ("lease", None),
        };
        let name = principal.as_ref().map(|principal| principal.name.as_str());
        let end_user = principal.as_ref().and_then(|principal| principal.end_user.as_deref());
        let mut who = json!({ "kind": kind, "id": id, "name": name });
        if let (Some(end_user), Some(who)) = (end_user, who.as_object_mut()) {
            who.insert("end_user".to_owned(), end_user.into());
        }
        Some(AuditRecord {
            at: time::now(),
            run_id,
            action: if action == FINALIZE_BY_APPEND { "queue.finalize" } else { action }.into(),
            resource: Some(path.chars().take(256).collect()),
            outcome,
            details: Some(json!({
                "principal": who,
                "address": peer.map(|peer| peer.ip().to_string()),
                "status": response.status().as_u16(),
            })),
            ..AuditRecord::default()
        })
    }
}

/// Adds a record to the audit.
pub(crate) async fn write(app: &App, record: AuditRecord) {
    if let Err(error) = app.host.record_writer().audit(record).await {
        tracing::error!(%error, "a request to the control plane could not be recorded in the audit");
    }
}

//! The answers of a host of a cluster about itself: `/healthz`, `/readyz` and `/metrics`.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use agent_host_protocol::PluginStatus;
use agent_host_runs::HostProcess;
use axum::{
    Json,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{forward::Forwarder, listeners::ClusterPartition, owner::Owner};
use crate::http::{Problem, ProblemCode};

const DRAINED: &str =
    "this host is drained: it forwards requests, and takes the ledger only where no other host would, until it is started again";

/// See the module.
#[derive(Clone)]
pub(super) struct OwnRoutes {
    pub(super) partitions: Arc<[ClusterPartition]>,
    /// Empty until the process has started.
    pub(super) process: Arc<OnceLock<HostProcess>>,
}

impl OwnRoutes {
    /// The answer, where the request is about this host. `None` also where a partition that the host owns answers for it.
    pub(super) fn answer(&self, request: &Request) -> Option<Response> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return None;
        }
        let is_active = || self.partitions.iter().any(|partition| matches!(partition.owner(), Owner::Here(_)));
        match (request.uri().path(), &*self.partitions) {
            ("/healthz", _) => Some("ok".into_response()),
            ("/readyz", [only]) if matches!(only.owner(), Owner::Here(_)) => None,
            ("/readyz", [only]) => Some(self.warm(only)),
            ("/readyz", _) => Some(self.shared()),
            ("/metrics", _) if !is_active() => Some(metrics().into_response()),
            _ => None,
        }
    }

    /// Readiness of a host that follows the one ledger of its cluster: the place of the active host, whether requests reach it, and the state
    /// of the copy.
    fn warm(&self, partition: &ClusterPartition) -> Response {
        let status = partition.watch().status();
        // Errors name the database and never its password.
        let mut problems: Vec<String> = status.problem.into_iter().collect();
        let reached = partition.forwarder().and_then(Forwarder::reached);
        if let Some(Err(error)) = &reached {
            problems.push(format!("the active host cannot be reached: {error}"));
        }
        if status.is_drained {
            problems.push(DRAINED.to_owned());
        }
        let is_ready = matches!(reached, Some(Ok(()))) && !status.is_drained;
        let body = json!({
            "ready": is_ready,
            "ledger": "warm: this host follows the ledger and takes over when the active host is gone",
            "active_host": status.active,
            "drained": status.is_drained,
            "last_batch": status.last_batch,
            "forwarding": self.forwarding(),
            "would_serve_with": self.would_serve_with(),
            "problems": problems,
        });
        readiness(is_ready, body)
    }

    /// Readiness of a host of a cluster with several partitions: whether requests for each reach its owner.
    fn shared(&self) -> Response {
        let (mut is_ready, mut is_drained, mut problems) = (self.process.get().is_some(), false, Vec::new());
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for (number, partition) in self.partitions.iter().enumerate() {
            let status = partition.watch().status();
            is_drained |= status.is_drained;
            problems.extend(status.problem.map(|problem| format!("partition {number}: {problem}")));
            let (is_here, owner, reached) = match partition.owner() {
                Owner::Here(_) => (true, None, Some(Ok(()))),
                Owner::At(host) => (false, Some(host.to_string()), partition.forwarder().and_then(Forwarder::reached)),
                Owner::Nobody => (false, None, None),
            };
            is_ready &= matches!(reached, Some(Ok(())));
            match reached {
                Some(Ok(())) => {}
                Some(Err(error)) => problems.push(format!("partition {number}: its owner cannot be reached: {error}")),
                None => problems.push(format!("partition {number}: no host that requests could be forwarded to owns it")),
            }
            partitions.push(json!({ "partition": number, "here": is_here, "owner": owner, "last_batch": status.last_batch }));
        }
        if is_drained {
            problems.push(DRAINED.to_owned());
        }
        let is_ready = is_ready && !is_drained;
        let body = json!({
            "ready": is_ready,
            "partitions": partitions,
            "drained": is_drained,
            "forwarding": self.forwarding(),
            "would_serve_with": self.would_serve_with(),
            "problems": problems,
        });
        readiness(is_ready, body)
    }

    /// The number of forwarded requests.
    fn forwarding(&self) -> Value {
        let mut sums = [0; 3];
        for forwarder in self.partitions.iter().filter_map(ClusterPartition::forwarder) {
            let counts = forwarder.counts();
            for (sum, count) in sums.iter_mut().zip([&counts.open, &counts.answered, &counts.failed]) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let [open, answered, failed] = sums;
        if self.partitions.iter().all(|partition| partition.forwarder().is_none()) {
            return Value::Null;
        }
        json!({ "open": open, "answered": answered, "failed": failed })
    }

    fn would_serve_with(&self) -> Value {
        let Some(process) = self.process.get() else { return Value::Null };
        let plugins = process.plugins();
        let count = |status| plugins.iter().filter(|plugin| plugin.status == status).count();
        // The log has them: whoever asks here need not have a key.
        let problems = process.problems().len();
        json!({
            "plugins_ready": count(PluginStatus::Ready),
            "plugins_refused": count(PluginStatus::Refused),
            "configuration_problems": problems,
        })
    }
}

fn readiness(is_ready: bool, body: Value) -> Response {
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body)).into_response()
}

fn metrics() -> Problem {
    let detail =
        "this host is warm and counts nothing: its state is in `/readyz`, and the numbers of runs are those of the active host";
    Problem::new(ProblemCode::PartitionMoving, detail)
}

//! Requests of an executor within the process to all partitions of a cluster.

use std::sync::Arc;

use axum::{body::Bytes, http::Method};

use super::{executors, listeners::ClusterPartition, routing::Routing};
use crate::local::{LocalAnswer, LocalClient, LocalError, LocalRequest};

/// Sends requests of an executor of this process to the partitions of its cluster. Cheap to clone.
#[derive(Clone)]
pub struct ClusterClient {
    client: LocalClient,
    routing: Routing,
    partitions: Arc<[ClusterPartition]>,
}

impl std::fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterClient").finish_non_exhaustive()
    }
}

impl ClusterClient {
    /// By the way of the listener for clients.
    pub(super) const fn new(client: LocalClient, routing: Routing, partitions: Arc<[ClusterPartition]>) -> Self {
        Self { client, routing, partitions }
    }

    /// Sends a request. `first` is the client of the first partition: a request about a run of that goes to it, so that the run can be released while
    /// the partition moves.
    ///
    /// # Errors
    /// As [`LocalClient::send`].
    pub async fn send(&self, first: &LocalClient, request: LocalRequest<'_>) -> Result<LocalAnswer, LocalError> {
        if request.method == Method::DELETE {
            // The executor of a host that gives the first partition away: the host does not wait for the others.
            executors::deregister(self.partitions.get(1..).unwrap_or_default(), request.token);
            return first.send(request).await;
        }
        if self.routing.is_of_a_first_run(request.path) {
            return first.send(request).await;
        }
        self.client.send(request).await
    }

    /// Registers an executor, which the first partition has registered, in the others.
    ///
    /// # Errors
    /// Fails if a partition refuses it: the executor is deregistered in all of them then.
    pub async fn register_in_others(&self, registration: Bytes, credential: &str) -> Result<(), LocalError> {
        executors::register_in_others(&self.partitions, registration, credential).await.map_err(|refusal| {
            LocalError::Answer(format!("a partition does not register the executor: it answers {}", refusal.status()))
        })
    }
}

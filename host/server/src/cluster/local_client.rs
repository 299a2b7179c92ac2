//! Requests of an executor within the process to all partitions of a cluster.

use std::{sync::Arc, time::Duration};

use axum::{body::Bytes, http::Method};

use super::{executors, listeners::ClusterPartition, routing::Routing};
use crate::local::{LocalAnswer, LocalClient, LocalError, LocalRequest};

/// The host that gives the first partition away waits no longer for the others to forget its executors.
const FAREWELL: Duration = Duration::from_millis(300);

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

    /// Sends a request. One about a run of the first partition goes to `first`, the client of that: it can be given back while the partition
    /// moves.
    ///
    /// # Errors
    /// As [`LocalClient::send`].
    pub async fn send(&self, first: &LocalClient, request: LocalRequest<'_>) -> Result<LocalAnswer, LocalError> {
        if self.routing.is_of_a_first_run(request.path) {
            return first.send(request).await;
        }
        if request.method == Method::DELETE {
            let LocalRequest { ref method, path, token, max_bytes, .. } = request;
            let again = LocalRequest { method: method.clone(), path, token, body: None, max_bytes };
            return match tokio::time::timeout(FAREWELL, self.client.send(again)).await {
                Ok(answer) => answer,
                Err(_late) => first.send(request).await,
            };
        }
        self.client.send(request).await
    }

    /// Makes an executor that is registered in the first partition known in the others.
    ///
    /// # Errors
    /// Fails if a partition does not register it; none keeps it then.
    pub async fn introduce(&self, registration: Bytes, executor_id: String, credential: String) -> Result<(), LocalError> {
        executors::introduce(&self.partitions, registration, executor_id, credential).await.map_err(|refusal| {
            LocalError::Answer(format!("a partition does not register the executor: it answers {}", refusal.status()))
        })
    }
}

//! What clients name by its address, and the host fetches for them.

use std::time::{Duration, Instant};

use agent_host_protocol::ApiError;
use agent_host_providers::egress::Response;

use crate::host::Host;

impl Host {
    /// Until when what one request names is to be fetched (`agui.fetch_ms`).
    #[must_use]
    pub fn fetch_deadline(&self) -> Instant {
        let allowed = Duration::from_millis(self.config().agui.fetch_ms);
        Instant::now() + allowed
    }

    /// How many bytes a file may have that is fetched (`agui.fetch_bytes`, `limits.artifact_bytes`).
    #[must_use]
    pub fn fetch_limit(&self) -> u64 {
        let config = self.config();
        config.agui.fetch_bytes.min(config.limits.artifact_bytes)
    }

    /// Fetches a file that a client names, from a host of `agui.fetch_hosts`, at an address that is public or that the
    /// operator allows; its redirects are judged alike. The response has the status of the last of them, and no more than
    /// [`Host::fetch_limit`] bytes until `deadline`.
    ///
    /// # Errors
    /// Those of [`agent_host_providers::egress`].
    pub async fn fetch(&self, url: &str, deadline: Instant) -> Result<Response, ApiError> {
        let setup = self.inner().setup();
        setup.services.egress.fetch(url, &setup.config.agui.fetch_hosts, self.fetch_limit(), deadline).await
    }
}

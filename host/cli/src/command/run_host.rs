//! The host of a run that a command shows: in this process, or a server.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{Run, RunEvent, RunId};
use agent_host_runs::{Host, Response};
use futures_util::{StreamExt, TryStreamExt, stream::LocalBoxStream};

use crate::client::Client;

/// The host of a run. Both give the same events and take the same requests.
#[derive(Clone, Copy)]
pub(super) enum RunHost<'a> {
    Embedded(&'a Host),
    Server(&'a Client),
}

impl RunHost<'_> {
    /// The events of a run from its first, as they come, to its end.
    pub(super) fn follow(self, id: RunId) -> anyhow::Result<LocalBoxStream<'static, anyhow::Result<RunEvent>>> {
        Ok(match self {
            Self::Embedded(host) => host.follow(id, 0)?.map_err(Into::into).boxed_local(),
            Self::Server(client) => client.follow(id, None).map_err(Into::into).boxed_local(),
        })
    }

    /// Asks for the end of a run.
    pub(super) async fn cancel(self, id: RunId, reason: &str) -> anyhow::Result<()> {
        match self {
            Self::Embedded(host) => drop(host.cancel(id, reason.to_owned()).await?),
            Self::Server(client) => drop(client.cancel(id, Some(reason)).await?),
        }
        Ok(())
    }

    /// Answers what a run asks.
    pub(super) async fn respond(self, action: &str, response: Response) -> anyhow::Result<()> {
        match self {
            Self::Embedded(host) => drop(host.respond(action, response, None).await?),
            Self::Server(client) => drop(client.respond(action, &serde_json::to_value(response)?, None).await?),
        }
        Ok(())
    }

    /// The run, as it is now.
    pub(super) async fn run(self, id: RunId) -> anyhow::Result<Run> {
        Ok(match self {
            Self::Embedded(host) => Arc::unwrap_or_clone(host.wait(id, Duration::ZERO).await?),
            Self::Server(client) => client.get(&format!("api/v1/runs/{id}"), &[]).await?,
        })
    }
}

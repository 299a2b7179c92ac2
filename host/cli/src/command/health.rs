//! `agent-host health`.

use std::process::ExitCode;

use agent_host_config::Config;
use clap::Args;
use serde_json::Value;

use super::runs::Server;
use crate::{client::Client, output::Output};

/// The reason why the command needs a server.
const WHY: &str = "the health is that of a host that serves";

/// Ask a running host whether it is ready; exits with 1 where it is not
///
/// The same as GET /readyz, for containers and scripts. It needs no key.
#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    server: Server,
}

impl Health {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        // A host that is not ready answers with an error.
        let health: Value = client.get("readyz", &[]).await?;
        output.result(&health, || "the host is ready\n")?;
        Ok(ExitCode::SUCCESS)
    }
}

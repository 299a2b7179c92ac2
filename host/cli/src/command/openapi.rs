//! `agent-host openapi`.

use std::{io::Write, process::ExitCode};

use clap::Args;

/// Write the description of the HTTP API (OpenAPI 3.1) to standard output
///
/// The same as a host serves at /api/v1/openapi.json; this needs no host.
#[derive(Debug, Args)]
pub(crate) struct OpenApi {}

impl OpenApi {
    pub(crate) fn execute(&self) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", agent_host_server::openapi())?;
        Ok(ExitCode::SUCCESS)
    }
}

//! `agent-host completions`.

use std::{io::Write, process::ExitCode};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// Write completions for a shell to standard output
///
/// For bash: agent-host completions bash > ~/.local/share/bash-completion/completions/agent-host
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Name of the shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn execute(&self) -> anyhow::Result<ExitCode> {
        // Written at once: the generator panics where standard output is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "agent-host", &mut script);
        std::io::stdout().lock().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

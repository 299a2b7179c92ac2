//! `agent-host man`.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, CommandFactory};

use super::Cli;

/// Write the manual pages into a folder, one for each command
///
/// For this user: agent-host man ~/.local/share/man/man1
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, which is made where it is missing
    dir: PathBuf,
}

impl Man {
    pub(crate) fn execute(&self) -> anyhow::Result<ExitCode> {
        let dir = self.dir.display();
        fs::create_dir_all(&self.dir).with_context(|| format!("{dir} cannot be made"))?;
        clap_mangen::generate_to(Cli::command(), &self.dir).with_context(|| format!("pages cannot be written to {dir}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        Man { dir: dir.path().join("man1") }.execute().unwrap();
        let page = |name: &str| fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
        assert!(page("agent-host.1").contains("serve"));
        assert!(page("agent-host-ledger-check.1").contains("SYNOPSIS"));
    }
}

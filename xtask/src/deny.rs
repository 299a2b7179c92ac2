//! `cargo xtask deny`: the rules for dependencies (`xtask/deny.toml`).

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;

use crate::{
    process,
    tools::{self, Tool},
    workspace::Workspace,
};

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", features: None };
/// The rules, in the workspace.
pub(crate) const RULES: &str = "xtask/deny.toml";

/// Check licenses, sources and versions of all dependencies, and known vulnerabilities where their database is there
///
/// The rules are in xtask/deny.toml. Installs cargo-deny below the target folder where it is missing, which takes some minutes.
#[derive(Debug, Args)]
pub(crate) struct Deny {
    /// Fetch the database of known vulnerabilities first
    #[arg(long)]
    fetch: bool,
}

impl Deny {
    pub(crate) fn execute(&self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        check(workspace, self.fetch)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Checks the dependencies; fails where one breaks a rule.
pub(crate) fn check(workspace: &Workspace, fetch: bool) -> anyhow::Result<()> {
    let cargo_deny = tools::install(workspace, &[CARGO_DENY])?.join(CARGO_DENY.name);
    let mut command = Command::new(cargo_deny);
    command.current_dir(workspace.root()).args(["--config", RULES, "check"]);
    if fetch {
        command.args(["bans", "licenses", "sources", "advisories"]);
    } else if databases().is_some_and(|dir| is_filled(&dir)) {
        command.args(["--disable-fetch", "bans", "licenses", "sources", "advisories"]);
    } else {
        eprintln!("note: known vulnerabilities are not looked for: their database is not here (`cargo xtask deny --fetch`)");
        command.args(["bans", "licenses", "sources"]);
    }
    process::run(&mut command)
}

/// The folder in which cargo-deny keeps its databases.
fn databases() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    home.map(|home| home.join("advisory-dbs"))
}

fn is_filled(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

//! Tools from the crate registry, below the target folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{process, workspace::Workspace};

/// A tool with its version, as the crate registry has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Features in place of the usual ones.
    pub(crate) features: Option<&'static str>,
}

impl Tool {
    fn is_installed(&self, root: &Path) -> bool {
        let output = Command::new(root.join("bin").join(self.name)).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(self.version))
    }
}

/// Installs the tools that are missing, and gives the folder of their binaries.
pub(crate) fn install(workspace: &Workspace, tools: &[Tool]) -> anyhow::Result<PathBuf> {
    let root = workspace.target().join("tools");
    // One folder for these tools, which share many of their dependencies; another command may install others meanwhile.
    let build = root.join(format!("build-{}", tools.first().map_or("none", |tool| tool.name)));
    for tool in tools.iter().filter(|tool| !tool.is_installed(&root)) {
        let mut cargo = workspace.cargo(&["install", tool.name, "--version", tool.version, "--locked"]);
        if let Some(features) = tool.features {
            cargo.args(["--no-default-features", "--features", features]);
        }
        process::run(cargo.arg("--root").arg(&root).env("CARGO_TARGET_DIR", &build))?;
    }
    // Build output is not needed again.
    if build.exists() {
        fs::remove_dir_all(&build).with_context(|| format!("{} cannot be removed", build.display()))?;
    }
    Ok(root.join("bin"))
}

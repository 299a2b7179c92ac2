//! The places of the workspace, from `cargo metadata`, so that CARGO_TARGET_DIR and configuration count.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use serde::Deserialize;

/// The workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    root: PathBuf,
    #[serde(rename = "target_directory")]
    target: PathBuf,
    packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
}

/// A target of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    kind: Vec<String>,
    crate_types: Vec<String>,
}

impl Target {
    /// True if the target becomes a component when it is built for WebAssembly.
    pub(crate) fn is_component(&self) -> bool {
        self.crate_types.iter().any(|kind| kind == "cdylib")
    }

    /// True if the target is an example of the package.
    pub(crate) fn is_example(&self) -> bool {
        self.kind.iter().any(|kind| kind == "example")
    }
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let output = Command::new(cargo_binary())
            .current_dir(here())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("cargo cannot be started")?;
        anyhow::ensure!(output.status.success(), "cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("cargo metadata cannot be read")
    }

    /// The folder of the workspace's manifest.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder for build output.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Cargo, in the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo_binary());
        command.current_dir(&self.root).args(arguments);
        command
    }

    /// The packages in one folder of the workspace, by name.
    pub(crate) fn packages_in(&self, folder: &str) -> Vec<&Package> {
        let folder = self.root.join(folder);
        let mut packages: Vec<_> = self.packages.iter().filter(|package| package.manifest_path.starts_with(&folder)).collect();
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        packages
    }

    /// The package with this name.
    pub(crate) fn package(&self, name: &str) -> anyhow::Result<&Package> {
        self.packages.iter().find(|package| package.name == name).with_context(|| format!("the workspace has no package {name}"))
    }

    /// A path as a person in the current directory would type it.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        let here = std::env::current_dir().unwrap_or_default();
        path.strip_prefix(here).unwrap_or(path)
    }
}

/// A folder of the workspace. Cargo says where it is when it runs this; two checkouts may share one build of it.
fn here() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}

fn cargo_binary() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

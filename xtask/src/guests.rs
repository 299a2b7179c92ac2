//! Runners as WebAssembly components.

use std::path::PathBuf;

use crate::{
    process, toolchain,
    workspace::{Package, Workspace},
};

/// The package of guests for tests: each example is a component.
pub(crate) const TEST_GUESTS: &str = "agent-host-test-guests";

/// The folder of the components, which the tests read from `AGENT_HOST_WASM_DIR`.
pub(crate) fn dir(workspace: &Workspace) -> PathBuf {
    workspace.target().join(toolchain::WASM_TARGET).join("guest")
}

/// Builds every example runner; gives the component files.
pub(crate) fn runners(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    packages(workspace, &workspace.packages_in("example-runners"))
}

/// Builds the example runners of these packages; gives the component files.
pub(crate) fn runners_of(workspace: &Workspace, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let selected: anyhow::Result<Vec<_>> = names.iter().map(|name| workspace.package(name)).collect();
    packages(workspace, &selected?)
}

fn packages(workspace: &Workspace, packages: &[&Package]) -> anyhow::Result<Vec<PathBuf>> {
    let names: Vec<_> = packages.iter().flat_map(|package| ["--package", package.name.as_str()]).collect();
    build(workspace, &names)?;
    Ok(packages.iter().flat_map(|package| components(workspace, package)).collect())
}

/// Builds every guest for tests; gives the component files.
pub(crate) fn test_guests(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    build(workspace, &["--package", TEST_GUESTS, "--examples"])?;
    Ok(components(workspace, workspace.package(TEST_GUESTS)?))
}

/// Builds one guest for tests; gives the component file.
pub(crate) fn test_guest(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    build(workspace, &["--package", TEST_GUESTS, "--example", name])?;
    Ok(dir(workspace).join("examples").join(format!("{name}.wasm")))
}

fn build(workspace: &Workspace, what: &[&str]) -> anyhow::Result<()> {
    toolchain::need_wasm_target(workspace)?;
    let mut cargo = workspace.cargo(&["build", "--profile", "guest", "--target", toolchain::WASM_TARGET]);
    process::run(cargo.args(what))
}

fn components(workspace: &Workspace, package: &Package) -> Vec<PathBuf> {
    let file = |target: &crate::workspace::Target| {
        let folder = if target.is_example() { dir(workspace).join("examples") } else { dir(workspace) };
        folder.join(format!("{}.wasm", target.name.replace('-', "_")))
    };
    package.targets.iter().filter(|target| target.is_component()).map(file).collect()
}

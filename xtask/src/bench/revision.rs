//! Revisions of the project: the present one, and binaries of others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{process, workspace::Workspace};

/// Paths that figures depend on. Changes elsewhere do not make figures of another revision.
const SOURCES: [&str; 6] = ["Cargo.lock", "Cargo.toml", "host", "wit", "tests/load", "example-runners"];
/// The binaries that are measured.
pub(crate) const HOST: &str = "agent-host";
pub(crate) const LOAD: &str = "agent-host-load";

/// The commit that is checked out; with a `+` where sources have changes that are not in it.
pub(crate) fn here(workspace: &Workspace) -> anyhow::Result<String> {
    let commit = process::output(git(workspace).args(["rev-parse", "--short=7", "HEAD"]))?;
    let changes = process::output(git(workspace).args(["status", "--porcelain", "--"]).args(SOURCES))?;
    Ok(name(&commit, &changes))
}

fn name(commit: &str, changes: &str) -> String {
    format!("{}{}", commit.trim(), if changes.trim().is_empty() { "" } else { "+" })
}

/// Release binaries of another revision: a directory that holds them.
pub(crate) fn binaries(workspace: &Workspace, revision: &str) -> anyhow::Result<PathBuf> {
    let commit = format!("{revision}^{{commit}}");
    let commit = process::output(git(workspace).args(["rev-parse", "--verify", "--end-of-options", &commit]))
        .with_context(|| format!("git knows no revision `{revision}`"))?;
    let dir = workspace.target().join("bench/revisions").join(commit.trim());
    let (tree, target) = (dir.join("tree"), dir.join("target"));
    let release = target.join("release");
    // A commit does not change: what was built of it stays.
    if is_built(&release) {
        return Ok(release);
    }
    if !tree.exists() {
        fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        // A worktree that was removed by hand is still on git's list.
        process::run(git(workspace).args(["worktree", "prune"]))?;
        process::run(git(workspace).args(["worktree", "add", "--detach"]).arg(&tree).arg(commit.trim()))?;
    }
    let mut build = workspace.cargo(&["build", "--release", "--package", HOST, "--package", LOAD]);
    process::run(build.current_dir(&tree).env("CARGO_TARGET_DIR", &target))?;
    process::run(git(workspace).args(["worktree", "remove", "--force"]).arg(&tree))?;
    anyhow::ensure!(is_built(&release), "{revision} has no {HOST} or no {LOAD}");
    Ok(release)
}

/// True if a directory has both binaries.
pub(crate) fn is_built(dir: &Path) -> bool {
    [HOST, LOAD].iter().all(|name| dir.join(name).is_file())
}

fn git(workspace: &Workspace) -> Command {
    let mut command = Command::new("git");
    command.current_dir(workspace.root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_marked() {
        assert_eq!(name("db0a04f\n", ""), "db0a04f");
        assert_eq!(name("db0a04f\n", " M host/a.rs\n"), "db0a04f+");
    }

    #[test]
    fn both_binaries_make_a_build() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(HOST), "").unwrap();
        assert!(!is_built(dir.path()));
        fs::write(dir.path().join(LOAD), "").unwrap();
        assert!(is_built(dir.path()));
    }
}

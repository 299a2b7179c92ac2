//! The example runner in Python, as its author builds it (docs/LANGUAGES.md).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{process, toolchain, workspace::Workspace};

const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";

/// Builds the component. The tool stays below the target folder.
pub(crate) fn component(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    toolchain::need_python()?;
    let dir = workspace.target().join("bench/python");
    let programs = dir.join("programs/bin");
    if !programs.join("componentize-py").exists() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(dir.join("programs")))?;
        process::run(Command::new(programs.join("pip")).args(["install", "--quiet", COMPONENTIZE_PY]))?;
    }
    let (wit, interfaces) = (dir.join("wit"), dir.join("wit/deps/runner"));
    fs::create_dir_all(&interfaces).with_context(|| format!("{} cannot be made", interfaces.display()))?;
    for file in fs::read_dir(workspace.root().join("wit"))? {
        let file = file?.path();
        copy(&file, &interfaces.join(file.file_name().context("a file has a name")?))?;
    }
    let example = workspace.root().join("example-runners/python");
    copy(&example.join("world.wit"), &wit.join("world.wit"))?;
    copy(&example.join("app.py"), &dir.join("app.py"))?;
    let mut build = Command::new(programs.join("componentize-py"));
    build.current_dir(&dir).args(["-d", "wit", "-w", "python-runner", "componentize", "app", "-o", "python.wasm"]);
    process::run(&mut build)?;
    Ok(dir.join("python.wasm"))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied to {}", from.display(), to.display()))?;
    Ok(())
}

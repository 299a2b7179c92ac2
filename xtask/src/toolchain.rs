//! Tools that a fresh machine lacks, installed by rustup and the system's packages.

use std::{io::ErrorKind, path::Path, process::Command};

use anyhow::{Context, bail};

use crate::{process, workspace::Workspace};

/// The target of runners.
pub(crate) const WASM_TARGET: &str = "wasm32-wasip2";

/// Adds the WebAssembly target where it is missing.
pub(crate) fn need_wasm_target(workspace: &Workspace) -> anyhow::Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace.root()).args(["--print", "target-libdir", "--target", WASM_TARGET]);
    // The folder is named whether or not it is there.
    if Path::new(process::output(&mut rustc)?.trim()).is_dir() {
        return Ok(());
    }
    rustup(workspace, &["target", "add", WASM_TARGET])
}

/// Adds rustfmt and clippy where they are missing.
pub(crate) fn need_lint_tools(workspace: &Workspace) -> anyhow::Result<()> {
    let missing = |tool: &&str| !process::quietly_succeeds(&mut workspace.cargo(&[*tool, "--version"]));
    let components: Vec<_> = [("fmt", "rustfmt"), ("clippy", "clippy")].into_iter().filter(|(tool, _)| missing(tool)).collect();
    for (_, component) in components {
        rustup(workspace, &["component", "add", component])?;
    }
    Ok(())
}

/// Adds Node.js where it is missing and the system's packages can be installed: some tests run servers from npm.
pub(crate) fn need_node() -> anyhow::Result<()> {
    let there = || is_there("node", &["--version"]) && is_there("npm", &["--version"]);
    if there() || (apt_install(&["nodejs", "npm"])? && there()) {
        return Ok(());
    }
    bail!("Node.js is missing, and some tests run servers from npm: install Node.js 20 or newer (https://nodejs.org)")
}

/// Names of a browser that the chat page is tested in.
pub(crate) const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Adds Chromium, in the same way: the chat page is tested in it.
pub(crate) fn need_chromium() -> anyhow::Result<()> {
    let there = || BROWSERS.iter().any(|name| is_there(name, &["--version"]));
    if there() || (apt_install(&["chromium", "fonts-liberation"])? && there()) {
        return Ok(());
    }
    bail!("Chromium is missing, and the chat page is tested in it: install Chromium or Chrome (https://www.chromium.org)")
}

/// Adds bubblewrap, in the same way: some tests run agents in its sandboxes. Elsewhere than on Linux there is none.
pub(crate) fn need_bubblewrap() -> anyhow::Result<()> {
    let there = || is_there("bwrap", &["--version"]);
    if cfg!(not(target_os = "linux")) || there() || (apt_install(&["bubblewrap"])? && there()) {
        return Ok(());
    }
    bail!(
        "bubblewrap is missing, and some tests run agents in its sandboxes: install it \
         (https://github.com/containers/bubblewrap)"
    )
}

/// Folder in which Debian has the programs of each version of PostgreSQL.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Adds PostgreSQL, in the same way: tests of clusters start servers of their own. No server of the system is needed.
pub(crate) fn need_postgres() -> anyhow::Result<()> {
    let debian =
        || std::fs::read_dir(POSTGRES).is_ok_and(|versions| versions.flatten().any(|of| of.path().join("bin/initdb").is_file()));
    let there = || (debian() || is_there("initdb", &["--version"])) && is_there("psql", &["--version"]);
    if there() || (apt_install(&["postgresql", "openssl"])? && there()) {
        return Ok(());
    }
    bail!("PostgreSQL is missing, and tests of clusters start it: install PostgreSQL 14 or newer (https://www.postgresql.org)")
}

/// Adds libfaketime, in the same way: tests of clusters set the clocks of hosts.
pub(crate) fn need_faketime() -> anyhow::Result<()> {
    let of_machine = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1").is_file();
    let there = || std::fs::read_dir("/usr/lib").is_ok_and(|mut folders| folders.any(|folder| folder.is_ok_and(of_machine)));
    if there() || (apt_install(&["libfaketime"])? && there()) {
        return Ok(());
    }
    bail!("libfaketime is missing, and tests of clusters set clocks by it: install it (https://github.com/wolfcw/libfaketime)")
}

/// Adds Python, with what makes environments of it, in the same way: some tests run programs from PyPI.
pub(crate) fn need_python() -> anyhow::Result<()> {
    // Debian has `venv` without what it needs to put pip into an environment.
    let there = || is_there("python3", &["-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"]);
    if there() || (apt_install(&["python3", "python3-venv"])? && there()) {
        return Ok(());
    }
    bail!(
        "Python is missing, or its `venv`, and some tests run programs from PyPI: install Python 3.11 or newer (https://python.org)"
    )
}

fn is_there(tool: &str, arguments: &[&str]) -> bool {
    process::quietly_succeeds(Command::new(tool).args(arguments))
}

/// Installs packages of the system. Requires root; without it, the first step fails at once.
fn apt_install(packages: &[&str]) -> anyhow::Result<bool> {
    if !is_there("apt-get", &["--version"]) {
        return Ok(false);
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    Ok(process::succeeds(Command::new("apt-get").arg("update"))? && process::succeeds(&mut install)?)
}

fn rustup(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<()> {
    let what = arguments.last().copied().unwrap_or_default();
    let mut command = Command::new("rustup");
    command.current_dir(workspace.root()).args(arguments);
    match process::succeeds(&mut command) {
        Ok(true) => Ok(()),
        Ok(false) => bail!("{what} is missing and rustup could not add it (see above): is this machine offline?"),
        Err(error)
            if error.root_cause().downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound) =>
        {
            bail!(
                "{what} is missing and so is rustup, which would add it: get rustup at https://rustup.rs, or {what} from where this toolchain came"
            )
        }
        Err(error) => Err(error).context(format!("{what} is missing")),
    }
}

//! `cargo xtask screenshots`: pictures of the chat page, for README.md and for a look at it on a desktop and a phone.
//!
//! The page runs in Chromium, driven by Playwright from npm, on a host with a scripted model.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

use crate::{
    guests,
    host::{Group, HostProcess, Start},
    process, toolchain,
    workspace::Workspace,
};

const PLAYWRIGHT: &str = "playwright-core@1.65.1";
const SCRIPT: &str = include_str!("screenshots/script.toml");
const CONFIG: &str = r#"[server]
listen = "127.0.0.1:0"
loopback_without_key = true
data_dir = "data"
plugins_dir = "plugins"

[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[bindings]]
id = "local-agent"
runner = "plugin:agent-host/local-agent/default"
"#;
/// A first start compiles the runner; this is for a slow machine.
const START: Duration = Duration::from_secs(300);
/// The pictures that README.md shows, and where they are kept.
const KEPT: [&str; 2] = ["chat-desktop-light.png", "chat-phone-dark.png"];
const IMAGES: &str = "docs/images";

/// Take pictures of the chat page: desktop and phone, light and dark
#[derive(Debug, Args)]
pub(crate) struct Screenshots {
    /// Replace the pictures of README.md (docs/images)
    #[arg(long)]
    write: bool,
}

impl Screenshots {
    pub(crate) fn execute(&self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        toolchain::need_node()?;
        toolchain::need_chromium()?;
        process::run(&mut workspace.cargo(&["build", "--workspace", "--bin", "agent-host"]))?;
        let components = guests::runners_of(workspace, &["local-agent-runner"])?;

        let dir = workspace.target().join("screenshots");
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("{} cannot be removed", dir.display()))?;
        }
        let config = lay_out(&dir, &components)?;
        let host = HostProcess::start(&Start {
            binary: &workspace.target().join("debug").join("agent-host"),
            config: &config,
            environment: &[],
            log: dir.join("agent-host.log"),
            within: START,
            group: Group::Own,
        })?;
        let shot = shoot(workspace, host.url(), &dir);
        let status = host.stop()?;
        shot?;
        ensure!(status.success(), "the host ended with {status}");
        if self.write {
            let images = workspace.root().join(IMAGES);
            fs::create_dir_all(&images)?;
            for name in KEPT {
                fs::copy(dir.join(name), images.join(name)).with_context(|| format!("{name} cannot be copied to {IMAGES}"))?;
            }
        }
        println!("{}", workspace.relative(&dir).display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Puts the plugin, the script and the configuration into a folder; gives the configuration.
fn lay_out(dir: &Path, components: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let plugins = dir.join("plugins");
    fs::create_dir_all(&plugins)?;
    for component in components {
        let name = component.file_name().context("a component has no file name")?;
        fs::copy(component, plugins.join(name)).with_context(|| format!("{} cannot be copied", component.display()))?;
    }
    let config = dir.join("agent-host.toml");
    fs::write(dir.join("script.toml"), SCRIPT)?;
    fs::write(&config, CONFIG)?;
    Ok(config)
}

/// Takes the pictures into `dir`.
fn shoot(workspace: &Workspace, url: &str, dir: &Path) -> anyhow::Result<()> {
    let npm = workspace.target().join("npm").join("screenshots");
    if !npm.join("node_modules/playwright-core").is_dir() {
        fs::create_dir_all(&npm)?;
        let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"];
        process::run(Command::new("npm").args(install).arg(&npm).arg(PLAYWRIGHT))?;
    }
    let input = json!({ "playwright": npm.join("node_modules"), "chromium": chromium()?, "url": url, "out": dir });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/screenshots/shoot.mjs");
    process::run(Command::new("node").arg(script).arg(input.to_string()))
}

/// The browser of this machine.
fn chromium() -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut programs = env::split_paths(&path).flat_map(|dir| toolchain::BROWSERS.map(|name| dir.join(name)));
    programs.find(|program| program.is_file()).context("Chromium is not on the PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_of_the_readme_are_those_that_are_taken_and_small() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let readme = fs::read_to_string(root.join("README.md")).unwrap();
        let mut bytes = 0;
        for name in KEPT {
            assert!(readme.contains(&format!("{IMAGES}/{name}")), "{name}");
            bytes += fs::metadata(root.join(IMAGES).join(name)).unwrap().len();
        }
        assert!(bytes <= 150_000, "{bytes} bytes");
    }

    #[test]
    fn the_host_of_the_pictures_is_laid_out() {
        let dir = tempfile::tempdir().unwrap();
        let component = dir.path().join("agent.wasm");
        fs::write(&component, "x").unwrap();
        let config = lay_out(&dir.path().join("out"), &[component]).unwrap();
        assert!(config.parent().unwrap().join("plugins/agent.wasm").is_file());
        assert!(fs::read_to_string(config).unwrap().contains("script.toml"));
    }
}

//! Harnesses against a host of the test, with a scripted agent.

#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod faults;
mod host;
mod natives;
mod sandboxes;
mod turns;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent_host_config::AddressRules;
use agent_host_harness::{Harness, HarnessSetup, Variable};
use serde_json::Value;

use crate::host::TestHost;

/// An address of this machine that agents in sandboxes may reach as if it were public.
pub(crate) const PUBLIC: &str = "127.0.0.2";

/// A harness with its host and its data directory.
pub(crate) struct World {
    pub(crate) host: Arc<TestHost>,
    pub(crate) dir: tempfile::TempDir,
    harness: Option<Harness>,
}

fn launcher() -> PathBuf {
    // The tests of a package are built with its examples beside them.
    let deps = std::env::current_exe().unwrap();
    let launcher = deps.ancestors().nth(2).unwrap().join("examples/launcher");
    assert!(launcher.exists(), "build the examples of agent-host-harness with its tests");
    launcher
}

/// The interpreter itself, and its installation: what is on the PATH may be a script that chooses one.
pub(crate) fn python() -> (String, String) {
    let facts = "import sys; print(sys.executable); print(sys.base_prefix)";
    let output = std::process::Command::new("python3").args(["-c", facts]).output().expect("python3 is there");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(str::to_owned);
    (lines.next().unwrap(), lines.next().unwrap())
}

pub(crate) fn peer() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness/peer.py").to_string_lossy().into_owned()
}

impl World {
    pub(crate) fn new(more: &str) -> Self {
        Self::with_command(more, &[&python().0, "-B", &peer()])
    }

    /// `more` are further keys of the harness.
    pub(crate) fn with_command(more: &str, command: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut world = Self { host: Arc::default(), dir, harness: None };
        world.start(more, command);
        world
    }

    /// With a launcher that is another program.
    pub(crate) fn with_launcher(more: &str, launcher: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut world = Self { host: Arc::default(), dir, harness: None };
        world.start_by(launcher.iter().map(Into::into).collect(), more, &[&python().0, "-B", &peer()]);
        world
    }

    pub(crate) fn start(&mut self, more: &str, command: &[&str]) {
        self.start_by(vec![launcher().into_os_string()], more, command);
    }

    fn start_by(&mut self, launcher: Vec<OsString>, more: &str, command: &[&str]) {
        let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness");
        let (_, prefix) = python();
        let preset = if more.contains("preset") { "" } else { "preset = \"acp\"\n" };
        let config = format!(
            "id = \"plugin:acme/coder/default\"\n{preset}command = {command:?}\nreadable = [{peer:?}, {prefix:?}]\n{more}"
        );
        let config = toml::from_str(&config).unwrap();
        let variable = |name: &str, value: &str, is_secret| Variable { name: name.into(), value: value.into(), is_secret };
        let mut env = vec![variable("KEY", "sk-canary-of-the-test", true), variable("PLAIN", "plain", false)];
        if command.contains(&"--key") {
            env.push(variable("OPENAI_API_KEY", "sk-canary-of-codex", true));
        }
        let addresses = Arc::new(AddressRules::new(&[PUBLIC.to_owned()]).unwrap());
        let setup = HarnessSetup { config, env, data_dir: self.dir.path().join("data"), launcher, addresses };
        self.harness = Some(Harness::start(setup, Arc::clone(&self.host) as _).unwrap());
    }

    pub(crate) async fn end(&mut self) {
        self.harness.take().unwrap().end().await;
    }

    pub(crate) fn workspace(&self, conversation: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("data/workspaces").join(conversation)
    }
}

/// True if a process exists and is no zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits for the content of a file.
pub(crate) async fn content(path: &Path) -> String {
    for _ in 0..3000 {
        if let Ok(text) = std::fs::read_to_string(path)
            && !text.is_empty()
        {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} did not come", path.display());
}

/// Waits until a process is gone.
pub(crate) async fn gone(pid: &str) {
    for _ in 0..1500 {
        if !is_alive(pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("process {pid} is still there");
}

/// Waits until a file is gone.
pub(crate) async fn no_file(path: &Path) {
    for _ in 0..1500 {
        if !path.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} is still there", path.display());
}

/// Checks that a URL is that of the MCP endpoint of a run, at a door to the host and not at the host itself.
pub(crate) fn is_at_the_door(url: &Value, run_id: &str) {
    let url = url.as_str().unwrap_or_else(|| panic!("{url} is no text"));
    let (host, path) =
        url.strip_prefix("http://127.0.0.1:").and_then(|rest| rest.split_once('/')).unwrap_or_else(|| panic!("{url}"));
    assert!(host.parse::<u16>().is_ok_and(|port| port != 7070), "{url}");
    assert_eq!(path, format!("mcp/runs/{run_id}"));
}

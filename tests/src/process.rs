//! The real binary, in a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{component, components, world::PATIENCE};

/// `agent-host serve` with its own directories and a free port. Dropping the value kills the process.
pub struct Process {
    child: Child,
    /// Such as `http://127.0.0.1:40123`.
    pub url: String,
    /// Directories: `data`, `plugins`, and `agent-host.toml`.
    pub dir: TempDir,
}

impl Process {
    /// Starts a host with these components and this configuration (without `[server]`). Requests of this machine need no
    /// key.
    pub fn start(components: &[&str], config: &str) -> Self {
        Self::start_in(Self::lay_out(components), config)
    }

    /// Directories with these components.
    #[must_use]
    pub fn lay_out(components: &[&str]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("plugins")).unwrap();
        for name in components {
            fs::copy(component(name), dir.path().join("plugins").join(format!("{name}.wasm"))).unwrap();
        }
        dir
    }

    /// Starts a host on directories that are there.
    pub fn start_in(dir: TempDir, config: &str) -> Self {
        Self::start_as(dir, "loopback_without_key = true", config)
    }

    /// Starts a host on directories that are there, with more in `[server]`; without any, everybody needs a key.
    pub fn start_as(dir: TempDir, server: &str, config: &str) -> Self {
        Self::start_with(dir, server, config, &[])
    }

    /// As [`Process::start_as`], with more variables of the environment.
    pub fn start_with(dir: TempDir, server: &str, config: &str, variables: &[(&str, PathBuf)]) -> Self {
        fs::write(dir.path().join("agent-host.toml"), Self::file(server, config)).unwrap();
        let mut child = command(dir.path())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .args(["serve", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = first_line(&mut child);
        Self { url: line["listening"].as_str().unwrap().to_owned(), child, dir }
    }

    /// Writes the file anew, as [`Process::start`] does, without telling the host.
    pub fn write(&self, config: &str) {
        fs::write(self.dir.path().join("agent-host.toml"), Self::file("loopback_without_key = true", config)).unwrap();
    }

    fn file(server: &str, config: &str) -> String {
        format!("[server]\nlisten = \"127.0.0.1:0\"\n{server}\n{config}")
    }

    /// Process id of the host.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An address of the API.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::HUP).unwrap();
    }

    /// Ends the process as a power failure would, and gives its directories.
    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // `Drop` has nothing left to do; the directory moves out.
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    /// Asks the process to end, and gives its directories when it has.
    pub fn terminate(mut self) -> TempDir {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "the host does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "the host ended with {status}");
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host that was started by a command of its own, with `--json`. Dropping the value kills the process.
pub struct Served {
    child: Child,
    /// The line that the host prints.
    pub line: Value,
}

impl Served {
    /// Starts `serve` as the command says, and waits until the host listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let line = first_line(&mut child);
        Self { child, line }
    }

    /// An address of the API.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.line["listening"].as_str().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line in which a host says where it listens.
fn first_line(child: &mut Child) -> Value {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("the host did not say where it listens ({error}): {line:?}"))
}

/// The binary, in a directory with its configuration.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .current_dir(dir)
        .env("AGENT_HOST_LOG", "off")
        .env_remove("AGENT_HOST_CONFIG")
        .env_remove("AGENT_HOST_SERVER")
        .env_remove("AGENT_HOST_KEY")
        .env_remove("AGENT_HOST_WORKSPACE");
    command
}

/// The host binary.
#[must_use]
pub fn binary() -> PathBuf {
    components::binary()
}

//! A harness as it is started, and the facts that its runs share.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use agent_host_config::{AddressRules, HarnessConfig, HarnessIsolation, HarnessPreset, HarnessProtocol};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::{
    bubblewrap::Bubblewrap,
    confinement::{self, Confinement},
    door::Door,
    egress::{Egress, own_address},
    enclosure::Enclosure,
    launcher::{Isolation, Launch},
    process::{ProcessPlan, ReadBounds, common_variables, find_program},
    proxy::Proxy,
    results::BesideTurn,
    secrets::Secrets,
    transport::Transport,
    workspace::{make_private, safe_name},
};

/// A variable of an agent's environment.
#[derive(Clone)]
pub struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    pub value: String,
    /// True if the value is taken out of what the agent says.
    pub is_secret: bool,
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A harness, as it is started.
#[derive(Debug, Clone)]
pub struct HarnessSetup {
    /// The entry of the configuration.
    pub config: HarnessConfig,
    /// The environment of the entry, with its secrets read.
    pub env: Vec<Variable>,
    /// The data directory: workspaces, and `harness` for the crate's own files.
    pub data_dir: PathBuf,
    /// Program and arguments that call [`launch`](crate::launch).
    pub launcher: Vec<OsString>,
    /// Addresses that an agent in a sandbox may reach.
    pub addresses: Arc<AddressRules>,
}

/// Facts of a harness that its runs share.
pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) config: Arc<HarnessConfig>,
    pub(crate) env: Vec<Variable>,
    pub(crate) data_dir: PathBuf,
    pub(crate) launcher: Arc<[OsString]>,
    pub(crate) isolation: HarnessIsolation,
    /// Cancelled when the harness ends.
    pub(crate) closing: CancellationToken,
    program: OnceLock<Result<PathBuf, String>>,
    bubblewrap: OnceCell<Result<Bubblewrap, String>>,
    addresses: Arc<AddressRules>,
    /// True if the agent takes an MCP server by its protocol; set by the examination.
    pub(crate) takes_mcp: OnceLock<bool>,
}

/// The directories of a process.
pub(crate) struct ProcessDirs<'a> {
    /// Working directory.
    pub(crate) work: &'a Path,
    /// `HOME`.
    pub(crate) home: &'a Path,
    /// `TMPDIR`.
    pub(crate) tmp: &'a Path,
    /// Directories that a confined process may write to.
    pub(crate) writable: Vec<PathBuf>,
}

impl Shared {
    pub(crate) fn new(setup: HarnessSetup, transport: Arc<dyn Transport>, closing: CancellationToken) -> Self {
        let HarnessSetup { config, env, data_dir, launcher, addresses } = setup;
        let isolation = isolation(&config);
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let (config, launcher, program, takes_mcp) = (Arc::new(config), launcher.into(), OnceLock::new(), OnceLock::new());
        let bubblewrap = OnceCell::new();
        Self { transport, config, env, data_dir, launcher, isolation, closing, program, bubblewrap, addresses, takes_mcp }
    }

    /// The directory of the crate's own files for this harness.
    pub(crate) fn root(&self) -> PathBuf {
        self.data_dir.join("harness").join(safe_name(self.config.id.as_str()))
    }

    /// The program, looked up once.
    ///
    /// # Errors
    /// Says what is missing and how to install it.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        self.program.get_or_init(|| program(&self.config)).clone()
    }

    /// The program that makes sandboxes, looked up and tried out once.
    ///
    /// # Errors
    /// Says why there are no sandboxes on this machine, and the fix.
    pub(crate) async fn bubblewrap(&self) -> Result<&Bubblewrap, String> {
        self.bubblewrap.get_or_init(Bubblewrap::find).await.as_ref().map_err(Clone::clone)
    }

    /// The means that confine the processes of a run with this name, which the binding grants `http_hosts`. `base_url` is that of the
    /// host; empty for none.
    ///
    /// # Errors
    /// Says why its processes cannot be confined as the configuration wants it.
    pub(crate) async fn enclosure(
        &self,
        name: &str,
        base_url: &str,
        http_hosts: &[String],
        record: Option<BesideTurn>,
    ) -> Result<Enclosure, String> {
        match self.isolation {
            HarnessIsolation::None => return Ok(Enclosure::None),
            HarnessIsolation::Landlock => {
                let door = match own_address(base_url) {
                    Some(host) => {
                        Some(Door::open(host).await.map_err(|error| format!("the door to the host cannot be opened: {error}"))?)
                    }
                    None => None,
                };
                return Ok(Enclosure::Landlock(door));
            }
            HarnessIsolation::Bwrap => {}
        }
        let bubblewrap = self.bubblewrap().await?;
        // No agent reaches this folder: a link in place of a socket would be followed into the sandbox.
        let dir = self.root().join("proxies");
        make_private(&dir).map_err(|error| format!("{} cannot be made: {error}", dir.display()))?;
        let hosts = self.config.connect_hosts();
        let egress =
            Egress::new(hosts.iter().chain(http_hosts), Arc::clone(&self.addresses), &self.config.connect_ports, base_url);
        Enclosure::sandboxes(bubblewrap, Proxy::start(dir.join(name), egress, self.config.id.to_string(), record))
    }

    /// The directory of the locks of workspaces, which several harnesses can have.
    pub(crate) fn locks(&self) -> PathBuf {
        self.data_dir.join("harness").join("locks")
    }

    /// The agent's process in these directories: its command, environment, limits and confinement. `base_url` is that of the host;
    /// empty for none.
    pub(crate) fn plan(&self, program: PathBuf, dirs: ProcessDirs<'_>, base_url: &str, enclosure: &Enclosure) -> ProcessPlan {
        let (config, limits) = (&self.config, &self.config.limits);
        let mut confinement = Confinement::of_program(&program);
        confinement.readable.extend(config.readable.iter().cloned());
        confinement.writable.extend(config.writable.iter().cloned().chain(dirs.writable));
        confinement.ports.extend(&config.connect_ports);
        let mut env = common_variables();
        env.extend(config.preset.variables().iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        env.extend(self.env.iter().map(|variable| (variable.name.clone(), variable.value.clone())));
        for (name, dir) in [("HOME", dirs.home), ("TMPDIR", dirs.tmp)] {
            env.insert(name.to_owned(), dir.to_string_lossy().into_owned());
        }
        let mut args: Vec<String> = config.command().into_iter().skip(1).collect();
        // OpenCode connects to a server of its own, on a port that Landlock must know.
        if matches!(enclosure, Enclosure::Landlock(_))
            && config.preset == HarnessPreset::OpenCode
            && args.last().is_some_and(|last| last == "acp")
            && let Some(port) = free_port()
        {
            args.extend(["--port".to_owned(), port.to_string()]);
            confinement.ports.insert(port);
        }
        let launch = Launch {
            program,
            args,
            max_memory_bytes: limits.max_memory_bytes,
            max_open_files: limits.max_open_files,
            cpu_seconds: limits.cpu_seconds,
            isolation: Isolation::None,
        };
        let mut plan = ProcessPlan { launcher: Arc::clone(&self.launcher), launch, dir: dirs.work.to_owned(), env };
        enclosure.confine(&mut plan, base_url, confinement);
        plan
    }

    pub(crate) fn secrets(&self, token: Option<&str>) -> Secrets {
        let secrets = self.env.iter().filter(|variable| variable.is_secret).map(|variable| variable.value.as_str());
        Secrets::new(secrets.chain(token))
    }

    pub(crate) fn read_bounds(&self) -> ReadBounds {
        let limits = &self.config.limits;
        ReadBounds {
            line_bytes: limits.line_bytes,
            output_bytes: limits.output_bytes,
            lines_per_second: limits.messages_per_second,
        }
    }
}

/// A port of this machine that nobody listens on at the moment.
fn free_port() -> Option<u16> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    listener.local_addr().ok().map(|address| address.port())
}

/// The confinement of a harness: as configured, else what the kernel has.
fn isolation(config: &HarnessConfig) -> HarnessIsolation {
    config.isolation.unwrap_or_else(
        || {
            if confinement::is_available() { HarnessIsolation::Landlock } else { HarnessIsolation::None }
        },
    )
}

fn program(config: &HarnessConfig) -> Result<PathBuf, String> {
    let command = config.command();
    let name = command.first().map(String::as_str).unwrap_or_default();
    find_program(name).ok_or_else(|| {
        let install = install_hint(config.preset, config.protocol);
        format!("there is no program `{name}` for the harness `{}`: {install}or name it in `command`", config.id)
    })
}

/// The way to install the agent of a preset, as the beginning of a sentence; empty if there is none.
const fn install_hint(preset: HarnessPreset, protocol: HarnessProtocol) -> &'static str {
    match preset {
        HarnessPreset::ClaudeCode if matches!(protocol, HarnessProtocol::Native) => {
            "install it (`npm install -g @anthropic-ai/claude-code`) "
        }
        HarnessPreset::Codex if matches!(protocol, HarnessProtocol::Native) => "install it (`npm install -g @openai/codex`) ",
        HarnessPreset::ClaudeCode => "install it (`npm install -g @agentclientprotocol/claude-agent-acp`) ",
        HarnessPreset::Codex => "install it (`npm install -g @zed-industries/codex-acp`) ",
        HarnessPreset::Gemini => "install it (`npm install -g @google/gemini-cli`) ",
        HarnessPreset::OpenCode => "install it (`npm install -g opencode-ai`) ",
        HarnessPreset::Kimi => "install it (`npm install -g @moonshot-ai/kimi-code`) ",
        HarnessPreset::Pi => "install it (`npm install -g pi-acp @earendil-works/pi-coding-agent`) ",
        HarnessPreset::Acp | HarnessPreset::Command => "install it ",
    }
}

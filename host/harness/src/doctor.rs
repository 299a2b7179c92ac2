//! Examination of a harness: whether its agent starts, in which version, and what to do if it does not.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use agent_host_config::{HarnessConfig, HarnessIsolation, HarnessPreset, HarnessProtocol};
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    acp, claude,
    client::{Introduction, Login},
    codex,
    failure::no_login,
    process::AgentProcess,
    results::cut,
    shared::{HarnessSetup, ProcessDirs, Shared},
    transport::{Answer, Registered, Request, Transport, TransportError},
    workspace::make_private,
};

/// Time for a process to end after it was examined.
const FINISH: Duration = Duration::from_millis(500);
/// Longest name and version of an agent that are shown, in bytes.
const MAX_TEXT: usize = 200;

/// The state of a harness.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// The runner id of the harness.
    pub harness: String,
    /// The file of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Name of the agent, as it says itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Version of the agent, as it says itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The confinement.
    pub isolation: HarnessIsolation,
    /// Version of the program that confines, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation_version: Option<String>,
    /// True if the agent goes on with an earlier session.
    pub resumes: bool,
    /// True if the agent takes an MCP server by HTTP.
    pub mcp: bool,
    /// True if somebody is logged in at the agent, as far as it says.
    pub logged_in: Login,
    /// The reason why runs of the harness fail, and the fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Diagnosis {
    /// The capabilities of the executor, as the host shows them.
    pub(crate) fn capabilities(&self, config: &HarnessConfig) -> Value {
        json!({
            "harness": config.id,
            "provider": config.preset,
            "command": config.command(),
            "workspace": config.workspace,
            "isolation": self.isolation,
            "isolation_version": self.isolation_version,
            "slots": config.max_processes,
            "state": if self.problem.is_some() { "unavailable" } else { "ready" },
            "agent": self.agent,
            "version": self.version,
            "resumes": self.resumes,
            "mcp": self.mcp,
            "protocol": config.protocol,
            "logged_in": self.logged_in,
            "problem": self.problem,
        })
    }
}

/// Examines a harness without a host: finds its program and, unless it is one of preset `command`, starts it and lets it introduce
/// itself. Nothing is sent to a model.
pub async fn diagnose(setup: HarnessSetup) -> Diagnosis {
    examine(&Shared::new(setup, Arc::new(NoHost), CancellationToken::new())).await
}

pub(crate) async fn examine(shared: &Shared) -> Diagnosis {
    let mut diagnosis = Diagnosis {
        harness: shared.config.id.to_string(),
        program: None,
        agent: None,
        version: None,
        isolation: shared.isolation,
        isolation_version: None,
        resumes: false,
        mcp: false,
        logged_in: Login::Unknown,
        problem: None,
    };
    let program = match shared.program() {
        Ok(program) => program,
        Err(problem) => {
            diagnosis.problem = Some(problem);
            return diagnosis;
        }
    };
    diagnosis.program = Some(program.clone());
    if shared.isolation == HarnessIsolation::Bwrap {
        match shared.bubblewrap().await {
            Ok(bubblewrap) => diagnosis.isolation_version = Some(cut(&bubblewrap.version, MAX_TEXT).to_owned()),
            Err(problem) => {
                diagnosis.problem = Some(problem);
                return diagnosis;
            }
        }
    }
    if shared.config.preset == HarnessPreset::Command {
        // A program that is started does something.
        diagnosis.resumes = true;
        diagnosis.mcp = true;
        return diagnosis;
    }
    if let Err(problem) = introduce(shared, program, &mut diagnosis).await {
        diagnosis.problem = Some(problem);
    }
    diagnosis
}

/// Starts the agent in a frame like that of a run, and asks for its name.
async fn introduce(shared: &Shared, program: PathBuf, diagnosis: &mut Diagnosis) -> Result<(), String> {
    let home = shared.root().join("doctor");
    make_private(&home).map_err(|error| format!("{} cannot be made: {error}", home.display()))?;
    let dirs = ProcessDirs { work: &home, home: &home, tmp: &home, writable: vec![home.clone()] };
    let enclosure = shared.enclosure("doctor", "", &[], None).await?;
    let mut plan = shared.plan(program, dirs, "", &enclosure);
    let (preset, protocol) = (shared.config.preset, shared.config.protocol);
    match (preset, protocol) {
        (HarnessPreset::Codex, HarnessProtocol::Native) => plan.launch.args.extend(codex::ARGUMENTS.map(str::to_owned)),
        (_, HarnessProtocol::Native) => plan.launch.args.extend(claude::arguments(None, None)),
        (_, HarnessProtocol::Acp) => {}
    }
    let mut process = AgentProcess::start(&plan).map_err(|error| format!("the launcher cannot be started: {error}"))?;
    let patience = Duration::from_millis(shared.config.limits.start_timeout_ms);
    let bounds = shared.read_bounds();
    let answer = match (preset, protocol) {
        (HarnessPreset::Codex, HarnessProtocol::Native) => {
            codex::probe(&mut process, bounds, patience, codex::has_key(&plan.env)).await
        }
        (_, HarnessProtocol::Native) => claude::probe(&mut process, bounds, patience).await,
        (_, HarnessProtocol::Acp) => acp::probe(&mut process, bounds, patience, &home).await,
    };
    process.finish(FINISH).await;
    // What the agent wrote for its introduction is of no use to anybody.
    let _ = fs::remove_dir_all(&home);
    let secrets = shared.secrets(None);
    let Introduction { agent, resumes, mcp, login, login_problem } = answer.map_err(|failure| failure.message(&secrets))?;
    let text = |text: &str| Some(cut(text, MAX_TEXT).to_owned()).filter(|text| !text.is_empty());
    diagnosis.agent = text(&agent.name);
    diagnosis.version = text(&agent.version);
    (diagnosis.resumes, diagnosis.mcp, diagnosis.logged_in) = (resumes, mcp, login);
    // Examined once in the life of a harness.
    let _ = shared.takes_mcp.set(mcp);
    if login == Login::No {
        let said = login_problem.unwrap_or_else(|| "as the agent says".to_owned());
        return Err(no_login(&shared.config, &said).message(&secrets));
    }
    Ok(())
}

/// The way to no host.
struct NoHost;

impl Transport for NoHost {
    fn register(&self, _: Value) -> BoxFuture<'_, Result<Registered, TransportError>> {
        Box::pin(async { Err(TransportError("a harness that is examined has no host".to_owned())) })
    }

    fn send<'a>(&'a self, _: Request<'a>) -> BoxFuture<'a, Result<Answer, TransportError>> {
        Box::pin(async { Err(TransportError("a harness that is examined has no host".to_owned())) })
    }

    fn base_url(&self) -> &str {
        ""
    }
}

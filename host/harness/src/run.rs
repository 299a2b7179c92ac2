//! One run: from its claim to its end.

use std::{sync::Arc, time::Duration};

use agent_host_config::{HarnessPreset, HarnessProtocol};
use agent_host_protocol::time;
use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    acp,
    agent_run::{AgentRun, Inputs, TurnEnd},
    claude, codex, command,
    failure::{RunFailure, TurnError},
    folder::Folder,
    gemini_sessions,
    host_client::{Claimed, HeldRun, HostError},
    mcp_forms,
    process::{AgentProcess, ReadBounds},
    projection::{MCP_TOKEN, McpServer, Projection},
    results::{BesideTurn, Results},
    secrets::Secrets,
    session,
    shared::{ProcessDirs, Shared},
    stop::{Stop, StopFlag},
    workspace::{Workspace, resolve},
};

/// Time between two renewals where nothing else tells of a cancel request.
const RENEW: Duration = Duration::from_secs(1);
/// Time for an agent to end by itself after its answer.
const FINISH: Duration = Duration::from_secs(2);

/// Executes a run that was claimed, and returns after its last process is gone.
pub(crate) async fn execute(shared: Arc<Shared>, claimed: Claimed) {
    let run = Arc::new(HeldRun::new(Arc::clone(&shared.transport), &claimed));
    let run_id = claimed.run.run_id;
    let stop = StopFlag::default();
    let guard = Guard::new(&shared, &run, &stop, &claimed);
    let mut process = None;
    let secrets = shared.secrets(claimed.mcp.as_ref().map(|mcp| mcp.token.as_str()));
    let mut results = Results::new(Arc::clone(&run), secrets.clone(), claimed.context.runtime.attempt, stop.clone());
    let prepared = tokio::select! {
        prepared = prepare(&shared, Arc::clone(&run), claimed, &stop, results.beside_turn()) => prepared.map_err(TurnError::from),
        reason = stop.stopped() => Err(TurnError::Stopped(reason)),
    };
    // Kept to the end: the workspace is free for the next run after the last process of this one.
    let (outcome, frame) = match prepared {
        Ok(mut frame) => (answer(&shared, &mut frame, &mut process, &mut results).await, Some(frame)),
        Err(error) => (Err(error), None),
    };
    // A run that was stopped meanwhile ends for that reason, whatever its agent made of it.
    let outcome = match (stop.reason(), outcome) {
        (Some(reason), Err(TurnError::Failed(_))) => Err(TurnError::Stopped(reason)),
        (Some(Stop::Cancelled), Ok(_)) => Err(TurnError::Stopped(Stop::Cancelled)),
        (_, outcome) => outcome,
    };
    if let (Some(process), Err(_)) = (&process, &outcome) {
        process.signal(rustix::process::Signal::TERM);
    }
    results.flush().await;
    let ended = end(&run, &outcome, &secrets).await;
    if let Err(error) = ended {
        tracing::debug!(%error, %run_id, "the end of a run is not in its record");
    }
    drop(guard);
    if let Some(mut process) = process {
        match &outcome {
            Ok(_) => process.finish(FINISH).await,
            // Asked to end before.
            Err(_) => process.ended().await,
        }
    }
    if let Some(frame) = frame {
        frame.projection.end();
    }
}

/// Makes everything that the agent needs.
async fn prepare(
    shared: &Shared,
    run: Arc<HeldRun>,
    claimed: Claimed,
    stop: &StopFlag,
    record: BesideTurn,
) -> Result<AgentRun, RunFailure> {
    let Claimed { context, mcp, http_hosts, .. } = claimed;
    let config = Arc::clone(&shared.config);
    let program = shared.program().map_err(RunFailure::Unavailable)?;
    let dir = resolve(&config.workspace, &context, &shared.data_dir);
    let root = shared.root();
    let workspace = Workspace::open(dir.clone(), &shared.locks(), &root.join("homes")).await;
    let workspace =
        workspace.map_err(|error| RunFailure::Files(format!("the workspace {} cannot be opened: {error}", dir.display())))?;
    let enclosure = shared.enclosure(&context.run_id.to_string(), run.base_url(), &http_hosts, Some(record)).await;
    let enclosure = enclosure.map_err(RunFailure::Unavailable)?;
    let host = enclosure.host_url(run.base_url());
    let mcp = mcp.map(|mcp| McpServer { url: format!("{host}{}", mcp.path), token: mcp.token });
    let own = root.join("runs").join(context.run_id.to_string());
    let home = Folder::of_host(workspace.home.clone());
    let projection = Projection::write(own.clone(), &home, &config, &context, &run, mcp.as_ref()).await;
    let mut projection = projection
        .map_err(|error| RunFailure::Files(format!("the files of the run cannot be written to {}: {error}", own.display())))?;
    let dirs = ProcessDirs {
        work: &workspace.dir,
        home: &workspace.home,
        tmp: &own.join("tmp"),
        writable: vec![workspace.dir.clone(), workspace.home.clone(), own.clone()],
    };
    if config.preset == HarnessPreset::Gemini
        && let Ok(session_id) = session::earlier(&context, &workspace)
        && let Err(error) = gemini_sessions::keep(&home, &session_id)
    {
        tracing::debug!(%error, run_id = %context.run_id, "a session file of Gemini CLI cannot be renamed");
    }
    let mut plan = shared.plan(program, dirs, run.base_url(), &enclosure);
    plan.env.insert("AGENT_HOST_CONTEXT".to_owned(), projection.context_file.to_string_lossy().into_owned());
    if let Some(mcp) = &mcp {
        if config.protocol == HarnessProtocol::Native {
            plan.env.insert(MCP_TOKEN.to_owned(), mcp.token.clone());
        } else if shared.takes_mcp.get() == Some(&false) {
            let settings = mcp_forms::put(config.preset, &mut plan, (&projection.dir, &home), mcp);
            projection.mcp_settings = settings
                .map_err(|error| RunFailure::Files(format!("the MCP configuration of the agent cannot be written: {error}")))?;
        }
    }
    let takes_inputs = context.context.available_apis.steering && config.preset != HarnessPreset::Command;
    let inputs = takes_inputs.then(|| Inputs::new(Arc::clone(&run), stop.clone()));
    let (workspace, stop) = (Arc::new(workspace), stop.clone());
    Ok(AgentRun { run, config, context, mcp, workspace, projection, plan, enclosure, stop, inputs })
}

/// Starts the agent and has it answer.
async fn answer(
    shared: &Shared,
    frame: &mut AgentRun,
    process: &mut Option<AgentProcess>,
    results: &mut Results,
) -> Result<TurnEnd, TurnError> {
    let bounds = shared.read_bounds();
    match (frame.config.preset, frame.config.protocol) {
        (HarnessPreset::Command, _) => command::run(frame, start(frame, &[], process)?, results, bounds).await,
        (HarnessPreset::Codex, HarnessProtocol::Native) => {
            let arguments = codex::ARGUMENTS.map(str::to_owned);
            codex::run(frame, start(frame, &arguments, process)?, results, bounds).await
        }
        (_, HarnessProtocol::Native) => claude(frame, process, results, bounds).await,
        (_, HarnessProtocol::Acp) => acp::run(frame, start(frame, &[], process)?, results, bounds).await,
    }
}

/// Starts the agent, with more arguments than its command has. An earlier process of the run has ended.
fn start<'a>(
    frame: &AgentRun,
    more: &[String],
    process: &'a mut Option<AgentProcess>,
) -> Result<&'a mut AgentProcess, RunFailure> {
    let mut plan = frame.plan.clone();
    plan.launch.args.extend_from_slice(more);
    let started = AgentProcess::start(&plan);
    let started = started.map_err(|error| RunFailure::Unavailable(format!("the launcher cannot be started: {error}")))?;
    Ok(process.insert(started))
}

/// Has Claude Code answer by its own protocol. The session is an argument of the process: another process begins a new one where the
/// earlier cannot be loaded.
async fn claude(
    frame: &mut AgentRun,
    process: &mut Option<AgentProcess>,
    results: &mut Results,
    bounds: ReadBounds,
) -> Result<TurnEnd, TurnError> {
    let mut earlier = session::earlier(&frame.context, &frame.workspace);
    loop {
        let arguments = claude::arguments(Some(frame), earlier.as_deref().ok());
        let started = start(frame, &arguments, process)?;
        let resumed = earlier.as_ref().map(|_| ()).map_err(Clone::clone);
        match claude::run(frame, started, results, bounds, resumed).await {
            claude::Ended::Turn(outcome) => return outcome,
            claude::Ended::NoSession(reason) => {
                started.finish(FINISH).await;
                earlier = Err(reason);
            }
        }
    }
}

/// Tells the host how the run ended.
async fn end(run: &HeldRun, outcome: &Result<TurnEnd, TurnError>, secrets: &Secrets) -> Result<(), HostError> {
    match outcome {
        Ok(end) => {
            let mut how = json!({ "status": "completed", "finish_reason": end.finish_reason });
            if let (Some(how), Some(usage)) = (how.as_object_mut(), &end.usage) {
                how.insert("usage".to_owned(), usage.clone());
            }
            match run.finalize(&how).await {
                // Asked for at the last moment.
                Err(HostError::Cancelled) => cancelled(run).await,
                // A usage that cannot be read is no reason to lose the answer.
                Err(HostError::Refused { .. }) if end.usage.is_some() => {
                    run.finalize(&json!({ "status": "completed", "finish_reason": end.finish_reason })).await
                }
                other => other,
            }
        }
        Err(TurnError::Stopped(Stop::Cancelled)) => cancelled(run).await,
        Err(TurnError::Stopped(Stop::Shutdown)) => run.release("the harness ends").await,
        Err(TurnError::Stopped(Stop::ClaimLost)) => Ok(()),
        Err(TurnError::Failed(failure)) => run.finalize(&failure.finalize(secrets)).await,
    }
}

async fn cancelled(run: &HeldRun) -> Result<(), HostError> {
    run.finalize(&json!({ "status": "cancelled", "reason": "the agent was stopped" })).await
}

/// Keeps the claim of a run, and learns when it is to end.
struct Guard {
    renewing: JoinHandle<()>,
    closing: JoinHandle<()>,
}

impl Guard {
    fn new(shared: &Shared, run: &Arc<HeldRun>, stop: &StopFlag, claimed: &Claimed) -> Self {
        let lease_ms = claimed.lease_expires_at.saturating_sub(time::now());
        let mut pause = Duration::from_millis((lease_ms / 3).max(100));
        if !claimed.context.context.available_apis.steering || shared.config.preset == HarnessPreset::Command {
            pause = pause.min(RENEW);
        }
        let renewing = tokio::spawn(renew(Arc::clone(run), stop.clone(), pause));
        let (closing, stop) = (shared.closing.clone(), stop.clone());
        let closing = tokio::spawn(async move {
            closing.cancelled().await;
            stop.stop(Stop::Shutdown);
        });
        Self { renewing, closing }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.renewing.abort();
        self.closing.abort();
    }
}

async fn renew(run: Arc<HeldRun>, stop: StopFlag, pause: Duration) {
    loop {
        sleep(pause).await;
        match run.renew().await {
            Ok(claim) if claim.cancel_requested_at.is_some() => stop.stop(Stop::Cancelled),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a claim is not renewed");
                stop.hear(&error);
                stop.stop(Stop::ClaimLost);
                return;
            }
        }
    }
}

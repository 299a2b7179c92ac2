//! `terminal/*`: commands that an agent has executed by its client, in the same confinement as the agent itself.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{Mutex, watch},
    task::JoinHandle,
};

use crate::{
    acp_schema::{CreateTerminal, INVALID_PARAMS},
    process::{AgentProcess, Ended, ProcessPlan, find_program},
    rpc::RpcError,
};

/// Commands that one agent has at one time, ended ones included until they are released.
const MAX_TERMINALS: usize = 32;
/// Output that is kept of a command, in bytes, whatever the agent wants.
const MAX_OUTPUT: usize = 1 << 20;

/// The output of a command so far.
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) is_truncated: bool,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    limit: usize,
    is_truncated: bool,
}

impl Buffer {
    /// Keeps the end of the output.
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let surplus = self.bytes.len().saturating_sub(self.limit);
        if surplus > 0 {
            self.is_truncated = true;
            // Not in the middle of a character.
            let rest = self.bytes.get(surplus..).unwrap_or_default();
            let more = rest.iter().take_while(|byte| (**byte & 0b1100_0000) == 0b1000_0000).count();
            self.bytes.drain(..surplus + more);
        }
    }
}

/// A command that was started.
struct Terminal {
    output: Arc<Mutex<Buffer>>,
    ended: watch::Receiver<Option<Ended>>,
    kill: watch::Sender<bool>,
    running: JoinHandle<()>,
}

/// The commands of one agent. When the last clone is dropped, all of them end.
#[derive(Clone, Default)]
pub(crate) struct Terminals {
    open: Arc<Mutex<HashMap<String, Terminal>>>,
    created: Arc<AtomicU32>,
}

impl Terminals {
    /// Starts a command. `plan` is the frame of the agent's own process, `dir` where the command is executed.
    pub(crate) async fn create(&self, mut plan: ProcessPlan, dir: PathBuf, request: CreateTerminal) -> Result<Value, RpcError> {
        let CreateTerminal { command, args, env, output_byte_limit, .. } = request;
        let mut open = self.open.lock().await;
        if open.len() >= MAX_TERMINALS {
            return Err(RpcError::internal(format!("{MAX_TERMINALS} commands are open: release one")));
        }
        // A path is one of the command's folder, not of the host's.
        let file = if command.contains('/') { dir.join(&command).to_string_lossy().into_owned() } else { command.clone() };
        let program = find_program(&file).ok_or_else(|| {
            RpcError::new(INVALID_PARAMS, format!("there is no program `{command}`; arguments belong in `args`"))
        })?;
        plan.launch.program = program;
        plan.launch.args = args;
        plan.dir = dir;
        plan.env.extend(env.into_iter().map(|variable| (variable.name, variable.value)));
        let mut process = AgentProcess::start(&plan).map_err(RpcError::internal)?;
        let limit = output_byte_limit.unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT);
        let output = Arc::new(Mutex::new(Buffer { limit, ..Buffer::default() }));
        let (kill, killed) = watch::channel(false);
        let (end, ended) = watch::channel(None);
        let kept = Arc::clone(&output);
        let running = tokio::spawn(async move {
            process.stdin = None;
            let reading = process.stdout.take().map(|stdout| tokio::spawn(read(stdout, Arc::clone(&kept))));
            let ended = run(&mut process, killed).await;
            if let Some(reading) = reading {
                // Ends with the process, whose launcher leaves nobody with the stream.
                let _ = reading.await;
            }
            kept.lock().await.add(process.errors().await.as_bytes());
            // Nobody waits for a terminal that was released.
            let _ = end.send(ended);
        });
        let id = format!("term-{}", self.created.fetch_add(1, Ordering::Relaxed) + 1);
        open.insert(id.clone(), Terminal { output, ended, kill, running });
        Ok(json!({ "terminalId": id }))
    }

    /// The output of a command so far.
    pub(crate) async fn output(&self, id: &str) -> Option<Output> {
        let open = self.open.lock().await;
        let buffer = open.get(id)?.output.lock().await;
        Some(Output { text: String::from_utf8_lossy(&buffer.bytes).into_owned(), is_truncated: buffer.is_truncated })
    }

    /// The answer to `terminal/output`.
    pub(crate) async fn report(&self, id: &str) -> Result<Value, RpcError> {
        let output = self.output(id).await.ok_or_else(|| unknown(id))?;
        let ended = self.open.lock().await.get(id).and_then(|terminal| *terminal.ended.borrow());
        Ok(json!({ "output": output.text, "truncated": output.is_truncated, "exitStatus": ended.map(status) }))
    }

    /// Waits for the end of a command.
    pub(crate) async fn wait(&self, id: &str) -> Result<Value, RpcError> {
        let mut ended = self.open.lock().await.get(id).map(|terminal| terminal.ended.clone()).ok_or_else(|| unknown(id))?;
        let ended = ended.wait_for(Option::is_some).await.map_err(RpcError::internal)?;
        Ok(ended.map_or(Value::Null, status))
    }

    /// Ends a command; its output can still be read.
    pub(crate) async fn kill(&self, id: &str) -> Result<Value, RpcError> {
        // A command that has ended needs no end.
        let _ = self.open.lock().await.get(id).ok_or_else(|| unknown(id))?.kill.send(true);
        Ok(json!({}))
    }

    /// Ends a command and forgets it.
    pub(crate) async fn release(&self, id: &str) -> Result<Value, RpcError> {
        self.open.lock().await.remove(id).map(drop).ok_or_else(|| unknown(id))?;
        Ok(json!({}))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Drops the process, which ends it.
        self.running.abort();
    }
}

async fn run(process: &mut AgentProcess, mut killed: watch::Receiver<bool>) -> Option<Ended> {
    tokio::select! {
        ended = process.wait() => return ended.ok(),
        _ = killed.wait_for(|killed| *killed) => {}
    }
    process.signal(Signal::TERM);
    process.wait().await.ok()
}

async fn read(mut stdout: impl AsyncRead + Unpin, output: Arc<Mutex<Buffer>>) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = stdout.read(&mut bytes).await {
        output.lock().await.add(bytes.get(..read).unwrap_or_default());
    }
}

fn status(ended: Ended) -> Value {
    let (code, signal) = ended.parts();
    json!({ "exitCode": code, "signal": signal.map(|signal| format!("{signal}")) })
}

fn unknown(id: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("there is no terminal `{id}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept_at_a_character() {
        let mut buffer = Buffer { limit: 5, ..Buffer::default() };
        buffer.add("aäöü".as_bytes());
        assert_eq!((std::str::from_utf8(&buffer.bytes).unwrap(), buffer.is_truncated), ("öü", true));
    }
}

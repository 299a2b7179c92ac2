//! The process of a server that speaks over stdio: started with little, watched, and ended with all that it started.

use std::{env, process::Stdio, time::Duration};

use agent_host_config::McpServerConfig;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{inbox::Inbox, value::ResolvedValue};
use crate::redact::Redactor;

/// Variables of the host's environment that every server receives. Others may contain secrets.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];
/// Time for a server to end after its input is closed, and again after the signal.
const GRACE: Duration = Duration::from_secs(2);
/// Longest line of stderr that is read as one, in bytes.
const MAX_STDERR_LINE: u64 = 8 << 10;
/// Bytes of a line that go to the log.
const MAX_LOGGED: usize = 1 << 10;
/// Lines of stderr of one connection in the log. Further lines are read and dropped.
const MAX_LOGGED_LINES: u32 = 10_000;

/// A running server, and the leader of a process group of its own.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
}

/// The standard streams of the process.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Process {
    pub(super) fn start(config: &McpServerConfig, env: &[(String, ResolvedValue)]) -> Result<(Self, Pipes), String> {
        let command = config.command.as_deref().ok_or("it has no `command`")?;
        let mut start = Command::new(command);
        start.args(&config.args).env_clear();
        start.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        start.envs(env.iter().map(|(name, value)| (name, value.expose())));
        if let Some(cwd) = &config.cwd {
            start.current_dir(cwd);
        }
        start.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = start.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("the program `{command}`, or the folder it runs in, is not there"),
            kind => format!("the program `{command}` cannot be started: {kind}"),
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Self { child, group };
        match pipes {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((process, Pipes { stdin, stdout, stderr })),
            _ => Err("it has no standard input or output".into()),
        }
    }

    /// Waits until it has ended by itself, and says how.
    pub(super) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => format!("its process ended: {status}"),
            Err(error) => format!("its process cannot be watched: {}", error.kind()),
        }
    }

    /// Ends the process and its descendants. The caller has closed its standard input: a correct server ends then.
    pub(super) async fn end(mut self) {
        for signal in [None, Some(Signal::TERM)] {
            if let Some(signal) = signal {
                self.signal(signal);
            }
            if timeout(GRACE, self.child.wait()).await.is_ok() {
                break;
            }
        }
        // Remaining descendants are still in the group.
        self.signal(Signal::KILL);
        let _ = timeout(GRACE, self.child.wait()).await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A group that is empty is what was wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Reads what a server writes to stderr, so that it never waits for a reader. Gives its last words.
pub(super) async fn drain(
    server: String,
    stderr: ChildStderr,
    redactor: Redactor,
    inbox: std::sync::Arc<Inbox>,
) -> Option<String> {
    let mut stderr = BufReader::new(stderr);
    let (mut line, mut lines, mut last) = (Vec::new(), 0, None);
    loop {
        line.clear();
        match (&mut stderr).take(MAX_STDERR_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = redactor.cut(text.trim(), MAX_LOGGED);
        if text.is_empty() {
            continue;
        }
        if lines < MAX_LOGGED_LINES {
            lines += 1;
            // The line may contain the parameters of a call.
            tracing::trace!(server, "stderr: {text}");
        }
        last = Some(text);
        inbox.slow_down().await;
    }
}

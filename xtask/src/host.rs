//! The host binary as a process of its own.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Interval between checks for the end of a process.
const POLL: Duration = Duration::from_millis(10);
/// The host says that it ends within ten seconds of SIGTERM.
const STOP: Duration = Duration::from_secs(12);
/// Lines of the host's log that are worth showing when it fails.
const LOG_TAIL: usize = 20;

/// A host that serves. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct HostProcess {
    child: Arc<Mutex<Child>>,
    id: u32,
    url: String,
}

/// The parameters of a host's start.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// The binary `agent-host`.
    pub(crate) binary: &'a Path,
    /// Configuration file.
    pub(crate) config: &'a Path,
    /// Variables of its environment, beside ours.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Log file.
    pub(crate) log: PathBuf,
    /// Time limit for the start.
    pub(crate) within: Duration,
    /// Whom Ctrl-C reaches.
    pub(crate) group: Group,
}

/// The process group of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// Ours: Ctrl-C ends both.
    Ours,
    /// A process group of its own: Ctrl-C reaches this process, which ends the host in order. See
    /// [`HostProcess::end_on_signals`].
    Own,
}

impl HostProcess {
    /// Starts `agent-host serve`; returns when it listens.
    pub(crate) fn start(start: &Start<'_>) -> anyhow::Result<Self> {
        let Start { binary, config, environment, log, within, group } = start;
        let log_file = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
        let mut command = Command::new(binary);
        command.args(["serve", "--json", "--config"]).arg(config).envs(environment.iter().copied());
        if *group == Group::Own {
            command.process_group(0);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        let mut child = command.spawn().with_context(|| format!("{} cannot be started", binary.display()))?;
        let id = child.id();
        let stdout = child.stdout.take();
        let mut this = Self { child: Arc::new(Mutex::new(child)), id, url: String::new() };
        match first_line(stdout, *within) {
            Some(line) => {
                this.url = url(&line).with_context(|| format!("the host said `{}` instead of where it listens", line.trim()))?
            }
            None => bail!("the host does not listen{}:\n{}", this.fate(*within)?, tail(log)),
        }
        Ok(this)
    }

    /// Address of the host: `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Process id of the host.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// SIGINT or SIGTERM to this process ends the host in order instead of this process.
    pub(crate) fn end_on_signals(&self) -> anyhow::Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
        let child = Arc::clone(&self.child);
        thread::spawn(move || {
            for _ in signals.forever() {
                terminate(&mut lock(&child));
            }
        });
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(self) -> anyhow::Result<ExitStatus> {
        terminate(&mut lock(&self.child));
        let status = self.ended(Instant::now() + STOP)?;
        status.with_context(|| format!("the host did not end within {} seconds of SIGTERM and was killed", STOP.as_secs()))
    }

    /// Waits until it ends by itself or by a signal.
    pub(crate) fn wait(self) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended(Instant::now() + Duration::from_secs(3600))? {
                return Ok(status);
            }
        }
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(self) {
        drop(self);
    }

    fn ended(&self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = lock(&self.child).try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    /// The state of a host that does not answer.
    fn fate(&self, within: Duration) -> io::Result<String> {
        Ok(match self.ended(Instant::now() + Duration::from_secs(1))? {
            Some(status) => format!(", it ended with {status}"),
            None => format!(" after {} seconds", within.as_secs()),
        })
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // The process may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that has been waited for is not signalled: its id may belong to another by then.
fn terminate(child: &mut Child) {
    if let Ok(None) = child.try_wait()
        && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// The first line of a pipe. The rest of it is read and thrown away, so that the writer never waits.
fn first_line(pipe: Option<impl io::Read + Send + 'static>, within: Duration) -> Option<String> {
    let mut pipe = BufReader::new(pipe?);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        if pipe.read_line(&mut line).is_ok_and(|read| read > 0) {
            let _ = sender.send(line);
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
    });
    receiver.recv_timeout(within).ok()
}

fn url(line: &str) -> Option<String> {
    serde_json::from_str::<Value>(line).ok()?.get("listening")?.as_str().map(str::to_owned)
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_TAIL)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_where_it_listens() {
        assert_eq!(url("{\"listening\":\"http://127.0.0.1:7070\"}\n").as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!(url("listening on http://127.0.0.1:7070\n"), None);
    }

    #[test]
    fn only_a_whole_line_in_time_counts() {
        assert_eq!(first_line(Some(&b"one\ntwo\n"[..]), Duration::from_secs(5)).as_deref(), Some("one\n"));
        assert_eq!(first_line(Some(&b""[..]), Duration::from_secs(5)), None);
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(first_line(Some(reader), Duration::from_millis(10)), None);
    }
}

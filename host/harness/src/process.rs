//! Processes of an agent: started by the launcher, read with bounds, and ended as a whole.

use std::{
    collections::BTreeMap,
    env, io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::Mutex,
    task::JoinHandle,
    time::timeout,
};

use crate::launcher::{KILL_AFTER, Launch, NOT_STARTED};

/// Bytes of standard error that are kept: its end, where programs say why they failed.
const KEPT_ERRORS: usize = 2 * 1024;
/// Time beyond [`KILL_AFTER`] after which the launcher itself is killed.
const LAUNCHER_GRACE: Duration = Duration::from_secs(3);
/// Time for the rest of standard error after the end of a process.
const LAST_ERRORS: Duration = Duration::from_millis(200);

/// A program, and the frame in which it runs.
#[derive(Debug, Clone)]
pub(crate) struct ProcessPlan {
    /// Program and arguments that start the launcher.
    pub(crate) launcher: Arc<[std::ffi::OsString]>,
    pub(crate) launch: Launch,
    pub(crate) dir: PathBuf,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
}

/// A process of an agent, with the launcher above it. When the value is dropped, every process is killed.
pub(crate) struct AgentProcess {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    errors: Arc<Mutex<Vec<u8>>>,
    reading_errors: JoinHandle<()>,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended(ExitStatus);

impl Ended {
    /// True if the launcher could not start the program.
    pub(crate) fn was_not_started(self) -> bool {
        self.0.code() == Some(i32::from(NOT_STARTED))
    }

    /// Exit code and signal.
    pub(crate) fn parts(self) -> (Option<i32>, Option<i32>) {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) if code > 128 => (None, Some(code - 128)),
            other => other,
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.parts() {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => write!(f, "an unknown status"),
        }
    }
}

impl AgentProcess {
    pub(crate) fn start(plan: &ProcessPlan) -> io::Result<Self> {
        let (program, args) = plan.launcher.split_first().ok_or_else(|| io::Error::other("there is no launcher"))?;
        let order = serde_json::to_string(&plan.launch)?;
        let mut command = Command::new(program);
        command.args(args).arg(order).current_dir(&plan.dir).env_clear().envs(&plan.env).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let errors = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("there is no standard error"))?;
        let reading_errors = tokio::spawn(keep_errors(stderr, Arc::clone(&errors)));
        Ok(Self { stdin: child.stdin.take(), stdout: child.stdout.take(), child, errors, reading_errors })
    }

    /// The end of what the process wrote to standard error.
    pub(crate) async fn errors(&mut self) -> String {
        // The reader ends with the process, unless something else has the stream open.
        let _ = timeout(LAST_ERRORS, &mut self.reading_errors).await;
        String::from_utf8_lossy(&self.errors.lock().await).trim().to_owned()
    }

    pub(crate) async fn wait(&mut self) -> io::Result<Ended> {
        self.child.wait().await.map(Ended)
    }

    /// Ends every process: politely, then by force. Returns after the last is gone.
    pub(crate) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.ended().await;
    }

    /// Waits for the end of a process that was asked to end. A launcher that does not end in time is killed.
    pub(crate) async fn ended(&mut self) {
        if timeout(KILL_AFTER + LAUNCHER_GRACE, self.child.wait()).await.is_err() {
            tracing::debug!("the launcher of an agent did not end in time and is killed");
            // It is gone at once, or the system does not let it go.
            let _ = self.child.kill().await;
        }
    }

    /// Closes standard input, gives the process `grace` to end by itself, and ends it otherwise.
    pub(crate) async fn finish(&mut self, grace: Duration) {
        self.stdin = None;
        if timeout(grace, self.child.wait()).await.is_err() {
            self.stop().await;
        }
    }

    /// Asks the launcher to end the program, without waiting for it.
    pub(crate) fn signal(&self, signal: Signal) {
        let launcher = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(launcher) = launcher {
            // A launcher that is gone has left nothing.
            let _ = kill_process(launcher, signal);
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // Closes standard error, by which the launcher knows that nobody waits for it.
        self.reading_errors.abort();
    }
}

async fn keep_errors(mut stderr: ChildStderr, kept: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let mut kept = kept.lock().await;
        kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let surplus = kept.len().saturating_sub(KEPT_ERRORS);
        kept.drain(..surplus);
    }
}

/// The bounds of what is read from a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadBounds {
    pub(crate) line_bytes: usize,
    pub(crate) output_bytes: u64,
    pub(crate) lines_per_second: u32,
}

/// A line of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The line, without its end.
    Text(Vec<u8>),
    /// A line that is longer than it may be. Its content is gone.
    TooLong,
    /// The process has said more than it may.
    TooMuch,
    /// The process will say no more.
    End,
}

/// Reads lines within bounds.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    bounds: ReadBounds,
    read: u64,
    second: Instant,
    in_second: u32,
}

impl<R: tokio::io::AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(stdout: R, bounds: ReadBounds) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, stdout), bounds, read: 0, second: Instant::now(), in_second: 0 }
    }

    /// The next line that is not empty. Must be awaited to its end: a part of a line is lost otherwise.
    pub(crate) async fn next(&mut self) -> io::Result<Line> {
        loop {
            match self.line().await? {
                Line::Text(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                line => {
                    self.pace().await;
                    return Ok(line);
                }
            }
        }
    }

    async fn line(&mut self) -> io::Result<Line> {
        let mut line = Vec::new();
        let mut is_too_long = false;
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(if line.is_empty() && !is_too_long { Line::End } else { end(line, is_too_long) });
            }
            let newline = memchr::memchr(b'\n', available);
            let taken = available.get(..newline.unwrap_or(available.len())).unwrap_or_default();
            if line.len() + taken.len() > self.bounds.line_bytes {
                is_too_long = true;
                line = Vec::new();
            } else if !is_too_long {
                line.extend_from_slice(taken);
            }
            let consumed = taken.len() + usize::from(newline.is_some());
            self.reader.consume(consumed);
            self.read += consumed as u64;
            if self.read > self.bounds.output_bytes {
                return Ok(Line::TooMuch);
            }
            if newline.is_some() {
                return Ok(end(line, is_too_long));
            }
        }
    }

    /// Waits for the next second where this one has had its lines.
    async fn pace(&mut self) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.in_second) = (Instant::now(), 0);
        }
        self.in_second += 1;
        if self.in_second > self.bounds.lines_per_second {
            tokio::time::sleep(Duration::from_secs(1).saturating_sub(self.second.elapsed())).await;
            (self.second, self.in_second) = (Instant::now(), 1);
        }
    }
}

fn end(line: Vec<u8>, is_too_long: bool) -> Line {
    if is_too_long { Line::TooLong } else { Line::Text(line) }
}

/// The file of a program: a path, or a name that is looked up in `PATH`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return std::path::absolute(program).ok().filter(|path| is_program(path));
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_absolute() && is_program(path))
}

/// The variables that every process has: `PATH`, `LANG` and `TERM`.
pub(crate) fn common_variables() -> BTreeMap<String, String> {
    let of_host = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    BTreeMap::from([
        ("PATH".to_owned(), of_host("PATH", "/usr/local/bin:/usr/bin:/bin")),
        ("LANG".to_owned(), of_host("LANG", "C.UTF-8")),
        ("TERM".to_owned(), "dumb".to_owned()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_bounded_and_the_reader_goes_on_after_one() {
        let text = format!("one\n\n{}\ntwo\r\nrest", "x".repeat(100));
        let bounds = ReadBounds { line_bytes: 50, output_bytes: 1000, lines_per_second: 100 };
        let mut lines = Lines::new(text.as_bytes(), bounds);
        let mut all = Vec::new();
        loop {
            match lines.next().await.unwrap() {
                Line::End => break,
                line => all.push(line),
            }
        }
        let line = |text: &str| Line::Text(text.as_bytes().to_vec());
        assert_eq!(all, [line("one"), Line::TooLong, line("two\r"), line("rest")]);
        let mut little = Lines::new(text.as_bytes(), ReadBounds { output_bytes: 20, ..bounds });
        assert_eq!(little.next().await.unwrap(), line("one"));
        assert_eq!(little.next().await.unwrap(), Line::TooMuch);
    }

    #[test]
    fn a_program_is_found_by_its_name() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program"), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(find_program(&file.path().to_string_lossy()), None, "no program");
    }
}

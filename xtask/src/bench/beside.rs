//! `agent-host-load` as a process beside the host, which reports line by line.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use anyhow::Context;

use super::session::{Report, Session};

/// The process. Dropping the value kills it.
pub(crate) struct Beside {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Beside {
    pub(crate) fn start(session: &Session, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = session.load_command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let lines = child.stdout.take().map(BufReader::new).context("agent-host-load has no output")?;
        Ok(Self { child, input, lines })
    }

    /// Waits for the next line that it says.
    pub(crate) fn line(&mut self) -> anyhow::Result<Report> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Report::of(&line)
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("agent-host-load was told that there is no more")?;
        writeln!(input, "{line}").context("agent-host-load does not listen")
    }

    /// Tells it that there is no more; gives the last line that it says.
    pub(crate) fn end(&mut self) -> anyhow::Result<Report> {
        drop(self.input.take());
        self.line()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // The process may have ended; in both cases it is gone afterwards.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

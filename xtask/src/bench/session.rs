//! One call of `cargo xtask bench`: what was built, what is wanted, what was measured.

use std::{fs, path::PathBuf};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;

use super::{FIGURES, machine::Machine, table};
use crate::{guests, process, workspace::Workspace};

/// Makes the ledger of a million runs smaller, for a quick try.
pub(crate) const MILLION_VARIABLE: &str = "AGENT_HOST_BENCH_MILLION";
const MILLION: u64 = 1_000_000;

/// A figure as it was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

/// One call of `cargo xtask bench`.
pub(crate) struct Session<'a> {
    workspace: &'a Workspace,
    prefix: String,
    /// For data; removed at the end.
    dir: TempDir,
    figures: Vec<Figure>,
    /// How many runs stand for a million.
    pub(crate) million: u64,
    /// The release binary `agent-host`.
    pub(crate) binary: PathBuf,
    /// The release binary `agent-host-load`.
    pub(crate) load_binary: PathBuf,
    pub(crate) echo: PathBuf,
    pub(crate) hostile: PathBuf,
    pub(crate) variant: PathBuf,
    pub(crate) calls: PathBuf,
    pub(crate) people: PathBuf,
}

impl<'a> Session<'a> {
    /// Builds what is measured, and what measures.
    pub(crate) fn open(workspace: &'a Workspace, prefix: String) -> anyhow::Result<Self> {
        guests::runners(workspace)?;
        let hostile = guests::test_guest(workspace, "hostile")?;
        let variant = guests::test_guest(workspace, "bench_variant")?;
        let calls = guests::test_guest(workspace, "bench_calls")?;
        let people = guests::test_guest(workspace, "bench_people")?;
        process::run(&mut workspace.cargo(&["build", "--release", "--package", "agent-host", "--package", "agent-host-load"]))?;
        let release = workspace.target().join("release");
        let million = match std::env::var(MILLION_VARIABLE) {
            Ok(runs) => runs.parse().with_context(|| format!("{MILLION_VARIABLE} is not a number of runs"))?,
            Err(_) => MILLION,
        };
        let bench = workspace.target().join("bench");
        // Gigabytes may be left of one that was interrupted.
        if bench.exists() {
            fs::remove_dir_all(&bench).with_context(|| format!("{} cannot be removed", bench.display()))?;
        }
        fs::create_dir_all(&bench)?;
        Ok(Self {
            workspace,
            prefix,
            dir: TempDir::new_in(bench)?,
            figures: Vec::new(),
            million,
            binary: release.join("agent-host"),
            load_binary: release.join("agent-host-load"),
            echo: guests::dir(workspace).join("echo_runner.wasm"),
            hostile,
            variant,
            calls,
            people,
        })
    }

    /// Whether any of these figures is asked for.
    pub(crate) fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|name| name.starts_with(&self.prefix))
    }

    /// A new directory for data, which lasts as long as this session.
    pub(crate) fn dir(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.dir.path().join(name);
        fs::create_dir(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        Ok(dir)
    }

    /// Runs `agent-host-load`; gives its report.
    pub(crate) fn load(&self, arguments: &[&str]) -> anyhow::Result<Report> {
        Report::of(&process::output(&mut self.load_command(arguments))?)
    }

    /// The same as a process that goes on meanwhile.
    pub(crate) fn spawn_load(&self, arguments: &[&str]) -> anyhow::Result<std::process::Child> {
        let mut command = self.load_command(arguments);
        Ok(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn()?)
    }

    /// The same, not yet begun.
    pub(crate) fn load_command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(&self.load_binary);
        process::announce(command.args(arguments));
        command
    }

    /// Takes a figure, and prints it if it was asked for.
    pub(crate) fn record(&mut self, name: &str, value: f64) -> anyhow::Result<()> {
        let (name, unit) =
            FIGURES.into_iter().find(|(known, _)| *known == name).with_context(|| format!("{name} is not a figure"))?;
        if !self.wants(&[name]) {
            return Ok(());
        }
        println!("{name} {} {unit}", table::number(value));
        if self.is_scaled() && name.starts_with("ledger.") {
            eprintln!("({} runs stand for a million: this is not kept)", self.million);
        } else {
            self.figures.push(Figure { name, value, unit });
            // At once: what was measured before something fails, or someone stops it, is worth keeping.
            self.keep()?;
        }
        Ok(())
    }

    fn is_scaled(&self) -> bool {
        self.million != MILLION
    }

    /// Writes the figures into the page, beside those that were measured earlier.
    fn keep(&self) -> anyhow::Result<()> {
        let path = self.workspace.root().join("docs/PERFORMANCE.md");
        let page = match fs::read_to_string(&path) {
            Ok(page) => page,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => table::EMPTY_PAGE.to_owned(),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        let machine = Machine::here(self.dir.path())?;
        let date = process::output(std::process::Command::new("date").args(["-u", "+%F"]))?;
        let page = table::update(&page, &machine, date.trim(), &self.figures)?;
        fs::write(&path, page).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// What `agent-host-load` says.
#[derive(Debug)]
pub(crate) struct Report(Value);

impl Report {
    /// What one line says.
    pub(crate) fn of(line: &str) -> anyhow::Result<Self> {
        serde_json::from_str(line).map(Self).with_context(|| format!("agent-host-load says `{}`", line.trim()))
    }

    /// One number of it.
    pub(crate) fn number(&self, name: &str) -> anyhow::Result<f64> {
        self.0.get(name).and_then(Value::as_f64).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }

    /// A part of it.
    pub(crate) fn part(&self, name: &str) -> anyhow::Result<Self> {
        let part = self.0.get(name).cloned();
        part.map(Self).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }

    /// One text of it.
    pub(crate) fn text(&self, name: &str) -> anyhow::Result<String> {
        let text = self.0.get(name).and_then(Value::as_str);
        text.map(str::to_owned).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }
}

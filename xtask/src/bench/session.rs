//! One call of `cargo xtask bench`: the binaries, the wanted figures, the values of the present stretch.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Group,
    figures::FIGURES,
    revision::{HOST, LOAD},
    sample::Stretch,
    usage::Usage,
};
use crate::{guests, process, workspace::Workspace};

/// Makes the ledger of a million runs smaller, for a quick try.
pub(crate) const MILLION_VARIABLE: &str = "AGENT_HOST_BENCH_MILLION";
const MILLION: u64 = 1_000_000;

/// The release binaries that are measured.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    /// `agent-host`.
    pub(crate) host: PathBuf,
    /// `agent-host-load`, for the commands that hold a host in their own process.
    pub(crate) load: PathBuf,
}

/// One call of `cargo xtask bench`.
pub(crate) struct Session {
    prefix: String,
    /// For data; removed at the end.
    dir: TempDir,
    /// Number of stretches. Each has a directory of its own.
    stretches: usize,
    /// Figures of the stretch under way.
    values: Vec<(&'static str, f64)>,
    /// Number of runs that stand for a million.
    pub(crate) million: u64,
    /// The binaries under measurement.
    binaries: Binaries,
    /// The release binary `agent-host-load` of this revision, which puts load on hosts of all revisions.
    pub(crate) load_binary: PathBuf,
    pub(crate) echo: PathBuf,
    /// The official agent.
    pub(crate) local_agent: PathBuf,
    pub(crate) hostile: PathBuf,
    pub(crate) family: PathBuf,
    pub(crate) variant: PathBuf,
    pub(crate) calls: PathBuf,
    pub(crate) people: PathBuf,
}

impl Session {
    /// Builds what is measured, and what measures.
    pub(crate) fn open(workspace: &Workspace, prefix: String) -> anyhow::Result<Self> {
        guests::runners(workspace)?;
        let hostile = guests::test_guest(workspace, "hostile")?;
        let family = guests::test_guest(workspace, "family")?;
        let variant = guests::test_guest(workspace, "bench_variant")?;
        let calls = guests::test_guest(workspace, "bench_calls")?;
        let people = guests::test_guest(workspace, "bench_people")?;
        process::run(&mut workspace.cargo(&["build", "--release", "--package", "agent-host", "--package", "agent-host-load"]))?;
        let release = workspace.target().join("release");
        let million = match std::env::var(MILLION_VARIABLE) {
            Ok(runs) => runs.parse().with_context(|| format!("{MILLION_VARIABLE} is not a number of runs"))?,
            Err(_) => MILLION,
        };
        let data = workspace.target().join("bench/data");
        // Gigabytes may be left of one that was interrupted.
        if data.exists() {
            fs::remove_dir_all(&data).with_context(|| format!("{} cannot be removed", data.display()))?;
        }
        fs::create_dir_all(&data)?;
        let load_binary = release.join(LOAD);
        Ok(Self {
            prefix,
            dir: TempDir::new_in(data)?,
            stretches: 0,
            values: Vec::new(),
            million,
            binaries: Binaries { host: release.join(HOST), load: load_binary.clone() },
            load_binary,
            echo: guests::dir(workspace).join("echo_runner.wasm"),
            local_agent: guests::dir(workspace).join("local_agent_runner.wasm"),
            hostile,
            family,
            variant,
            calls,
            people,
        })
    }

    /// Measures some figures once. Data of the stretch does not outlive it.
    pub(crate) fn stretch(&mut self, group: Group) -> anyhow::Result<Stretch> {
        self.stretches += 1;
        self.values.clear();
        let before = Usage::now()?;
        let measured = group(self);
        let others = before.others()?;
        let dir = self.stretch_dir();
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("{} cannot be removed", dir.display()))?;
        }
        measured?;
        Ok(Stretch { values: std::mem::take(&mut self.values), others })
    }

    /// The binaries under measurement.
    pub(crate) fn binaries(&self) -> Binaries {
        self.binaries.clone()
    }

    /// Measures other binaries from now on.
    pub(crate) fn use_binaries(&mut self, binaries: &Binaries) {
        self.binaries = binaries.clone();
    }

    /// The binary `agent-host` that is measured.
    pub(crate) fn host_binary(&self) -> &Path {
        &self.binaries.host
    }

    /// True if any of these figures is wanted.
    pub(crate) fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|name| name.starts_with(&self.prefix))
    }

    /// The disk that is measured.
    pub(crate) fn data(&self) -> &Path {
        self.dir.path()
    }

    /// A new directory for data, which lasts as long as the stretch.
    pub(crate) fn dir(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.stretch_dir().join(name);
        fs::create_dir_all(self.stretch_dir())?;
        fs::create_dir(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        Ok(dir)
    }

    fn stretch_dir(&self) -> PathBuf {
        self.dir.path().join(format!("stretch-{}", self.stretches))
    }

    /// Runs `agent-host-load`; gives its report.
    pub(crate) fn load(&self, arguments: &[&str]) -> anyhow::Result<Report> {
        Report::of(&process::output(&mut self.load_command(arguments))?)
    }

    /// Starts the load generator as a process beside this one.
    pub(crate) fn spawn_load(&self, arguments: &[&str]) -> anyhow::Result<std::process::Child> {
        let mut command = self.load_command(arguments);
        Ok(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn()?)
    }

    /// The same, not yet begun. With a configuration it holds a host in its own process, which is the host that is measured.
    pub(crate) fn load_command(&self, arguments: &[&str]) -> std::process::Command {
        let holds_a_host = arguments.contains(&"--config");
        let mut command = std::process::Command::new(if holds_a_host { &self.binaries.load } else { &self.load_binary });
        process::announce(command.args(arguments));
        command
    }

    /// Takes the value of a figure, if it was asked for.
    pub(crate) fn record(&mut self, name: &str, value: f64) -> anyhow::Result<()> {
        let (name, _) = FIGURES.iter().find(|(known, _)| *known == name).with_context(|| format!("{name} is not a figure"))?;
        if self.wants(&[name]) {
            self.values.push((name, value));
        }
        Ok(())
    }

    /// The same, unless this stretch has it.
    pub(crate) fn record_once(&mut self, name: &str, value: f64) -> anyhow::Result<()> {
        if self.values.iter().any(|(known, _)| *known == name) { Ok(()) } else { self.record(name, value) }
    }

    /// True if fewer runs stand for a million.
    pub(crate) fn is_scaled(&self) -> bool {
        self.million != MILLION
    }
}

/// A report of `agent-host-load`.
#[derive(Debug)]
pub(crate) struct Report(Value);

impl Report {
    /// Parses one line.
    pub(crate) fn of(line: &str) -> anyhow::Result<Self> {
        serde_json::from_str(line).map(Self).with_context(|| format!("agent-host-load says `{}`", line.trim()))
    }

    /// A number of the report.
    pub(crate) fn number(&self, name: &str) -> anyhow::Result<f64> {
        self.0.get(name).and_then(Value::as_f64).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }

    /// A number of the report, or `None` if the load generator could not measure it.
    pub(crate) fn number_or_null(&self, name: &str) -> anyhow::Result<Option<f64>> {
        match self.0.get(name) {
            Some(Value::Null) => Ok(None),
            _ => self.number(name).map(Some),
        }
    }

    /// A part of it.
    pub(crate) fn part(&self, name: &str) -> anyhow::Result<Self> {
        let part = self.0.get(name).cloned();
        part.map(Self).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }

    /// A text of the report.
    pub(crate) fn text(&self, name: &str) -> anyhow::Result<String> {
        let text = self.0.get(name).and_then(Value::as_str);
        text.map(str::to_owned).with_context(|| format!("agent-host-load says nothing of {name}: {}", self.0))
    }
}

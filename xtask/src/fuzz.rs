//! `cargo xtask fuzz`: the fuzz targets of `tests/fuzz`, for as long as one likes.

use std::{
    fs,
    process::{Command, ExitCode},
};

use anyhow::Context;
use clap::Args;

use crate::{
    process,
    test::NATIVE,
    tools::{self, Tool},
    workspace::Workspace,
};

const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2", features: None };
/// The crate for cargo-fuzz.
const GUIDED: &str = "tests/fuzz/libfuzzer";
/// The folders of the corpora, whose names are those of the targets.
const CORPUS: &str = "tests/fuzz/corpus";
/// Memory of a guided target, in MiB. More is a finding.
const MEMORY_MIB: u32 = 2_048;
/// Time for one input of a guided target, in seconds. More is a finding.
const INPUT_SECONDS: u32 = 30;

/// Run fuzz targets: mutations of their corpus by seeds, or guided by coverage
///
/// The input of a crash is written to a file whose name is printed: it belongs into the corpus of its target (tests/fuzz/corpus), with the
/// fix. `cargo xtask test` runs every target for two seconds.
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// Names of targets; without any, all
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Time of each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Another seed
    #[arg(long, value_name = "N", conflicts_with = "guided")]
    seed: Option<u64>,
    /// Guided by coverage, by libFuzzer. Installs cargo-fuzz below the target folder where it is missing; needs a C++ compiler
    #[arg(long)]
    guided: bool,
    /// List the targets, and run none
    #[arg(long)]
    list: bool,
}

impl Fuzz {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let all = targets(workspace)?;
        if self.list {
            all.iter().for_each(|target| println!("{target}"));
            return Ok(ExitCode::SUCCESS);
        }
        for target in &self.targets {
            anyhow::ensure!(all.contains(target), "{target} is no fuzz target; there are {}", all.join(", "));
        }
        let targets = if self.targets.is_empty() { all } else { self.targets.clone() };
        if self.guided {
            return self.guided(workspace, &targets);
        }
        let mut cargo = workspace.cargo(&["test", "--no-fail-fast"]);
        cargo.args(NATIVE).args(["--test", "seeds", "--", "--exact", "--nocapture"]).args(&targets);
        cargo.env("FUZZ_SECONDS", self.seconds.to_string());
        if let Some(seed) = self.seed {
            cargo.env("FUZZ_SEED", seed.to_string());
        }
        process::run(&mut cargo)?;
        Ok(ExitCode::SUCCESS)
    }

    fn guided(&self, workspace: &Workspace, targets: &[String]) -> anyhow::Result<ExitCode> {
        let cargo_fuzz = tools::install(workspace, &[CARGO_FUZZ])?.join(CARGO_FUZZ.name);
        for target in targets {
            // What libFuzzer finds stays out of the tree; the corpus in it is read.
            let found = workspace.target().join("fuzz/corpus").join(target);
            let artifacts = workspace.target().join("fuzz/artifacts").join(target);
            for dir in [&found, &artifacts] {
                fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
            }
            let mut command = Command::new(&cargo_fuzz);
            // Sanitizers need a nightly toolchain, and the host has no unsafe code of its own.
            command.current_dir(workspace.root()).args([
                "run",
                "--sanitizer",
                "none",
                "--fuzz-dir",
                GUIDED,
                "--features",
                "host",
            ]);
            command.arg("--target-dir").arg(workspace.target().join("fuzz/build"));
            command.arg(target).arg(found).arg(workspace.root().join(CORPUS).join(target)).arg("--");
            command.arg(format!("-max_total_time={}", self.seconds)).arg(format!("-rss_limit_mb={MEMORY_MIB}"));
            command.arg(format!("-timeout={INPUT_SECONDS}")).arg(format!("-artifact_prefix={}/", artifacts.display()));
            process::run(&mut command)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The names of all targets, sorted.
fn targets(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let dir = workspace.root().join(CORPUS);
    let entries = fs::read_dir(&dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>, _>>()?;
    names.sort();
    Ok(names)
}

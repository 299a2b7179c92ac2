//! `agent-host replay`.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use agent_host_config::Config;
use agent_host_protocol::{Limits, RunId, hex};
use agent_host_runs::{Recording, ReplayReport};
use agent_host_sandbox::{Component, Options, Sandbox};
use anyhow::Context;
use clap::Args;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{journal_text, runs::Server};
use crate::{
    failure::{self, Failure},
    output::Output,
    progress::Progress,
    settings::{code_dir, components_dir},
    signals::Signals,
    source::Source,
};

/// Execute runs again, offline, and compare
#[derive(Debug, Args)]
#[command(
    long_about = "Execute runs again, offline, and compare.\n\n\
        The calls of a run are answered from its journal: nothing has an effect, and nothing leaves this machine. A run \
        is read as `agent-host runs` reads it; a file is what `agent-host runs record` saved. Its component is the one \
        that it was of, which the host keeps, or another build of its runner, named with --component: then the first \
        call is shown that the new build makes in another way.\n\n\
        Exits with 1 where a run differs or cannot be executed again. Of several there is one line each, and a summary.",
    after_long_help = "Examples:\n  \
        agent-host replay RUN --trace\n  \
        agent-host runs record RUN --out tests/refund.json\n  \
        agent-host replay tests/*.json --component target/wasm32-wasip2/release/support.wasm"
)]
pub(crate) struct Replay {
    #[command(flatten)]
    server: Server,
    /// The runs: ids, or files that `agent-host runs record` saved
    #[arg(value_name = "RUN|FILE", required = true)]
    targets: Vec<String>,
    /// Execute this build of the runner
    #[arg(long, value_name = "NEW.wasm")]
    component: Option<PathBuf>,
    /// Execute only the first calls
    #[arg(long, value_name = "N")]
    until: Option<u64>,
    /// Show every call, up to the one that differs; with --json each as a line before the report
    #[arg(long)]
    trace: bool,
}

/// A run and the outcome of its replay.
struct ReplayOutcome {
    recording: Recording,
    report: ReplayReport,
}

/// The counts of outcomes.
#[derive(Default)]
struct Summary {
    same: usize,
    different: usize,
    failed: usize,
}

impl Replay {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        // A process that a signal ends leaves its scratch folder.
        let mut signals = Signals::listen().context("signals cannot be listened for")?;
        tokio::select! {
            code = self.work(config, output) => code,
            () = signals.next() => Err(Failure::new("interrupted", "interrupted before the end").into()),
        }
    }

    async fn work(&self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let mut bench = Bench::open(config, self, output).await?;
        if let [target] = self.targets.as_slice() {
            let replayed = bench.replay(target).await?;
            self.show_trace(&replayed, output)?;
            let report = &replayed.report;
            output.result(report, || journal_text::report(report))?;
            return Ok(code(report.is_same()));
        }
        let mut summary = Summary::default();
        for target in &self.targets {
            match bench.replay(target).await {
                Ok(replayed) => {
                    self.show_trace(&replayed, output)?;
                    let report = &replayed.report;
                    if report.is_same() {
                        summary.same += 1;
                    } else {
                        summary.different += 1;
                    }
                    let value = json!({ "target": target, "report": report });
                    output.result(&value, || format!("{target}: {}\n", journal_text::verdict(report)))?;
                }
                Err(error) => {
                    summary.failed += 1;
                    let message = failure::message(&error);
                    let value = json!({ "target": target, "error": { "code": failure::code(&error), "message": message } });
                    output.result(&value, || format!("{target}: error: {message}\n"))?;
                }
            }
        }
        let Summary { same, different, failed } = summary;
        let value = json!({ "same": same, "different": different, "failed": failed });
        output.result(&value, || format!("{same} the same, {different} different, {failed} not executed\n"))?;
        Ok(code(different == 0 && failed == 0))
    }

    fn show_trace(&self, replayed: &ReplayOutcome, output: Output) -> anyhow::Result<()> {
        if !self.trace {
            return Ok(());
        }
        let calls = replayed.recording.calls()?;
        if output.is_json() {
            return calls.iter().try_for_each(|call| Ok(output.json_line(call)?));
        }
        Ok(output.text(journal_text::trace(&calls, &replayed.report))?)
    }
}

const fn code(is_same: bool) -> ExitCode {
    if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The sandbox of replays, and the components that were loaded into it.
struct Bench<'a> {
    config: &'a Config,
    args: &'a Replay,
    output: Output,
    sandbox: Sandbox,
    /// The component that the command line names.
    named: Option<Arc<Component>>,
    /// Components by digest, so that many runs of one load it once.
    loaded: HashMap<String, Arc<Component>>,
    /// Opened for the first run that is named by its id.
    source: Option<Source>,
}

impl<'a> Bench<'a> {
    async fn open(config: &'a Config, args: &'a Replay, output: Output) -> anyhow::Result<Self> {
        // A build that is only tried leaves nothing in the data directory, and reading makes none.
        let kept_component = |dir: PathBuf| Some(dir).filter(|dir| args.component.is_none() && dir.is_dir());
        // One instance is enough, and starts faster than a pool for thousands.
        let limits = Limits { max_live_runs: 1, ..config.limits.clone() };
        let options = Options {
            limits,
            code_cache: kept_component(code_dir(config)),
            compiler: None,
            components: kept_component(components_dir(config)),
        };
        let sandbox = options.build()?;
        let named = match &args.component {
            Some(path) => {
                let _progress = Progress::spinner(output, "loading the component");
                Some(sandbox.load(path, None).await.map_err(refused)?)
            }
            None => None,
        };
        Ok(Self { config, args, output, sandbox, named, loaded: HashMap::new(), source: None })
    }

    async fn replay(&mut self, target: &str) -> anyhow::Result<ReplayOutcome> {
        let _progress = Progress::spinner(self.output, format!("replaying {target}"));
        let recording = self.recording(target).await?;
        let component = self.component(&recording).await?;
        let scratch = tempfile::tempdir().context("no scratch folder can be made")?;
        let replay = agent_host_runs::Replay { component, until: self.args.until };
        let report = agent_host_runs::replay(&self.sandbox, &recording, &replay, &self.config.limits, scratch.path()).await?;
        Ok(ReplayOutcome { recording, report })
    }

    /// The run with this id, or the one in this file.
    async fn recording(&mut self, target: &str) -> anyhow::Result<Recording> {
        if let Ok(id) = target.parse::<RunId>() {
            let source = match &mut self.source {
                Some(source) => source,
                None => self.source.insert(Source::open(self.config, self.args.server.url.as_deref()).await?),
            };
            return source.recording(id).await;
        }
        let text = std::fs::read_to_string(target)
            .with_context(|| format!("`{target}` is neither the id of a run nor a file that can be read"))?;
        Recording::parse(&text).with_context(|| target.to_owned())
    }

    async fn component(&mut self, recording: &Recording) -> anyhow::Result<Arc<Component>> {
        if let Some(named) = &self.named {
            return Ok(Arc::clone(named));
        }
        let unknown = || Failure::new("invalid_recording", "the recording does not name the component of the run");
        let digest = recording.component().ok_or_else(unknown)?;
        if let Some(component) = self.loaded.get(&digest) {
            return Ok(Arc::clone(component));
        }
        let component = self.find(&digest, recording).await?;
        self.loaded.insert(digest, Arc::clone(&component));
        Ok(component)
    }

    /// The component with this digest: as the host has kept it, or from the plugins directory.
    async fn find(&self, digest: &str, recording: &Recording) -> Result<Arc<Component>, Failure> {
        let kept_component = match self.sandbox.component(digest).await {
            Ok(component) => return Ok(component),
            Err(kept_component) => kept_component,
        };
        let (dir, wanted, limit) = (self.config.plugins_dir.clone(), digest.to_owned(), self.config.limits.component_bytes);
        let file = tokio::task::spawn_blocking(move || file_with(&dir, &wanted, limit)).await;
        if let Ok(Some(path)) = file {
            return self.sandbox.load(&path, Some(digest)).await.map_err(refused);
        }
        let message = format!(
            "{kept_component}, and no file of {} is it: name a build of {} with --component FILE.wasm",
            self.config.plugins_dir.display(),
            recording.run.runner_id
        );
        Err(Failure::new("no_component", message))
    }
}

fn refused(why: String) -> Failure {
    Failure::new("component_refused", why)
}

/// The component file in `dir` with this digest. Unreadable files are skipped.
fn file_with(dir: &Path, digest: &str, limit: u64) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut components = files.filter(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    components.find(|path| digest_of(path, limit).is_ok_and(|found| found == digest))
}

fn digest_of(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(format!("sha256:{}", hex::encode(&Sha256::digest(&bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_found_by_its_digest_whatever_its_name_is() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [("a.wasm", "one"), ("b.wasm", "two"), ("c.txt", "three")] {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        std::fs::create_dir(dir.path().join("folder.wasm")).unwrap();
        let digest = |content: &str| format!("sha256:{}", hex::encode(&Sha256::digest(content)));
        assert_eq!(file_with(dir.path(), &digest("two"), 100), Some(dir.path().join("b.wasm")));
        assert_eq!(file_with(dir.path(), &digest("three"), 100), None);
        assert_eq!(file_with(dir.path(), &digest("two"), 2), None);
        assert_eq!(file_with(&dir.path().join("nothing"), &digest("two"), 100), None);
    }
}

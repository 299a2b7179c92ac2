//! A build by cargo with a bar: how much is done, the crate at work, and the time that is left.
//!
//! Cargo tells which crates are done (`--message-format`), and `cargo tree` which there will be. A crate counts as much as its
//! compilation takes on two cores, by [`HEAVY`]; what was built before counts as done and is not used for the time that is left.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, IsTerminal},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::{process, workspace::Workspace};

/// Seconds of CPU that a crate takes, where it is far more than [`USUAL`] (`cargo build --timings`).
const HEAVY: [(&str, f64); 32] = [
    ("agent-host", 19.0),
    ("agent-host-config", 14.0),
    ("agent-host-facts", 9.0),
    ("agent-host-harness", 13.0),
    ("agent-host-ledger", 48.0),
    ("agent-host-protocol", 16.0),
    ("agent-host-providers", 14.0),
    ("agent-host-runs", 57.0),
    ("agent-host-sandbox", 30.0),
    ("agent-host-server", 51.0),
    ("aho-corasick", 7.0),
    ("aws-lc-sys", 42.0),
    ("cranelift-assembler-x64", 11.0),
    ("cranelift-codegen", 140.0),
    ("jiff", 11.0),
    ("jsonschema", 11.0),
    ("object", 8.0),
    ("pulley-interpreter", 7.0),
    ("redb", 21.0),
    ("regex-automata", 17.0),
    ("regex-syntax", 8.0),
    ("rmcp", 16.0),
    ("rustix", 7.0),
    ("syn", 8.0),
    ("tantivy", 20.0),
    ("tantivy-columnar", 7.0),
    ("tokio", 13.0),
    ("wasmparser", 37.0),
    ("wasmtime", 41.0),
    ("wasmtime-environ", 27.0),
    ("wasmtime-internal-cranelift", 24.0),
    ("wasmtime-wasi", 10.0),
];
/// Seconds of CPU of any other crate.
const USUAL: f64 = 0.8;
/// Steps of the bar.
const STEPS: u64 = 1_000;
/// No time is shown before this part of the work is done.
const EARLY: f64 = 0.03;
/// Time between two pictures of the bar.
const TICK: Duration = Duration::from_millis(500);

/// A message of cargo about a crate that is there.
#[derive(Debug, Deserialize)]
struct Artifact {
    reason: String,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    fresh: bool,
    #[serde(default)]
    package_id: String,
}

#[derive(Debug, Default, Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// The part of a build that is done.
struct Work {
    packages: BTreeSet<String>,
    total: f64,
    done: BTreeSet<String>,
    done_weight: f64,
    /// Weight of what was compiled now.
    compiled: f64,
}

fn weight(package: &str) -> f64 {
    HEAVY.iter().find(|(name, _)| *name == package).map_or(USUAL, |(_, seconds)| *seconds)
}

/// The name in an id such as `registry+https://…#serde@1.0.1` or `path+file:///…/host/cli#agent-host@0.1.0`, or `…/xtask#0.1.0`.
fn name_of(package_id: &str) -> &str {
    let (place, end) = package_id.rsplit_once('#').unwrap_or(("", package_id));
    match end.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

impl Work {
    fn new(packages: BTreeSet<String>) -> Self {
        let total = packages.iter().map(|package| weight(package)).sum::<f64>().max(USUAL);
        Self { packages, total, done: BTreeSet::new(), done_weight: 0.0, compiled: 0.0 }
    }

    /// Takes a line of cargo's standard output.
    fn message(&mut self, line: &str) {
        let Ok(artifact) = serde_json::from_str::<Artifact>(line) else { return };
        let name = name_of(&artifact.package_id);
        let is_whole = !artifact.target.kind.iter().any(|kind| kind == "custom-build");
        if artifact.reason != "compiler-artifact"
            || !is_whole
            || !self.packages.contains(name)
            || !self.done.insert(name.to_owned())
        {
            return;
        }
        self.done_weight += weight(name);
        if !artifact.fresh {
            self.compiled += weight(name);
        }
    }

    /// The part that is done, from 0 to 1.
    fn fraction(&self) -> f64 {
        (self.done_weight / self.total).min(1.0)
    }

    /// The time that is left, if it goes on as it went in the time `since` the first crate was compiled.
    fn left(&self, since: Duration) -> Option<Duration> {
        let rest = (self.total - self.done_weight).max(0.0);
        (self.compiled / self.total > EARLY).then(|| since.mul_f64(rest / self.compiled))
    }
}

/// A time for people.
fn about(left: Duration) -> String {
    match left.as_secs() {
        0..90 => "about a minute left".to_owned(),
        seconds => format!("about {} minutes left", seconds.div_ceil(60)),
    }
}

/// Builds with these arguments of `cargo build`; `roots` are the packages whose binaries are built. On a terminal it shows a bar, else
/// cargo's own lines.
pub(crate) fn build(workspace: &Workspace, arguments: &[&str], roots: &[&str]) -> anyhow::Result<()> {
    let mut command = workspace.cargo(&["build"]);
    command.args(arguments);
    if !std::io::stderr().is_terminal() {
        return process::run(&mut command);
    }
    process::announce(&command);
    let mut work = Work::new(packages(workspace, roots)?);
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("CARGO_TERM_COLOR", "always").env("CARGO_TERM_PROGRESS_WHEN", "never");
    let mut cargo = command.spawn().context("cargo cannot be started")?;
    let (output, errors) = (cargo.stdout.take().context("no output")?, cargo.stderr.take().context("no errors")?);

    let bar = ProgressBar::new(STEPS);
    // A constant that parses, as a test shows.
    bar.set_style(style()?);
    bar.enable_steady_tick(TICK);
    let lines = bar.clone();
    let telling = std::thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            match at_work(&line) {
                Some(what) => lines.set_message(what),
                None => lines.println(line),
            }
        }
    });
    let mut began = None;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let before = work.compiled;
        work.message(&line);
        bar.set_position((work.fraction() * STEPS as f64) as u64);
        if before == 0.0 && work.compiled > 0.0 {
            began = Some(Instant::now());
        }
        if let Some(left) = began.and_then(|began: Instant| work.left(began.elapsed())) {
            bar.set_prefix(about(left));
        }
    }
    let status = cargo.wait()?;
    // It ends with cargo.
    let _ = telling.join();
    bar.finish_and_clear();
    anyhow::ensure!(status.success(), "cargo build failed");
    Ok(())
}

fn style() -> anyhow::Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("[{bar:30}] {percent:>3} % {prefix} {wide_msg}")?.progress_chars("=> "))
}

/// The work that a line of cargo's standard error tells of; nothing for lines that people must see.
fn at_work(line: &str) -> Option<String> {
    let plain = console::strip_ansi_codes(line);
    let words: Vec<_> = plain.split_whitespace().collect();
    match *words {
        ["Compiling" | "Checking", name, ..] => Some(name.to_owned()),
        ["Downloading" | "Downloaded" | "Updating" | "Blocking" | "Locking", ..] => Some(words.join(" ")),
        ["Finished", ..] => Some(String::new()),
        _ => None,
    }
}

/// The packages that the binaries of `roots` are built of.
fn packages(workspace: &Workspace, roots: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let mut tree = workspace.cargo(&["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    tree.args(roots.iter().flat_map(|root| ["--package", root]));
    let listed = process::output(&mut tree)?;
    Ok(listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(id: &str, kind: &str, fresh: bool) -> String {
        serde_json::json!({ "reason": "compiler-artifact", "package_id": id, "target": { "kind": [kind], "name": "x" }, "fresh": fresh })
            .to_string()
    }

    #[test]
    fn a_crate_counts_once_and_by_its_weight() {
        let names = ["serde", "agent-host-server", "wasmtime", "xtask"];
        let mut work = Work::new(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(work.fraction() == 0.0 && work.left(Duration::from_secs(60)).is_none());
        work.message("not of cargo");
        work.message(&artifact("registry+https://index#serde@1.0.228", "custom-build", false));
        assert_eq!(work.fraction(), 0.0);
        work.message(&artifact("registry+https://index#serde@1.0.228", "lib", true));
        work.message(&artifact("registry+https://index#serde@1.0.228", "lib", true));
        assert!((work.fraction() - weight("serde") / work.total).abs() < 1e-9);
        assert_eq!(work.left(Duration::from_secs(60)), None, "what was there says nothing of what is left");
        work.message(&artifact("path+file:///source/host/server#agent-host-server@0.1.0", "lib", false));
        let left = work.left(Duration::from_secs(60)).unwrap().as_secs_f64();
        let rest = weight("wasmtime") + weight("xtask");
        assert!((left - 60.0 * rest / weight("agent-host-server")).abs() < 1e-6, "{left}");
        work.message(&artifact("registry+https://index#wasmtime@48.0.0", "lib", false));
        work.message(&artifact("path+file:///source/xtask#0.1.0", "bin", false));
        work.message(&artifact("registry+https://index#another@1.0.0", "lib", false));
        assert_eq!((work.fraction(), work.left(Duration::from_secs(60))), (1.0, Some(Duration::ZERO)));
    }

    #[test]
    fn lines_for_people_are_kept() {
        assert_eq!(at_work("\u{1b}[1m\u{1b}[32m   Compiling\u{1b}[0m serde v1.0.228").as_deref(), Some("serde"));
        assert_eq!(at_work("  Downloaded 12 crates (3 MB) in 1s").as_deref(), Some("Downloaded 12 crates (3 MB) in 1s"));
        assert_eq!(at_work("error: linker `cc` not found"), None);
        assert_eq!(at_work("warning: unused"), None);
        assert!(style().is_ok());
        assert_eq!(about(Duration::from_secs(5)), "about a minute left");
        assert_eq!(about(Duration::from_secs(610)), "about 11 minutes left");
    }
}

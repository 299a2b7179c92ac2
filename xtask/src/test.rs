//! `cargo xtask test`.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::{deny, docs, guests, process, toolchain, workspace::Workspace};

/// The packages that run on this machine: all but the guests for tests, some 40 examples that only run as WebAssembly.
pub(crate) const NATIVE: [&str; 3] = ["--workspace", "--exclude", guests::TEST_GUESTS];

/// Without output for so long, the tests are stopped: one of them waits for what never comes. The slowest test takes two minutes.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// Check formatting, run clippy, check the dependencies, build the site of the documents and run every test, the end-to-end ones with real components included
#[derive(Debug, Args)]
#[command(after_help = "The last line is `N passed, N failed`. With FILTER, only tests are run.")]
pub(crate) struct Test {
    /// Parts of names of tests
    filter: Vec<String>,
    /// Format instead of checking the format
    #[arg(long)]
    fix: bool,
}

impl Test {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        toolchain::need_wasm_target(workspace)?;
        toolchain::need_lint_tools(workspace)?;
        toolchain::need_node()?;
        toolchain::need_python()?;
        toolchain::need_chromium()?;
        toolchain::need_bubblewrap()?;
        toolchain::need_postgres()?;
        if self.fix {
            process::run(&mut workspace.cargo(&["fmt", "--all"]))?;
        }
        let mut failures = if self.filter.is_empty() { checks(workspace)? } else { Vec::new() };
        guests::runners(workspace)?;
        guests::test_guests(workspace)?;
        // The binary that the tests start, and the tests: built as one, so that nothing is built twice.
        process::run(workspace.cargo(&["build", "--tests", "--bin", "agent-host"]).args(NATIVE))?;
        let summary = self.test(workspace, &mut failures)?;
        for failure in &failures {
            eprintln!("error: {failure}");
        }
        println!("{summary}");
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the tests, their output passed on as it comes.
    fn test(&self, workspace: &Workspace, failures: &mut Vec<String>) -> anyhow::Result<Summary> {
        let mut cargo = workspace.cargo(&["test", "--no-fail-fast"]);
        cargo
            .args(NATIVE)
            .arg("--")
            .args(&self.filter)
            .env("AGENT_HOST_BIN", workspace.target().join("debug").join("agent-host"))
            .env("AGENT_HOST_WASM_DIR", guests::dir(workspace));
        let TestEnd { summary, succeeded, hung } = watch(&mut cargo, io::stdout().lock(), SILENCE)?;
        if hung {
            failures.push(stopped());
        } else if summary.failed > 0 {
            failures.push("some tests failed: see above".to_owned());
        } else if !succeeded {
            failures.push("the tests could not all be built or run to their end: see above".to_owned());
        }
        Ok(summary)
    }
}

/// The problems that need no test: of the code, of its dependencies, and of the site of the documents. Every check runs.
fn checks(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut failures = lint(workspace)?;
    if let Err(error) = deny::check(workspace, false) {
        failures.push(format!("the rules for dependencies: {error:#}"));
    }
    if let Err(error) = docs::build(workspace) {
        failures.push(format!("the site of the documents: {error:#}"));
    }
    Ok(failures)
}

/// The problems of formatting and lints. Every check runs, so that one call shows all problems.
fn lint(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut failures = Vec::new();
    if !process::succeeds(&mut workspace.cargo(&["fmt", "--all", "--check"]))? {
        failures.push("the code is not formatted: run `cargo xtask test --fix`".to_owned());
    }
    // Guests have code that only their own target sees.
    let guests = ["--package", "agent-host-sdk", "--package", "agent-host-test-guests", "--lib", "--examples"];
    let runners: Vec<_> =
        workspace.packages_in("example-runners").into_iter().flat_map(|package| ["--package", package.name.as_str()]).collect();
    let host = [NATIVE.as_slice(), &["--all-targets"]].concat();
    let wasm = [&["--target", toolchain::WASM_TARGET][..], &guests, &runners].concat();
    for what in [host, wasm] {
        if !process::succeeds(workspace.cargo(&["clippy"]).args(what).args(["--", "--deny", "warnings"]))? {
            failures.push("clippy found something: see above".to_owned());
        }
    }
    Ok(failures)
}

/// The reason why tests were stopped.
fn stopped() -> String {
    format!(
        "no test ended within {} minutes, so the tests were stopped: one of those that began last hangs",
        SILENCE.as_secs() / 60
    )
}

/// The outcome of each test, by its name with modules.
#[derive(Debug)]
pub(crate) struct Outcomes {
    pub(crate) tests: Vec<(String, bool)>,
    pub(crate) succeeded: bool,
}

impl Outcomes {
    /// Runs `cargo test` to its end, with its output passed on.
    pub(crate) fn of(command: &mut Command) -> anyhow::Result<Self> {
        let mut output = Vec::new();
        let TestEnd { succeeded, hung, .. } = watch(command, Both(io::stdout().lock(), &mut output), SILENCE)?;
        if hung {
            eprintln!("{}", stopped());
        }
        Ok(Self { tests: String::from_utf8_lossy(&output).lines().filter_map(outcome).collect(), succeeded })
    }
}

/// The outcome that a line of output says: `test NAME ... ok`.
fn outcome(line: &str) -> Option<(String, bool)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match outcome.trim_end() {
        "ok" => Some((name.to_owned(), true)),
        "FAILED" => Some((name.to_owned(), false)),
        _ => None,
    }
}

/// Writes to two places.
struct Both<A, B>(A, B);

impl<A: Write, B: Write> Write for Both<A, B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(bytes)?;
        self.1.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        self.1.flush()
    }
}

/// The end of `cargo test`.
#[derive(Debug, PartialEq, Eq)]
struct TestEnd {
    summary: Summary,
    succeeded: bool,
    /// True if it was stopped after a long silence.
    hung: bool,
}

/// Runs `cargo test`, passes its output on, and adds up what it says. After a silence of `patience` it is killed with the tests.
fn watch(command: &mut Command, mut out: impl Write, patience: Duration) -> anyhow::Result<TestEnd> {
    process::announce(command);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let (mut summary, mut hung) = (Summary::default(), false);
    if let Some(pipe) = child.stdout.take() {
        let (lines, received) = mpsc::channel();
        // Tests may print what is not UTF-8. The thread ends with the pipe, or with the receiver.
        thread::spawn(move || BufReader::new(pipe).split(b'\n').all(|line| lines.send(line).is_ok()));
        loop {
            match received.recv_timeout(patience) {
                Ok(line) => {
                    let mut line = line?;
                    summary.add(&String::from_utf8_lossy(&line));
                    line.push(b'\n');
                    out.write_all(&line)?;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    hung = true;
                    kill_all(&mut child);
                    break;
                }
            }
        }
    }
    Ok(TestEnd { summary, succeeded: child.wait()?.success() && !hung, hung })
}

/// Kills a process and all that it has started, where the system lists them.
fn kill_all(child: &mut Child) {
    let mut found = vec![child.id()];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(process::children(parent));
        next += 1;
    }
    let _ = child.kill();
    for id in found.into_iter().skip(1) {
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The numbers of passed and failed tests, in all test binaries together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    passed: u64,
    failed: u64,
}

impl Summary {
    /// Adds what one binary says when it is done: `test result: ok. 3 passed; 0 failed; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|result| result.split_once(". ")) else { return };
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_all_binaries_are_added_up() {
        let mut summary = Summary::default();
        for line in [
            "running 3 tests",
            "test ledger::accept ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "thread said: test result: ok. 5 passed; 5 failed",
            "test result: odd",
        ] {
            summary.add(line);
        }
        assert_eq!(summary, Summary { passed: 13, failed: 2 });
        assert_eq!(summary.to_string(), "13 passed, 2 failed");
    }

    #[test]
    fn the_outcome_of_each_test_is_read() {
        let mut output = Vec::new();
        let say =
            "echo 'test a::b ... ok'; echo 'test c ... FAILED'; echo 'test d ... ignored'; echo 'test result: ok. 1 passed'";
        watch(Command::new("sh").args(["-c", say]), Both(io::sink(), &mut output), SILENCE).unwrap();
        let outcomes: Vec<_> = String::from_utf8(output).unwrap().lines().filter_map(outcome).collect();
        assert_eq!(outcomes, [("a::b".to_owned(), true), ("c".to_owned(), false)]);
    }

    #[test]
    fn a_command_is_watched_to_its_end() {
        let say = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; printf '\\377\\n'; exit 3";
        let mut passed_on = Vec::new();
        let watched = watch(Command::new("sh").args(["-c", say]), &mut passed_on, SILENCE).unwrap();
        let summary = Summary { passed: 2, failed: 0 };
        assert_eq!(watched, TestEnd { summary, succeeded: false, hung: false });
        assert_eq!(passed_on, b"test result: ok. 2 passed; 0 failed; 0 ignored\n\xff\n");
    }

    #[test]
    fn a_command_that_says_nothing_any_more_is_killed_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("alive");
        // A child of a child, which writes once the silence is over.
        let say = format!("echo 'test result: ok. 1 passed'; sh -c 'sleep 2; : > {0}; sleep 60' & wait", file.display());
        let mut passed_on = Vec::new();
        let watched = watch(Command::new("sh").args(["-c", &say]), &mut passed_on, Duration::from_millis(300)).unwrap();
        assert_eq!(watched, TestEnd { summary: Summary { passed: 1, failed: 0 }, succeeded: false, hung: true });
        thread::sleep(Duration::from_secs(3));
        assert!(!file.exists());
    }
}

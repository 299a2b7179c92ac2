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
/// Number of failed tests that are run once more, alone. Some tests measure time, and fail on a busy machine; a change that breaks more
/// than these is wrong.
const AT_MOST_AGAIN: usize = 3;

/// Check formatting, run clippy, check the dependencies, build the site of the documents and run every test, the end-to-end ones with real components included
#[derive(Debug, Args)]
#[command(
    after_help = "The last line is `N passed, N failed`. With FILTER, only tests are run. Up to three failed tests are run once more, alone: some \
                  measure time, and fail on a busy machine. A warning names those that pass then."
)]
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
        toolchain::need_faketime()?;
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
        let run = |arguments: &[&str]| watch(tests(workspace).arg("--").args(arguments), io::stdout().lock(), SILENCE);
        let filter: Vec<_> = self.filter.iter().map(String::as_str).collect();
        let mut outcomes = run(&filter)?;
        let again = outcomes.to_try_again();
        if !again.is_empty() {
            eprintln!("Failed tests are run once more, alone: {}", again.join(", "));
            let names: Vec<_> = again.iter().map(String::as_str).collect();
            let second = run(&[["--exact", "--test-threads=1"].as_slice(), &names].concat())?;
            for name in outcomes.settle(&again, &second) {
                eprintln!("warning: {name} failed beside others and passed alone: it is not steady, and to be mended");
            }
        }
        if outcomes.hung {
            failures.push(stopped());
        } else if outcomes.summary.failed > 0 {
            failures.push("some tests failed: see above".to_owned());
        } else if !outcomes.succeeded {
            failures.push("the tests could not all be built or run to their end: see above".to_owned());
        }
        Ok(outcomes.summary)
    }
}

/// The command that runs the tests, without its arguments for them.
fn tests(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo(&["test", "--no-fail-fast"]);
    cargo
        .args(NATIVE)
        .env("AGENT_HOST_BIN", workspace.target().join("debug").join("agent-host"))
        .env("AGENT_HOST_WASM_DIR", guests::dir(workspace));
    cargo
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

/// The outcome that a line of output says: `test NAME ... ok`.
fn outcome(line: &str) -> Option<(String, bool)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match outcome.trim_end() {
        "ok" => Some((name.to_owned(), true)),
        "FAILED" => Some((name.to_owned(), false)),
        _ => None,
    }
}

/// The outcomes of `cargo test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) summary: Summary,
    /// The outcome of each test, by its name with modules.
    pub(crate) tests: Vec<(String, bool)>,
    pub(crate) succeeded: bool,
    /// True if it was stopped after a long silence.
    pub(crate) hung: bool,
}

impl Outcomes {
    /// Runs `cargo test` to its end, with its output passed on.
    pub(crate) fn of(command: &mut Command) -> anyhow::Result<Self> {
        let outcomes = watch(command, io::stdout().lock(), SILENCE)?;
        if outcomes.hung {
            eprintln!("{}", stopped());
        }
        Ok(outcomes)
    }

    /// The failed tests, if a second try can tell whether they fail by themselves: some few, in binaries that all came to their outcomes.
    fn to_try_again(&self) -> Vec<String> {
        let failed: Vec<_> = self.tests.iter().filter(|(_, passed)| !passed).map(|(name, _)| name.clone()).collect();
        let all_known = failed.len() as u64 == self.summary.failed && self.summary.begun == self.summary.ended;
        if self.hung || !all_known || failed.len() > AT_MOST_AGAIN { Vec::new() } else { failed }
    }

    /// Takes the outcomes of a second try over; gives the tests that passed now.
    fn settle(&mut self, again: &[String], second: &Self) -> Vec<String> {
        let says = |name: &String, outcome| second.tests.iter().any(|(other, passed)| other == name && *passed == outcome);
        let (passed, failed): (Vec<_>, Vec<_>) = again.iter().cloned().partition(|name| says(name, true) && !says(name, false));
        self.summary.passed += passed.len() as u64;
        self.summary.failed = failed.len() as u64;
        self.succeeded = failed.is_empty() && second.succeeded;
        self.hung = second.hung;
        passed
    }
}

/// Runs `cargo test`, passes its output on, and adds up what it says. After a silence of `patience` it is killed with the tests.
fn watch(command: &mut Command, mut out: impl Write, patience: Duration) -> anyhow::Result<Outcomes> {
    process::announce(command);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let (mut summary, mut tests, mut hung) = (Summary::default(), Vec::new(), false);
    if let Some(pipe) = child.stdout.take() {
        let (lines, received) = mpsc::channel();
        // Tests may print what is not UTF-8. The thread ends with the pipe, or with the receiver.
        thread::spawn(move || BufReader::new(pipe).split(b'\n').all(|line| lines.send(line).is_ok()));
        loop {
            match received.recv_timeout(patience) {
                Ok(line) => {
                    let mut line = line?;
                    let text = String::from_utf8_lossy(&line);
                    summary.add(&text);
                    tests.extend(outcome(&text));
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
    Ok(Outcomes { summary, tests, succeeded: child.wait()?.success() && !hung, hung })
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
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    /// Test binaries that have begun, and that have said their result.
    begun: u64,
    ended: u64,
}

impl Summary {
    /// Adds what one binary says when it begins, `running 3 tests`, and when it is done: `test result: ok. 3 passed; 0 failed; ...`.
    fn add(&mut self, line: &str) {
        let begins = line.strip_prefix("running ").and_then(|rest| rest.split_once(' '));
        if let Some((number, "test" | "tests")) = begins
            && number.parse::<u64>().is_ok()
        {
            self.begun += 1;
        }
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|result| result.split_once(". ")) else { return };
        self.ended += 1;
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
        assert_eq!(summary, Summary { passed: 13, failed: 2, begun: 1, ended: 2 });
        assert_eq!(summary.to_string(), "13 passed, 2 failed");
    }

    #[test]
    fn the_outcome_of_each_test_is_read() {
        let say =
            "echo 'test a::b ... ok'; echo 'test c ... FAILED'; echo 'test d ... ignored'; echo 'test result: ok. 1 passed'";
        let outcomes = watch(Command::new("sh").args(["-c", say]), io::sink(), SILENCE).unwrap();
        assert_eq!(outcomes.tests, [("a::b".to_owned(), true), ("c".to_owned(), false)]);
    }

    /// The outcomes of tests that say this.
    fn outcomes_of(lines: &[&str], code: u8) -> Outcomes {
        let say =
            format!("printf '%s\\n' {}; exit {code}", lines.iter().map(|line| format!("'{line}'")).collect::<Vec<_>>().join(" "));
        watch(Command::new("sh").args(["-c", &say]), io::sink(), SILENCE).unwrap()
    }

    #[test]
    fn a_failed_test_that_passes_alone_is_named_and_one_that_fails_again_has_failed() {
        let lines = [
            "running 3 tests",
            "test a ... ok",
            "test b ... FAILED",
            "test c ... FAILED",
            "test result: FAILED. 1 passed; 2 failed",
        ];
        let mut outcomes = outcomes_of(&lines, 101);
        let again = outcomes.to_try_again();
        assert_eq!(again, ["b", "c"]);
        let second = outcomes_of(
            &["running 2 tests", "test b ... ok", "test c ... FAILED", "test result: FAILED. 1 passed; 1 failed"],
            101,
        );
        assert_eq!(outcomes.settle(&again, &second), ["b"]);
        assert_eq!((outcomes.summary.to_string().as_str(), outcomes.succeeded), ("2 passed, 1 failed", false));

        // A test that another binary has too fails if one of them does, and one that is not run again has not passed.
        let mut outcomes = outcomes_of(&lines, 101);
        assert!(
            outcomes
                .settle(&again, &outcomes_of(&["running 1 test", "test b ... ok", "running 1 test", "test b ... FAILED"], 101))
                .is_empty()
        );
        assert_eq!(outcomes.summary.to_string(), "1 passed, 2 failed");

        let mut outcomes = outcomes_of(&lines, 101);
        assert_eq!(outcomes.settle(&again, &outcomes_of(&["running 2 tests", "test b ... ok", "test c ... ok"], 0)), ["b", "c"]);
        assert_eq!((outcomes.summary.to_string().as_str(), outcomes.succeeded), ("3 passed, 0 failed", true));
    }

    #[test]
    fn a_second_try_is_for_few_tests_whose_binaries_have_come_to_their_end() {
        let died = [
            "running 2 tests",
            "test a ... FAILED",
            "test result: FAILED. 0 passed; 1 failed",
            "running 9 tests",
            "test b ... ok",
        ];
        assert!(outcomes_of(&died, 101).to_try_again().is_empty(), "a binary that died is a failure that no second try mends");
        let mut many: Vec<_> = (0..=AT_MOST_AGAIN).map(|number| format!("test t{number} ... FAILED")).collect();
        many.push(format!("test result: FAILED. 0 passed; {} failed", many.len()));
        let many: Vec<_> = std::iter::once("running 9 tests").chain(many.iter().map(String::as_str)).collect();
        assert!(outcomes_of(&many, 101).to_try_again().is_empty(), "what breaks many tests is no matter of the hour");
        assert!(
            outcomes_of(&["running 1 test", "test a ... ok", "test result: ok. 1 passed; 0 failed"], 0).to_try_again().is_empty()
        );
    }

    #[test]
    fn a_command_is_watched_to_its_end() {
        let say = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; printf '\\377\\n'; exit 3";
        let mut passed_on = Vec::new();
        let watched = watch(Command::new("sh").args(["-c", say]), &mut passed_on, SILENCE).unwrap();
        let summary = Summary { passed: 2, failed: 0, begun: 0, ended: 1 };
        assert_eq!(watched, Outcomes { summary, tests: Vec::new(), succeeded: false, hung: false });
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
        let summary = Summary { passed: 1, failed: 0, begun: 0, ended: 1 };
        assert_eq!(watched, Outcomes { summary, tests: Vec::new(), succeeded: false, hung: true });
        thread::sleep(Duration::from_secs(3));
        assert!(!file.exists());
    }
}

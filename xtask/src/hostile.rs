//! `cargo xtask hostile`: the tests that docs/HOSTILE.md names, by family.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;

use crate::{
    guests, process,
    test::{NATIVE, Outcomes},
    toolchain,
    workspace::Workspace,
};

const PAGE: &str = "docs/HOSTILE.md";

/// Run the tests of hostile guests, files, clients and disks that docs/HOSTILE.md names, and print the outcome of each family
#[derive(Debug, Args)]
#[command(
    after_help = "The last line is `N passed, N failed`. Without --host, the tests that start a host start one of this checkout."
)]
pub(crate) struct Hostile {
    /// Numbers of families, or words of their names
    family: Vec<String>,
    /// Another build of the host, for the tests that start one as a process
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// List the families and their tests, and run none
    #[arg(long)]
    list: bool,
}

/// A family of the page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    /// Number and name, as in the page.
    title: String,
    tests: BTreeSet<NamedTest>,
    /// Parts that no test does yet.
    untested: usize,
}

/// A test as the page names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NamedTest {
    path: String,
    name: String,
}

impl NamedTest {
    /// The argument by which cargo selects the binary: `--test NAME`, `--lib` or `--bins`.
    fn binary(&self) -> Vec<String> {
        let parts: Vec<&str> = self.path.split('/').collect();
        // Tests of a module may be in a folder `tests` too: those below `src` belong to the library.
        if parts.contains(&"src") {
            let own = if self.path.starts_with("host/cli/") { "--bins" } else { "--lib" };
            return vec![own.to_owned()];
        }
        let binary = parts.iter().rposition(|part| *part == "tests").and_then(|at| parts.get(at + 1)).unwrap_or(&"tests");
        vec!["--test".to_owned(), binary.trim_end_matches(".rs").to_owned()]
    }
}

/// The families of the page, in its order.
fn families(page: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            families.push(Family { title: title.to_owned(), ..Family::default() });
        }
        let Some(family) = families.last_mut().filter(|_| line.starts_with("| ")) else { continue };
        family.untested += usize::from(line.ends_with("| not tested yet |"));
        for span in line.split('`').skip(1).step_by(2) {
            if let Some((path, name)) = span.split_once(".rs::") {
                family.tests.insert(NamedTest { path: format!("{path}.rs"), name: name.to_owned() });
            }
        }
    }
    families
}

impl Family {
    fn is_named(&self, words: &[String]) -> bool {
        let number = self.title.split('.').next();
        let matches = |word: &String| number == Some(word.as_str()) || self.title.to_lowercase().contains(&word.to_lowercase());
        words.is_empty() || words.iter().any(matches)
    }
}

impl Hostile {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let page = std::fs::read_to_string(workspace.root().join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
        let families: Vec<_> = families(&page).into_iter().filter(|family| family.is_named(&self.family)).collect();
        anyhow::ensure!(!families.is_empty(), "no family of {PAGE} has this number or name");
        if self.list {
            for family in &families {
                println!("{}", family.title);
                for NamedTest { path, name } in &family.tests {
                    println!("  {path}::{name}");
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        toolchain::need_wasm_target(workspace)?;
        guests::runners(workspace)?;
        guests::test_guests(workspace)?;
        let host = match &self.host {
            Some(host) => host.canonicalize().with_context(|| format!("{} cannot be found", host.display()))?,
            None => {
                process::run(workspace.cargo(&["build", "--tests", "--bin", "agent-host"]).args(NATIVE))?;
                workspace.target().join("debug").join("agent-host")
            }
        };
        let tests: BTreeSet<_> = families.iter().flat_map(|family| &family.tests).collect();
        let binaries: BTreeSet<_> = tests.iter().map(|test| test.binary()).collect();
        let names: BTreeSet<_> = tests.iter().map(|test| test.name.as_str()).collect();
        let mut cargo = workspace.cargo(&["test", "--no-fail-fast"]);
        cargo.args(NATIVE).args(binaries.into_iter().flatten()).arg("--").args(names);
        cargo.env("AGENT_HOST_BIN", host).env("AGENT_HOST_WASM_DIR", guests::dir(workspace));
        let outcomes = Outcomes::of(&mut cargo)?;
        Ok(report(&families, &outcomes))
    }
}

/// Prints the outcome of each family, and the sum.
fn report(families: &[Family], outcomes: &Outcomes) -> ExitCode {
    // The names of tests have the modules before them, and a module may be that of another family.
    let by_name: BTreeMap<&str, bool> =
        outcomes.tests.iter().map(|(name, passed)| (name.rsplit("::").next().unwrap_or(name), *passed)).collect();
    let (mut passed, mut failed) = (BTreeSet::new(), BTreeSet::new());
    println!();
    for family in families {
        // A test that did not run proves nothing.
        let (good, bad): (Vec<_>, Vec<_>) =
            family.tests.iter().partition(|test| by_name.get(test.name.as_str()).copied().unwrap_or(false));
        passed.extend(good);
        let untested = if family.untested > 0 { format!(", {} parts not tested yet", family.untested) } else { String::new() };
        println!("{}: {} passed, {} failed{untested}", family.title, family.tests.len() - bad.len(), bad.len());
        for NamedTest { path, name } in &bad {
            println!("  failed: {path}::{name}");
        }
        failed.extend(bad);
    }
    println!("{} passed, {} failed", passed.len(), failed.len());
    if failed.is_empty() && outcomes.succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "# Hostile guests\n\n| a | `x.rs::not_of_a_family` |\n\n### 1. A loop\n\n| part | test |\n|---|---|\n\
        | in `run` | `tests/tests/guests/hostile.rs::loops`, `tests/tests/bad_services.rs::waits` |\n| elsewhere | not tested yet |\n\
        \n### 2. Disks\n\n| full | `host/ledger/tests/killed/disk.rs::full` |\n| slow | `host/ledger/src/writer/tests/mod.rs::slow` |\n";

    #[test]
    fn families_of_the_page_have_their_tests() {
        let families = families(EXAMPLE);
        assert_eq!(families.iter().map(|family| family.title.as_str()).collect::<Vec<_>>(), ["1. A loop", "2. Disks"]);
        assert_eq!(families.iter().map(|family| (family.tests.len(), family.untested)).collect::<Vec<_>>(), [(2, 1), (2, 0)]);
        let binaries: Vec<_> = families.iter().flat_map(|family| &family.tests).map(|test| test.binary().join(" ")).collect();
        assert_eq!(binaries, ["--test bad_services", "--test guests", "--lib", "--test killed"]);
    }

    #[test]
    fn each_test_of_the_page_is_in_a_binary_of_the_workspace() {
        let root = Workspace::find().unwrap().root().to_owned();
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        for test in families(&page).iter().flat_map(|family| &family.tests) {
            let Some(name) = test.binary().get(1).cloned() else {
                assert!(root.join(&test.path).is_file(), "{}", test.path);
                continue;
            };
            let folder = root.join(test.path.split_once("/tests/").unwrap().0).join("tests");
            let is_binary = folder.join(&name).join("main.rs").is_file() || folder.join(format!("{name}.rs")).is_file();
            assert!(is_binary, "{} is in no binary `{name}`", test.path);
        }
    }

    #[test]
    fn a_family_is_named_by_number_or_word() {
        let named = |word: &str| families(EXAMPLE).iter().filter(|family| family.is_named(&[word.to_owned()])).count();
        assert_eq!((named("1"), named("disks"), named("3")), (1, 1, 0));
    }

    #[test]
    fn what_did_not_run_has_failed() {
        let families = families(EXAMPLE);
        let all = ["hostile::loops", "waits", "disk::full", "writer::tests::slow"];
        let ran = |names: &[&str]| Outcomes {
            tests: names.iter().map(|name| ((*name).to_owned(), true)).collect(),
            succeeded: true,
            ..Outcomes::default()
        };
        let code = |outcomes: &Outcomes| format!("{:?}", report(&families, outcomes));
        assert_eq!(code(&ran(&all)), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&ran(&all[1..])), format!("{:?}", ExitCode::FAILURE));
    }
}

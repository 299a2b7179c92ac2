//! `cargo xtask mutants`: the ledger of a cluster with one guarantee taken out, which the tests must catch.
//!
//! The sources are copied to `target/mutants/tree` and built there, so the checkout stays as it is.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{guests, process, test::NATIVE, toolchain, workspace::Workspace};

/// Take one guarantee out of the ledger of a cluster, and see that its tests catch it
///
/// The tests of clusters must fail with each change, and pass without. It takes a quarter of an hour, and PostgreSQL as the tests do. `cargo xtask test` sees that each change still applies.
#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// Only the mutants whose name has this text
    name: Option<String>,
    /// Take the tests of whole hosts, with all faults, in place of those of the ledger, and the mutants that clients can see: half an hour
    #[arg(long)]
    faults: bool,
    /// The seed of the faults
    #[arg(long, requires = "faults")]
    seed: Option<u64>,
}

/// The package with the tests of the ledger, and its test binary.
const LEDGER: [&str; 4] = ["--package", "agent-host-ledger", "--test", "cluster"];
/// The host and the test with the faults.
const FAULTS: [&str; 4] = ["--bin", "agent-host", "--test", "durability"];
/// The tests from outside: all faults, and a host that is paused, or cut off from the database, past its lease.
const OUTSIDE: [&str; 3] = [
    "faults::",
    "cluster::a_paused_host_ends_itself_and_calls_no_model",
    "cluster::a_host_that_is_cut_off_makes_no_request_after_its_lease",
];
/// A build that neither passes nor fails hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// A change that takes one guarantee out.
struct Mutant {
    name: &'static str,
    /// True if clients of the hosts can see it. Else another guarantee stands before it.
    is_seen_outside: bool,
    file: &'static str,
    /// A text that the file has once.
    from: &'static str,
    to: &'static str,
}

const MUTANTS: [Mutant; 10] = [
    Mutant {
        name: "a batch that is there already is refused",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/appender.rs",
        from: "on conflict do nothing returning p\";",
        to: "returning p\";",
    },
    Mutant {
        name: "a batch overwrites that of another owner",
        is_seen_outside: false,
        file: "host/ledger/src/cluster/appender.rs",
        from: "on conflict do nothing returning p\";",
        to: "on conflict (p, seq) do update set epoch = excluded.epoch, frame = excluded.frame returning p\";",
    },
    Mutant {
        name: "a batch is acknowledged before the database has it",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/log.rs",
        from: "self.commit(&Append { partition, batch, epoch, before, frame })?;",
        // Each batch is committed when the next one comes.
        to: "thread_local! { static LATE: std::cell::RefCell<Option<Append>> = const { std::cell::RefCell::new(None) } }
        if let Some(late) = LATE.replace(Some(Append { partition, batch, epoch, before, frame })) {
            self.commit(&late)?;
        }",
    },
    Mutant {
        name: "frames are packed before all hosts read them",
        is_seen_outside: false,
        file: "host/ledger/src/cluster/member.rs",
        from: "if self.packs.load(Ordering::Acquire)",
        to: "if true",
    },
    Mutant {
        name: "the batch before is not asked for",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/appender.rs",
        from: "where n.seq = 1 or exists (select 1 from agent_host.log b where b.p = n.p and b.seq = n.seq - 1 and b.epoch = n.before)",
        to: "where n.before >= 0",
    },
    Mutant {
        name: "effects begin without a lease",
        is_seen_outside: true,
        file: "host/ledger/src/lease.rs",
        from: "if self.left().is_zero() {",
        to: "if false {",
    },
    Mutant {
        name: "a lease is taken before it is over",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/ownership.rs",
        from: "if !self.is_for_this_host(is_free || look.is_over, &look.hosts) || waits {",
        to: "if false {",
    },
    Mutant {
        name: "the log is trimmed without a snapshot",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/maker.rs",
        from: "lock.finish(batch, counts)?;",
        to: "lock.remove_before(batch)?;",
    },
    Mutant {
        name: "the log is trimmed before a snapshot that nobody has read back",
        is_seen_outside: false,
        file: "host/ledger/src/cluster/snapshots.rs",
        from: "where p = $1::int8 and read_back_at is not null order by seq desc limit 2\";\n\nconst REMOVE_UNFINISHED",
        to: "where p = $1::int8 order by seq desc limit 2\";\n\nconst REMOVE_UNFINISHED",
    },
    Mutant {
        name: "a host goes on without the batches that the database lost",
        is_seen_outside: true,
        file: "host/ledger/src/cluster/loss.rs",
        from: "if position.last == 0 {",
        to: "if position.last < u64::MAX {",
    },
];

impl Mutants {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let wanted = |mutant: &&Mutant| {
            self.name.as_deref().is_none_or(|name| mutant.name.contains(name)) && (mutant.is_seen_outside || !self.faults)
        };
        let mutants: Vec<_> = MUTANTS.iter().filter(wanted).collect();
        anyhow::ensure!(!mutants.is_empty(), "no mutant has such a name: {}", MUTANTS.map(|mutant| mutant.name).join("; "));
        let place = workspace.target().join("mutants");
        let tests =
            MutantTests { tree: place.join("tree"), place, guests: self.faults.then(|| guests::dir(workspace)), seed: self.seed };
        toolchain::need_postgres()?;
        if self.faults {
            toolchain::need_faketime()?;
            guests::runners(workspace)?;
            guests::test_guest(workspace, "outside")?;
        }
        copy(workspace, &tests.tree)?;
        anyhow::ensure!(tests.passes()?, "the tests fail without a change: see {}", tests.log().display());
        println!("whole: the tests pass");
        let mut missed = 0;
        for mutant in mutants {
            let file = tests.tree.join(mutant.file);
            let whole = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            fs::write(&file, change(mutant, &whole)?)?;
            let began = Instant::now();
            let is_missed = tests.passes();
            fs::write(&file, whole)?;
            let is_missed = is_missed?;
            let outcome = if is_missed { "MISSED" } else { "caught" };
            println!("{}: {outcome} ({} s)", mutant.name, began.elapsed().as_secs());
            missed += usize::from(is_missed);
        }
        println!("{missed} missed");
        Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The text of a file with the change of a mutant.
fn change(mutant: &Mutant, text: &str) -> anyhow::Result<String> {
    let count = text.matches(mutant.from).count();
    anyhow::ensure!(count == 1, "{}: {} has `{}` {count} times, not once", mutant.name, mutant.file, mutant.from);
    Ok(text.replacen(mutant.from, mutant.to, 1))
}

/// Copies what git knows of the checkout, and what it would add.
fn copy(workspace: &Workspace, tree: &Path) -> anyhow::Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    let mut git = Command::new("git");
    git.current_dir(workspace.root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    for name in process::output(&mut git)?.lines() {
        let (from, to) = (workspace.root().join(name), tree.join(name));
        let Some(folder) = to.parent().filter(|_| from.is_file()) else { continue };
        fs::create_dir_all(folder)?;
        fs::copy(&from, &to).with_context(|| format!("{} cannot be copied", from.display()))?;
    }
    Ok(())
}

/// The tests that must fail with a mutant.
struct MutantTests {
    place: PathBuf,
    /// The sources.
    tree: PathBuf,
    /// The components for the faults; `None` for the tests of the ledger.
    guests: Option<PathBuf>,
    seed: Option<u64>,
}

impl MutantTests {
    fn log(&self) -> PathBuf {
        self.place.join("tests.log")
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let (mut command, build) =
            (Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())), self.place.join("build"));
        command.current_dir(&self.tree).args(arguments).env("CARGO_TARGET_DIR", &build).env("RUSTFLAGS", "-Awarnings");
        // Cargo has told us about our own package.
        command.env_remove("CARGO_MANIFEST_DIR");
        if let Some(guests) = &self.guests {
            command.env("AGENT_HOST_BIN", build.join("debug/agent-host")).env("AGENT_HOST_WASM_DIR", guests);
            command.envs(self.seed.map(|seed| ("FAULTS_SEED", seed.to_string())));
        }
        command
    }

    /// True if the tests pass. A build that does not compile is an error: it says nothing of the tests.
    fn passes(&self) -> anyhow::Result<bool> {
        let mut tests = if self.guests.is_some() {
            process::run(self.cargo(&["build"]).args(NATIVE).args(FAULTS))?;
            let mut tests = self.cargo(&["test"]);
            tests.args(NATIVE).args(["--test", "durability", "--"]).args(OUTSIDE);
            tests
        } else {
            process::run(self.cargo(&["test", "--no-run"]).args(LEDGER))?;
            let mut tests = self.cargo(&["test"]);
            tests.args(LEDGER).args(["--", "--test-threads=4"]);
            tests
        };
        let output = fs::File::create(self.log())?;
        let errors = output.try_clone()?;
        let mut tests = tests.process_group(0).stdout(Stdio::from(output)).stderr(Stdio::from(errors)).spawn()?;
        let began = Instant::now();
        loop {
            if let Some(status) = tests.try_wait()? {
                return Ok(status.success());
            }
            if began.elapsed() > PATIENCE {
                // Cargo and the test binary.
                let group = i32::try_from(tests.id()).ok().and_then(Pid::from_raw).context("no process")?;
                kill_process_group(group, Signal::KILL)?;
                tests.wait()?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_applies() {
        let workspace = Workspace::find().unwrap();
        for mutant in &MUTANTS {
            let text = fs::read_to_string(workspace.root().join(mutant.file)).unwrap();
            assert_ne!(change(mutant, &text).unwrap(), text);
        }
    }
}

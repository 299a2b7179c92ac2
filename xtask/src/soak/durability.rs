//! Two of the durability tests, again and again with seeds of their own: kills of a host with clients attached, and faults in a cluster.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    guests, process,
    test::{NATIVE, Outcomes},
    toolchain,
    workspace::Workspace,
};

/// Kills where nobody says how many.
pub(super) const USUAL_KILLS: u64 = 100;
/// Kills of one stretch: what its runs have said is compared at its end, and is in memory until then. A stretch says nothing meanwhile, and
/// a busy machine needs minutes for it.
const STRETCH: u64 = 50;
const KILLS: Test = Test {
    name: "kills::an_agent_does_not_notice_that_its_host_was_killed",
    rounds: "DURABILITY_ROUNDS",
    seed: "DURABILITY_SEED",
};
/// Rounds of one stretch, each with every kind of fault.
const ROUNDS: u64 = 4;
const FAULTS: Test =
    Test { name: "faults::three_hosts_lose_and_repeat_nothing_whatever_fails", rounds: "FAULTS_ROUNDS", seed: "FAULTS_SEED" };

/// A test, and the variables that say for how long it works and with which seed.
struct Test {
    name: &'static str,
    rounds: &'static str,
    seed: &'static str,
}

impl Test {
    /// True if the test has passed.
    fn passes(&self, workspace: &Workspace, rounds: u64, seed: u64) -> anyhow::Result<bool> {
        let outcomes = Outcomes::of(&mut self.command(workspace, rounds, seed))?;
        Ok(outcomes.succeeded && outcomes.tests.iter().any(|(name, passed)| name == self.name && *passed))
    }

    fn command(&self, workspace: &Workspace, rounds: u64, seed: u64) -> Command {
        let mut cargo = workspace.cargo(&["test"]);
        cargo.args(NATIVE).args(["--test", "durability", "--", "--exact", self.name, "--show-output"]);
        cargo.env("AGENT_HOST_BIN", workspace.target().join("debug").join("agent-host"));
        cargo.env("AGENT_HOST_WASM_DIR", guests::dir(workspace));
        cargo.env(self.rounds, rounds.to_string()).env(self.seed, seed.to_string());
        cargo
    }
}

/// Builds what the tests need.
pub(super) fn build(workspace: &Workspace) -> anyhow::Result<()> {
    guests::runners(workspace)?;
    guests::test_guests(workspace)?;
    process::run(workspace.cargo(&["build", "--tests", "--bin", "agent-host"]).args(NATIVE))
}

/// The kills of each stretch, each with its seed.
fn stretches(kills: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let stretch = move |index: u64| (STRETCH.min(kills - index * STRETCH), seed.wrapping_add(index));
    (0..kills.div_ceil(STRETCH)).map(stretch)
}

/// Repeats the kills. Gives whether every stretch has passed; the first one that has not is the last.
pub(super) fn kills(workspace: &Workspace, kills: u64, seed: u64) -> anyhow::Result<bool> {
    let mut done = 0;
    for (rounds, seed) in stretches(kills, seed) {
        if !KILLS.passes(workspace, rounds, seed)? {
            println!("{done} of {kills} kills were harmless; the next {rounds} were not (--kills {rounds} --seed {seed})");
            return Ok(false);
        }
        done += rounds;
        println!("{done} of {kills} kills: nothing lost, doubled or different");
    }
    Ok(true)
}

/// Repeats the faults, one round at least. Gives whether every stretch has passed; the first one that has not is the last.
pub(super) fn faults(workspace: &Workspace, hours: f64, seed: u64) -> anyhow::Result<bool> {
    toolchain::need_postgres()?;
    toolchain::need_faketime()?;
    let (began, time) = (Instant::now(), Duration::from_secs_f64(hours * 3_600.0));
    let mut done = 0;
    for seed in (0..).map(|stretch| seed.wrapping_add(stretch)) {
        if !FAULTS.passes(workspace, ROUNDS, seed)? {
            println!("{done} rounds of faults were harmless; the next {ROUNDS} were not (--faults 0.01 --seed {seed})");
            return Ok(false);
        }
        done += ROUNDS;
        println!("{done} rounds of faults: nothing lost, doubled or different");
        if began.elapsed() >= time {
            break;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_done_in_stretches_with_seeds_of_their_own() {
        assert_eq!(stretches(120, 7).collect::<Vec<_>>(), [(50, 7), (50, 8), (20, 9)]);
        assert_eq!(stretches(3, 7).collect::<Vec<_>>(), [(3, 7)]);
        assert_eq!(stretches(0, 7).count(), 0);
    }
}

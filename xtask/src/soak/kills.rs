//! Kills of a host with clients attached: the test of the durability tests, in stretches with seeds of their own.

use std::process::Command;

use crate::{
    guests, process,
    test::{NATIVE, Outcomes},
    workspace::Workspace,
};

/// Kills where nobody says how many.
pub(super) const USUAL: u64 = 100;
/// Kills of one stretch: what its runs have said is compared at its end, and is in memory until then. A stretch says nothing meanwhile, and
/// a busy machine needs minutes for it.
const STRETCH: u64 = 50;
const TEST: &str = "kills::an_agent_does_not_notice_that_its_host_was_killed";

/// The kills of each stretch, each with its seed.
fn stretches(kills: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let stretch = move |index: u64| (STRETCH.min(kills - index * STRETCH), seed.wrapping_add(index));
    (0..kills.div_ceil(STRETCH)).map(stretch)
}

/// Repeats the test. Gives whether every stretch has passed; the first one that has not is the last.
pub(super) fn repeat(workspace: &Workspace, kills: u64, seed: u64) -> anyhow::Result<bool> {
    guests::runners(workspace)?;
    guests::test_guests(workspace)?;
    process::run(workspace.cargo(&["build", "--tests", "--bin", "agent-host"]).args(NATIVE))?;
    let mut done = 0;
    for (rounds, seed) in stretches(kills, seed) {
        let outcomes = Outcomes::of(&mut test(workspace, rounds, seed))?;
        let has_passed = outcomes.succeeded && outcomes.tests.iter().any(|(name, passed)| name == TEST && *passed);
        if !has_passed {
            println!("{done} of {kills} kills were harmless; the next {rounds} were not (--kills {rounds} --seed {seed})");
            return Ok(false);
        }
        done += rounds;
        println!("{done} of {kills} kills: nothing lost, doubled or different");
    }
    Ok(true)
}

fn test(workspace: &Workspace, rounds: u64, seed: u64) -> Command {
    let mut cargo = workspace.cargo(&["test"]);
    cargo.args(NATIVE).args(["--test", "durability", "--", "--exact", TEST, "--show-output"]);
    cargo.env("AGENT_HOST_BIN", workspace.target().join("debug").join("agent-host"));
    cargo.env("AGENT_HOST_WASM_DIR", guests::dir(workspace));
    cargo.env("DURABILITY_ROUNDS", rounds.to_string()).env("DURABILITY_SEED", seed.to_string());
    cargo
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

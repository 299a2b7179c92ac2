//! `cargo xtask soak`: kills, faults and load, for as long as one likes.

mod durability;
mod load;

use std::process::ExitCode;

use clap::Args;

use crate::workspace::Workspace;

/// Kill a host under load again and again, break what a cluster stands on, and put load on a host for hours
///
/// `--kills` repeats the test kills::an_agent_does_not_notice_that_its_host_was_killed: a host with agents at work and clients attached is
/// killed (SIGKILL) at random moments, and a model of what was accepted and streamed is compared with what is there in the end: nothing
/// is lost, doubled or different. `cargo xtask test` does so with 40 kills.
///
/// `--faults` repeats the test faults::three_hosts_lose_and_repeat_nothing_whatever_fails: three hosts on one PostgreSQL, with agents,
/// executors and clients that use any of them, and each kind of fault in an order that the seed gives: hosts that are killed, stopped, ended or drained, networks
/// that are cut, stalled, slow or half open, a database that is killed. `cargo xtask test` has each kind once.
///
/// `--hours` puts mixed load on a release build: honest runs beside hostile guests of each kind, which are cancelled. It prints memory,
/// handles and threads with their slopes, and fails where they grow.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Kills; the host dies more often, since some die again before they have started. 100 where nothing else is asked for
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Hours of faults in a cluster; a round of all kinds takes a minute. Needs PostgreSQL, as the tests do
    #[arg(long, value_name = "H", value_parser = hours)]
    faults: Option<f64>,
    /// Seed of the kills and faults
    #[arg(long, value_name = "N", default_value_t = 20_260_101)]
    seed: u64,
    /// Hours of load
    #[arg(long, value_name = "H", value_parser = hours)]
    hours: Option<f64>,
}

fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse().ok().filter(|hours: &f64| hours.is_finite() && *hours > 0.0);
    hours.ok_or_else(|| "write a number of hours, such as 0.1".to_owned())
}

impl Soak {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let alone = self.hours.is_none() && self.faults.is_none();
        let kills = self.kills.or_else(|| alone.then_some(durability::USUAL_KILLS));
        let mut is_good = true;
        if kills.is_some() || self.faults.is_some() {
            durability::build(workspace)?;
        }
        if let Some(kills) = kills {
            is_good &= durability::kills(workspace, kills, self.seed)?;
        }
        if let Some(hours) = self.faults.filter(|_| is_good) {
            is_good &= durability::faults(workspace, hours, self.seed)?;
        }
        if let Some(hours) = self.hours {
            is_good &= load::run(workspace, hours)?;
        }
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

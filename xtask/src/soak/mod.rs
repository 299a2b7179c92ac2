//! `cargo xtask soak`: kills and load, for as long as one likes.

mod kills;
mod load;

use std::process::ExitCode;

use clap::Args;

use crate::workspace::Workspace;

/// Kill a host under load again and again, and put load on one for hours
///
/// `--kills` repeats the test kills::an_agent_does_not_notice_that_its_host_was_killed: a host with agents at work and clients attached is
/// killed (SIGKILL) at random moments, and a model of what was accepted and streamed is compared with what is there in the end: nothing
/// is lost, doubled or different. `cargo xtask test` does so with 40 kills.
///
/// `--hours` puts mixed load on a release build: honest runs beside hostile guests of each kind, which are cancelled. It prints memory,
/// handles and threads with their slopes, and fails where they grow.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Kills; the host dies more often, since some die again before they have started. Without --hours 100
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Seed of the kills
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
        let kills = self.kills.or_else(|| self.hours.is_none().then_some(kills::USUAL));
        let mut is_good = true;
        if let Some(kills) = kills {
            is_good &= kills::repeat(workspace, kills, self.seed)?;
        }
        if let Some(hours) = self.hours {
            is_good &= load::run(workspace, hours)?;
        }
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

//! `agent-host statistics`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_ledger::{Group, GroupBy, Percentiles, Statistics as Counted, StatisticsQuery};
use agent_host_protocol::{RunnerId, Timestamp, time};
use clap::{Args, ValueEnum};

use super::runs::Server;
use crate::{output::Output, source::Source, styled::StyledText, table::Table, text};

/// Count runs: how many ended how, how long they took and waited, what they used
///
/// Percentiles are exact. At most 250,000 runs are looked at, the newest ones; where there are more, the output says from
/// when on it counts.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  agent-host statistics --since 24h --by binding\n  agent-host statistics --queue renders --json"
)]
pub(crate) struct Statistics {
    #[command(flatten)]
    server: Server,
    /// Runs created since this time: Unix milliseconds, or an age: 90s, 30m, 24h, 7d
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Runs created before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    /// Runs of this runner
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// Runs of this binding
    #[arg(long, value_name = "ID")]
    binding: Option<String>,
    /// Runs of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Runs of this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Count by this, too
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Runner,
    Binding,
}

/// A time, or how long ago it was.
fn moment(text: &str) -> Result<Timestamp, String> {
    let wrong = || "write Unix milliseconds, or how long ago: 90s, 30m, 24h, 7d".to_owned();
    let Some(unit) = text.chars().last().filter(|last| !last.is_ascii_digit()) else { return text.parse().map_err(|_| wrong()) };
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let count: u64 = text.strip_suffix(unit).unwrap_or_default().parse().map_err(|_| wrong())?;
    Ok(time::now().saturating_sub(count.saturating_mul(seconds * 1_000)))
}

impl Statistics {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        let filter = StatisticsQuery {
            since: self.since,
            until: self.until,
            runner_id: self.runner.map(|id| id.to_string()),
            binding_id: self.binding,
            queue: self.queue,
            workspace_id: self.workspace,
            group_by: self.by.map(|by| match by {
                By::Runner => GroupBy::Runner,
                By::Binding => GroupBy::Binding,
            }),
        };
        let counted = source.statistics(&filter).await?;
        output.result(&counted, || tables(&counted))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn tables(counted: &Counted) -> StyledText {
    let mut table = Table::new(["", "RUNS", "ENDED", "SUCCESS", "STATUSES", "TOKENS IN", "OUT"]);
    let mut times = Table::new(["", "", "P50", "P90", "P95", "P99", "MAX"]);
    for group in std::iter::once(&counted.total).chain(&counted.groups) {
        let name = group.key.as_deref().unwrap_or("all");
        table.row([
            name.to_owned(),
            group.runs.to_string(),
            group.ended.to_string(),
            group.success_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", rate * 100.0)),
            statuses(group),
            group.tokens.input.to_string(),
            group.tokens.output.to_string(),
        ]);
        for (what, of) in [("took", &group.duration_ms), ("waited", &group.queue_wait_ms)] {
            let Some(Percentiles { p50, p90, p95, p99, max, .. }) = *of else { continue };
            let [p50, p90, p95, p99, max] = [p50, p90, p95, p99, max].map(text::duration_ms);
            times.row([name.to_owned(), what.to_owned(), p50, p90, p95, p99, max]);
        }
    }
    let cut = match counted.covered_since {
        Some(since) if counted.truncated => {
            format!("\nonly runs since {since} were counted: there are more than one answer looks at\n")
        }
        _ => String::new(),
    };
    table.render() + "\n" + times.render() + cut
}

fn statuses(group: &Group) -> String {
    let counts: Vec<_> = group.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use agent_host_ledger::Tokens;

    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago_it_was() {
        assert_eq!(moment("1700000000000"), Ok(1_700_000_000_000));
        let ago = |text: &str| time::now().saturating_sub(moment(text).unwrap());
        for (text, ms) in [("90s", 90_000), ("2m", 120_000), ("1h", 3_600_000), ("7d", 604_800_000)] {
            assert!((ms..ms + 5_000).contains(&ago(text)), "{text}");
        }
        for text in ["", "h", "1w", "-1h", "1.5h", "yesterday", "1é"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_shown_in_two_tables() {
        let times = Percentiles { count: 3, p50: 10, p90: 2_500, p95: 2_500, p99: 2_500, max: 2_500 };
        let total = Group {
            runs: 4,
            by_status: [("completed".to_owned(), 2), ("failed".to_owned(), 1), ("running".to_owned(), 1)].into(),
            ended: 3,
            success_rate: Some(2.0 / 3.0),
            duration_ms: Some(times),
            tokens: Tokens { input: 12, output: 3, ..Tokens::default() },
            ..Group::default()
        };
        let one = Group { key: Some("support".to_owned()), runs: 1, ..Group::default() };
        let counted = Counted { since: None, until: None, truncated: true, covered_since: Some(7), total, groups: vec![one] };
        insta::assert_snapshot!(tables(&counted), @r"
                 RUNS  ENDED  SUCCESS  STATUSES                          TOKENS IN  OUT
        all      4     3      66.7 %   2 completed, 1 failed, 1 running  12         3
        support  1     0      -                                          0          0

                   P50    P90    P95    P99    MAX
        all  took  10 ms  2.5 s  2.5 s  2.5 s  2.5 s

        only runs since 7 were counted: there are more than one answer looks at
        ");
    }
}

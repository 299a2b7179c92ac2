//! `agent-host runs logs`.

use std::time::Duration;

use agent_host_config::Config;
use agent_host_protocol::{RunId, RunLogLine, RunLogPage, RunLogSource, limits::MAX_PAGE, time};
use clap::Args;

use super::runs::Server;
use crate::{output::Output, source::Source, styled, styled::StyledText, text};

/// Pause between two looks at the log of an active run. The host keeps new lines each second.
const PAUSE: Duration = Duration::from_millis(500);

/// Show the log of a run: what its runner wrote to `log` and to its standard streams
///
/// The host keeps the newest lines, within `limits.log_bytes`, as long as it keeps journals.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
    /// Show all lines, then each new one, to the end of the run
    #[arg(long)]
    follow: bool,
    /// Lines after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl Logs {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        let Self { id, follow, mut after, .. } = self;
        let (mut mentioned, mut was_over) = (false, false);
        loop {
            let is_over = source.run(id).await?.status.is_terminal();
            let page = source.run_log(config, id, after.as_deref(), MAX_PAGE).await?;
            if page.dropped_lines > 0 && !mentioned {
                let dropped = page.dropped_lines;
                output.remark(&format!("the first {dropped} lines were dropped: over limits.log_bytes"));
                mentioned = true;
            }
            for line in &page.items {
                output.result(line, || text_of(line))?;
            }
            let RunLogPage { next_cursor, has_more, .. } = page;
            after = next_cursor.or(after);
            if has_more {
                continue;
            }
            // The last lines are kept a moment after the end of the run.
            if !follow || was_over || is_over && matches!(source, Source::Ledger(_)) {
                return Ok(());
            }
            was_over = is_over;
            if matches!(source, Source::Ledger(_)) {
                output.remark("the run has not ended, and no server runs it now: it continues or is closed when one starts");
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// A line as people read it.
fn text_of(line: &RunLogLine) -> StyledText {
    let mut shown = StyledText::default();
    shown.push_str(&format!("{}  ", time::display(line.at)));
    let source = format!("{:<6}", line.source.as_str());
    match line.source {
        RunLogSource::Error => shown.push(styled::of_status("failed"), &source),
        _ => shown.push_str(&source),
    }
    shown.push_str(&format!("  {}\n", text::one_line(&line.text, usize::MAX)));
    shown
}

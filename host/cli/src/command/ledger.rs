//! `agent-host ledger`.

use std::{
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use agent_host_config::Config;
use agent_host_ledger::{
    BackupError, BackupManifest, CheckReport, ExportReport, JournalStats, OpenError, RestoreReport, SalvageReport, Stats,
    WorkspaceUsage,
};
use agent_host_protocol::time;
use agent_host_runs::{BackupReport, ledger_dir};
use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::runs::Server;
use crate::{client::Client, output::Output, progress::Progress, source::open_existing, styled::StyledText, table::Table, text};

/// Look after the ledger; but for `backup`, stop the server first
///
/// Each of these opens the ledger itself, which one process at a time can do. `backup` asks the server where one runs.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Check the whole ledger and show damage; exits with 1 if there is any
    Check(OfPartition),
    /// Show its size and its counts
    Stats(OfPartition),
    /// Give space that is free inside of the file back to the disk
    Compact(OfPartition),
    /// Write all of it as JSON Lines
    Export {
        #[command(flatten)]
        of: OfPartition,
        /// File for the output, instead of standard output; an existing file is not overwritten
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Make a whole copy of it in a folder that is not there yet, also while the server runs
    ///
    /// A running server makes the backup without a pause, and the command moves it to the folder. A backup of a server on
    /// another machine stays there, and the output says where. Files of content are links on the same disk: for a backup
    /// that outlives the disk, copy the folder away.
    Backup {
        /// Folder of the backup
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        server: Server,
    },
    /// Put the ledger of a backup where there is none, after checking all of it
    ///
    /// The backup stays as it is. A ledger that is there is never overwritten: name another data directory, or move it away.
    Restore {
        /// The folder of the backup
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Write all that can be read of a damaged ledger into a new one, and list what is missing; exits with 1 if anything is
    ///
    /// The damaged ledger is only read. A backup has everything up to its moment: restore one if it is recent enough. To use the
    /// new ledger, move the damaged one away and the new one into its place.
    Salvage {
        /// Folder of the damaged ledger, instead of the one of the data directory
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Folder of the new ledger, which must not exist or be empty
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
}

/// The ledger of a host, or its copy of a partition of the cluster.
#[derive(Debug, Args)]
pub(crate) struct OfPartition {
    /// The copy of this partition, where the cluster has several
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    partition: u32,
}

/// A backup copies the whole store.
const BACKUP: Duration = Duration::from_secs(6 * 60 * 60);

impl LedgerCommand {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        if let Self::Backup { dir, server } = self {
            return backup(config, dir, &server, output).await;
        }
        let dir = ledger_dir(config, self.partition());
        // All of it is disk work, for as long as it takes.
        tokio::task::spawn_blocking(move || self.work(&dir, output)).await?
    }

    fn partition(&self) -> u32 {
        match self {
            Self::Check(of) | Self::Stats(of) | Self::Compact(of) | Self::Export { of, .. } => of.partition,
            Self::Backup { .. } | Self::Restore { .. } | Self::Salvage { .. } => 0,
        }
    }

    fn work(self, dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(_) => check(dir, output),
            Self::Stats(_) => stats(dir, output),
            Self::Compact(_) => compact(dir, output),
            Self::Export { out, .. } => export(dir, out.as_deref(), output),
            Self::Restore { dir: from } => restore(&from, dir, output),
            Self::Salvage { from, to } => salvage(from.as_deref().unwrap_or(dir), &to, output),
            // Asked for before this.
            Self::Backup { .. } => Ok(ExitCode::FAILURE),
        }
    }
}

fn check(dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::percent(output, "checking");
    let report = agent_host_ledger::check(dir, |fraction| progress.fraction(fraction))?;
    drop(progress);
    let findings: Vec<_> =
        report.findings.iter().map(|finding| json!({ "table": finding.table, "what": finding.what })).collect();
    let value = json!({
        "sound": report.is_ok(),
        "rows": report.rows,
        "pages_intact": report.pages_intact,
        "findings": findings,
        "findings_count": report.findings_count,
    });
    output.result(&value, || check_text(&report))?;
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_text(report: &CheckReport) -> String {
    if report.is_ok() {
        return format!("the ledger is sound: {} rows read\n", report.rows);
    }
    let mut output = format!("the ledger is damaged: {} findings in {} rows\n", report.findings_count, report.rows);
    if !report.pages_intact {
        output.push_str("  the list of free pages was not intact; it was made anew\n");
    }
    output.extend(report.findings.iter().map(|finding| format!("  {finding}\n")));
    let unlisted = report.findings_count.saturating_sub(report.findings.len() as u64);
    if unlisted > 0 {
        output.push_str(&format!("  and {unlisted} more\n"));
    }
    output
        .push_str("restore it from a backup, or write what can be read into a new ledger: agent-host ledger salvage --to DIR\n");
    output
}

fn stats(dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::spinner(output, "counting");
    let stats = open_existing(dir)?.stats()?;
    drop(progress);
    // Counts of writes since the opening mean nothing here: this process opened the ledger to look at it.
    let value = json!({
        "dir": dir.display().to_string(),
        "file_bytes": stats.file_bytes,
        "wal_file_bytes": stats.wal_file_bytes,
        "active_runs": stats.active_runs,
        "parked_runs": stats.parked_runs,
        "active_in_memory": stats.active_in_memory,
        "journal": stats.journal,
        "workspaces": stats.workspaces,
        "tables": stats.tables,
    });
    output.result(&value, || stats_text(dir, &stats))?;
    Ok(ExitCode::SUCCESS)
}

fn stats_text(dir: &Path, stats: &Stats) -> StyledText {
    let mut table = Table::new(["TABLE", "ROWS", "SIZE"]);
    for of in &stats.tables {
        table.row([of.name.to_owned(), of.rows.to_string(), text::bytes(of.bytes)]);
    }
    let fields = text::fields([
        ("directory", dir.display().to_string()),
        ("store", text::bytes(stats.file_bytes)),
        ("log", text::bytes(stats.wal_file_bytes)),
        ("active runs", format!("{}, {} of them parked", stats.active_runs, stats.parked_runs)),
        ("in memory", format!("{} runs", stats.active_in_memory)),
        ("journals", journals_text(&stats.journal)),
    ]);
    let workspaces = if stats.workspaces.is_empty() { StyledText::default() } else { workspaces_text(&stats.workspaces) };
    StyledText::from(format!("{fields}\n")) + table.render() + workspaces
}

/// The workspaces that keep most.
fn workspaces_text(workspaces: &[WorkspaceUsage]) -> StyledText {
    let mut table = Table::new(["WORKSPACE", "KEEPS"]);
    for WorkspaceUsage { workspace, bytes } in workspaces {
        let name = if workspace.is_empty() { "(none)" } else { workspace };
        table.row([name.to_owned(), text::bytes(*bytes)]);
    }
    StyledText::from("\n".to_owned()) + table.render()
}

fn journals_text(journal: &JournalStats) -> String {
    let JournalStats { rows, bytes, share } = journal;
    format!("{rows} rows, {}, {:.1} % of the tables", text::bytes(*bytes), share * 100.0)
}

fn compact(dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::spinner(output, "compacting");
    let report = agent_host_ledger::compact(dir, |_| ())?;
    drop(progress);
    output.result(&json!({ "before_bytes": report.before, "after_bytes": report.after }), || {
        format!("{} before, {} now\n", text::bytes(report.before), text::bytes(report.after))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn export(dir: &Path, out: Option<&Path>, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::percent(output, "exporting");
    let tell = |fraction| progress.fraction(fraction);
    let Some(path) = out else {
        let report = agent_host_ledger::export(dir, BufWriter::new(io::stdout().lock()), tell)?;
        drop(progress);
        output.remark(&export_text(&report));
        return Ok(ExitCode::SUCCESS);
    };
    let cannot_write = || format!("{} cannot be written", path.display());
    let file = File::create_new(path).with_context(cannot_write)?;
    let report = agent_host_ledger::export(dir, BufWriter::new(&file), tell).inspect_err(|_| {
        // Half an export looks like a whole one. If the file cannot be removed, the error still reports the failure.
        let _ = std::fs::remove_file(path);
    })?;
    file.sync_all().with_context(cannot_write)?;
    drop(progress);
    let value = json!({ "file": path.display().to_string(), "lines": report.lines, "bytes": report.bytes });
    output.result(&value, || format!("{} in {}\n", export_text(&report), path.display()))?;
    Ok(ExitCode::SUCCESS)
}

async fn backup(config: &Config, to: PathBuf, server: &Server, output: Output) -> anyhow::Result<ExitCode> {
    let to = std::path::absolute(&to).with_context(|| format!("{} is no path", to.display()))?;
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::AlreadyThere { path: to }.into());
    }
    let progress = Progress::spinner(output, "backing up");
    let offline = match server.url {
        Some(_) => None,
        None => {
            let (dir, backup) = (ledger_dir(config, 0), agent_host_runs::backup_to(config, to.clone()));
            match tokio::task::spawn_blocking(move || agent_host_ledger::backup(dir, &backup)).await? {
                Err(BackupError::Open(OpenError::AlreadyOpen { .. })) => None,
                backup => Some(backup?),
            }
        }
    };
    let (path, manifest) = match offline {
        Some(manifest) => (to, manifest),
        None => {
            let why = "another process has the ledger open, and only its server can back it up";
            let client = Client::running(config, server.url.as_deref(), why).await?;
            let name = format!("cli-{}-{}", time::now(), std::process::id());
            let backup: BackupReport = client.post("api/v1/backup", &json!({ "to": name }), BACKUP).await?;
            let from = backup.path.clone();
            // On another machine there is nothing to move.
            let path = if from.join("backup.json").exists() {
                let target = to.clone();
                tokio::task::spawn_blocking(move || agent_host_ledger::move_backup(&from, &target)).await??;
                to
            } else {
                from
            };
            (path, backup.manifest)
        }
    };
    drop(progress);
    let value = json!({ "path": path.display().to_string(), "backup": manifest });
    output.result(&value, || backup_text(&path, &manifest))?;
    Ok(ExitCode::SUCCESS)
}

fn backup_text(path: &Path, manifest: &BackupManifest) -> String {
    let mut output = text::fields([
        ("backup", path.display().to_string()),
        ("rows", manifest.rows.to_string()),
        ("store", text::bytes(manifest.store_bytes)),
        ("content", format!("{} files, {}", manifest.blobs, text::bytes(manifest.blob_bytes))),
    ]);
    output.push_str("not in it:\n");
    output.extend(manifest.left_out.iter().map(|what| format!("  {what}\n")));
    output
}

fn restore(from: &Path, dir: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::percent(output, "restoring");
    let report = agent_host_ledger::restore(from, dir, |fraction| progress.fraction(fraction))?;
    drop(progress);
    output.result(&json!({ "dir": dir.display().to_string(), "restored": report }), || {
        let RestoreReport { backup, files } = &report;
        format!(
            "{} has the ledger of {}: {} rows, {} files of content, {files} components\n",
            dir.display(),
            from.display(),
            backup.rows,
            backup.blobs
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn salvage(from: &Path, to: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Progress::percent(output, "salvaging");
    let report = agent_host_ledger::salvage(from, to, |fraction| progress.fraction(fraction))?;
    drop(progress);
    let findings: Vec<_> =
        report.check.findings.iter().map(|finding| json!({ "table": finding.table, "what": finding.what })).collect();
    let value = json!({
        "from": from.display().to_string(),
        "to": to.display().to_string(),
        "complete": report.is_complete(),
        "rows": report.rows,
        "batches": report.batches,
        "blobs": report.blobs,
        "blob_bytes": report.blob_bytes,
        "missing": report.missing,
        "missing_count": report.missing_count,
        "sound": report.check.is_ok(),
        "findings": findings,
        "findings_count": report.check.findings_count,
    });
    output.result(&value, || salvage_text(from, to, &report))?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn salvage_text(from: &Path, to: &Path, report: &SalvageReport) -> String {
    let SalvageReport { rows, batches, blobs, missing, missing_count, check, .. } = report;
    let what = if report.is_complete() { "all" } else { "what can be read" };
    let mut output = format!(
        "{} has {what} of {}: {rows} rows, {batches} batches of the log, {blobs} files of content\n",
        to.display(),
        from.display()
    );
    let mut list = |title: &str, lines: Vec<String>, count: u64| {
        if count == 0 {
            return;
        }
        output.push_str(title);
        let unlisted = count.saturating_sub(lines.len() as u64);
        output.extend(lines.into_iter().map(|line| format!("  {line}\n")));
        if unlisted > 0 {
            output.push_str(&format!("  and {unlisted} more\n"));
        }
    };
    list("missing:\n", missing.iter().map(ToString::to_string).collect(), *missing_count);
    let findings = check.findings.iter().map(ToString::to_string).collect();
    list("rows that refer to what is missing:\n", findings, check.findings_count);
    output.push_str("to use it, move the damaged ledger away and this one into its place\n");
    output
}

fn export_text(report: &ExportReport) -> String {
    format!("{} lines, {}", report.lines, text::bytes(report.bytes))
}

#[cfg(test)]
mod tests {
    use agent_host_ledger::{Finding, Missing};

    use super::*;

    #[test]
    fn journals_are_counted() {
        let journal = JournalStats { rows: 3, bytes: 131_500, share: 0.128 };
        assert_eq!(journals_text(&journal), "3 rows, 128.4 KiB, 12.8 % of the tables");
    }

    #[test]
    fn a_check_says_what_is_wrong_and_what_to_do() {
        let mut report = CheckReport { rows: 12, pages_intact: true, ..CheckReport::default() };
        insta::assert_snapshot!(check_text(&report), @"the ledger is sound: 12 rows read");
        report.findings = vec![Finding { table: "runs", what: "3 comes where 2 should".to_owned() }];
        report.findings_count = 5;
        insta::assert_snapshot!(check_text(&report), @r"
        the ledger is damaged: 5 findings in 12 rows
          runs: 3 comes where 2 should
          and 4 more
        restore it from a backup, or write what can be read into a new ledger: agent-host ledger salvage --to DIR
        ");
    }

    #[test]
    fn a_salvage_lists_what_is_missing() {
        let mut report = SalvageReport {
            rows: 12,
            batches: 3,
            blobs: 1,
            blob_bytes: 7,
            missing: Vec::new(),
            missing_count: 0,
            check: CheckReport { rows: 12, pages_intact: true, ..CheckReport::default() },
        };
        let (from, to) = (Path::new("old"), Path::new("new"));
        insta::assert_snapshot!(salvage_text(from, to, &report), @r"
        new has all of old: 12 rows, 3 batches of the log, 1 files of content
        to use it, move the damaged ledger away and this one into its place
        ");
        report.missing = vec![Missing { kind: "batch", name: "7".to_owned(), reason: "it cannot be read".to_owned() }];
        report.missing_count = 4;
        report.check.findings = vec![Finding { table: "runs", what: "3 comes where 2 should".to_owned() }];
        report.check.findings_count = 1;
        insta::assert_snapshot!(salvage_text(from, to, &report), @r"
        new has what can be read of old: 12 rows, 3 batches of the log, 1 files of content
        missing:
          batch 7: it cannot be read
          and 3 more
        rows that refer to what is missing:
          runs: 3 comes where 2 should
        to use it, move the damaged ledger away and this one into its place
        ");
    }
}

//! `agent-host cluster`.

use std::{path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_ledger::{ImportedLedger, import_ledger};
use agent_host_runs::{ClusterOptions, ClusterStatus, cluster_options, cluster_status, init_cluster};
use clap::Subcommand;
use serde_json::json;

use crate::{failure::Failure, output::Output, progress::Progress, styled::StyledText, table::Table, text};

/// Make the cluster of the configuration in its database, or show it
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Make the tables of a cluster in the database that [server] ledger names
    #[command(
        long_about = "Make the tables of a cluster in the database that [server] ledger names.\n\n\
            The tables are in the schema `agent_host`, which may exist if it is empty. The user of the database owns them; all hosts \
            of the cluster log in as that user.",
        after_long_help = "Examples:\n  agent-host cluster init"
    )]
    Init,
    /// Make the ledger of a single host the beginning of the cluster, before any host joins
    #[command(
        long_about = "Make the ledger of a single host the beginning of the cluster, before any host joins.\n\n\
            The ledger is checked, its contents and its rows are sent to the database, and read back there. No host may have it open. It \
            stays as it is; a cluster that has batches already is refused.",
        after_long_help = "Examples:\n  agent-host cluster import /var/lib/agent-host"
    )]
    Import {
        /// Data directory of the host that had the ledger for itself
        #[arg(value_name = "DATA_DIR")]
        dir: PathBuf,
    },
    /// Show the hosts of the cluster, its snapshots, and the size of its log
    Status,
}

impl Cluster {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let ClusterOptions { server, .. } = cluster_options(config, env!("CARGO_PKG_VERSION"))?.ok_or_else(|| {
            Failure::new(
                "invalid_config",
                "this configuration has no cluster: set [server] ledger to the URL of a PostgreSQL database, and [cluster] advertise \
                 to the address of this host",
            )
        })?;
        match self {
            Self::Init => {
                let name = server.to_string();
                tokio::task::spawn_blocking(move || init_cluster(&server)).await??;
                output.result(&json!({ "database": name }), || {
                    format!("the cluster is made in {name}: start its hosts with `agent-host serve`\n")
                })?;
            }
            Self::Import { dir } => {
                let name = server.to_string();
                let import = move || {
                    let progress = Progress::percent(output, "importing");
                    import_ledger(&server, dir.join("ledger"), |fraction| progress.fraction(fraction))
                };
                let imported = tokio::task::spawn_blocking(import).await??;
                output.result(&import_document(&name, &imported), || import_text(&name, &imported))?;
            }
            Self::Status => {
                let status = tokio::task::spawn_blocking(move || cluster_status(&server)).await??;
                output.result(&document(&status), || status_text(&status))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn import_document(database: &str, imported: &ImportedLedger) -> serde_json::Value {
    json!({
        "database": database,
        "rows": imported.rows,
        "bytes": imported.bytes,
        "blobs": imported.blobs,
        "blob_bytes": imported.blob_bytes,
    })
}

fn import_text(database: &str, imported: &ImportedLedger) -> String {
    format!(
        "the ledger is in {database}: {} rows, {}, and {} contents, {}; start the hosts of the cluster with `agent-host serve`, and the \
         one that had the ledger for itself no more without [server] ledger\n",
        imported.rows,
        text::bytes(imported.bytes),
        imported.blobs,
        text::bytes(imported.blob_bytes)
    )
}

fn document(status: &ClusterStatus) -> serde_json::Value {
    let hosts: Vec<_> = status
        .hosts
        .iter()
        .map(|host| {
            json!({
                "advertise": host.advertise,
                "version": host.version,
                "active": host.is_active,
                "lease_left_ms": host.lease_left_ms,
            })
        })
        .collect();
    let snapshots: Vec<_> = status
        .snapshots
        .iter()
        .map(|snapshot| {
            json!({
                "batch": snapshot.batch,
                "rows": snapshot.rows,
                "pieces": snapshot.pieces,
                "bytes": snapshot.bytes,
                "age_ms": snapshot.age_ms,
                "made_by": snapshot.made_by,
            })
        })
        .collect();
    json!({
        "database": status.server,
        "epoch": status.epoch,
        "first_batch": status.first_batch,
        "last_batch": status.last_batch,
        "log_bytes": status.log_bytes,
        "blob_bytes": status.blob_bytes,
        "snapshots": snapshots,
        "hosts": hosts,
    })
}

fn status_text(status: &ClusterStatus) -> StyledText {
    let mut head = format!(
        "{}: epoch {}, batches {} to {}, log {} bytes, contents {} bytes\n",
        status.server, status.epoch, status.first_batch, status.last_batch, status.log_bytes, status.blob_bytes
    );
    head.extend(status.snapshots.iter().map(|snapshot| {
        format!(
            "snapshot of batch {}: {} bytes in {} pieces, {} s ago, by {}\n",
            snapshot.batch,
            snapshot.bytes,
            snapshot.pieces,
            snapshot.age_ms / 1_000,
            snapshot.made_by
        )
    }));
    if status.hosts.is_empty() {
        return format!("{head}no host has joined: start one with `agent-host serve`\n").into();
    }
    let mut table = Table::new(["HOST", "STATE", "LEASE", "VERSION"]);
    for host in &status.hosts {
        let state = match (host.is_active, host.lease_left_ms > 0) {
            (true, true) => "active",
            (true, false) => "lost",
            (false, true) => "warm",
            (false, false) => "gone",
        };
        let lease = format!("{} ms", host.lease_left_ms);
        table.row([host.advertise.clone(), state.to_owned(), lease, host.version.clone()]);
    }
    let mut text = table.render();
    text.push_str(&head);
    text
}

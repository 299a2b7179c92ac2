//! `agent-host cluster`.

use std::{path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_ledger::{
    ClusterStatus, Drain, HostStatus, ImportedLedger, LostBatch, MAX_PARTITIONS, PartitionStatus, Repair, RepairedCluster,
    SnapshotStatus, cluster_status, drain_host, import_ledger, init_cluster, repair_cluster,
};
use agent_host_runs::{cluster_options, ledger_dir, place_of_entry};
use clap::Subcommand;
use serde_json::json;

use crate::{failure::Failure, output::Output, progress::Progress, styled::StyledText, table::Table, text};

/// Make, show or repair the cluster of the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Make the tables of a cluster in the database that [server] ledger names
    #[command(
        long_about = "Make the tables of a cluster in the database that [server] ledger names.\n\n\
            The tables are in the schema `agent_host`, which may exist if it is empty. The user of the database owns them; all hosts \
            of the cluster log in as that user.",
        after_long_help = "Examples:\n  agent-host cluster init\n  agent-host cluster init --partitions 8"
    )]
    Init {
        /// Number of partitions, which the hosts share; a workspace is in one of them. It cannot be changed later
        #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARTITIONS)))]
        partitions: u32,
    },
    /// Make the ledger of a single host the beginning of the cluster, before any host joins
    #[command(
        long_about = "Make the ledger of a single host the beginning of the cluster, before any host joins.\n\n\
            The ledger is checked, its contents and its rows are sent to the database, and read back there. Everything of a workspace goes \
            to its partition. No host may have the ledger open. It stays as it is; a cluster that has batches already is refused.",
        after_long_help = "Examples:\n  agent-host cluster import /var/lib/agent-host"
    )]
    Import {
        /// Data directory of the host that had the ledger for itself
        #[arg(value_name = "DATA_DIR")]
        dir: PathBuf,
    },
    /// Let a host give the ledger to another one, before it is stopped or upgraded
    #[command(
        long_about = "Let a host give the ledger to another one, before it is stopped or upgraded.\n\n\
            No request fails and no stream breaks off: the host answers what it has begun, its runs go on at the next active host, and it \
            forwards requests from then on, while its /readyz says 503. It takes the ledger again only where no other host would. A start \
            of the host ends that. Waits until another host has the ledger.",
        after_long_help = "Examples:\n  agent-host cluster drain\n  agent-host cluster drain 10.0.0.7:7071"
    )]
    Drain {
        /// Address of the host, as `agent-host cluster status` shows it [default: that of this configuration]
        #[arg(value_name = "HOST")]
        host: Option<String>,
    },
    /// Put back acknowledged batches that the database lost, from the copy of this host
    #[command(
        long_about = "Put back acknowledged batches that the database lost, from the copy of this host.\n\n\
            A host that finds its own batches missing in the database ends with `engine_lost_commits`, as after the promotion of a standby \
            without the last commits, and no host takes the ledger until then. Stop all hosts, and repair on the one that `agent-host \
            cluster status` names. The rows of its copy become a snapshot, and the log goes on behind that.",
        after_long_help = "Examples:\n  agent-host cluster repair\n  agent-host cluster repair --give-up-the-rest"
    )]
    Repair {
        /// Number of the partition, as `agent-host cluster status` shows it
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        partition: u32,
        /// Go on with what this copy has, or with the log where that has more; what only another copy has is lost for good
        #[arg(long)]
        give_up_the_rest: bool,
    },
    /// Show the hosts of the cluster, its snapshots, and the size of its log
    Status,
}

impl Cluster {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let options = cluster_options(config, env!("CARGO_PKG_VERSION"))?.ok_or_else(|| {
            Failure::new(
                "invalid_config",
                "this configuration has no cluster: set [server] ledger to the URL of a PostgreSQL database, and [cluster] advertise \
                 to the address of this host",
            )
        })?;
        let (server, name) = (options.server.clone(), options.server.to_string());
        match self {
            Self::Init { partitions } => {
                let blobs = options.blobs.clone();
                let contents = blobs.as_ref().map(ToString::to_string);
                tokio::task::spawn_blocking(move || init_cluster(&server, blobs.as_ref(), partitions)).await??;
                output.result(&json!({ "database": name, "blobs": contents, "partitions": partitions }), || {
                    let contents =
                        contents.as_ref().map(|address| format!(", with its contents in {address}")).unwrap_or_default();
                    format!("the cluster is made in {name}{contents}: start its hosts with `agent-host serve`\n")
                })?;
            }
            Self::Import { dir } => {
                let import = move || {
                    let progress = Progress::percent(output, "importing");
                    import_ledger(&server, dir.join("ledger"), &place_of_entry, |fraction| progress.fraction(fraction))
                };
                let imported = tokio::task::spawn_blocking(import).await??;
                output.result(&import_document(&name, &imported), || import_text(&name, &imported))?;
            }
            Self::Drain { host } => {
                let host = host.unwrap_or(options.advertise);
                let asked = host.clone();
                let progress = Progress::spinner(output, "waiting until another host has the ledger");
                let drain = tokio::task::spawn_blocking(move || drain_host(&server, &asked)).await??;
                drop(progress);
                output.result(&drain_document(&host, &drain), || drain_text(&host, &drain))?;
            }
            Self::Repair { partition, give_up_the_rest } => {
                let repair = if give_up_the_rest { Repair::GiveUpTheRest } else { Repair::Whole };
                let dir = ledger_dir(config, partition);
                let put_back = move || {
                    let progress = Progress::percent(output, "repairing");
                    repair_cluster(&options, partition, dir, repair, |fraction| progress.fraction(fraction))
                };
                let repaired = tokio::task::spawn_blocking(put_back).await??;
                output.result(&repair_document(&name, &repaired), || repair_text(&name, &repaired))?;
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
        "other_ids": imported.other_ids,
    })
}

fn import_text(database: &str, imported: &ImportedLedger) -> String {
    let other_ids = match imported.other_ids {
        0 => String::new(),
        runs => format!(
            "{runs} runs have ids of a version before, which do not say their partition: requests of operators for them name the workspace \
             (`X-Workspace`)\n"
        ),
    };
    format!(
        "the ledger is in {database}: {} rows, {}, and {} contents, {}; start the hosts of the cluster with `agent-host serve`, and the \
         one that had the ledger for itself no more without [server] ledger\n{other_ids}",
        imported.rows,
        text::bytes(imported.bytes),
        imported.blobs,
        text::bytes(imported.blob_bytes)
    )
}

fn drain_document(host: &str, drain: &Drain) -> serde_json::Value {
    let took_ms = u64::try_from(drain.took.as_millis()).unwrap_or(u64::MAX);
    json!({ "host": host, "owned": drain.owned, "active": drain.active, "took_ms": took_ms })
}

fn drain_text(host: &str, drain: &Drain) -> String {
    let active = drain.active.join(", ");
    match (drain.owned, drain.active.is_empty()) {
        (0, true) => format!("{host} is warm and stays so: stop it\n"),
        (0, false) => format!("{host} is warm and stays so, while {active} is active: stop it\n"),
        _ => {
            let took = drain.took.as_secs_f64();
            format!("{host} has given the ledger to {active}, in {took:.1} s, and forwards requests: stop it\n")
        }
    }
}

fn repair_document(database: &str, repaired: &RepairedCluster) -> serde_json::Value {
    json!({
        "database": database,
        "log_ended": repaired.log_ended,
        "last_batch": repaired.last_batch,
        "given_up": repaired.given_up.as_ref().map(lost_document),
        "blobs": repaired.blobs,
        "missing_blobs": repaired.missing_blobs,
    })
}

fn repair_text(database: &str, repaired: &RepairedCluster) -> String {
    let RepairedCluster { log_ended, last_batch, .. } = repaired;
    let mut text = if last_batch > log_ended {
        format!(
            "{database} has the batches up to {last_batch} again, and had them up to {log_ended}; {} contents were sent\n",
            repaired.blobs
        )
    } else {
        format!("{database} goes on after batch {last_batch}, with which its log ends\n")
    };
    if let Some(lost) = &repaired.given_up {
        text.push_str(&format!(
            "given up: what the host {} has up to batch {}; remove its copy before it joins again\n",
            lost.host, lost.batch
        ));
    }
    if repaired.missing_blobs > 0 {
        text.push_str(&format!(
            "{} contents are neither in the database nor on this host: artifacts that refer to them cannot be read\n",
            repaired.missing_blobs
        ));
    }
    text.push_str("start the hosts of the cluster with `agent-host serve`\n");
    text
}

fn lost_document(lost: &LostBatch) -> serde_json::Value {
    json!({ "batch": lost.batch, "host": lost.host })
}

fn document(status: &ClusterStatus) -> serde_json::Value {
    let host = |host: &HostStatus| {
        json!({
            "advertise": host.advertise,
            "version": host.version,
            "active": host.is_active(),
            "partitions": host.partitions,
            "copies": host.copies,
            "drained": host.is_drained,
            "lease_left_ms": host.lease_left_ms,
        })
    };
    json!({
        "database": status.server,
        "log_bytes": status.log_bytes,
        "blobs": status.blobs,
        "blob_bytes": status.blob_bytes,
        "partitions": status.partitions.iter().map(partition_document).collect::<Vec<_>>(),
        "hosts": status.hosts.iter().map(host).collect::<Vec<_>>(),
    })
}

fn partition_document(partition: &PartitionStatus) -> serde_json::Value {
    let snapshot = |snapshot: &SnapshotStatus| {
        json!({
            "batch": snapshot.batch,
            "rows": snapshot.rows,
            "pieces": snapshot.pieces,
            "bytes": snapshot.bytes,
            "age_ms": snapshot.age_ms,
            "made_by": snapshot.made_by,
        })
    };
    json!({
        "partition": partition.partition,
        "epoch": partition.epoch,
        "owner": partition.owner,
        "first_batch": partition.first_batch,
        "last_batch": partition.last_batch,
        "lost": partition.lost.as_ref().map(lost_document),
        "snapshots": partition.snapshots.iter().map(snapshot).collect::<Vec<_>>(),
    })
}

fn status_text(status: &ClusterStatus) -> StyledText {
    let contents = match &status.blobs {
        Some(address) => format!("contents in {address}"),
        None => format!("contents {} bytes", status.blob_bytes),
    };
    let mut head = format!("{}: log {} bytes, {contents}\n", status.server, status.log_bytes);
    status.partitions.iter().for_each(|partition| head.push_str(&partition_text(partition)));
    if status.hosts.is_empty() {
        return format!("{head}no host has joined: start one with `agent-host serve`\n").into();
    }
    let mut table = Table::new(["HOST", "STATE", "PARTITIONS", "COPIES", "LEASE", "VERSION"]);
    for host in &status.hosts {
        let state = match (host.is_active(), host.lease_left_ms > 0) {
            (true, true) => "active",
            (true, false) => "lost",
            (false, true) if host.is_drained => "drained",
            (false, true) => "warm",
            (false, false) => "gone",
        };
        let [partitions, copies] = [&host.partitions, &host.copies].map(|numbers| numbers.len().to_string());
        let lease = format!("{} ms", host.lease_left_ms);
        table.row([host.advertise.clone(), state.to_owned(), partitions, copies, lease, host.version.clone()]);
    }
    let mut text = table.render();
    text.push_str(&head);
    text
}

fn partition_text(of: &PartitionStatus) -> String {
    let PartitionStatus { partition, epoch, first_batch, last_batch, .. } = of;
    let owner = of.owner.as_deref().unwrap_or("nobody");
    let mut text = format!("partition {partition}: epoch {epoch}, batches {first_batch} to {last_batch}, owned by {owner}\n");
    if let Some(lost) = &of.lost {
        text.push_str(&format!(
            "engine_lost_commits: the log lost batches up to {}, which the copy of {} has; stop all hosts, and run `agent-host cluster \
             repair --partition {partition}` there\n",
            lost.batch, lost.host
        ));
    }
    text.extend(of.snapshots.iter().map(|snapshot| {
        format!(
            "  snapshot of batch {}: {} bytes in {} pieces, {} s ago, by {}\n",
            snapshot.batch,
            snapshot.bytes,
            snapshot.pieces,
            snapshot.age_ms / 1_000,
            snapshot.made_by
        )
    }));
    text
}

//! The cluster as the database shows it.

use crate::{
    cluster::{
        loss::LostBatch,
        schema::{PARTITION, TIMEOUT, check_cluster, first},
        session::Session,
        snapshots::{SnapshotStatus, list},
    },
    cluster_error::ClusterError,
    postgres::{Param, PostgresServer},
};

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// Address of the host.
    pub advertise: String,
    /// Version of the host.
    pub version: String,
    /// True if the host owns the ledger.
    pub is_active: bool,
    /// True if the host was drained since its start: it takes the ledger only where no other would.
    pub is_drained: bool,
    /// Time until its lease is over, in milliseconds; negative where it is.
    pub lease_left_ms: i64,
}

/// The state of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The database, without its password.
    pub server: String,
    /// Epoch of the owner.
    pub epoch: u64,
    /// Number of the first batch that the log still has; 0 while it has none.
    pub first_batch: u64,
    /// Number of the last batch.
    pub last_batch: u64,
    /// Bytes of the log on the database's disk.
    pub log_bytes: u64,
    /// Address of the object store of contents. `None` where they are in the database.
    pub blobs: Option<String>,
    /// Bytes of the contents of blobs in the database.
    pub blob_bytes: u64,
    /// The batch that the log lost, where it did and nothing was put back.
    pub lost: Option<LostBatch>,
    /// The snapshots that copies are made from, the newest first: at most two.
    pub snapshots: Vec<SnapshotStatus>,
    /// The hosts, ordered by address.
    pub hosts: Vec<HostStatus>,
}

/// Reads the state of a cluster.
///
/// # Errors
/// [`ClusterError`].
pub fn cluster_status(server: &PostgresServer) -> Result<ClusterStatus, ClusterError> {
    let mut session = Session::new(server, "agent-host status", TIMEOUT);
    match check_cluster(&mut session, server) {
        // Whoever looks at a cluster has reason to see it also where the clock of this machine is off.
        Ok(_) | Err(ClusterError::ClockOff { .. }) => {}
        Err(error) => return Err(error),
    }
    let rows = session.query(
        "select coalesce((select epoch from agent_host.partitions where p = $1::int8), 0), \
         coalesce((select max(seq) from agent_host.log where p = $1::int8), 0), pg_total_relation_size('agent_host.log'), \
         coalesce((select sum(bytes) from agent_host.blobs), 0)::int8, \
         coalesce((select min(seq) from agent_host.log where p = $1::int8), 0), \
         (select lost_batch from agent_host.partitions where p = $1::int8), (select lost_by from agent_host.partitions where p = $1::int8), \
         (select blobs from agent_host.cluster)",
        &[Param::Int(PARTITION)],
    )?;
    let row = first(&rows, server)?;
    let blobs = row.text(7)?;
    let lost = LostBatch::of(row.int(5)?, row.text(6)?);
    let [epoch, last_batch, log_bytes, blob_bytes, first_batch] =
        [row.number(0)?, row.number(1)?, row.number(2)?, row.number(3)?, row.number(4)?];
    let snapshots = list(|sql, params| session.query(sql, params))?;
    let rows = session.query(
        "select h.advertise, h.version, p.owner is not null, \
         (extract(epoch from h.lease_until - clock_timestamp()) * 1000)::int8, h.drained from agent_host.hosts h \
         left join agent_host.partitions p on p.owner = h.host_id and p.incarnation = h.incarnation order by h.advertise",
        &[],
    )?;
    let mut hosts = Vec::with_capacity(rows.len());
    for row in rows {
        hosts.push(HostStatus {
            advertise: row.text(0)?.unwrap_or_default(),
            version: row.text(1)?.unwrap_or_default(),
            is_active: row.flag(2)?,
            is_drained: row.flag(4)?,
            lease_left_ms: row.int(3)?.unwrap_or_default(),
        });
    }
    Ok(ClusterStatus {
        server: server.to_string(),
        epoch,
        first_batch,
        last_batch,
        log_bytes,
        blobs,
        blob_bytes,
        lost,
        snapshots,
        hosts,
    })
}

//! The cluster as the database shows it.

use crate::{
    cluster::{
        loss::LostBatch,
        schema::{TIMEOUT, check_cluster, first},
        session::Session,
        snapshots::{SnapshotStatus, list},
    },
    cluster_error::ClusterError,
    postgres::PostgresServer,
};

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// Address of the host.
    pub advertise: String,
    /// Version of the host.
    pub version: String,
    /// The partitions that the host owns.
    pub partitions: Vec<u32>,
    /// The partitions of which the host has copies that are not behind, those that it owns among them.
    pub copies: Vec<u32>,
    /// True if the host was drained since its start: it takes a partition only where no other would.
    pub is_drained: bool,
    /// Time until its lease is over, in milliseconds; negative where it is.
    pub lease_left_ms: i64,
}

impl HostStatus {
    /// True if the host owns a partition.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.partitions.is_empty()
    }
}

/// A partition of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Number of the partition, from 0.
    pub partition: u32,
    /// Epoch of the owner.
    pub epoch: u64,
    /// Address of the owner.
    pub owner: Option<String>,
    /// Number of the first batch that the log still has; 0 while it has none.
    pub first_batch: u64,
    /// Number of the last batch.
    pub last_batch: u64,
    /// The batch that the log lost, where it did and nothing was put back.
    pub lost: Option<LostBatch>,
    /// The snapshots that copies are made from, the newest first: at most two.
    pub snapshots: Vec<SnapshotStatus>,
}

/// The state of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The database, without its password.
    pub server: String,
    /// Bytes of the log on the database's disk.
    pub log_bytes: u64,
    /// Address of the object store of contents. `None` where they are in the database.
    pub blobs: Option<String>,
    /// Bytes of the contents of blobs in the database.
    pub blob_bytes: u64,
    /// The partitions, by number: one at least.
    pub partitions: Vec<PartitionStatus>,
    /// The hosts, ordered by address.
    pub hosts: Vec<HostStatus>,
}

const CLUSTER: &str = "select pg_total_relation_size('agent_host.log'), coalesce((select sum(bytes) from agent_host.blobs), 0)::int8, \
    (select blobs from agent_host.cluster)";

const PARTITIONS: &str = "select p.p, p.epoch, h.advertise, coalesce((select min(seq) from agent_host.log l where l.p = p.p), 0), \
    coalesce((select max(seq) from agent_host.log l where l.p = p.p), 0), p.lost_batch, p.lost_by from agent_host.partitions p \
    left join agent_host.hosts h on h.host_id = p.owner and h.incarnation = p.incarnation order by p.p";

const HOSTS: &str = "select h.advertise, h.version, (extract(epoch from h.lease_until - clock_timestamp()) * 1000)::int8, h.drained, \
    coalesce((select string_agg(p.p::text, ' ' order by p.p) from agent_host.partitions p where p.owner = h.host_id \
    and p.incarnation = h.incarnation), ''), coalesce(h.copies, '') from agent_host.hosts h order by h.advertise";

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
    let rows = session.query(CLUSTER, &[])?;
    let row = first(&rows, server)?;
    let (log_bytes, blob_bytes, blobs) = (row.number(0)?, row.number(1)?, row.text(2)?);
    let rows = session.query(PARTITIONS, &[])?;
    let mut partitions = Vec::with_capacity(rows.len());
    for row in rows {
        let number = row.number(0)?;
        partitions.push(PartitionStatus {
            partition: u32::try_from(number).unwrap_or(u32::MAX),
            epoch: row.number(1)?,
            owner: row.text(2)?,
            first_batch: row.number(3)?,
            last_batch: row.number(4)?,
            lost: LostBatch::of(row.int(5)?, row.text(6)?),
            snapshots: list(row.int(0)?.unwrap_or_default(), |sql, params| session.query(sql, params))?,
        });
    }
    let rows = session.query(HOSTS, &[])?;
    let mut hosts = Vec::with_capacity(rows.len());
    for row in rows {
        let numbers = |column: usize| {
            let list = row.text(column)?.unwrap_or_default();
            let numbers = list.split([' ', ',']).filter_map(|partition| partition.parse().ok());
            Ok::<Vec<u32>, ClusterError>(numbers.collect())
        };
        hosts.push(HostStatus {
            advertise: row.text(0)?.unwrap_or_default(),
            version: row.text(1)?.unwrap_or_default(),
            lease_left_ms: row.int(2)?.unwrap_or_default(),
            is_drained: row.flag(3)?,
            partitions: numbers(4)?,
            copies: numbers(5)?,
        });
    }
    Ok(ClusterStatus { server: server.to_string(), log_bytes, blobs, blob_bytes, partitions, hosts })
}

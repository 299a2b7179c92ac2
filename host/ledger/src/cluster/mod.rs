//! Ledgers whose logs are in PostgreSQL, so that another host can go on with each: its owner writes it, and the other hosts follow.
//!
//! | row in the database | owns |
//! |---|---|
//! | `hosts` | the lease of each host, which a heartbeat renews, the copies that it has, and whether it is drained |
//! | `partitions` | the owner of each ledger and its epoch |
//! | `log` | the batches; the primary key is the fence |
//! | `snapshots`, `snapshot_pieces`, `snapshot_contents` | the rows after a batch, behind which the log is trimmed |
//! | `permits` | the runs that each partition may execute of a binding with limits |
//! | `blobs`, `blob_pieces` | contents of blobs, where they are in no object store ([`StorageAddress`]) |
//!
//! A partition is one ledger. The files of a host are a copy: redb has the batches up to one of them, and opening the copy applies the later ones. A copy that
//! has nothing, or ends before the log begins, is made from a snapshot first. Each partition has its owner and some followers ([`placement`]); the other
//! hosts look on, without a copy. A host that
//! takes over raises the epoch, ends the sessions of the owner before, reads the end of the log, and writes a first batch of its own
//! without rows; from then on the owner before can commit nothing. The owner acts only within its lease ([`crate::lease`]).

mod appender;
mod blobs;
mod bystander;
mod division;
mod drain;
mod frame;
mod import;
mod log;
mod looks;
mod loss;
mod maker;
mod member;
mod ownership;
mod partition;
mod permits;
mod pieces;
mod placement;
mod repair;
mod restore;
mod schema;
mod session;
mod snapshots;
mod source;
mod standby;
mod status;
mod storage;

use std::time::Duration;

pub use bystander::Bystander;
pub use division::{EntryPlace, PlaceOfEntry};
pub use drain::{Drain, drain_host};
pub use import::{ImportedLedger, import_ledger};
pub use loss::LostBatch;
pub use member::ClusterMember;
pub use partition::Partition;
pub use repair::{Repair, RepairedCluster, repair_cluster};
pub use schema::{MAX_PARTITIONS, init_cluster};
pub use snapshots::SnapshotStatus;
pub use standby::{Standby, StandbyStatus, StandbyWatch};
pub use status::{ClusterStatus, HostStatus, PartitionStatus, cluster_status};
pub use storage::StorageAddress;

use crate::postgres::PostgresServer;

/// Membership of a host in a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The database.
    pub server: PostgresServer,
    /// Address of this host for people and other hosts. No two hosts have the same.
    pub advertise: String,
    /// Version of this host, which [`cluster_status`] shows.
    pub version: String,
    /// Length of the lease. Another host takes over when it is over; the owner stops two seconds earlier, or after four fifths of a
    /// lease shorter than ten seconds.
    pub lease: Duration,
    /// Hosts that follow each partition into a copy, beside its owner; the first partition is followed by all.
    pub followers: u32,
    /// The object store of the contents of blobs, as this host is configured. `None`: wherever the cluster has them.
    pub blobs: Option<StorageAddress>,
}

/// Length of a lease by default.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);

//! The errors of joining a cluster.

use crate::postgres::PostgresError;

/// The reason why a host could not make, read or join a cluster. No message holds a password.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The database cannot be reached or refuses.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The server is too old.
    #[error("PostgreSQL at {server} has version {found}, and a cluster needs 14 or newer: upgrade it, or name another one")]
    TooOld {
        /// Host and port.
        server: String,
        /// Version of the server.
        found: String,
    },
    /// The server takes no writes.
    #[error("PostgreSQL at {server} takes no writes, because it is a standby or read-only: name the primary")]
    ReadOnly {
        /// Host and port.
        server: String,
    },
    /// The user may not do what a host does.
    #[error(
        "the user `{user}` has no right to {action} at PostgreSQL {server}: make the cluster and run all hosts as one user, or grant \
         it that right"
    )]
    Rights {
        /// Host and port.
        server: String,
        /// The user.
        user: String,
        /// The statement that was refused.
        action: String,
    },
    /// The database has no cluster.
    #[error("the database {server} has no cluster yet: make one with `agent-host cluster init`")]
    NoCluster {
        /// The database.
        server: String,
    },
    /// The database has a cluster already.
    #[error("the database {server} has a cluster already: see `agent-host cluster status`, or name another database")]
    AlreadyThere {
        /// The database.
        server: String,
    },
    /// The schema of that name is something else.
    #[error(
        "the schema `agent_host` of {server} is not that of a cluster ({reason}): name another database, or move that schema away"
    )]
    ForeignSchema {
        /// The database.
        server: String,
        /// Description of the difference.
        reason: String,
    },
    /// Another version of agent-host has made the cluster.
    #[error(
        "the cluster in {server} has schema {found_schema} with ledger format {found_format}, and this agent-host has {schema} with \
         {format}: run the version of agent-host that the other hosts run"
    )]
    OtherFormat {
        /// The database.
        server: String,
        /// Version of the schema there.
        found_schema: u64,
        /// Format of the ledger there.
        found_format: u64,
        /// Version of the schema of this build.
        schema: u64,
        /// Format of the ledger of this build.
        format: u64,
    },
    /// The clocks differ.
    #[error(
        "the clock of this host is {off_ms} ms off that of PostgreSQL at {server}, and 2,000 are allowed: synchronize both clocks \
         (NTP), then start the host again"
    )]
    ClockOff {
        /// Host and port.
        server: String,
        /// Difference in milliseconds; positive where this host is ahead.
        off_ms: i64,
    },
    /// The address of an object store cannot be read.
    #[error(
        "`{address}` is no address of an object store ({reason}): write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
         file:///FOLDER"
    )]
    NoStorageAddress {
        /// The text.
        address: String,
        /// Description of the fault.
        reason: String,
    },
    /// The object store does not do what it is asked.
    #[error(
        "the object store {address} cannot be used: {reason}; its credentials are those of the environment (docs/CLUSTER.md), else of \
         the machine"
    )]
    Storage {
        /// Address of the store.
        address: String,
        /// Reason of the store.
        reason: String,
    },
    /// The object store has objects of another cluster.
    #[error(
        "the object store {address} is that of another cluster: name a prefix of its own in [cluster] blobs, or remove `cluster.json` \
         there if that cluster is gone"
    )]
    ForeignStorage {
        /// Address of the store.
        address: String,
    },
    /// The object store has nothing of the cluster.
    #[error(
        "the object store {address} has nothing of this cluster (`cluster.json` is missing): mount the folder or name the bucket in which \
         it was"
    )]
    NoStorage {
        /// Address of the store.
        address: String,
    },
    /// The host is configured with another place for contents than the cluster has.
    #[error(
        "[cluster] blobs of this host is {own}, and the cluster in {server} has its contents in {found}: write the same on each host. \
         Contents move with a new cluster (`agent-host cluster init`, `agent-host cluster import`)"
    )]
    OtherStorage {
        /// The database.
        server: String,
        /// Place of the cluster.
        found: String,
        /// Place in the configuration.
        own: String,
    },
    /// A cluster cannot have so many partitions.
    #[error("a cluster has 1 to {most} partitions, and {asked} were asked for")]
    Partitions {
        /// The number that was asked for.
        asked: u32,
        /// The largest number.
        most: u32,
    },
    /// The cluster has no such partition.
    #[error("the cluster in {server} has {partitions} partitions, numbered from 0, and none with the number {partition}")]
    NoPartition {
        /// The database.
        server: String,
        /// The number.
        partition: u32,
        /// Number of partitions.
        partitions: u32,
    },
    /// Rows that belong together would come into two partitions.
    #[error(
        "the ledger in {dir} has in two workspaces, and so in two partitions, {what}: import it into a cluster with one partition \
         (`agent-host cluster init`)"
    )]
    ImportDivides {
        /// Folder of the ledger.
        dir: String,
        /// The two rows.
        what: String,
    },
    /// Runs under way have ids of a version before, which do not say their partition.
    #[error(
        "{runs} runs of the ledger in {dir} have not ended, and a version before has made their ids, which do not say their partition: let them end \
         on a host of that ledger, or import it into a cluster with one partition (`agent-host cluster init`)"
    )]
    ImportOtherIds {
        /// Folder of the ledger.
        dir: String,
        /// Number of the runs.
        runs: u64,
    },
    /// Another host has the address.
    #[error("another host of the cluster is at `{advertise}` too: give each host an address of its own in [cluster] advertise")]
    AdvertiseTaken {
        /// The address.
        advertise: String,
    },
    /// No host has the address.
    #[error("the cluster in {server} has no host at `{advertise}` that is alive; `agent-host cluster status` lists the hosts")]
    NoSuchHost {
        /// The database.
        server: String,
        /// The address.
        advertise: String,
    },
    /// No other host would take the ledger.
    #[error(
        "no other host of the cluster in {server} could take the ledger from `{advertise}`: start one that is not drained, and wait until \
         `agent-host cluster status` shows it as warm"
    )]
    NobodyToTakeOver {
        /// The database.
        server: String,
        /// Address of the host.
        advertise: String,
    },
    /// The host has not given the ledger away.
    #[error(
        "`{advertise}` was asked to give the ledger away, and {waited_s} s later no other host has it: see its log and `agent-host cluster \
         status`; another host takes the ledger when that one is stopped"
    )]
    NotDrained {
        /// Address of the host.
        advertise: String,
        /// Time that was waited, in seconds.
        waited_s: u64,
    },
    /// The directory holds a ledger that does not belong to this cluster.
    #[error(
        "the ledger in {dir} is not a copy of this cluster's: name an empty directory in [server] data_dir; `agent-host cluster \
         import` makes an embedded ledger the beginning of a new cluster"
    )]
    NotACopy {
        /// The directory of the ledger.
        dir: String,
    },
    /// The directory holds a copy of a cluster's ledger, and is opened as a ledger of its own.
    #[error(
        "the ledger in {dir} is a copy of a cluster's: set [server] ledger to the cluster's database, or name another data directory"
    )]
    IsACopy {
        /// The directory of the ledger.
        dir: String,
    },
    /// The copy has an older format.
    #[error(
        "the copy in {dir} has the format of an older agent-host: remove it, and the host makes it anew from the cluster's log"
    )]
    OldCopy {
        /// The directory of the ledger.
        dir: String,
    },
    /// The database lacks what was acknowledged.
    #[error(
        "engine_lost_commits: the copy in {dir} has batch {copy}, and the log in {server} {log}: the database has lost acknowledged \
         commits, as a standby does that was promoted without them. Stop all hosts, and put them back with `agent-host cluster repair` on \
         the host whose copy has most (`agent-host cluster status` names it); to give up what only this copy has, remove {dir}"
    )]
    LostCommits {
        /// The database.
        server: String,
        /// The directory of the copy.
        dir: String,
        /// Last batch of the copy.
        copy: u64,
        /// Description of the log.
        log: String,
    },
    /// Another host has noticed that the database lacks what was acknowledged.
    #[error(
        "engine_lost_commits: the log in {server} lost batch {batch}, which the copy of the host {host} has, and nobody takes the ledger \
         meanwhile: stop that host, and put the batch back with `agent-host cluster repair` there"
    )]
    AwaitsRepair {
        /// The database.
        server: String,
        /// Last batch of the copy.
        batch: u64,
        /// Address of its host.
        host: String,
    },
    /// A repair finds nothing to put back.
    #[error(
        "the log in {server} has batch {copy}, with which the copy of this host ends, and no host has noticed a loss: there is nothing to \
         repair"
    )]
    NothingLost {
        /// The database.
        server: String,
        /// Last batch of the copy.
        copy: u64,
    },
    /// A repair while a host is active.
    #[error("{host} owns the ledger in {server}: stop all hosts of the cluster, then repair")]
    RepairHeld {
        /// The database.
        server: String,
        /// The host, with its address where that is known.
        host: String,
    },
    /// Another copy has more.
    #[error(
        "the copy in {dir} ends with batch {copy}, and that of the host {host} has batch {batch}: repair on that host; where its copy is \
         gone, `--give-up-the-rest` goes on with this one"
    )]
    RepairBehind {
        /// The directory of the copy.
        dir: String,
        /// Last batch of the copy.
        copy: u64,
        /// Last batch of the other copy.
        batch: u64,
        /// Address of its host.
        host: String,
    },
    /// The log is no beginning of what the copy has.
    #[error(
        "the copy in {dir} ends with batch {copy} of epoch {copy_epoch}, and the log in {server} with batch {log} of epoch {log_epoch}: \
         another host has gone on without what was lost, so the copy does not continue the log. `agent-host ledger export` shows what the \
         copy has; remove it to let this host go on with the log"
    )]
    RepairForked {
        /// The database.
        server: String,
        /// The directory of the copy.
        dir: String,
        /// Last batch of the copy.
        copy: u64,
        /// Epoch of that batch.
        copy_epoch: u64,
        /// Last batch of the log.
        log: u64,
        /// Epoch of that batch.
        log_epoch: u64,
    },
    /// A row of the log is not what was written.
    #[error("the log of the cluster in {server} is damaged at batch {batch} ({reason}): restore the database from its backup")]
    LogDamaged {
        /// The database.
        server: String,
        /// Number of the batch.
        batch: u64,
        /// Description of the damage.
        reason: String,
    },
    /// The log was trimmed, or a ledger imported, while the copy had no part of it.
    #[error(
        "the copy of this host ends with batch {copy}, and the log in {server} goes on from batch {first}: start the host again, and its \
         copy begins from the newest snapshot"
    )]
    CopyBehind {
        /// The database.
        server: String,
        /// Last batch of the copy.
        copy: u64,
        /// The batch that a copy must have.
        first: u64,
    },
    /// The log does not go on from an empty copy, and no snapshot can be read.
    #[error(
        "the log in {server} goes on from batch {first}, and no snapshot before that can be read ({reason}): start a host whose data \
         directory has a copy of the cluster, which makes a new snapshot, or restore the database from its backup"
    )]
    NoSnapshot {
        /// The database.
        server: String,
        /// The batch that a copy must have.
        first: u64,
        /// The reasons, one for each snapshot.
        reason: String,
    },
    /// The cluster that a ledger should become the beginning of has begun already.
    #[error(
        "the cluster in {server} has batches already, so no ledger can become its beginning: make one in another database with \
         `agent-host cluster init`, and import before any host or key is made there"
    )]
    HasBatches {
        /// The database.
        server: String,
    },
    /// The ledger whose rows should become a snapshot is not sound.
    #[error(
        "the ledger in {dir} is damaged, and is not sent to the cluster ({reason}): see `agent-host ledger check`, and restore or salvage \
         it first"
    )]
    SourceDamaged {
        /// The directory of the ledger.
        dir: String,
        /// Description of the damage.
        reason: String,
    },
    /// The ledger to be imported has the format of another version.
    #[error(
        "the ledger in {dir} has format {found}, and a cluster of this agent-host has {format}: start and stop a host of this version on \
         it without [server] ledger, which raises the format, then import it"
    )]
    ImportFormat {
        /// The directory of the ledger.
        dir: String,
        /// Format of the ledger.
        found: u32,
        /// Format of this build.
        format: u32,
    },
    /// Another process makes a snapshot.
    #[error("another process sends rows to {server}, or makes a snapshot there: wait for its end")]
    SnapshotBusy {
        /// The database.
        server: String,
    },
    /// The database does not have what was sent.
    #[error("what was sent to {server} cannot be read back ({reason})")]
    NotReadBack {
        /// The database.
        server: String,
        /// The reason.
        reason: String,
    },
}

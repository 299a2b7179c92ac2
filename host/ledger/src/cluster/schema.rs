//! The tables of a cluster in the schema `agent_host`: making them, and checks before a host joins.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use agent_host_protocol::time;

use crate::{
    cluster::{
        session::Session,
        storage::{ObjectStorage, StorageAddress},
    },
    cluster_error::ClusterError,
    postgres::{Connection, Param, PostgresError, PostgresServer, Row},
    rows::FORMAT,
};

/// Version of the tables.
const SCHEMA: u64 = 6;
/// The first version whose tables [`UPGRADE`] makes those of this one.
const FIRST_SCHEMA: u64 = 1;
/// The partition of a cluster that has one; every cluster has this one.
pub(crate) const FIRST_PARTITION: i64 = 0;
/// Partitions of a cluster, at most: each costs a host some threads, connections and statements a second.
pub const MAX_PARTITIONS: u32 = 64;
/// Largest difference of a host's clock and the database's.
const CLOCK_OFF_MS: i64 = 2_000;
/// Time for an answer of the database, outside of commits.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The tables. `frame` is packed by hosts, and never read but whole. A copy that ends before `log_first` begins from a snapshot. `lost_batch`
/// is a batch that the copy of `lost_by` has and the log lost; until it is put back nobody takes the ledger. A host that is `drained` takes
/// a partition only where no other would; it has copies that are not behind of the partitions `copies`, and where it `follows`, of all, and
/// `reads_packed` says whether it reads packed frames. The pieces of a snapshot are in `snapshot_contents`, each once, by its SHA-256; an empty content is in the object store whose address is in `blobs`.
const TABLES: &str = "
create table agent_host.cluster (
    one boolean primary key default true check (one),
    schema_version int8 not null,
    ledger_format int8 not null,
    log_seed int8 not null,
    blobs text,
    created_at timestamptz not null default clock_timestamp()
);
create table agent_host.hosts (
    host_id text primary key,
    incarnation int8 not null,
    advertise text not null,
    version text not null,
    lease_ms int8 not null,
    started_at timestamptz not null,
    lease_until timestamptz not null,
    drained boolean not null default false,
    follows boolean not null default false,
    copies text,
    reads_packed boolean not null default false
);
create table agent_host.partitions (
    p int8 primary key,
    epoch int8 not null,
    owner text,
    incarnation int8,
    since timestamptz,
    log_first int8 not null default 0,
    lost_batch int8,
    lost_by text
);
create table agent_host.log (
    p int8 not null,
    seq int8 not null,
    epoch int8 not null,
    frame bytea not null,
    primary key (p, seq)
);
alter table agent_host.log alter column frame set storage external;
create table agent_host.blobs (
    sha256 bytea not null,
    bytes int8 not null,
    written_at timestamptz not null,
    p int8 not null default 0,
    primary key (p, sha256)
);
create table agent_host.blob_pieces (
    sha256 bytea not null,
    piece int8 not null,
    content bytea not null,
    p int8 not null default 0,
    primary key (p, sha256, piece)
);
alter table agent_host.blob_pieces alter column content set storage external;
create table agent_host.snapshots (
    p int8 not null,
    seq int8 not null,
    epoch int8 not null,
    made_by text not null,
    pieces int8 not null default 0,
    rows int8 not null default 0,
    bytes int8 not null default 0,
    read_back_at timestamptz,
    primary key (p, seq)
);
create table agent_host.snapshot_pieces (
    p int8 not null,
    seq int8 not null,
    piece int8 not null,
    sha256 bytea not null,
    primary key (p, seq, piece)
);
create index snapshot_pieces_sha256 on agent_host.snapshot_pieces (sha256);
create table agent_host.snapshot_contents (
    sha256 bytea primary key,
    content bytea not null
);
alter table agent_host.snapshot_contents alter column content set storage external;
create table agent_host.permits (
    binding text primary key,
    version int8 not null,
    state text not null
);
";

/// Statements that make the tables those of this version. Hosts of the version before work with them too.
const UPGRADE: &str = "begin; select pg_advisory_xact_lock(7070, 22);
alter table agent_host.hosts add column if not exists drained boolean not null default false;
alter table agent_host.cluster add column if not exists blobs text;
alter table agent_host.hosts add column if not exists follows boolean not null default false;
alter table agent_host.blobs add column if not exists p int8 not null default 0,
    drop constraint blobs_pkey, add primary key (p, sha256);
alter table agent_host.blob_pieces add column if not exists p int8 not null default 0,
    drop constraint blob_pieces_pkey, add primary key (p, sha256, piece);
create table if not exists agent_host.permits (binding text primary key, version int8 not null, state text not null);
alter table agent_host.hosts add column if not exists copies text,
    add column if not exists reads_packed boolean not null default false;
update agent_host.cluster set schema_version = 6; commit";

/// Names of the tables, and what a host does with them.
const RIGHTS: [(&str, &str); 19] = [
    ("cluster", "select"),
    ("hosts", "insert"),
    ("hosts", "update"),
    ("hosts", "delete"),
    ("partitions", "update"),
    ("log", "select"),
    ("log", "insert"),
    ("log", "delete"),
    ("blobs", "insert"),
    ("blob_pieces", "insert"),
    ("snapshots", "insert"),
    ("snapshots", "update"),
    ("snapshots", "delete"),
    ("snapshot_pieces", "insert"),
    ("snapshot_pieces", "delete"),
    ("snapshot_contents", "insert"),
    ("snapshot_contents", "delete"),
    ("permits", "insert"),
    ("permits", "update"),
];

/// Facts of a cluster that never change.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    /// Key of the checksums in the log, which tells ledgers apart.
    pub(crate) seed: u64,
    /// The object store of its contents; `None` where they are in the database.
    pub(crate) blobs: Option<StorageAddress>,
    /// Number of partitions.
    pub(crate) partitions: u32,
}

/// The key of the checksums in the log of a partition, which tells its copies from those of others.
pub(crate) fn seed_of(seed: u64, partition: i64) -> u64 {
    seed ^ partition.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Cluster {
    /// Opens the object store of the contents and checks that it is that of this cluster. `None` where they are in the database.
    pub(crate) fn storage(&self) -> Result<Option<Arc<ObjectStorage>>, ClusterError> {
        let Some(address) = &self.blobs else { return Ok(None) };
        let storage = ObjectStorage::open(address)?;
        storage.check(self.seed)?;
        Ok(Some(Arc::new(storage)))
    }
}

pub(crate) fn first<'a>(rows: &'a [Row], server: &PostgresServer) -> Result<&'a Row, PostgresError> {
    let reason = || PostgresError::Protocol { server: server.place().into(), reason: "an answer has no row".into() };
    rows.first().ok_or_else(reason)
}

/// Checks of the server itself.
fn check_server(session: &mut Session, server: &PostgresServer) -> Result<(), ClusterError> {
    let rows = session.query_again(
        "select current_setting('server_version_num')::int8, current_setting('server_version')::text, pg_is_in_recovery() or \
         current_setting('transaction_read_only')::bool",
        &[],
    )?;
    let row = first(&rows, server)?;
    if row.number(0)? < 140_000 {
        return Err(ClusterError::TooOld { server: server.place(), found: row.text(1)?.unwrap_or_default() });
    }
    if row.flag(2)? {
        return Err(ClusterError::ReadOnly { server: server.place() });
    }
    Ok(())
}

/// True if the schema has the table `cluster`.
fn has_cluster(session: &mut Session, server: &PostgresServer) -> Result<bool, ClusterError> {
    let rows = session.query_again(
        "select (select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'agent_host')::int8, \
         to_regclass('agent_host.cluster') is not null",
        &[],
    );
    let rows = rows.map_err(|error| rights(error, server, "use the schema agent_host"))?;
    let row = first(&rows, server)?;
    match (row.number(0)?, row.flag(1)?) {
        (_, true) => Ok(true),
        (0, false) => Ok(false),
        (count, false) => Err(ClusterError::ForeignSchema {
            server: server.to_string(),
            reason: format!("it has {count} tables and indexes, and no table `cluster`"),
        }),
    }
}

/// A missing right, where the refusal says so.
pub(crate) fn rights(error: PostgresError, server: &PostgresServer, action: &str) -> ClusterError {
    if error.code() == Some("42501") {
        return ClusterError::Rights { server: server.place(), user: server.user().to_owned(), action: action.to_owned() };
    }
    error.into()
}

/// Makes the cluster in an empty schema, with so many partitions. Contents of blobs and of snapshots will be in the object store at `blobs`,
/// which no cluster has yet, else in the database.
///
/// # Errors
/// [`ClusterError`]; then nothing was made.
pub fn init_cluster(server: &PostgresServer, blobs: Option<&StorageAddress>, partitions: u32) -> Result<(), ClusterError> {
    if !(1..=MAX_PARTITIONS).contains(&partitions) {
        return Err(ClusterError::Partitions { asked: partitions, most: MAX_PARTITIONS });
    }
    let mut session = Session::new(server, "agent-host init", TIMEOUT);
    check_server(&mut session, server)?;
    if has_cluster(&mut session, server)? {
        return Err(ClusterError::AlreadyThere { server: server.to_string() });
    }
    // The standard library seeds its hashers from the system's randomness.
    let seed = RandomState::new().hash_one(server.place());
    let storage = blobs.map(ObjectStorage::open).transpose()?;
    storage.as_ref().map_or(Ok(()), |storage| storage.claim(seed))?;
    let made = make_tables(server, seed, blobs, partitions);
    if let (Some(storage), Err(_)) = (storage, &made) {
        storage.release();
    }
    made
}

fn make_tables(server: &PostgresServer, seed: u64, blobs: Option<&StorageAddress>, partitions: u32) -> Result<(), ClusterError> {
    let seed = i64::from_be_bytes(seed.to_be_bytes());
    // A path may have quotes.
    let blobs = blobs.map_or_else(|| "null".to_owned(), |address| format!("'{}'", address.to_string().replace('\'', "''")));
    let mut connection = Connection::open(server, "agent-host init", TIMEOUT)?;
    let made = connection.execute(&format!(
        "begin; select pg_advisory_xact_lock(7070, 22); create schema if not exists agent_host; {TABLES}
         insert into agent_host.partitions (p, epoch) select p, 0 from generate_series(0, {partitions} - 1) p;
         insert into agent_host.cluster (schema_version, ledger_format, log_seed, blobs) values ({SCHEMA}, {FORMAT}, {seed}, {blobs});
         commit"
    ));
    made.map_err(|error| match error.code() {
        // Another process has made the tables meanwhile.
        Some("42P07" | "42P06" | "23505") => ClusterError::AlreadyThere { server: server.to_string() },
        _ => rights(error, server, "create a schema or tables in it"),
    })
}

/// Checks that this process can work with the cluster.
pub(crate) fn check_cluster(session: &mut Session, server: &PostgresServer) -> Result<Cluster, ClusterError> {
    check_server(session, server)?;
    if !has_cluster(session, server)? {
        return Err(ClusterError::NoCluster { server: server.to_string() });
    }
    let cluster = read_cluster(session, server)?;
    check_rights(session, server)?;
    check_clock(session, server)?;
    Ok(cluster)
}

/// Reads the one row of the table `cluster`.
pub(crate) fn read_cluster(session: &mut Session, server: &PostgresServer) -> Result<Cluster, ClusterError> {
    let (found_schema, found_format) = read_version(session, server)?;
    let (schema, format) = (SCHEMA, u64::from(FORMAT));
    if found_schema != schema || found_format != format {
        return Err(ClusterError::OtherFormat { server: server.to_string(), found_schema, found_format, schema, format });
    }
    let rows = session
        .query_again("select log_seed, blobs, (select count(*) from agent_host.partitions) from agent_host.cluster", &[])?;
    let row = first(&rows, server)?;
    let seed = row.int(0)?.unwrap_or_default();
    let blobs = row.text(1)?.map(|address| StorageAddress::parse(&address)).transpose()?;
    let partitions = u32::try_from(row.number(2)?).unwrap_or(u32::MAX);
    Ok(Cluster { seed: u64::from_be_bytes(seed.to_be_bytes()), blobs, partitions })
}

/// The versions of the tables and of the ledger in them.
fn read_version(session: &mut Session, server: &PostgresServer) -> Result<(u64, u64), ClusterError> {
    let rows = session.query_again("select schema_version, ledger_format from agent_host.cluster", &[]);
    let rows = rows.map_err(|error| match error.code() {
        Some("42703" | "42P01") => foreign(server, "its table `cluster` has other columns"),
        _ => rights(error, server, "select in the table agent_host.cluster"),
    })?;
    let Some(row) = rows.first() else { return Err(foreign(server, "its table `cluster` has no row")) };
    Ok((row.number(0)?, row.number(1)?))
}

/// Makes the tables of a cluster of an earlier version those of this one. A host that joins does so; a command does not.
pub(crate) fn upgrade_cluster(session: &mut Session, server: &PostgresServer) -> Result<(), ClusterError> {
    if !has_cluster(session, server)? {
        return Ok(());
    }
    let (from, format) = read_version(session, server)?;
    if !(FIRST_SCHEMA..SCHEMA).contains(&from) || format != u64::from(FORMAT) {
        return Ok(());
    }
    let mut connection = Connection::open(server, "agent-host upgrade", TIMEOUT)?;
    connection.execute(UPGRADE).map_err(|error| rights(error, server, "change the tables of the cluster"))?;
    tracing::info!(from, to = SCHEMA, "the tables of the cluster have the columns of this version");
    Ok(())
}

/// Checks what a host does with each table.
fn check_rights(session: &mut Session, server: &PostgresServer) -> Result<(), ClusterError> {
    for (table, right) in RIGHTS {
        let name = format!("agent_host.{table}");
        let rows = session.query_again(
            "select has_schema_privilege('agent_host', 'usage') and has_table_privilege($1::text, $2::text)",
            &[Param::Text(&name), Param::Text(right)],
        );
        let rows = rows.map_err(|error| match error.code() {
            Some("42P01") => foreign(server, &format!("it has no table `{table}`")),
            _ => ClusterError::from(error),
        })?;
        if !first(&rows, server)?.flag(0)? {
            let action = format!("{right} in the table {name}");
            return Err(ClusterError::Rights { server: server.place(), user: server.user().to_owned(), action });
        }
    }
    Ok(())
}

fn foreign(server: &PostgresServer, reason: &str) -> ClusterError {
    ClusterError::ForeignSchema { server: server.to_string(), reason: reason.to_owned() }
}

/// Compares the clocks: the time of the database lies between two readings of this host's. The time of the host is ahead of its clock for as
/// long as a clock that was set back needs, and says nothing about the clock.
pub(crate) fn check_clock(session: &mut Session, server: &PostgresServer) -> Result<(), ClusterError> {
    let before = time::wall();
    let rows = session.query_again("select (extract(epoch from clock_timestamp()) * 1000)::int8", &[])?;
    let after = time::wall();
    let off_ms = clock_off(before, first(&rows, server)?.number(0)?, after);
    if off_ms.abs() > CLOCK_OFF_MS {
        return Err(ClusterError::ClockOff { server: server.place(), off_ms });
    }
    Ok(())
}

/// The difference that is certain, in milliseconds: positive where this host is ahead.
pub(crate) fn clock_off(before: u64, database: u64, after: u64) -> i64 {
    let difference = |host: u64| i64::try_from(i128::from(host) - i128::from(database)).unwrap_or(i64::MAX);
    match (difference(before), difference(after)) {
        (before, _) if before > 0 => before,
        (_, after) if after < 0 => after,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_only_by_what_the_round_trip_does_not_explain() {
        assert_eq!(clock_off(1_000, 1_500, 2_000), 0);
        assert_eq!(clock_off(5_000, 1_500, 6_000), 3_500);
        assert_eq!(clock_off(1_000, 9_000, 2_000), -7_000);
    }
}

//! Snapshots of the ledger in the database, behind which the log ends.
//!
//! A snapshot is the rows of all tables after one batch, in pieces that are named by their SHA-256 ([`super::pieces`]). It counts when
//! the database has read all its pieces back. Two are kept; the log has all batches from that of the older one on, so that a copy can
//! be made where the newer one cannot be read.
//!
//! The contents of pieces are in the database, or in the object store of the cluster ([`super::storage`]). There the database has the names
//! alone, and the host reads back what it has sent; of a piece that an earlier snapshot has sent it looks whether it is there.
//!
//! One process at a time makes a snapshot, removes pieces and trims the log: the holder of a lock of its session.

use std::{collections::HashSet, sync::Arc};

use sha2::{Digest as _, Sha256};

use crate::{
    cluster::{
        division::{Division, Put},
        pieces::Piece,
        storage::ObjectStorage,
    },
    cluster_error::ClusterError,
    digest::Digest,
    error::{LedgerError, OpenError},
    postgres::{Connection, Param, PostgresError, PostgresServer, Row},
    rows::{Reader, Table, schema},
};

/// Pieces that one statement reads back.
const READ_BACK_PIECES: u64 = 32;
/// Rows that one statement removes.
const REMOVED_ROWS: i64 = 256;
/// Number of rows between looks whether to go on.
const LOOK_EVERY: u64 = 1_024;

const LOCK: &str = "select pg_try_advisory_lock(7070, 23)";

const LIST: &str = "select seq, epoch, pieces, rows, bytes, \
    greatest((extract(epoch from clock_timestamp() - read_back_at) * 1000)::int8, 0), made_by from agent_host.snapshots \
    where p = $1::int8 and read_back_at is not null order by seq desc limit 2";

const REMOVE_UNFINISHED: &str = "with gone as (delete from agent_host.snapshots where p = $1::int8 and read_back_at is null \
    returning p, seq) delete from agent_host.snapshot_pieces s using gone where s.p = gone.p and s.seq = gone.seq";

const BEGIN: &str = "insert into agent_host.snapshots (p, seq, epoch, made_by) values ($1::int8, $2::int8, $3::int8, $4::text)";

const NAME: &str = "with named as (insert into agent_host.snapshot_pieces (p, seq, piece, sha256) \
    values ($1::int8, $2::int8, $3::int8, $4::bytea)) \
    select exists (select 1 from agent_host.snapshot_contents where sha256 = $4::bytea)";

const SEND: &str =
    "insert into agent_host.snapshot_contents (sha256, content) values ($1::bytea, $2::bytea) on conflict do nothing";

/// The pieces of a range whose content is there and has its digest.
const READ_BACK: &str = "select count(*) from agent_host.snapshot_pieces s join agent_host.snapshot_contents c using (sha256) \
    where s.p = $1::int8 and s.seq = $2::int8 and s.piece >= $3::int8 and s.piece < $4::int8 and sha256(c.content) = c.sha256";

const REMOVE_DAMAGED: &str = "delete from agent_host.snapshot_contents c using agent_host.snapshot_pieces s \
    where s.p = $1::int8 and s.seq = $2::int8 and s.piece >= $3::int8 and s.piece < $4::int8 and c.sha256 = s.sha256 \
    and sha256(c.content) <> c.sha256";

/// As [`REMOVE_DAMAGED`], where the database cannot even read a content.
const REMOVE_UNREADABLE: &str = "delete from agent_host.snapshot_contents c using agent_host.snapshot_pieces s \
    where s.p = $1::int8 and s.seq = $2::int8 and s.piece >= $3::int8 and s.piece < $4::int8 and c.sha256 = s.sha256";

const FINISH: &str = "update agent_host.snapshots set pieces = $3::int8, rows = $4::int8, bytes = $5::int8, \
    read_back_at = clock_timestamp() where p = $1::int8 and seq = $2::int8";

/// The first snapshot of a cluster, with the batch that it stands for: all of it, or nothing where the log has a batch.
const FINISH_FIRST: &str = "with begun as (insert into agent_host.log (p, seq, epoch, frame) values ($1::int8, $2::int8, 0, $6::bytea) \
    on conflict do nothing returning 1), \
    ended as (update agent_host.partitions set log_first = $2::int8 where p = $1::int8 and exists (select 1 from begun) returning 1), \
    counts as (update agent_host.snapshots set pieces = $3::int8, rows = $4::int8, bytes = $5::int8, read_back_at = clock_timestamp() \
    where p = $1::int8 and seq = $2::int8 and exists (select 1 from begun) returning 1) \
    select (select count(*) from begun) + (select count(*) from ended) + (select count(*) from counts)";

/// The snapshot of a copy after which the log goes on, with the batch that it stands for and that of a new epoch, which nobody owns: all of
/// it, or nothing where somebody has taken the ledger since it had the epoch `$7`.
const FINISH_REPAIR: &str = "with taken as (update agent_host.partitions set epoch = greatest(epoch, $6::int8) + 1 + \
    floor(random() * 1000000)::int8, owner = null, incarnation = null, log_first = $2::int8, lost_batch = null, lost_by = null \
    where p = $1::int8 and epoch = $7::int8 returning epoch), \
    counts as (update agent_host.snapshots set pieces = $3::int8, rows = $4::int8, bytes = $5::int8, read_back_at = clock_timestamp() \
    where p = $1::int8 and seq = $2::int8 and exists (select 1 from taken) returning 1), \
    begun as (insert into agent_host.log (p, seq, epoch, frame) select $1::int8, $2::int8, $6::int8, $8::bytea from taken union all \
    select $1::int8, $2::int8 + 1, taken.epoch, $9::bytea from taken returning 1) \
    select (select count(*) from taken) + (select count(*) from counts) + (select count(*) from begun)";

const REMOVE_SNAPSHOTS: &str = "with gone as (delete from agent_host.snapshots where p = $1::int8 and seq < $2::int8 \
    returning p, seq) delete from agent_host.snapshot_pieces s using gone where s.p = gone.p and s.seq = gone.seq";

const REMOVE_OLD: &str = "with gone as (delete from agent_host.snapshots where p = $1::int8 and seq not in (select seq from \
    agent_host.snapshots where p = $1::int8 and read_back_at is not null order by seq desc limit 2) returning p, seq) \
    delete from agent_host.snapshot_pieces s using gone where s.p = gone.p and s.seq = gone.seq";

/// The contents that no snapshot names.
const UNUSED_CONTENTS: &str = "select c.sha256 from agent_host.snapshot_contents c where not exists \
    (select 1 from agent_host.snapshot_pieces s where s.sha256 = c.sha256) order by c.sha256 limit $1::int8";

/// Removes those of [`UNUSED_CONTENTS`].
const REMOVE_CONTENTS: &str = "with gone as (delete from agent_host.snapshot_contents where sha256 in (select c.sha256 from \
    agent_host.snapshot_contents c where not exists (select 1 from agent_host.snapshot_pieces s where s.sha256 = c.sha256) \
    order by c.sha256 limit $1::int8) returning 1) select count(*) from gone";

/// The digests of a range of pieces whose contents have a row.
const NAMED: &str = "select s.piece, c.sha256 from agent_host.snapshot_pieces s join agent_host.snapshot_contents c using (sha256) \
    where s.p = $1::int8 and s.seq = $2::int8 and s.piece >= $3::int8 and s.piece < $4::int8 order by s.piece";

const SET_FIRST: &str = "update agent_host.partitions set log_first = greatest(log_first, $2::int8) where p = $1::int8";

const TRIM: &str = "with gone as (delete from agent_host.log where p = $1::int8 and seq in (select seq from agent_host.log \
    where p = $1::int8 and seq < $2::int8 order by seq limit $3::int8) returning 1) select count(*) from gone";

/// The reason why a snapshot was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The rows cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The object store does not do what it is asked.
    #[error(transparent)]
    Storage(ClusterError),
    /// The ledger is being closed.
    #[error("the ledger is being closed")]
    Stopped,
    /// The database or the object store has another content than was sent. It is removed, so that the next snapshot sends it again.
    #[error("{place} has other contents of the pieces {from} to {to} than were sent: look at its disk and its log")]
    Damaged {
        /// `the database`, or `the object store`.
        place: &'static str,
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
}

impl SnapshotError {
    /// The error of a ledger whose rows are sent to the database by a command.
    pub(crate) fn of_source(self, server: &PostgresServer) -> OpenError {
        match self {
            Self::Postgres(error) => ClusterError::from(error).into(),
            Self::Ledger(error) => error.into(),
            Self::Storage(error) => error.into(),
            Self::Stopped | Self::Damaged { .. } => {
                ClusterError::NotReadBack { server: server.to_string(), reason: self.to_string() }.into()
            }
        }
    }
}

/// A snapshot that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// The last batch in it.
    pub batch: u64,
    /// Number of its pieces.
    pub pieces: u64,
    /// Number of its rows.
    pub rows: u64,
    /// Bytes of its pieces. Snapshots share pieces, which the database has once.
    pub bytes: u64,
    /// Time since it was read back, in milliseconds.
    pub age_ms: u64,
    /// Address of the host that made it.
    pub made_by: String,
    pub(crate) epoch: u64,
}

impl SnapshotStatus {
    fn of(row: &Row) -> Result<Self, PostgresError> {
        Ok(Self {
            batch: row.number(0)?,
            epoch: row.number(1)?,
            pieces: row.number(2)?,
            rows: row.number(3)?,
            bytes: row.number(4)?,
            age_ms: row.number(5)?,
            made_by: row.text(6)?.unwrap_or_default(),
        })
    }
}

/// The snapshots of a partition that were read back, the newest first: two at most. `query` executes a statement.
pub(crate) fn list(
    partition: i64,
    query: impl FnOnce(&'static str, &[Param<'_>]) -> Result<Vec<Row>, PostgresError>,
) -> Result<Vec<SnapshotStatus>, PostgresError> {
    query(LIST, &[Param::Int(partition)])?.iter().map(SnapshotStatus::of).collect()
}

/// The lock of whoever makes snapshots, one process of the cluster at a time: partitions share contents. It ends with the connection.
pub(crate) struct SnapshotLock<'a> {
    connection: Connection,
    partition: i64,
    storage: Option<Arc<ObjectStorage>>,
    /// Partitions and numbers of the pieces that this process has sent to the object store.
    sent: HashSet<(i64, u64)>,
    is_stopped: &'a dyn Fn() -> bool,
}

/// Counts of a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) pieces: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Bytes of the pieces that the database did not have.
    pub(crate) sent_bytes: u64,
}

/// A snapshot that is being written.
struct Draft {
    partition: i64,
    piece: Piece,
    counts: Counts,
}

impl Draft {
    fn new(partition: i64) -> Self {
        Self { partition, piece: Piece::of(Table::Meta), counts: Counts::default() }
    }
}

impl<'a> SnapshotLock<'a> {
    /// Takes the lock. `None` where another process has it.
    pub(crate) fn take(
        mut connection: Connection,
        partition: i64,
        storage: Option<Arc<ObjectStorage>>,
        is_stopped: &'a dyn Fn() -> bool,
    ) -> Result<Option<Self>, PostgresError> {
        let rows = connection.query(LOCK, &[])?;
        let taken = rows.first().map(|row| row.flag(0)).transpose()?.unwrap_or_default();
        Ok(taken.then_some(Self { connection, partition, storage, sent: HashSet::new(), is_stopped }))
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn go_on(&self) -> Result<(), SnapshotError> {
        if (self.is_stopped)() { Err(SnapshotError::Stopped) } else { Ok(()) }
    }

    /// Writes the rows as the snapshot of the batch `seq`, and has the database read them back. It does not count yet.
    pub(crate) fn write(&mut self, reader: &Reader, seq: u64, epoch: u64, made_by: &str) -> Result<Counts, SnapshotError> {
        let mut draft = [Draft::new(self.partition)];
        self.write_to(&mut draft, reader, (seq, epoch), made_by, |_, key, value, put| put(0, key, value))?;
        Ok(draft.map(|draft| draft.counts)[0])
    }

    /// Writes the rows as the snapshots of the batch `seq` of the first partitions, as many as the division has, and has the database read them
    /// back. They do not count yet.
    pub(crate) fn write_divided(
        &mut self,
        reader: &Reader,
        division: &mut Division<'_>,
        seq: u64,
        made_by: &str,
    ) -> Result<Vec<Counts>, SnapshotError> {
        let mut drafts: Vec<_> = (0..division.parts()).map(|part| Draft::new(i64::from(part))).collect();
        self.write_to(&mut drafts, reader, (seq, 0), made_by, |table, key, value, put| division.row(table, key, value, put))?;
        Ok(drafts.into_iter().map(|draft| draft.counts).collect())
    }

    /// Writes the snapshots of a batch, with its epoch: `divide` gives each row to those that have it.
    fn write_to(
        &mut self,
        drafts: &mut [Draft],
        reader: &Reader,
        (seq, epoch): (u64, u64),
        made_by: &str,
        mut divide: impl FnMut(Table, &[u8], &[u8], Put<'_, SnapshotError>) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        for draft in &*drafts {
            let partition = Param::Int(draft.partition);
            self.connection.query(REMOVE_UNFINISHED, &[partition])?;
            self.connection.query(BEGIN, &[partition, Param::number(seq), Param::number(epoch), Param::Text(made_by)])?;
        }
        self.sent.clear();
        let mut row = |lock: &mut Self, drafts: &mut [Draft], table: Table, key: &[u8], value: &[u8]| {
            divide(table, key, value, &mut |draft, key, value| match drafts.get_mut(draft as usize) {
                Some(draft) => lock.row(draft, seq, key, value),
                None => Ok(()),
            })
        };
        for table in Table::ALL.iter().filter(|table| !matches!(table, Table::Meta | Table::Workspaces)) {
            drafts.iter_mut().for_each(|draft| draft.piece = Piece::of(*table));
            for found in reader.table(*table)?.iter()? {
                let (key, value) = found?;
                row(self, drafts, *table, key.value(), value.value())?;
            }
            drafts.iter_mut().try_for_each(|draft| self.send(draft, seq))?;
        }
        // The bytes that workspaces keep, with what is not merged.
        drafts.iter_mut().for_each(|draft| draft.piece = Piece::of(Table::Workspaces));
        for (workspace, bytes) in reader.workspace_usage()? {
            row(self, drafts, Table::Workspaces, workspace.as_bytes(), &schema::number(bytes))?;
        }
        drafts.iter_mut().try_for_each(|draft| self.send(draft, seq))?;
        drafts.iter().try_for_each(|draft| self.read_back(draft.partition, seq, draft.counts.pieces))
    }

    fn row(&mut self, draft: &mut Draft, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SnapshotError> {
        draft.counts.rows += 1;
        if draft.piece.add(key, value) {
            self.send(draft, seq)?;
        } else if draft.counts.rows.is_multiple_of(LOOK_EVERY) {
            self.go_on()?;
        }
        Ok(())
    }

    /// Names a piece, and sends its content where the database does not have it.
    fn send(&mut self, draft: &mut Draft, seq: u64) -> Result<(), SnapshotError> {
        let Draft { partition, piece, counts } = draft;
        if piece.is_empty() {
            return Ok(());
        }
        self.go_on()?;
        let content = piece.take();
        let (digest, bytes) = (Digest::from(Sha256::digest(&content)), content.len() as u64);
        let named = self
            .connection
            .query(NAME, &[Param::Int(*partition), Param::number(seq), Param::number(counts.pieces), Param::Bytes(&digest)])?;
        if !named.first().map(|row| row.flag(0)).transpose()?.unwrap_or_default() {
            counts.sent_bytes += bytes;
            match self.storage.clone() {
                None => self.connection.query(SEND, &[Param::Bytes(&digest), Param::Bytes(&content)])?,
                Some(storage) => {
                    storage.put_piece(&digest, content).map_err(SnapshotError::Storage)?;
                    self.sent.insert((*partition, counts.pieces));
                    self.connection.query(SEND, &[Param::Bytes(&digest), Param::Bytes(&[])])?
                }
            };
        }
        counts.pieces += 1;
        counts.bytes += bytes;
        Ok(())
    }

    /// True if the contents of a range of pieces are in the object store. What this snapshot has sent is read as a whole.
    fn is_stored(
        &mut self,
        storage: &ObjectStorage,
        partition: i64,
        range: &[Param<'_>],
        pieces: u64,
    ) -> Result<bool, SnapshotError> {
        let named = self.connection.query(NAMED, range)?;
        for row in &named {
            self.go_on()?;
            let Ok(digest) = Digest::try_from(row.bytes(1).as_ref()) else { return Ok(false) };
            let is_there = if self.sent.contains(&(partition, row.number(0)?)) {
                let content = storage.piece(&digest).map_err(SnapshotError::Storage)?;
                content.is_some_and(|content| Digest::from(Sha256::digest(&content)) == digest)
            } else {
                storage.piece_size(&digest).map_err(SnapshotError::Storage)?.is_some_and(|bytes| bytes > 0)
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(named.len() as u64 == pieces)
    }

    /// Lets the database read all pieces and compare them with their digests. Those that differ are removed.
    fn read_back(&mut self, partition: i64, seq: u64, pieces: u64) -> Result<(), SnapshotError> {
        let mut from = 0;
        while from < pieces {
            self.go_on()?;
            let to = pieces.min(from + READ_BACK_PIECES);
            let range = [Param::Int(partition), Param::number(seq), Param::number(from), Param::number(to)];
            if let Some(storage) = self.storage.clone() {
                if !self.is_stored(&storage, partition, &range, to - from)? {
                    self.connection.query(REMOVE_UNREADABLE, &range)?;
                    return Err(SnapshotError::Damaged { place: "the object store", from, to: to - 1 });
                }
                from = to;
                continue;
            }
            match self.connection.query(READ_BACK, &range) {
                Ok(rows) if count(&rows)? == to - from => {}
                Ok(_) => {
                    self.connection.query(REMOVE_DAMAGED, &range)?;
                    return Err(SnapshotError::Damaged { place: "the database", from, to: to - 1 });
                }
                // Class XX: the database finds its own files damaged.
                Err(error) if error.code().is_some_and(|code| code.starts_with("XX")) => {
                    self.connection.query(REMOVE_UNREADABLE, &range)?;
                    return Err(SnapshotError::Damaged { place: "the database", from, to: to - 1 });
                }
                Err(error) => return Err(error.into()),
            }
            from = to;
        }
        Ok(())
    }

    /// The snapshot counts from now on.
    pub(crate) fn finish(&mut self, seq: u64, counts: Counts) -> Result<(), SnapshotError> {
        let [pieces, rows, bytes] = [counts.pieces, counts.rows, counts.bytes].map(Param::number);
        self.connection.query(FINISH, &[Param::Int(self.partition), Param::number(seq), pieces, rows, bytes])?;
        Ok(())
    }

    /// The snapshots of the first partitions count from now on as the beginnings of their logs, each with a frame as its batch. False where a log has
    /// a batch already; then nothing is changed.
    pub(crate) fn finish_first(&mut self, seq: u64, beginnings: &[(Counts, Vec<u8>)]) -> Result<bool, SnapshotError> {
        self.connection.query("begin", &[])?;
        for (partition, (counts, frame)) in (0..).zip(beginnings) {
            let [pieces, rows, bytes] = [counts.pieces, counts.rows, counts.bytes].map(Param::number);
            let params = [Param::Int(partition), Param::number(seq), pieces, rows, bytes, Param::Bytes(frame)];
            if count(&self.connection.query(FINISH_FIRST, &params)?)? != 3 {
                self.connection.query("rollback", &[])?;
                return Ok(false);
            }
        }
        self.connection.query("commit", &[])?;
        Ok(true)
    }

    /// The snapshot of a copy counts from now on, and the log goes on behind it with `frames`. `epoch` is that of the batch `seq`. False
    /// where the ledger has another epoch than `before` meanwhile; then nothing is changed.
    pub(crate) fn finish_repair(
        &mut self,
        before: u64,
        seq: u64,
        epoch: u64,
        counts: Counts,
        frames: &[Vec<u8>; 2],
    ) -> Result<bool, SnapshotError> {
        let [pieces, rows, bytes] = [counts.pieces, counts.rows, counts.bytes].map(Param::number);
        let [first, second] = frames.each_ref().map(|frame| Param::Bytes(frame));
        let (seq, epoch, before) = (Param::number(seq), Param::number(epoch), Param::number(before));
        let params = [Param::Int(self.partition), seq, pieces, rows, bytes, epoch, before, first, second];
        Ok(count(&self.connection.query(FINISH_REPAIR, &params)?)? == 4)
    }

    /// Removes the snapshots and the log before `first`.
    pub(crate) fn remove_before(&mut self, first: u64) -> Result<(), SnapshotError> {
        self.connection.query(REMOVE_SNAPSHOTS, &[Param::Int(self.partition), Param::number(first)])?;
        self.trim_log(first)?;
        self.remove_contents()
    }

    /// Removes what no snapshot is made of that counts, and the log before the older of two. Gives the batches that were removed.
    pub(crate) fn trim(&mut self) -> Result<u64, SnapshotError> {
        let partition = Param::Int(self.partition);
        let snapshots = list(self.partition, |sql, params| self.connection.query(sql, params))?;
        let mut trimmed = 0;
        if let Some(older) = snapshots.get(1) {
            let first = Param::number(older.batch);
            // Before any batch is gone: who needs one begins from a snapshot.
            self.connection.query(SET_FIRST, &[partition, first])?;
            trimmed = self.trim_log(older.batch)?;
        }
        self.connection.query(REMOVE_OLD, &[partition])?;
        self.remove_contents()?;
        Ok(trimmed)
    }

    /// Removes the batches before `first`; gives their number.
    fn trim_log(&mut self, first: u64) -> Result<u64, SnapshotError> {
        let mut trimmed = 0;
        loop {
            self.go_on()?;
            let params = [Param::Int(self.partition), Param::number(first), Param::Int(REMOVED_ROWS)];
            let removed = count(&self.connection.query(TRIM, &params)?)?;
            trimmed += removed;
            if removed == 0 {
                return Ok(trimmed);
            }
        }
    }

    /// Removes the contents that no snapshot names.
    fn remove_contents(&mut self) -> Result<(), SnapshotError> {
        loop {
            if let Some(storage) = self.storage.clone() {
                // Before their names: what is left of a removal that ends here is removed by the next one.
                for row in self.connection.query(UNUSED_CONTENTS, &[Param::Int(REMOVED_ROWS)])? {
                    self.go_on()?;
                    if let Ok(digest) = Digest::try_from(row.bytes(0).as_ref()) {
                        storage.remove_piece(&digest).map_err(SnapshotError::Storage)?;
                    }
                }
            }
            if count(&self.connection.query(REMOVE_CONTENTS, &[Param::Int(REMOVED_ROWS)])?)? == 0 {
                return Ok(());
            }
            self.go_on()?;
        }
    }
}

fn count(rows: &[Row]) -> Result<u64, PostgresError> {
    rows.first().map(|row| row.number(0)).transpose().map(Option::unwrap_or_default)
}

//! The beginning of a copy: the one that is there, or the newest snapshot that can be read.

use sha2::{Digest as _, Sha256};

use crate::{
    cluster::{
        log::LogPlace,
        pieces::read_piece,
        session::Session,
        snapshots::{SnapshotStatus, list},
        storage::ObjectStorage,
    },
    cluster_error::ClusterError,
    digest::{Digest, hex},
    error::{LedgerError, OpenError},
    options::Options,
    postgres::{Param, Row},
    rows::Table,
    store::{Files, NewCopy, OpenedStore, open_copy},
};

/// Snapshots may be replaced by newer ones while they are read; the host looks again so often.
const TRIES: u32 = 3;

const LOG_FIRST: &str = "select log_first from agent_host.partitions where p = $1::int8";

const PIECE: &str = "select s.sha256, c.content from agent_host.snapshot_pieces s left join agent_host.snapshot_contents c \
    using (sha256) where s.p = $1::int8 and s.seq = $2::int8 and s.piece = $3::int8";

/// Removes the row of a content, so that the next snapshot sends it again.
const FORGET: &str = "delete from agent_host.snapshot_contents where sha256 = $1::bytea";

/// The cluster and the directory of its copy.
pub(crate) struct CopyPlace<'a> {
    pub(crate) log: &'a LogPlace,
    /// The object store of pieces; `None` where they are in the database.
    pub(crate) storage: Option<&'a ObjectStorage>,
    pub(crate) options: &'a Options,
    pub(crate) files: &'a Files,
}

/// The reason why a snapshot was not taken over.
enum Refusal {
    /// The pieces are not those that were sent: another snapshot may be read.
    Unreadable(String),
    /// Something else does not work.
    Failed(OpenError),
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        Self::Failed(error)
    }
}

impl From<crate::postgres::PostgresError> for Refusal {
    fn from(error: crate::postgres::PostgresError) -> Self {
        // Class XX: the database finds its own files damaged.
        if error.code().is_some_and(|code| code.starts_with("XX")) {
            return Self::Unreadable(error.to_string());
        }
        Self::Failed(ClusterError::from(error).into())
    }
}

impl CopyPlace<'_> {
    /// Opens the copy in the directory, or makes an empty one. Where it has nothing, or ends before the log begins, its rows are replaced
    /// by those of the newest snapshot that can be read.
    ///
    /// # Errors
    /// [`ClusterError::NoSnapshot`] where the log does not go on from the copy and no snapshot can be read.
    pub(crate) fn open(&self, session: &mut Session) -> Result<OpenedStore, OpenError> {
        let Self { log, options, files, .. } = self;
        let mut opened = open_copy(&options.dir, options.cache_bytes, log.seed, files)?;
        for tries in 1.. {
            let copied = opened.last();
            let first = log_first(session, log.partition)?;
            let snapshots = list(log.partition, |sql, params| session.query_again(sql, params)).map_err(ClusterError::from)?;
            if copied >= first && (copied > 0 || snapshots.is_empty()) {
                break;
            }
            match self.take_over_newest(session, &snapshots, &opened)? {
                Ok(()) => {
                    // The file that is open has no name any more.
                    opened.close()?;
                    opened = open_copy(&options.dir, options.cache_bytes, log.seed, files)?;
                }
                Err(_) if first == 0 => {
                    tracing::warn!("no snapshot can be read: the copy is made from the whole log");
                    break;
                }
                Err(reason) => {
                    let now = list(log.partition, |sql, params| session.query_again(sql, params)).map_err(ClusterError::from)?;
                    let is_same = now.iter().map(|of| of.batch).eq(snapshots.iter().map(|of| of.batch));
                    if is_same || tries >= TRIES {
                        return Err(ClusterError::NoSnapshot { server: self.log.server.to_string(), first, reason }.into());
                    }
                }
            }
            if tries >= TRIES {
                break;
            }
        }
        Ok(opened)
    }

    /// Takes over the newest snapshot that can be read; the inner error says why there is none.
    fn take_over_newest(
        &self,
        session: &mut Session,
        snapshots: &[SnapshotStatus],
        opened: &OpenedStore,
    ) -> Result<Result<(), String>, OpenError> {
        let mut reasons = Vec::new();
        for snapshot in snapshots {
            match self.take_over(session, snapshot) {
                Ok(()) => {
                    tracing::info!(
                        batch = snapshot.batch,
                        rows = snapshot.rows,
                        before = opened.last(),
                        "the copy of this host begins from a snapshot"
                    );
                    return Ok(Ok(()));
                }
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::Unreadable(reason)) => {
                    tracing::warn!(
                        batch = snapshot.batch,
                        reason,
                        "a snapshot in the database cannot be read: the host takes an older one"
                    );
                    reasons.push(format!("that of batch {}: {reason}", snapshot.batch));
                }
            }
        }
        Ok(Err(if reasons.is_empty() { "there is none".to_owned() } else { reasons.join("; ") }))
    }

    fn take_over(&self, session: &mut Session, snapshot: &SnapshotStatus) -> Result<(), Refusal> {
        let mut copy = NewCopy::begin(&self.options.dir, self.log.seed, self.files)?;
        let mut rows = 0u64;
        for piece in 0..snapshot.pieces {
            let content = match self.piece(session, snapshot, piece) {
                Err(Refusal::Unreadable(reason)) => {
                    self.look_at(session, snapshot, piece + 1)?;
                    return Err(Refusal::Unreadable(reason));
                }
                read => read?,
            };
            let malformed = || Refusal::Unreadable(format!("piece {piece} holds something that is no row"));
            let (table, of_piece) = read_piece(&content).filter(|(table, _)| *table != Table::Meta).ok_or_else(malformed)?;
            rows += of_piece.len() as u64;
            copy.put(table, of_piece.into_iter())?;
        }
        if rows != snapshot.rows {
            return Err(Refusal::Unreadable(format!("it has {rows} rows, and had {}", snapshot.rows)));
        }
        Ok(copy.finish(snapshot.batch, snapshot.epoch)?)
    }

    /// The content of a piece. The row of one that the object store has lost or changed is removed: a host that makes a snapshot sends the
    /// pieces that have no row. The database finds by itself what it has changed.
    fn piece(&self, session: &mut Session, snapshot: &SnapshotStatus, piece: u64) -> Result<bytes::Bytes, Refusal> {
        let params = [Param::Int(self.log.partition), Param::number(snapshot.batch), Param::number(piece)];
        let found = session.query_again(PIECE, &params)?;
        let content = content(found.first(), piece, self.storage);
        if let (Err(Refusal::Unreadable(_)), Some(_), Some(row)) = (&content, self.storage, found.first()) {
            session.query_again(FORGET, &[Param::Bytes(&row.bytes(0))])?;
        }
        content
    }

    /// Looks at the pieces of a snapshot in the object store that cannot be taken over any more, from `first` on, so that all that are damaged
    /// are sent again at once.
    fn look_at(&self, session: &mut Session, snapshot: &SnapshotStatus, first: u64) -> Result<(), Refusal> {
        let pieces = if self.storage.is_some() { first..snapshot.pieces } else { 0..0 };
        for piece in pieces {
            match self.piece(session, snapshot, piece) {
                Ok(_) | Err(Refusal::Unreadable(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }
}

/// The content of a piece, compared with its digest.
fn content(row: Option<&Row>, piece: u64, storage: Option<&ObjectStorage>) -> Result<bytes::Bytes, Refusal> {
    let Some(row) = row else { return Err(Refusal::Unreadable(format!("piece {piece} is not in the database"))) };
    let (digest, mut content) = (row.bytes(0), row.bytes(1));
    let digest = Digest::try_from(digest.as_ref()).map_err(|_| Refusal::Unreadable(format!("piece {piece} has no digest")))?;
    if let Some(storage) = storage.filter(|_| content.is_empty()) {
        content = storage.piece(&digest).map_err(|error| Refusal::Failed(error.into()))?.unwrap_or_default();
    }
    if Digest::from(Sha256::digest(&content)) != digest {
        let wanted = hex(&digest);
        let what = if content.is_empty() { "has no content" } else { "has another content" };
        return Err(Refusal::Unreadable(format!("piece {piece} ({wanted}) {what}")));
    }
    Ok(content)
}

/// The batch that a copy must have for the log to go on from it.
fn log_first(session: &mut Session, partition: i64) -> Result<u64, OpenError> {
    let rows = session.query_again(LOG_FIRST, &[Param::Int(partition)]).map_err(ClusterError::from)?;
    let Some(row) = rows.first() else {
        return Err(LedgerError::unavailable("the table agent_host.partitions has no row").into());
    };
    Ok(row.number(0).map_err(ClusterError::from)?)
}

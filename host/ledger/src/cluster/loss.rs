//! Acknowledged batches that the database does not have any more, as after the promotion of a standby without them.
//!
//! A host that has a copy with such a batch notices: the owner with its next batch, a follower at its next look, and any host when it opens
//! its copy. It leaves a mark in `partitions`, and from then on nobody takes the ledger, since the log would go on without the batch. The mark
//! is removed when the batches are put back ([`super::repair`]).

use crate::{
    cluster::{log::Position, session::Session},
    cluster_error::ClusterError,
    postgres::{Param, PostgresError, PostgresServer, column},
    store::EpochEnd,
};

/// The end of the log, and the epoch of the batch of the copy's last number.
const END: &str = "select coalesce((select max(seq) from agent_host.log where p = $1::int8), 0), \
    (select epoch from agent_host.log where p = $1::int8 and seq = $2::int8)";

/// The mark. It is left only where the log ends with a batch of an epoch that the copy remembers, `$3` with their last batches in `$5`, and
/// so goes on to the lost ones: a log that another owner has continued since then is not held up.
const MARK: &str = "update agent_host.partitions set lost_batch = $2::int8, lost_by = $4::text where p = $1::int8 \
    and coalesce(lost_batch, 0) < $2::int8 and exists (select 1 from (select 1) one left join \
    (select seq, epoch from agent_host.log where p = $1::int8 order by seq desc limit 1) e on true where e.seq is null or e.seq < $2::int8 \
    and exists (select 1 from unnest($3::int8[], $5::int8[]) h(epoch, last) \
    where h.epoch = e.epoch and e.seq <= h.last))";

/// A batch that the log of a cluster lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostBatch {
    /// The last batch that a copy is known to have.
    pub batch: u64,
    /// Address of the host with that copy.
    pub host: String,
}

impl LostBatch {
    /// Of the columns `lost_batch` and `lost_by`.
    pub(crate) fn of(batch: Option<i64>, host: Option<String>) -> Option<Self> {
        let batch = batch.and_then(|batch| u64::try_from(batch).ok())?;
        Some(Self { batch, host: host.unwrap_or_default() })
    }
}

/// A copy whose end is compared with the log.
#[derive(Debug, Clone)]
pub(crate) struct CopyEnd {
    /// The directory of the copy.
    pub(crate) dir: String,
    /// Address of its host.
    pub(crate) advertise: String,
    /// The partition whose copy it is.
    pub(crate) partition: i64,
}

impl CopyEnd {
    /// Fails where the log does not have the last batch of the copy, and leaves the mark.
    pub(crate) fn check(&self, session: &mut Session, server: &PostgresServer, position: Position) -> Result<(), ClusterError> {
        if position.last == 0 {
            return Ok(());
        }
        let rows = session.query_again(END, &[Param::Int(self.partition), Param::number(position.last)])?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (end, epoch) = (row.number(0)?, row.int(1)?);
        if epoch.is_some_and(|epoch| u64::try_from(epoch) == Ok(position.epoch())) {
            return Ok(());
        }
        mark(session, self.partition, position, &self.advertise)?;
        let log =
            if end < position.last { format!("ends with batch {end}") } else { "has another one with its number".to_owned() };
        Err(ClusterError::LostCommits { server: server.to_string(), dir: self.dir.clone(), copy: position.last, log })
    }
}

/// Leaves the mark: the copy of the host at this address has the batches up to `position`.
pub(crate) fn mark(session: &mut Session, partition: i64, position: Position, advertise: &str) -> Result<(), PostgresError> {
    let ends = || position.epochs.ends();
    let epochs: Vec<_> = ends().map(|EpochEnd { epoch, .. }| column(epoch)).collect();
    let lasts: Vec<_> = ends().map(|EpochEnd { last, .. }| column(last)).collect();
    let (partition, last) = (Param::Int(partition), Param::number(position.last));
    let params = [partition, last, Param::Numbers(&epochs), Param::Text(advertise), Param::Numbers(&lasts)];
    session.query_again(MARK, &params).map(drop)
}

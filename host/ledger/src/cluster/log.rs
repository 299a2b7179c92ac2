//! The log of a ledger in PostgreSQL: one row for each batch.
//!
//! The primary key `(p, seq)` is the fence. An owner that was replaced finds the number of its next batch taken, whatever clocks,
//! pauses and networks have done, and gives the ledger up. An insert ([`super::appender`]) also asks for the batch before, with the epoch that
//! it was seen with: a database that has lost commits is noticed by the next batch.

use std::{borrow::Cow, io, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    cluster::{
        appender::{Append, Appender, COMMIT, Inserted, insert},
        frame::{Frame, empty_frame, encode},
        loss::mark,
        member::MemberState,
        ownership::Ownership,
        session::Session,
    },
    cluster_error::ClusterError,
    error::LedgerError,
    lease::{Lease, LeaseEnd},
    postgres::{Param, PostgresServer},
    store::{AppendError, Epochs, Log},
};

/// Bytes of frames that are read at once, and one frame at least.
const READ_BYTES: i64 = 16 * 1024 * 1024;
/// After so many batches of one reading there may be more.
pub(crate) const MANY_BATCHES: usize = 1_000;
/// Pause before another connection is tried.
const RETRY: Duration = Duration::from_millis(100);

const LOOK: &str = "select epoch, frame from agent_host.log where p = $1::int8 and seq = $2::int8";

/// The batches after `$2`, and the batch that a copy must have for them to go on from it.
const READ: &str = "select seq, epoch, frame, (select log_first from agent_host.partitions where p = $1::int8) from \
    (select seq, epoch, frame, sum(octet_length(frame)) over (order by seq) - octet_length(frame) as before from \
    (select seq, epoch, frame from agent_host.log where p = $1::int8 and seq > $2::int8 order by seq limit 4096) next) counted \
    where before < $3::int8 order by seq";

/// The end of the log as this process knows it. A follower moves it, and later the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Number of the last batch.
    pub(crate) last: u64,
    /// Epochs up to the last batch.
    pub(crate) epochs: Epochs,
    /// Bytes of the rows of the batches since the last turn.
    pub(crate) part_bytes: u64,
}

impl Position {
    /// The end of a copy.
    pub(crate) fn of_copy((last, epochs): (u64, Epochs)) -> Self {
        Self { last, epochs, part_bytes: 0 }
    }

    /// Epoch of the last batch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epochs.newest()
    }

    pub(crate) fn advance(&mut self, batch: u64, epoch: u64, bytes: usize) {
        self.last = batch;
        self.epochs.advance(batch, epoch);
        self.part_bytes = self.part_bytes.saturating_add(bytes as u64);
    }
}

/// The log of one partition.
#[derive(Debug, Clone)]
pub(crate) struct LogPlace {
    pub(crate) server: PostgresServer,
    /// Key of its checksums.
    pub(crate) seed: u64,
    pub(crate) partition: i64,
}

impl LogPlace {
    fn damaged(&self, batch: u64, reason: String) -> ClusterError {
        ClusterError::LogDamaged { server: self.server.to_string(), batch, reason }
    }

    /// The rows of a batch of this log.
    pub(crate) fn rows_of<'a>(&self, frame: &'a Frame) -> Result<Cow<'a, [u8]>, ClusterError> {
        frame.rows().ok_or_else(|| self.damaged(frame.batch, "its rows cannot be unpacked".to_owned()))
    }
}

/// Reads the batches after `position`, as many as have room in [`READ_BYTES`].
pub(crate) fn read_frames(session: &mut Session, place: &LogPlace, position: Position) -> Result<Vec<Frame>, ClusterError> {
    let LogPlace { server, seed, partition } = place;
    let params = [Param::Int(*partition), Param::number(position.last), Param::Int(READ_BYTES)];
    let rows = session.query_again(READ, &params)?;
    let mut frames = Vec::with_capacity(rows.len());
    let mut before = (position.last, position.epoch());
    if let Some(row) = rows.first()
        && position.last < row.number(3)?
    {
        return Err(ClusterError::CopyBehind { server: server.to_string(), copy: position.last, first: row.number(3)? });
    }
    for row in rows {
        let (batch, epoch) = (row.number(0)?, row.number(1)?);
        if batch != before.0 + 1 {
            return Err(place.damaged(batch, format!("the batch before it that is there is {}", before.0)));
        }
        if epoch < before.1 {
            return Err(place.damaged(batch, format!("it has epoch {epoch}, and the batch before it has {}", before.1)));
        }
        let frame = Frame::read(*seed, batch, epoch, row.bytes(2));
        frames.push(frame.ok_or_else(|| place.damaged(batch, "its checksum is wrong".to_owned()))?);
        before = (batch, epoch);
    }
    Ok(frames)
}

/// Writes the first batch of an epoch, which has no rows, after `position`. False where there is another batch meanwhile: it is to be
/// applied first.
pub(crate) fn begin_epoch(session: &mut Session, place: &LogPlace, position: Position, epoch: u64) -> Result<bool, ClusterError> {
    let batch = position.last + 1;
    let (partition, before, frame) = (place.partition, position.epoch(), empty_frame(place.seed, batch).into());
    Ok(insert(session, &[Append { partition, batch, epoch, before, frame }])? == [Inserted::Yes])
}

/// See the module.
pub(crate) struct PostgresLog {
    place: LogPlace,
    appender: Arc<Appender>,
    /// For what becomes of a batch whose number is taken.
    session: Session,
    lease: Arc<Lease>,
    position: Arc<Mutex<Position>>,
    /// Has the form that the hosts of the cluster read.
    state: Arc<MemberState>,
    /// Bytes of a part.
    room: u64,
    /// Address of this host.
    advertise: String,
    /// The reason why this is the end, where the database has lost batches: the copy of this host has them, and is merged first.
    lost: Option<String>,
}

impl Drop for PostgresLog {
    fn drop(&mut self) {
        if let Some(reason) = self.lost.take() {
            self.lease.end(LeaseEnd::LostCommits(reason));
        }
    }
}

impl PostgresLog {
    /// The log from `position` on, which its follower moves. Appending needs the lease to be taken.
    pub(crate) fn new(ownership: &Ownership, place: LogPlace, position: Arc<Mutex<Position>>, room: u64) -> Self {
        let (session, lease) = (ownership.session(COMMIT), Arc::clone(ownership.lease()));
        let (appender, advertise) = (ownership.appender(), ownership.advertise().to_owned());
        let state = ownership.member_state();
        Self { place, appender, session, lease, position, state, room, advertise, lost: None }
    }

    fn commit(&mut self, append: &Append) -> Result<(), AppendError> {
        let Append { batch, epoch, ref frame, .. } = *append;
        loop {
            self.lease.check().map_err(AppendError::Lost)?;
            match self.appender.append(append.clone()) {
                Ok(Inserted::Yes) => return Ok(()),
                Ok(Inserted::Fenced) => return self.fenced(batch, epoch, frame),
                Err(error) if error.is_refusal() => return Err(io::Error::other(error).into()),
                // What became of the row is not known. The statement is repeated: where the row is there already, or its
                // transaction is still under way on the lost connection, it inserts nothing, and the row says whose it is.
                Err(error) => {
                    tracing::warn!(%error, batch, "a commit has no answer: the host asks again what became of it");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    /// Reads the row whose number is taken: this batch after all, or that of another owner.
    fn fenced(&mut self, batch: u64, epoch: u64, frame: &[u8]) -> Result<(), AppendError> {
        loop {
            self.lease.check().map_err(AppendError::Lost)?;
            match self.session.query_again(LOOK, &[Param::Int(self.place.partition), Param::number(batch)]) {
                Ok(rows) => {
                    let found = rows.first().map(|row| (row.number(0), row.bytes(1)));
                    let reason = match found {
                        Some((Ok(of), bytes)) if of == epoch && bytes == frame => return Ok(()),
                        Some((Ok(of), _)) => format!("another host has taken over the ledger with epoch {of}"),
                        Some((Err(error), _)) => error.to_string(),
                        None => return Err(self.lost_commits()),
                    };
                    self.lease.end(LeaseEnd::Over(reason.clone()));
                    return Err(AppendError::Lost(LedgerError::unavailable(reason)));
                }
                Err(error) => {
                    tracing::warn!(%error, batch, "the row of a commit cannot be read");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}

impl PostgresLog {
    /// The log does not have the last batch any more. The lease ends when the rows in memory are merged: no commit can succeed until
    /// then, and nothing is answered.
    fn lost_commits(&mut self) -> AppendError {
        let position = *self.position.lock();
        if let Err(error) = mark(&mut self.session, self.place.partition, position, &self.advertise) {
            tracing::warn!(%error, "the loss of batches could not be noted in the database");
        }
        let reason = format!(
            "engine_lost_commits: the log in {} does not have batch {} any more, which was acknowledged: stop all hosts, and put it back \
             with `agent-host cluster repair` on this one",
            self.place.server, position.last
        );
        self.lost = Some(reason.clone());
        AppendError::Lost(LedgerError::unavailable(reason))
    }
}

impl Log for PostgresLog {
    fn has_room(&self, bytes: usize) -> bool {
        let part_bytes = self.position.lock().part_bytes;
        part_bytes == 0 || part_bytes.saturating_add(bytes as u64) <= self.room
    }

    fn append(&mut self, rows: &[u8]) -> Result<u64, AppendError> {
        let position = *self.position.lock();
        let (batch, epoch) = (position.last + 1, self.lease.epoch());
        let (partition, before) = (self.place.partition, position.epoch());
        let frame = Bytes::from(encode(self.place.seed, batch, rows, self.state.form()));
        self.commit(&Append { partition, batch, epoch, before, frame })?;
        self.position.lock().advance(batch, epoch, rows.len());
        Ok(rows.len() as u64)
    }

    fn turn(&mut self) -> io::Result<()> {
        self.position.lock().part_bytes = 0;
        Ok(())
    }

    fn last(&self) -> u64 {
        self.position.lock().last
    }

    fn epochs(&self) -> Option<Epochs> {
        Some(self.position.lock().epochs)
    }

    fn part_bytes(&self) -> u64 {
        self.position.lock().part_bytes
    }
}

//! A host that follows the log into its own copy, until it takes over.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    cluster::{
        ClusterOptions,
        blobs::blobs_of,
        bystander::{Lasting, remove_copy},
        log::{LogPlace, MANY_BATCHES, Position, PostgresLog, begin_epoch, read_frames},
        looks::Follower,
        loss::CopyEnd,
        maker::{MakerOptions, SnapshotMaker},
        member::ClusterMember,
        ownership::{Finding, Ownership},
        permits::PermitTable,
        placement::{KnownPlace, Place},
        restore::CopyPlace,
        schema::{FIRST_PARTITION, TIMEOUT, seed_of},
        session::Session,
    },
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    handle::{ClusterParts, Ledger, Opening},
    lease::LeaseEnd,
    options::Options,
    permits::Permits,
    rows::CopyReader,
    store::{WriteError, io_error, part_room, real_files},
};

/// Pause after a failure.
pub(super) const RETRY: Duration = Duration::from_millis(500);
/// Time for the transfer of a piece of a blob.
const BLOB_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of a host that follows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StandbyStatus {
    /// Last batch of the copy; `None` while the host has none.
    pub last_batch: Option<u64>,
    /// Address of the host that owns the ledger; `None` while there is none.
    pub active: Option<String>,
    /// True if the host is drained: it takes the ledger only where no other would.
    pub is_drained: bool,
    /// The reason why the host does not follow at the moment.
    pub problem: Option<String>,
}

/// Shows the state of a [`Standby`] or a [`Bystander`](super::Bystander) while that is at work.
#[derive(Debug, Clone, Default)]
pub struct StandbyWatch(Arc<Mutex<StandbyStatus>>);

impl StandbyWatch {
    /// The present state.
    #[must_use]
    pub fn status(&self) -> StandbyStatus {
        self.0.lock().clone()
    }

    pub(super) fn show(&self, status: StandbyStatus) {
        *self.0.lock() = status;
    }
}

/// A host that follows the log of a partition. See [`Standby::activate`].
pub struct Standby {
    place: LogPlace,
    opening: Opening,
    copy: CopyEnd,
    position: Arc<Mutex<Position>>,
    session: Session,
    watch: StandbyWatch,
    maker: SnapshotMaker,
    follower: Follower,
    /// The directory of the copy.
    dir: PathBuf,
    known_place: KnownPlace,
    /// True where other hosts have the copies that are to be.
    spare: Lasting,
    is_spare: bool,
    /// The log may have more than one statement has read.
    is_behind: bool,
    ownership: Ownership,
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("place", &self.place).field("position", &*self.position.lock()).finish_non_exhaustive()
    }
}

impl Standby {
    /// Joins a cluster, and follows its first partition. The host is a member for as long as the standby lives, and then its ledger.
    ///
    /// # Errors
    /// As [`ClusterMember::join`] and [`ClusterMember::follow`].
    pub fn join(options: Options, cluster: &ClusterOptions) -> Result<Self, OpenError> {
        Self::follow(&ClusterMember::join(&options, cluster)?, FIRST_PARTITION, options)
    }

    /// Opens the copy of a partition in `options.dir` or makes an empty one. Blocks meanwhile.
    pub(super) fn follow(member: &ClusterMember, partition: i64, options: Options) -> Result<Self, OpenError> {
        let ClusterMember(member) = member;
        let seed = seed_of(member.facts.seed, partition);
        let place = LogPlace { server: member.server.clone(), seed, partition };
        let mut session = Session::new(&member.server, "agent-host join", TIMEOUT);
        let files = real_files();
        let copy_place = CopyPlace { log: &place, storage: member.storage.as_deref(), options: &options, files: &files };
        let opened = copy_place.open(&mut session)?;
        let position = Position::of_copy(opened.copied().unwrap_or_default());
        let last = position.last;
        let copy = CopyEnd { dir: options.dir.display().to_string(), advertise: member.advertise.clone(), partition };
        copy.check(&mut session, &member.server, position)?;
        let ownership = Ownership::new(member, partition);
        let position = Arc::new(Mutex::new(position));
        let log = PostgresLog::new(&ownership, place.clone(), Arc::clone(&position), part_room(&options));
        let blobs = blobs_of(member.storage.as_ref(), partition, || ownership.session(BLOB_TIMEOUT));
        let lease = ownership.lease();
        let several = member.facts.partitions > 1;
        let number = u32::try_from(partition).unwrap_or_default();
        let permits =
            several.then(|| Arc::new(PermitTable::new(ownership.session(TIMEOUT), number, Arc::clone(lease))) as Permits);
        let parts = ClusterParts { log: Box::new(log), lease: Arc::clone(lease), blobs, permits };
        let making = MakerOptions::new(&place, member.storage.clone(), ownership.session_name(), &member.advertise, &options);
        let dir = options.dir.clone();
        let opening = Opening::of_copy(options, opened, parts, files)?;
        let maker = SnapshotMaker::start(making, opening.views(), Arc::clone(ownership.lease()));
        let maker = maker.map_err(io_error("start a thread for", &dir))?;
        let (session, follower) = (ownership.session(TIMEOUT), ownership.follow(&position));
        let watch = StandbyWatch::default();
        watch.0.lock().last_batch = Some(last);
        let spare = Lasting::new(member.state.time.length());
        Ok(Self {
            place,
            opening,
            copy,
            position,
            session,
            watch,
            maker,
            follower,
            dir,
            known_place: KnownPlace::default(),
            spare,
            is_spare: false,
            is_behind: false,
            ownership,
        })
    }

    /// Shows the state of this host, also while [`Self::activate`] is at work.
    #[must_use]
    pub fn watch(&self) -> StandbyWatch {
        self.watch.clone()
    }

    /// The copy, for reading while it follows.
    #[must_use]
    pub fn reader(&self) -> CopyReader {
        CopyReader::new(self.opening.views())
    }

    /// The state is shown by this watch from now on, which showed that of an earlier standby of the process.
    #[must_use]
    pub fn shown_by(mut self, watch: StandbyWatch) -> Self {
        watch.show(self.watch.status());
        self.watch = watch;
        self
    }

    /// Follows the log until nobody holds the ledger, and takes it over. `None` when `is_stopped` says that the host ends; the copy is
    /// closed then. Also `None` where other hosts are to follow the partition, and have copies for as long as a lease: the copy of this host is removed
    /// then, and it looks on ([`ClusterMember::look_on`]). `on_lost` is called when the host, once active, may not act any more: where the lease is [`LeaseEnd::Over`] it must end
    /// the process, so that no effect begins. Blocks meanwhile.
    ///
    /// # Errors
    /// [`OpenError`] where the host cannot follow any more. A database that is away is waited for.
    pub fn activate(
        mut self,
        is_stopped: impl Fn() -> bool,
        on_lost: impl FnOnce(&LeaseEnd) + Send + 'static,
    ) -> Result<Option<Ledger>, OpenError> {
        loop {
            if is_stopped() {
                self.close()?;
                return Ok(None);
            }
            if let Some(reason) = self.ownership.lease().ended() {
                return Err(OpenError::Ledger(LedgerError::unavailable(reason.to_string())));
            }
            let pause = match self.follow_or_take() {
                Ok(Finding::Taken(epoch)) => return self.begin(epoch, on_lost).map(Some),
                Ok(Finding::Followed) if self.is_spare => {
                    self.leave()?;
                    return Ok(None);
                }
                // The next look comes when it is due.
                Ok(Finding::More | Finding::Followed) => Duration::ZERO,
                Err(OpenError::Cluster(
                    error @ (ClusterError::Postgres(_) | ClusterError::ClockOff { .. } | ClusterError::AwaitsRepair { .. }),
                )) => {
                    let problem = Some(error.to_string());
                    let before = std::mem::replace(&mut self.watch.0.lock().problem, problem.clone());
                    if before != problem {
                        tracing::warn!(%error, "this host cannot follow the log of the cluster at the moment");
                    }
                    RETRY
                }
                Err(error) => {
                    // What only this copy has is in its files then.
                    self.close()?;
                    return Err(error);
                }
            };
            self.opening.store().merge_what_is_due();
            std::thread::sleep(pause);
        }
    }

    /// Applies what is new, or takes the partition. A copy that has all batches costs a part of one statement.
    fn follow_or_take(&mut self) -> Result<Finding, OpenError> {
        let finding = if self.is_behind {
            Finding::More
        } else {
            let look = self.follower.look().map_err(ClusterError::from)?;
            let position = *self.position.lock();
            let place = self.known_place.with(&look.hosts, |hosts| self.ownership.place(hosts));
            self.is_spare = self.spare.has_lasted(place == Place::Spare);
            self.ownership.try_take(&mut self.session, look, &self.copy, position)?
        };
        self.is_behind = finding == Finding::More && self.step()? >= MANY_BATCHES;
        // Also where the log grows all the time: the copy has what was there at the look.
        if !self.is_behind {
            self.ownership.set_followed(true);
        }
        let owner = self.ownership.owner();
        self.watch.show(StandbyStatus {
            last_batch: Some(self.position.lock().last),
            active: owner.advertise.filter(|_| owner.epoch > 0),
            is_drained: self.ownership.is_drained(),
            problem: None,
        });
        Ok(match finding {
            Finding::Taken(epoch) if !self.write_first(epoch)? => Finding::Followed,
            finding => finding,
        })
    }

    /// Writes the first batch of the epoch, after which the owner before can commit nothing. False where yet another host has taken
    /// over.
    fn write_first(&mut self, epoch: u64) -> Result<bool, OpenError> {
        loop {
            self.catch_up()?;
            let position = *self.position.lock();
            if position.epoch() >= epoch {
                // Its own where a connection was lost after the insert.
                return Ok(position.epoch() == epoch);
            }
            if begin_epoch(&mut self.session, &self.place, position, epoch)? {
                self.position.lock().advance(position.last + 1, epoch, 0);
                return Ok(true);
            }
            self.copy.check(&mut self.session, self.ownership.server(), position)?;
        }
    }

    /// Applies all that is new.
    fn catch_up(&mut self) -> Result<(), OpenError> {
        while self.step()? > 0 {
            self.opening.store().merge_what_is_due();
        }
        Ok(())
    }

    /// Applies what one statement reads; gives the number of batches.
    fn step(&mut self) -> Result<usize, OpenError> {
        let position = *self.position.lock();
        let frames = read_frames(&mut self.session, &self.place, position)?;
        let count = frames.len();
        for frame in frames {
            let rows = self.place.rows_of(&frame)?;
            match self.opening.store().follow(&rows) {
                Ok(()) => {}
                Err(WriteError::Store(error)) => return Err(error.into()),
                Err(WriteError::Log(error)) => return Err(LedgerError::Storage(error.to_string().into()).into()),
            }
            self.position.lock().advance(frame.batch, frame.epoch, rows.len());
            self.opening.count(rows.len() as u64);
            self.watch.0.lock().last_batch = Some(frame.batch);
        }
        Ok(count)
    }

    /// Starts the writer.
    fn begin(mut self, epoch: u64, on_lost: impl FnOnce(&LeaseEnd) + Send + 'static) -> Result<Ledger, OpenError> {
        let failing = self.opening.failing();
        let hook = move |end: &LeaseEnd| {
            tracing::error!(reason = %end, "this host does not hold the ledger any more");
            on_lost(end);
            failing(&end.to_string());
        };
        self.ownership.note_copy(self.copy, self.position.clone());
        let (lease, partition) = (Arc::clone(self.ownership.lease()), self.place.partition);
        lease.take(epoch, Box::new(hook));
        let batch = self.position.lock().last;
        tracing::info!(partition, epoch, batch, "this host has taken over the ledger");
        self.opening.run(Some(Box::new((self.maker, self.ownership))))
    }

    /// Removes the copy.
    fn leave(self) -> Result<(), OpenError> {
        let (dir, partition, watch) = (self.dir.clone(), self.place.partition, self.watch.clone());
        self.close()?;
        tracing::info!(partition, "other hosts follow the partition: the copy of this one is removed");
        remove_copy(&dir).map_err(io_error("remove", &dir))?;
        watch.0.lock().last_batch = None;
        Ok(())
    }

    fn close(self) -> Result<(), OpenError> {
        drop(self.session);
        // It reads the files.
        drop(self.maker);
        self.opening.close()?;
        drop(self.ownership);
        Ok(())
    }
}

//! A host that looks on at a partition: it has no copy, and knows who owns the partition.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cluster::{
        looks::{Follower, PartitionLook},
        member::{ClusterMember, Member},
        placement::{KnownPlace, Place},
        standby::{RETRY, StandbyStatus, StandbyWatch},
    },
    cluster_error::ClusterError,
    error::OpenError,
    store::io_error,
};

/// A host that looks on at a partition. See [`Bystander::wait`].
pub struct Bystander {
    member: Arc<Member>,
    partition: i64,
    follower: Follower,
    watch: StandbyWatch,
    known_place: KnownPlace,
    wanted: Lasting,
}

impl std::fmt::Debug for Bystander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bystander").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl Bystander {
    pub(super) fn new(member: &ClusterMember, partition: i64, dir: &Path) -> Result<Self, OpenError> {
        let ClusterMember(member) = member;
        remove_copy(dir).map_err(io_error("remove", dir))?;
        let follower = member.looks.follow(partition, &Arc::default());
        // A host that joins makes its copies at once.
        let wanted = Lasting::new(Duration::ZERO);
        let (watch, known_place) = (StandbyWatch::default(), KnownPlace::default());
        Ok(Self { member: Arc::clone(member), partition, follower, watch, known_place, wanted })
    }

    /// The state is shown by this watch.
    #[must_use]
    pub fn shown_by(mut self, watch: StandbyWatch) -> Self {
        self.watch = watch;
        self
    }

    /// Looks on until this host is to have a copy: it is to own the partition or to follow it, and has been for as long as a lease since another host
    /// came or went, which may be back soon; at once where no host has a copy. False when `is_stopped` says that the host ends. Blocks meanwhile.
    pub fn wait(mut self, is_stopped: impl Fn() -> bool) -> bool {
        while !is_stopped() {
            match self.follower.look() {
                Ok(look) => {
                    self.watch.show(self.status(&look));
                    if self.is_to_follow(&look) {
                        return true;
                    }
                }
                Err(error) => {
                    let problem = Some(ClusterError::from(error).to_string());
                    self.watch.show(StandbyStatus { problem, ..self.watch.status() });
                    std::thread::sleep(RETRY);
                }
            }
        }
        false
    }

    fn status(&self, look: &PartitionLook) -> StandbyStatus {
        let active = look.advertise.clone().filter(|_| look.epoch > 0);
        StandbyStatus { last_batch: None, active, is_drained: self.member.state.is_drained(), problem: None }
    }

    fn is_to_follow(&mut self, look: &PartitionLook) -> bool {
        let place = self.known_place.with(&look.hosts, |hosts| self.member.place(self.partition, hosts));
        let is_wanted = place == Place::Wanted;
        let is_lost = (look.is_free || look.is_over) && !self.member.have_copy(self.partition, &look.hosts);
        let is_settled = self.wanted.has_lasted(is_wanted);
        if !is_wanted {
            self.wanted.needed = self.member.state.time.length();
        }
        is_settled || (is_wanted && is_lost)
    }
}

/// A condition that is to last before it counts.
pub(super) struct Lasting {
    needed: Duration,
    since: Option<Instant>,
}

impl Lasting {
    pub(super) const fn new(needed: Duration) -> Self {
        Self { needed, since: None }
    }

    /// True where it is so now, and has been for as long as is needed.
    pub(super) fn has_lasted(&mut self, is_so: bool) -> bool {
        self.since = if is_so { self.since.or_else(|| Some(Instant::now())) } else { None };
        self.since.is_some_and(|since| since.elapsed() >= self.needed)
    }
}

/// Removes a copy, whose files are closed. One of which a part is left is none.
pub(super) fn remove_copy(dir: &Path) -> io::Result<()> {
    let left: PathBuf = dir.with_extension("left");
    let is_there = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        result => result.map(|()| true),
    };
    is_there(fs::remove_dir_all(&left))?;
    if is_there(fs::rename(dir, &left))? {
        fs::remove_dir_all(&left)?;
    }
    Ok(())
}

//! Ownership of a partition: taking it where nobody holds it, and giving it back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    cluster::{
        appender::Appender,
        log::Position,
        looks::{Follower, PartitionLook},
        loss::{CopyEnd, LostBatch},
        member::{Member, MemberState, appender_name},
        placement::{LiveHosts, Place},
        schema::{check_clock, first, rights},
        session::Session,
    },
    cluster_error::ClusterError,
    lease::Lease,
    postgres::{Param, PostgresServer},
};

/// Time in which the sessions of a replaced owner must end.
const TERMINATION: Duration = Duration::from_secs(10);
/// A host waits so long for the one that is to have a partition, before it takes it itself.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// Ends the lease of an owner whose time is over. A heartbeat of that owner changes the same row: whichever of the two comes second sees
/// what the first one did, so a lease is never both renewed and ended.
const END_LEASE: &str = "delete from agent_host.hosts where host_id = $1::text and incarnation = $2::int8 \
    and greatest(lease_until, pg_postmaster_start_time() + lease_ms * interval '1 millisecond') < clock_timestamp() returning 1::int8";

/// The epoch grows by a random step, so that two histories of one database have no epoch in common: a standby that was promoted without
/// the last takeover does not give its number again. Where the log lost a batch nobody takes the partition. A drained host that takes one, because
/// no other would, is not drained any more.
const TAKE: &str = "with taken as (update agent_host.partitions set epoch = epoch + 1 + floor(random() * 1000000)::int8, owner = $1::text, incarnation = $2::int8, \
    since = clock_timestamp() where p = $3::int8 and epoch = $4::int8 and lost_batch is null returning epoch), \
    undrained as (update agent_host.hosts set drained = false where host_id = $1::text and drained and exists (select 1 from taken)) \
    select epoch from taken";

/// The partition is given back only where the log has the last batch of the copy, or the mark of its loss is there: nobody is to take it without
/// what its owner has committed. The mark of a host whose copy has less is none of it.
const GIVE_BACK: &str = "update agent_host.partitions set owner = null, incarnation = null \
    where owner = $1::text and incarnation = $2::int8 and p = $3::int8 and epoch = $4::int8 and (lost_batch >= $5::int8 or $5::int8 = 0 \
    or exists (select 1 from agent_host.log l where l.p = $3::int8 and l.seq = $5::int8 and l.epoch = $6::int8)) returning epoch";

/// Two names of sessions.
const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
    where application_name in ($1::text, $2::text) and pid <> pg_backend_pid()";

/// The name of the sessions of a host's process for one partition.
fn session_name(host_id: &str, incarnation: u64, partition: i64) -> String {
    format!("agent-host {host_id} {incarnation} {partition}")
}

/// The owner of a partition, as a follower sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    pub(crate) advertise: Option<String>,
}

/// The finding of one look at a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The log has more batches than the copy.
    More,
    /// The copy has all batches, and another host owns the partition or is to have it.
    Followed,
    /// The partition is this host's, with this epoch.
    Taken(u64),
}

/// A partition that this host follows, and may own. Dropping it gives the partition back.
pub(crate) struct Ownership {
    member: Arc<Member>,
    partition: i64,
    lease: Arc<Lease>,
    owner: Mutex<Owner>,
    /// The epoch with which this host has taken the partition; 0 while it has not.
    taken: AtomicU64,
    /// The copy of the owner, and its end.
    copy: Option<(CopyEnd, Arc<Mutex<Position>>)>,
    /// The time from which on nobody held the partition.
    free_since: Mutex<Option<Instant>>,
}

impl Ownership {
    pub(super) fn new(member: &Arc<Member>, partition: i64) -> Self {
        let lease = Arc::new(Lease::new(Arc::clone(&member.state.time)));
        member.state.add(partition, &lease);
        Self {
            member: Arc::clone(member),
            partition,
            lease,
            owner: Mutex::default(),
            taken: AtomicU64::new(0),
            copy: None,
            free_since: Mutex::default(),
        }
    }

    /// This host begins to write to its copy, which ends where `position` says.
    pub(crate) fn note_copy(&mut self, copy: CopyEnd, position: Arc<Mutex<Position>>) {
        self.copy = Some((copy, position));
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Address of this host.
    pub(crate) fn advertise(&self) -> &str {
        &self.member.advertise
    }

    pub(super) fn member_state(&self) -> Arc<MemberState> {
        Arc::clone(&self.member.state)
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner.lock().clone()
    }

    /// True if this host was drained since it joined.
    pub(crate) fn is_drained(&self) -> bool {
        self.member.state.is_drained()
    }

    /// The use of the copy of this host, with these hosts.
    pub(crate) fn place(&self, hosts: &str) -> Place {
        self.member.place(self.partition, hosts)
    }

    /// The copy of this host has all batches, or is closed.
    pub(crate) fn set_followed(&self, is_followed: bool) {
        self.member.state.set_followed(self.partition, is_followed);
    }

    pub(crate) fn session_name(&self) -> String {
        session_name(&self.member.host_id, self.member.incarnation, self.partition)
    }

    /// Begins to follow the partition with the copy that ends at `position`.
    pub(crate) fn follow(&self, position: &Arc<Mutex<Position>>) -> Follower {
        self.member.looks.follow(self.partition, position)
    }

    /// The appends of all partitions of this process.
    pub(crate) fn appender(&self) -> Arc<Appender> {
        Arc::clone(&self.member.appender)
    }

    /// A session of this process for the partition, which a host that takes over ends.
    pub(crate) fn session(&self, timeout: Duration) -> Session {
        Session::new(&self.member.server, &self.session_name(), timeout)
    }

    /// Takes the partition where nobody holds it, as a look has found, and the copy, which ends at `position`, has all batches. The sessions of
    /// the owner before have ended then: an open transaction of it would hold up the next batch.
    ///
    /// # Errors
    /// [`ClusterError::AwaitsRepair`] where the log lost a batch that another copy has, and [`ClusterError::LostCommits`] where this one
    /// has it.
    pub(crate) fn try_take(
        &self,
        session: &mut Session,
        look: PartitionLook,
        copy: &CopyEnd,
        position: Position,
    ) -> Result<Finding, ClusterError> {
        let member = &self.member;
        let PartitionLook { epoch, owner: before, is_free, .. } = look;
        *self.owner.lock() = Owner { epoch, advertise: look.advertise };
        if !look.has_copy {
            copy.check(session, &member.server, position)?;
        }
        if let Some(LostBatch { batch, host }) = look.lost {
            return Err(ClusterError::AwaitsRepair { server: member.server.to_string(), batch, host });
        }
        if look.has_more {
            return Ok(Finding::More);
        }
        let waits = look.gives_way || look.is_unsettled || self.lease.left() < self.lease.length() / 4;
        if !self.is_for_this_host(is_free || look.is_over, &look.hosts) || waits {
            return Ok(Finding::Followed);
        }
        check_clock(session, &member.server)?;
        if !is_free && let Some((owner, incarnation)) = &before {
            let ended = session.query(END_LEASE, &[Param::Text(owner), Param::number(*incarnation)])?;
            if ended.is_empty() {
                return Ok(Finding::Followed);
            }
        }
        let (host, incarnation) = (Param::Text(&member.host_id), Param::number(member.incarnation));
        let taken = session.query(TAKE, &[host, incarnation, Param::Int(self.partition), Param::number(epoch)])?;
        let Some(taken) = taken.first() else { return Ok(Finding::Followed) };
        let epoch = taken.number(0)?;
        self.taken.store(epoch, Ordering::Release);
        if let Some((owner, incarnation)) = before
            && (owner.as_str(), incarnation) != (member.host_id.as_str(), member.incarnation)
        {
            // All that the process of that host owned is free, or its lease is over.
            let names = [session_name(&owner, incarnation, self.partition), appender_name(&owner, incarnation)];
            self.terminate(session, &names)?;
        }
        Ok(Finding::Taken(epoch))
    }

    /// True if nobody holds the partition, and this host is the one that is to have it, or that one does not take it.
    fn is_for_this_host(&self, is_free: bool, hosts: &str) -> bool {
        let mut free_since = self.free_since.lock();
        if !is_free {
            *free_since = None;
            return false;
        }
        let since = *free_since.get_or_insert_with(Instant::now);
        let Member { facts, host_id, .. } = &*self.member;
        let successor = LiveHosts::of(hosts).successor(facts.partitions, self.partition);
        facts.partitions == 1 || successor.is_none_or(|host| host == host_id) || since.elapsed() >= PRECEDENCE
    }

    fn terminate(&self, session: &mut Session, names: &[String; 2]) -> Result<(), ClusterError> {
        let (server, began) = (&self.member.server, Instant::now());
        loop {
            let rows = session.query_again(TERMINATE, &names.each_ref().map(|name| Param::Text(name)));
            let rows = rows.map_err(|error| rights(error, server, "end the sessions of another host (pg_signal_backend)"))?;
            if first(&rows, server)?.number(0)? == 0 || began.elapsed() > TERMINATION {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn server(&self) -> &PostgresServer {
        &self.member.server
    }

    /// Gives the partition back. Where the log lost batches of the copy, the mark of that is left first.
    fn give_back(&self, session: &mut Session, epoch: u64) -> Result<(), ClusterError> {
        let position = self.copy.as_ref().map(|(_, position)| *position.lock()).unwrap_or_default();
        let Member { host_id, incarnation, server, .. } = &*self.member;
        let me = [Param::Text(host_id), Param::number(*incarnation), Param::Int(self.partition), Param::number(epoch)];
        let [host, incarnation, partition, epoch] = me;
        let owned = [host, incarnation, partition, epoch, Param::number(position.last), Param::number(position.epoch())];
        if session.query_again(GIVE_BACK, &owned)?.is_empty()
            && let Some((copy, _)) = &self.copy
            && let Err(error) = copy.check(session, server, position)
        {
            tracing::error!(%error, "the database has lost batches");
            session.query_again(GIVE_BACK, &owned)?;
        }
        Ok(())
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.set_followed(false);
        self.member.state.remove(&self.lease);
        let epoch = self.taken.load(Ordering::Acquire);
        if epoch == 0 {
            return;
        }
        // Where this fails, the others wait for the end of the lease.
        let mut session = self.session(Duration::from_secs(1));
        // The next owner ends the sessions of this one only where it knows of it.
        let name = self.session_name();
        let _ = session.query_again(TERMINATE, &[Param::Text(&name), Param::Text(&name)]);
        if let Err(error) = self.give_back(&mut session, epoch) {
            tracing::warn!(%error, "the ledger could not be given back: another host takes it over when the lease is over");
        }
    }
}

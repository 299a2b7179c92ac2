//! Membership: the row of this host, its heartbeat, and taking the partition. Only the database's clock decides whether a lease is
//! over.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    cluster::{
        ClusterOptions,
        log::Position,
        loss::{CopyEnd, LostBatch},
        schema::{PARTITION, TIMEOUT, check_clock, rights},
        session::Session,
    },
    cluster_error::ClusterError,
    error::OpenError,
    files::{Disk, DiskNeed},
    lease::{Lease, now_ms},
    options::Options,
    postgres::{Param, PostgresError, PostgresServer},
    store::io_error,
};

/// Heartbeats of a lease.
const BEATS: u32 = 5;
/// Interval between looks at the lease: sleeping does not count the time in which the machine was suspended.
const LOOK: Duration = Duration::from_millis(50);
/// Time in which the sessions of a replaced owner must end.
const TERMINATION: Duration = Duration::from_secs(10);

/// Interval between looks of an owner at whether it is drained: its clients wait for that.
const MARK_LOOK: Duration = Duration::from_millis(200);

/// An owner whose disk is low for so many heartbeats in a row leaves the ledger to another host.
const LOW_BEATS: u32 = 3;

/// With `$5` the host is drained where another would take the ledger.
const BEAT: &str = "with beat as (update agent_host.hosts as me set lease_until = clock_timestamp() + $3::int8 * interval '1 millisecond', \
    drained = me.drained or ($5::int8 <> 0 and exists (select 1 from agent_host.hosts o where o.host_id <> $1::text and not o.drained \
    and o.lease_until > clock_timestamp())) where host_id = $1::text and incarnation = $2::int8 returning drained) \
    select (select count(*) from beat), p.epoch, coalesce(p.owner = $1::text and p.incarnation = $2::int8, false), \
    coalesce((select drained from beat), false) from agent_host.partitions p where p.p = $4::int8";

const IS_DRAINED: &str = "select 1::int8 from agent_host.hosts where host_id = $1::text and incarnation = $2::int8 and drained";

/// The partition, and whether nobody holds it: the lease of its owner is over, by the database's clock; after a restart of the
/// database it counts from that restart on. A newer process of the owner's host is the end of the older one.
///
/// Also: the batch that the log lost, whether it has the last batch of the copy, whether this host is drained and another would take
/// the ledger, and the address of the owner.
const LOOK_AT_PARTITION: &str = "select p.epoch, p.owner, p.incarnation, p.owner is null or h.host_id is null \
    or (p.owner = $1::text and p.incarnation = $2::int8), \
    coalesce(greatest(h.lease_until, pg_postmaster_start_time() + h.lease_ms * interval '1 millisecond') < clock_timestamp(), true), \
    p.lost_batch, p.lost_by, \
    $4::int8 = 0 or exists (select 1 from agent_host.log l where l.p = p.p and l.seq = $4::int8 and l.epoch = $5::int8), \
    exists (select 1 from agent_host.hosts me join agent_host.hosts o on o.host_id <> me.host_id and not o.drained \
    and o.lease_until > clock_timestamp() where me.host_id = $1::text and me.drained), h.advertise \
    from agent_host.partitions p left join agent_host.hosts h on h.host_id = p.owner and h.incarnation = p.incarnation \
    where p.p = $3::int8";

/// Ends the lease of an owner whose time is over. A heartbeat of that owner changes the same row: whichever of the two comes second sees
/// what the first one did, so a lease is never both renewed and ended.
const END_LEASE: &str = "delete from agent_host.hosts where host_id = $1::text and incarnation = $2::int8 \
    and greatest(lease_until, pg_postmaster_start_time() + lease_ms * interval '1 millisecond') < clock_timestamp() returning 1::int8";

/// The epoch grows by a random step, so that two histories of one database have no epoch in common: a standby that was promoted without
/// the last takeover does not give its number again. Where the log lost a batch nobody takes the ledger. A drained host that takes it, because
/// no other would, is not drained any more.
const TAKE: &str = "with taken as (update agent_host.partitions set epoch = epoch + 1 + floor(random() * 1000000)::int8, owner = $1::text, incarnation = $2::int8, \
    since = clock_timestamp() where p = $3::int8 and epoch = $4::int8 and lost_batch is null returning epoch), \
    undrained as (update agent_host.hosts set drained = false where host_id = $1::text and drained and exists (select 1 from taken)) \
    select epoch from taken";

const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
    where application_name = $1::text and pid <> pg_backend_pid()";

const JOIN: &str = "insert into agent_host.hosts as h (host_id, incarnation, advertise, version, lease_ms, started_at, lease_until, drained) \
    values ($1::text, 1, $2::text, $3::text, $4::int8, clock_timestamp(), clock_timestamp() + $4::int8 * interval '1 millisecond', $5::int8 <> 0) \
    on conflict (host_id) do update set incarnation = h.incarnation + 1, advertise = excluded.advertise, \
    version = excluded.version, lease_ms = excluded.lease_ms, started_at = excluded.started_at, lease_until = excluded.lease_until, \
    drained = excluded.drained returning incarnation";

/// The name of the sessions of a host's process, by which they are found in `pg_stat_activity`. At most 63 bytes count.
fn session_name(host_id: &str, incarnation: u64) -> String {
    format!("agent-host {host_id} {incarnation}")
}

/// The id of this host, in a file beside its copy.
fn host_id(dir: &Path) -> Result<String, OpenError> {
    let path: PathBuf = dir.join("cluster.host");
    match fs::read_to_string(&path) {
        Ok(id) if id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => return Ok(id),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("read", &path)(error)),
    }
    // The standard library seeds its hashers from the system's randomness.
    let id = format!("{:016x}", RandomState::new().hash_one(dir));
    fs::write(&path, &id).map_err(io_error("write", &path))?;
    Ok(id)
}

/// The owner of the partition, as a follower sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    pub(crate) advertise: Option<String>,
}

/// A host in the cluster. Dropping it ends the heartbeat, gives the partition back and removes the row of the host.
pub(crate) struct Member {
    server: PostgresServer,
    host_id: String,
    advertise: String,
    incarnation: u64,
    lease: Arc<Lease>,
    owner: Mutex<Owner>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

impl Member {
    /// Writes the row of this host and begins its heartbeat. The lock of the copy in `dir` must be held: it says that no older
    /// process of this host lives.
    pub(crate) fn join(copy: &Options, options: &ClusterOptions) -> Result<Self, OpenError> {
        let dir = copy.dir.as_path();
        let host_id = host_id(dir)?;
        let mut session = Session::new(&options.server, "agent-host join", TIMEOUT);
        let taken = session.query_again(
            "select host_id from agent_host.hosts where advertise = $1::text and host_id <> $2::text and lease_until > \
             clock_timestamp()",
            &[Param::Text(&options.advertise), Param::Text(&host_id)],
        );
        if !taken.map_err(ClusterError::from)?.is_empty() {
            return Err(ClusterError::AdvertiseTaken { advertise: options.advertise.clone() }.into());
        }
        let lease = Arc::new(Lease::new(options.lease));
        let lease_ms = u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX);
        let sent = now_ms();
        let rows = session.query(
            JOIN,
            &[
                Param::Text(&host_id),
                Param::Text(&options.advertise),
                Param::Text(&options.version),
                Param::number(lease_ms),
                Param::Int(i64::from(options.is_drained)),
            ],
        );
        let incarnation = rows.and_then(|rows| first_number(&rows, &options.server)).map_err(ClusterError::from)?;
        lease.renew(sent);
        lease.set_drained(options.is_drained);
        let mut member = Self {
            server: options.server.clone(),
            host_id,
            advertise: options.advertise.clone(),
            incarnation,
            lease,
            owner: Mutex::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let disk = Disk::new(dir.to_owned(), copy.min_free_disk_bytes);
        member.start(lease_ms, disk).map_err(io_error("start a thread for", dir))?;
        Ok(member)
    }

    fn start(&mut self, lease_ms: u64, disk: Disk) -> io::Result<()> {
        let heart = Heart {
            session: self.session(TIMEOUT.min(self.lease.length() / 4)),
            host_id: self.host_id.clone(),
            incarnation: self.incarnation,
            lease_ms,
            lease: Arc::clone(&self.lease),
            stop: Arc::clone(&self.stop),
            disk,
            low_beats: 0,
        };
        self.threads.push(Builder::new().name("ledger-heartbeat".to_owned()).spawn(move || heart.run())?);
        let (lease, stop) = (Arc::clone(&self.lease), Arc::clone(&self.stop));
        self.threads.push(Builder::new().name("ledger-lease".to_owned()).spawn(move || {
            while !is_stopped_within(&stop, LOOK) {
                // A host that owns nothing has nothing to give up.
                if lease.epoch() > 0 && lease.check().is_err() {
                    return;
                }
            }
        })?);
        Ok(())
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Address of this host.
    pub(crate) fn advertise(&self) -> &str {
        &self.advertise
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner.lock().clone()
    }

    pub(crate) fn session_name(&self) -> String {
        session_name(&self.host_id, self.incarnation)
    }

    /// A session of this process, which a host that takes over ends.
    pub(crate) fn session(&self, timeout: Duration) -> Session {
        Session::new(&self.server, &self.session_name(), timeout)
    }

    /// Takes the partition where nobody holds it; gives the new epoch. The sessions of the owner before have ended then: an open
    /// transaction of it would hold up the next batch. `position` is the end of the copy.
    ///
    /// # Errors
    /// [`ClusterError::AwaitsRepair`] where the log lost a batch that another copy has, and [`ClusterError::LostCommits`] where this one
    /// has it.
    pub(crate) fn try_take(
        &self,
        session: &mut Session,
        copy: &CopyEnd,
        position: Position,
    ) -> Result<Option<u64>, ClusterError> {
        let me = [Param::Text(&self.host_id), Param::number(self.incarnation), Param::Int(PARTITION)];
        let [host, incarnation, partition] = me;
        let look = [host, incarnation, partition, Param::number(position.last), Param::number(position.epoch)];
        let rows = session.query_again(LOOK_AT_PARTITION, &look)?;
        let Some(row) = rows.first() else { return Ok(None) };
        *self.owner.lock() = Owner { epoch: row.number(0)?, advertise: row.text(9)? };
        if !row.flag(7)? {
            copy.check(session, &self.server, position)?;
        }
        if let Some(LostBatch { batch, host }) = LostBatch::of(row.int(5)?, row.text(6)?) {
            return Err(ClusterError::AwaitsRepair { server: self.server.to_string(), batch, host });
        }
        let (is_free, is_over, gives_way) = (row.flag(3)?, row.flag(4)?, row.flag(8)?);
        if !(is_free || is_over) || gives_way || self.lease.left() < self.lease.length() / 4 {
            return Ok(None);
        }
        check_clock(session, &self.server)?;
        let before = match (row.text(1)?, row.int(2)?) {
            (Some(owner), Some(_)) => Some((owner, row.number(2)?)),
            _ => None,
        };
        if !is_free && let Some((owner, incarnation)) = &before {
            let ended = session.query(END_LEASE, &[Param::Text(owner), Param::number(*incarnation)])?;
            if ended.is_empty() {
                return Ok(None);
            }
        }
        let taken = session.query(TAKE, &[host, incarnation, partition, Param::number(row.number(0)?)])?;
        let Some(taken) = taken.first() else { return Ok(None) };
        let epoch = taken.number(0)?;
        if let Some((owner, incarnation)) = before
            && (owner.as_str(), incarnation) != (self.host_id.as_str(), self.incarnation)
        {
            self.terminate(session, &session_name(&owner, incarnation))?;
        }
        Ok(Some(epoch))
    }

    fn terminate(&self, session: &mut Session, name: &str) -> Result<(), ClusterError> {
        let began = Instant::now();
        loop {
            let rows = session.query_again(TERMINATE, &[Param::Text(name)]);
            let rows =
                rows.map_err(|error| rights(error, &self.server, "end the sessions of another host (pg_signal_backend)"))?;
            if first_number(&rows, &self.server)? == 0 || began.elapsed() > TERMINATION {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn first_number(rows: &[crate::postgres::Row], server: &PostgresServer) -> Result<u64, PostgresError> {
    let reason = || PostgresError::Protocol { server: server.place().into(), reason: "an answer has no row".into() };
    rows.first().ok_or_else(reason)?.number(0)
}

impl Drop for Member {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
        // Where this fails, the others wait for the end of the lease.
        let mut session = self.session(Duration::from_secs(1));
        let me = [Param::Text(&self.host_id), Param::number(self.incarnation)];
        // The next owner ends the sessions of this one only where it knows of it.
        let _ = session.query_again(TERMINATE, &[Param::Text(&self.session_name())]);
        let given_back = session.query_again(
            "with freed as (update agent_host.partitions set owner = null, incarnation = null where owner = $1::text and incarnation \
             = $2::int8) delete from agent_host.hosts where host_id = $1::text and incarnation = $2::int8",
            &me,
        );
        if let Err(error) = given_back {
            tracing::warn!(%error, "the ledger could not be given back: another host takes it over when the lease is over");
        }
    }
}

/// The thread of the heartbeat.
struct Heart {
    session: Session,
    host_id: String,
    incarnation: u64,
    lease_ms: u64,
    lease: Arc<Lease>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    /// The disk of the copy.
    disk: Disk,
    /// Number of heartbeats in a row with a disk that is too low for new events.
    low_beats: u32,
}

/// Waits for a stop; true if one came within the time.
pub(crate) fn is_stopped_within(stop: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut stopped = stop.0.lock();
    while !*stopped && !stop.1.wait_until(&mut stopped, until).timed_out() {}
    *stopped
}

impl Heart {
    fn run(mut self) {
        let interval = self.lease.length() / BEATS;
        let mut next = Instant::now();
        while !is_stopped_within(&self.stop, MARK_LOOK.min(next.saturating_duration_since(Instant::now()))) {
            if Instant::now() < next && self.look_at_mark().is_ok() {
                continue;
            }
            let pause = match self.beat() {
                Ok(()) => interval,
                Err(error) => {
                    tracing::warn!(%error, "the lease of this host could not be renewed");
                    // Soon again: a restarted database is not missed for long.
                    interval / 10
                }
            };
            next = Instant::now() + pause;
        }
    }

    /// Sees before the next heartbeat that the host, which owns the ledger, is drained.
    fn look_at_mark(&mut self) -> Result<(), PostgresError> {
        let held = self.lease.epoch();
        if held > 0 && !self.lease.is_drained() {
            let me = [Param::Text(&self.host_id), Param::number(self.incarnation)];
            let is_drained = !self.session.query(IS_DRAINED, &me)?.is_empty();
            if is_drained && self.lease.epoch() == held {
                self.lease.set_drained(true);
            }
        }
        Ok(())
    }

    fn beat(&mut self) -> Result<(), PostgresError> {
        // Before the statement: what is taken while it is under way is not in its answer.
        let held = self.lease.epoch();
        let sent = now_ms();
        let is_low = self.disk.check(DiskNeed::NewEvent).is_err();
        self.low_beats = if held > 0 && is_low { self.low_beats.saturating_add(1) } else { 0 };
        let leaves = self.low_beats >= LOW_BEATS;
        let (host, incarnation) = (Param::Text(&self.host_id), Param::number(self.incarnation));
        let beat = [host, incarnation, Param::number(self.lease_ms), Param::Int(PARTITION), Param::Int(i64::from(leaves))];
        let rows = self.session.query_again(BEAT, &beat)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (epoch, is_mine) = (row.number(1)?, row.flag(2)?);
        if row.number(0)? == 0 {
            self.lease.end("another process of this host has joined the cluster, or its row was removed");
            return Ok(());
        }
        if held > 0 && (!is_mine || epoch != held) {
            self.lease.end(&format!("another host has taken over the ledger with epoch {epoch}"));
            return Ok(());
        }
        self.lease.renew(sent);
        // An answer from before the takeover has the mark that ended with it.
        if self.lease.epoch() == held {
            let drained = row.flag(3)?;
            if leaves && drained && !self.lease.is_drained() {
                tracing::warn!("the disk of this host is low: it gives the ledger to another host, as one that is drained");
            }
            self.lease.set_drained(drained);
        }
        Ok(())
    }
}

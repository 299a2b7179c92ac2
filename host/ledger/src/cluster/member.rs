//! Membership: the row of this host and its heartbeat. Only the database's clock decides whether a lease is over.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    cluster::{
        ClusterOptions,
        appender::Appender,
        bystander::Bystander,
        frame::Form,
        looks::Looks,
        placement::{LiveHosts, Place, live_hosts},
        schema::{Cluster, TIMEOUT, check_cluster, first, upgrade_cluster},
        session::Session,
        standby::Standby,
        storage::ObjectStorage,
    },
    cluster_error::ClusterError,
    error::OpenError,
    files::{Disk, DiskNeed},
    lease::{Lease, LeaseEnd, LeaseTime, now_ms},
    options::Options,
    postgres::{Param, PostgresError, PostgresServer, Row},
    store::io_error,
};

/// Heartbeats of a lease.
const BEATS: u32 = 5;
/// Interval between looks at the lease: sleeping does not count the time in which the machine was suspended.
const LOOK: Duration = Duration::from_millis(50);
/// Interval between looks of an owner at whether it is drained: its clients wait for that.
const MARK_LOOK: Duration = Duration::from_millis(200);
/// An owner whose disk is low for so many heartbeats in a row leaves what it owns to other hosts.
const LOW_BEATS: u32 = 3;
/// A host keeps a partition for so many heartbeats before it gives it to the host that is to have it: partitions do not wander.
const SETTLED_BEATS: u32 = 5;

/// With `$5` the host is drained where another would take what it owns. The host has copies of the partitions `$6`; with `$4`, which hosts of the
/// version before see, of all. The last columns have the hosts that partitions are given to, and whether all hosts read packed frames.
const BEAT: &str = concat!(
    "with beat as (update agent_host.hosts as me set lease_until = clock_timestamp() + $3::int8 * interval '1 millisecond', \
    follows = $4::int8 <> 0, copies = $6::text, drained = me.drained or ($5::int8 <> 0 and exists (select 1 from agent_host.hosts o where \
    o.host_id <> $1::text and not o.drained and o.lease_until > clock_timestamp())) \
    where host_id = $1::text and incarnation = $2::int8 returning drained) \
    select (select count(*) from beat), p.p, p.epoch, coalesce(p.owner = $1::text and p.incarnation = $2::int8, false), \
    coalesce((select drained from beat), false), ",
    live_hosts!(),
    ", not exists (select 1 from agent_host.hosts o where not o.reads_packed and o.lease_until > clock_timestamp()) \
    from agent_host.partitions p order by p.p"
);

/// The hosts that partitions are given to, where this one is drained.
const IF_DRAINED: &str =
    concat!("select ", live_hosts!(), " from agent_host.hosts where host_id = $1::text and incarnation = $2::int8 and drained");

const JOIN: &str = "insert into agent_host.hosts as h (host_id, incarnation, advertise, version, lease_ms, started_at, lease_until, copies, reads_packed) \
    values ($1::text, 1, $2::text, $3::text, $4::int8, clock_timestamp(), clock_timestamp() + $4::int8 * interval '1 millisecond', '', true) \
    on conflict (host_id) do update set incarnation = h.incarnation + 1, advertise = excluded.advertise, \
    version = excluded.version, lease_ms = excluded.lease_ms, started_at = excluded.started_at, lease_until = excluded.lease_until, \
    drained = false, follows = false, copies = '', reads_packed = true returning incarnation";

/// The name of the sessions of a host's process, by which they are found in `pg_stat_activity`. At most 63 bytes count.
fn session_name(host_id: &str, incarnation: u64) -> String {
    format!("agent-host {host_id} {incarnation}")
}

/// The name of the session with which the process of a host appends to the logs of its partitions.
pub(super) fn appender_name(host_id: &str, incarnation: u64) -> String {
    format!("{} log", session_name(host_id, incarnation))
}

/// The file with the id of this host, locked for as long as the process is a member.
fn lock_file(dir: &Path) -> Result<File, OpenError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("create", dir))?;
    let path = dir.join("cluster.host");
    let file = File::options().create(true).read(true).append(true).open(&path).map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::AlreadyOpen { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

/// The id of this host, in a file beside its copies.
fn host_id(dir: &Path) -> Result<String, OpenError> {
    let path: PathBuf = dir.join("cluster.host");
    let id = fs::read_to_string(&path).map_err(io_error("read", &path))?;
    if id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(id);
    }
    // The standard library seeds its hashers from the system's randomness.
    let id = format!("{:016x}", RandomState::new().hash_one(dir));
    fs::write(&path, &id).map_err(io_error("write", &path))?;
    Ok(id)
}

/// Checks that the host is configured with the place of contents that the cluster has, or with none.
fn check_blobs(facts: &Cluster, options: &ClusterOptions) -> Result<(), ClusterError> {
    match &options.blobs {
        Some(own) if facts.blobs.as_ref() != Some(own) => Err(ClusterError::OtherStorage {
            server: options.server.to_string(),
            found: facts.blobs.as_ref().map_or_else(|| "the database".to_owned(), ToString::to_string),
            own: own.to_string(),
        }),
        _ => Ok(()),
    }
}

/// A host that has joined a cluster. Cheap to clone; the row of the host is removed when the last clone and the last partition are dropped.
#[derive(Clone)]
pub struct ClusterMember(pub(super) Arc<Member>);

impl std::fmt::Debug for ClusterMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterMember").field("advertise", &self.0.advertise).finish_non_exhaustive()
    }
}

impl ClusterMember {
    /// Joins the cluster: checks the database, writes the row of this host and begins its heartbeat. `copy` are the options of its copies. Blocks
    /// meanwhile.
    ///
    /// # Errors
    /// [`OpenError::AlreadyOpen`] where another process is this host; [`OpenError::Cluster`] where the reason lies in the cluster.
    pub fn join(copy: &Options, cluster: &ClusterOptions) -> Result<Self, OpenError> {
        Member::join(copy, cluster).map(|member| Self(Arc::new(member)))
    }

    /// Number of partitions of the cluster.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.0.facts.partitions
    }

    /// True if this host was drained since it joined: it takes a partition only where no other host would.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.0.state.is_drained()
    }

    /// Follows a partition into the copy in `options.dir`, or makes an empty one. Blocks meanwhile.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Cluster`] where the reason lies in the cluster.
    pub fn follow(&self, partition: u32, options: Options) -> Result<Standby, OpenError> {
        Standby::follow(self, i64::from(partition), options)
    }

    /// Looks on at a partition whose copy would be in `dir`, until this host is to have one.
    ///
    /// # Errors
    /// [`OpenError`] where the rest of a copy that was left cannot be removed.
    pub fn look_on(&self, partition: u32, dir: &Path) -> Result<Bystander, OpenError> {
        Bystander::new(self, i64::from(partition), dir)
    }
}

/// The state of a member that its heartbeat keeps.
pub(super) struct MemberState {
    pub(super) time: Arc<LeaseTime>,
    /// The leases of the partitions that the host follows or owns.
    leases: Mutex<Vec<(i64, Arc<Lease>)>>,
    /// Partitions whose copies are not behind.
    followed: Mutex<BTreeSet<i64>>,
    drained: AtomicBool,
    /// All hosts read packed frames.
    packs: AtomicBool,
}

impl MemberState {
    /// The form of new frames, which all hosts read.
    pub(super) fn form(&self) -> Form {
        if self.packs.load(Ordering::Acquire) { Form::Packed } else { Form::Plain }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// The copy of a partition has all batches, or is closed.
    pub(super) fn set_followed(&self, partition: i64, is_followed: bool) {
        let mut followed = self.followed.lock();
        if is_followed {
            followed.insert(partition);
        } else {
            followed.remove(&partition);
        }
    }

    pub(super) fn add(&self, partition: i64, lease: &Arc<Lease>) {
        lease.set_drained(false);
        self.leases.lock().push((partition, Arc::clone(lease)));
    }

    pub(super) fn remove(&self, lease: &Arc<Lease>) {
        self.leases.lock().retain(|(_, other)| !Arc::ptr_eq(other, lease));
    }

    /// The leases, each with its epoch.
    fn held(&self) -> Vec<(i64, Arc<Lease>, u64)> {
        self.leases.lock().iter().map(|(partition, lease)| (*partition, Arc::clone(lease), lease.epoch())).collect()
    }

    /// True if an answer of the database has an earlier epoch of a partition than this host, whatever else it says: it has lost the takeover, as a
    /// standby that was promoted without it. The lease is not renewed then, and the owner looks whether the log has lost batches.
    fn doubts(held: &[(i64, Arc<Lease>, u64)], rows: &[Row]) -> Result<bool, PostgresError> {
        let mut doubts = false;
        for row in rows {
            let (partition, epoch) = (row.int(1)?.unwrap_or_default(), row.number(2)?);
            for (_, lease, _) in held.iter().filter(|(of, _, held)| *of == partition && *held > epoch) {
                lease.doubt();
                doubts = true;
            }
        }
        Ok(doubts)
    }

    /// Notes what an answer of the database says of the host. An answer from before a takeover has the mark that ended with it. A drained host keeps a
    /// partition until another one has a copy.
    fn note_drained(&self, drained: bool, held: &[(i64, Arc<Lease>, u64)], others_have_copy: impl Fn(i64) -> bool) {
        self.drained.store(drained, Ordering::Release);
        for (partition, lease, _) in held.iter().filter(|(_, lease, epoch)| *epoch > 0 && lease.epoch() == *epoch) {
            lease.set_drained(drained && others_have_copy(*partition));
        }
    }
}

/// A host in the cluster. Dropping it ends the heartbeat and removes the row of the host.
pub(super) struct Member {
    pub(super) server: PostgresServer,
    pub(super) facts: Cluster,
    pub(super) storage: Option<Arc<ObjectStorage>>,
    pub(super) host_id: String,
    pub(super) advertise: String,
    pub(super) incarnation: u64,
    /// Hosts that follow each partition, beside its owner.
    followers: u32,
    pub(super) state: Arc<MemberState>,
    pub(super) looks: Arc<Looks>,
    pub(super) appender: Arc<Appender>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
    /// Says that no other process is this host.
    _lock: File,
}

impl Member {
    fn join(copy: &Options, options: &ClusterOptions) -> Result<Self, OpenError> {
        let (dir, server) = (copy.dir.as_path(), &options.server);
        let lock = lock_file(dir)?;
        let mut session = Session::new(server, "agent-host join", TIMEOUT);
        upgrade_cluster(&mut session, server)?;
        let facts = check_cluster(&mut session, server)?;
        check_blobs(&facts, options)?;
        let storage = facts.storage()?;
        let host_id = host_id(dir)?;
        let taken = session.query_again(
            "select host_id from agent_host.hosts where advertise = $1::text and host_id <> $2::text and lease_until > \
             clock_timestamp()",
            &[Param::Text(&options.advertise), Param::Text(&host_id)],
        );
        if !taken.map_err(ClusterError::from)?.is_empty() {
            return Err(ClusterError::AdvertiseTaken { advertise: options.advertise.clone() }.into());
        }
        let time = Arc::new(LeaseTime::new(options.lease));
        let lease_ms = u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX);
        let sent = now_ms();
        let rows = session.query(
            JOIN,
            &[Param::Text(&host_id), Param::Text(&options.advertise), Param::Text(&options.version), Param::number(lease_ms)],
        );
        let incarnation = rows.and_then(|rows| first(&rows, server)?.number(0)).map_err(ClusterError::from)?;
        time.renew(sent);
        let appender = Appender::new(server, &appender_name(&host_id, incarnation), Arc::clone(&time));
        let state = MemberState {
            time,
            leases: Mutex::default(),
            followed: Mutex::default(),
            drained: AtomicBool::new(false),
            packs: AtomicBool::new(false),
        };
        let mut member = Self {
            server: server.clone(),
            facts,
            storage,
            host_id,
            advertise: options.advertise.clone(),
            incarnation,
            followers: options.followers,
            state: Arc::new(state),
            looks: Looks::new(server),
            appender: Arc::new(appender),
            stop: Arc::default(),
            threads: Vec::new(),
            _lock: lock,
        };
        let disk = Disk::new(dir.to_owned(), copy.min_free_disk_bytes);
        member.start(lease_ms, disk).map_err(io_error("start a thread for", dir))?;
        Ok(member)
    }

    /// The use that a copy of a partition has at this host, with these hosts.
    pub(super) fn place(&self, partition: i64, hosts: &str) -> Place {
        LiveHosts::of(hosts).place_of(&self.host_id, self.facts.partitions, partition, self.followers)
    }

    /// True where one of these hosts has a copy of a partition.
    pub(super) fn have_copy(&self, partition: i64, hosts: &str) -> bool {
        LiveHosts::of(hosts).successor(self.facts.partitions, partition).is_some()
    }

    fn start(&mut self, lease_ms: u64, disk: Disk) -> io::Result<()> {
        let timeout = TIMEOUT.min(self.state.time.length() / 4);
        let session = || Session::new(&self.server, &session_name(&self.host_id, self.incarnation), timeout);
        self.threads.push(self.looks.start(session(), self.host_id.clone(), self.incarnation)?);
        let heart = Heart {
            session: session(),
            host_id: self.host_id.clone(),
            incarnation: self.incarnation,
            lease_ms,
            partitions: self.facts.partitions,
            state: Arc::clone(&self.state),
            stop: Arc::clone(&self.stop),
            disk,
            low_beats: 0,
            settled: Settled::default(),
        };
        self.threads.push(Builder::new().name("ledger-heartbeat".to_owned()).spawn(move || heart.run())?);
        let (state, stop) = (Arc::clone(&self.state), Arc::clone(&self.stop));
        self.threads.push(Builder::new().name("ledger-lease".to_owned()).spawn(move || {
            while !is_stopped_within(&stop, LOOK) {
                // A host that owns nothing has nothing to give up.
                for (_, lease, _) in state.held().iter().filter(|(_, _, epoch)| *epoch > 0) {
                    // Its hook has ended what it was for.
                    let _ = lease.check();
                }
            }
        })?);
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        self.looks.stop();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
        // Where this fails, the row stays until its lease is over and for as long as nobody needs the address.
        let mut session = Session::new(&self.server, &session_name(&self.host_id, self.incarnation), Duration::from_secs(1));
        let me = [Param::Text(&self.host_id), Param::number(self.incarnation)];
        let removed =
            session.query_again("delete from agent_host.hosts where host_id = $1::text and incarnation = $2::int8", &me);
        if let Err(error) = removed {
            tracing::warn!(%error, "the row of this host could not be removed: others wait until its lease is over");
        }
    }
}

/// Waits for a stop; true if one came within the time.
pub(crate) fn is_stopped_within(stop: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut stopped = stop.0.lock();
    while !*stopped && !stop.1.wait_until(&mut stopped, until).timed_out() {}
    *stopped
}

/// The number of heartbeats in a row for which the host has had a partition that is to be another host's.
#[derive(Default)]
struct Settled(Vec<(i64, u32)>);

impl Settled {
    /// Counts one more heartbeat; true if the partition may move now.
    fn count(&mut self, partition: i64, is_anothers: bool) -> bool {
        let known = self.0.iter_mut().find(|(known, _)| *known == partition);
        let beats = match (known, is_anothers) {
            (Some((_, beats)), true) => {
                *beats += 1;
                *beats
            }
            (Some((_, beats)), false) => {
                *beats = 0;
                0
            }
            (None, _) => {
                self.0.push((partition, u32::from(is_anothers)));
                u32::from(is_anothers)
            }
        };
        beats >= SETTLED_BEATS
    }
}

/// The thread of the heartbeat.
struct Heart {
    session: Session,
    host_id: String,
    incarnation: u64,
    lease_ms: u64,
    /// Number of partitions of the cluster.
    partitions: u32,
    state: Arc<MemberState>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    /// The disk of the copies.
    disk: Disk,
    /// Number of heartbeats in a row with a disk that is too low for new events.
    low_beats: u32,
    settled: Settled,
}

impl Heart {
    fn run(mut self) {
        let interval = self.state.time.length() / BEATS;
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

    /// Sees before the next heartbeat that the host, which owns a partition, is drained.
    fn look_at_mark(&mut self) -> Result<(), PostgresError> {
        let held = self.state.held();
        if held.iter().any(|(_, _, epoch)| *epoch > 0) && !self.state.is_drained() {
            let me = [Param::Text(&self.host_id), Param::number(self.incarnation)];
            if let Some(row) = self.session.query(IF_DRAINED, &me)?.first() {
                let hosts = row.text(0)?.unwrap_or_default();
                self.note_drained(true, &held, &hosts);
            }
        }
        Ok(())
    }

    fn note_drained(&self, drained: bool, held: &[(i64, Arc<Lease>, u64)], hosts: &str) {
        let hosts = LiveHosts::of(hosts);
        self.state.note_drained(drained, held, |partition| hosts.has_copy_beside(&self.host_id, partition));
    }

    fn beat(&mut self) -> Result<(), PostgresError> {
        // Before the statement: what is taken while it is under way is not in its answer.
        let held = self.state.held();
        let sent = now_ms();
        let is_low = self.disk.check(DiskNeed::NewEvent).is_err();
        let owns = held.iter().any(|(_, _, epoch)| *epoch > 0);
        self.low_beats = if owns && is_low { self.low_beats.saturating_add(1) } else { 0 };
        let leaves = self.low_beats >= LOW_BEATS;
        let copies: Vec<_> = self.state.followed.lock().iter().map(i64::to_string).collect();
        let (follows, copies) = (copies.len() >= self.partitions as usize, copies.join(","));
        let (host, incarnation) = (Param::Text(&self.host_id), Param::number(self.incarnation));
        let [follows, asks] = [follows, leaves].map(|is_so| Param::Int(i64::from(is_so)));
        let beat = [host, incarnation, Param::number(self.lease_ms), follows, asks, Param::Text(&copies)];
        let rows = self.session.query_again(BEAT, &beat)?;
        let Some(row) = rows.first() else { return Ok(()) };
        if MemberState::doubts(&held, &rows)? {
            return Ok(());
        }
        if row.number(0)? == 0 {
            let reason = "another process of this host has joined the cluster, or its row was removed";
            held.iter().for_each(|(_, lease, _)| lease.end(LeaseEnd::Over(reason.to_owned())));
            return Ok(());
        }
        let (drained, list) = (row.flag(4)?, row.text(5)?.unwrap_or_default());
        self.state.packs.store(row.flag(6)?, Ordering::Release);
        let hosts = LiveHosts::of(&list);
        // One after the other, so that most of what the host owns serves meanwhile.
        let mut may_move = self.partitions > 1 && !drained && !held.iter().any(|(_, lease, _)| lease.gives_way());
        for row in &rows {
            let (partition, epoch, is_mine) = (row.int(1)?.unwrap_or_default(), row.number(2)?, row.flag(3)?);
            let is_anothers = hosts.owner(self.partitions, partition).is_some_and(|host| host != self.host_id);
            let settled = self.settled.count(partition, is_mine && is_anothers);
            let Some((_, lease, held)) = held.iter().find(|(held, _, epoch)| *held == partition && *epoch > 0) else { continue };
            if !is_mine || epoch != *held {
                lease.end(LeaseEnd::Over(format!("another host has taken over the ledger with epoch {epoch}")));
            } else if settled && may_move {
                tracing::info!(partition, "a partition moves to the host of the cluster that is to have it");
                lease.set_moving();
                may_move = false;
            }
        }
        self.state.time.renew(sent);
        if leaves && drained && !self.state.is_drained() {
            tracing::warn!("the disk of this host is low: it gives the ledger to another host, as one that is drained");
        }
        self.note_drained(drained, &held, &list);
        Ok(())
    }
}

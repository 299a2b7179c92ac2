//! Looks at the partitions that a host follows: one statement for all of them.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    cluster::{log::Position, loss::LostBatch, placement::live_hosts, session::Session},
    postgres::{Param, PostgresError, PostgresServer, Row, column},
};

/// Time between two looks.
const POLL: Duration = Duration::from_millis(100);
/// A host that has lost its connection takes nothing for so long after it has another one. The database may have lost batches, as a standby that
/// was promoted, and even say that nobody holds a partition: hosts that have the batches say so meanwhile.
const SETTLED: Duration = Duration::from_secs(2);

/// The partitions `$3`, whose copies end with the batches `$4` of the epochs `$5`, and whether nobody holds each: the lease of its owner is over, by
/// the database's clock; after a restart of the database it counts from that restart on. A newer process of the owner's host is the end of
/// the older one.
///
/// Also: the batch that the log lost, whether it has the last batch of the copy, unless that is one that was trimmed, whether this host is drained
/// and another would take the partition, the address of the owner, the hosts that partitions are given to, and whether the log has more than
/// the copy. A host without a copy looks as one whose copy is empty.
const LOOK: &str = concat!(
    "select p.epoch, p.owner, p.incarnation, p.owner is null or h.host_id is null \
    or (p.owner = $1::text and p.incarnation = $2::int8), \
    coalesce(greatest(h.lease_until, pg_postmaster_start_time() + h.lease_ms * interval '1 millisecond') < clock_timestamp(), true), \
    p.lost_batch, p.lost_by, \
    c.last = 0 or c.last < p.log_first or exists (select 1 from agent_host.log l where l.p = p.p and l.seq = c.last and \
    l.epoch = c.epoch), exists (select 1 from agent_host.hosts me join agent_host.hosts o on o.host_id <> me.host_id and not o.drained \
    and o.lease_until > clock_timestamp() where me.host_id = $1::text and me.drained), h.advertise, ",
    live_hosts!(),
    ", exists (select 1 from agent_host.log l where l.p = p.p and l.seq > c.last), p.p \
    from unnest($3::int8[], $4::int8[], $5::int8[]) c(p, last, epoch) join agent_host.partitions p on p.p = c.p \
    left join agent_host.hosts h on h.host_id = p.owner and h.incarnation = p.incarnation"
);

/// A partition, as the database has it, beside the copy of this host.
#[derive(Debug)]
pub(crate) struct PartitionLook {
    pub(crate) epoch: u64,
    /// The id and the incarnation of the owner.
    pub(crate) owner: Option<(String, u64)>,
    /// Address of the owner.
    pub(crate) advertise: Option<String>,
    /// True where nobody owns it, or an earlier process of this host does.
    pub(crate) is_free: bool,
    /// True where the lease of the owner is over.
    pub(crate) is_over: bool,
    pub(crate) lost: Option<LostBatch>,
    /// The log has the last batch of the copy, or was trimmed behind it.
    pub(crate) has_copy: bool,
    /// The log has more than the copy.
    pub(crate) has_more: bool,
    /// This host is drained, and another would take the partition.
    pub(crate) gives_way: bool,
    /// The hosts that partitions are given to, for [`LiveHosts`](super::placement::LiveHosts).
    pub(crate) hosts: String,
    /// The connection to the database was made anew a moment ago: see [`SETTLED`].
    pub(crate) is_unsettled: bool,
}

impl PartitionLook {
    fn of(row: &Row, is_unsettled: bool) -> Result<Self, PostgresError> {
        let owner = match (row.text(1)?, row.int(2)?) {
            (Some(owner), Some(_)) => Some((owner, row.number(2)?)),
            _ => None,
        };
        Ok(Self {
            epoch: row.number(0)?,
            owner,
            advertise: row.text(9)?,
            is_free: row.flag(3)?,
            is_over: row.flag(4)?,
            lost: LostBatch::of(row.int(5)?, row.text(6)?),
            has_copy: row.flag(7)?,
            has_more: row.flag(11)?,
            gives_way: row.flag(8)?,
            hosts: row.text(10)?.unwrap_or_default(),
            is_unsettled,
        })
    }
}

/// The copies of a host that wait for the next look.
pub(super) struct Looks {
    server: Arc<str>,
    state: Mutex<State>,
    /// A copy waits, or the thread is to end.
    asked: Condvar,
    /// Copies have answers, or the thread has ended.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    copies: BTreeMap<i64, FollowedCopy>,
    is_stopped: bool,
    has_ended: bool,
}

struct FollowedCopy {
    position: Arc<Mutex<Position>>,
    waits: bool,
    answer: Option<Result<PartitionLook, PostgresError>>,
}

impl Looks {
    pub(super) fn new(server: &PostgresServer) -> Arc<Self> {
        let server = server.to_string().into();
        Arc::new(Self { server, state: Mutex::default(), asked: Condvar::new(), answered: Condvar::new() })
    }

    /// Starts the thread that looks, for the process of a host.
    pub(super) fn start(self: &Arc<Self>, session: Session, host_id: String, incarnation: u64) -> io::Result<JoinHandle<()>> {
        let looks = Arc::clone(self);
        let looker = Looker { ends: EndGuard(Arc::clone(self)), session, host_id, incarnation };
        Builder::new().name("ledger-looks".to_owned()).spawn(move || looker.run(&looks))
    }

    /// Lets the thread end.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.asked.notify_one();
    }

    /// Begins to follow a partition with the copy that ends at `position`.
    pub(super) fn follow(self: &Arc<Self>, partition: i64, position: &Arc<Mutex<Position>>) -> Follower {
        let copy = FollowedCopy { position: Arc::clone(position), waits: false, answer: None };
        self.state.lock().copies.insert(partition, copy);
        Follower { looks: Arc::clone(self), partition, position: Arc::clone(position) }
    }
}

/// A copy that follows its partition, until it is dropped.
pub(crate) struct Follower {
    looks: Arc<Looks>,
    partition: i64,
    position: Arc<Mutex<Position>>,
}

impl Follower {
    /// A look that begins after this call. Blocks for as long.
    ///
    /// # Errors
    /// Where the database cannot be asked.
    pub(crate) fn look(&mut self) -> Result<PartitionLook, PostgresError> {
        let mut state = self.looks.state.lock();
        if let Some(copy) = state.copies.get_mut(&self.partition) {
            (copy.waits, copy.answer) = (true, None);
        }
        self.looks.asked.notify_one();
        loop {
            if let Some(answer) = state.copies.get_mut(&self.partition).and_then(|copy| copy.answer.take()) {
                return answer;
            }
            if state.has_ended {
                let reason = "the thread that asks it has ended".into();
                return Err(PostgresError::Connection { server: Arc::clone(&self.looks.server), reason });
            }
            self.looks.answered.wait(&mut state);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Another copy may follow the partition already.
        self.looks.state.lock().copies.retain(|_, copy| !Arc::ptr_eq(&copy.position, &self.position));
    }
}

/// Tells those who wait that the thread has ended, however it did.
struct EndGuard(Arc<Looks>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.answered.notify_all();
    }
}

/// The thread that looks.
struct Looker {
    ends: EndGuard,
    session: Session,
    host_id: String,
    incarnation: u64,
}

impl Looker {
    fn run(mut self, looks: &Looks) {
        let mut last: Option<Instant> = None;
        while let Some(asked) = Self::asked(looks, last.map(|last| last + POLL)) {
            last = Some(Instant::now());
            let answer = self.look(&asked);
            let mut state = looks.state.lock();
            for (partition, position) in asked {
                // Another copy may follow the partition meanwhile.
                let copy = state.copies.get_mut(&partition).filter(|copy| Arc::ptr_eq(&copy.position, &position));
                let Some(copy) = copy else { continue };
                copy.answer = Some(match &answer {
                    Ok(rows) => self.of_partition(rows, partition),
                    Err(error) => Err(error.clone()),
                });
            }
            drop(state);
            looks.answered.notify_all();
        }
        drop(self.ends);
    }

    /// Waits until `from`, and until a copy waits for a look. `None` when the thread is to end.
    fn asked(looks: &Looks, from: Option<Instant>) -> Option<Vec<(i64, Arc<Mutex<Position>>)>> {
        let mut state = looks.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            let is_early = from.is_some_and(|from| Instant::now() < from);
            if is_early && let Some(from) = from {
                looks.asked.wait_until(&mut state, from);
            } else if state.copies.values().any(|copy| copy.waits) {
                let waiting = |(partition, copy): (&i64, &mut FollowedCopy)| {
                    std::mem::take(&mut copy.waits).then(|| (*partition, Arc::clone(&copy.position)))
                };
                return Some(state.copies.iter_mut().filter_map(waiting).collect());
            } else {
                looks.asked.wait(&mut state);
            }
        }
    }

    fn look(&mut self, asked: &[(i64, Arc<Mutex<Position>>)]) -> Result<Vec<Row>, PostgresError> {
        let (mut partitions, mut lasts, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, position) in asked {
            let position = *position.lock();
            partitions.push(*partition);
            lasts.push(column(position.last));
            epochs.push(column(position.epoch()));
        }
        let (host, incarnation) = (Param::Text(&self.host_id), Param::number(self.incarnation));
        let [partitions, lasts, epochs] = [&partitions, &lasts, &epochs].map(|numbers| Param::Numbers(numbers));
        self.session.query_again(LOOK, &[host, incarnation, partitions, lasts, epochs])
    }

    fn of_partition(&self, rows: &[Row], partition: i64) -> Result<PartitionLook, PostgresError> {
        let is_unsettled = self.session.has_reconnected_within(SETTLED);
        for row in rows {
            if row.int(12)? == Some(partition) {
                return PartitionLook::of(row, is_unsettled);
            }
        }
        let reason = format!("the table agent_host.partitions has no row {partition}");
        Err(PostgresError::Protocol { server: Arc::clone(&self.ends.0.server), reason: reason.into() })
    }
}

//! Appends to the logs of all partitions that a host owns. What comes while a statement is under way is written by the next one, together: the
//! database syncs once for all of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    cluster::session::Session,
    lease::LeaseTime,
    postgres::{Param, PostgresError, PostgresServer, column},
};

/// Longest wait for the answer to an insert; then the row is looked for on another connection.
pub(crate) const COMMIT: Duration = Duration::from_secs(5);
/// Bytes of frames that one statement writes, and one frame at least.
const STATEMENT_BYTES: usize = 8 * 1024 * 1024;

/// A batch is inserted only behind the one before, with the epoch that that was seen with.
const INSERT: &str = "insert into agent_host.log (p, seq, epoch, frame) \
    select n.p, n.seq, n.epoch, n.frame from unnest($1::int8[], $2::int8[], $3::int8[], $4::bytea[], $5::int8[]) \
    as n(p, seq, epoch, frame, before) \
    where n.seq = 1 or exists (select 1 from agent_host.log b where b.p = n.p and b.seq = n.seq - 1 and b.epoch = n.before) \
    on conflict do nothing returning p";

/// A batch that is to become part of a log.
#[derive(Debug, Clone)]
pub(crate) struct Append {
    pub(crate) partition: i64,
    pub(crate) batch: u64,
    pub(crate) epoch: u64,
    /// Epoch of the batch before.
    pub(crate) before: u64,
    pub(crate) frame: Bytes,
}

/// The outcome of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    Yes,
    /// The row is another's, or the batch before it is not there.
    Fenced,
}

/// Inserts batches of different partitions, in the order of these: two hosts that insert the same ones wait for each other in that order.
///
/// # Errors
/// Where the statement is refused, or its outcome is not known: for all of them.
pub(crate) fn insert(session: &mut Session, appends: &[Append]) -> Result<Vec<Inserted>, PostgresError> {
    let numbers = |number: fn(&Append) -> u64| appends.iter().map(|append| column(number(append))).collect::<Vec<_>>();
    let (batches, epochs, before) =
        (numbers(|append| append.batch), numbers(|append| append.epoch), numbers(|append| append.before));
    let partitions: Vec<_> = appends.iter().map(|append| append.partition).collect();
    let frames: Vec<_> = appends.iter().map(|append| append.frame.clone()).collect();
    let [partition, batch, epoch, before] = [&partitions, &batches, &epochs, &before].map(|numbers| Param::Numbers(numbers));
    let rows = session.query(INSERT, &[partition, batch, epoch, Param::Frames(&frames), before])?;
    let inserted = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>, _>>()?;
    let outcome = |partition: &i64| if inserted.contains(&Some(*partition)) { Inserted::Yes } else { Inserted::Fenced };
    Ok(partitions.iter().map(outcome).collect())
}

/// See the module.
pub(crate) struct Appender {
    server: Arc<str>,
    time: Arc<LeaseTime>,
    session: Mutex<Session>,
    state: Mutex<State>,
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<(u64, Append)>,
    outcomes: HashMap<u64, Result<Inserted, PostgresError>>,
    last_ticket: u64,
    /// One of the writers has the session.
    is_writing: bool,
}

impl Appender {
    pub(crate) fn new(server: &PostgresServer, session_name: &str, time: Arc<LeaseTime>) -> Self {
        Self {
            server: server.to_string().into(),
            time,
            session: Mutex::new(Session::new(server, session_name, COMMIT)),
            state: Mutex::default(),
            written: Condvar::new(),
        }
    }

    /// Inserts a batch, together with those of other partitions that wait at the same time.
    ///
    /// # Errors
    /// As [`insert`].
    pub(crate) fn append(&self, append: Append) -> Result<Inserted, PostgresError> {
        let mut state = self.state.lock();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.waiting.push((ticket, append));
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return outcome;
            }
            if state.is_writing {
                self.written.wait(&mut state);
            } else {
                self.write(&mut state);
            }
        }
    }

    /// Writes what waits, as far as one statement has room for it. The oldest is among it.
    fn write(&self, state: &mut MutexGuard<'_, State>) {
        let mut bytes = 0;
        let mut fits = |(_, append): &(u64, Append)| {
            let has_room = bytes == 0 || bytes + append.frame.len() <= STATEMENT_BYTES;
            bytes += append.frame.len();
            has_room
        };
        let count = state.waiting.iter().take_while(|waiting| fits(waiting)).count();
        let mut taken: Vec<_> = state.waiting.drain(..count).collect();
        taken.sort_by_key(|(_, append)| append.partition);
        let (tickets, appends): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        state.is_writing = true;
        let mut writing = Writing { appender: self, state, tickets, outcomes: None };
        writing.outcomes = MutexGuard::unlocked(writing.state, || {
            let mut session = self.session.lock();
            let answer = session.set_timeout(self.time.left().min(COMMIT)).and_then(|()| insert(&mut session, &appends));
            Some(answer)
        });
    }
}

/// A statement under way. Those who wait for it hear of its end, however it ends.
struct Writing<'a, 'b> {
    appender: &'a Appender,
    state: &'a mut MutexGuard<'b, State>,
    tickets: Vec<u64>,
    outcomes: Option<Result<Vec<Inserted>, PostgresError>>,
}

impl Drop for Writing<'_, '_> {
    fn drop(&mut self) {
        self.state.is_writing = false;
        let unknown = || PostgresError::Connection {
            server: Arc::clone(&self.appender.server),
            reason: "the thread that writes has ended".into(),
        };
        for (place, ticket) in self.tickets.iter().enumerate() {
            let outcome = match &self.outcomes {
                Some(Ok(outcomes)) => outcomes.get(place).copied().ok_or_else(unknown),
                Some(Err(error)) => Err(error.clone()),
                None => Err(unknown()),
            };
            self.state.outcomes.insert(*ticket, outcome);
        }
        self.appender.written.notify_all();
    }
}

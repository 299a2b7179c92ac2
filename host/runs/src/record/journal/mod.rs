//! The journal of a run: every host call in order, and what came of it.
//!
//! A run is a sequence of host calls, and the computation between them is deterministic. A run is therefore resumed by
//! executing its guest again: as long as the journal has entries, calls are answered from the journal and have no effect;
//! later calls are live.
//!
//! An entry is part of the next write of the run, and the writes of a run become durable in order. Every entry is therefore
//! durable before all that depends on it: the effect of a later call waits for its own entry ([`Entry::Started`]), and
//! published events were committed after it. A call whose effect is in the ledger has its entry in the same commit.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use agent_host_ledger::{Blob, JournalSegment, Ledger};
use agent_host_protocol::{Limits, time};
use agent_host_sandbox::{GuestClock, World};
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) mod entry;
pub(crate) mod function;
pub(crate) mod request_digest;
mod source;
mod stop;
#[cfg(test)]
mod tests;
mod ticket;
pub(crate) mod timeline;

pub use entry::rewritten;
pub(crate) use entry::{Effect, Entry, Outcome};
use function::Function;
pub(crate) use function::functions;
pub(crate) use request_digest::RequestDigest;
pub(crate) use source::Source;
use source::{Page, Past};
pub(crate) use stop::{Divergence, Side, Stop};
pub(crate) use ticket::{CallId, Ticket};
use ticket::{OpenCall, Part};

/// Entries that wait for a write to travel with; more go by themselves.
const MAX_WAITING: usize = 64;
/// Bytes of them, likewise.
const MAX_WAITING_BYTES: usize = 64 * 1024;

/// The journal of one execution.
pub(crate) struct Journal {
    mode: Mode,
    clock: GuestClock,
    /// A moment of real time, and what the clock of the run showed then.
    base: (Instant, u64),
    max_bytes: u64,
    state: Mutex<State>,
    /// Set as long as calls are answered from the past.
    replaying: Arc<AtomicBool>,
}

/// The use of the journal by an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No call is recorded: the run cannot be resumed.
    Off,
    /// Calls are recorded; calls of earlier executions are answered from the journal.
    Recording,
    /// The first `calls` calls are answered from the journal, then the execution stops.
    Offline { calls: u64 },
}

struct State {
    past: Past,
    /// Calls that the gate has not closed: one of a guest, many of an executor.
    open: Vec<OpenCall>,
    waiting: Vec<PendingEntry>,
    waiting_bytes: usize,
    written: WrittenPart,
    /// Calls of the guest so far.
    calls: u64,
    /// Sequence of the last result that was emitted, while calls are answered from the past.
    last_emitted: u64,
    next_call: u64,
}

/// The written part of the journal.
#[derive(Debug, Clone, Copy)]
struct WrittenPart {
    /// Number of the next entry.
    next: u64,
    /// The clock of the run at the last entry, in microseconds.
    last_us: u64,
    bytes: u64,
    full: Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    No,
    /// To be said to those who watch the run.
    Unreported,
    Reported,
}

/// An entry that is not with the ledger yet.
struct PendingEntry {
    /// `None` where it settles no call.
    call: Option<CallId>,
    /// The present clock of the run, in microseconds.
    at_us: u64,
    entry: Entry,
    blobs: Vec<Blob>,
}

/// The way in which a call is answered.
pub(crate) enum Step {
    /// An execution before has the answer.
    Answered(RecordedCall),
    /// The call is executed.
    Live(Ticket),
}

/// A call that an earlier execution has made.
pub(crate) struct RecordedCall {
    pub(crate) outcome: Outcome,
    /// The identity of the call's effect, if the effect is outside of the ledger.
    pub(crate) effect: Option<Effect>,
    /// Of the calls within it, by part.
    pub(crate) parts: BTreeMap<u32, Outcome>,
}

/// The journal of an earlier execution.
pub(crate) struct EarlierJournal {
    pub(crate) world: World,
    /// The entries after the first. The first page of them is in memory; the ledger has the rest.
    past: Past,
    /// Number of its last entry, and its bytes.
    last: u64,
    bytes: u64,
    /// True if the journal has all calls of the run.
    pub(crate) is_whole: bool,
    /// Executions at its end that added nothing: the host died in each before the run got any further.
    pub(crate) without_progress: u32,
}

impl EarlierJournal {
    /// Reads the journal of a run; `None` where it has none. A journal of one page is read once: its entries stay in memory
    /// for the execution. Of a longer one the further pages are read again when the execution comes to them.
    pub(crate) fn read(ledger: &Ledger, run_no: u64, limits: &Limits) -> Result<Option<Self>, Stop> {
        let lost = |error: source::SourceError| Stop::Lost(error.to_string());
        let mut source = Source::new(ledger, run_no);
        let Some(Page { entries, mut bytes, mut last }) = source.more().map_err(lost)? else { return Ok(None) };
        let mut entries = VecDeque::from(entries);
        let Some(Entry::Begun { began_us, seed, memory_bytes, table_elements }) = entries.pop_front() else { return Ok(None) };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let world = World {
            memory_bytes: size(memory_bytes),
            table_elements: size(table_elements),
            ..World::new(limits, GuestClock::new(began_us), seed)
        };
        let (mut is_whole, mut without_progress) = (true, 0);
        let mut count = |entry: &Entry| match entry {
            Entry::Resumed { .. } => without_progress += 1,
            Entry::Full => is_whole = false,
            _ => without_progress = 0,
        };
        entries.iter().for_each(&mut count);
        let rest = source.clone();
        while let Some(page) = source.more().map_err(lost)? {
            page.entries.iter().for_each(&mut count);
            bytes += page.bytes;
            last = page.last;
        }
        Ok(Some(Self { world, past: Past::new(entries, rest), last, bytes, is_whole, without_progress }))
    }
}

impl Journal {
    /// Of a run that begins.
    pub(crate) fn begin(mode: Mode, world: &World, limits: &Limits) -> Self {
        let this = Self::new(mode, world.clock.clone(), limits, Past::default(), 1, 0);
        if mode == Mode::Recording {
            let entry = Entry::Begun {
                began_us: world.clock.began_us(),
                seed: world.seed,
                memory_bytes: world.memory_bytes as u64,
                table_elements: world.table_elements as u64,
            };
            this.state.lock().push(None, 0, entry, Vec::new());
        }
        this
    }

    /// The journal of a resumed run: calls are answered from `recorded` first.
    pub(crate) fn resume(mode: Mode, recorded: EarlierJournal, limits: &Limits) -> Self {
        let EarlierJournal { world, past, last, bytes, .. } = recorded;
        let elapsed = time::now().saturating_mul(1_000).saturating_sub(world.clock.began_us());
        let this = Self::new(mode, world.clock, limits, past, last + 1, elapsed);
        this.state.lock().written.bytes = bytes;
        if mode == Mode::Recording {
            this.state.lock().push(None, 0, Entry::Resumed { at: time::now() }, Vec::new());
        }
        this.replaying.store(true, Ordering::Release);
        this
    }

    fn new(mode: Mode, clock: GuestClock, limits: &Limits, past: Past, next: u64, elapsed_us: u64) -> Self {
        Self {
            mode,
            clock,
            base: (Instant::now(), elapsed_us),
            max_bytes: limits.journal_bytes,
            replaying: Arc::default(),
            state: Mutex::new(State {
                past,
                open: Vec::new(),
                waiting: Vec::new(),
                waiting_bytes: 0,
                written: WrittenPart { next, last_us: 0, bytes: 0, full: Full::No },
                calls: 0,
                last_emitted: 0,
                next_call: 0,
            }),
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.mode == Mode::Recording
    }

    /// True if the run can be resumed later.
    pub(crate) fn can_resume(&self) -> bool {
        self.is_recording() && self.state.lock().written.full == Full::No
    }

    /// True while calls are answered from the journal. The log lines of these calls were written before.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(Ordering::Acquire)
    }

    /// As [`Journal::is_replaying`], for who has no journal.
    pub(crate) fn replaying(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.replaying)
    }

    /// Calls of the guest so far.
    pub(crate) fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// True if the journal has calls that the execution did not make.
    pub(crate) fn has_more(&self) -> bool {
        !matches!(self.state.lock().past.next(), Ok(None))
    }

    pub(crate) fn clock(&self) -> &GuestClock {
        &self.clock
    }

    /// The real duration of the run in microseconds, never less than the clock of the run.
    pub(crate) fn elapsed_us(&self) -> u64 {
        let (base, elapsed) = &self.base;
        let real = elapsed.saturating_add(u64::try_from(base.elapsed().as_micros()).unwrap_or(u64::MAX));
        real.max(self.clock.elapsed_us())
    }

    /// The recorded form of a request; empty without a journal.
    pub(crate) fn digest(&self, request: &impl serde::Serialize) -> RequestDigest {
        if self.mode == Mode::Off { RequestDigest::nothing() } else { RequestDigest::of(request) }
    }

    /// As [`Journal::digest`], of a request that is in the record of the run anyway. `shown` is what a person is shown of
    /// it where it differs.
    pub(crate) fn digest_of_recorded<S: serde::Serialize>(
        &self,
        request: &impl serde::Serialize,
        outline: impl FnOnce() -> S,
    ) -> RequestDigest {
        match self.mode {
            Mode::Off => RequestDigest::nothing(),
            Mode::Recording => RequestDigest::hash_of(request),
            Mode::Offline { .. } => {
                RequestDigest { outline: RequestDigest::of(&outline()).outline, ..RequestDigest::hash_of(request) }
            }
        }
    }

    /// The guest calls: what was answered before is answered so again.
    pub(crate) fn enter(&self, function: &str, digest: RequestDigest) -> Result<Step, Stop> {
        let function = Function::named(function);
        let mut state = self.state.lock();
        if let Mode::Offline { calls } = self.mode
            && state.calls >= calls
        {
            return Err(Stop::Over { calls: state.calls, now: Value::Null });
        }
        state.calls += 1;
        let call = state.calls;
        if !self.is_replaying() {
            return Ok(Step::Live(state.open(function, 0, digest, self.elapsed_us(), None, BTreeMap::new())));
        }
        let last_emitted = state.last_emitted;
        let check = |recorded: &entry::Call, outcome: Option<&Outcome>| {
            // A refused interface did not look at the request. An earlier host may have refused the call because the
            // interface was missing; that refusal is still the answer.
            let without_request =
                || matches!(outcome, Some(Outcome::Refused(_))) && recorded.hash == RequestDigest::hash_of(&()).hash;
            if recorded.function == function.0 && (recorded.hash == digest.hash || without_request()) {
                return Ok(());
            }
            let before = Function(recorded.function);
            let both = recorded.outline.as_deref().zip(digest.outline.as_deref()).filter(|_| before == function);
            Err(Stop::Diverged(Box::new(Divergence {
                call,
                recorded: Side::new(before, recorded.outline.as_deref()),
                now: Side::new(function, digest.outline.as_deref()),
                emitted: emitted(recorded.function, outcome).map(|last| (last_emitted, last)),
                difference: both.map(|(recorded, now)| request_digest::first_difference(recorded, now)),
            })))
        };
        match state.past.next()? {
            None if self.mode == Mode::Recording => {
                self.replaying.store(false, Ordering::Release);
                Ok(Step::Live(state.open(function, 0, digest, self.elapsed_us(), None, BTreeMap::new())))
            }
            None => Err(Stop::Over { calls: call - 1, now: Side::new(function, digest.outline.as_deref()).to_json() }),
            Some(Entry::Call(recorded, outcome)) if recorded.part == 0 => {
                check(&recorded, Some(&outcome))?;
                state.last_emitted = emitted(recorded.function, Some(&outcome)).unwrap_or(last_emitted);
                self.show(&mut state, recorded.after_us);
                Ok(Step::Answered(RecordedCall { outcome, effect: None, parts: BTreeMap::new() }))
            }
            Some(Entry::Started(recorded, effect)) if recorded.part == 0 => {
                check(&recorded, None)?;
                state.written.last_us += recorded.after_us;
                self.within(&mut state, function, digest, effect)
            }
            Some(_) => Err(Stop::Lost("the journal has an entry that belongs to no call".to_owned())),
        }
    }

    /// Entries between the start of a call and its end.
    fn within(&self, state: &mut State, function: Function, digest: RequestDigest, effect: Effect) -> Result<Step, Stop> {
        let mut parts = BTreeMap::new();
        let mut last = effect.number;
        let began_us = state.written.last_us;
        loop {
            match state.past.next()? {
                Some(Entry::Ended { part: 0, after_us, outcome }) => {
                    self.show(state, after_us);
                    let parts = parts.into_iter().filter_map(|(part, left)| match left {
                        Part::Answered(outcome) => Some((part, outcome)),
                        Part::Doubt(_) => None,
                    });
                    return Ok(Step::Answered(RecordedCall {
                        outcome,
                        effect: Some(Effect { number: last }),
                        parts: parts.collect(),
                    }));
                }
                Some(Entry::Ended { part, after_us, outcome }) => {
                    state.written.last_us += after_us;
                    parts.insert(part, Part::Answered(outcome));
                }
                Some(Entry::Call(call, outcome)) if call.part != 0 => {
                    state.written.last_us += call.after_us;
                    parts.insert(call.part, Part::Answered(outcome));
                }
                Some(Entry::Started(call, effect)) if call.part != 0 => {
                    state.written.last_us += call.after_us;
                    last = last.max(effect.number);
                    parts.insert(call.part, Part::Doubt(effect));
                }
                Some(_) => return Err(Stop::Lost("the journal has a call within a call that does not allow it".to_owned())),
                None if self.mode == Mode::Recording => {
                    self.replaying.store(false, Ordering::Release);
                    let doubt = Some(Effect { number: last });
                    return Ok(Step::Live(state.open(function, 0, digest, began_us, doubt, parts)));
                }
                // The host stopped before this call had an answer.
                None => {
                    let now = Side::new(function, digest.outline.as_deref()).to_json();
                    return Err(Stop::Over { calls: state.calls - 1, now });
                }
            }
        }
    }

    /// A call within a call.
    pub(crate) fn enter_part(&self, within: &Ticket, part: u32, function: &str, digest: RequestDigest) -> Step {
        let mut state = self.state.lock();
        let doubt = match state.call(within.call).and_then(|call| call.parts.remove(&part)) {
            Some(Part::Answered(outcome)) => {
                return Step::Answered(RecordedCall { outcome, effect: None, parts: BTreeMap::new() });
            }
            Some(Part::Doubt(effect)) => Some(effect),
            None => None,
        };
        Step::Live(state.open(Function::named(function), part, digest, self.elapsed_us(), doubt, BTreeMap::new()))
    }

    /// The calls within this one whose outcome is in doubt.
    pub(crate) fn doubts(&self, within: &Ticket) -> Vec<(u32, Effect)> {
        let mut state = self.state.lock();
        let parts = state.call(within.call).into_iter().flat_map(|call| &call.parts);
        parts.filter_map(|(part, left)| if let Part::Doubt(effect) = left { Some((*part, *effect)) } else { None }).collect()
    }

    fn show(&self, state: &mut State, after_us: u64) {
        state.written.last_us += after_us;
        self.clock.advance_to(state.written.last_us);
    }

    /// Records the start of an effect. The effect may begin once that entry is durable. An entry of an earlier execution
    /// counts.
    pub(crate) fn start(&self, ticket: &Ticket, effect: Effect) {
        if self.mode == Mode::Off || ticket.doubt.is_some() {
            return;
        }
        let mut state = self.state.lock();
        let Some(call) = state.call(ticket.call) else { return };
        if std::mem::replace(&mut call.started, true) {
            return;
        }
        let entry = Entry::Started(call.entry(), effect);
        state.push(Some(ticket.call), self.elapsed_us(), entry, Vec::new());
    }

    /// Records the outcome of a call.
    pub(crate) fn settle(&self, ticket: Ticket, outcome: Outcome, blobs: Vec<Blob>) {
        self.settle_open(ticket.call, outcome, blobs);
    }

    /// As [`Journal::settle`], for a call whose ticket its effect did not use, or was dropped with.
    pub(crate) fn settle_open(&self, id: CallId, outcome: Outcome, blobs: Vec<Blob>) {
        let mut state = self.state.lock();
        let Some(call) = state.call(id).filter(|call| !call.settled) else { return };
        call.settled = true;
        let (is_part, entry) = (call.part != 0, call.end(outcome));
        let now = self.elapsed_us();
        if !is_part {
            self.clock.advance_to(now);
        }
        if self.mode != Mode::Off {
            state.push(Some(id), now, entry, blobs);
        }
    }

    pub(crate) fn is_settled(&self, id: CallId) -> bool {
        self.state.lock().call(id).is_none_or(|call| call.settled)
    }

    /// Forgets a call that is over.
    pub(crate) fn close(&self, id: CallId) {
        let mut state = self.state.lock();
        if let Some(place) = state.open.iter().position(|call| call.id == id) {
            state.open.swap_remove(place);
        }
    }

    /// The host stops in good order, which does not end the run.
    pub(crate) fn suspend(&self) {
        if self.is_recording() {
            self.state.lock().push(None, 0, Entry::Suspended, Vec::new());
        }
    }

    /// Entries that go with the write that is made now; the caller holds the turn of the run.
    pub(crate) fn take(&self) -> TakenEntries {
        let mut state = self.state.lock();
        let before = state.written;
        let mut entries = std::mem::take(&mut state.waiting);
        let waiting_bytes = std::mem::take(&mut state.waiting_bytes);
        if entries.is_empty() || state.written.full != Full::No {
            return TakenEntries { entries: Vec::new(), before, segment: None };
        }
        let mut bytes = Vec::with_capacity(waiting_bytes + 1);
        for waiting in &mut entries {
            // Entries without a time of their own have that of the one before.
            let at_us = waiting.at_us.max(state.written.last_us);
            waiting.entry.set_after(at_us - state.written.last_us);
            state.written.last_us = at_us;
            entry::write(&mut bytes, &waiting.entry);
        }
        let blobs = entries.iter().flat_map(|waiting| waiting.blobs.iter().cloned()).collect();
        let first = state.written.next;
        state.written.next += entries.len() as u64;
        state.written.bytes += bytes.len() as u64;
        if state.written.bytes > self.max_bytes {
            entry::write(&mut bytes, &Entry::Full);
            state.written.next += 1;
            state.written.full = Full::Unreported;
        }
        TakenEntries { entries, before, segment: Some(JournalSegment { first, bytes, blobs }) }
    }

    /// Puts the entries of a refused write back, all but those of the call whose effect it was: that call is open again. The
    /// caller holds the turn still, so nothing was taken since.
    pub(crate) fn put_back(&self, taken: ReturnedEntries, id: Option<CallId>) {
        let ReturnedEntries { entries, before } = taken;
        let mut state = self.state.lock();
        state.written = before;
        let since = std::mem::take(&mut state.waiting);
        state.waiting_bytes = 0;
        for PendingEntry { call, at_us, entry, blobs } in entries.into_iter().chain(since) {
            match id.filter(|id| call == Some(*id)).and_then(|id| state.call(id)) {
                None => state.push(call, at_us, entry, blobs),
                Some(open) => match entry {
                    Entry::Started(..) => open.started = false,
                    _ => open.settled = false,
                },
            }
        }
    }

    /// True if the waiting entries should be written without waiting for the next write of the run.
    pub(crate) fn has_many_waiting(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() >= MAX_WAITING || state.waiting_bytes >= MAX_WAITING_BYTES
    }

    /// Once, after the journal has become too long: its limit.
    pub(crate) fn just_full(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.written.full == Full::Unreported {
            state.written.full = Full::Reported;
            return Some(self.max_bytes);
        }
        None
    }
}

/// Entries that a write has taken along.
pub(crate) struct TakenEntries {
    entries: Vec<PendingEntry>,
    before: WrittenPart,
    segment: Option<JournalSegment>,
}

/// The entries that go back to the journal if the write is refused.
pub(crate) struct ReturnedEntries {
    entries: Vec<PendingEntry>,
    before: WrittenPart,
}

impl TakenEntries {
    /// The segment, and what is needed to put it back.
    pub(crate) fn split(self) -> (Option<JournalSegment>, ReturnedEntries) {
        (self.segment, ReturnedEntries { entries: self.entries, before: self.before })
    }
}

impl State {
    fn open(
        &mut self,
        function: Function,
        part: u32,
        digest: RequestDigest,
        began_us: u64,
        doubt: Option<Effect>,
        parts: BTreeMap<u32, Part>,
    ) -> Ticket {
        self.next_call += 1;
        let id = CallId(self.next_call);
        let in_doubt = doubt.is_some();
        self.open.push(OpenCall { id, function, part, digest, in_doubt, started: false, settled: false, parts });
        Ticket { call: id, began_us, doubt }
    }

    fn call(&mut self, id: CallId) -> Option<&mut OpenCall> {
        self.open.iter_mut().find(|call| call.id == id)
    }

    fn push(&mut self, call: Option<CallId>, at_us: u64, entry: Entry, blobs: Vec<Blob>) {
        if self.written.full != Full::No {
            return;
        }
        self.waiting_bytes += match &entry {
            Entry::Call(call, outcome) => 32 + call.outline.as_ref().map_or(0, String::len) + outcome.len(),
            Entry::Started(call, _) => 32 + call.outline.as_ref().map_or(0, String::len),
            Entry::Ended { outcome, .. } => 32 + outcome.len(),
            _ => 64,
        };
        self.waiting.push(PendingEntry { call, at_us, entry, blobs });
    }
}

/// The sequence of the last result, where a call was `results.emit`.
fn emitted(function: u16, outcome: Option<&Outcome>) -> Option<u64> {
    match outcome {
        Some(Outcome::Answer(text)) if Function(function) == Function::named("results.emit") => text.parse().ok(),
        _ => None,
    }
}

//! Lives of a host on a [simulated disk](super::disk), one sequence for each seed: calls fail, the disk is full, the machine goes
//! off in the middle of a call, the process dies, and the ledger is opened again on what is left.
//!
//! A model knows what was acknowledged. After each opening every acknowledged operation must be there and whole, an operation that
//! was answered with an error or not at all is there whole or not at all, and `check` finds nothing. Where a sync has lied, the
//! ledger may refuse with an error or lose the newest operations, and never one with a later one kept.
//!
//! The ledger has threads. The disk's decisions depend on the seed and on the number of the call among those of its kind. Every
//! second seed has one operation at a time, lets a merge end before the next one, and has a log in which no operation waits for
//! room, so its calls come in one order, and it does the same again, up to the pages that redb needs for random keys. Only such
//! seeds are run where the environment does not ask for others; it is the others that meet a log which grows, and writes while a
//! merge is under way. The blobs, and the making of a new `ledger.redb`, are on the real disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_protocol::{
    EventSource, RunId, RunStatus,
    page::Direction,
    run::{RunCompletion, Terminal},
};
use serde_json::{Value, json};

use super::{
    disk::{Calls, Disk, Fault, FaultyCalls, Plan},
    random::Random,
    raw,
};
use crate::{
    Accept, AcceptOutcome, AuditRecord, Commit, FeedBounds, Health, JournalSegment, Ledger, LedgerError, NewEvent, OpenError,
    Options, RunChange, RunWrite, StateWrite, check, samples,
};

/// Number of seeds, and the first one.
const SEEDS: &str = "LEDGER_FAULT_SEEDS";
const FIRST: &str = "LEDGER_FAULT_FIRST";
/// Seeds of the test without the variables: those with even numbers.
const SHORT: u64 = 800;
/// Seeds at once: most of the time of a seed is waiting.
const WORKERS: usize = 8;
/// An operation that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// No merge has begun, where none has ended or failed for so long.
const MERGE: Duration = Duration::from_millis(200);

/// An operation on a run: its creation, or a write that continues it.
#[derive(Debug, Clone)]
struct Operation {
    number: u64,
    events: u64,
    bytes: usize,
    ends: bool,
    /// Place of its last try in the order of all tries.
    order: u64,
}

/// A run: the operations that are acknowledged, and behind them at most one that was tried.
struct ModelRun {
    id: RunId,
    accept: Accept,
    run_no: u64,
    operations: Vec<Operation>,
    acknowledged: usize,
}

impl ModelRun {
    fn has_ended(&self) -> bool {
        self.acknowledged > 0 && self.operations[self.acknowledged - 1].ends
    }

    /// The write of the operation at a place.
    fn write(&self, at: usize) -> RunWrite {
        let operation = &self.operations[at];
        let before: u64 = self.operations[..at].iter().map(Operation::all_events).sum();
        let event = |sequence, kind: &str| NewEvent {
            sequence,
            kind: kind.to_owned().into(),
            data: raw(&json!({ "n": operation.number }).to_string()),
            timestamp: 1,
            source: EventSource::Host,
            metadata: None,
        };
        let mut events: Vec<_> = (1..=operation.events).map(|n| event(before + n, "message.delta")).collect();
        let mut changes = Vec::new();
        if at == 1 {
            changes.push(RunChange::Start { at: 1, deadline_at: None });
        }
        if operation.ends {
            events.push(event(before + operation.events + 1, "run.completed"));
            let completion = RunCompletion { finish_reason: "stop".into(), message: None, usage: None, metadata: None };
            changes.push(RunChange::End { at: 1, terminal: Terminal::Completed(completion) });
        }
        let state = StateWrite {
            scope_key: "s".into(),
            key: self.id.to_string(),
            value: Some(raw(&operation.value().to_string())),
            ..StateWrite::default()
        };
        let action = format!("{}", operation.number).into();
        RunWrite {
            run_no: self.run_no,
            changes,
            events,
            state: vec![state],
            audit: [AuditRecord { run_id: Some(self.id), action, ..AuditRecord::default() }].into(),
            journal: Some(JournalSegment { first: at as u64, bytes: vec![1; operation.bytes / 2], blobs: Vec::new() }),
            ..RunWrite::default()
        }
    }

    /// The number of operations that a ledger has of the run, of which each must be whole.
    fn found(&mut self, ledger: &Ledger) -> Result<usize, LedgerError> {
        let (record, state) = (ledger.run(self.id)?, ledger.state_get("s", &self.id.to_string())?);
        let Some(record) = record else {
            assert_eq!(state, None, "a run that is not there has state");
            return Ok(0);
        };
        self.run_no = record.run_no;
        let journal = ledger.journal_page(record.run_no, 0, usize::MAX)?;
        let events = ledger.run_events_after(record.run_no, self.id, 0, 1_000)?;
        let found = journal.len() + 1;
        assert!(found <= self.operations.len(), "{found} operations of {}", self.operations.len());
        let there = &self.operations[1..found];
        let segments: Vec<_> = journal.iter().map(|row| (row.first, row.bytes.len())).collect();
        assert_eq!(segments, (1..).zip(there.iter().map(|operation| operation.bytes / 2)).collect::<Vec<_>>());
        let numbers: Vec<_> = events
            .iter()
            .map(|event| (event.sequence, serde_json::from_str::<Value>(event.data.get()).unwrap()["n"].as_u64()))
            .collect();
        let wanted = there.iter().flat_map(|operation| (0..operation.all_events()).map(|_| Some(operation.number)));
        assert_eq!(numbers, (1..).zip(wanted).collect::<Vec<_>>());
        assert_eq!(record.run.last_sequence, events.len() as u64);
        assert_eq!(state, there.last().map(Operation::value));
        let status = match there.last() {
            None => RunStatus::Created,
            Some(operation) if operation.ends => RunStatus::Completed,
            Some(_) => RunStatus::Running,
        };
        assert_eq!(record.run.status, status);
        Ok(found)
    }
}

impl Operation {
    fn all_events(&self) -> u64 {
        self.events + u64::from(self.ends)
    }

    fn value(&self) -> Value {
        json!({ "n": self.number, "filler": "x".repeat(self.bytes) })
    }
}

/// The numbers of the operations that have an audit record.
fn audited(ledger: &Ledger) -> Result<Vec<u64>, LedgerError> {
    let (mut audited, mut from) = (Vec::new(), 0);
    loop {
        let bounds = FeedBounds { direction: Direction::Forward, from, limit: 100, examined: 1_000 };
        let step = ledger.audit_feed(bounds, |_| true)?;
        if step.items.is_empty() {
            return Ok(audited);
        }
        audited.extend(step.items.iter().map(|(_, record)| record.action.parse::<u64>().unwrap()));
        from = step.position;
    }
}

/// Events that the seeds have met, so that a test which meets nothing fails.
#[derive(Debug, Default)]
struct Met {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    went_off: AtomicU64,
    not_opened: AtomicU64,
    failed: AtomicU64,
    unanswered_found: AtomicU64,
    unanswered_absent: AtomicU64,
    damage_refused: AtomicU64,
    lost_by_lies: AtomicU64,
    merges: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Lives<'a> {
    random: Random,
    disk: Disk,
    dir: &'a Path,
    runs: Vec<ModelRun>,
    order: u64,
    numbers: u64,
    met: &'a Met,
    part_bytes: u64,
    interval: Duration,
    /// Operations are made one by one, and a merge ends before the next operation.
    one_by_one: bool,
}

/// The end of a life in which the ledger could not go on.
struct Over;

impl Lives<'_> {
    fn options(&self) -> Options {
        Options {
            min_free_disk_bytes: 0,
            cache_bytes: 1 << 20,
            checkpoint_wal_bytes: self.part_bytes,
            checkpoint_interval: self.interval,
            ..Options::new(self.dir)
        }
    }

    /// Faults of a life. `lies` is true where syncs may lie.
    fn plan(&mut self, lies: bool) -> Plan {
        let random = &mut self.random;
        let near = |random: &mut Random| 1 + random.pick(&[10, 40, 150]);
        let off_at = (random.below(5) < 3).then(|| {
            let end = near(random);
            1 + random.below(end) as u64
        });
        let count = random.below(3);
        let faults = (0..count).map(|_| {
            let calls = random.pick(&Calls::ALL);
            let end = near(random);
            let count = random.pick(&[1, 1, 2, 5, 30]);
            let fault = if lies { Fault::Lies } else { random.pick(&[Fault::Fails, Fault::Full]) };
            FaultyCalls { calls, from: 1 + random.below(end) as u64, count, fault }
        });
        let faults = faults.collect();
        Plan { off_at, faults }
    }

    /// An error is one of a disk that has failed.
    fn error(&self, error: &LedgerError) -> Result<(), Over> {
        let text = error.to_string();
        assert!(self.disk.has_failed() || self.disk.has_lied(), "an error without a fault: {text}");
        assert!(!text.contains("thread has died"), "{text}");
        assert!(!text.contains("contradict") || self.disk.has_lied(), "{text}");
        match error {
            LedgerError::Storage(_) | LedgerError::Reopening => {
                count(&self.met.refused);
                Ok(())
            }
            // A row that cannot be read: the next read may succeed.
            LedgerError::Damaged(_) => Ok(()),
            LedgerError::Unavailable(_) => Err(Over),
            other => panic!("{other:?}"),
        }
    }

    /// Compares what the ledger has with the model, which then follows it. `opened` is false while nothing of what was refused may
    /// be there.
    fn compare(&mut self, ledger: &Ledger, opened: bool) -> Result<(), LedgerError> {
        let lied = self.disk.has_lied();
        let mut numbers = BTreeSet::new();
        let mut applied = BTreeSet::new();
        let (mut last, mut lost) = (0, Vec::new());
        for run in &mut self.runs {
            let found = run.found(ledger)?;
            if found > 0 {
                numbers.insert(run.run_no);
                applied.extend(run.operations[1..found].iter().map(|operation| operation.number));
                // Of one that was answered with an error it is open which of its tries is there.
                last = run.operations[..found.min(run.acknowledged)].iter().map(|operation| operation.order).fold(last, u64::max);
            }
            if found < run.acknowledged {
                assert!(lied && opened, "acknowledged operations are lost: {:?} from {found} on", run.operations);
                lost.extend(run.operations[found..run.acknowledged].iter().map(|operation| operation.order));
                run.operations.truncate(found);
                count(&self.met.lost_by_lies);
            }
            if found > run.acknowledged {
                assert!(opened, "an operation that was refused is seen: {:?}", run.operations.last());
                count(&self.met.unanswered_found);
            } else if run.operations.len() > found {
                count(&self.met.unanswered_absent);
            }
            run.acknowledged = found;
        }
        assert!(lost.iter().all(|lost| *lost > last), "operations {lost:?} are lost, and {last} is there");
        assert_eq!(numbers, (1..=numbers.len() as u64).collect(), "numbers of runs");
        let audited = audited(ledger)?;
        assert_eq!(audited.len(), applied.len(), "audit records: {audited:?}, and operations {applied:?}");
        assert_eq!(audited.into_iter().collect::<BTreeSet<_>>(), applied, "audit records");
        Ok(())
    }

    /// The run of the next operation, with an operation behind the acknowledged ones. An operation that failed is tried again.
    fn choose(&mut self) -> usize {
        let open: Vec<_> = (0..self.runs.len()).filter(|at| !self.runs[*at].has_ended()).collect();
        self.numbers += 1;
        let mut operation = Operation { number: self.numbers, events: 0, bytes: 0, ends: false, order: 0 };
        if open.is_empty() || self.random.one_in(5) {
            let accept = samples::accept();
            let id = accept.runs[0].run.run_id;
            self.runs.push(ModelRun { id, accept, run_no: 0, operations: vec![operation], acknowledged: 0 });
            return self.runs.len() - 1;
        }
        let at = self.random.pick(&open);
        if self.runs[at].operations.len() == self.runs[at].acknowledged {
            operation.events = self.random.below(4) as u64;
            operation.bytes = self.random.pick(&[10, 100, 700, 3_000]) + self.random.below(100);
            operation.ends = self.random.one_in(6);
            self.runs[at].operations.push(operation);
        }
        at
    }

    /// An operation, or some at once, each on a run of its own.
    async fn step(&mut self, ledger: &Ledger) -> Result<(), Over> {
        // The writer makes one batch or more of those that come at once.
        let size = if self.one_by_one { 1 } else { self.random.pick(&[1, 1, 1, 2, 4]) };
        let chosen: BTreeSet<_> = (0..size).map(|_| self.choose()).collect();
        let mut answers: BTreeMap<usize, Result<(), LedgerError>> = BTreeMap::new();
        let mut commits: Vec<(usize, Commit)> = Vec::new();
        let mut accepts = Vec::new();
        for at in chosen {
            self.order += 1;
            let run = &mut self.runs[at];
            run.operations[run.acknowledged].order = self.order;
            if run.acknowledged == 0 {
                accepts.push((at, run.accept.clone()));
                continue;
            }
            match ledger.submit(run.write(run.acknowledged)).await {
                Ok(commit) => commits.push((at, commit)),
                Err(error) => drop(answers.insert(at, Err(error))),
            }
        }
        for (at, accept) in accepts {
            self.order += 1;
            self.runs[at].operations[0].order = self.order;
            let answer = ledger.accept(accept).await.map(|outcome| match outcome {
                AcceptOutcome::New { runs, .. } => self.runs[at].run_no = runs[0].run_no,
                AcceptOutcome::Repeated { .. } => panic!("repeated"),
            });
            answers.insert(at, answer);
        }
        for (at, commit) in commits {
            answers.insert(at, commit.await.map(drop));
        }
        let mut over = Ok(());
        for (at, answer) in answers {
            match answer {
                Ok(()) => {
                    self.runs[at].acknowledged += 1;
                    count(&self.met.acknowledged);
                }
                Err(error) => over = over.and(self.error(&error)),
            }
        }
        over
    }

    /// Waits for the end of a merge that has begun, also of one that fails, which ends when the disk is better. None begins where the
    /// log cannot go on in its other part, which is tried again after the next write.
    async fn let_merges_end(&self, ledger: &Ledger) {
        let mut began = Instant::now();
        while ledger.activity().log_bytes > self.part_bytes && !self.disk.is_off() && began.elapsed() < MERGE {
            match ledger.health() {
                Health::Failed(_) => return,
                Health::MergesFail { .. } => began = Instant::now(),
                _ => {}
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// Opens the ledger, works and ends. True if the ledger could be opened.
    async fn live(&mut self, plan: Plan) -> bool {
        self.disk.begin(plan);
        let ledger = match self.options().open_with(Arc::new(self.disk.clone())) {
            Ok(ledger) => ledger,
            Err(error) => {
                self.is_not_opened(&error);
                return false;
            }
        };
        let over = self.work(&ledger).await.is_err() || self.disk.is_off();
        self.met.merges.fetch_add(ledger.activity().checkpoints, Ordering::Relaxed);
        if !over && self.random.one_in(3) {
            if let Err(error) = ledger.close().await {
                let _ = self.error(&error);
            }
        } else {
            self.disk.turn_off();
            drop(ledger);
        }
        true
    }

    async fn work(&mut self, ledger: &Ledger) -> Result<(), Over> {
        if let Err(error) = self.compare(ledger, true) {
            // What is there is compared again in the next life.
            return self.error(&error).and(Err(Over));
        }
        for _ in 0..self.random.pick(&[2, 8, 20]) {
            self.step(ledger).await?;
            if self.one_by_one {
                self.let_merges_end(ledger).await;
            }
            if self.disk.is_off() {
                return Err(Over);
            }
            if self.random.one_in(4)
                && let Err(error) = self.compare(ledger, false)
            {
                self.error(&error)?;
            }
        }
        Ok(())
    }

    fn is_not_opened(&self, error: &OpenError) {
        let text = error.to_string();
        assert!(self.disk.has_failed() || self.disk.has_lied(), "not opened without a fault: {text}");
        assert!(!text.contains("contradict") || self.disk.has_lied(), "{text}");
        count(&self.met.not_opened);
    }

    /// The lives of one seed.
    async fn all(&mut self) {
        let lies = self.random.one_in(8);
        for _ in 0..1 + self.random.below(3) {
            let plan = self.plan(lies);
            let is_open = self.live(plan).await;
            if self.disk.is_off() {
                count(&self.met.went_off);
            } else if self.disk.has_failed() {
                count(&self.met.failed);
            }
            if self.random.below(3) > 0 {
                self.disk.lose();
            }
            self.disk.put_into_directory();
            if self.disk.has_lied() && (!is_open || !self.is_sound()) {
                return count(&self.met.damage_refused);
            }
        }
        // A good disk, which has what is durable and no more.
        self.disk.lose();
        self.disk.put_into_directory();
        if self.disk.has_lied() && !self.is_sound() {
            return count(&self.met.damage_refused);
        }
        let ledger = self.options().open().unwrap();
        self.compare(&ledger, true).unwrap();
        assert!(self.step(&ledger).await.is_ok());
        self.compare(&ledger, false).unwrap();
        ledger.close().await.unwrap();
        let report = check(self.dir, |_| ()).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
    }

    /// True if a check of a copy finds no damage.
    fn is_sound(&self) -> bool {
        let copy = tempfile::tempdir_in(self.dir).unwrap();
        for entry in std::fs::read_dir(self.dir).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        check(copy.path(), |_| ()).is_ok_and(|report| report.is_ok())
    }
}

fn live(seed: u64, met: &Met) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let mut random = Random::of(&[seed]);
    let one_by_one = seed.is_multiple_of(2);
    // Of the first ones, half is more than an operation: a merge has begun, and ended, before one finds no room.
    let parts = if one_by_one { [12_000, 12_000, 12_000, 100_000] } else { [600, 2_000, 8_000, 100_000] };
    let timed = !one_by_one && random.one_in(3);
    let mut lives = Lives {
        disk: Disk::new(seed),
        dir: &dir.path().join("ledger"),
        runs: Vec::new(),
        order: 0,
        numbers: 0,
        met,
        part_bytes: random.pick(&parts),
        interval: if timed { Duration::from_millis(1) } else { Duration::from_secs(3_600) },
        one_by_one,
        random,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let all = async { tokio::time::timeout(HANGS, lives.all()).await.expect("the ledger answers") };
    runtime.block_on(all);
}

/// Says which seed has failed.
struct Names(u64);

impl Drop for Names {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {} has failed; alone: {FIRST}={} {SEEDS}=1 cargo test -p agent-host-ledger faults::seeds",
                self.0, self.0
            );
        }
    }
}

#[test]
fn whatever_a_disk_does_acknowledged_operations_are_there_and_others_whole_or_not_at_all() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, seeds) = (number(FIRST).unwrap_or(0), number(SEEDS));
    let step = if seeds.is_some() { 1 } else { 2 };
    let end = first + seeds.unwrap_or(SHORT) * step;
    let (met, next, failed) = (Met::default(), AtomicU64::new(first), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(step, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let lived = std::panic::catch_unwind(|| {
                        let _names = Names(seed);
                        live(seed, &met);
                    });
                    if lived.is_err() {
                        failed.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    println!("{met:?}");
    assert_eq!(failed.into_inner().unwrap(), Vec::<u64>::new(), "seeds that have failed");
    if seeds.is_none() {
        let Met { acknowledged, refused, went_off, not_opened, unanswered_found, unanswered_absent, merges, .. } = &met;
        for counter in [acknowledged, refused, went_off, not_opened, unanswered_found, unanswered_absent, merges] {
            assert!(counter.load(Ordering::Relaxed) > 3, "{met:?}");
        }
    }
}

//! The clock of the schedules.
//!
//! A tick is one commit: its event, the runs of the event, and the entry `schedule/ID` with the progress of the schedule.
//! After a crash a tick exists as a whole or not at all, and the schedule continues after its last tick. A clock that is
//! set back repeats no tick: every tick is later than the last one.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::{EntryWrite, Idempotency};
use agent_host_protocol::{EventId, Timestamp};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{sync::Notify, time::sleep};

use agent_host_config::MissedTicks;

use super::Intake;
use crate::{policy::sources::Schedule, record::HostError};

/// Keys of entries.
pub(crate) const ENTRIES: &str = "schedule/";
/// Entries that are read at one time.
const PAGE: usize = 256;
/// A tick that is taken later than this was missed, though the host was not down: the machine slept, or its clock jumped.
const LATE_MS: u64 = 60_000;
/// A last tick that lies further ahead was made by a clock that was wrong, and holds up nothing any more.
const AHEAD_MS: u64 = 24 * 60 * 60 * 1000;
/// The clock is looked at this often at least: it may have been set.
const LOOK: Duration = Duration::from_secs(10);
/// Pauses between attempts to take a tick that could not be taken.
const FIRST_PAUSE_MS: u64 = 500;
const LONGEST_PAUSE_MS: u64 = 30_000;
/// Schedules whose ticks are taken at one time.
const AT_ONCE: usize = 16;

/// The state of schedules in memory.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// Notified when the setup changes.
    pub(crate) changed: Notify,
    /// The reason why the last tick was refused, by schedule.
    problems: Mutex<HashMap<String, String>>,
}

/// The progress of a schedule, as the ledger stores it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct ScheduleProgress {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_tick: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_event_id: Option<EventId>,
    /// The start of the schedule, which had no ticks before.
    since: Timestamp,
    /// The rule of the schedule when this row was written.
    rule: String,
}

impl ScheduleProgress {
    /// The next tick is later than this time.
    fn base(&self) -> Timestamp {
        self.since.max(self.last_tick.unwrap_or_default())
    }
}

/// A schedule that the clock looks after.
struct ScheduleState {
    schedule: Arc<Schedule>,
    ticked: ScheduleProgress,
    /// Ticks up to this are done with, taken or skipped.
    base: Timestamp,
    /// Ticks before this passed while nobody looked.
    awake_since: Timestamp,
    failures: u32,
    /// No try before this time.
    not_before: Timestamp,
}

/// The report on a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleReport {
    /// Id of the schedule.
    pub id: String,
    /// True if the schedule is enabled.
    pub enabled: bool,
    /// Crontab expression, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Interval in ms, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// The rule for ticks that passed while the host was down.
    pub missed: MissedTicks,
    /// The workspace of its events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Time of the next tick.
    pub next_tick_at: Option<Timestamp>,
    /// The last tick that was taken.
    pub last_tick_at: Option<Timestamp>,
    /// The event of that.
    pub last_event_id: Option<EventId>,
    /// Reason why a tick was refused. The tick is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Intake {
    /// The reports on all schedules.
    pub(crate) fn schedules(&self) -> Result<Vec<ScheduleReport>, HostError> {
        let report = |schedule: &Arc<Schedule>| {
            let ticked = self.ticked(schedule)?.unwrap_or_default();
            let config = &schedule.config;
            Ok(ScheduleReport {
                id: config.id.clone(),
                enabled: config.enabled,
                cron: config.cron.clone(),
                timezone: config.cron.as_ref().map(|_| config.timezone.clone().unwrap_or_else(|| "UTC".to_owned())),
                every_ms: config.every_ms,
                missed: config.missed,
                workspace_id: schedule.workspace().map(ToOwned::to_owned),
                next_tick_at: schedule.next(ticked.base().max(schedule.now())).filter(|_| config.enabled),
                last_tick_at: ticked.last_tick,
                last_event_id: ticked.last_event_id,
                problem: self.scheduler.problems.lock().get(&config.id).cloned(),
            })
        };
        self.own_schedules().iter().map(report).collect()
    }

    /// The schedules whose events belong to this partition.
    fn own_schedules(&self) -> Vec<Arc<Schedule>> {
        let setup = self.shared.setup();
        setup.schedules.iter().filter(|schedule| self.runs.partition.has(schedule.workspace())).cloned().collect()
    }

    /// Lets schedules tick, as long as the host lives.
    pub(crate) fn keep_schedules(&self) {
        let intake = self.clone();
        tokio::spawn(async move {
            let mut states: HashMap<String, ScheduleState> = HashMap::new();
            loop {
                intake.take_up(&mut states).await;
                let due: Vec<&mut ScheduleState> =
                    states.values_mut().filter(|state| state.not_before <= state.schedule.now()).collect();
                stream::iter(due).for_each_concurrent(AT_ONCE, |state| intake.tick(state)).await;
                let left = states.values().filter_map(ScheduleState::left).min().unwrap_or(u64::MAX);
                tokio::select! {
                    () = intake.runs.stopping.cancelled() => return,
                    () = intake.scheduler.changed.notified() => {}
                    () = sleep(Duration::from_millis(left).min(LOOK)) => {}
                }
            }
        });
    }

    fn ticked(&self, schedule: &Schedule) -> Result<Option<ScheduleProgress>, HostError> {
        let entry = self.ledger.entry(&key(schedule))?;
        let read = |entry: Box<serde_json::value::RawValue>| serde_json::from_str(entry.get());
        entry.map(read).transpose().map_err(|error| HostError::Internal(error.to_string()))
    }

    /// Switches to the schedules of the present setup. Unchanged schedules keep their state.
    async fn take_up(&self, states: &mut HashMap<String, ScheduleState>) {
        let schedules = self.own_schedules();
        let is_known = |schedule: &Arc<Schedule>| {
            states.get(&schedule.config.id).is_some_and(|state| Arc::ptr_eq(&state.schedule, schedule))
        };
        if schedules.len() == states.len() && schedules.iter().all(is_known) {
            return;
        }
        let ids: HashSet<_> = schedules.iter().map(|schedule| schedule.config.id.as_str()).collect();
        states.retain(|id, _| ids.contains(id.as_str()));
        self.scheduler.problems.lock().retain(|id, _| ids.contains(id.as_str()));
        if let Err(error) = self.forget_others(&ids).await {
            tracing::warn!(%error, "removed schedules cannot be forgotten");
        }
        for schedule in &schedules {
            let id = &schedule.config.id;
            if let Some(state) = states.get_mut(id).filter(|state| state.ticked.rule == schedule.rule_text()) {
                state.schedule = Arc::clone(schedule);
                continue;
            }
            match self.begin_schedule(schedule).await {
                Ok(new) => drop(states.insert(id.clone(), new)),
                // The next look at the clock tries again.
                Err(error) => self.failed(id, &error),
            }
        }
    }

    /// A schedule that is taken out and put back later has not missed what was in between.
    async fn forget_others(&self, ids: &HashSet<&str>) -> Result<(), HostError> {
        let ledger = &self.ledger;
        let mut after: Option<String> = None;
        loop {
            let entries = ledger.entries(ENTRIES, after.as_deref(), PAGE)?;
            let Some((last, _)) = entries.last() else { return Ok(()) };
            after = Some(last.clone());
            let deletions = entries.iter().filter(|(key, _)| !ids.contains(key.trim_start_matches(ENTRIES)));
            let deletions: Vec<_> = deletions.map(|(key, _)| EntryWrite::delete(key.clone())).collect();
            ledger.put_entries(&deletions).await?;
        }
    }

    async fn begin_schedule(&self, schedule: &Arc<Schedule>) -> Result<ScheduleState, HostError> {
        let now = schedule.now();
        let rule = schedule.rule_text();
        let known = self.ticked(schedule)?;
        let ticked = match known {
            Some(ticked) if ticked.rule == rule && ticked.base() <= now.saturating_add(AHEAD_MS) => ticked,
            // The schedule is new or was changed: its time begins now.
            known => {
                let ticked = ScheduleProgress { since: now, rule, ..known.unwrap_or_default() };
                let ticked = ScheduleProgress { last_tick: ticked.last_tick.filter(|tick| *tick <= now), ..ticked };
                self.ledger.put_entries(&[EntryWrite::put(key(schedule), &ticked)?]).await?;
                ticked
            }
        };
        let base = ticked.base();
        Ok(ScheduleState { schedule: Arc::clone(schedule), ticked, base, awake_since: now, failures: 0, not_before: 0 })
    }

    /// Takes the ticks of a schedule whose time has come.
    async fn tick(&self, state: &mut ScheduleState) {
        let config = &state.schedule.config;
        if !config.enabled {
            return;
        }
        let now = state.schedule.now();
        if state.base > now.saturating_add(AHEAD_MS) {
            tracing::warn!(schedule = config.id, "the clock was set back by more than a day: the schedule continues from now");
            (state.base, state.awake_since) = (now, now);
        }
        let passed = state.schedule.passed(state.base, now);
        let Some(newest) = passed.ticks.last().copied() else { return };
        let in_time = |tick: &Timestamp| *tick >= state.awake_since && now.saturating_sub(*tick) <= LATE_MS;
        let missed = passed.ticks.iter().filter(|tick| !in_time(tick)).count();
        let made_up = match config.missed {
            MissedTicks::Skip => 0,
            MissedTicks::Once => missed.min(1),
            MissedTicks::All => missed,
        };
        if missed > made_up || passed.more {
            let skipped = missed - made_up;
            tracing::warn!(schedule = config.id, skipped, and_older = passed.more, "missed ticks are skipped");
        }
        // Missed ones are the oldest.
        for tick in passed.ticks.into_iter().skip(missed - made_up) {
            match self.take_tick(state, tick).await {
                Ok(()) => state.base = tick,
                Err(HostError::ShuttingDown) => return,
                Err(error) => {
                    self.failed(&state.schedule.config.id, &error);
                    let pause = FIRST_PAUSE_MS.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE_MS);
                    state.failures = state.failures.saturating_add(1);
                    state.not_before = now.saturating_add(pause);
                    return;
                }
            }
        }
        state.base = newest;
        state.failures = 0;
        self.scheduler.problems.lock().remove(&state.schedule.config.id);
    }

    async fn take_tick(&self, state: &mut ScheduleState, tick: Timestamp) -> Result<(), HostError> {
        let schedule = &state.schedule;
        // A client's own key has no spaces, so no client can be in the way of a tick.
        let idempotency = format!("schedule/{} {tick}", schedule.config.id);
        let idempotency = Idempotency { body_hash: Sha256::digest(idempotency.as_bytes()).into(), key: idempotency };
        let ticked = |event_id| ScheduleProgress { last_tick: Some(tick), last_event_id: Some(event_id), ..state.ticked.clone() };
        let entry = |event_id, _: &[_]| Ok(vec![EntryWrite::put(key(schedule), &ticked(event_id))?]);
        let accepted = self.accept(schedule.tick(tick), Some(idempotency), &entry, None).await?;
        state.ticked = ticked(accepted.event_id);
        self.shared.metrics.tick(&schedule.config.id);
        tracing::debug!(schedule = schedule.config.id, tick, event_id = %accepted.event_id, "a schedule ticked");
        Ok(())
    }

    fn failed(&self, id: &str, error: &HostError) {
        tracing::warn!(schedule = id, %error, "the event of a tick cannot be accepted now; trying again");
        self.scheduler.problems.lock().insert(id.to_owned(), error.to_string());
    }
}

impl ScheduleState {
    /// Time to the next work of this schedule, in milliseconds.
    fn left(&self) -> Option<u64> {
        if !self.schedule.config.enabled {
            return None;
        }
        let now = self.schedule.now();
        let next = if self.failures > 0 { Some(now) } else { self.schedule.next(self.base.max(now)) };
        // Ticks that passed in the meantime are due at once.
        let due = self.schedule.next(self.base).filter(|tick| *tick <= now);
        Some(due.or(next)?.max(self.not_before).saturating_sub(now))
    }
}

fn key(schedule: &Schedule) -> String {
    format!("{ENTRIES}{}", schedule.config.id)
}

//! `runs`.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use agent_host_facts::record::ChildStart;
use agent_host_ledger::{Ledger, RunFilter, RunRecord, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, EventId, Page, Run, RunEvent, RunId, RunStatus,
    child::RunSummary,
    context::Input,
    limits::{MAX_PAGE, MIN_PAGE},
    manifest::RunOperation,
    message::ContentPart,
    page::Direction,
    time,
};
use agent_host_sandbox::{ChildCalls, StartRequest, parse_json};
use futures_util::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{RunCalls, granted, not_found, not_granted, within};
use crate::{
    execution::{
        call::{Call, EffectTicket},
        neighbours::ChildRequest,
    },
    record::{HostError, WaitKey, facts::Fact, journal::Stop, ledger_failed},
};

/// Longest objective and reason: they are shown in one line.
const MAX_TEXT_BYTES: usize = 1024;
/// Keys of a parked run; it has one for its conversation as well.
const MAX_KEYS: usize = 60;

/// Pages of the runs of a conversation that one list reads, some milliseconds: other threads have runs among them, and runs may have
/// another status. A later page continues after them.
const MAX_LISTED_PAGES: usize = 20;

/// The runs that a list is to have.
pub(super) struct RunsWanted {
    /// The id of this run: only the runs that it has started.
    pub(super) parent_run_id: Option<String>,
    /// Without any: runs of every status.
    pub(super) statuses: Vec<RunStatus>,
    /// `next_cursor` of the page before.
    pub(super) before: Option<String>,
    pub(super) limit: u32,
}

impl RunsWanted {
    fn status(&self, run: &Run) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&run.status)
    }
}

/// The events of a run that a page is to have.
pub(super) struct RunEventsWanted {
    pub(super) run_id: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
    pub(super) limit: u32,
    pub(super) direction: Direction,
}

/// The number of the run at a cursor of a list.
fn below_of(filter: &RunFilter, cursor: &str) -> Result<u64, ApiError> {
    Ledger::parse_runs_cursor(filter, cursor).map_err(ledger_failed)
}

fn page_size(limit: u32) -> Result<usize, ApiError> {
    if (MIN_PAGE..=MAX_PAGE).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(ApiError::invalid_argument(format!("`limit` is between {MIN_PAGE} and {MAX_PAGE}, not {limit}")))
}

/// A limit of what runs may start.
fn too_many(code: &str, retryable: bool, message: String, limit: usize) -> ApiError {
    ApiError {
        retryable,
        details: Some(json!({ "code": code, "limit": limit })),
        ..ApiError::new(if retryable { ErrorCode::RateLimited } else { ErrorCode::Unauthorized }, message)
    }
}

impl RunCalls {
    fn may(&self, operation: RunOperation, action: &str) -> Result<(), ApiError> {
        granted(&self.run.terms.grant.permissions.runs, &operation, action)
    }

    /// A child of this run. Any other run is `not_found`, so that a run cannot probe for ids.
    fn child(&self, id: &str) -> Result<RunId, ApiError> {
        let child = id.parse().ok().filter(|child| self.run.family.children.has(*child));
        child.ok_or_else(|| not_found("run that this run has started:", id))
    }

    /// A run that this run may read: a child, or a run of a conversation that this run reads; for an executor, the run that it holds.
    fn readable(&self, id: &str) -> Result<RunId, ApiError> {
        let missing = || not_found("run that this run has started, or of its conversation:", id);
        let run_id = id.parse().map_err(|_| missing())?;
        let is_held = self.run.is_external() && run_id == self.run.run_id;
        if is_held || self.run.family.children.has(run_id) {
            return Ok(run_id);
        }
        let record = self.run.ledger.run(run_id).map_err(ledger_failed)?;
        let its = record.and_then(|record| record.run.conversation_key());
        if its.is_some_and(|key| self.reads(&key)) { Ok(run_id) } else { Err(missing()) }
    }

    /// The list of the ledger with the runs of the run's own conversation, whose cursors are those of [`RunCalls::runs_page`].
    fn list_filter(&self) -> RunFilter {
        let some = |id: &str| (!id.is_empty()).then(|| id.to_owned());
        match &self.run.terms.grant.conversation {
            Some(own) => RunFilter {
                conversation_id: some(own.conversation()),
                workspace_id: some(own.workspace()),
                ..RunFilter::default()
            },
            None => RunFilter::default(),
        }
    }

    /// Other runs of the run's own conversation below a number, newest first, more than `limit` if there are; and the number above
    /// which these are all.
    fn of_conversation(&self, wanted: &RunsWanted, below: u64) -> Result<(Vec<RunRecord>, u64), ApiError> {
        let Some(own) = &self.run.terms.grant.conversation else { return Ok((Vec::new(), 0)) };
        let filter = self.list_filter();
        let mut cursor = (below < u64::MAX).then(|| Ledger::runs_cursor(&filter, below));
        let mut found = Vec::new();
        // One more than the page has, and one for this run.
        let mut limit = wanted.limit.saturating_add(2).min(MAX_PAGE);
        for _ in 0..MAX_LISTED_PAGES {
            let page = self.run.ledger.runs_page(&filter, cursor.as_deref(), limit).map_err(ledger_failed)?;
            limit = MAX_PAGE;
            for run in page.items {
                if run.run_id == self.run.run_id || run.conversation_key().as_ref() != Some(own) || !wanted.status(&run) {
                    continue;
                }
                let record = self.run.ledger.run(run.run_id).map_err(ledger_failed)?;
                found.extend(record.filter(|record| record.run_no < below));
            }
            cursor = page.next_cursor.filter(|_| page.has_more);
            if cursor.is_none() {
                return Ok((found, 0));
            }
            if found.len() > wanted.limit as usize {
                break;
            }
        }
        let end = cursor.as_deref().map(|cursor| below_of(&filter, cursor)).transpose()?;
        Ok((found, end.unwrap_or(0)))
    }

    /// A page of the runs that this run has started, and of the other runs of its conversation, newest first.
    fn runs_page(&self, wanted: &RunsWanted) -> Result<Page<RunSummary>, ApiError> {
        let size = page_size(wanted.limit)?;
        let filter = self.list_filter();
        let below = wanted.before.as_deref().map(|cursor| below_of(&filter, cursor)).transpose()?.unwrap_or(u64::MAX);
        let (mut found, complete_above) = match wanted.parent_run_id {
            Some(_) => (Vec::new(), 0),
            None => self.of_conversation(wanted, below)?,
        };
        for id in self.run.family.children.all() {
            let record = self.run.ledger.run(id).map_err(ledger_failed)?;
            found.extend(record.filter(|record| record.run_no < below && wanted.status(&record.run)));
        }
        // Later runs have larger numbers.
        found.retain(|record| record.run_no >= complete_above);
        found.sort_unstable_by_key(|record| Reverse(record.run_no));
        found.dedup_by_key(|record| record.run_no);
        let end = match found.get(size) {
            Some(_) => found.get(size - 1).map(|last| last.run_no),
            None => (complete_above > 0).then_some(complete_above),
        };
        found.truncate(size);
        let items = found.iter().map(|record| self.summarized(&record.run)).collect();
        let next_cursor = end.map(|run_no| Ledger::runs_cursor(&filter, run_no));
        Ok(Page { items, has_more: next_cursor.is_some(), next_cursor, prev_cursor: None })
    }

    /// `runs.list`, with the filters and the cursor that executors can send. `answer` makes the answer, as the journal keeps it.
    pub(super) async fn list_runs<T>(&mut self, wanted: RunsWanted, answer: fn(Page<RunSummary>) -> T) -> Result<T, ApiError>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let run = &self.run;
        let allowed = || {
            self.may(RunOperation::List, "runs.list")?;
            page_size(wanted.limit)?;
            match &wanted.parent_run_id {
                Some(id) if *id != run.run_id.to_string() => Err(not_found("run whose children this run may see:", id)),
                _ => Ok(()),
            }
        };
        // The arguments of a guest, which are in journals.
        let digest = match (&wanted.before, wanted.statuses.as_slice()) {
            (None, []) => run.journal.digest(&(&wanted.parent_run_id, wanted.limit)),
            (before, statuses) => run.journal.digest(&(&wanted.parent_run_id, wanted.limit, before, statuses)),
        };
        let effect = async |()| self.runs_page(&wanted).map(answer);
        run.pass(Call::read("runs.list", digest).resource(wanted.parent_run_id.as_deref()), allowed, effect).await.outcome
    }

    /// `runs.events-page`, in both directions, as executors can ask for it.
    pub(super) async fn run_events_between(&mut self, wanted: RunEventsWanted) -> Result<Page<RunEvent>, ApiError> {
        let run = &self.run;
        let RunEventsWanted { run_id, before, after, limit, direction } = wanted;
        let found = self.may(RunOperation::Events, "runs.events-page").and_then(|()| {
            page_size(limit)?;
            self.readable(&run_id)
        });
        // The arguments of a guest, which are in journals.
        let digest = match (&before, direction) {
            (None, Direction::Forward) => run.journal.digest(&(&run_id, &after, limit)),
            _ => run.journal.digest(&(&run_id, &before, &after, limit, direction)),
        };
        let effect = async |()| {
            let page = run.ledger.run_events_page(found.clone()?, before.as_deref(), after.as_deref(), limit, direction);
            page.map_err(ledger_failed)
        };
        let call = Call::read("runs.events-page", digest).resource(run_id.as_str());
        run.pass(call, || found.clone().map(drop), effect).await.outcome
    }

    fn summary(&self, id: RunId) -> Result<RunSummary, ApiError> {
        let record = self.run.ledger.run(id).map_err(ledger_failed)?.ok_or_else(|| not_found("run", &id.to_string()))?;
        Ok(self.summarized(&record.run))
    }

    fn summarized(&self, run: &Run) -> RunSummary {
        // Before this run hears of the end, so that its next call of a model is judged by it.
        if run.status.is_terminal() && self.run.family.children.has(run.run_id) {
            self.run.count_child(run);
        }
        RunSummary::from(run)
    }

    /// Steps 3 to 5 of the gate, for a run that is to be started.
    fn may_start(&self, request: &StartRequest, bytes: usize) -> Result<(), ApiError> {
        let run = &self.run;
        let limits = &run.limits;
        self.may(RunOperation::Start, "runs.start")?;
        if !run.terms.grant.runners.iter().any(|granted| granted.as_str() == request.runner_id) {
            return Err(not_granted("runner", &request.runner_id, "resources.runner_ids"));
        }
        within("the objective", request.objective.len(), MAX_TEXT_BYTES)?;
        within("the input and configuration of a run", bytes, limits.http_body_bytes)?;
        if run.terms.depth >= limits.child_depth {
            let message = format!("{} runs stand above this one already: it may start none", run.terms.depth);
            return Err(too_many("child_depth", false, message, limits.child_depth as usize));
        }
        if run.family.children.all().len() >= limits.child_runs {
            let message = format!("a run starts at most {} others", limits.child_runs);
            return Err(too_many("child_runs", false, message, limits.child_runs));
        }
        if run.family.children.active(&run.ledger).map_err(ledger_failed)?.len() >= limits.child_runs_at_once {
            let message = format!(
                "a run has at most {} others under way at one time: wait for one of them (`runs.wait-any`)",
                limits.child_runs_at_once
            );
            return Err(too_many("child_runs_at_once", true, message, limits.child_runs_at_once));
        }
        Ok(())
    }

    /// A run that is to be started, parsed.
    fn child_request(&self, request: StartRequest) -> Result<ChildRequest, ApiError> {
        let run = &self.run;
        let StartRequest { runner_id, input, objective, config } = request;
        let runner = runner_id.parse().ok().and_then(|id| self.neighbours.runner(&id));
        let runner = runner.ok_or_else(|| not_found("runner", &runner_id))?;
        let config = match config {
            None => Map::new(),
            Some(text) => match parse_json("the configuration", &text)? {
                Value::Object(config) => config,
                _ => return Err(ApiError::invalid_argument("the configuration of a run is a JSON object")),
            },
        };
        let config = runner.manifest.check_config(config).map_err(|problems| {
            let id = &runner.manifest.id;
            ApiError::invalid_argument(format!("the configuration does not fit {id}: {}", problems.join("; ")))
        })?;
        let input = self.with_known_artifacts(input.parse()?)?;
        // Keys of clients have no spaces.
        let key = if run.is_external() {
            // No execution after this one comes to the same call again.
            format!("child {} {}", run.run_id, EventId::new())
        } else {
            // The same call of the same attempt, however often the host dies in it.
            format!("child {} {} {}", run.run_id, run.attempt, run.journal.calls())
        };
        Ok(ChildRequest { runner, input, objective, config, idempotency_key: key })
    }

    /// The input with what the host knows of the artifacts that it names: those that the parent may know of.
    fn with_known_artifacts(&self, mut input: Input) -> Result<Input, ApiError> {
        let artifacts = self.artifacts();
        let within = input.contents.iter_mut().filter_map(|part| match part {
            ContentPart::Artifact(artifact) => Some(artifact),
            _ => None,
        });
        for artifact in input.attachments.iter_mut().chain(within) {
            *artifact = artifacts.visible(&artifact.artifact_id)?.reference();
        }
        Ok(input)
    }
}

fn of_host(error: HostError) -> ApiError {
    match error {
        HostError::Conflict(message) => ApiError::new(ErrorCode::Conflict, message),
        HostError::NotFound(message) => ApiError::new(ErrorCode::NotFound, message),
        other => {
            tracing::error!(error = %other, "a run could not act on another");
            ApiError::retryable(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason")
        }
    }
}

impl ChildCalls for RunCalls {
    fn run_start(&mut self, request: StartRequest) -> BoxFuture<'_, Result<RunId, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let bytes = request.bytes();
            let runner_id = request.runner_id.clone();
            let digest = run.journal.digest(&request);
            let allowed = || self.may_start(&request, bytes);
            let effect = async |ticket| {
                let objective = request.objective.clone();
                if let Ok(id) = runner_id.parse() {
                    let waited = self.neighbours.await_runner(&id).await;
                    waited.map_err(|error| ApiError::retryable(ErrorCode::RuntimeError, error.to_string()))?;
                }
                let child_request = self.child_request(request.clone())?;
                let id = self.neighbours.start_child(run, &self.event, child_request).await?;
                let fact = Fact::ChildStarted(ChildStart { objective, run_id: id.to_string(), runner_id: runner_id.clone() });
                let make = |sequence| {
                    let events = vec![fact.event(sequence, time::now())];
                    Ok((RunWrite { events, ..RunWrite::default() }, id))
                };
                run.commit(ticket, make).await?;
                self.neighbours.report_end(run, id);
                Ok(id)
            };
            let call = Call::write("runs.start", digest).resource(runner_id.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn run_wait_any(&mut self, run_ids: Vec<String>, wait_ms: u32) -> BoxFuture<'_, Result<Option<RunSummary>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let allowed = || {
                self.may(RunOperation::Get, "runs.wait-any")?;
                if run_ids.is_empty() {
                    return Err(ApiError::invalid_argument("there is no run to wait for"));
                }
                run_ids.iter().try_for_each(|id| self.child(id).map(drop))
            };
            let digest = run.journal.digest(&(&run_ids, wait_ms));
            let effect = async |ticket: EffectTicket| {
                let ids: Vec<RunId> = run_ids.iter().map(|id| self.child(id)).collect::<Result<_, _>>()?;
                if wait_ms > 0 {
                    // A later execution of the run reads the start of the wait from the journal.
                    run.start(&ticket);
                }
                let mut arrivals = run.waits.mail.arrivals();
                // A wait that could be parked is waited in memory a moment first: coming back costs more than a moment.
                let patient_until = Instant::now() + Duration::from_millis(run.limits.park_after_ms);
                loop {
                    arrivals.mark_unchanged();
                    let mut active = Vec::new();
                    for id in &ids {
                        let summary = self.summary(*id)?;
                        if summary.status.is_terminal() {
                            return Ok(Some(summary));
                        }
                        active.push(WaitKey::Child(*id));
                    }
                    let (left, until) = run.time_left(ticket.began_us(), u64::from(wait_ms));
                    if left.is_zero() {
                        return Ok(None);
                    }
                    active.dedup();
                    let patience = patient_until.saturating_duration_since(Instant::now());
                    if patience.is_zero() && active.len() <= MAX_KEYS && run.parks_for(left) {
                        run.stop(Stop::Park { until: Some(until), reason: "runs", keys: active }).await
                    }
                    let moment = if patience.is_zero() { left } else { left.min(patience) };
                    tokio::select! {
                        _ = arrivals.changed() => {}
                        () = tokio::time::sleep(moment) => {}
                    }
                }
            };
            run.pass(Call::effect("runs.wait-any", digest), allowed, effect).await.outcome
        })
    }

    fn run_get(&mut self, run_id: String) -> BoxFuture<'_, Result<RunSummary, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let found = self.may(RunOperation::Get, "runs.get").and_then(|()| self.readable(&run_id));
            let digest = run.journal.digest(&run_id);
            let effect = async |()| self.summary(found.clone()?);
            let call = Call::read("runs.get", digest).resource(run_id.as_str());
            run.pass(call, || found.clone().map(drop), effect).await.outcome
        })
    }

    fn run_list(&mut self, parent_run_id: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RunSummary>, ApiError>> {
        Box::pin(async move {
            let wanted = RunsWanted { parent_run_id, statuses: Vec::new(), before: None, limit };
            self.list_runs(wanted, |page| page.items).await
        })
    }

    fn run_events_page(
        &mut self,
        run_id: String,
        after: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<RunEvent>, ApiError>> {
        Box::pin(async move {
            let wanted = RunEventsWanted { run_id, before: None, after, limit, direction: Direction::Forward };
            self.run_events_between(wanted).await
        })
    }

    fn run_cancel(&mut self, run_id: String, reason: String) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let found = self.may(RunOperation::Cancel, "runs.cancel").and_then(|()| {
                within("the reason", reason.len(), MAX_TEXT_BYTES)?;
                self.child(&run_id)
            });
            let digest = run.journal.digest(&(&run_id, &reason));
            let effect = async |_| {
                let reason =
                    if reason.is_empty() { "cancelled by the run that had started it".to_owned() } else { reason.clone() };
                self.neighbours.cancel(found.clone()?, reason).await.map_err(of_host)
            };
            let call = Call::effect("runs.cancel", digest).resource(run_id.as_str());
            run.pass(call, || found.clone().map(drop), effect).await.outcome
        })
    }
}

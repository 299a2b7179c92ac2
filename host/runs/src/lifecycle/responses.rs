//! Responses: answers of people, and of clients that brought tools along, to what a run has asked.
//!
//! An answer is posted to the mailbox of a run in memory, which writes it to its own record. The record of a parked run is
//! written here, and the run is due by the same commit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use agent_host_facts::record::Decision;
use agent_host_ledger::{LedgerError, Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    ApiError, Limits, Principal, PrincipalKind, RunId, Scope, auth::provider_user, encoded::json_len, message::ContentPart, time,
    tool::ClientToolAnswer,
};
use agent_host_providers::tools::validate;
use serde_json::Value;
use tokio::sync::oneshot;

use super::Runs;
use crate::{
    execution::registry::{Location, PostedAnswer},
    record::{
        HostError, WaitKey,
        action::{Action, ActionStatus, AskKind, RecordedAnswer, Response, actions_of, client_answer, is_allowed},
        artifacts::known_artifact,
        facts,
    },
};

/// Longest wait of an answer for a run that moves into memory or out of it.
const MAX_MOVE: Duration = Duration::from_secs(10);

/// The progress of an answer.
enum Delivery {
    /// The answer is durable.
    Done,
    /// The run moves into memory or out of it.
    Moving,
    /// Another writer has written to the record of the run.
    RecordChanged,
    /// The run left memory while it wrote this answer: the record has the outcome.
    Unconfirmed(RecordedAnswer),
}

impl Runs {
    /// The approver whose token this is.
    pub(crate) fn approver_principal(&self, token: &str) -> Option<Principal> {
        let setup = self.shared.setup();
        let id = setup.approvers.approver(token)?.to_owned();
        let scopes = [Scope::ActionsRespond].into();
        Some(Principal { kind: PrincipalKind::Approver(id.clone()), name: id, scopes, workspace: None, end_user: None })
    }

    /// The name that the record gives to an answer of this principal: the id of an approver, `key:NAME` for a
    /// key, `idp:PROVIDER:USER` for a user of an identity provider. Ids of approvers have no colon, so the others never equal
    /// an approver that a rule names. Without configured approvers, a
    /// caller on this machine needs no name.
    pub(crate) fn answers_as(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        match &principal.kind {
            PrincipalKind::Approver(id) => Ok(Some(id.clone())),
            PrincipalKind::Key(_) => Ok(Some(format!("key:{}", principal.name))),
            PrincipalKind::IdentityProvider(provider) => Ok(Some(provider_user(provider, &principal.name))),
            PrincipalKind::Loopback if self.shared.setup().approvers.is_empty() => Ok(None),
            PrincipalKind::Loopback => Err(HostError::Unauthenticated(
                "the answer has no author: send `Authorization: Bearer TOKEN` with the token of an `[[approvers]]` entry, or a \
                 key with the scope `actions:respond`"
                    .to_owned(),
            )),
            PrincipalKind::Executor(_) | PrincipalKind::Lease => {
                Err(HostError::Forbidden("an executor cannot answer an action: people answer it".to_owned()))
            }
        }
    }

    /// Checks that an action accepts this response from `by` now. Another answer can still come first.
    pub(crate) fn may_respond(&self, action_id: &str, response: &Response, by: Option<&str>) -> Result<Action, HostError> {
        let (record, action) = self.find_action(action_id)?;
        self.admits(&record, &action, response, by)?;
        Ok(action)
    }

    fn admits(&self, record: &RunRecord, action: &Action, response: &Response, by: Option<&str>) -> Result<(), HostError> {
        if let Some(why) = closed(action) {
            return Err(why);
        }
        if record.run.status.is_terminal() {
            return Err(HostError::Conflict(format!(
                "run {} no longer waits for an answer: it is {}",
                record.run.run_id, record.run.status
            )));
        }
        if action.expires_at().is_some_and(|at| at <= time::now()) {
            let id = &action.action_id;
            return Err(HostError::Expired(format!("action {id} has expired without an answer")));
        }
        admit(action, response, by, &self.shared.limits())
    }

    /// Answers an action. The answer is durable when this function returns, and the run continues with the answer.
    pub(crate) async fn respond(&self, action_id: &str, response: Response, by: Option<String>) -> Result<Action, HostError> {
        let until = tokio::time::Instant::now() + MAX_MOVE;
        let run_id = self.find_action(action_id)?.0.run.run_id;
        let mut unconfirmed: Option<RecordedAnswer> = None;
        loop {
            // Before the record is read: a run that takes another answer and ends after that has moved, and before that its record has
            // the answer.
            let moved = self.registry.next_move(run_id);
            let (record, action) = self.find_action(action_id)?;
            if unconfirmed.is_some() && action.recorded_answer() == unconfirmed {
                // The run has written it in the very moment in which it left memory.
                return Ok(action);
            }
            self.admits(&record, &action, &response, by.as_deref())?;
            let recorded_answer = RecordedAnswer {
                decision: response.decision,
                by: by.clone(),
                reason: response.reason.clone().filter(|reason| !reason.is_empty()),
                answer: self.answer_to(&record, &action, &response)?,
                at: time::now(),
            };
            match self.deliver(&record, &action, recorded_answer).await? {
                Delivery::Done => return Ok(self.find_action(action_id)?.1),
                Delivery::Unconfirmed(recorded_answer) => unconfirmed = Some(recorded_answer),
                Delivery::RecordChanged => {}
                Delivery::Moving => {
                    if tokio::time::timeout_at(until, moved).await.is_err() {
                        return Err(HostError::Unavailable(format!("run {run_id} does not take the answer: send it again")));
                    }
                }
            }
        }
    }

    /// The answer that the record keeps, where one is given. Artifacts in the answer of a client are those of the run's
    /// conversation, with what the host knows of them.
    fn answer_to(&self, record: &RunRecord, action: &Action, response: &Response) -> Result<Option<Value>, HostError> {
        if response.decision != Decision::Submit {
            return Ok(None);
        }
        let answer = answer_of(action, response);
        if action.kind() != AskKind::ClientTool {
            return Ok(Some(answer));
        }
        let Some(mut response) = client_answer(answer.clone()) else { return Ok(Some(answer)) };
        let run = &record.run;
        let workspace = run.workspace_id.clone().unwrap_or_default();
        let conversation = run.conversation_key();
        for part in &mut response.content {
            if let ContentPart::Artifact(artifact) = part {
                *artifact = known_artifact(&self.ledger, artifact, &workspace, conversation.as_ref())?;
            }
        }
        serde_json::to_value(&response).map(Some).map_err(|error| HostError::Internal(error.to_string()))
    }

    async fn deliver(&self, record: &RunRecord, action: &Action, recorded_answer: RecordedAnswer) -> Result<Delivery, HostError> {
        let (receipt, received) = oneshot::channel();
        let writing = Arc::new(AtomicBool::new(false));
        let action_id = action.action_id.clone();
        let letter = PostedAnswer { action_id, recorded_answer: recorded_answer.clone(), writing: Arc::clone(&writing), receipt };
        match self.registry.post(record.run.run_id, letter) {
            Ok(()) => match tokio::time::timeout(MAX_MOVE, received).await {
                Ok(Ok(Ok(()))) => Ok(Delivery::Done),
                Ok(Ok(Err(error))) => Err(error),
                Ok(Err(_)) | Err(_) if writing.load(Ordering::Acquire) => Ok(Delivery::Unconfirmed(recorded_answer)),
                Ok(Err(_)) | Err(_) => Ok(Delivery::Moving),
            },
            Err(Location::Live | Location::Leaving) => Ok(Delivery::Moving),
            Err(Location::Parked) => self.answer_parked(record, action, &recorded_answer).await,
        }
    }

    /// Writes the answer to the record of a parked run, and wakes the run if the answer completes its wait.
    async fn answer_parked(
        &self,
        record: &RunRecord,
        action: &Action,
        recorded_answer: &RecordedAnswer,
    ) -> Result<Delivery, HostError> {
        let answered = WaitKey::action(&action.action_id).to_string();
        let park = self.ledger.parked(record.run_no)?.filter(|park| park.keys.contains(&answered));
        let Some(park) = park else { return Ok(Delivery::Moving) };
        let at = time::now();
        let events = facts::events(&recorded_answer.facts(&action.action_id, action.kind()), record.run.last_sequence + 1, at);
        // Due, so that recovery wakes the run if the host dies before it does; or still parked, for the answers that are missing.
        let reason = record.run.status_reason.as_deref().unwrap_or_default();
        let park = remaining_park(&park, reason, &answered);
        let goes_on = park.is_none();
        let refers_to = recorded_answer.artifacts(action.kind());
        let write = RunWrite { changes: vec![RunChange::Due { at }], events, park, refers_to, ..RunWrite::default() };
        match self.writer(record).commit(write).await {
            Ok(_) if goes_on => self.wake(record.run_no).await.map(|()| Delivery::Done),
            Ok(_) => Ok(Delivery::Done),
            Err(LedgerError::Sequence { .. } | LedgerError::Terminal { .. } | LedgerError::Transition(_)) => {
                Ok(Delivery::RecordChanged)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn find_action(&self, action_id: &str) -> Result<(RunRecord, Action), HostError> {
        let missing = || HostError::NotFound(format!("there is no action {}", action_id.escape_debug()));
        let run_id: RunId = action_id.split_once('.').and_then(|(run_id, _)| run_id.parse().ok()).ok_or_else(missing)?;
        let ledger = &self.ledger;
        let record = ledger.run(run_id)?.ok_or_else(missing)?;
        let action = actions_of(ledger, &record)?.into_iter().find(|action| action.action_id == action_id);
        Ok((record, action.ok_or_else(missing)?))
    }

    /// Something that a run has asked people for.
    pub(crate) fn action(&self, action_id: &str) -> Result<Action, HostError> {
        self.find_action(action_id).map(|(_, action)| action)
    }

    /// All that a run has asked people for, in order.
    pub(crate) fn actions(&self, run_id: RunId) -> Result<Vec<Action>, HostError> {
        Ok(actions_of(&self.ledger, &self.record(run_id)?)?)
    }

    /// Open actions that `by` may see, in order of their ids: at most `limit`, after `after`. Ids of later runs are larger.
    pub(crate) fn open_actions(&self, by: &Principal, after: Option<&str>, limit: usize) -> Result<Vec<Action>, HostError> {
        let mut open = Vec::new();
        let mut after = after.map(str::to_owned);
        loop {
            // Actions of other callers take no place on a page.
            let looked_at = self.asked_after(after.as_deref(), limit)?;
            for id in &looked_at {
                if open.len() == limit {
                    return Ok(open);
                }
                let Ok((record, action)) = self.find_action(id) else { continue };
                if action.status == ActionStatus::Open && by.sees(record.run.workspace_id.as_deref()) {
                    open.push(action);
                }
            }
            match looked_at.into_iter().next_back() {
                Some(last) => after = Some(last),
                None => return Ok(open),
            }
        }
    }

    /// Ids of actions that may wait for an answer, after `after`: none where there are no more, else at least one.
    fn asked_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, HostError> {
        let begin = after.map(|after| (WaitKey::action(after).to_string(), u64::MAX));
        let parked = self.ledger.parked_keys(WaitKey::ACTIONS, begin.as_ref(), limit)?;
        let is_whole = parked.len() < limit;
        let mut ids: Vec<String> =
            parked.into_iter().filter_map(|(key, _)| key.strip_prefix(WaitKey::ACTIONS).map(str::to_owned)).collect();
        // Actions in memory that sort after the last one of a page come with the next page, in order.
        let last = ids.last().filter(|_| !is_whole).cloned();
        let is_next = |id: &String| {
            after.is_none_or(|after| id.as_str() > after) && last.as_ref().is_none_or(|last| id.as_str() <= last.as_str())
        };
        ids.extend(self.registry.awaited(is_next));
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// The park row after an answer; `None` if the run continues. Calls of several client tools are requested together, and the
/// run continues when all are answered: a client answers one after the other and sees one waiting run until the last
/// answer.
fn remaining_park(park: &Park, reason: &str, answered: &str) -> Option<Park> {
    let keys: Vec<String> = park.keys.iter().filter(|key| *key != answered).cloned().collect();
    let waits = reason == AskKind::ClientTool.reason() && keys.iter().any(|key| key.starts_with(WaitKey::ACTIONS));
    waits.then_some(Park { wake_at: park.wake_at, keys })
}

/// The error if the action accepts no answer.
fn closed(action: &Action) -> Option<HostError> {
    let id = &action.action_id;
    if let Some(recorded_answer) = action.recorded_answer() {
        let by = recorded_answer.by.map(|by| format!(" by {by}")).unwrap_or_default();
        return Some(HostError::Answered {
            message: format!("action {id} was answered before{by}, with `{}`", recorded_answer.decision.as_str()),
            action: Box::new(action.clone()),
        });
    }
    let outcome = action.resolved.as_ref()?.get("outcome").and_then(Value::as_str).unwrap_or("resolved");
    // A run that has ended says of what it asked that it was cancelled; who answers later is too late in any case.
    let is_late = outcome == "cancelled" && action.expires_at().is_some_and(|at| at <= time::now());
    Some(match outcome {
        _ if is_late => HostError::Expired(format!("action {id} has expired without an answer, and its run has ended")),
        "expired" => HostError::Expired(format!("action {id} has expired without an answer")),
        outcome => HostError::Answered {
            message: format!("action {id} no longer takes an answer: it is {outcome}"),
            action: Box::new(action.clone()),
        },
    })
}

/// Checks a response and its sender.
fn admit(action: &Action, response: &Response, by: Option<&str>, limits: &Limits) -> Result<(), HostError> {
    if is_allowed(&action.request) {
        let id = &action.action_id;
        return Err(HostError::Conflict(format!("action {id} needs no answer: the approval policy allows it")));
    }
    let kind = action.kind();
    if !kind.decisions().contains(&response.decision) {
        let [yes, no] = kind.decisions().map(Decision::as_str);
        return Err(HostError::Invalid(format!(
            "`decision` is `{yes}` or `{no}` for {}, not `{}`",
            action.action_id,
            response.decision.as_str()
        )));
    }
    let approvers: Vec<&str> = action
        .request
        .get("approvers")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_str).collect());
    if !approvers.is_empty() && !by.is_some_and(|by| approvers.contains(&by)) {
        return Err(HostError::Forbidden(format!(
            "action {} is answered by {}: the approval rule of its binding says so",
            action.action_id,
            approvers.join(" or ")
        )));
    }
    let bytes = response.answer.as_ref().map_or(0, json_len) + response.reason.as_ref().map_or(0, String::len);
    if bytes > limits.answer_bytes {
        return Err(HostError::Invalid(format!(
            "the answer has {bytes} bytes; the limit is {}: upload a long text as an artifact, and name the artifact in the answer",
            limits.answer_bytes
        )));
    }
    match (&response.answer, response.decision) {
        (Some(_), decision) if decision != Decision::Submit => {
            return Err(HostError::Invalid("`answer` belongs to the decision `submit`".to_owned()));
        }
        (Some(answer), _) if !agent_host_protocol::limits::is_shallow(answer) => {
            return Err(HostError::Invalid("`answer` nests too deep".to_owned()));
        }
        _ => {}
    }
    if response.decision == Decision::Submit {
        fits(action, &answer_of(action, response))?;
    }
    Ok(())
}

/// Checks an answer against the question.
fn fits(action: &Action, answer: &Value) -> Result<(), HostError> {
    if action.kind() == AskKind::ClientTool {
        let fits = serde_json::from_value::<ClientToolAnswer>(answer.clone()).map(drop);
        return fits.map_err(|error| {
            let form = "{\"content\": TEXT or PARTS, \"error\"?: TEXT, \"message_id\"?: TEXT}";
            HostError::Invalid(format!("`answer` is what the tool has answered, {form}: {error}"))
        });
    }
    match action.request.get("answer_schema") {
        Some(schema) if !schema.is_null() => validate(schema, answer).map_err(|error| {
            let why = violations(&error).unwrap_or(error.message);
            HostError::Invalid(format!("`answer` does not fit the question: {why}"))
        }),
        _ => Ok(()),
    }
}

/// The violations of a schema: places and rules.
fn violations(error: &ApiError) -> Option<String> {
    let found = error.details.as_ref()?.get("violations")?.as_array()?;
    let text = |violation: &Value| Some(format!("{}: {}", violation.get("path")?.as_str()?, violation.get("problem")?.as_str()?));
    let found: Vec<String> = found.iter().filter_map(text).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// The answer to a question: to confirm needs no words.
fn answer_of(action: &Action, response: &Response) -> Value {
    let confirms = action.request.get("question").and_then(Value::as_str) == Some("confirmation");
    response.answer.clone().unwrap_or(if confirms { Value::Bool(true) } else { Value::Null })
}

//! What runs ask people for: platform actions that need approval, questions, and effects in doubt.
//!
//! To ask is a fact in the record of the run (`action.requested`), an answer another (`action.answered`, once), and what came
//! of it a third (`action.resolved`, once, the last). The run is parked while it waits: a restart of the host changes
//! nothing for it. A run that cannot be parked (it has no journal, or something streams) waits in memory, with the same facts.
//!
//! Who answers writes the answer where the run is parked, and hands it to the run where it lives (`mail.rs`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use agent_host_ledger::{Ledger, LedgerError, NewEvent, Park, RunChange, RunRecord, RunWrite};
use agent_host_protocol::{
    ApiError, ErrorCode, Principal, PrincipalKind, ResultKind, RunId, Scope, Timestamp, grant::ConversationKey,
    message::ContentPart, time, tool::ClientToolAnswer,
};
use agent_host_providers::tools::validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::{
    beginning::{fact, status_event},
    error::{HostError, ledger_failed},
    gate::RunState,
    host::Host,
    journal::Stop,
    mail::Letter,
};

/// What people are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskKind {
    /// May it do this?
    PlatformAction,
    /// What do you say?
    Question,
    /// Is this to be done again?
    EffectInDoubt,
    /// What does this tool of yours answer? Asked of the client that brought it along.
    ClientTool,
}

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// To an action: do it.
    Approve,
    /// To an action: do not.
    Deny,
    /// To a question or a call to a tool of the client: this is the answer.
    Submit,
    /// To a question: I will not say. To a call: I will not do it.
    Decline,
    /// To an effect in doubt: do it again, it did not happen, or twice does no harm.
    Repeat,
    /// To an effect in doubt: do not, the runner is told that nobody knows.
    Skip,
}

impl Decision {
    /// As JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
            Self::Submit => "submit",
            Self::Decline => "decline",
            Self::Repeat => "repeat",
            Self::Skip => "skip",
        }
    }

    /// What has come of it with that; nothing where something is to be done first.
    const fn outcome(self) -> Option<&'static str> {
        match self {
            Self::Approve => None,
            Self::Deny => Some("denied"),
            Self::Submit => Some("submitted"),
            Self::Decline => Some("declined"),
            Self::Repeat => Some("repeat"),
            Self::Skip => Some("skip"),
        }
    }
}

impl AskKind {
    /// What a person may say to it.
    #[must_use]
    pub const fn decisions(self) -> [Decision; 2] {
        match self {
            Self::PlatformAction => [Decision::Approve, Decision::Deny],
            Self::Question | Self::ClientTool => [Decision::Submit, Decision::Decline],
            Self::EffectInDoubt => [Decision::Repeat, Decision::Skip],
        }
    }

    /// What the run waits for, as its status says.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::PlatformAction => "approval",
            Self::Question => "question",
            Self::EffectInDoubt => "effect_in_doubt",
            Self::ClientTool => "client_tool",
        }
    }
}

/// An answer, as somebody sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActionResponse)]
pub struct Response {
    /// What they say.
    pub decision: Decision,
    /// Why, for the runner and the record.
    #[serde(default)]
    pub reason: Option<String>,
    /// The answer to a question, or to a call to a tool of the client (there a `ClientToolAnswer`).
    #[serde(default)]
    pub answer: Option<Value>,
}

/// An answer, as the record keeps it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Given {
    pub(crate) decision: Decision,
    pub(crate) by: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) answer: Option<Value>,
    pub(crate) at: Timestamp,
}

impl Given {
    /// What the record says of it: that it was answered, and what came of it where that is all.
    fn facts(&self, action_id: &str) -> Vec<(ResultKind, Value)> {
        let mut said = Map::new();
        said.insert("action_id".to_owned(), action_id.into());
        said.insert("decision".to_owned(), self.decision.as_str().into());
        said.extend(self.by.clone().map(|by| ("by".to_owned(), by.into())));
        said.extend(self.reason.clone().map(|reason| ("reason".to_owned(), reason.into())));
        let resolved = self.decision.outcome().map(|outcome| {
            let mut resolved = said.clone();
            resolved.insert("outcome".to_owned(), outcome.into());
            (ResultKind::ActionResolved, Value::Object(resolved))
        });
        said.extend(self.answer.clone().map(|answer| ("answer".to_owned(), answer)));
        said.insert("at".to_owned(), self.at.into());
        [(ResultKind::ActionAnswered, Value::Object(said))].into_iter().chain(resolved).collect()
    }

    /// Artifacts that an answer for something of this kind names: as long as the record is there, they are.
    fn artifacts(&self, kind: AskKind) -> Vec<String> {
        let answer = self.answer.clone().filter(|_| kind == AskKind::ClientTool).and_then(client_answer);
        answer.iter().flat_map(ClientToolAnswer::artifact_ids).map(str::to_owned).collect()
    }

    /// From the fact that it was answered.
    fn of(data: &Value) -> Option<Self> {
        let text = |name: &str| data.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            decision: serde_json::from_value(data.get("decision")?.clone()).ok()?,
            by: text("by"),
            reason: text("reason"),
            answer: data.get("answer").cloned(),
            at: data.get("at").and_then(Value::as_u64).unwrap_or_default(),
        })
    }
}

/// Something that a run has asked people for, and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Action {
    /// Names it.
    pub action_id: String,
    /// Who asks.
    pub run_id: RunId,
    /// `open`, `answered` (by a person or by the policy; it is being done) or `resolved`.
    pub status: ActionStatus,
    /// When it was asked.
    pub requested_at: Timestamp,
    /// What was asked: the data of `action.requested`.
    pub request: Value,
    /// What was said: the data of `action.answered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<Value>,
    /// What came of it: the data of `action.resolved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Value>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum ActionStatus {
    Open,
    Answered,
    Resolved,
}

/// What is asked, for the record.
pub(crate) struct Ask {
    pub(crate) kind: AskKind,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) approvers: Vec<String>,
    /// More of it, as its kind says.
    pub(crate) more: Value,
}

impl Ask {
    /// The data of `action.requested`, but for the id.
    pub(crate) fn data(self) -> Value {
        let mut data = Map::new();
        data.insert("kind".to_owned(), json!(self.kind));
        data.extend(self.expires_at.map(|at| ("expires_at".to_owned(), at.into())));
        if !self.approvers.is_empty() {
            data.insert("approvers".to_owned(), self.approvers.into());
        }
        data.insert("decisions".to_owned(), json!(self.kind.decisions()));
        if let Value::Object(more) = self.more {
            data.extend(more);
        }
        Value::Object(data)
    }
}

/// The id of what a run asks with its call of this number.
pub(crate) fn action_id(run_id: RunId, number: u64) -> String {
    format!("{run_id}.{number}")
}

/// What a run that waits for an answer is found by.
pub(crate) fn key(action_id: &str) -> String {
    format!("{KEYS}{action_id}")
}

/// What all those keys begin with.
pub(crate) const KEYS: &str = "action/";

/// What the record of a run says of what it asked.
pub(crate) const FACTS: [&str; 3] =
    [ResultKind::ActionRequested.as_str(), ResultKind::ActionAnswered.as_str(), ResultKind::ActionResolved.as_str()];

/// All that a run has asked people for, in order. What it asked in passing (`detached.rs`) is among it.
pub(crate) fn actions_of(ledger: &Ledger, record: &RunRecord) -> Result<Vec<Action>, LedgerError> {
    let run_id = record.run.run_id;
    let mut actions: Vec<Action> = Vec::new();
    for event in ledger.run_events_of(record.run_no, run_id, &FACTS)? {
        let data = event.data_value();
        let Some(id) = data.get("action_id").and_then(Value::as_str).map(str::to_owned) else { continue };
        let known = actions.iter_mut().find(|action| action.action_id == id);
        match (ResultKind::from_name(&event.kind), known) {
            (Some(ResultKind::ActionRequested), None) => actions.push(Action {
                action_id: id,
                run_id,
                status: if is_allowed(&data) { ActionStatus::Answered } else { ActionStatus::Open },
                requested_at: event.timestamp,
                request: data,
                answered: None,
                resolved: None,
            }),
            (Some(ResultKind::ActionAnswered), Some(action)) => {
                action.status = ActionStatus::Answered;
                action.answered = Some(data);
            }
            (Some(ResultKind::ActionResolved), Some(action)) => {
                action.status = ActionStatus::Resolved;
                action.resolved = Some(data);
            }
            _ => {}
        }
    }
    Ok(actions)
}

/// Whether nobody is asked: the policy has said yes before.
fn is_allowed(request: &Value) -> bool {
    request.get("policy").and_then(Value::as_str) == Some("allow")
}

impl Action {
    /// What is asked for.
    #[must_use]
    pub fn kind(&self) -> AskKind {
        let kind = self.request.get("kind").cloned().and_then(|kind| serde_json::from_value(kind).ok());
        // Ledgers of hosts before had no other.
        kind.unwrap_or(AskKind::EffectInDoubt)
    }

    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        self.request.get("expires_at").and_then(Value::as_u64)
    }

    /// What was said to it, whatever has come of that.
    pub(crate) fn given(&self) -> Option<Given> {
        self.answered.as_ref().or(self.resolved.as_ref()).and_then(Given::of)
    }

    /// Why it takes no answer, if it takes none.
    fn closed(&self) -> Option<HostError> {
        let id = &self.action_id;
        if let Some(given) = self.given() {
            let by = given.by.map(|by| format!(" by {by}")).unwrap_or_default();
            return Some(HostError::Answered {
                message: format!("action {id} was answered before{by}, with `{}`", given.decision.as_str()),
                action: Box::new(self.clone()),
            });
        }
        let outcome = self.resolved.as_ref()?.get("outcome").and_then(Value::as_str).unwrap_or("resolved");
        Some(match outcome {
            "expired" => HostError::Expired(format!("action {id} has expired: nobody answered it in time")),
            outcome => HostError::Answered {
                message: format!("action {id} takes no answer any more: it is {outcome}"),
                action: Box::new(self.clone()),
            },
        })
    }

    /// Whether this response can be one, and who gives it.
    fn admit(&self, response: &Response, by: Option<&str>, limits: &agent_host_protocol::Limits) -> Result<(), HostError> {
        if is_allowed(&self.request) {
            let id = &self.action_id;
            return Err(HostError::Conflict(format!("nobody is asked about action {id}: the approval policy allows it")));
        }
        let kind = self.kind();
        if !kind.decisions().contains(&response.decision) {
            let [yes, no] = kind.decisions().map(Decision::as_str);
            return Err(HostError::Invalid(format!(
                "`decision` is `{yes}` or `{no}` for {}, not `{}`",
                self.action_id,
                response.decision.as_str()
            )));
        }
        let approvers: Vec<&str> = self
            .request
            .get("approvers")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_str).collect());
        if !approvers.is_empty() && !by.is_some_and(|by| approvers.contains(&by)) {
            return Err(HostError::Forbidden(format!(
                "action {} is answered by {}: the approval rule of its binding says so",
                self.action_id,
                approvers.join(" or ")
            )));
        }
        let bytes = response.answer.as_ref().map_or(0, |answer| answer.to_string().len())
            + response.reason.as_ref().map_or(0, String::len);
        if bytes > limits.answer_bytes {
            return Err(HostError::Invalid(format!(
                "the answer has {bytes} bytes; the limit is {}: upload what is long, and name it in the answer",
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
            self.fits(&answer_of(self, response))?;
        }
        Ok(())
    }

    /// Whether an answer is what the question wants.
    fn fits(&self, answer: &Value) -> Result<(), HostError> {
        if self.kind() == AskKind::ClientTool {
            let fits = serde_json::from_value::<ClientToolAnswer>(answer.clone()).map(drop);
            return fits.map_err(|error| {
                let form = "{\"content\": TEXT or PARTS, \"error\"?: TEXT, \"message_id\"?: TEXT}";
                HostError::Invalid(format!("`answer` is what the tool has answered, {form}: {error}"))
            });
        }
        match self.request.get("answer_schema") {
            Some(schema) if !schema.is_null() => validate(schema, answer).map_err(|error| {
                let why = violations(&error).unwrap_or(error.message);
                HostError::Invalid(format!("`answer` does not fit the question: {why}"))
            }),
            _ => Ok(()),
        }
    }
}

/// What the record keeps of the answer of a client.
pub(crate) fn client_answer(answer: Value) -> Option<ClientToolAnswer> {
    serde_json::from_value(answer).ok()
}

/// Where and how a value breaks its schema.
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

/// What a run has been told.
pub(crate) enum Told {
    /// By a person.
    Given(Given),
    /// By the clock.
    Expired,
}

/// How a run waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its guest waits, and the run leaves memory where it can.
    Parks,
    /// Its guest waits, and something of the run is under way that would end with the execution.
    InMemory,
    /// Its guest does something else meanwhile.
    InPassing,
}

impl Wait {
    /// How a run waits for the answer to a call of its own.
    pub(crate) fn of(run: &RunState) -> Self {
        if run.is_outside() {
            // It may do something else meanwhile, and whoever asks may go away: its status says nothing of it.
            Self::InPassing
        } else if run.open.any() {
            Self::InMemory
        } else {
            Self::Parks
        }
    }
}

impl RunState {
    /// Waits for the answer to what the run has asked, as its record says. A run that can be parked is: then this does not
    /// return, and the next execution finds the answer in the record.
    pub(crate) async fn told(&self, action_id: &str, kind: AskKind, wait: Wait) -> Result<Told, ApiError> {
        let told = self.told_all(&[action_id.to_owned()], kind, wait).await?;
        told.into_iter().next().ok_or_else(|| ApiError::new(ErrorCode::RuntimeError, "the host lost an answer"))
    }

    /// As [`RunState::told`], of several: in their order, once all are answered.
    pub(crate) async fn told_all(&self, ids: &[String], kind: AskKind, wait: Wait) -> Result<Vec<Told>, ApiError> {
        let _asked: Vec<_> = ids.iter().map(|id| self.mail.asks(id)).collect();
        let mut mail = self.mail.watch();
        let mut told: Vec<Option<Told>> = Vec::with_capacity(ids.len());
        let mut expires = Vec::with_capacity(ids.len());
        for id in ids {
            let mut action = self.action(id)?;
            if action.is_none() {
                // What a run without a journal asks is not waited for when it is written, and may be on its way.
                self.write(None, |_| Ok(RunWrite::default())).await?.durable().await?;
                action = self.action(id)?;
            }
            expires.push(action.as_ref().and_then(Action::expires_at));
            told.push(action.and_then(|action| match action.given() {
                Some(given) => Some(Told::Given(given)),
                None => action.resolved.map(|_| Told::Expired),
            }));
        }
        let mut waits = false;
        loop {
            mail.mark_unchanged();
            for ((id, told), expires_at) in ids.iter().zip(&mut told).zip(&expires) {
                while told.is_none()
                    && let Some((letter, _writing)) = self.mail.take(id)
                {
                    *told = self.take_letter(id, kind, letter).await.map(Told::Given);
                }
                if told.is_none() && expires_at.is_some_and(|at| at <= time::now()) {
                    let data = json!({ "action_id": id, "outcome": "expired" });
                    self.record_fact(ResultKind::ActionResolved, &data).await?;
                    *told = Some(Told::Expired);
                }
                if told.is_some() {
                    self.mail.refuse(id);
                }
            }
            let open = || ids.iter().zip(&expires).zip(&told).filter(|(_, told)| told.is_none()).map(|(asked, _)| asked);
            if open().next().is_none() {
                if waits {
                    self.waits_no_more().await?;
                }
                return Ok(told.into_iter().flatten().collect());
            }
            let until = open().filter_map(|(_, expires_at)| *expires_at).min();
            if wait == Wait::Parks && self.journal.can_resume() {
                let keys = open().map(|(id, _)| key(id)).collect();
                self.stop(Stop::Park { until, reason: kind.reason(), keys }).await
            }
            if !waits && wait != Wait::InPassing {
                self.waits(kind.reason(), until).await?;
                waits = true;
            }
            let left = until.map_or(Duration::MAX, |at| Duration::from_millis(at.saturating_sub(time::now())));
            tokio::select! {
                _ = mail.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// What the record says of something that the run has asked.
    pub(crate) fn action(&self, action_id: &str) -> Result<Option<Action>, ApiError> {
        let record = self.ledger.run_by_no(self.run_no).map_err(ledger_failed)?;
        let Some(record) = record else { return Ok(None) };
        let actions = actions_of(&self.ledger, &record).map_err(ledger_failed)?;
        Ok(actions.into_iter().find(|action| action.action_id == action_id))
    }

    /// Writes an answer that was handed over; nothing where it could not be written, which its giver is told.
    async fn take_letter(&self, action_id: &str, kind: AskKind, letter: Letter) -> Option<Given> {
        let Letter { given, taken, .. } = letter;
        let at = time::now();
        let facts = given.facts(action_id);
        let refers_to = given.artifacts(kind);
        let make = |first: u64| {
            let events = (first..).zip(&facts).map(|(sequence, (kind, data))| fact(*kind, sequence, at, data)).collect();
            Ok(RunWrite { events, refers_to, ..RunWrite::default() })
        };
        let written = match self.write(None, make).await {
            Ok(written) => written.durable().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                let _ = taken.send(Ok(()));
                Some(given)
            }
            Err(error) => {
                let _ = taken.send(Err(HostError::Unavailable(error.message)));
                None
            }
        }
    }

    /// Says that the run waits, in memory.
    async fn waits(&self, reason: &str, until: Option<Timestamp>) -> Result<(), ApiError> {
        let data = waiting_data(reason, until);
        let change = |at| RunChange::Wait { at, reason: reason.to_owned() };
        self.says(change, &data).await
    }

    /// Says that it goes on.
    async fn waits_no_more(&self) -> Result<(), ApiError> {
        self.says(|at| RunChange::Resume { at }, &json!({ "status": "running", "reason": "answered" })).await
    }

    async fn says(&self, change: impl FnOnce(Timestamp) -> RunChange, data: &Value) -> Result<(), ApiError> {
        let at = time::now();
        let make = |sequence| {
            let events = vec![status_event(sequence, at, data)];
            Ok(RunWrite { changes: vec![change(at)], events, ..RunWrite::default() })
        };
        self.write(None, make).await.map(drop)
    }
}

/// The data of `run.status` of a run that waits.
pub(crate) fn waiting_data(reason: &str, until: Option<Timestamp>) -> Value {
    match until {
        Some(until) => json!({ "status": "waiting", "reason": reason, "until": until }),
        None => json!({ "status": "waiting", "reason": reason }),
    }
}

/// How long an answer waits for a run that is on its way into memory or out of it.
const ON_ITS_WAY: Duration = Duration::from_secs(10);
/// Between two looks at such a run.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How a run stays parked when it is told this; nothing where it goes on. Calls to several tools of the client are asked for
/// together, and it goes on when all are answered: their client answers one after the other, and sees one run that waits until
/// the last one is there.
fn rest_of(park: &Park, reason: &str, action_id: &str) -> Option<Park> {
    let answered = key(action_id);
    let keys: Vec<String> = park.keys.iter().filter(|key| **key != answered).cloned().collect();
    let waits = reason == AskKind::ClientTool.reason() && keys.iter().any(|key| key.starts_with(KEYS));
    waits.then_some(Park { wake_at: park.wake_at, keys })
}

/// Where an answer can go now.
enum Delivered {
    Yes,
    /// The run was between memory and disk.
    NotYet,
    /// The run left memory while it wrote this: the record will tell.
    Perhaps(Given),
}

impl Host {
    /// The approver whose token this is.
    pub(crate) fn approver_principal(&self, token: &str) -> Option<Principal> {
        let setup = self.inner().setup();
        let id = setup.approvers.who(token)?.to_owned();
        let scopes = [Scope::ActionsRespond].into();
        Some(Principal { kind: PrincipalKind::Approver(id.clone()), name: id, scopes, workspace: None })
    }

    /// Whose answer the record says it is: an approver's by its id, a key's as `key:NAME`. Ids of approvers have no colon, so
    /// a key is none of those that a rule names, whatever it is called. Where no approvers are configured, nobody on this
    /// machine is asked who they are.
    ///
    /// # Errors
    /// When approvers are configured, and who answers is none of them and has no key.
    pub fn answers_as(&self, principal: &Principal) -> Result<Option<String>, HostError> {
        match &principal.kind {
            PrincipalKind::Approver(id) => Ok(Some(id.clone())),
            PrincipalKind::Key(_) => Ok(Some(format!("key:{}", principal.name))),
            PrincipalKind::Loopback if self.inner().setup().approvers.is_empty() => Ok(None),
            PrincipalKind::Loopback => Err(HostError::Unauthenticated(
                "who answers says who it is: send `Authorization: Bearer TOKEN` with the token of an `[[approvers]]` entry, or a \
                 key with the scope `actions:respond`"
                    .to_owned(),
            )),
            PrincipalKind::Executor(_) | PrincipalKind::Lease => {
                Err(HostError::Forbidden("what a run asks, people answer, and no executor".to_owned()))
            }
        }
    }

    /// Whether an action takes this response now, from `by`. What it says can change until the answer is given.
    ///
    /// # Errors
    /// As [`Host::respond`].
    pub fn may_respond(&self, action_id: &str, response: &Response, by: Option<&str>) -> Result<Action, HostError> {
        let (record, action) = self.find_action(action_id)?;
        self.admits(&record, &action, response, by)?;
        Ok(action)
    }

    fn admits(&self, record: &RunRecord, action: &Action, response: &Response, by: Option<&str>) -> Result<(), HostError> {
        if let Some(why) = action.closed() {
            return Err(why);
        }
        if record.run.status.is_terminal() {
            return Err(HostError::Conflict(format!(
                "run {} does not wait for an answer any more: it is {}",
                record.run.run_id, record.run.status
            )));
        }
        if action.expires_at().is_some_and(|at| at <= time::now()) {
            let id = &action.action_id;
            return Err(HostError::Expired(format!("action {id} has expired: nobody answered it in time")));
        }
        action.admit(response, by, &self.inner().setup().limits)
    }

    /// Answers what a run has asked. When it returns, the answer is durable, and the run goes on by it.
    ///
    /// # Errors
    /// When there is no such action, or it takes no such answer: it was answered before ([`HostError::Answered`], with the
    /// first answer), has expired, its run has ended, `by` may not answer it, or the answer does not fit it.
    pub async fn respond(&self, action_id: &str, response: Response, by: Option<String>) -> Result<Action, HostError> {
        let until = tokio::time::Instant::now() + ON_ITS_WAY;
        let mut perhaps: Option<Given> = None;
        loop {
            let (record, action) = self.find_action(action_id)?;
            if perhaps.is_some() && action.given() == perhaps {
                // The run has written it in the very moment in which it left memory.
                return Ok(action);
            }
            self.admits(&record, &action, &response, by.as_deref())?;
            let given = Given {
                decision: response.decision,
                by: by.clone(),
                reason: response.reason.clone().filter(|reason| !reason.is_empty()),
                answer: self.answer_to(&record, &action, &response)?,
                at: time::now(),
            };
            match self.deliver(&record, &action, given).await? {
                Delivered::Yes => return Ok(self.find_action(action_id)?.1),
                Delivered::Perhaps(given) => perhaps = Some(given),
                Delivered::NotYet if tokio::time::Instant::now() >= until => {
                    return Err(HostError::Unavailable(format!(
                        "run {} does not take the answer: send it again",
                        record.run.run_id
                    )));
                }
                Delivered::NotYet => tokio::time::sleep(LOOK_AGAIN).await,
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
        let Some(mut said) = client_answer(answer.clone()) else { return Ok(Some(answer)) };
        let run = &record.run;
        let workspace = run.workspace_id.clone().unwrap_or_default();
        let conversation = run.conversation_id.clone().map(|conversation| ConversationKey {
            workspace: workspace.clone(),
            conversation,
            thread: run.thread_id.clone().unwrap_or_default(),
        });
        for part in &mut said.content {
            if let ContentPart::Artifact(artifact) = part {
                *artifact = self.known_artifact(artifact, &workspace, conversation.as_ref())?;
            }
        }
        serde_json::to_value(&said).map(Some).map_err(|error| HostError::Internal(error.to_string()))
    }

    async fn deliver(&self, record: &RunRecord, action: &Action, given: Given) -> Result<Delivered, HostError> {
        let (inner, action_id) = (self.inner(), &action.action_id);
        let live = inner.live.lock().get(&record.run.run_id).map(|handle| Arc::clone(&handle.mail));
        if let Some(mail) = live {
            let (taken, told) = oneshot::channel();
            let begun = Arc::new(AtomicBool::new(false));
            let letter = Letter { action_id: action_id.clone(), given: given.clone(), begun: Arc::clone(&begun), taken };
            if mail.post(letter).is_err() {
                return Ok(Delivered::NotYet);
            }
            return match tokio::time::timeout(ON_ITS_WAY, told).await {
                Ok(Ok(Ok(()))) => Ok(Delivered::Yes),
                Ok(Ok(Err(error))) => Err(error),
                Ok(Err(_)) | Err(_) if begun.load(Ordering::Acquire) => Ok(Delivered::Perhaps(given)),
                Ok(Err(_)) | Err(_) => Ok(Delivered::NotYet),
            };
        }
        let park = inner.ledger.parked(record.run_no)?.filter(|park| park.keys.contains(&key(action_id)));
        let Some(park) = park else { return Ok(Delivered::NotYet) };
        let at = time::now();
        let facts = given.facts(action_id);
        let events: Vec<NewEvent> = (record.run.last_sequence + 1..)
            .zip(&facts)
            .map(|(sequence, (kind, data))| fact(*kind, sequence, at, data))
            .collect();
        let reason = record.run.status_reason.clone().unwrap_or_default();
        let rest = rest_of(&park, &reason, action_id);
        let goes_on = rest.is_none();
        // Where it goes on, its time has come from now on: a host that dies before it wakes the run does so at its next start.
        let park = Some(rest.unwrap_or(Park { wake_at: at, ..park }));
        let changes = vec![RunChange::Resume { at }, RunChange::Wait { at, reason }];
        let refers_to = given.artifacts(action.kind());
        let write = RunWrite { run_no: record.run_no, changes, events, park, refers_to, ..RunWrite::default() };
        match inner.ledger.submit(write).await?.await {
            Ok(_) if !goes_on => Ok(Delivered::Yes),
            Ok(_) => self.wake(record.run_no).await.map(|()| Delivered::Yes),
            // Somebody else has written to the run meanwhile: it is looked at again.
            Err(LedgerError::Sequence { .. } | LedgerError::Terminal { .. } | LedgerError::Transition(_)) => {
                Ok(Delivered::NotYet)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn find_action(&self, action_id: &str) -> Result<(RunRecord, Action), HostError> {
        let missing = || HostError::NotFound(format!("there is no action {}", action_id.escape_debug()));
        let run_id: RunId = action_id.split_once('.').and_then(|(run_id, _)| run_id.parse().ok()).ok_or_else(missing)?;
        let ledger = &self.inner().ledger;
        let record = ledger.run(run_id)?.ok_or_else(missing)?;
        let action = actions_of(ledger, &record)?.into_iter().find(|action| action.action_id == action_id);
        Ok((record, action.ok_or_else(missing)?))
    }

    /// Something that a run has asked people for.
    ///
    /// # Errors
    /// When there is no such action.
    pub fn action(&self, action_id: &str) -> Result<Action, HostError> {
        self.find_action(action_id).map(|(_, action)| action)
    }

    /// All that a run has asked people for, in order.
    ///
    /// # Errors
    /// When there is no such run.
    pub fn actions(&self, run_id: RunId) -> Result<Vec<Action>, HostError> {
        Ok(actions_of(&self.inner().ledger, &self.record(run_id)?)?)
    }

    /// What waits for an answer now and `by` may see, by its id: at most `limit`, after `after`. Ids of later runs are larger.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn open_actions(&self, by: &Principal, after: Option<&str>, limit: usize) -> Result<Vec<Action>, HostError> {
        let mut open = Vec::new();
        let mut after = after.map(str::to_owned);
        loop {
            // What others have asked takes no place on a page.
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
        let inner = self.inner();
        let begin = after.map(|after| (key(after), u64::MAX));
        let parked = inner.ledger.parked_keys(KEYS, begin.as_ref(), limit)?;
        let is_whole = parked.len() < limit;
        let mut ids: Vec<String> = parked.into_iter().filter_map(|(key, _)| key.strip_prefix(KEYS).map(str::to_owned)).collect();
        // Those in memory behind the last of a piece come with the next one, in their order.
        let last = ids.last().filter(|_| !is_whole).cloned();
        let is_next = |id: &&String| {
            after.is_none_or(|after| id.as_str() > after) && last.as_ref().is_none_or(|last| id.as_str() <= last.as_str())
        };
        ids.extend(inner.asked.lock().iter().filter(is_next).cloned());
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

//! Actions, the requests of a run to people: platform actions that need approval, questions, effects in doubt, and calls of
//! client tools.
//!
//! A request is a fact in the record of the run (`action.requested`), its answer another (`action.answered`, once), and its
//! outcome a third (`action.resolved`, once, the last).

use std::collections::HashSet;

use agent_host_config::ApprovalPolicy;
use agent_host_facts::record::{ActionAnswer, ActionEnd, Decision};
use agent_host_ledger::{Ledger, LedgerError, RunRecord};
use agent_host_protocol::{ResultKind, RunEvent, RunId, Timestamp, ask::QuestionKind, encoded::JsonText, tool::ClientToolAnswer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::facts::Fact;

/// Kinds of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskKind {
    /// May it do this?
    PlatformAction,
    /// A question to people.
    Question,
    /// Is this to be done again?
    EffectInDoubt,
    /// A call of a tool of the client, to be answered by that client.
    ClientTool,
}

/// The outcome that a decision makes final; `None` where the action has to be carried out first.
const fn outcome(decision: Decision) -> Option<&'static str> {
    match decision {
        Decision::Approve => None,
        Decision::Deny => Some("denied"),
        Decision::Submit => Some("submitted"),
        Decision::Decline => Some("declined"),
        Decision::Repeat => Some("repeat"),
        Decision::Skip => Some("skip"),
    }
}

impl AskKind {
    /// The decisions that it takes.
    #[must_use]
    pub const fn decisions(self) -> [Decision; 2] {
        match self {
            Self::PlatformAction => [Decision::Approve, Decision::Deny],
            Self::Question | Self::ClientTool => [Decision::Submit, Decision::Decline],
            Self::EffectInDoubt => [Decision::Repeat, Decision::Skip],
        }
    }

    /// True if `reason` is the reason of a wait for an answer, as [`AskKind::reason`] gives it.
    pub(crate) fn is_reason(reason: &str) -> bool {
        let kinds = [Self::PlatformAction, Self::Question, Self::EffectInDoubt, Self::ClientTool];
        kinds.iter().any(|kind| kind.reason() == reason)
    }

    /// Name of the wait in the status of the run.
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
    /// The decision.
    pub decision: Decision,
    /// Reason, for the runner and the record.
    #[serde(default)]
    pub reason: Option<String>,
    /// The answer to a question, or to a call to a tool of the client (there a `ClientToolAnswer`).
    #[serde(default)]
    pub answer: Option<Value>,
}

/// An answer, as the record keeps it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedAnswer {
    pub(crate) decision: Decision,
    pub(crate) by: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) answer: Option<Value>,
    pub(crate) at: Timestamp,
}

impl RecordedAnswer {
    /// The facts of the answer: that it was given, and the outcome, where nothing has to be done first.
    pub(crate) fn facts(&self, action_id: &str, kind: AskKind) -> Vec<Fact> {
        let Self { decision, by, reason, answer, at } = self.clone();
        let resolved = outcome(decision).map(|outcome| {
            let (action_id, by, reason) = (action_id.to_owned(), by.clone(), reason.clone());
            Fact::ActionResolved(ActionEnd {
                action_id,
                by,
                decision: Some(decision),
                outcome: outcome.into(),
                reason,
                ..ActionEnd::default()
            })
        });
        let answered = ActionAnswer { action_id: action_id.to_owned(), answer, at, by, decision, reason };
        let answered = if kind == AskKind::ClientTool { Fact::ClientAnswered(answered) } else { Fact::ActionAnswered(answered) };
        [answered].into_iter().chain(resolved).collect()
    }

    /// Artifacts that an answer for something of this kind names: as long as the record is there, they are.
    pub(crate) fn artifacts(&self, kind: AskKind) -> Vec<String> {
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
    /// The run that asks.
    pub run_id: RunId,
    /// `open`, `answered` (by a person or by the policy; it is being done) or `resolved`.
    pub status: ActionStatus,
    /// Time of the request.
    pub requested_at: Timestamp,
    /// The request: data of `action.requested`.
    pub request: Value,
    /// The schema in the request, with its members in the order of the runner.
    #[serde(skip)]
    pub answer_schema: Option<JsonText>,
    /// The answer: data of `action.answered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<Value>,
    /// The outcome: data of `action.resolved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Value>,
}

/// The status of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum ActionStatus {
    Open,
    Answered,
    Resolved,
}

/// A request to people, as the record keeps it.
#[derive(Debug, Clone, Serialize)]
#[serde(into = "AskData")]
pub(crate) struct Ask {
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) approvers: Vec<String>,
    pub(crate) subject: AskSubject,
}

/// The subject of a request to people.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum AskSubject {
    PlatformAction { action: String, payload: Value, policy: ApprovalPolicy, target: Value },
    Question { answer_schema: Option<JsonText>, description: Option<String>, question: QuestionKind, title: String },
    EffectInDoubt { action: &'static str, message: String, payload: Value, target: Value },
    ClientTool { parameters: Value, tool_call_id: String, tool_name: String },
}

/// The data of `action.requested`, but for the id.
#[derive(Serialize)]
struct AskData {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvers: Vec<String>,
    decisions: [Decision; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    kind: AskKind,
    #[serde(flatten)]
    subject: AskSubject,
}

impl From<Ask> for AskData {
    fn from(Ask { expires_at, approvers, subject }: Ask) -> Self {
        let kind = subject.kind();
        Self { approvers, decisions: kind.decisions(), expires_at, kind, subject }
    }
}

impl AskSubject {
    const fn kind(&self) -> AskKind {
        match self {
            Self::PlatformAction { .. } => AskKind::PlatformAction,
            Self::Question { .. } => AskKind::Question,
            Self::EffectInDoubt { .. } => AskKind::EffectInDoubt,
            Self::ClientTool { .. } => AskKind::ClientTool,
        }
    }
}

/// The id of what a run asks with its call of this number.
pub(crate) fn action_id(run_id: RunId, number: u64) -> String {
    format!("{run_id}.{number}")
}

/// The id of an action that a run asks for with a result: the number of its event, apart from the numbers of calls.
pub(crate) fn background_action_id(run_id: RunId, sequence: u64) -> String {
    format!("{run_id}.e{sequence}")
}

/// True if an action is a background action of its run.
pub(crate) fn is_background(action_id: &str) -> bool {
    action_id.split_once('.').is_some_and(|(_, name)| name.starts_with('e'))
}

/// Facts of actions in the record of a run.
pub(crate) const FACTS: [&str; 3] =
    [ResultKind::ActionRequested.as_str(), ResultKind::ActionAnswered.as_str(), ResultKind::ActionResolved.as_str()];

/// All that a run has asked people for, in order. Background actions are among it.
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
                answer_schema: answer_schema(event.data.get()),
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

/// The schema in the data of `action.requested`, as the runner wrote it.
#[must_use]
pub fn answer_schema(data: &str) -> Option<JsonText> {
    #[derive(Deserialize)]
    struct RequestData {
        answer_schema: Option<JsonText>,
    }
    serde_json::from_str::<RequestData>(data).ok()?.answer_schema
}

/// The time, in ms between `from` and `until`, in which at least one action of a run was open. Background actions are not
/// counted: the run goes on beside them.
pub(crate) fn waited_ms(events: &[RunEvent], from: Timestamp, until: Timestamp) -> u64 {
    let (mut open, mut since, mut waited) = (HashSet::new(), from, 0_u64);
    for event in events.iter().filter(|event| FACTS.contains(&event.kind.as_str())) {
        let data = event.data_value();
        let Some(id) = data.get("action_id").and_then(Value::as_str).filter(|id| !is_background(id)) else { continue };
        if event.kind == ResultKind::ActionRequested.as_str() {
            if !is_allowed(&data) && open.insert(id.to_owned()) && open.len() == 1 {
                since = event.timestamp.max(from);
            }
        } else if open.remove(id) && open.is_empty() {
            waited = waited.saturating_add(event.timestamp.saturating_sub(since));
        }
    }
    if open.is_empty() { waited } else { waited.saturating_add(until.saturating_sub(since)) }
}

/// True if the policy allowed the action without asking people.
pub(crate) fn is_allowed(request: &Value) -> bool {
    request.get("policy").and_then(Value::as_str) == Some("allow")
}

impl Action {
    /// The kind of the action.
    #[must_use]
    pub fn kind(&self) -> AskKind {
        let kind = self.request.get("kind").cloned().and_then(|kind| serde_json::from_value(kind).ok());
        // Ledgers of hosts before had no other.
        kind.unwrap_or(AskKind::EffectInDoubt)
    }

    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        self.request.get("expires_at").and_then(Value::as_u64)
    }

    /// The answer, whatever its outcome.
    pub(crate) fn recorded_answer(&self) -> Option<RecordedAnswer> {
        self.answered.as_ref().or(self.resolved.as_ref()).and_then(RecordedAnswer::of)
    }
}

/// The answer of a client in the record.
pub(crate) fn client_answer(answer: Value) -> Option<ClientToolAnswer> {
    serde_json::from_value(answer).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_time_with_an_open_action_is_counted_once() {
        let run_id = RunId::new();
        let mut sequence = 0;
        let mut event = |at: Timestamp, kind: ResultKind, data: Value| {
            sequence += 1;
            let event = json!({ "run_id": run_id, "sequence": sequence, "type": kind.as_str(), "timestamp": at, "data": data });
            serde_json::from_value::<RunEvent>(event).unwrap()
        };
        let id = |name: &str| json!({ "action_id": format!("{run_id}.{name}") });
        let allowed = json!({ "action_id": format!("{run_id}.9"), "policy": "allow" });
        let events = [
            event(100, ResultKind::ActionRequested, id("1")),
            event(200, ResultKind::ActionRequested, id("2")),
            event(250, ResultKind::ActionRequested, id("e3")),
            event(300, ResultKind::ActionAnswered, id("1")),
            event(310, ResultKind::ActionResolved, id("1")),
            event(400, ResultKind::ActionResolved, id("2")),
            event(450, ResultKind::ActionRequested, allowed),
            event(500, ResultKind::ActionRequested, id("4")),
        ];
        assert_eq!(waited_ms(&events, 0, 560), 300 + 60);
        assert_eq!(waited_ms(&events, 150, 560), 250 + 60, "an attempt before does not count");
        assert_eq!(waited_ms(&events[..6], 0, 560), 300);
        assert_eq!(waited_ms(&[], 0, 560), 0);
    }
}

//! The rules for what is derived from a log: the read model of a thread, and the snapshot of a task.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    event::{Event, text},
    finding::{Findings, Place, short},
    rule::Rule,
    turn::{Turn, TurnEnd},
};

/// Findings of a model have no line.
const NO_LINE: Place<'static> = Place { line: None, event_id: None };

const STATUSES: [&str; 8] = ["idle", "queued", "running", "waiting", "completed", "failed", "canceled", "stale"];
const TASK_STATUSES: [&str; 9] =
    ["created", "queued", "running", "waiting", "completed", "failed", "canceled", "cancelled", "timed_out"];

/// The JSON type of a field.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    TextOrNull,
    List,
    ObjectOrNull,
    Cursor,
    Present,
}

impl Form {
    fn fits(self, value: Option<&Value>) -> bool {
        let Some(value) = value else { return false };
        match self {
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::TextOrNull => value.is_null() || value.is_string(),
            Self::List => value.is_array(),
            Self::ObjectOrNull => value.is_null() || value.is_object(),
            Self::Cursor => cursor_of(value).is_some(),
            Self::Present => true,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::TextOrNull => "a text or null",
            Self::List => "a list",
            Self::ObjectOrNull => "an object or null",
            Self::Cursor => "a number of an event",
            Self::Present => "a value",
        }
    }
}

const READ_MODEL: [(&str, Form); 14] = [
    ("schemaVersion", Form::Text),
    ("runtimeId", Form::Text),
    ("sessionId", Form::Text),
    ("threadId", Form::Text),
    ("status", Form::Text),
    ("activeTurnId", Form::TextOrNull),
    ("pendingActions", Form::List),
    ("toolCalls", Form::List),
    ("queuedTurns", Form::List),
    ("incidents", Form::List),
    ("diagnostics", Form::List),
    ("lastOutcome", Form::ObjectOrNull),
    ("historyCursor", Form::Present),
    ("eventCursor", Form::Cursor),
];

const TASK: [(&str, Form); 13] = [
    ("taskId", Form::Text),
    ("parentTaskId", Form::TextOrNull),
    ("objective", Form::TextOrNull),
    ("status", Form::Text),
    ("currentRunId", Form::TextOrNull),
    ("attempts", Form::List),
    ("dependencies", Form::List),
    ("subagents", Form::List),
    ("progress", Form::Present),
    ("outputs", Form::List),
    ("artifactRefs", Form::List),
    ("evidenceRefs", Form::List),
    ("eventCursor", Form::Cursor),
];

/// A cursor: a number, or a text of digits.
fn cursor_of(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}

/// The state of a log at a cursor, as a read model shows it.
#[derive(Debug, Default)]
struct State {
    has_turn: bool,
    active: Option<String>,
    has_started: bool,
    end: Option<TurnEnd>,
    category: Option<String>,
    open_actions: BTreeSet<String>,
}

/// A read model, compared with the log at its cursor.
#[derive(Debug)]
pub(crate) struct ReadModelCheck {
    model: Map<String, Value>,
    cursor: Option<u64>,
    /// The calls that the model names, with their status in the log.
    tools: BTreeMap<String, Option<&'static str>>,
    category: Option<String>,
    state: Option<State>,
}

impl ReadModelCheck {
    pub(crate) fn new(model: Map<String, Value>) -> Self {
        let listed = model.get("toolCalls").and_then(Value::as_array).into_iter().flatten();
        let tools = listed.filter_map(|call| Some((text(call.as_object()?, "toolCallId")?.to_owned(), None))).collect();
        let cursor = model.get("eventCursor").and_then(cursor_of);
        Self { model, cursor, tools, category: None, state: None }
    }

    /// Follows an event that the rest of the checker has followed already.
    pub(crate) fn follow(&mut self, event: &Event<'_>, sequence: u64, turn: Option<&Turn>) {
        if self.cursor.is_none_or(|cursor| sequence > cursor) {
            return;
        }
        if let Some(status) = event.id("toolCallId").and_then(|id| self.tools.get_mut(id)) {
            match event.kind {
                "tool.started" => *status = Some("running"),
                "tool.result" => *status = Some("completed"),
                "tool.failed" => *status = Some("failed"),
                _ => {}
            }
        }
        if TurnEnd::of(event.kind).is_some() {
            self.category = event.payload_text("failureCategory").map(str::to_owned);
        }
        if Some(sequence) == self.cursor {
            self.state = Some(State {
                has_turn: turn.is_some(),
                active: turn.filter(|turn| turn.end.is_none()).map(|turn| turn.id.clone()),
                has_started: turn.is_some_and(|turn| turn.has_started),
                end: turn.and_then(|turn| turn.end),
                category: self.category.clone(),
                open_actions: turn.into_iter().flat_map(Turn::open_actions).map(str::to_owned).collect(),
            });
        }
    }

    /// Compares, at the end of the log.
    pub(crate) fn finish(self, ids: [&str; 3], last: u64, findings: &mut Findings) {
        fields(Rule::ReadModelField, &self.model, &READ_MODEL, findings);
        check_ids(&self.model, ids, findings);
        let status = text(&self.model, "status").unwrap_or_default();
        if !STATUSES.contains(&status) && !status.is_empty() {
            findings.add(Rule::ReadModelField, NO_LINE, format!("`status` is `{}`", short(status)));
        }
        let Some(cursor) = self.cursor else { return };
        let empty = State::default();
        let state = match (&self.state, cursor) {
            (Some(state), _) => state,
            (None, 0) => &empty,
            (None, _) => {
                let message = format!("`eventCursor` is {cursor}; the log ends at {last}, or has no such event");
                findings.add(Rule::ReadModelCursor, NO_LINE, message);
                return;
            }
        };
        if status == "stale" {
            return;
        }
        self.check_status(status, state, findings);
        self.check_actions(state, findings);
        self.check_tools(findings);
    }

    fn check_status(&self, status: &str, state: &State, findings: &mut Findings) {
        let mut add = |message: String| findings.add(Rule::ReadModelStatus, NO_LINE, message);
        let allowed: &[&str] = match (state.end, &state.active) {
            (Some(TurnEnd::Completed), _) => &["completed", "idle", "queued"],
            (Some(TurnEnd::Failed), _) => &["failed", "idle", "queued"],
            (Some(TurnEnd::Canceled), _) => &["canceled", "idle", "queued"],
            (None, Some(_)) if !state.open_actions.is_empty() => &["waiting"],
            (None, Some(_)) if state.has_started => &["running", "waiting"],
            (None, Some(_)) => &["queued", "running"],
            (None, None) => &["idle", "queued"],
        };
        if !allowed.contains(&status) {
            add(format!("`status` is `{}`; the log says `{}`", short(status), allowed.join("` or `")));
        }
        let active = text(&self.model, "activeTurnId");
        if active != state.active.as_deref() {
            let show = |id: Option<&str>| id.map_or_else(|| "null".to_owned(), |id| format!("`{}`", short(id)));
            add(format!("`activeTurnId` is {}; the log says {}", show(active), show(state.active.as_deref())));
        }
        let outcome = self.model.get("lastOutcome").and_then(Value::as_object);
        match (state.end, outcome) {
            (Some(TurnEnd::Failed), None) => add("`lastOutcome` is missing after a failed turn".to_owned()),
            (Some(TurnEnd::Failed), Some(outcome)) if text(outcome, "failureCategory") != state.category.as_deref() => {
                let category = state.category.as_deref().unwrap_or("none");
                add(format!("`lastOutcome.failureCategory` is not that of the log, `{}`", short(category)));
            }
            (None, Some(_)) if !state.has_turn => add("`lastOutcome` is there before any turn".to_owned()),
            _ => {}
        }
    }

    fn check_actions(&self, state: &State, findings: &mut Findings) {
        let listed = self.model.get("pendingActions").and_then(Value::as_array).into_iter().flatten();
        let listed: BTreeSet<String> =
            listed.filter_map(|action| Some(text(action.as_object()?, "actionId")?.to_owned())).collect();
        for id in state.open_actions.difference(&listed) {
            findings.add(Rule::ReadModelActions, NO_LINE, format!("the open action `{}` is missing", short(id)));
        }
        for id in listed.difference(&state.open_actions) {
            findings.add(Rule::ReadModelActions, NO_LINE, format!("`{}` is pending; in the log it is not open", short(id)));
        }
    }

    fn check_tools(&self, findings: &mut Findings) {
        let listed = self.model.get("toolCalls").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        for call in listed {
            let Some(id) = text(call, "toolCallId") else {
                findings.add(Rule::ReadModelTools, NO_LINE, "a tool call has no `toolCallId`");
                continue;
            };
            let Some(known) = self.tools.get(id).copied().flatten() else {
                findings.add(Rule::ReadModelTools, NO_LINE, format!("the log has no tool call `{}`", short(id)));
                continue;
            };
            let status = text(call, "status").unwrap_or_default();
            let fits = match known {
                "running" => matches!(status, "running" | "pending" | "waiting"),
                "failed" => matches!(status, "failed" | "cancelled" | "canceled"),
                _ => status == known,
            };
            if !fits {
                let message = format!("tool call `{}` is `{}`; the log says `{known}`", short(id), short(status));
                findings.add(Rule::ReadModelTools, NO_LINE, message);
            }
        }
    }
}

/// A task snapshot, compared with the log at its cursor.
#[derive(Debug)]
pub(crate) struct TaskCheck {
    task: Map<String, Value>,
    cursor: Option<u64>,
    status: Option<&'static str>,
    is_reached: bool,
}

impl TaskCheck {
    pub(crate) fn new(task: Map<String, Value>) -> Self {
        let cursor = task.get("eventCursor").and_then(cursor_of);
        Self { task, cursor, status: None, is_reached: false }
    }

    pub(crate) fn follow(&mut self, event: &Event<'_>, sequence: u64) {
        if self.cursor.is_none_or(|cursor| sequence > cursor) {
            return;
        }
        self.is_reached |= Some(sequence) == self.cursor;
        if event.family() != "task" || event.id("taskId") != text(&self.task, "taskId") {
            return;
        }
        let status = match event.kind {
            "task.created" | "task.accepted" | "task.queued" => Some("queued"),
            "task.started" | "task.attempt.started" | "task.retrying" | "task.resumed" => Some("running"),
            "task.waiting" | "task.blocked" | "task.paused" => Some("waiting"),
            "task.completed" => Some("completed"),
            "task.failed" | "task.lost" => Some("failed"),
            "task.cancelled" | "task.canceled" => Some("canceled"),
            "task.timed_out" => Some("timed_out"),
            _ => None,
        };
        self.status = status.or(self.status).or(Some("queued"));
    }

    pub(crate) fn finish(self, last: u64, findings: &mut Findings) {
        fields(Rule::TaskField, &self.task, &TASK, findings);
        let mut add = |message: String| findings.add(Rule::TaskState, NO_LINE, message);
        let status = text(&self.task, "status").unwrap_or_default();
        let Some(cursor) = self.cursor else { return };
        if !self.is_reached {
            add(format!("`eventCursor` is {cursor}; the log ends at {last}, or has no such event"));
            return;
        }
        let Some(known) = self.status else {
            add(format!("the log has no task `{}`", short(text(&self.task, "taskId").unwrap_or_default())));
            return;
        };
        let fits = match known {
            "queued" => matches!(status, "created" | "queued" | "running"),
            "running" => matches!(status, "running" | "waiting"),
            "canceled" => matches!(status, "canceled" | "cancelled"),
            "timed_out" => matches!(status, "timed_out" | "failed"),
            _ => status == known,
        };
        if !fits || !TASK_STATUSES.contains(&status) {
            add(format!("`status` is `{}`; the log says `{known}`", short(status)));
        }
    }
}

fn fields(rule: Rule, object: &Map<String, Value>, table: &[(&str, Form)], findings: &mut Findings) {
    for (name, form) in table {
        if !form.fits(object.get(*name)) {
            findings.add(rule, NO_LINE, format!("`{name}` is missing, or is not {}", form.as_str()));
        }
    }
}

fn check_ids(object: &Map<String, Value>, ids: [&str; 3], findings: &mut Findings) {
    for (name, id) in ["runtimeId", "sessionId", "threadId"].into_iter().zip(ids) {
        if let Some(own) = text(object, name).filter(|own| *own != id && !id.is_empty()) {
            findings.add(
                Rule::ReadModelIds,
                NO_LINE,
                format!("`{name}` is `{}`; that of the log is `{}`", short(own), short(id)),
            );
        }
    }
}

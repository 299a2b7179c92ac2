//! One turn: its lifecycles, and what is open in it.

use std::collections::HashMap;

use super::{
    event::Event,
    finding::{Findings, short},
    rule::Rule,
    seen::Seen,
};

/// Open and ended items of one turn that are followed. A turn with more of them is not followed further.
pub(crate) const MAX_ITEMS: usize = 10_000;

/// Families of work that does not follow the end of its turn.
const WORK: [&str; 15] = [
    "tool",
    "file",
    "patch",
    "command",
    "test",
    "action",
    "model",
    "reasoning",
    "plan",
    "permission",
    "sandbox",
    "subagent",
    "output",
    "routing",
    "run",
];

/// Answers to an action that do not allow the call.
const DENIALS: [&str; 11] =
    ["deny", "denied", "reject", "rejected", "decline", "declined", "refuse", "refused", "cancel", "canceled", "cancelled"];

/// The end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    Completed,
    Failed,
    Canceled,
}

impl TurnEnd {
    pub(crate) fn of(kind: &str) -> Option<Self> {
        match kind {
            "turn.completed" => Some(Self::Completed),
            "turn.failed" => Some(Self::Failed),
            "turn.canceled" => Some(Self::Canceled),
            _ => None,
        }
    }

    /// The status as read models and snapshots show it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

/// A tool call.
#[derive(Debug, Default)]
struct Tool {
    step: Option<String>,
    message: Option<String>,
    has_ended: bool,
    is_denied: bool,
    /// Number of open actions that it waits for.
    waits: u32,
}

/// An action.
#[derive(Debug)]
struct Action {
    tool: Option<String>,
    has_ended: bool,
}

/// A turn that has begun.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) id: String,
    run: Option<String>,
    pub(crate) has_started: bool,
    has_status: bool,
    has_model: bool,
    pub(crate) end: Option<TurnEnd>,
    pub(crate) has_snapshot: bool,
    /// A repair covered a gap in the turn: starts may lie in the gap.
    is_repaired: bool,
    tools: HashMap<String, Tool>,
    actions: HashMap<String, Action>,
    /// Messages, with true for completed ones.
    messages: HashMap<String, bool>,
    /// Subagents: the task, and true for ended ones.
    subagents: HashMap<String, (String, bool)>,
}

impl Turn {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            run: None,
            has_started: false,
            has_status: false,
            has_model: false,
            end: None,
            has_snapshot: false,
            is_repaired: false,
            tools: HashMap::new(),
            actions: HashMap::new(),
            messages: HashMap::new(),
            subagents: HashMap::new(),
        }
    }

    /// A gap in the turn was repaired.
    pub(crate) const fn repair(&mut self) {
        self.is_repaired = true;
        self.has_status = true;
        self.has_model = true;
        self.has_started = true;
    }

    /// The ids of the open actions.
    pub(crate) fn open_actions(&self) -> impl Iterator<Item = &str> {
        self.actions.iter().filter(|(_, action)| !action.has_ended).map(|(id, _)| id.as_str())
    }

    /// Follows an event of the turn. `seen` has the ids of earlier turns.
    pub(crate) fn follow(&mut self, event: &Event<'_>, seen: &mut Seen, findings: &mut Findings) {
        self.check_run(event, findings);
        let family = event.family();
        if let Some(end) = self.end {
            self.after_end(event, end, findings);
            return;
        }
        let is_work = matches!(family, "model" | "reasoning" | "plan" | "tool" | "action");
        if is_work && !self.has_started {
            self.has_started = true;
            findings.add(Rule::TurnNotStarted, event.place, format!("`{}` before `turn.started`", short(event.kind)));
        }
        let shows = matches!(event.kind, "model.delta" | "model.completed" | "tool.started" | "action.required");
        if (shows || family == "reasoning") && !self.has_status {
            self.has_status = true;
            findings.add(Rule::TurnStatusFirst, event.place, format!("`{}` before any `run.status`", short(event.kind)));
        }
        if self.tools.len() + self.actions.len() + self.messages.len() + self.subagents.len() > MAX_ITEMS {
            seen.exceed(event.place, findings);
            return;
        }
        match family {
            "turn" => self.turn(event, findings),
            "run" => self.has_status |= event.kind == "run.status",
            "model" => self.model(event, findings),
            "tool" => self.tool(event, seen, findings),
            "action" => self.action(event, seen, findings),
            "permission" | "sandbox" => self.denial(event),
            "subagent" => self.subagent(event, findings),
            _ => {}
        }
        self.check_subagent_task(event, findings);
    }

    /// Compares the run of an event with that of the turn.
    pub(crate) fn check_run(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let Some(run) = super::event::text(event.top, "runId") else { return };
        match &self.run {
            None => self.run = Some(run.to_owned()),
            Some(own) if own != run => {
                let message = format!("`runId` is `{}`; that of the turn is `{}`", short(run), short(own));
                findings.add(Rule::ScopeRun, event.place, message);
            }
            Some(_) => {}
        }
    }

    fn after_end(&mut self, event: &Event<'_>, end: TurnEnd, findings: &mut Findings) {
        if TurnEnd::of(event.kind).is_some() {
            let message = format!("`{}` after the turn has {}", event.kind, end.as_str());
            findings.add(Rule::TurnTerminalTwice, event.place, message);
        } else if WORK.contains(&event.family()) || event.family() == "turn" || event.kind == "context.resolved" {
            findings.add(Rule::TurnAfterTerminal, event.place, format!("`{}` after the end of its turn", short(event.kind)));
        }
    }

    fn turn(&mut self, event: &Event<'_>, findings: &mut Findings) {
        match event.kind {
            "turn.started" if self.has_started && !self.is_repaired => {
                findings.add(Rule::TurnTwice, event.place, "`turn.started` stands twice");
            }
            "turn.started" => self.has_started = true,
            kind => {
                let Some(end) = TurnEnd::of(kind) else { return };
                if end == TurnEnd::Completed && !self.has_started {
                    findings.add(Rule::TurnNotStarted, event.place, "`turn.completed` without `turn.started`");
                }
                self.end = Some(end);
                self.open_at_end(event, findings);
            }
        }
    }

    fn open_at_end(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let mut add = |rule: Rule, what: &str, mut ids: Vec<&str>| {
            ids.sort_unstable();
            if let Some(first) = ids.first() {
                let message = format!("{} open {what} at `{}`, such as `{}`", ids.len(), event.kind, short(first));
                findings.add(rule, event.place, message);
            }
        };
        let tools = self.tools.iter().filter(|(_, tool)| !tool.has_ended).map(|(id, _)| id.as_str()).collect();
        add(Rule::TurnOpenTool, "tool calls", tools);
        add(Rule::TurnOpenAction, "actions", self.open_actions().collect());
        let messages = self.messages.iter().filter(|(_, is_completed)| !**is_completed).map(|(id, _)| id.as_str()).collect();
        add(Rule::TurnOpenModel, "messages", messages);
        let subagents = self.subagents.iter().filter(|(_, (_, has_ended))| !has_ended).map(|(id, _)| id.as_str()).collect();
        add(Rule::TurnOpenSubagent, "subagents", subagents);
        // Readers of the open items see none of an ended turn.
        (self.tools, self.messages, self.subagents) = Default::default();
        self.actions.clear();
    }

    fn model(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let message = event.payload_text("messageId");
        match event.kind {
            "model.requested" => self.has_model = true,
            "model.delta" | "model.completed" => {
                if !self.has_model {
                    self.has_model = true;
                    findings.add(Rule::ModelNotRequested, event.place, format!("`{}` before any `model.requested`", event.kind));
                }
                let Some(message) = message else { return };
                let completes = event.kind == "model.completed";
                if self.messages.get(message) == Some(&true) {
                    let text = format!("`{}` of message `{}`, which is completed", event.kind, short(message));
                    findings.add(Rule::ModelAfterCompleted, event.place, text);
                }
                self.messages.insert(message.to_owned(), completes);
            }
            "model.failed" => {
                if let Some(is_completed) = message.and_then(|message| self.messages.get_mut(message)) {
                    *is_completed = true;
                }
            }
            _ => {}
        }
    }

    fn tool(&mut self, event: &Event<'_>, seen: &mut Seen, findings: &mut Findings) {
        let Some(id) = event.id("toolCallId") else { return };
        let (step, message) = (event.id("stepId"), event.payload_text("messageId"));
        if event.kind == "tool.started" {
            if self.tools.contains_key(id) {
                findings.add(Rule::ToolTwice, event.place, format!("`tool.started` of `{}` stands twice", short(id)));
                return;
            }
            if !seen.add_id("tool", id, event.place, findings) {
                let text = format!("the tool call `{}` is of an earlier turn", short(id));
                findings.add(Rule::IdReuse, event.place, text);
            }
            let tool = Tool { step: step.map(str::to_owned), message: message.map(str::to_owned), ..Tool::default() };
            self.tools.insert(id.to_owned(), tool);
            return;
        }
        let Some(tool) = self.tools.get_mut(id) else {
            if !self.is_repaired {
                let text = format!("`{}` of `{}`, which has not started", short(event.kind), short(id));
                findings.add(Rule::ToolNotStarted, event.place, text);
            }
            return;
        };
        let differs = |own: &Option<String>, now: Option<&str>| matches!((own, now), (Some(own), Some(now)) if own != now);
        if differs(&tool.step, step) || differs(&tool.message, message) {
            let text = format!("`{}` of `{}` has another `stepId` or `messageId` than its start", short(event.kind), short(id));
            findings.add(Rule::ToolStep, event.place, text);
        }
        if tool.has_ended {
            let text = format!("`{}` of `{}`, which has ended", short(event.kind), short(id));
            findings.add(Rule::ToolTwice, event.place, text);
            return;
        }
        let (is_result, is_output) = (event.kind == "tool.result", event.kind == "tool.output.delta");
        if tool.is_denied && is_result {
            findings.add(Rule::ToolAfterDenial, event.place, format!("`tool.result` of `{}`, which was denied", short(id)));
        } else if tool.waits > 0 && (is_result || is_output) {
            let text = format!("`{}` of `{}`, which waits for an answer", event.kind, short(id));
            findings.add(Rule::ToolBeforeAnswer, event.place, text);
        }
        tool.has_ended = matches!(event.kind, "tool.result" | "tool.failed");
    }

    fn action(&mut self, event: &Event<'_>, seen: &mut Seen, findings: &mut Findings) {
        let Some(id) = event.id("actionId") else { return };
        if event.kind == "action.required" {
            if self.actions.contains_key(id) {
                findings.add(Rule::ActionTwice, event.place, format!("`action.required` of `{}` stands twice", short(id)));
                return;
            }
            if !seen.add_id("action", id, event.place, findings) {
                findings.add(Rule::IdReuse, event.place, format!("the action `{}` is of an earlier turn", short(id)));
            }
            let tool = event.id("toolCallId").map(str::to_owned);
            if let Some(tool) = tool.as_ref().and_then(|tool| self.tools.get_mut(tool)) {
                tool.waits += 1;
            }
            self.actions.insert(id.to_owned(), Action { tool, has_ended: false });
            return;
        }
        let is_end = matches!(event.kind, "action.resolved" | "action.canceled" | "action.expired");
        let Some(action) = self.actions.get_mut(id) else {
            if is_end && !self.is_repaired {
                let text = format!("`{}` of `{}`, which was not required", event.kind, short(id));
                findings.add(Rule::ActionNotRequired, event.place, text);
            }
            return;
        };
        if !is_end {
            return;
        }
        if action.has_ended {
            findings.add(Rule::ActionTwice, event.place, format!("`{}` of `{}`, which has ended", event.kind, short(id)));
            return;
        }
        action.has_ended = true;
        // A canceled action denies nothing: its call may have come to its result without the answer.
        let decision = event.payload_text("decision").filter(|_| event.kind == "action.resolved");
        let denies = event.kind == "action.expired"
            || decision.is_some_and(|decision| DENIALS.contains(&decision.to_ascii_lowercase().as_str()));
        if let Some(tool) = action.tool.as_ref().and_then(|tool| self.tools.get_mut(tool)) {
            tool.waits = tool.waits.saturating_sub(1);
            tool.is_denied |= denies;
        }
    }

    fn denial(&mut self, event: &Event<'_>) {
        if matches!(event.kind, "permission.denied" | "sandbox.blocked")
            && let Some(tool) = event.id("toolCallId").and_then(|id| self.tools.get_mut(id))
        {
            tool.is_denied = true;
        }
    }

    fn subagent(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let Some(id) = event.id("subagentId") else { return };
        if matches!(event.kind, "subagent.started" | "subagent.spawned") {
            let task = event.id("taskId").unwrap_or_default().to_owned();
            if self.subagents.insert(id.to_owned(), (task, false)).is_some() && event.kind == "subagent.started" {
                findings.add(Rule::SubagentTwice, event.place, format!("`subagent.started` of `{}` stands twice", short(id)));
            }
            return;
        }
        let Some((_, has_ended)) = self.subagents.get_mut(id) else {
            if !self.is_repaired {
                let text = format!("`{}` of `{}`, which has not started", short(event.kind), short(id));
                findings.add(Rule::SubagentNotStarted, event.place, text);
            }
            return;
        };
        if *has_ended {
            findings.add(
                Rule::SubagentTwice,
                event.place,
                format!("`{}` of `{}`, which has ended", short(event.kind), short(id)),
            );
        }
        *has_ended |= matches!(event.kind, "subagent.completed" | "subagent.failed" | "subagent.closed");
    }

    /// Artifacts, evidence and all else of a subagent keep its task.
    fn check_subagent_task(&self, event: &Event<'_>, findings: &mut Findings) {
        let Some((task, _)) = event.id("subagentId").and_then(|id| self.subagents.get(id)) else { return };
        match event.id("taskId") {
            Some(own) if own == task => {}
            // A missing one is a finding of `scope.missing` there.
            None if event.family() == "subagent" => {}
            own => {
                let text =
                    format!("`taskId` is {}; that of the subagent is `{}`", own.map_or("missing".into(), short), short(task));
                findings.add(Rule::SubagentTask, event.place, text);
            }
        }
    }
}

//! The table of rules: code, meaning, remedy.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! rules {
    ($($variant:ident = $code:literal, $rule:literal, $fix:literal;)*) => {
        /// A rule for logs of runtime events. Its code is stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the table has a sentence for each")]
        pub enum Rule { $($variant),* }

        impl Rule {
            /// Every one, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code, such as `order.gap`.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// The rule itself, as a sentence.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$variant => $rule),* }
            }

            /// The remedy for a log that breaks it.
            #[must_use]
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$variant => $fix),* }
            }
        }
    };
}

rules! {
    LineEncoding = "line.encoding", "A line is UTF-8.",
        "Write the log as UTF-8.";
    LineJson = "line.json", "A line is one JSON object.",
        "Write one event a line, as one JSON object and nothing else.";
    LineTorn = "line.torn", "The last line is whole.",
        "Cut the torn line off, and write the event again from its source.";
    LineSize = "line.size", "A line has at most 1 MiB.",
        "Pass large content by reference: `output.spilled`, or an artifact.";
    LineDepth = "line.depth", "A line nests at most 64 levels.",
        "Pass the deep value by reference.";
    LineDoubledKey = "line.doubled_key", "No object has a key twice.",
        "Write each key once: readers differ in which of the two they take.";
    EnvelopeSchema = "envelope.schema_version", "`schemaVersion` is `lime-runtime-event/v0.1`.",
        "Write the version of the envelope into every event.";
    EnvelopeField = "envelope.field", "`runtimeId`, `sessionId`, `threadId`, `eventId`, `type` and `payload` are there, with the right JSON type.",
        "Write the field into every event: texts are not empty, `payload` is an object.";
    EnvelopeSequence = "envelope.sequence", "`sequence` is a whole number from 1 on.",
        "Number the events of a thread from 1.";
    EnvelopeTimestamp = "envelope.timestamp", "`timestamp` is a time of RFC 3339 with a zone.",
        "Write times as `2026-11-22T10:00:00Z`.";
    EnvelopeType = "envelope.type", "`type` is lower-case words with dots between them, and no retired name.",
        "Write the present name: `turn.canceled`, `turn.completed`, `action.canceled`.";
    EnvelopeRefs = "envelope.refs", "`refs` is an object of lists: `output`, `artifact`, `evidence`, `diagnostic`, `trace`, `raw`.",
        "Write `refs` as `{\"artifact\": [\"…\"]}`, with texts that are not empty.";
    PayloadSource = "payload.source", "`payload.source` is `host`, `runner` or `import`.",
        "Say who states the fact.";
    SourceHostOnly = "payload.host_only", "A runner states no fact that only a host can know.",
        "Write turns, permissions, the sandbox, limits, actions, evidence and snapshots as the host, from its own record.";
    ScopeMissing = "scope.missing", "An event has the scope ids of its family.",
        "Write the missing id at the top and in `payload`.";
    ScopeMirror = "scope.mirror", "A scope id stands at the top and, equal, in `payload`.",
        "Repeat each scope id in `payload`: some readers look only there.";
    ScopeThread = "scope.thread", "All events of a log have one `runtimeId`, `sessionId` and `threadId`.",
        "Write a log for each thread.";
    ScopeTurn = "scope.turn", "An event belongs to the open turn, and events of the thread to none.",
        "Write the `turnId` of the open turn; `session.*` and `thread.started` have none.";
    ScopeRun = "scope.run", "All events of a turn have one `runId`.",
        "Write the run of the turn; a child run has a thread of its own.";
    IdDuplicate = "id.duplicate", "No event stands twice in a log.",
        "Drop the repeated event: a reader that resumes begins after the last `sequence` that it has.";
    IdConflict = "id.conflict", "One `eventId` names one event.",
        "Give each event an id of its own.";
    IdReuse = "id.reuse", "An id of a tool call, an action or a turn is used once in a thread.",
        "Put the run into the id: runners use `call_1` in every turn.";
    OrderStart = "order.start", "A log begins with `sequence` 1.",
        "Check the whole log of the thread, from its first event on.";
    OrderGap = "order.gap", "`sequence` has no gap, unless a repair says so.",
        "Write the missing events, or a `snapshot.updated` with `repairReason` right after the gap.";
    OrderBackwards = "order.backwards", "`sequence` grows from event to event.",
        "Write the events in the order of their numbers.";
    ThreadTwice = "thread.twice", "`session.created` and `thread.started` stand once, before the first turn.",
        "Write them once, when the thread begins.";
    TurnNotSubmitted = "turn.not_submitted", "A turn begins with `turn.submitted`.",
        "Write `turn.submitted` before any other event of the turn.";
    TurnTwice = "turn.twice", "`turn.submitted` and `turn.started` stand once in a turn.",
        "A retry is a new attempt in the same turn (`task.attempt.started`), or a turn with a new id.";
    TurnNotStarted = "turn.not_started", "Work and completion come after `turn.started`.",
        "Write `turn.started` before models, tools and actions.";
    TurnOverlap = "turn.overlap", "A thread has one open turn.",
        "Queue the next turn until the open one has ended, or refuse it.";
    TurnStatusFirst = "turn.status_first", "A `run.status` comes before the first text, tool or question.",
        "Write `run.status` when the turn starts.";
    TurnOpen = "turn.open", "Every turn ends: `turn.completed`, `turn.failed` or `turn.canceled`.",
        "Write the end of the turn, or check a log of a thread that goes on with `--open`.";
    TurnTerminalTwice = "turn.terminal_twice", "A turn has one end.",
        "Write one of `turn.completed`, `turn.failed` and `turn.canceled`, once.";
    TurnAfterTerminal = "turn.after_terminal", "No work follows the end of its turn.",
        "Write late events before the end, or drop them with a `runtime.warning`.";
    TurnOpenTool = "turn.open_tool", "No tool call is open at the end of its turn.",
        "Write `tool.failed` for calls that the end cut off.";
    TurnOpenAction = "turn.open_action", "No action is open at the end of its turn.",
        "Write `action.canceled` or `action.expired` before the end.";
    TurnOpenModel = "turn.open_model", "No message is open at the end of its turn.",
        "Write `model.completed` or `model.failed` for the message before the end.";
    TurnOpenSubagent = "turn.open_subagent", "No subagent is open at the end of its turn.",
        "Write `subagent.completed` or `subagent.failed` before the end of the parent.";
    TurnSnapshot = "turn.snapshot", "A `snapshot.updated` with the status of the turn follows its end.",
        "Write `snapshot.updated` right after the end: `completed`, `failed` or `canceled`.";
    ModelNotRequested = "model.not_requested", "Text follows a `model.requested` of its turn.",
        "Write `model.requested` first; where a runner wrote the text itself, with `model: null`.";
    ModelFields = "model.fields", "`model.delta` has `messageId` and `delta`; `model.completed` has `messageId` and the whole `text`, or a reference to it.",
        "Write the id of the message, and the whole text at its completion.";
    ModelAfterCompleted = "model.after_completed", "A completed message does not change.",
        "Give the next message an id of its own.";
    ToolFields = "tool.fields", "`tool.started` names its tool.",
        "Write `toolName`.";
    ToolNotStarted = "tool.not_started", "Arguments, progress and the end of a tool call follow its `tool.started`.",
        "Write `tool.started` first.";
    ToolTwice = "tool.twice", "A tool call starts once and ends once.",
        "Write one `tool.started` and one `tool.result` or `tool.failed` for each call.";
    ToolStep = "tool.step", "All events of a tool call have its `stepId` and its `messageId`.",
        "Repeat the ids of `tool.started`.";
    ToolSuccess = "tool.success", "A failed call is no `tool.result`.",
        "Write `tool.failed` with `failureCategory` and `error`.";
    ToolBeforeAnswer = "tool.before_answer", "A tool call that waits for an answer has no output before it.",
        "Write `action.resolved` before the output.";
    ToolAfterDenial = "tool.after_denial", "A denied or blocked call has no result.",
        "Write `tool.failed` with `permission_denied` or `sandbox_blocked`.";
    ActionFields = "action.fields", "`action.required` has `actionType` and `title`; `action.resolved` has `decision`.",
        "Write the field, so that a front end can show the question and the answer.";
    ActionNotRequired = "action.not_required", "The end of an action follows its `action.required`.",
        "Write `action.required` first.";
    ActionTwice = "action.twice", "An action is required once and ends once.",
        "Answer the second response with the first event, and write nothing.";
    FailureCategory = "failure.category", "A failure has a `failureCategory` of the list.",
        "Write one of the categories of docs/CONFORMANCE.md.";
    FailureText = "failure.text", "`tool.failed` has `error`; `turn.failed` has `message` or `error`; `turn.canceled` has `reason`.",
        "Say what happened, in words for a person.";
    FailureHint = "failure.hint", "`turn.failed` and `tool.failed` have a `recoveryHint`.",
        "Say what a person can do about it.";
    FailureReason = "failure.reason", "`permission.denied`, `sandbox.blocked` and `quota.blocked` have a `reasonCode`.",
        "Write the code of the rule that refused.";
    FactUnknown = "fact.unknown", "An unknown value is said to be unknown, with a `reason`.",
        "Write `status: \"unknown\"` and `reason`; never 0 for what was not measured.";
    SubagentNotStarted = "subagent.not_started", "Progress and end of a subagent follow its `subagent.started`.",
        "Write `subagent.started` first.";
    SubagentTwice = "subagent.twice", "A subagent starts once and ends once.",
        "Give each delegation a `subagentId` of its own.";
    SubagentTask = "subagent.task", "Facts of a subagent keep its `taskId`.",
        "Repeat `taskId` in every fact with the `subagentId`.";
    SizePayload = "size.payload", "A payload has at most 32,000 characters.",
        "Write `output.spilled`, and a reference in place of the content.";
    SizeText = "size.text", "A text has at most 8,000 characters.",
        "Keep a preview, write `output.spilled`, and refer to the rest.";
    SecretKey = "secret.key", "No key of a payload contains token, secret, password, authorization or api-key.",
        "Rename or drop the member; usage is `{input, output, total, cached, reasoning}`.";
    SecretValue = "secret.value", "No value of a payload is a credential, apart from what a runner says to people.",
        "Replace the value, and revoke the credential.";
    RefMissing = "ref.missing", "`output.spilled` and cut output name the whole.",
        "Write `outputRef`, or say with `reason` that the rest is gone.";
    RefPath = "ref.path", "A path is relative.",
        "Write the path below the workspace, without `file:`.";
    RefInline = "ref.inline", "An artifact is a reference, not its bytes.",
        "Keep the bytes with their owner, and refer to them.";
    ReadModelField = "readmodel.field", "A read model has all of its fields, with the right JSON type.",
        "Write the field; an empty list is `[]`, an absent value `null`.";
    ReadModelIds = "readmodel.ids", "A read model has the ids of the log.",
        "Check the log and the read model of one thread.";
    ReadModelCursor = "readmodel.cursor", "`eventCursor` names an event of the log.",
        "Read the model and the log again, the log last.";
    ReadModelStatus = "readmodel.status", "`status`, `activeTurnId` and `lastOutcome` are those of the log at `eventCursor`.",
        "Derive the read model from the log, not beside it.";
    ReadModelActions = "readmodel.actions", "`pendingActions` are the open actions of the log at `eventCursor`.",
        "Derive the read model from the log, not beside it.";
    ReadModelTools = "readmodel.tools", "`toolCalls` are those of the log, with the status at `eventCursor`.",
        "Derive the read model from the log, not beside it.";
    TaskField = "task.field", "A task snapshot has all of its fields, with the right JSON type.",
        "Write the field; an empty list is `[]`, an absent value `null`.";
    TaskState = "task.state", "A task snapshot is the task of the log at `eventCursor`.",
        "Derive the snapshot from the log, not beside it.";
    ExpectMissing = "expect.missing", "The log has what the named scenario needs.",
        "Record a run that does what the scenario is about.";
    CheckBound = "check.bound", "The log has at most 10,000 open items at a time, and 4,000,000 events.",
        "Check the log in parts: what is beyond the bound was not checked.";
}

impl Rule {
    /// The rule with this code.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.code() == code)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_distinct_and_read_back() {
        let codes: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.code()).collect();
        assert_eq!(codes.len(), Rule::ALL.len());
        for rule in Rule::ALL {
            assert_eq!(Rule::from_code(rule.code()), Some(*rule));
            assert!(rule.sentence().ends_with('.') && rule.fix().ends_with('.'), "{rule}");
        }
    }
}

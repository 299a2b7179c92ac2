//! Good logs, one for each scenario.

use serde_json::{Value, json};

use super::super::Scenario;

/// A log, event by event.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(pub(super) Vec<Value>, String);

impl Log {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|event| format!("{event}\n")).collect::<String>().into_bytes()
    }

    /// The index of the first event of a type.
    pub(super) fn position(&self, kind: &str) -> usize {
        self.0.iter().position(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind}"))
    }

    /// The first event of a type.
    pub(super) fn event(&mut self, kind: &str) -> &mut Value {
        let at = self.position(kind);
        &mut self.0[at]
    }

    /// Puts an event of the present turn at an index, and numbers the log again.
    pub(super) fn insert(&mut self, at: usize, kind: &str, mut payload: Value) {
        payload["source"] = json!("host");
        let mut event = json!({
            "schemaVersion": "lime-runtime-event/v0.1", "runtimeId": "host", "sessionId": "c1", "threadId": "c1",
            "eventId": format!("{}:{}.new{}", self.1, at, self.0.len()), "timestamp": "2026-11-22T10:00:00.123Z", "type": kind,
        });
        if !self.1.is_empty() {
            (event["turnId"], event["runId"]) = (json!(self.1), json!(self.1.replace('t', "r")));
        }
        for name in ["toolCallId", "stepId", "actionId", "taskId", "subagentId", "channelId", "artifactId", "evidenceId"] {
            if let Some(id) = payload.get(name) {
                event[name] = id.clone();
            }
        }
        event["payload"] = payload;
        self.0.insert(at, event);
        self.number();
    }

    /// Numbers the events from 1.
    pub(super) fn number(&mut self) {
        for (event, sequence) in self.0.iter_mut().zip(1_u64..) {
            event["sequence"] = json!(sequence);
        }
    }

    fn push(&mut self, kind: &str, payload: Value) {
        self.insert(self.0.len(), kind, payload);
    }

    /// A turn with its work and its end.
    pub(super) fn turn(&mut self, id: &str, work: impl FnOnce(&mut Self), end: &str) {
        self.1 = id.to_owned();
        self.push("turn.submitted", json!({ "inputRef": "/api/v1/events/e1" }));
        self.push("turn.started", json!({}));
        self.push("run.status", json!({ "phase": "preparing" }));
        work(self);
        let (status, payload) = match end {
            "turn.failed" => (
                "failed",
                json!({ "failureCategory": "deadline_exceeded", "message": "too slow", "recoveryHint": "Do less.", "retryable": false }),
            ),
            "turn.canceled" => ("canceled", json!({ "reason": "enough" })),
            _ => ("completed", json!({ "finishReason": "stop" })),
        };
        self.push(end, payload);
        self.push("snapshot.updated", json!({ "status": status }));
    }

    pub(super) fn text(&mut self, message: &str, text: &str) {
        self.push("model.requested", json!({ "model": null, "origin": "runner" }));
        self.push("model.delta", json!({ "messageId": message, "delta": text }));
        self.push("model.completed", json!({ "messageId": message, "text": text }));
    }

    fn tool(&mut self, middle: impl FnOnce(&mut Self), end: &str) {
        let of = |more: Value| {
            let mut payload = json!({ "toolCallId": "r1:call_1", "stepId": "r1:step:1" });
            more.as_object().unwrap().iter().for_each(|(key, value)| payload[key] = value.clone());
            payload
        };
        self.push("tool.started", of(json!({ "toolName": "search" })));
        self.push("tool.args", of(json!({ "safeArgs": { "query": "x" } })));
        middle(self);
        let payload = match end {
            "tool.failed" => {
                json!({ "failureCategory": "tool_failed", "error": "no", "retryable": false, "recoveryHint": "Look." })
            }
            _ => json!({ "outputPreview": "found" }),
        };
        self.push(end, of(payload));
    }
}

/// A log that is a fixture of the scenario.
pub(super) fn good(scenario: Scenario) -> Log {
    let mut log = Log::default();
    log.push("session.created", json!({}));
    log.push("thread.started", json!({}));
    let evidence = |log: &mut Log| {
        log.push("artifact.changed", json!({ "artifactId": "art_1", "title": "report", "path": "out/report.md", "bytes": 7 }));
        log.push("evidence.changed", json!({ "evidenceId": "ev_1", "packRef": "/api/v1/runs/r1/evidence" }));
    };
    match scenario {
        Scenario::TextBasic => log.turn("t1", |log| log.text("m1", "hello"), "turn.completed"),
        Scenario::ToolSuccess => log.turn("t1", |log| log.tool(|_| {}, "tool.result"), "turn.completed"),
        Scenario::ToolFailure => log.turn("t1", |log| log.tool(|_| {}, "tool.failed"), "turn.completed"),
        Scenario::HitlAction => log.turn(
            "t1",
            |log| {
                let ask = |log: &mut Log| {
                    let payload =
                        json!({ "actionId": "r1:a1", "toolCallId": "r1:call_1", "actionType": "permission", "title": "May I?" });
                    log.push("action.required", payload);
                    log.push("run.status", json!({ "phase": "waiting" }));
                    log.push("action.resolved", json!({ "actionId": "r1:a1", "toolCallId": "r1:call_1", "decision": "approve" }));
                    log.push("run.status", json!({ "phase": "acting" }));
                };
                log.tool(ask, "tool.result");
            },
            "turn.completed",
        ),
        Scenario::ArtifactEvidence => log.turn("t1", evidence, "turn.completed"),
        Scenario::StreamRepair => {
            let repair = |log: &mut Log| {
                log.push("snapshot.updated", json!({ "status": "running", "repairReason": "host_restarted" }));
                log.text("m1", "hello");
            };
            log.turn("t1", repair, "turn.completed");
        }
        Scenario::SubagentHandoff => log.turn(
            "t1",
            |log| {
                let ids = json!({ "taskId": "r1:task_1", "subagentId": "r1:sub_1" });
                let of = |more: Value| {
                    let mut payload = ids.clone();
                    more.as_object().unwrap().iter().for_each(|(key, value)| payload[key] = value.clone());
                    payload
                };
                log.push("task.created", json!({ "taskId": "r1:task_1", "objective": "look" }));
                log.push("subagent.started", of(json!({ "role": "researcher" })));
                log.push("channel.opened", of(json!({ "channelId": "r1:ch_1", "targetThreadId": "r2" })));
                log.push("artifact.changed", of(json!({ "artifactId": "art_1" })));
                log.push("subagent.completed", of(json!({})));
                log.push("task.completed", json!({ "taskId": "r1:task_1" }));
            },
            "turn.completed",
        ),
        Scenario::TurnFailure => log.turn("t1", |log| log.text("m1", "hel"), "turn.failed"),
        Scenario::Cancel => log.turn("t1", |log| log.text("m1", "hel"), "turn.canceled"),
    }
    log
}

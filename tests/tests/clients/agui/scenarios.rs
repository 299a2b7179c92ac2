//! The behaviour of an agent in the tests: every kind of AG-UI event.

use serde_json::{Value, json};

/// A red pixel, as PNG.
pub const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// A scenario of runs that need no answer in between: its name, and the steps of the script.
pub struct Scenario {
    pub name: &'static str,
    pub script: Value,
    /// The end of the run.
    pub end: &'static str,
}

/// The message of scenario `text`.
pub const TEXT: &str = "Hello, AG-UI. How are you — 好吗? 🙂";

/// Each of them once.
pub fn all() -> Vec<Scenario> {
    let of = |name, script, end| Scenario { name, script, end };
    vec![
        of("text", json!([{ "do": "say", "text": TEXT, "pieces": 7 }]), "RUN_FINISHED"),
        of(
            "slow text",
            json!([{ "do": "say", "text": "One letter after the other.", "pieces": 27, "delay_ms": 4 }]),
            "RUN_FINISHED",
        ),
        of("parallel tools", json!([tools(0), { "do": "say", "text": "Three tools." }]), "RUN_FINISHED"),
        of(
            "reasoning",
            json!([
                { "do": "think", "text": "Let me think about this.", "id": "m1", "pieces": 4 },
                { "do": "say", "text": "Thought.", "id": "m1" },
                { "do": "think", "text": "And once more.", "id": "m2", "pieces": 2 },
                { "do": "say", "text": "Done.", "id": "m2" },
            ]),
            "RUN_FINISHED",
        ),
        of(
            "state",
            json!([
                { "do": "state", "key": "count", "value": 2 },
                { "do": "state", "key": "a/b~c", "value": { "deep": [1, null, "x"] }, "set": true },
                { "do": "state", "key": "count", "value": 3 },
            ]),
            "RUN_FINISHED",
        ),
        of(
            "activities",
            json!([
                result("ui.activity", json!({
                    "activity_id": "plan", "activity_type": "PLAN", "content": { "steps": [{ "name": "a", "done": false }] },
                })),
                result("ui.activity.delta", json!({
                    "activity_id": "plan", "activity_type": "PLAN",
                    "patch": [{ "op": "replace", "path": "/steps/0/done", "value": true }],
                })),
                { "do": "say", "text": "Planned." },
            ]),
            "RUN_FINISHED",
        ),
        of(
            "steps",
            json!([
                result("ui.step.started", json!({ "name": "search" })),
                { "do": "say", "text": "Searching." },
                result("ui.step.finished", json!({ "name": "search" })),
                result("ui.step.started", json!({ "name": "never finished" })),
            ]),
            "RUN_FINISHED",
        ),
        of(
            "subagents",
            json!([
                { "do": "child", "script": [{ "do": "say", "text": "I am the child.", "pieces": 3 }] },
                result("ui.subagent.started", json!({ "subagent_id": "s1", "name": "critic", "description": "Says no." })),
                result("ui.subagent.finished", json!({ "subagent_id": "s1", "result": { "verdict": "no" } })),
                result("ui.subagent.started", json!({ "subagent_id": "s2", "name": "poet" })),
                result("ui.subagent.failed", json!({ "subagent_id": "s2", "message": "no muse", "code": "muse" })),
            ]),
            "RUN_FINISHED",
        ),
        of("usage", json!([{ "do": "model", "prompt": "Say something." }]), "RUN_FINISHED"),
        of(
            "artifacts",
            json!([
                { "do": "artifact", "text": "a,b\n1,2\n", "media_type": "text/csv", "name": "t.csv" },
                { "do": "artifact", "text": "shown", "shown": true },
                result("x.of.nobody", json!({ "any": [null, 1] })),
            ]),
            "RUN_FINISHED",
        ),
        of(
            "schema",
            json!([
                { "do": "say", "id": "m1", "text": "A card." },
                result("ui.schema", json!({ "message_id": "m1", "schema": { "version": "2.0", "root": { "type": "stack" } } })),
            ]),
            "RUN_FINISHED",
        ),
        of(
            "final message",
            json!([{ "do": "finish", "text": "The last word.", "usage": { "input": 3, "output": 4 } }]),
            "RUN_FINISHED",
        ),
        of("nothing", json!([]), "RUN_FINISHED"),
        of(
            "error",
            json!([
                result("ui.step.started", json!({ "name": "doomed" })),
                { "do": "say", "text": "Half a sent", "pieces": 3, "open": true },
                { "do": "fail", "code": "stage.failed", "message": "as it was asked to" },
            ]),
            "RUN_ERROR",
        ),
        of("trap", json!([{ "do": "say", "text": "It is about to", "open": true }, { "do": "trap" }]), "RUN_ERROR"),
    ]
}

/// All of it in one run, with pauses of so many milliseconds.
pub fn everything(delay_ms: u64) -> Value {
    json!([
        { "do": "think", "id": "m1", "text": "First I think.", "pieces": 3, "delay_ms": delay_ms },
        { "do": "say", "id": "m1", "text": "Then I begin to speak.", "pieces": 5, "delay_ms": delay_ms },
        tools(delay_ms),
        { "do": "state", "key": "count", "value": 1 },
        result("ui.step.started", json!({ "name": "work" })),
        result("ui.activity", json!({ "activity_id": "plan", "activity_type": "PLAN", "content": { "done": false } })),
        { "do": "sleep", "ms": delay_ms },
        result("ui.activity.delta", json!({
            "activity_id": "plan", "activity_type": "PLAN", "patch": [{ "op": "replace", "path": "/done", "value": true }],
        })),
        result("ui.step.finished", json!({ "name": "work" })),
        { "do": "state", "key": "count", "value": 2 },
        { "do": "say", "id": "m2", "text": "And this is the end of it.", "pieces": 6, "delay_ms": delay_ms },
    ])
}

/// Three tools that begin one after the other and end in reverse order, one of them badly.
pub fn tools(delay_ms: u64) -> Value {
    json!({ "do": "tool", "delay_ms": delay_ms, "calls": [
        { "id": "c1", "name": "weather", "parameters": { "city": "Zürich" }, "result": "sunny" },
        { "id": "c2", "name": "clock", "parameters": {}, "result": "noon" },
        { "id": "c3", "name": "oracle", "parameters": { "about": [1, 2] }, "error": "it is silent" },
    ] })
}

/// A result of a type that the contract does not name.
pub fn result(kind: &str, data: Value) -> Value {
    json!({ "do": "result", "type": kind, "data": data })
}

/// A tool of the front end.
pub fn picker() -> Value {
    json!({
        "name": "pick_color", "description": "Lets the user pick a color.",
        "parameters": { "type": "object", "properties": { "of": { "type": "array", "items": { "type": "string" } } } },
    })
}

/// A step that asks the front end.
pub fn pick() -> Value {
    json!({ "do": "client", "calls": [{ "name": "pick_color", "parameters": { "of": ["red", "blue"] } }] })
}

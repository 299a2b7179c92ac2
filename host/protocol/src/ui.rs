//! Results for user interfaces: types beside those of the contract, which the host keeps like any, and gives no effect.
//!
//! Whoever shows a run may draw what they say. `data` of each is an object with the members that stand beside its name.

/// Part of the work begins: `name`.
pub const STEP_STARTED: &str = "ui.step.started";
/// It has ended: `name`.
pub const STEP_FINISHED: &str = "ui.step.finished";
/// Something to show, as it is now: `activity_id`, `activity_type` and `content`, an object.
pub const ACTIVITY: &str = "ui.activity";
/// How that changes: `activity_id`, `activity_type` and `patch`, a JSON Patch (RFC 6902).
pub const ACTIVITY_DELTA: &str = "ui.activity.delta";
/// Somebody else works for the run: `subagent_id`, `name`, and perhaps `description` and `parent_tool_call_id`.
pub const SUBAGENT_STARTED: &str = "ui.subagent.started";
/// They have done it: `subagent_id`, and perhaps `result`.
pub const SUBAGENT_FINISHED: &str = "ui.subagent.finished";
/// They have not: `subagent_id`, `message`, and perhaps `code`.
pub const SUBAGENT_FAILED: &str = "ui.subagent.failed";
/// What a message or a tool call looks like: `schema`, and `message_id` or `tool_call_id`.
pub const SCHEMA: &str = "ui.schema";

/// Every one.
pub const ALL: [&str; 8] =
    [STEP_STARTED, STEP_FINISHED, ACTIVITY, ACTIVITY_DELTA, SUBAGENT_STARTED, SUBAGENT_FINISHED, SUBAGENT_FAILED, SCHEMA];

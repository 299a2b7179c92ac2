//! Results for user interfaces: types beside those of the contract, which the host keeps like any, and gives no effect.
//!
//! Clients that show a run may draw these results. `data` of each is an object with the members that follow its name.

/// Part of the work begins: `name`.
pub const STEP_STARTED: &str = "ui.step.started";
/// The step has ended: `name`.
pub const STEP_FINISHED: &str = "ui.step.finished";
/// Something to show, as it is now: `activity_id`, `activity_type` and `content`, an object.
pub const ACTIVITY: &str = "ui.activity";
/// A change of the activity: `activity_id`, `activity_type` and `patch`, a JSON Patch (RFC 6902).
pub const ACTIVITY_DELTA: &str = "ui.activity.delta";
/// Another agent works for the run: `subagent_id`, `name`, and perhaps `description` and `parent_tool_call_id`.
pub const SUBAGENT_STARTED: &str = "ui.subagent.started";
/// The subagent has finished: `subagent_id`, and perhaps `result`.
pub const SUBAGENT_FINISHED: &str = "ui.subagent.finished";
/// The subagent has failed: `subagent_id`, `message`, and perhaps `code`.
pub const SUBAGENT_FAILED: &str = "ui.subagent.failed";
/// The appearance of a message or a tool call: `schema`, and `message_id` or `tool_call_id`.
pub const SCHEMA: &str = "ui.schema";
/// Hints of the appearance of a message or a tool call: `hints`, of which a schema is made, and `message_id` or `tool_call_id`.
pub const HINTS: &str = "ui.hints";
/// A value that only the provider of the model can read, of a reasoning or of a tool call: `encrypted_value`, and `message_id` or
/// `tool_call_id`.
pub const ENCRYPTED: &str = "ui.encrypted";

/// Every one.
pub const ALL: [&str; 10] = [
    STEP_STARTED,
    STEP_FINISHED,
    ACTIVITY,
    ACTIVITY_DELTA,
    SUBAGENT_STARTED,
    SUBAGENT_FINISHED,
    SUBAGENT_FAILED,
    SCHEMA,
    HINTS,
    ENCRYPTED,
];

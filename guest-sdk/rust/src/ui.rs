//! Results for user interfaces: steps, activities, subagents, and the appearance of messages and tool calls.
//!
//! The types of these results are outside the contract: the host stores them and does not act on them. An interface that
//! knows the types, such as an AG-UI front end, displays them; others ignore them. Send them with
//! [`results::emit`](crate::results::emit) or in a [`Batch`](crate::results::Batch). While a text is being written, push
//! them into its [`MessageWriter`](crate::MessageWriter), which keeps the order.
//!
//! ```
//! use agent_host_sdk::serde_json::json;
//! use agent_host_sdk::{Completion, Context, Failure, results, ui};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let plan = ui::step("Plan", || Ok::<_, Failure>(["read", "write"]))?;
//!     results::emit(&[ui::activity("plan", "PLAN", json!({"todo": plan, "done": []}))])?;
//!     results::emit(&[ui::activity_delta("plan", "PLAN", json!([{"op": "add", "path": "/done/-", "value": "read"}]))])?;
//!     ctx.reply("Half of it is done.")?;
//!     Ok(Completion::stop())
//! }
//! ```

use crate::contract::RunResult;
use crate::error::ApiError;
use crate::json::IntoJson;
use crate::results::{self, result_of, text};

/// Marks the start of a step. Each step must be finished with the same name.
pub fn step_started(name: &str) -> RunResult {
    result_of("ui.step.started", [("name", text(name))])
}

/// Marks the end of a step, successful or not.
pub fn step_finished(name: &str) -> RunResult {
    result_of("ui.step.finished", [("name", text(name))])
}

/// Runs `work` as a step. The step is finished whether `work` succeeds or fails.
///
/// # Errors
/// Fails with the error of `work`, or with the error of the host if the step cannot be emitted.
pub fn step<T, E: From<ApiError>>(name: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    results::emit(&[step_started(name)])?;
    let outcome = work();
    let result_of = results::emit(&[step_finished(name)]);
    let value = outcome?;
    result_of?;
    Ok(value)
}

/// Displays an activity. `content` is a JSON object; `activity_type` selects the display in the interface. An activity
/// with an existing id replaces the earlier one.
pub fn activity(activity_id: &str, activity_type: &str, content: impl IntoJson) -> RunResult {
    let content = ("content", Some(content.into_json()));
    result_of("ui.activity", [("activity_id", text(activity_id)), ("activity_type", text(activity_type)), content])
}

/// Changes an activity: `patch` is a JSON Patch (RFC 6902), a list of operations.
pub fn activity_delta(activity_id: &str, activity_type: &str, patch: impl IntoJson) -> RunResult {
    let patch = ("patch", Some(patch.into_json()));
    result_of("ui.activity.delta", [("activity_id", text(activity_id)), ("activity_type", text(activity_type)), patch])
}

/// Subagent of the run that is not a run of the host. Child runs of [`runs`](crate::runs) are displayed automatically.
#[derive(Clone, Debug)]
pub struct Subagent {
    subagent_id: String,
    name: String,
    description: Option<String>,
    parent_tool_call_id: Option<String>,
}

impl Subagent {
    /// Creates a subagent with an id that is unique in the run.
    pub fn new(subagent_id: impl Into<String>, name: impl Into<String>) -> Self {
        Self { subagent_id: subagent_id.into(), name: name.into(), description: None, parent_tool_call_id: None }
    }

    /// Sets the purpose of the subagent.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the tool call that started the subagent.
    #[must_use]
    pub fn parent_tool_call(mut self, call_id: impl Into<String>) -> Self {
        self.parent_tool_call_id = Some(call_id.into());
        self
    }

    /// Marks the start of the subagent.
    pub fn started(&self) -> RunResult {
        let maybe = |value: &Option<String>| value.as_deref().and_then(text);
        result_of(
            "ui.subagent.started",
            [
                self.id(),
                ("name", text(&self.name)),
                ("description", maybe(&self.description)),
                ("parent_tool_call_id", maybe(&self.parent_tool_call_id)),
            ],
        )
    }

    /// Marks the successful end of the subagent, with its result.
    pub fn finished(&self, result: impl IntoJson) -> RunResult {
        result_of("ui.subagent.finished", [self.id(), ("result", Some(result.into_json()))])
    }

    /// Marks the failure of the subagent, with a message for people and a code for programs.
    pub fn failed(&self, message: &str, code: Option<&str>) -> RunResult {
        result_of("ui.subagent.failed", [self.id(), ("message", text(message)), ("code", code.and_then(text))])
    }

    fn id(&self) -> (&'static str, Option<String>) {
        ("subagent_id", text(&self.subagent_id))
    }
}

/// Sets the appearance of a message in the language of the interface, a JSON object.
pub fn message_schema(message_id: &str, schema: impl IntoJson) -> RunResult {
    result_of("ui.schema", [("message_id", text(message_id)), ("schema", Some(schema.into_json()))])
}

/// Sets the appearance of a tool call in the language of the interface, a JSON object.
pub fn tool_call_schema(tool_call_id: &str, schema: impl IntoJson) -> RunResult {
    result_of("ui.schema", [("tool_call_id", text(tool_call_id)), ("schema", Some(schema.into_json()))])
}

/// Sets the appearance of a message by hints, a JSON object with some of `status` (`info`, `success`, `warning`, `error`,
/// `pending`), `title`, `body`, `label`, `fields`, `links`, `locale` and `theme`: the host makes a card of them.
pub fn message_hints(message_id: &str, hints: impl IntoJson) -> RunResult {
    result_of("ui.hints", [("message_id", text(message_id)), ("hints", Some(hints.into_json()))])
}

/// Sets the appearance of a tool call by hints, as [`message_hints`] does.
pub fn tool_call_hints(tool_call_id: &str, hints: impl IntoJson) -> RunResult {
    result_of("ui.hints", [("tool_call_id", text(tool_call_id)), ("hints", Some(hints.into_json()))])
}

/// Keeps a value that only the provider of the model can read, with a message: with its reasoning, or with its text where it has no
/// reasoning. Clients send it back.
pub fn encrypted_message(message_id: &str, encrypted_value: &str) -> RunResult {
    result_of("ui.encrypted", [("message_id", text(message_id)), ("encrypted_value", text(encrypted_value))])
}

/// Keeps a value that only the provider of the model can read, with a tool call. Clients send it back.
pub fn encrypted_call(tool_call_id: &str, encrypted_value: &str) -> RunResult {
    result_of("ui.encrypted", [("tool_call_id", text(tool_call_id)), ("encrypted_value", text(encrypted_value))])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::results::tests::check;
    use crate::testing::TestHost;
    use crate::{Completion, Context, Failure, Manifest, Runner};

    #[test]
    fn each_is_a_type_with_its_members() {
        check(step_started("a \"step\""), "ui.step.started", json!({"name": "a \"step\""}));
        check(step_finished("b"), "ui.step.finished", json!({"name": "b"}));
        check(
            activity("a1", "PLAN", json!({"done": []})),
            "ui.activity",
            json!({"activity_id": "a1", "activity_type": "PLAN", "content": {"done": []}}),
        );
        let patch = json!([{"op": "add", "path": "/done/-", "value": 1}]);
        check(
            activity_delta("a1", "PLAN", patch.clone()),
            "ui.activity.delta",
            json!({"activity_id": "a1", "activity_type": "PLAN", "patch": patch}),
        );
        let critic = Subagent::new("s1", "critic");
        check(critic.started(), "ui.subagent.started", json!({"subagent_id": "s1", "name": "critic"}));
        check(
            critic.clone().description("Says no.").parent_tool_call("c1").started(),
            "ui.subagent.started",
            json!({"subagent_id": "s1", "name": "critic", "description": "Says no.", "parent_tool_call_id": "c1"}),
        );
        check(critic.finished("no"), "ui.subagent.finished", json!({"subagent_id": "s1", "result": "no"}));
        check(critic.failed("asleep", None), "ui.subagent.failed", json!({"subagent_id": "s1", "message": "asleep"}));
        check(
            critic.failed("asleep", Some("idle")),
            "ui.subagent.failed",
            json!({"subagent_id": "s1", "message": "asleep", "code": "idle"}),
        );
        check(message_schema("m1", json!({"card": 1})), "ui.schema", json!({"message_id": "m1", "schema": {"card": 1}}));
        check(encrypted_message("m1", "e"), "ui.encrypted", json!({"message_id": "m1", "encrypted_value": "e"}));
        check(encrypted_call("c1", "e"), "ui.encrypted", json!({"tool_call_id": "c1", "encrypted_value": "e"}));
        check(tool_call_schema("c1", json!({})), "ui.schema", json!({"tool_call_id": "c1", "schema": {}}));
        let hints = json!({"title": "T"});
        check(message_hints("m1", hints.clone()), "ui.hints", json!({"message_id": "m1", "hints": hints}));
        check(tool_call_hints("c1", hints.clone()), "ui.hints", json!({"tool_call_id": "c1", "hints": hints}));
    }

    struct Steps;

    impl Runner for Steps {
        fn manifest() -> Manifest {
            Manifest::new("acme", "steps")
        }

        fn run(ctx: Context) -> Result<Completion, Failure> {
            step("work", || match ctx.text() {
                "bad" => Err(Failure::new("acme.bad", "as it was asked to")),
                text => Ok(ctx.reply(text)?),
            })?;
            Ok(Completion::stop())
        }
    }

    #[test]
    fn a_step_ends_however_its_work_ends() {
        for (text, results, ends_well) in [("good", 3, true), ("bad", 2, false)] {
            let run = TestHost::new().run::<Steps>(text);
            assert_eq!(run.completion.is_some(), ends_well);
            let first = run.results.first().cloned().unwrap();
            check(first, "ui.step.started", json!({"name": "work"}));
            check(run.results.last().cloned().unwrap(), "ui.step.finished", json!({"name": "work"}));
            assert_eq!(run.results.len(), results, "{:?}", run.results);
        }
    }
}

//! The parts of requests that several forms have in common.

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::{ApiError, model::ModelRequest};
use serde_json::{Map, Value, json};

use super::super::failure::Category;

/// A conversation with two roles, whose contents are grouped into turns.
#[derive(Default)]
pub(super) struct Turns(Vec<(&'static str, Vec<Value>)>);

impl Turns {
    /// Adds content of a role. Results of several calls are one turn, and so is what the user says after them.
    pub(super) fn add(&mut self, role: &'static str, content: Vec<Value>) {
        match self.0.last_mut() {
            Some((last, turn)) if *last == role => turn.extend(content),
            _ if content.is_empty() => {}
            _ => self.0.push((role, content)),
        }
    }

    /// The content of the last turn.
    pub(super) fn last_mut(&mut self) -> Option<&mut Vec<Value>> {
        self.0.last_mut().map(|(_, content)| content)
    }

    /// The turns, each with its content in this member.
    pub(super) fn in_member(self, member: &str) -> Value {
        self.0.into_iter().map(|(role, content)| json!({ "role": role, (member): content })).collect()
    }
}

/// The arguments of the model and of the request; those of the request count.
pub(super) fn arguments_of(config: &ModelConfig, request: &ModelRequest) -> Map<String, Value> {
    let mut given = config.defaults.clone();
    given.extend(request.extra_args.clone());
    given
}

/// Takes the most tokens of an answer out of the arguments, by either of its names.
pub(super) fn take_most_tokens(given: &mut Map<String, Value>) -> Option<Value> {
    [given.remove("max_completion_tokens"), given.remove("max_tokens")].into_iter().flatten().next()
}

/// Takes the texts at which an answer ends out of the arguments: always a list.
pub(super) fn take_stop(given: &mut Map<String, Value>) -> Option<Value> {
    given.remove("stop").map(|stop| if stop.is_string() { json!([stop]) } else { stop })
}

/// Takes `parallel_tool_calls` out of the arguments, for a provider that has no such member and lets models make several calls at once.
///
/// # Errors
/// Fails where the caller wants one call at a time.
pub(super) fn take_parallel_calls(given: &mut Map<String, Value>, provider: ProviderKind) -> Result<(), ApiError> {
    match given.remove("parallel_tool_calls") {
        Some(Value::Bool(false)) => Err(Category::ExtraArgument.error(format!(
            "`parallel_tool_calls` cannot be false for this model: provider `{}` has no such argument",
            provider.as_str()
        ))),
        _ => Ok(()),
    }
}

/// Sets a member of an object in the arguments of a request. Something else in its place stays as it is, for the provider to refuse.
pub(super) fn within(given: &mut Map<String, Value>, object: &str, name: &str, value: Value) {
    if let Value::Object(object) = given.entry(object).or_insert_with(|| json!({})) {
        object.insert(name.to_owned(), value);
    }
}

/// An id of a call as Anthropic and Bedrock take it: another provider may have made it.
pub(super) fn call_id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect()
}

//! The tools of a run: those that it was granted, under their own names, and functions of the host, as far as the grant
//! allows them.

use std::{collections::HashMap, sync::Arc};

use agent_host_protocol::{
    manifest::{ArtifactOperation, EventOperation, HistoryOperation, KnowledgeOperation, RunOperation, StateScope},
    tool::ToolDetail,
};
use agent_host_runs::Calls;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

/// Put before the name of a function of the host that a granted tool has, as often as needed.
const PREFIX: &str = "host_";

/// A function of the host, as a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostFunction {
    KnowledgeRetrieve,
    HistoryPage,
    HistorySearch,
    EventGet,
    StateGet,
    StateSet,
    ArtifactRead,
    ArtifactCreate,
    AskUser,
    RequestAction,
    StartAgent,
    WaitAgent,
}

use HostFunction::{
    ArtifactCreate, ArtifactRead, AskUser, EventGet, HistoryPage, HistorySearch, KnowledgeRetrieve, RequestAction, StartAgent,
    StateGet, StateSet, WaitAgent,
};

impl HostFunction {
    pub(crate) const ALL: [Self; 12] = [
        KnowledgeRetrieve,
        HistoryPage,
        HistorySearch,
        EventGet,
        StateGet,
        StateSet,
        ArtifactRead,
        ArtifactCreate,
        AskUser,
        RequestAction,
        StartAgent,
        WaitAgent,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            KnowledgeRetrieve => "knowledge_retrieve",
            HistoryPage => "history_page",
            HistorySearch => "history_search",
            EventGet => "event_get",
            StateGet => "state_get",
            StateSet => "state_set",
            ArtifactRead => "artifact_read",
            ArtifactCreate => "artifact_create",
            AskUser => "ask_user",
            RequestAction => "request_action",
            StartAgent => "start_agent",
            WaitAgent => "wait_agent",
        }
    }

    /// The function of the contract behind it.
    pub(super) const fn function(self) -> &'static str {
        match self {
            KnowledgeRetrieve => "knowledge.retrieve",
            HistoryPage => "history.page",
            HistorySearch => "history.search",
            EventGet => "events.get",
            StateGet => "state.get",
            StateSet => "state.set",
            ArtifactRead => "artifacts.read-range",
            ArtifactCreate => "artifacts.create",
            AskUser => "interactions.ask",
            RequestAction => "platform.request-action",
            StartAgent => "runs.start",
            WaitAgent => "runs.wait-any",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            KnowledgeRetrieve => "Finds passages in a knowledge base of this agent that fit a query.",
            HistoryPage => {
                "Reads messages of this conversation, newest first. `next_cursor` of a page is `before` of the next one."
            }
            HistorySearch => "Searches the messages of this conversation.",
            EventGet => "Reads an event that the host has accepted, by its id.",
            StateGet => "Reads a value that this agent keeps from one message to the next.",
            StateSet => "Keeps a value from one message to the next.",
            ArtifactRead => "Reads an artifact, or a range of its bytes: text as it is, other content as Base64.",
            ArtifactCreate => "Keeps a text or a file as an artifact, which the person and later messages can be shown.",
            AskUser => "Asks the person a question and waits for the answer.",
            RequestAction => "Asks the platform to do something. A person may have to approve it first.",
            StartAgent => "Starts another agent with a task of its own. Wait for its answer with `wait_agent`.",
            WaitAgent => "Waits until one of the agents that were started has ended, and gives its answer.",
        }
    }

    const fn is_read_only(self) -> bool {
        matches!(self, KnowledgeRetrieve | HistoryPage | HistorySearch | EventGet | StateGet | ArtifactRead | WaitAgent)
    }

    /// The message of progress while the function waits.
    pub(super) const fn waiting(self) -> &'static str {
        match self {
            AskUser => "waiting for the answer of a person",
            RequestAction => "waiting for the action, or for its approval",
            WaitAgent => "waiting for an agent",
            _ => "the host is at work",
        }
    }

    /// The arguments as a JSON schema; `None` where the run was not granted the function.
    fn schema(self, calls: &Calls) -> Option<Value> {
        let grant = calls.grant();
        let permissions = &grant.permissions;
        let scopes: Vec<&str> =
            StateScope::ALL.iter().filter(|scope| grant.state_key(**scope).is_some()).map(|scope| scope.as_str()).collect();
        let state = |more: Value, required: &[&str]| {
            let mut properties = Map::from_iter([
                ("scope".to_owned(), one_of(&scopes, "Whose value it is.")),
                ("key".to_owned(), text("The name of the value.")),
            ]);
            properties.extend(more.as_object().cloned().unwrap_or_default());
            (!scopes.is_empty()).then(|| object(Value::Object(properties), required))
        };
        match self {
            KnowledgeRetrieve => {
                let bases = calls.knowledge_bases();
                let bases: Vec<_> =
                    bases.iter().filter(|base| base.operations.contains(&KnowledgeOperation::Retrieve)).collect();
                let ids: Vec<&str> = bases.iter().map(|base| base.kb_id.as_str()).collect();
                let named = bases.iter().map(|base| match &base.kb_name {
                    Some(name) => format!("`{}`: {name}", base.kb_id),
                    None => format!("`{}`", base.kb_id),
                });
                let what = format!("The knowledge base. {}", named.collect::<Vec<_>>().join("; "));
                let properties = json!({
                    "kb_id": one_of(&ids, &what),
                    "query": text("A question or words."),
                    "top_k": { "type": "integer", "minimum": 1, "description": "Passages, at most. Default: 5." },
                    "filters": { "type": "object", "description": "Values that the metadata of the documents must have." },
                });
                (!ids.is_empty()).then(|| object(properties, &["kb_id", "query"]))
            }
            HistoryPage => permissions.history.contains(&HistoryOperation::Page).then(|| {
                let properties = json!({
                    "limit": limit(),
                    "direction": one_of(&["backward", "forward"], "Default: `backward`."),
                    "before": text("A cursor: the messages before it."),
                    "after": text("A cursor: the messages after it."),
                    "conversation_id": text("Another conversation, where the grant reaches it."),
                    "thread_id": text("Another thread, where the grant reaches it."),
                });
                object(properties, &[])
            }),
            HistorySearch => permissions.history.contains(&HistoryOperation::Search).then(|| {
                let properties = json!({
                    "query": text("Words."),
                    "top_k": { "type": "integer", "minimum": 1, "description": "Messages, at most. Default: 10." },
                });
                object(properties, &["query"])
            }),
            EventGet => permissions
                .events
                .contains(&EventOperation::Get)
                .then(|| object(json!({ "event_id": text("The id of the event.") }), &["event_id"])),
            StateGet => state(json!({}), &["scope", "key"]),
            StateSet => state(json!({ "value": { "description": "Any JSON value." } }), &["scope", "key", "value"]),
            ArtifactRead => permissions.artifacts.contains(&ArtifactOperation::Read).then(|| {
                let properties = json!({
                    "artifact_id": text("The id of the artifact."),
                    "offset": { "type": "integer", "minimum": 0, "description": "The first byte. Default: 0." },
                    "length": { "type": "integer", "minimum": 1, "description": "Bytes, at most. Default: 65536." },
                });
                object(properties, &["artifact_id"])
            }),
            ArtifactCreate => permissions.artifacts.contains(&ArtifactOperation::Create).then(|| {
                let properties = json!({
                    "media_type": text("Such as `text/markdown` or `image/png`."),
                    "name": text("A file name to show."),
                    "text": text("The content, where it is text."),
                    "content": { "type": "string", "contentEncoding": "base64", "description": "Other content, as Base64." },
                });
                object(properties, &["media_type"])
            }),
            AskUser => permissions.interactions.then(|| {
                let kinds = ["form", "confirmation", "choice", "plan_review"];
                let properties = json!({
                    "title": text("The question, in one line."),
                    "description": text("More of it."),
                    "kind": one_of(&kinds, "Default: `form`."),
                    "answer_schema": { "type": "object", "description": "JSON Schema of the answer. Default: any answer." },
                    "wait_ms": { "type": "integer", "minimum": 1, "description": "Time for the answer. Default: until the run ends." },
                });
                object(properties, &["title"])
            }),
            RequestAction => {
                let names: Vec<&str> = permissions.platform_api.iter().map(String::as_str).collect();
                let properties = json!({
                    "action": one_of(&names, "The action."),
                    "target": { "type": "object", "description": "The thing that it is done to, as the platform names it." },
                    "payload": { "type": "object", "description": "Parameters of the action." },
                });
                (!names.is_empty()).then(|| object(properties, &["action"]))
            }
            StartAgent => {
                let runners: Vec<&str> = grant.runners.iter().map(|runner| runner.as_str()).collect();
                let properties = json!({
                    "runner_id": one_of(&runners, "The agent."),
                    "text": text("The task, as a message to the agent."),
                    "objective": text("The task in one line, for people. Default: the beginning of `text`."),
                    "attachments": { "type": "array", "items": { "type": "string" }, "description": "Ids of artifacts." },
                    "config": { "type": "object", "description": "Configuration of the agent." },
                });
                let is_granted = permissions.runs.contains(&RunOperation::Start) && !runners.is_empty();
                is_granted.then(|| object(properties, &["runner_id", "text"]))
            }
            WaitAgent => permissions.runs.contains(&RunOperation::Get).then(|| {
                let properties = json!({
                    "run_ids": { "type": "array", "minItems": 1, "items": { "type": "string" }, "description": "As `start_agent` gave them." },
                    "wait_ms": { "type": "integer", "minimum": 0, "description": "Longest wait. Default: until one has ended." },
                });
                object(properties, &["run_ids"])
            }),
        }
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn one_of(values: &[&str], description: &str) -> Value {
    json!({ "type": "string", "enum": values, "description": description })
}

fn limit() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": 100, "description": "Items, at most. Default: 50." })
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schema_object(schema: Value) -> JsonObject {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    };
    // MCP wants the type said; everything else is the server's of the tool.
    schema.entry("type").or_insert_with(|| "object".into());
    schema
}

/// The thing that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A granted tool.
    Granted,
    /// A function of the host.
    Host(HostFunction),
}

/// The tools of one run.
pub(super) struct Catalog {
    tools: Vec<Tool>,
    targets: HashMap<String, Target>,
}

impl Catalog {
    pub(super) fn of(calls: &Calls) -> Self {
        let functions = HostFunction::ALL.into_iter().filter_map(|function| Some((function, function.schema(calls)?)));
        Self::new(calls.tools(), functions)
    }

    fn new(granted: Vec<ToolDetail>, functions: impl Iterator<Item = (HostFunction, Value)>) -> Self {
        let mut catalog = Self { tools: Vec::new(), targets: HashMap::new() };
        for detail in granted {
            catalog.targets.insert(detail.name.clone(), Target::Granted);
            catalog.tools.push(tool_of(detail));
        }
        for (function, schema) in functions {
            let mut name = function.name().to_owned();
            while catalog.targets.contains_key(&name) {
                name.insert_str(0, PREFIX);
            }
            let annotations = ToolAnnotations::new().read_only(function.is_read_only()).open_world(false).destructive(false);
            let tool = Tool::new(name.clone(), function.description(), Arc::new(schema_object(schema)));
            catalog.tools.push(tool.with_annotations(annotations));
            catalog.targets.insert(name, Target::Host(function));
        }
        catalog
    }

    pub(super) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The thing that a name of the list stands for.
    pub(super) fn target(&self, name: &str) -> Option<Target> {
        self.targets.get(name).copied()
    }
}

fn tool_of(detail: ToolDetail) -> Tool {
    let ToolDetail { name, description, parameters, read_only, idempotent, destructive } = detail;
    let tool = Tool::new_with_raw(name, description.map(Into::into), Arc::new(schema_object(parameters)));
    if (read_only, idempotent, destructive) == (None, None, None) {
        return tool;
    }
    tool.with_annotations(ToolAnnotations::from_raw(None, read_only, destructive, idempotent, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(name: &str) -> ToolDetail {
        ToolDetail {
            name: name.to_owned(),
            description: None,
            parameters: json!({}),
            read_only: Some(true),
            idempotent: None,
            destructive: None,
        }
    }

    #[test]
    fn a_granted_tool_keeps_its_name() {
        let functions = [StateGet, StateSet].map(|function| (function, object(json!({}), &[])));
        let granted = ["state_get", "host_state_get", "weather"].map(detail);
        let catalog = Catalog::new(granted.into(), functions.into_iter());
        let names: Vec<_> = catalog.tools().iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["state_get", "host_state_get", "weather", "host_host_state_get", "state_set"]);
        assert_eq!(catalog.target("state_get"), Some(Target::Granted));
        assert_eq!(catalog.target("host_host_state_get"), Some(Target::Host(StateGet)));
        assert_eq!(catalog.target("ask_user"), None);
        let first = &catalog.tools()[0];
        assert_eq!(first.input_schema["type"], "object", "MCP wants the type");
        assert_eq!(first.annotations.as_ref().unwrap().read_only_hint, Some(true));
    }

    #[test]
    fn functions_are_those_of_the_contract() {
        let all: Vec<String> = agent_host_runs::call_functions().collect();
        for function in HostFunction::ALL {
            assert!(all.iter().any(|named| named == function.function()), "{function:?}");
        }
    }
}

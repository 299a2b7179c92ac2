//! Functions of the host as tools: the name, the function of the contract behind it, and the arguments as far as the grant of the
//! run goes.

use agent_host_protocol::{
    limits::MAX_PAGE,
    manifest::{ArtifactOperation, EventOperation, HistoryOperation, KnowledgeOperation, RunOperation, StateScope},
    named_enum,
};
use agent_host_runs::Calls;
use serde_json::{Map, Value, json};

use HostFunction::{
    ArtifactCreate, ArtifactRead, AskUser, EventGet, HistoryPage, HistorySearch, KnowledgeRetrieve, RequestAction, StartAgent,
    StateGet, StateSet, WaitAgent,
};

named_enum! {
    /// A function of the host, as a tool.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum HostFunction {
        KnowledgeRetrieve = "knowledge_retrieve",
        HistoryPage = "history_page",
        HistorySearch = "history_search",
        EventGet = "event_get",
        StateGet = "state_get",
        StateSet = "state_set",
        ArtifactRead = "artifact_read",
        ArtifactCreate = "artifact_create",
        AskUser = "ask_user",
        RequestAction = "request_action",
        StartAgent = "start_agent",
        WaitAgent = "wait_agent",
    }
}

impl HostFunction {
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

    pub(super) const fn description(self) -> &'static str {
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

    pub(super) const fn is_read_only(self) -> bool {
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
    pub(super) fn schema(self, calls: &Calls) -> Option<Value> {
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
    json!({ "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "description": "Items, at most. Default: 50." })
}

pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_contract() {
        let all: Vec<String> = agent_host_runs::call_functions().collect();
        for function in HostFunction::ALL {
            assert!(all.iter().any(|named| named == function.function()), "{function:?}");
        }
    }
}

//! The tools of a run: those that it was granted, under their own names, and functions of the host, as far as the grant
//! allows them.

use std::{collections::HashMap, sync::Arc};

use agent_host_protocol::tool::ToolDetail;
use agent_host_runs::Calls;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;

use super::functions::HostFunction;

/// Put before the name of a function of the host that a granted tool has, as often as needed.
const PREFIX: &str = "host_";

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
        let functions = HostFunction::ALL.iter().filter_map(|function| Some((*function, function.schema(calls)?)));
        Self::new(calls.tools(), functions)
    }

    fn new(granted: Vec<ToolDetail>, functions: impl Iterator<Item = (HostFunction, Value)>) -> Self {
        let mut catalog = Self { tools: Vec::new(), targets: HashMap::new() };
        for detail in granted {
            catalog.targets.insert(detail.name.clone(), Target::Granted);
            catalog.tools.push(tool_of(detail));
        }
        for (function, schema) in functions {
            let mut name = function.as_str().to_owned();
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
    use serde_json::json;

    use super::{
        super::functions::{
            HostFunction::{StateGet, StateSet},
            object,
        },
        *,
    };

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
}

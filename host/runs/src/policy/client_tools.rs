//! Rules for the tools that a client brings with a run. Their calls are made like those of other tools (`calls/tools.rs`),
//! and the client answers them (`execution/answers.rs`).

use agent_host_protocol::{Limits, encoded::json_len, limits::is_shallow, tool::ClientTool};
use agent_host_providers::tools::check_schema;

/// Longest name: the models of no provider take a longer one.
const MAX_NAME: usize = 64;

/// Checks client tools against the tools of the host that the run was granted.
pub(crate) fn check(tools: &[ClientTool], granted: &[String], limits: &Limits) -> Result<(), String> {
    let count = tools.len();
    if count > limits.client_tools {
        return Err(format!("`client_tools` has {count} tools; the limit is {}", limits.client_tools));
    }
    let mut before = std::collections::HashSet::new();
    for (place, tool) in tools.iter().enumerate() {
        check_one(tool, limits).map_err(|problem| format!("`client_tools[{place}]{problem}"))?;
        let name = &tool.name;
        if !before.insert(name) {
            return Err(format!("`client_tools[{place}].name`: two tools are named `{name}`"));
        }
        if granted.contains(name) {
            return Err(format!(
                "`client_tools[{place}].name`: the run has a tool `{name}` of the host: give yours another name"
            ));
        }
    }
    Ok(())
}

/// Checks one tool. The message begins with the path of the wrong value.
fn check_one(tool: &ClientTool, limits: &Limits) -> Result<(), String> {
    let ClientTool { name, description, parameters } = tool;
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(named) {
        return Err(format!(".name` has 1 to {MAX_NAME} letters, digits, `_` or `-`"));
    }
    if !parameters.is_object() {
        return Err(".parameters` is a JSON Schema, an object".to_owned());
    }
    let bytes = json_len(parameters) + description.as_ref().map_or(0, String::len);
    if bytes > limits.client_tool_bytes {
        return Err(format!(
            "`: the schema of the parameters and the description have {bytes} bytes; the limit is {}",
            limits.client_tool_bytes
        ));
    }
    if !is_shallow(parameters) {
        return Err(".parameters` nests too deep".to_owned());
    }
    check_schema(parameters).map_err(|error| format!(".parameters`: {}", error.message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tool(name: &str, parameters: Value) -> ClientTool {
        ClientTool { name: name.to_owned(), description: None, parameters }
    }

    #[track_caller]
    fn refused(tools: &[ClientTool], expect: &str) {
        let limits = Limits { client_tools: 3, client_tool_bytes: 200, ..Limits::default() };
        let problem = check(tools, &["web.search".to_owned(), "search".to_owned()], &limits).unwrap_err();
        assert!(problem.contains(expect), "{problem}");
    }

    #[test]
    fn tools_of_a_client_are_named_like_functions_and_take_what_a_schema_says() {
        let good = [tool("ask_for-Color1", json!({})), tool(&"n".repeat(64), json!({ "type": "object" }))];
        check(&good, &["search".to_owned()], &Limits::default()).unwrap();
    }

    #[test]
    fn invalid_tools_are_refused_with_their_path() {
        let any = || json!({ "type": "object" });
        for name in ["", "web.search", "two words", "farbe_ä", &"n".repeat(65)] {
            refused(&[tool("good", any()), tool(name, any())], "`client_tools[1].name` has 1 to 64");
        }
        refused(&[tool("a", json!(true))], "`client_tools[0].parameters` is a JSON Schema, an object");
        refused(&[tool("a", json!({ "type": "nothing" }))], "`client_tools[0].parameters`: this is no JSON Schema");
        refused(&[tool("a", json!({ "description": "x".repeat(200) }))], "the limit is 200");
        let described = ClientTool { description: Some("x".repeat(200)), ..tool("a", any()) };
        refused(&[described], "`client_tools[0]`: the schema of the parameters and the description have 217 bytes");
        let deep = (0..100).fold(json!({}), |inner, _| json!({ "not": inner }));
        let problem = check(&[tool("a", deep)], &[], &Limits::default()).unwrap_err();
        assert!(problem.contains("`client_tools[0].parameters` nests too deep"), "{problem}");
        refused(&[tool("a", any()), tool("b", any()), tool("a", any())], "two tools are named `a`");
        refused(&[tool("search", any())], "give yours another name");
        refused(&["a", "b", "c", "d"].map(|name| tool(name, any())), "4 tools; the limit is 3");
    }
}

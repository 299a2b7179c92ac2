//! Tools and their answers (wit/capabilities.wit, `tools`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::message::{ContentPart, MessageContent, content};

/// A tool, as a runner or a model needs to know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDetail {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the parameters.
    pub parameters: Value,
    /// True if the tool changes no data. A hint of the tool's server, as the next two fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Calling it again with the same parameters changes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// True if the tool may destroy data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
}

/// A tool of the client that asks for a run. The client executes its calls, and the answer of the client is that of the
/// tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientTool {
    /// Name: 1 to 64 letters, digits, `_` or `-`.
    pub name: String,
    /// Description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the parameters, an object. Without it: any.
    #[serde(default = "any")]
    pub parameters: Value,
}

/// The answer of a client's own tool: the `answer` to an action of kind `client_tool`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientToolAnswer {
    /// For people and models: in JSON a string where it is one text, else a list of parts.
    #[serde(with = "content")]
    #[schema(value_type = MessageContent)]
    pub content: Vec<ContentPart>,
    /// Error, if the tool has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The client's id of the message with this answer. The record keeps the id; the host does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

impl ClientToolAnswer {
    /// Ids of the artifacts that it names.
    pub fn artifact_ids(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(|part| {
            if let ContentPart::Artifact(artifact) = part { Some(artifact.artifact_id.as_str()) } else { None }
        })
    }

    /// As the runner gets it: what went wrong is said in words where the content does not say it.
    #[must_use]
    pub fn output(self) -> ToolOutput {
        let Self { mut content, error, .. } = self;
        let is_error = error.is_some();
        let says =
            |error: &String| content.iter().any(|part| matches!(part, ContentPart::Text(text) if text.contains(error.as_str())));
        if let Some(error) = error.filter(|error| !says(error)) {
            content.push(ContentPart::Text(error));
        }
        ToolOutput { content, structured: None, is_error }
    }
}

/// The schema that everything fits.
fn any() -> Value {
    Value::Object(Map::new())
}

impl ClientTool {
    /// The description for a runner or a model. The host does not know the effects of such a tool.
    #[must_use]
    pub fn detail(&self) -> ToolDetail {
        ToolDetail {
            name: self.name.clone(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
            read_only: None,
            idempotent: None,
            destructive: None,
        }
    }
}

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// For people and models.
    pub content: Vec<ContentPart>,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// The tool ran and reports a failure. A call that could not be made is an error instead.
    pub is_error: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(json: Value) -> Result<ClientToolAnswer, serde_json::Error> {
        serde_json::from_value(json)
    }

    #[test]
    fn a_client_answers_with_a_text_or_with_parts() {
        let output_of = |json| answer(json).unwrap().output();
        let text = |text: &str| vec![ContentPart::Text(text.to_owned())];
        let good = |content| ToolOutput { content, structured: None, is_error: false };
        assert_eq!(output_of(json!({ "content": "blue", "message_id": "m1" })), good(text("blue")));
        assert_eq!(output_of(json!({ "content": [{ "type": "text", "text": "blue" }] })), good(text("blue")));
        assert_eq!(output_of(json!({ "content": [] })), good(Vec::new()));
    }

    #[test]
    fn errors_are_reported_once() {
        let failed = |content: &str, error: &str| {
            let output = answer(json!({ "content": content, "error": error })).unwrap().output();
            assert!(output.is_error);
            output.content
        };
        let text = |text: &str| ContentPart::Text(text.to_owned());
        assert_eq!(failed("no camera here", "no camera"), [text("no camera here")]);
        assert_eq!(failed("half of it", "no camera"), [text("half of it"), text("no camera")]);
        assert!(answer(json!({ "content": "", "error": "" })).unwrap().output().is_error);
    }

    #[test]
    fn invalid_answers_are_refused() {
        for bad in [
            json!("blue"),
            json!({}),
            json!({ "content": 1 }),
            json!({ "content": [{}] }),
            json!({ "content": "a", "result": 1 }),
        ] {
            assert!(answer(bad.clone()).is_err(), "{bad}");
        }
    }
}

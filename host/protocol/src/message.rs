//! Messages and what they are made of.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Array, ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema, Type,
        schema::{AdditionalProperties, SchemaType},
    },
};

/// Text in several languages: BCP 47 tag to text. The first is the fallback.
///
/// JSON keeps no order of keys, so the fallback is written first and read back as the first in sorted order
/// unless `en` is there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct LocalizedText(pub serde_json::Map<String, Value>);

impl LocalizedText {
    /// From pairs of language tag and text.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().map(|(tag, text)| (tag, Value::String(text))).collect())
    }

    /// Pairs of language tag and text.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(tag, text)| text.as_str().map(|text| (tag.as_str(), text)))
    }

    /// The text to show where no language was asked for.
    #[must_use]
    pub fn fallback(&self) -> &str {
        self.0.get("en").or_else(|| self.0.values().next()).and_then(Value::as_str).unwrap_or_default()
    }
}

impl PartialSchema for LocalizedText {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String);
        let texts = ObjectBuilder::new().schema_type(Type::Object);
        let texts = texts.additional_properties(Some(AdditionalProperties::RefOr(text.into())));
        texts.description(Some("Text in several languages: BCP 47 tag to text.")).into()
    }
}

impl ToSchema for LocalizedText {}

/// Bytes that the host keeps. Content never travels inside a message or an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactRef {
    /// Opaque.
    pub artifact_id: String,
    /// Media type (RFC 6838), such as `image/png`.
    pub media_type: String,
    /// A name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Lower-case hexadecimal SHA-256 of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Type of the part that marks an item of the transcript as history that a client claims: the host has not seen it. The part has
/// `by`, `message_id`, and what the client says of tools in `tool_calls` and `tool_call_id`.
pub const CLAIMED: &str = "claimed";

/// A part of the content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// A reference to bytes.
    Artifact(ArtifactRef),
    /// A kind that this version does not name: a JSON object with a `type`.
    Other(Value),
}

impl Serialize for ContentPart {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        match self {
            Self::Text(text) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
                map.end()
            }
            Self::Artifact(artifact) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", "artifact")?;
                map.serialize_entry("artifact", artifact)?;
                map.end()
            }
            Self::Other(value) => value.serialize(serializer),
        }
    }
}

impl PartialSchema for ContentPart {
    fn schema() -> RefOr<Schema> {
        let kind = || ObjectBuilder::new().schema_type(Type::String);
        let part = |kind: ObjectBuilder| ObjectBuilder::new().property("type", kind).required("type");
        let text = part(kind().enum_values(Some(["text"]))).property("text", kind()).required("text");
        let artifact = part(kind().enum_values(Some(["artifact"])));
        let artifact = artifact.property("artifact", Ref::from_schema_name("ArtifactRef")).required("artifact");
        let other =
            part(kind().pattern(Some("^(?!(text|artifact)$)"))).description(Some("A kind that this version does not name."));
        let parts = OneOfBuilder::new().item(text).item(artifact).item(other);
        parts.description(Some("A part of the content of a message.")).into()
    }
}

impl ToSchema for ContentPart {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((ArtifactRef::name().into_owned(), ArtifactRef::schema()));
    }
}

/// The schema of the content of a message, which JSON shows in two forms.
pub(crate) struct MessageContent;

impl PartialSchema for MessageContent {
    fn schema() -> RefOr<Schema> {
        let forms = OneOfBuilder::new().item(ObjectBuilder::new().schema_type(Type::String));
        let forms = forms.item(Array::new(Ref::from_schema_name("ContentPart")));
        let forms = forms.item(ObjectBuilder::new().schema_type(SchemaType::new(Type::Null)));
        forms.description(Some("The content: a string if it is one text, else a list of parts.")).into()
    }
}

impl ToSchema for MessageContent {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((ContentPart::name().into_owned(), ContentPart::schema()));
        ContentPart::schemas(schemas);
    }
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = Value::deserialize(deserializer)?;
        match value.get("type").and_then(Value::as_str) {
            Some("text") => match value.get("text") {
                Some(Value::String(text)) => Ok(Self::Text(text.clone())),
                _ => Err(D::Error::custom("a content part of type `text` needs a string `text`")),
            },
            Some("artifact") => {
                let artifact = value.get("artifact").cloned().unwrap_or(Value::Null);
                serde_json::from_value(artifact).map(Self::Artifact).map_err(D::Error::custom)
            }
            Some(_) => Ok(Self::Other(value)),
            None => {
                Err(D::Error::custom("a content part is an object with a `type`, such as {\"type\":\"text\",\"text\":\"...\"}"))
            }
        }
    }
}

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The role as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// Names this call within its message.
    pub call_id: String,
    /// The tool.
    pub tool_name: String,
    /// A JSON object that satisfies the schema of the tool.
    pub parameters: Value,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// Speaker of the message.
    pub role: Role,
    /// Content: in JSON a string for a single text, else a list of parts.
    #[serde(default, with = "content")]
    #[schema(value_type = MessageContent)]
    pub content: Vec<ContentPart>,
    /// Name of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// The texts of the message, one after the other.
    #[must_use]
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }
}

/// Content as JSON shows it: a string where it is one text, else a list of parts.
pub mod content {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ContentPart;

    /// # Errors
    /// Fails with the errors of the serializer.
    pub fn serialize<S: Serializer>(parts: &[ContentPart], serializer: S) -> Result<S::Ok, S::Error> {
        match parts {
            [ContentPart::Text(text)] => serializer.serialize_str(text),
            parts => parts.serialize(serializer),
        }
    }

    /// # Errors
    /// Fails if the value is neither a string, nor null, nor a list of parts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ContentPart>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Content {
            Text(String),
            Parts(Vec<ContentPart>),
            None(()),
        }
        Ok(match Content::deserialize(deserializer)? {
            Content::Text(text) => vec![ContentPart::Text(text)],
            Content::Parts(parts) => parts,
            Content::None(()) => Vec::new(),
        })
    }
}

/// The tokens that a model call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenUsage {
    /// Tokens read, cached ones included.
    pub input: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// Of `input`, how many came from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<u64>,
    /// Of `output`, how many were reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round_trips(value: &Value) {
        let message: Message = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(&serde_json::to_value(message).unwrap(), value);
    }

    #[test]
    fn content_is_a_string_or_a_list_of_parts() {
        round_trips(&json!({ "role": "assistant", "content": "hello" }));
        round_trips(
            &json!({ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "image_url", "url": "u" }] }),
        );
        round_trips(
            &json!({ "role": "assistant", "content": [], "tool_calls": [{ "call_id": "1", "tool_name": "t", "parameters": {} }] }),
        );
    }

    #[test]
    fn a_part_without_a_type_is_refused() {
        assert!(serde_json::from_value::<ContentPart>(json!({ "text": "a" })).is_err());
        assert!(serde_json::from_value::<ContentPart>(json!({ "type": "text", "text": 1 })).is_err());
    }
}

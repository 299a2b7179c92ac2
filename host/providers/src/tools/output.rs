//! From what a server answers to a [`ToolResult`], within bounds and without secrets.

use agent_host_protocol::ApiError;
use base64::{Engine as _, alphabet, engine::GeneralPurposeConfig, engine::general_purpose::GeneralPurpose};
use bytes::Bytes;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, ServerResult};
use serde_json::Value;

use super::failure;
use crate::redact::Redactor;

/// Standard base64; servers disagree about the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);
/// Cost of a piece of content besides its bytes, so that a million empty pieces are too many.
const PIECE_OVERHEAD: usize = 64;
/// The longest media type and file name that are passed on.
const MAX_LABEL: usize = 127;
/// Media type of bytes without a declaration.
const UNKNOWN_MEDIA: &str = "application/octet-stream";

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// For people and models.
    pub content: Vec<ToolContent>,
    /// For programs.
    pub structured: Option<Value>,
    /// The tool ran and reports a failure, in `content`.
    pub is_error: bool,
}

/// A piece of a tool's answer. Media types, names and bytes are the server's claims: nobody has checked them.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolContent {
    /// Text.
    Text(String),
    /// An image, a sound, or a resource that is not text.
    Bytes {
        /// As the server says; well-formed.
        media_type: String,
        /// The last part of its address, where it has one.
        name: Option<String>,
        /// All of it, decoded.
        bytes: Bytes,
    },
    /// Any other content, as the server sent it: a link to a resource, or an unknown kind.
    Other(Value),
}

/// Counts what an answer brings.
struct Budget<'a> {
    tool: &'a str,
    used: usize,
    limit: usize,
}

impl Budget<'_> {
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.used = self.used.saturating_add(bytes);
        if self.used > self.limit { Err(failure::output_too_large(self.tool, Some(self.used), self.limit)) } else { Ok(()) }
    }
}

/// The result of a `tools/call`.
pub(super) fn read(tool: &str, result: ServerResult, limit: usize, redactor: &Redactor) -> Result<ToolResult, ApiError> {
    let mut budget = Budget { tool, used: 0, limit };
    let (content, structured, is_error) = match result {
        ServerResult::CallToolResult(CallToolResult { content, structured_content, is_error, .. }) => {
            let read = content.into_iter().map(|block| piece(block, redactor, &mut budget)).collect::<Result<_, _>>()?;
            (read, structured_content, is_error)
        }
        ServerResult::CustomResult(custom) => lenient(custom.0, redactor, &mut budget)?,
        ServerResult::InputRequiredResult(_) => {
            return Err(failure::protocol(tool, "it asks for input in the middle of the call, which this host does not give"));
        }
        ServerResult::CreateTaskResult(_) => {
            return Err(failure::protocol(tool, "it answers with a task to wait for, which this host did not offer"));
        }
        _ => return Err(failure::protocol(tool, "its answer is not the result of a tool")),
    };
    let structured = structured.map(|value| redactor.value(value));
    if let Some(value) = &structured {
        budget.take(json_bytes(value))?;
    }
    Ok(ToolResult { content, structured, is_error: is_error.unwrap_or(false) })
}

type Parts = (Vec<ToolContent>, Option<Value>, Option<bool>);

/// A result of which one piece is of a kind that this version does not know: the others still count.
fn lenient(result: Value, redactor: &Redactor, budget: &mut Budget<'_>) -> Result<Parts, ApiError> {
    let Value::Object(mut result) = result else {
        return Err(failure::protocol(budget.tool, "its answer is not an object"));
    };
    let Some(Value::Array(blocks)) = result.remove("content") else {
        return Err(failure::protocol(budget.tool, "its answer has no `content`"));
    };
    let mut content = Vec::new();
    for block in blocks {
        let kind = block.get("type").and_then(Value::as_str);
        if !block.is_object() || kind.is_none() {
            return Err(failure::protocol(budget.tool, "a piece of its answer has no `type`"));
        }
        content.push(match serde_json::from_value::<ContentBlock>(block.clone()) {
            Ok(block) => piece(block, redactor, budget)?,
            Err(_) if matches!(kind, Some("text" | "image" | "audio" | "resource" | "resource_link")) => {
                return Err(failure::protocol(budget.tool, "a piece of its answer lacks something"));
            }
            Err(_) => other(block, redactor, budget)?,
        });
    }
    Ok((content, result.remove("structuredContent"), result.get("isError").and_then(Value::as_bool)))
}

fn piece(block: ContentBlock, redactor: &Redactor, budget: &mut Budget<'_>) -> Result<ToolContent, ApiError> {
    budget.take(PIECE_OVERHEAD)?;
    match block {
        ContentBlock::Text(text) => plain(text.text, redactor, budget),
        ContentBlock::Image(image) => decoded(&image.data, Some(&image.mime_type), None, redactor, budget),
        ContentBlock::Audio(audio) => decoded(&audio.data, Some(&audio.mime_type), None, redactor, budget),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                if mime_type.as_deref().is_none_or(reads_as_text) {
                    return plain(text, redactor, budget);
                }
                budget.take(text.len())?;
                let (media_type, name) = (media_type(mime_type.as_deref()), file_name(&uri, redactor));
                Ok(ToolContent::Bytes { media_type, name, bytes: redactor.owned(text).into() })
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                decoded(&blob, mime_type.as_deref(), file_name(&uri, redactor), redactor, budget)
            }
            resource => other(serde_json::to_value(&resource).unwrap_or_default(), redactor, budget),
        },
        link => other(serde_json::to_value(&link).unwrap_or_default(), redactor, budget),
    }
}

fn plain(text: String, redactor: &Redactor, budget: &mut Budget<'_>) -> Result<ToolContent, ApiError> {
    budget.take(text.len())?;
    Ok(ToolContent::Text(redactor.owned(text)))
}

fn other(value: Value, redactor: &Redactor, budget: &mut Budget<'_>) -> Result<ToolContent, ApiError> {
    budget.take(json_bytes(&value))?;
    Ok(ToolContent::Other(redactor.value(value)))
}

fn decoded(
    data: &str,
    claimed: Option<&str>,
    name: Option<String>,
    redactor: &Redactor,
    budget: &mut Budget<'_>,
) -> Result<ToolContent, ApiError> {
    budget.take(data.len() / 4 * 3)?;
    let bytes = BASE64.decode(data).map_err(|_| failure::protocol(budget.tool, "a piece of its answer is not base64"))?;
    Ok(ToolContent::Bytes { media_type: media_type(claimed), name, bytes: redactor.bytes(bytes) })
}

/// True if a model can read text of this type as it is.
fn reads_as_text(media_type: &str) -> bool {
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type.starts_with("text/")
        || matches!(
            media_type.as_str(),
            "application/json" | "application/xml" | "application/yaml" | "application/x-yaml" | "application/toml"
        )
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml") && media_type != "image/svg+xml"
}

/// `type/subtype` in lower case, or that it is not known.
fn media_type(claimed: Option<&str>) -> String {
    let claimed = claimed.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let token =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte));
    match claimed.split_once('/') {
        Some((kind, rest)) if claimed.len() <= MAX_LABEL && token(kind) && token(rest) => claimed,
        _ => UNKNOWN_MEDIA.into(),
    }
}

/// The last part of an address, where it can be the name of a file.
fn file_name(uri: &str, redactor: &Redactor) -> Option<String> {
    let path = uri.split(['?', '#']).next()?;
    let name = path.rsplit(['/', '\\', ':']).next()?;
    let fits = !name.is_empty() && !name.starts_with('.') && name.len() <= MAX_LABEL && !name.chars().any(char::is_control);
    fits.then(|| redactor.text(name).into_owned())
}

/// The JSON size of a value in bytes, without writing it.
pub(super) fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither the counter nor a value that was read from JSON can fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::secret::Secret;

    fn result(value: Value, limit: usize) -> Result<ToolResult, ApiError> {
        let result: ServerResult = serde_json::from_value(value).unwrap();
        read("s__t", result, limit, &Redactor::new(vec![Secret::new("canary")]))
    }

    fn code(error: &ApiError) -> &str {
        error.details.as_ref().and_then(|details| details["code"].as_str()).unwrap_or_default()
    }

    #[test]
    fn every_kind_of_content_is_read() {
        let read = result(
            json!({ "content": [
                { "type": "text", "text": "hello canary" },
                { "type": "image", "data": "AAEC", "mimeType": "IMAGE/PNG; x=y" },
                { "type": "audio", "data": "AAE", "mimeType": "nonsense" },
                { "type": "resource", "resource": { "uri": "file:///a/b.md", "mimeType": "text/markdown", "text": "# b" } },
                { "type": "resource", "resource": { "uri": "file:///a/b.svg", "mimeType": "image/svg+xml", "text": "<svg/>" } },
                { "type": "resource", "resource": { "uri": "x://h/c.bin?q", "blob": "AAECAw==" } },
                { "type": "resource_link", "uri": "file:///d", "name": "d" },
            ], "structuredContent": { "key": "canary" }, "isError": true }),
            4096,
        )
        .unwrap();
        let bytes = |media_type: &str, name: Option<&str>, bytes: &'static [u8]| ToolContent::Bytes {
            media_type: media_type.into(),
            name: name.map(Into::into),
            bytes: Bytes::from_static(bytes),
        };
        assert_eq!(
            read.content[..6],
            [
                ToolContent::Text("hello [secret]".into()),
                bytes("image/png", None, &[0, 1, 2]),
                bytes(UNKNOWN_MEDIA, None, &[0, 1]),
                ToolContent::Text("# b".into()),
                bytes("image/svg+xml", Some("b.svg"), b"<svg/>"),
                bytes(UNKNOWN_MEDIA, Some("c.bin"), &[0, 1, 2, 3]),
            ]
        );
        assert!(matches!(&read.content[6], ToolContent::Other(link) if link["uri"] == "file:///d"), "{read:?}");
        assert_eq!(read.structured, Some(json!({ "key": "[secret]" })));
        assert!(read.is_error);
    }

    #[test]
    fn a_kind_of_content_that_is_not_known_does_not_spoil_the_others() {
        let read = result(json!({ "content": [{ "type": "hologram", "x": 1 }, { "type": "text", "text": "a" }] }), 4096).unwrap();
        assert_eq!(read.content, [ToolContent::Other(json!({ "type": "hologram", "x": 1 })), ToolContent::Text("a".into())]);
    }

    #[test]
    fn values_over_the_limit_are_refused_with_both_numbers() {
        for value in [
            json!({ "content": [{ "type": "text", "text": "x".repeat(2000) }] }),
            json!({ "content": [{ "type": "image", "data": "A".repeat(4000), "mimeType": "image/png" }] }),
            json!({ "content": [], "structuredContent": { "a": "x".repeat(2000) } }),
            json!({ "content": (0..100).map(|_| json!({ "type": "text", "text": "" })).collect::<Vec<_>>() }),
        ] {
            let error = result(value, 1000).unwrap_err();
            assert_eq!((error.code.as_str(), code(&error)), ("payload_too_large", "tool_output_too_large"));
            assert_eq!(error.details.unwrap()["limit"], 1000);
        }
    }

    #[test]
    fn invalid_tool_results_are_protocol_errors() {
        for value in [
            json!({ "content": [{ "type": "image", "data": "%%%", "mimeType": "image/png" }] }),
            json!({ "content": [{ "type": "text" }] }),
            json!({ "content": [1] }),
            json!({ "content": 5 }),
            json!({ "nothing": true }),
            json!([1]),
            json!({}),
        ] {
            let error = result(value.clone(), 1000).unwrap_err();
            assert_eq!(code(&error), "tool_protocol_error", "{value}: {error}");
        }
    }
}

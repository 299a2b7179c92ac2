//! Attachments of a message, shown inline or read on demand.

use serde::Deserialize;

use crate::Context;
use crate::contract::{ContentPart, Message};
use crate::json::from_str;
use crate::tools::{ToolError, Toolbox};

/// Bytes of an attachment per read.
const PART_BYTES: u32 = 16 * 1024;

/// Maximum number of inline images of a message. Further images are named.
const IMAGES: usize = 8;

/// Form of an image in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// The image itself. Only for a model that accepts images; other models refuse the request.
    Inline,
    /// A note with the name of the image.
    Named,
}

/// Returns the input of the event as a user message: its text, images inline or as notes, and other attachments as notes.
/// Images of earlier messages are notes in the history. The model reads noted files with the tool
/// [`read_attachment`](crate::tools::Toolbox::read_attachments).
#[must_use]
pub fn input(ctx: &Context, images: Images) -> Message {
    let mut message = Message::user(ctx.text());
    let mut inlined = 0;
    let mut notes = String::new();
    for attachment in ctx.attachments() {
        if images == Images::Inline && attachment.media_type.starts_with("image/") && inlined < IMAGES {
            inlined += 1;
            message.content.push(ContentPart::Artifact(attachment.clone()));
        } else {
            notes.push('\n');
            notes.push_str(&attachment.note());
        }
    }
    if let (false, Some(ContentPart::Text(text))) = (notes.is_empty(), message.content.first_mut()) {
        text.push_str(&notes);
    }
    message
}

#[derive(Deserialize)]
struct ReadAttachment {
    artifact_id: String,
    #[serde(default)]
    offset: u64,
}

impl<'a> Toolbox<'a> {
    /// Adds the local tool `read_attachment`: the model reads the text of a noted artifact, 16 KiB per call. Needs
    /// `artifacts` [`Read`](crate::ArtifactOperation::Read); the host checks access to the artifact.
    #[must_use]
    pub fn read_attachments(self, ctx: &'a Context) -> Self {
        let schema = r#"{"type":"object","properties":{"artifact_id":{"type":"string","description":"The id of the artifact."},"offset":{"type":"integer","minimum":0,"description":"Offset to continue at, in bytes; 0 is the start."}},"required":["artifact_id"]}"#;
        let description = "Reads the text of an attachment or of a large tool result, by the id of the artifact.";
        self.local_json("read_attachment", description, schema, move |parameters| {
            let ReadAttachment { artifact_id, offset } =
                from_str(parameters).map_err(|error| ToolError::Tell(error.to_string()))?;
            let (mut text, next) = ctx.artifacts().text_part(&artifact_id, offset, PART_BYTES)?;
            if text.contains('\0') {
                return Err("this is no text".into());
            }
            if let Some(next) = next {
                text.push_str(&format!("\n[continues at offset {next}]"));
            }
            Ok(text)
        })
    }
}

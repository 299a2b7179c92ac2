//! What comes with a message, and is read on demand.

use serde::Deserialize;

use crate::Context;
use crate::contract::{ContentPart, Message};
use crate::json::from_str;
use crate::tools::{ToolError, Toolbox};

/// Bytes that the model gets of an attachment at once.
const PART_BYTES: u32 = 16 * 1024;

/// Images that a message has inline. More are named.
const IMAGES: usize = 8;

/// What a model sees of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// The image. Only for a model that takes images; others refuse the request.
    Inline,
    /// That there is one.
    Named,
}

/// The input of the event as a message of the user: its text, images as they are or by name, and
/// everything else by name (so are images of earlier messages, in the history), to be read with
/// [`read_attachment`](crate::tools::Toolbox::read_attachments).
#[must_use]
pub fn input(ctx: &Context, images: Images) -> Message {
    let mut message = Message::user(ctx.text());
    let mut shown = 0;
    let mut notes = String::new();
    for attachment in ctx.attachments() {
        if images == Images::Inline && attachment.media_type.starts_with("image/") && shown < IMAGES {
            shown += 1;
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
struct Wanted {
    artifact_id: String,
    #[serde(default)]
    offset: u64,
}

impl<'a> Toolbox<'a> {
    /// Adds the local tool `read_attachment`: the model reads the text of an artifact that it was
    /// told of, 16 KiB at once. Needs `artifacts` [`Read`](crate::ArtifactOperation::Read); the host
    /// says which artifacts that is.
    #[must_use]
    pub fn read_attachments(self, ctx: &'a Context) -> Self {
        let schema = r#"{"type":"object","properties":{"artifact_id":{"type":"string","description":"The id of the artifact."},"offset":{"type":"integer","minimum":0,"description":"Where to go on; 0 is the start."}},"required":["artifact_id"]}"#;
        let description = "Reads the text of an attachment or of a large tool result, by the id of the artifact.";
        self.local_json("read_attachment", description, schema, move |parameters| {
            let Wanted { artifact_id, offset } = from_str(parameters).map_err(|error| ToolError::Tell(error.to_string()))?;
            let (mut text, next) = ctx.artifacts().text_part(&artifact_id, offset, PART_BYTES)?;
            if text.contains('\0') {
                return Err("this is no text".into());
            }
            if let Some(next) = next {
                text.push_str(&format!("\n[it goes on at offset {next}]"));
            }
            Ok(text)
        })
    }
}

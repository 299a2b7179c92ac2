//! Events: what happened outside.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use crate::{
    context::{Actor, Conversation, Delivery, Input, Subject},
    id::EventId,
    limits::{MAX_JSON_DEPTH, is_shallow},
    message::{ArtifactRef, ContentPart},
    time::Timestamp,
};

/// A stored event. The form for clients is the same without `event_id` and `received_at`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// The host's own name for it.
    pub event_id: EventId,
    /// Time at which the host accepted the event.
    pub received_at: Timestamp,
    /// The envelope as it was sent.
    #[serde(flatten)]
    pub envelope: Envelope,
}

/// An event as a client or an adapter sends it (`POST /api/v1/events`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// A stable protocol name, such as `message.received`.
    #[schema(max_length = 128, pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    pub event_type: String,
    /// Source: `platform`, `webui`, `api`, `scheduler`, `system`, `run` or `pipeline_adapter`.
    #[serde(default = "api")]
    #[schema(value_type = Source)]
    pub source: String,
    /// Time of the event, if the source knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<Timestamp>,
    /// The name that the platform itself gave to the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_type: Option<String>,
    /// The raw payload, where it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<ArtifactRef>,
    /// Facts of the event, a JSON object.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub data: serde_json::Map<String, Value>,
    /// Conversation of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    /// Author of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// Subject of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// The main input, without history.
    #[serde(default)]
    pub input: Input,
    /// Capabilities of the client that shows the answer. The delivery policy of a binding fills in absent members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Fields of an entry adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Value>,
    /// Trace id to keep (`traceparent` or any other), else the host makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// BCP 47 tag of the language to answer in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// IANA name of the time zone of the actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// The schema of the source of an event: one of [`Envelope::SOURCES`].
struct Source;

impl PartialSchema for Source {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(Envelope::SOURCES)).into()
    }
}

impl ToSchema for Source {}

fn api() -> String {
    "api".to_owned()
}

impl Envelope {
    /// Ids of the artifacts that it names: its raw payload, its attachments and those within its content.
    pub fn artifact_ids(&self) -> impl Iterator<Item = &str> {
        self.artifacts().map(|artifact| artifact.artifact_id.as_str())
    }

    /// The artifacts that it names.
    pub fn artifacts(&self) -> impl Iterator<Item = &ArtifactRef> {
        let within = self.input.contents.iter().filter_map(|part| match part {
            ContentPart::Artifact(artifact) => Some(artifact),
            _ => None,
        });
        self.raw_ref.iter().chain(&self.input.attachments).chain(within)
    }

    /// The same, to be completed.
    pub fn artifacts_mut(&mut self) -> impl Iterator<Item = &mut ArtifactRef> {
        let within = self.input.contents.iter_mut().filter_map(|part| match part {
            ContentPart::Artifact(artifact) => Some(artifact),
            _ => None,
        });
        self.raw_ref.iter_mut().chain(&mut self.input.attachments).chain(within)
    }

    /// Every source that the protocol names (section 4.3; `run` is the contract's addition).
    pub const SOURCES: [&'static str; 7] = ["platform", "webui", "api", "scheduler", "system", "run", "pipeline_adapter"];

    /// A message with this text, from this source.
    #[must_use]
    pub fn message(text: impl Into<String>, source: &str) -> Self {
        Self {
            event_type: "message.received".to_owned(),
            source: source.to_owned(),
            event_time: None,
            source_event_type: None,
            raw_ref: None,
            data: serde_json::Map::new(),
            conversation: None,
            actor: None,
            subject: None,
            input: Input { text: Some(text.into()), ..Input::default() },
            delivery: None,
            adapter: None,
            trace_id: None,
            locale: None,
            timezone: None,
        }
    }

    /// The workspace that the event belongs to.
    #[must_use]
    pub fn workspace(&self) -> Option<&str> {
        self.conversation.as_ref()?.workspace_id.as_deref()
    }

    /// Checks what the shape alone does not say.
    ///
    /// # Errors
    /// Fails with the problem and the correct form.
    pub fn check(&self) -> Result<(), String> {
        let named = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if self.event_type.len() > 128 || !self.event_type.split('.').all(named) {
            return Err(
                "`event_type` must be names joined by dots, such as `message.received`, at most 128 characters".to_owned()
            );
        }
        if !Self::SOURCES.contains(&self.source.as_str()) {
            return Err(format!("`source` must be one of: {}", Self::SOURCES.join(", ")));
        }
        let open = [
            self.data.values().all(is_shallow),
            self.adapter.iter().all(is_shallow),
            self.actor.iter().flat_map(|actor| actor.metadata.values()).all(is_shallow),
            self.subject.iter().flat_map(|subject| subject.data.values()).all(is_shallow),
            self.input.message_chain.iter().all(is_shallow),
            self.input.contents.iter().all(|part| if let ContentPart::Other(value) = part { is_shallow(value) } else { true }),
            self.delivery
                .iter()
                .flat_map(|delivery| delivery.platform_capabilities.values().chain(&delivery.reply_target))
                .all(is_shallow),
        ];
        if open.contains(&false) {
            return Err(format!("a JSON value nests deeper than {MAX_JSON_DEPTH} levels: put it into a string, or flatten it"));
        }
        let conversation = self.conversation.iter().flat_map(Conversation::ids);
        let actor = self.actor.iter().filter_map(|actor| actor.actor_id.as_deref().map(|id| ("actor.actor_id", id)));
        let subject =
            self.subject.iter().filter_map(|subject| subject.subject_id.as_deref().map(|id| ("subject.subject_id", id)));
        for (field, id) in conversation.chain(actor).chain(subject) {
            if id.is_empty() || id.len() > MAX_FOREIGN_ID_LEN || id.chars().any(char::is_control) {
                return Err(format!("`{field}` must have 1 to {MAX_FOREIGN_ID_LEN} bytes and no control characters"));
            }
        }
        Ok(())
    }
}

/// Ids of other systems become parts of ledger keys, so they are bounded.
pub const MAX_FOREIGN_ID_LEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_refused() {
        let error = serde_json::from_str::<Envelope>(r#"{"event_type":"message.received","txet":"hi"}"#).unwrap_err();
        assert!(error.to_string().contains("txet"), "{error}");
    }

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let event = Event { event_id: EventId::new(), received_at: 5, envelope: Envelope::message("hi", "api") };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }

    #[test]
    fn names_and_ids_are_checked() {
        let ok = Envelope::message("hi", "api");
        assert_eq!(ok.check(), Ok(()));
        for event_type in ["", "message..received", "message received", "a.\u{0}"] {
            assert!(Envelope { event_type: event_type.to_owned(), ..ok.clone() }.check().is_err());
        }
        assert!(Envelope { source: "carrier-pigeon".to_owned(), ..ok.clone() }.check().is_err());
        let conversation = Some(Conversation { conversation_id: Some("x".repeat(257)), ..Conversation::default() });
        assert!(Envelope { conversation, ..ok }.check().is_err());
    }
}

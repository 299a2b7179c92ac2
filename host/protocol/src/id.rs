//! Identifiers. The host makes them; a client or guest can only give back what it was given.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, SchemaFormat, Type, schema::KnownFormat},
};
use uuid::Uuid;

use crate::HashSlot;

/// The reason why a text is no identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// The text is no UUID in its hyphenated form.
    #[error("`{0}` is not an id: ids are UUIDs as the host gave them, such as 01890a5d-ac96-774b-bcce-b302099a8057")]
    NotAUuid(String),
    /// The text is not `plugin:AUTHOR/PLUGIN/NAME`.
    #[error(
        "`{0}` is not a runner id: write plugin:AUTHOR/PLUGIN/NAME, each of the three starting with a letter or digit \
         and continuing with letters, digits, `.`, `_` or `-`, at most {max} characters",
        max = RunnerId::MAX_PART_LEN
    )]
    NotARunnerId(String),
}

macro_rules! uuid_id {
    ($(#[doc = $doc:literal])* $name:ident) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id: UUIDv7, so ids of later things sort later.
            #[must_use]
            #[allow(clippy::new_without_default, reason = "a default id would hide that each one is different")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// A new id of what belongs to a workspace, with whose hash slot it ends.
            #[must_use]
            pub fn of_workspace(workspace: Option<&str>) -> Self {
                Self(HashSlot::of_workspace(workspace).new_uuid())
            }

            /// The 16 bytes under which the ledger keeps it.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.into_bytes()
            }

            /// The id that [`Self::to_bytes`] gave.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            /// Accepts only the form of [`fmt::Display`], so that an id has one spelling.
            fn from_str(text: &str) -> Result<Self, IdError> {
                let not_an_id = || IdError::NotAUuid(shortened(text));
                let id = Self(Uuid::try_parse(text).map_err(|_| not_an_id())?);
                if id.to_string() == text { Ok(id) } else { Err(not_an_id()) }
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                uuid_schema(concat!($($doc),*).trim())
            }
        }

        impl ToSchema for $name {}
    };
}

/// Ids in their one spelling.
fn uuid_schema(what: &str) -> RefOr<Schema> {
    let schema = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)));
    schema.pattern(Some(UUID)).description(Some(format!("{what} UUIDv7: ids of later things sort later."))).into()
}

const UUID: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";

uuid_id! {
    /// Names one run.
    RunId
}
uuid_id! {
    /// Names one event.
    EventId
}

/// The name of a runner: `plugin:AUTHOR/PLUGIN/NAME`. The same for all versions of the plugin.
///
/// A clone shares the text: records, grants and log lines of every run name its runner.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct RunnerId(Arc<str>);

impl RunnerId {
    /// Author, plugin and name may each have this many characters, so that an id fits a line and an index key.
    pub const MAX_PART_LEN: usize = 64;

    /// The id of the runner `name` in the plugin `author`/`plugin`.
    ///
    /// # Errors
    /// [`IdError::NotARunnerId`] when a part has a character that an id may not have, is empty or too long.
    pub fn new(author: &str, plugin: &str, name: &str) -> Result<Self, IdError> {
        let id = format!("plugin:{author}/{plugin}/{name}");
        if [author, plugin, name].into_iter().all(valid_part) {
            Ok(Self(id.into()))
        } else {
            Err(IdError::NotARunnerId(shortened(&id)))
        }
    }

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that names the plugin: `AUTHOR/PLUGIN`.
    #[must_use]
    pub fn plugin(&self) -> &str {
        let path = self.0.strip_prefix("plugin:").unwrap_or(&self.0);
        path.rsplit_once('/').map_or(path, |(plugin, _)| plugin)
    }

    /// The author of the plugin.
    #[must_use]
    pub fn author(&self) -> &str {
        self.plugin().split_once('/').map_or("", |(author, _)| author)
    }

    /// The name within the component.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl PartialSchema for RunnerId {
    fn schema() -> RefOr<Schema> {
        let part = format!("[A-Za-z0-9][A-Za-z0-9._-]{{0,{}}}", Self::MAX_PART_LEN - 1);
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some(format!("^plugin:{part}/{part}/{part}$")));
        schema.description(Some("Names a runner: `plugin:AUTHOR/PLUGIN/NAME`.")).into()
    }
}

impl ToSchema for RunnerId {}

fn valid_part(part: &str) -> bool {
    part.len() <= RunnerId::MAX_PART_LEN
        && part.starts_with(|c: char| c.is_ascii_alphanumeric())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// A foreign text, made fit for a message: bounded, and without control characters.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(80).is_some() {
        short.push('…');
    }
    short
}

impl FromStr for RunnerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refused = || IdError::NotARunnerId(shortened(text));
        let mut parts = text.strip_prefix("plugin:").ok_or_else(refused)?.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(author), Some(plugin), Some(name), None) => Self::new(author, plugin, name),
            _ => Err(refused()),
        }
    }
}

impl TryFrom<String> for RunnerId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<RunnerId> for String {
    fn from(id: RunnerId) -> Self {
        id.as_str().to_owned()
    }
}

impl Serialize for RunnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_it_was_written() {
        let id = RunId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(RunId::from_bytes(id.to_bytes()), id);
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = RunId::new().to_string();
        for other in [id.to_uppercase(), id.replace('-', ""), format!("{{{id}}}"), String::new(), "x\u{0}".repeat(500)] {
            if other != id {
                assert!(other.parse::<RunId>().is_err(), "{other} was accepted");
            }
        }
    }

    #[test]
    fn later_ids_sort_later() {
        let ids: Vec<_> = (0..1000).map(|n| RunId::of_workspace(Some(["a", "b", "c"][n % 3]))).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn a_runner_id_has_three_plain_parts() {
        let id: RunnerId = "plugin:acme/support-bot/default".parse().unwrap();
        assert_eq!((id.plugin(), id.name()), ("acme/support-bot", "default"));
        for bad in [
            "",
            "plugin:",
            "acme/bot/x",
            "plugin:a/b",
            "plugin:a/b/c/d",
            "plugin:a//c",
            "plugin:a/b/c d",
            "plugin:../b/c",
            "plugin:a/b/ü",
        ] {
            assert!(bad.parse::<RunnerId>().is_err(), "{bad} was accepted");
        }
        assert!(RunnerId::new(&"a".repeat(65), "b", "c").is_err());
    }

    #[test]
    fn a_hostile_id_is_shown_short_and_without_control_characters() {
        let message = "\u{1b}[2J".repeat(1000).parse::<RunId>().unwrap_err().to_string();
        assert!(message.len() < 500 && !message.contains('\u{1b}'), "{message}");
    }
}

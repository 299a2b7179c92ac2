//! What the host says of a file in the plugins directory: admitted, or refused and why.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{manifest::RunnerManifest, time::Timestamp};

/// Where a file is on its way to being a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// Its runners answer events.
    Ready,
    /// It is being read, compiled or asked for its manifests.
    Loading,
    /// It stays where it is and does nothing.
    Refused,
}

/// One file of the plugins directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PluginReport {
    /// Name of the file.
    pub file: String,
    /// Where it is on its way.
    pub status: PluginStatus,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// `sha256:HEX` of the file, once it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What it imports, and what becomes of each import.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<ImportReport>,
    /// Its runners. A refused file has those of the version that is still being served, if there is one.
    #[serde(default)]
    pub runners: Vec<RunnerManifest>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Whether an older version of this file, admitted before, goes on serving because this one was refused.
    #[serde(default)]
    pub serves_previous: bool,
    /// Whether compiled code came from the cache.
    #[serde(default)]
    pub from_cache: bool,
    /// When it was admitted or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<Timestamp>,
    /// How long that took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<u64>,
}

/// Why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)?) => {
        /// Why a file was refused, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum RefusalCode { $($(#[$doc])* $variant),* }

        impl RefusalCode {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as JSON shows it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

codes! {
    /// The file could not be read, or is not a plain file.
    Unreadable = "unreadable",
    /// The file is larger than a component may be.
    TooLarge = "too_large",
    /// Not WebAssembly, or cut short, or damaged.
    NotWasm = "not_wasm",
    /// A core module, not a component.
    CoreModule = "core_module",
    /// A component that does not export the runner interface.
    WrongWorld = "wrong_world",
    /// It uses a WebAssembly feature that the host does not accept, or is not valid.
    Invalid = "invalid",
    /// It imports something that the host does not have.
    UnknownImport = "unknown_import",
    /// It imports something that its runners do not declare.
    UndeclaredImport = "undeclared_import",
    /// What it imports has another type than what the host provides.
    ImportMismatch = "import_mismatch",
    /// Compiling took too long.
    CompileTimeout = "compile_timeout",
    /// The compiler refused it.
    CompileFailed = "compile_failed",
    /// Asked for its manifests, it trapped, looped or grew too large.
    ManifestFailed = "manifest_failed",
    /// Its manifests are not valid.
    ManifestInvalid = "manifest_invalid",
    /// Another plugin already has one of its runner ids.
    DuplicateRunner = "duplicate_runner",
}

/// One import of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportReport {
    /// The interface, such as `agent-host:runner/state@1.0.0`.
    pub name: String,
    /// What becomes of it.
    pub verdict: ImportVerdict,
    /// What to do about it, where something is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What becomes of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImportVerdict {
    /// The host provides it, and the manifest declares it where that is needed.
    Provided,
    /// A WASI interface: it is there, and has nothing in it.
    Inert,
    /// The host has it, but no runner of the component declares the permission.
    Undeclared,
    /// The host does not know it.
    Unknown,
    /// The host has an older version of it.
    NewerVersion,
    /// The host has another major version of it.
    OtherVersion,
    /// The host has it with other functions or types.
    Mismatch,
}

impl ImportVerdict {
    /// Whether a component with it can be admitted.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Self::Provided | Self::Inert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_one_spelling() {
        for code in RefusalCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}

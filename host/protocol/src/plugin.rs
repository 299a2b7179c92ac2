//! The report on a file in the plugins directory: admitted, or refused with a reason.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{manifest::RunnerManifest, time::Timestamp};

/// The status of a file in the plugins directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The runners of the file answer events.
    Ready,
    /// The file is being read, compiled, or asked for its manifests.
    Loading,
    /// The file stays in the directory without effect.
    Refused,
}

/// A file of the plugins directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PluginReport {
    /// Name of the file.
    pub file: String,
    /// Status of the file.
    pub status: PluginStatus,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// `sha256:HEX` of the file, once it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Imports of the component, each with a verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<ImportReport>,
    /// Runners of the file. A refused file lists the runners of the version in service, if there is one.
    #[serde(default)]
    pub runners: Vec<RunnerManifest>,
    /// Reason of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// True if an older admitted version of this file stays in service because this one was refused.
    #[serde(default)]
    pub serves_previous: bool,
    /// True if compiled code came from the cache.
    #[serde(default)]
    pub from_cache: bool,
    /// Time of the admission or refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<Timestamp>,
    /// Duration of the admission, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<u64>,
}

/// The reason why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// Description of the problem.
    pub message: String,
    /// Remedy.
    pub fix: String,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)?) => {
        /// The reason why a file was refused, as a code.
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
    /// The file is no WebAssembly, or is truncated or damaged.
    NotWasm = "not_wasm",
    /// A core module, not a component.
    CoreModule = "core_module",
    /// A component that does not export the runner interface.
    WrongWorld = "wrong_world",
    /// The file uses a WebAssembly feature that the host does not accept, or is not valid.
    Invalid = "invalid",
    /// The component has more instances than the host builds, or a function that is too large.
    TooComplex = "too_complex",
    /// The component imports an item that the host does not have.
    UnknownImport = "unknown_import",
    /// The component imports an interface that its runners do not declare.
    UndeclaredImport = "undeclared_import",
    /// The type of an import differs from the type that the host provides.
    ImportMismatch = "import_mismatch",
    /// Compiling took too long.
    CompileTimeout = "compile_timeout",
    /// Compiling took too much memory.
    CompileMemory = "compile_memory",
    /// The compiler failed.
    CompileFailed = "compile_failed",
    /// Asked for its manifests, it trapped, looped or grew too large.
    ManifestFailed = "manifest_failed",
    /// The manifests are not valid.
    ManifestInvalid = "manifest_invalid",
    /// Another plugin already has one of its runner ids.
    DuplicateRunner = "duplicate_runner",
}

/// An import of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportReport {
    /// The interface, such as `agent-host:runner/state@1.0.0`.
    pub name: String,
    /// Verdict on the import.
    pub verdict: ImportVerdict,
    /// Remedy, if one is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The verdict on an import.
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
    /// True if a component with such an import can be admitted.
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

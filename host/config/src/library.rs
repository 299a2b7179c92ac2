//! `[[skills]]` and `[[static_refs]]`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Names and versions of static references.
const MAX_STATIC_NAME: usize = 64;

/// A folder with instructions that runs may read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkillConfig {
    /// The folder; it contains `SKILL.md`, which has name and description.
    pub path: PathBuf,
}

impl SkillConfig {
    /// Makes the path relative to `base`, the folder of the file.
    pub fn relative_to(&mut self, base: &Path) {
        self.path = base.join(&self.path);
    }
}

/// Content that does not change from run to run, such as a system prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticRefConfig {
    /// Name for runners: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Version to show. Default: the first 12 digits of its SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl StaticRefConfig {
    /// Makes the path relative to `base`, the folder of the file.
    pub fn relative_to(&mut self, base: &Path) {
        self.path = base.join(&self.path);
    }

    /// Checks what the shape alone does not say.
    ///
    /// # Errors
    /// Fails with the problem and its remedy.
    pub fn check(&self) -> Result<(), String> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > MAX_STATIC_NAME || !self.name.chars().all(named) {
            return Err(format!("`name` must have 1 to {MAX_STATIC_NAME} letters, digits, `.`, `_` or `-`"));
        }
        let Some(version) = &self.version else { return Ok(()) };
        if version.is_empty() || version.len() > MAX_STATIC_NAME || version.chars().any(char::is_control) {
            return Err(format!("`version` must have 1 to {MAX_STATIC_NAME} bytes and no control characters; or leave it out"));
        }
        Ok(())
    }
}

//! Secrets: named in the configuration, kept out of everything else.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// Where a secret is to be found. The configuration holds this, never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SecretRef {
    /// The name of an environment variable.
    Env(String),
    /// A file; white space around its content does not count.
    File(PathBuf),
}

impl SecretRef {
    /// Takes the path of a file relative to `base`.
    pub fn relative_to(&mut self, base: &Path) {
        if let Self::File(path) = self {
            *path = base.join(&*path);
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// Says where it was looked for and what to do; never what was found.
    pub fn resolve(&self) -> Result<Secret, SecretError> {
        let text = match self {
            Self::Env(name) => env::var(name).map_err(|_| SecretError::NoVariable(name.clone()))?,
            Self::File(path) => fs::read_to_string(path)
                .map_err(|source| SecretError::Unreadable { path: path.clone(), reason: source.kind().to_string() })?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(SecretError::Empty(self.to_string()));
        }
        Ok(Secret(text.to_owned().into()))
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the environment variable `{name}`"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set, or is not text.
    #[error("the environment variable `{0}` is not set: set it where the host is started")]
    NoVariable(String),
    /// The file cannot be read.
    #[error("the secret in {path} cannot be read: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// There is nothing in it.
    #[error("{0} is empty")]
    Empty(String),
}

/// A secret. It is shown to nobody: neither `Debug` nor any serialization has it.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// For tests, and for secrets that are put together.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// The text, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_a_file_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), " s3cret\n").unwrap();
        let secret = SecretRef::File(file.path().to_owned()).resolve().unwrap();
        assert_eq!(secret.expose(), "s3cret");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn a_secret_that_is_not_there_says_where_it_was_looked_for() {
        let error = SecretRef::Env("AGENT_HOST_NO_SUCH".into()).resolve().unwrap_err().to_string();
        assert!(error.contains("AGENT_HOST_NO_SUCH"), "{error}");
        let error = SecretRef::File("/nowhere/key".into()).resolve().unwrap_err().to_string();
        assert!(error.contains("/nowhere/key"), "{error}");
    }

    #[test]
    fn a_reference_is_written_as_a_table_with_one_key() {
        let read: SecretRef = serde_json::from_str(r#"{"env":"KEY"}"#).unwrap();
        assert_eq!(read, SecretRef::Env("KEY".into()));
        assert!(serde_json::from_str::<SecretRef>(r#""sk-123""#).is_err());
    }
}

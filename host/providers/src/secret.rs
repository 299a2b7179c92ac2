//! Secrets: named in the configuration, kept out of everything else.

use std::{env, fmt, fs, path::PathBuf};

pub use agent_host_config::SecretRef;
use secrecy::{ExposeSecret, SecretString};

/// The reason why a secret cannot be used.
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
        /// Description of the problem.
        reason: String,
    },
    /// The secret is empty.
    #[error("{0} is empty")]
    Empty(String),
}

/// A secret. Neither `Debug` nor any serialization shows it.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Reads the secret that a reference names.
    ///
    /// # Errors
    /// Says where it was looked for and what to do; never what was found.
    pub fn read(reference: &SecretRef) -> Result<Self, SecretError> {
        let text = match reference {
            SecretRef::Env(name) => env::var(name).map_err(|_| SecretError::NoVariable(name.clone()))?,
            SecretRef::File(path) => fs::read_to_string(path)
                .map_err(|source| SecretError::Unreadable { path: path.clone(), reason: source.kind().to_string() })?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(SecretError::Empty(reference.to_string()));
        }
        Ok(Self(text.to_owned().into()))
    }

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
        let secret = Secret::read(&SecretRef::File(file.path().to_owned())).unwrap();
        assert_eq!(secret.expose(), "s3cret");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn a_secret_that_is_not_there_says_where_it_was_looked_for() {
        let error = Secret::read(&SecretRef::Env("AGENT_HOST_NO_SUCH".into())).unwrap_err().to_string();
        assert!(error.contains("AGENT_HOST_NO_SUCH"), "{error}");
        let error = Secret::read(&SecretRef::File("/nowhere/key".into())).unwrap_err().to_string();
        assert!(error.contains("/nowhere/key"), "{error}");
    }
}

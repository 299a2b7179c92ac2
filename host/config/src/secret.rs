//! References to secrets.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The reference to a secret. The configuration never contains the secret itself.
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
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the environment variable `{name}`"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_written_as_a_table_with_one_key() {
        let read: SecretRef = serde_json::from_str(r#"{"env":"KEY"}"#).unwrap();
        assert_eq!(read, SecretRef::Env("KEY".into()));
        assert!(serde_json::from_str::<SecretRef>(r#""sk-123""#).is_err());
    }
}

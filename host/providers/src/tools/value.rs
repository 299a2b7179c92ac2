//! Values of the configuration that may be secrets, with their content.

use agent_host_config::EnvValue;

use crate::secret::{Secret, SecretError};

/// An [`EnvValue`] with its content.
pub(super) enum ResolvedValue {
    Plain(String),
    Secret(Secret),
}

impl ResolvedValue {
    pub(super) fn of(value: &EnvValue) -> Result<Self, SecretError> {
        Ok(match value {
            EnvValue::Plain(text) => Self::Plain(text.clone()),
            EnvValue::Secret(secret) => Self::Secret(Secret::read(secret)?),
        })
    }

    pub(super) fn expose(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Secret(secret) => secret.expose(),
        }
    }
}

//! Access keys of AWS.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::secret::SecretRef;

/// An access key of AWS, with which requests to Amazon Bedrock are signed (Signature Version 4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessKey {
    /// The id, such as `{ env = "AWS_ACCESS_KEY_ID" }`.
    pub id: SecretRef,
    /// The secret, such as `{ env = "AWS_SECRET_ACCESS_KEY" }`.
    pub secret: SecretRef,
    /// The token of a key that is good for a while, such as `{ env = "AWS_SESSION_TOKEN" }`. It is read again with the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<SecretRef>,
    /// The region of the requests, such as `eu-west-1`. Default: that in `base_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

impl AccessKey {
    /// All secrets, with the name of their key.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &SecretRef)> {
        let session_token = self.session_token.iter().map(|token| ("session_token", token));
        [("id", &self.id), ("secret", &self.secret)].into_iter().chain(session_token)
    }

    pub(crate) fn relative_to(&mut self, base: &Path) {
        for secret in [&mut self.id, &mut self.secret].into_iter().chain(self.session_token.as_mut()) {
            secret.relative_to(base);
        }
    }

    /// The region of requests to this host. `None` where neither says it.
    #[must_use]
    pub fn region_at(&self, host: Option<&str>) -> Option<String> {
        let of_host = || host?.strip_prefix("bedrock-runtime")?.trim_start_matches("-fips").strip_prefix('.')?.split('.').next();
        self.region.as_deref().or_else(of_host).filter(|region| !region.is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_that_of_the_address_or_the_one_that_is_named() {
        let env = |name: &str| SecretRef::Env(name.to_owned());
        let mut key = AccessKey { id: env("ID"), secret: env("SECRET"), session_token: None, region: None };
        let region = |key: &AccessKey, host: &str| key.region_at(Some(host));
        assert_eq!(region(&key, "bedrock-runtime.eu-west-1.amazonaws.com").as_deref(), Some("eu-west-1"));
        assert_eq!(region(&key, "bedrock-runtime-fips.us-east-1.amazonaws.com").as_deref(), Some("us-east-1"));
        assert_eq!(region(&key, "127.0.0.1"), None);
        key.region = Some("us-west-2".into());
        assert_eq!(region(&key, "127.0.0.1").as_deref(), Some("us-west-2"));
    }
}

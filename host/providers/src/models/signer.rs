//! Signatures of requests to Amazon Bedrock, by an access key (Signature Version 4).

use std::time::SystemTime;

use agent_host_config::AccessKey;
use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use crate::secret::Secret;

/// The name of the service in signatures.
const SERVICE: &str = "bedrock";

/// An access key that was read, and the region of the requests.
#[derive(Debug)]
pub(super) struct Signer {
    id: Secret,
    secret: Secret,
    session_token: Option<Secret>,
    region: String,
}

impl Signer {
    /// Reads the secrets of a key for requests to `base`.
    pub(super) fn open(key: &AccessKey, base: &Url) -> Result<Self, String> {
        let read = |secret| Secret::read(secret).map_err(|error| error.to_string());
        Ok(Self {
            id: read(&key.id)?,
            secret: read(&key.secret)?,
            session_token: key.session_token.as_ref().map(read).transpose()?,
            region: key.region_at(base.host_str()).ok_or("`access_key.region` is missing")?,
        })
    }

    /// All that no answer may show.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        [&self.secret].into_iter().chain(&self.session_token).cloned().collect()
    }

    /// Adds the signature of a POST at this moment to its headers, which it covers.
    pub(super) fn sign(&self, url: &Url, headers: &mut HeaderMap, body: &[u8]) -> Result<(), String> {
        let token = self.session_token.as_ref().map(|token| token.expose().to_owned());
        let identity = Credentials::new(self.id.expose(), self.secret.expose(), token, None, "agent-host").into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(SERVICE)
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| error.to_string())?
            .into();
        let texts = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let request =
            SignableRequest::new("POST", url.as_str(), texts, SignableBody::Bytes(body)).map_err(|error| error.to_string())?;
        let (signature, _) = sign(request, &params).map_err(|error| error.to_string())?.into_parts();
        for (name, value) in signature.headers() {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            let mut value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(())
    }
}

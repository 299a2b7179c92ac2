//! `signature` of a webhook source: how requests of other systems are signed.

use http::HeaderName;
use serde::{Deserialize, Serialize};

/// The signature scheme of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(
    untagged,
    expecting = "`signature` is \"standard\", \"github\", or { header, prefix?, encoding = \"hex\" | \"base64\", algorithm = \"hmac-sha256\", timestamp_header?, signed? }"
)]
pub enum SignatureConfig {
    /// A scheme that is known by name.
    Named(NamedSignature),
    /// Any other.
    Custom(CustomSignature),
}

/// Signatures that are known by their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NamedSignature {
    /// [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    /// GitHub: `x-hub-signature-256`.
    Github,
}

/// A header with the HMAC of the body, or of the time and the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomSignature {
    /// The header.
    pub header: String,
    /// Text before the signature in the header, such as `sha256=`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Encoding of the signature.
    pub encoding: Encoding,
    /// Algorithm of the signature.
    pub algorithm: Algorithm,
    /// Header with the time of the request, in Unix seconds. The time is part of the signed text, and at most 5 minutes
    /// from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_header: Option<String>,
    /// The signed text. Default: `{body}`, or with `timestamp_header` `{timestamp}.{body}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
}

/// The encoding of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
}

/// The algorithm of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
}

impl SignatureConfig {
    /// The header that names a delivery, where there is one.
    #[must_use]
    pub fn delivery_id(&self) -> Option<HeaderName> {
        match self {
            Self::Named(NamedSignature::Standard) => Some(HeaderName::from_static("webhook-id")),
            Self::Named(NamedSignature::Github) => Some(HeaderName::from_static("x-github-delivery")),
            Self::Custom(_) => None,
        }
    }
}

/// A way to sign, ready to be asked.
#[derive(Debug)]
pub enum SignatureScheme {
    /// Standard Webhooks.
    Standard,
    /// A header with a code.
    Header {
        /// The header.
        header: HeaderName,
        /// Text before the code in the header.
        prefix: String,
        /// Encoding of the code.
        encoding: Encoding,
        /// The parts of the signed text.
        signed: Vec<Part>,
        /// The header with the time of the request.
        timestamp: Option<HeaderName>,
    },
}

/// A part of what is signed.
#[derive(Debug)]
pub enum Part {
    /// Text as it stands.
    Text(String),
    /// The time of the request.
    Timestamp,
    /// The body.
    Body,
}

impl SignatureScheme {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Names the key that cannot be.
    pub fn new(config: &SignatureConfig) -> Result<Self, String> {
        let config = match config {
            SignatureConfig::Named(NamedSignature::Standard) => return Ok(Self::Standard),
            SignatureConfig::Named(NamedSignature::Github) => {
                return Ok(Self::Header {
                    header: HeaderName::from_static("x-hub-signature-256"),
                    prefix: "sha256=".to_owned(),
                    encoding: Encoding::Hex,
                    signed: vec![Part::Body],
                    timestamp: None,
                });
            }
            SignatureConfig::Custom(config) => config,
        };
        let name = |what: &str, name: &str| {
            HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("`signature.{what}`: \"{}\" is no header", name.escape_debug()))
        };
        let timestamp = config.timestamp_header.as_deref().map(|header| name("timestamp_header", header)).transpose()?;
        let signed = config.signed.as_deref().unwrap_or(if timestamp.is_some() { "{timestamp}.{body}" } else { "{body}" });
        let signed = signed_parts(signed)?;
        let has = |wanted: fn(&Part) -> bool| signed.iter().filter(|part| wanted(part)).count() == 1;
        if !has(|part| matches!(part, Part::Body)) {
            return Err("`signature.signed` must have `{body}` once: an unsigned body could be changed on its way".to_owned());
        }
        if timestamp.is_some() != has(|part| matches!(part, Part::Timestamp)) {
            return Err(
                "`signature.signed` must have `{timestamp}` once where `timestamp_header` names one, and nowhere else".to_owned()
            );
        }
        let header = name("header", &config.header)?;
        let Algorithm::HmacSha256 = config.algorithm;
        Ok(Self::Header { header, prefix: config.prefix.clone(), encoding: config.encoding, signed, timestamp })
    }
}

fn signed_parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((place, after)) = after.split_once('}') else {
            return Err("`signature.signed`: a `{` has no end".to_owned());
        };
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        parts.push(match place {
            "body" => Part::Body,
            "timestamp" => Part::Timestamp,
            other => {
                let other = other.escape_debug();
                return Err(format!("`signature.signed`: `{{{other}}}` is unknown; there are `{{timestamp}}` and `{{body}}`"));
            }
        });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

//! How requests of other systems are signed.

use agent_host_protocol::Timestamp;
use agent_host_providers::webhook::{verify, verify_bytes};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};

use super::hooks::HookRequest;

/// How far the time of a signed request may be from now, in seconds. It is what Standard Webhooks recommends.
const TOLERANCE_S: u64 = 300;
/// How requests are signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(
    untagged,
    expecting = "`signature` is \"standard\", \"github\", or { header, prefix?, encoding = \"hex\" | \"base64\", algorithm = \"hmac-sha256\", timestamp_header?, signed? }"
)]
pub enum SignatureConfig {
    /// One that is known by its name.
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
    /// What stands before the signature in it, such as `sha256=`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// How the signature is written.
    pub encoding: Encoding,
    /// How it is computed.
    pub algorithm: Algorithm,
    /// The header with the time of the request, in Unix seconds. It is part of what is signed, and at most 5 minutes from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_header: Option<String>,
    /// What is signed: `{body}`, or with `timestamp_header` `{timestamp}.{body}`, where nothing else stands here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
}

/// How a signature is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
}

/// A way to sign, ready to be asked.
#[derive(Debug)]
pub(super) enum Scheme {
    Standard,
    Header { header: HeaderName, prefix: String, encoding: Encoding, signed: Vec<Part>, timestamp: Option<HeaderName> },
}

/// A part of what is signed.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Timestamp,
    Body,
}

impl Scheme {
    pub(super) fn new(config: &SignatureConfig) -> Result<Self, String> {
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
            return Err("`signature.signed` must have `{body}` once: what is not signed can be changed on its way".to_owned());
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

    /// Whether a request is signed with the key, and now.
    pub(super) fn accepts(&self, key: &[u8], request: &HookRequest<'_>, now: Timestamp) -> bool {
        match self {
            Self::Standard => {
                let Some(id) = only(request.headers, "webhook-id").filter(|id| !id.is_empty()) else { return false };
                let Some(at) = only(request.headers, "webhook-timestamp").and_then(seconds) else { return false };
                let Some(signatures) = only(request.headers, "webhook-signature") else { return false };
                is_near(at, now) && verify(key, id, at, request.body, signatures)
            }
            Self::Header { header, prefix, encoding, signed, timestamp } => {
                let timestamp = match timestamp.as_ref().map(|header| only(request.headers, header.as_str())) {
                    None => "",
                    Some(Some(text)) if seconds(text).is_some_and(|at| is_near(at, now)) => text,
                    Some(_) => return false,
                };
                let signature = only(request.headers, header.as_str()).and_then(|text| text.strip_prefix(prefix.as_str()));
                let signature = signature.and_then(|text| match encoding {
                    Encoding::Hex => hex(text),
                    Encoding::Base64 => STANDARD.decode(text).ok(),
                });
                let parts: Vec<&[u8]> = signed
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => text.as_bytes(),
                        Part::Timestamp => timestamp.as_bytes(),
                        Part::Body => request.body,
                    })
                    .collect();
                signature.is_some_and(|signature| verify_bytes(key, &parts, &signature))
            }
        }
    }

    /// The header that names a delivery, where there is one.
    pub(super) fn delivery_id(config: &SignatureConfig) -> Option<HeaderName> {
        match config {
            SignatureConfig::Named(NamedSignature::Standard) => Some(HeaderName::from_static("webhook-id")),
            SignatureConfig::Named(NamedSignature::Github) => Some(HeaderName::from_static("x-github-delivery")),
            SignatureConfig::Custom(_) => None,
        }
    }
}

/// The one value of a header. Two would be two opinions.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Unix seconds, as senders write them. The text is part of what is signed.
fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn is_near(at_s: u64, now: Timestamp) -> bool {
    (now / 1000).abs_diff(at_s) <= TOLERANCE_S
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    digits.chunks(2).map(|pair| pair.iter().try_fold(0_u8, |byte, digit| Some(byte << 4 | digit))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read() {
        assert_eq!(hex("00ffA5"), Some(vec![0, 255, 0xa5]));
        assert_eq!(hex(""), Some(vec![]));
        assert_eq!((hex("0"), hex("0g"), hex("é0")), (None, None, None));
    }
}

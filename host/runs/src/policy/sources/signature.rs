//! Signatures of requests from other systems.

use agent_host_config::{Encoding, Part, SignatureScheme};
use agent_host_protocol::Timestamp;
use agent_host_providers::webhook::{verify, verify_bytes};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderMap;

use super::hooks::HookRequest;

/// Largest difference between the time of a signed request and now, in seconds, as Standard Webhooks recommends.
const TOLERANCE_S: u64 = 300;

/// True if a request is signed with the key and its time is near `now`.
pub(super) fn accepts(scheme: &SignatureScheme, key: &[u8], request: &HookRequest<'_>, now: Timestamp) -> bool {
    match scheme {
        SignatureScheme::Standard => {
            let Some(id) = only(request.headers, "webhook-id").filter(|id| !id.is_empty()) else { return false };
            let Some(at) = only(request.headers, "webhook-timestamp").and_then(seconds) else { return false };
            let Some(signatures) = only(request.headers, "webhook-signature") else { return false };
            is_near(at, now) && verify(key, id, at, request.body, signatures)
        }
        SignatureScheme::Header { header, prefix, encoding, signed, timestamp } => {
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

//! Signatures of webhooks: made for what the host sends, judged for what it is sent.

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use hmac::{Hmac, Mac, digest::KeyInit};
use sha2::{Digest, Sha256};

use crate::secret::Secret;

/// Prefix of a secret in base64.
pub(super) const SECRET_PREFIX: &str = "whsec_";
/// Prefix of a signature of Standard Webhooks.
const VERSION: &str = "v1,";

/// Base64, with or without the signs that fill it up.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes to sign with: those of the base64 after `whsec_`, or those of the text.
///
/// # Errors
/// Fails if the text after `whsec_` is no base64.
pub fn key(secret: &Secret) -> Result<Vec<u8>, String> {
    match secret.expose().strip_prefix(SECRET_PREFIX) {
        None => Ok(secret.expose().as_bytes().to_vec()),
        Some(encoded) => match LENIENT.decode(encoded) {
            Ok(key) if !key.is_empty() => Ok(key),
            _ => Err(format!("its secret begins with `{SECRET_PREFIX}`, and what follows is no base64")),
        },
    }
}

/// The signature of a webhook: `v1,` and the base64 of the HMAC-SHA256 of `ID.TIMESTAMP.BODY`.
#[must_use]
pub fn sign(secret: &[u8], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let timestamp = timestamp_s.to_string();
    let mac = mac(secret, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
    format!("{VERSION}{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// True if one of the signatures of a header, separated by spaces, is that of this message. Unknown versions are skipped,
/// so that a sender can change the version.
#[must_use]
pub fn verify(secret: &[u8], id: &str, timestamp_s: u64, body: &[u8], signatures: &str) -> bool {
    let timestamp = timestamp_s.to_string();
    let parts = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    let known = signatures.split(' ').filter_map(|signature| signature.strip_prefix(VERSION));
    known.filter_map(|signature| LENIENT.decode(signature).ok()).any(|signature| verify_bytes(secret, &parts, &signature))
}

/// True if the signature is the HMAC-SHA256 of these parts, concatenated. The comparison takes constant time.
#[must_use]
pub fn verify_bytes(secret: &[u8], parts: &[&[u8]], signature: &[u8]) -> bool {
    mac(secret, parts).verify_slice(signature).is_ok()
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC pads a key with zeros to the size of a block, and takes the hash of one that is longer.
    let hash = Sha256::digest(secret);
    let mut block = [0_u8; 64];
    let key = if secret.len() > block.len() { hash.as_slice() } else { secret };
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_right_signature_of_several_is_enough() {
        let right = sign(b"secret", "msg_1", 1_700_000_000, b"{}");
        let judge = |signatures: &str| verify(b"secret", "msg_1", 1_700_000_000, b"{}", signatures);
        assert!(judge(&right));
        assert!(judge(&format!("v1a,c2lnbmVk v1,AAAA {right}")));
        for wrong in ["", "v1,", "v1,AAAA", "v2,AAAA", &right[3..], &right.replace("v1,", "v1,A"), &right[..right.len() - 6]] {
            assert!(!judge(wrong), "{wrong}");
        }
        assert!(!verify(b"secret", "msg_2", 1_700_000_000, b"{}", &right));
        assert!(!verify(b"secret", "msg_1", 1_700_000_001, b"{}", &right));
        assert!(!verify(b"secret", "msg_1", 1_700_000_000, b"{ }", &right));
        assert!(!verify(b"Secret", "msg_1", 1_700_000_000, b"{}", &right));
    }

    #[test]
    fn the_example_of_github_is_verified() {
        // https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
        let expect = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let bytes = agent_host_protocol::hex::decode(expect).unwrap();
        assert!(verify_bytes(b"It's a Secret to Everybody", &[b"Hello, ", b"World!"], &bytes));
        assert!(!verify_bytes(b"It's a Secret to Everybody", &[b"Hello, World"], &bytes));
    }
}

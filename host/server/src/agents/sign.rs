//! Signed addresses of attachments: a request to one needs no key, so that a page can contain it, and it is valid for a
//! limited time.

use agent_host_protocol::{Timestamp, time};

use crate::app::App;

/// The purpose of the signatures.
const PURPOSE: &str = "the address of an attachment";
/// The path before the id of the artifact.
pub(crate) const PATH: &str = "/api/v1/agent/attachments/";

/// The result of checking a signed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    /// The signature is valid and has not expired.
    Good,
    /// This host has signed no such thing.
    Changed,
    /// The address has expired.
    Expired,
}

/// The signed address of an artifact, good until `expires`: a path with a query, to be resolved against where the host is
/// reached.
pub(crate) fn url(app: &App, artifact_id: &str, expires: Timestamp) -> String {
    let expires = expires.to_string();
    let signature = app.host.sign(PURPOSE, &message(artifact_id, &expires));
    format!("{PATH}{artifact_id}?expires={expires}&signature={signature}")
}

/// Holds the parts of an address against its signature, then against the time.
pub(crate) fn check(app: &App, artifact_id: &str, expires: &str, signature: &str) -> SignatureCheck {
    let is_signed = app.host.is_signed(PURPOSE, &message(artifact_id, expires), signature);
    judge(time::now(), expires, is_signed)
}

fn judge(now: Timestamp, expires: &str, is_signed: bool) -> SignatureCheck {
    match expires.parse::<Timestamp>() {
        Ok(expires) if is_signed && now < expires => SignatureCheck::Good,
        Ok(_) if is_signed => SignatureCheck::Expired,
        _ => SignatureCheck::Changed,
    }
}

/// The signed text. Times are digits alone, so no other pair of id and time gives the same text.
fn message(artifact_id: &str, expires: &str) -> Vec<u8> {
    format!("{expires}\n{artifact_id}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_address_is_refused_before_an_old_one() {
        for (now, expires, is_signed, expect) in [
            (99, "100", true, SignatureCheck::Good),
            (100, "100", true, SignatureCheck::Expired),
            (u64::MAX, "0", true, SignatureCheck::Expired),
            (99, "100", false, SignatureCheck::Changed),
            (101, "100", false, SignatureCheck::Changed),
            (99, "", true, SignatureCheck::Changed),
            (99, "-1", true, SignatureCheck::Changed),
            (99, "18446744073709551616", true, SignatureCheck::Changed),
        ] {
            assert_eq!(judge(now, expires, is_signed), expect, "{now} {expires} {is_signed}");
        }
    }

    #[test]
    fn a_signature_covers_one_id_and_one_time() {
        let signed = message("0198-a", "100");
        for (id, expires) in [("0198-b", "100"), ("0198-a", "1000"), ("0198-a", "+100"), ("", "100"), ("8-a", "100019")] {
            assert_ne!(message(id, expires), signed);
        }
    }
}

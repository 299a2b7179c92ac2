//! Signed addresses of attachments: a request to one needs no key, so that a page can contain it, and it is valid for a
//! limited time.

use agent_host_protocol::{Timestamp, time};

use crate::app::App;

/// The purpose of the signatures.
const PURPOSE: &str = "the address of an attachment";
/// The purpose of the signatures of paths.
const OWNER: &str = "the owner of an attachment";
/// The path before the id of the artifact.
pub(crate) const PATH: &str = "/api/v1/agent/attachments/";

/// The result of checking a signed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    /// The signature is valid and has not expired.
    Good,
    /// The signature is not of this host.
    Changed,
    /// The address has expired.
    Expired,
}

/// The end of an address that is signed now, good for at least half of `ttl_ms` and at most for all of it. Addresses that are signed
/// within the same half have the same end.
pub(crate) const fn expiry(now: Timestamp, ttl_ms: u64) -> Timestamp {
    let window = ttl_ms / 2;
    // At least 500 ms: the configuration takes no less than a second.
    match now.checked_div(window) {
        Some(past) => past.saturating_add(2).saturating_mul(window),
        None => now.saturating_add(ttl_ms),
    }
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

/// The path of an upload of an end user: the id of the artifact, and a signature that says whose it is.
pub(crate) fn path_of(app: &App, user: &str, artifact_id: &str) -> String {
    format!("{artifact_id}.{}", app.host.sign(OWNER, &message(artifact_id, user)))
}

/// The artifact at a path, where it is an upload of this end user.
pub(crate) fn id_of<'a>(app: &App, user: &str, path: &'a str) -> Option<&'a str> {
    let (id, signature) = path.split_once('.')?;
    app.host.is_signed(OWNER, &message(id, user), signature).then_some(id)
}

fn judge(now: Timestamp, expires: &str, is_signed: bool) -> SignatureCheck {
    match expires.parse::<Timestamp>() {
        Ok(expires) if is_signed && now < expires => SignatureCheck::Good,
        Ok(_) if is_signed => SignatureCheck::Expired,
        _ => SignatureCheck::Changed,
    }
}

/// The signed text. Times and ids of end users have no line break, so no other pair gives the same text.
fn message(artifact_id: &str, beside: &str) -> Vec<u8> {
    format!("{beside}\n{artifact_id}").into_bytes()
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
    fn addresses_of_one_window_have_the_same_end() {
        for (now, expect) in [(0, 1_000), (499, 1_000), (500, 1_500), (999, 1_500), (1_000, 2_000)] {
            assert_eq!(expiry(now, 1_000), expect, "{now}");
        }
        for now in 0..3_000 {
            let left = expiry(now, 1_000) - now;
            assert!((501..=1_000).contains(&left), "{now}: {left}");
        }
        assert_eq!(expiry(7, 0), 7);
    }

    #[test]
    fn a_signature_covers_one_id_and_one_time() {
        let signed = message("0198-a", "100");
        for (id, expires) in [("0198-b", "100"), ("0198-a", "1000"), ("0198-a", "+100"), ("", "100"), ("8-a", "100019")] {
            assert_ne!(message(id, expires), signed);
        }
    }
}

//! `Idempotency-Key`: the same request, sent again, is answered again and done once.

use agent_host_runs::Idempotency;
use axum::http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::problem::Problem;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Set to `true` on the answer to a request that had been done before.
pub(crate) const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A UUID has 36 characters and a digest 64; keys are kept in an index of the ledger.
const MAX_KEY_LEN: usize = 255;

/// The key of a request, with the digest of the body that it stands for.
pub(crate) fn of(headers: &HeaderMap, body: &[u8]) -> Result<Option<Idempotency>, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let refused = || {
        Problem::invalid(
            "Idempotency-Key",
            format!("the header `Idempotency-Key` must be one key of 1 to {MAX_KEY_LEN} visible ASCII characters"),
        )
    };
    let visible = !key.is_empty() && key.as_bytes().iter().all(u8::is_ascii_graphic);
    if keys.next().is_some() || !visible || key.len() > MAX_KEY_LEN {
        return Err(refused());
    }
    let key = key.to_str().map_err(|_| refused())?.to_owned();
    Ok(Some(Idempotency { key, body_hash: Sha256::digest(body).into() }))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(keys: &[&[u8]]) -> HeaderMap {
        keys.iter().map(|key| (IDEMPOTENCY_KEY, HeaderValue::from_bytes(key).unwrap())).collect()
    }

    #[test]
    fn a_key_stands_for_its_body() {
        let one = of(&headers(&[b"k-1"]), b"a").unwrap().unwrap();
        assert_eq!(one.key, "k-1");
        assert_ne!(one.body_hash, of(&headers(&[b"k-1"]), b"b").unwrap().unwrap().body_hash);
        assert!(of(&HeaderMap::new(), b"a").unwrap().is_none());
    }

    #[test]
    fn a_key_that_is_none_is_refused() {
        let long = [b'k'; 256];
        for keys in [&[&b""[..]][..], &[b"a b"], &["ä".as_bytes()], &[&long], &[b"a", b"a"]] {
            assert!(of(&headers(keys), b"").is_err(), "{keys:?}");
        }
        assert!(of(&headers(&[&long[1..]]), b"").is_ok());
    }
}

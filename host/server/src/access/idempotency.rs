//! `Idempotency-Key`: the same request, sent again, is answered again and done once.

use agent_host_runs::Idempotency;
use axum::http::HeaderMap;
use sha2::{Digest, Sha256};

use super::caller::Caller;
use crate::http::{
    Problem,
    headers::{IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY_LEN as MAX_KEY_LEN},
};

/// The key of a request, with the digest of its body. Keys are separate for each workspace.
pub(crate) fn of(caller: &Caller, headers: &HeaderMap, body: &[u8]) -> Result<Option<Idempotency>, Problem> {
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
    let key = key.to_str().map_err(|_| refused())?;
    let key = match &caller.0.workspace {
        None => key.to_owned(),
        Some(workspace) => within(workspace, key),
    };
    Ok(Some(Idempotency { key, body_hash: Sha256::digest(body).into() }))
}

/// A key of a workspace, as it is kept: of a length that the ledger takes, and with a space, which no client can send.
fn within(workspace: &str, key: &str) -> String {
    let mut digest = Sha256::new();
    digest.update((workspace.len() as u64).to_be_bytes());
    digest.update(workspace);
    digest.update(key);
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("workspace {digest}")
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::Principal;
    use axum::http::HeaderValue;

    use super::*;

    fn headers(keys: &[&[u8]]) -> HeaderMap {
        keys.iter().map(|key| (IDEMPOTENCY_KEY, HeaderValue::from_bytes(key).unwrap())).collect()
    }

    fn everyone() -> Caller {
        Caller(Principal::loopback())
    }

    #[test]
    fn a_key_of_one_workspace_is_none_of_another() {
        let of = |workspace: Option<&str>| {
            let caller = Caller(Principal { workspace: workspace.map(str::to_owned), ..Principal::loopback() });
            of(&caller, &headers(&[b"k"]), b"a").unwrap().unwrap().key
        };
        assert_eq!(of(Some("a")), of(Some("a")));
        assert!(of(Some("a")) != of(Some("b")) && of(Some("a")) != of(None));
        assert!(of(Some("a")).contains(' ') && of(Some("a")).len() <= MAX_KEY_LEN);
        assert_ne!(within("a", "bc"), within("ab", "c"));
    }

    #[test]
    fn a_key_stands_for_its_body() {
        let one = of(&everyone(), &headers(&[b"k-1"]), b"a").unwrap().unwrap();
        assert_eq!(one.key, "k-1");
        assert_ne!(one.body_hash, of(&everyone(), &headers(&[b"k-1"]), b"b").unwrap().unwrap().body_hash);
        assert!(of(&everyone(), &HeaderMap::new(), b"a").unwrap().is_none());
    }

    #[test]
    fn a_key_that_is_none_is_refused() {
        let long = [b'k'; 256];
        for keys in [&[&b""[..]][..], &[b"a b"], &["ä".as_bytes()], &[&long], &[b"a", b"a"]] {
            assert!(of(&everyone(), &headers(keys), b"").is_err(), "{keys:?}");
        }
        assert!(of(&everyone(), &headers(&[&long[1..]]), b"").is_ok());
    }
}

//! The keys of an identity provider, as its key set has them (JWKS, RFC 7517).

use agent_host_runs::TokenAlgorithm;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;

/// Keys of one set. Providers publish a few: the present one, the next and the last.
const MAX_KEYS: usize = 100;

/// The public keys that verify tokens of a provider. Others of the set are left out.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    /// The one algorithm that the set names for the key.
    algorithm: Option<KeyAlgorithm>,
    kind: Kind,
    key: DecodingKey,
}

/// The kind of a key, which decides about the algorithms that it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

/// The key that a token names.
#[derive(Debug, Clone)]
pub(super) struct KeyName {
    pub(super) kid: Option<String>,
    pub(super) algorithm: TokenAlgorithm,
}

impl KeySet {
    /// Reads a set.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let document: Document = serde_json::from_slice(bytes).map_err(|error| format!("it is no key set: {error}"))?;
        if document.keys.len() > MAX_KEYS {
            return Err(format!("it has {} keys, and at most {MAX_KEYS} are taken", document.keys.len()));
        }
        // Keys of kinds that this host does not know are no error (RFC 7517, section 5).
        let jwks = document.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        Ok(Self { keys: jwks.filter_map(Key::new).collect() })
    }

    /// The keys that a token may be signed with: those of its `kid`, or all where it names none, if they fit its algorithm.
    pub(super) fn find(&self, name: &KeyName) -> Vec<&DecodingKey> {
        let named = self.keys.iter().filter(|key| name.kid.is_none() || key.kid == name.kid);
        named.filter(|key| key.fits(name.algorithm)).map(|key| &key.key).collect()
    }
}

impl Key {
    /// `None` for a key that verifies nothing: a secret one, one for encryption, one of another kind.
    fn new(jwk: Jwk) -> Option<Self> {
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Kind::Rsa,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Kind::P256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => Kind::P384,
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Kind::Ed25519,
            _ => return None,
        };
        let CommonParameters { public_key_use, key_operations, .. } = &jwk.common;
        let is_for_signatures = public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
        let verifies = key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_for_signatures && verifies)?;
        Some(Self { kid: jwk.common.key_id, algorithm: jwk.common.key_algorithm, kind, key })
    }

    fn fits(&self, algorithm: TokenAlgorithm) -> bool {
        let is_of_kind = match algorithm {
            TokenAlgorithm::ES256 => self.kind == Kind::P256,
            TokenAlgorithm::ES384 => self.kind == Kind::P384,
            TokenAlgorithm::EdDSA => self.kind == Kind::Ed25519,
            _ => self.kind == Kind::Rsa,
        };
        is_of_kind && self.algorithm.is_none_or(|own| own == KeyAlgorithm::from(in_library(algorithm)))
    }
}

/// The algorithm as the library names it.
pub(super) const fn in_library(algorithm: TokenAlgorithm) -> Algorithm {
    match algorithm {
        TokenAlgorithm::RS256 => Algorithm::RS256,
        TokenAlgorithm::RS384 => Algorithm::RS384,
        TokenAlgorithm::RS512 => Algorithm::RS512,
        TokenAlgorithm::PS256 => Algorithm::PS256,
        TokenAlgorithm::PS384 => Algorithm::PS384,
        TokenAlgorithm::PS512 => Algorithm::PS512,
        TokenAlgorithm::ES256 => Algorithm::ES256,
        TokenAlgorithm::ES384 => Algorithm::ES384,
        TokenAlgorithm::EdDSA => Algorithm::EdDSA,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Keys of RFC 7515, A.2 and A.3; only their form counts here.
    fn ec(more: Value) -> Value {
        let mut key = json!({ "kty": "EC", "crv": "P-256", "kid": "a",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" });
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        key
    }

    fn found(keys: Value, kid: Option<&str>, algorithm: TokenAlgorithm) -> usize {
        let set = KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        set.find(&KeyName { kid: kid.map(str::to_owned), algorithm }).len()
    }

    #[test]
    fn a_key_is_used_for_what_its_set_says() {
        use TokenAlgorithm::{ES256, ES384, RS256};
        for (more, algorithm, expect) in [
            (json!({}), ES256, 1),
            (json!({}), ES384, 0),
            (json!({}), RS256, 0),
            (json!({ "alg": "ES256", "use": "sig", "key_ops": ["verify"] }), ES256, 1),
            (json!({ "alg": "ES384" }), ES256, 0),
            (json!({ "alg": "ECDH-ES" }), ES256, 0),
            (json!({ "use": "enc" }), ES256, 0),
            (json!({ "use": "other" }), ES256, 0),
            (json!({ "key_ops": ["sign"] }), ES256, 0),
            (json!({ "key_ops": [] }), ES256, 0),
            (json!({ "crv": "P-521" }), ES256, 0),
            (json!({ "crv": "secp256k1" }), ES256, 0),
            (json!({ "x": "!" }), ES256, 0),
            (json!({ "kty": "oct", "k": "AAAA" }), ES256, 0),
        ] {
            assert_eq!(found(json!([ec(more.clone())]), Some("a"), algorithm), expect, "{more}");
        }
        assert_eq!(found(json!([ec(json!({})), ec(json!({ "kid": "b" }))]), Some("b"), ES256), 1);
        assert_eq!(found(json!([ec(json!({})), ec(json!({ "kid": "b" }))]), None, ES256), 2);
        assert_eq!(found(json!([{ "kty": "new" }, "text", 7, ec(json!({}))]), None, ES256), 1);
    }

    #[test]
    fn a_document_that_is_no_set_of_bounded_size_is_refused() {
        let many = json!({ "keys": vec![json!({}); MAX_KEYS + 1] }).to_string();
        for (text, says) in [("", "no key set"), ("[]", "no key set"), ("{}", "`keys`"), (many.as_str(), "at most 100")] {
            assert!(KeySet::parse(text.as_bytes()).unwrap_err().contains(says), "{says}");
        }
        assert!(KeySet::parse(b"{\"keys\":[]}").is_ok());
    }
}

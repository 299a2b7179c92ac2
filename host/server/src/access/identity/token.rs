//! A token (JWT, RFC 7519, signed as RFC 7515 has it) and its claims.
//!
//! Claims are judged before the signature, so that tokens that could not be good cause no fetch of keys. Nothing of a token counts
//! before its signature is verified. Keys that a token brings along or points to (`jwk`, `jku`, `x5c`, `x5u`) are never used.

use agent_host_protocol::{
    Timestamp,
    auth::{MAX_END_USER, is_end_user},
};
use agent_host_runs::{IdentityProviderConfig, TokenAlgorithm};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::keys::{KeyName, KeySet, in_library};

/// Types of tokens that name users (RFC 7519, section 5.1; RFC 9068). A token of another type, such as one that ends a session, is
/// none.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// A token in its parts.
pub(super) struct Token<'a> {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    /// The signed text.
    signed: &'a str,
    signature: &'a str,
}

/// The claims that count, judged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// The name of the user at the provider.
    pub(super) user: String,
    /// The end of the token, leeway included.
    pub(super) ends_at: Timestamp,
}

impl<'a> Token<'a> {
    /// True if a text has the three parts of a token.
    pub(super) fn has_form(text: &str) -> bool {
        text.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Takes a token apart. Says nothing of its signature.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let malformed = |what: &str| format!("the {what} of the token is not a JSON object in base64url: send a signed JWT");
        let object = |part: &str| {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
            serde_json::from_slice::<Map<String, Value>>(&bytes).ok()
        };
        let (signed, signature) = text.rsplit_once('.').ok_or_else(|| malformed("form"))?;
        let (header, claims) = signed.split_once('.').ok_or_else(|| malformed("form"))?;
        let header = object(header).ok_or_else(|| malformed("header"))?;
        let claims = object(claims).ok_or_else(|| malformed("payload"))?;
        Ok(Self { header, claims, signed, signature })
    }

    /// The issuer that the token names.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// The key that the token names, if its header is one of this provider.
    pub(super) fn key_name(&self, config: &IdentityProviderConfig) -> Result<KeyName, String> {
        if self.header.contains_key("crit") {
            return Err("the header of the token has `crit`, and this host knows no extension: get a token without it".to_owned());
        }
        let kind = self.header.get("typ").map(|kind| kind.as_str().unwrap_or_default().to_ascii_lowercase());
        let kind = kind.as_deref().map(|kind| kind.strip_prefix("application/").unwrap_or(kind));
        if kind.is_some_and(|kind| !TYPES.contains(&kind)) {
            return Err("`typ` of the token is neither `JWT` nor `at+jwt`: send an access token or an ID token".to_owned());
        }
        let named = self.header.get("alg").and_then(Value::as_str).unwrap_or_default();
        let algorithm = config.algorithms.iter().copied().find(|algorithm| algorithm.as_str() == named);
        let algorithm = algorithm.ok_or_else(|| {
            let taken = config.algorithms.iter().copied().map(TokenAlgorithm::as_str).collect::<Vec<_>>().join(", ");
            format!("the algorithm of the token (`alg`) is none that `{}` signs with here: {taken}", config.name)
        })?;
        let kid = match self.header.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err("`kid` of the token is no text: get a token that names its key".to_owned()),
        };
        Ok(KeyName { kid, algorithm })
    }

    /// Judges the claims. They count only once the signature is verified.
    pub(super) fn claims(&self, config: &IdentityProviderConfig, now: Timestamp) -> Result<Claims, String> {
        let name = &config.name;
        let is_ours = |audience: &Value| audience.as_str().is_some_and(|it| config.audiences.iter().any(|own| own == it));
        let is_for_us = match self.claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_ours),
            Some(audience) => is_ours(audience),
            None => false,
        };
        if !is_for_us {
            return Err(format!("the token is for another service (`aud`): ask `{name}` for a token for this one"));
        }
        let expires = self.time("exp")?.ok_or("the token has no end (`exp`): get one that has")?;
        let ends_at = expires.saturating_add(config.leeway_ms);
        if now >= ends_at {
            return Err(format!("the token has expired (`exp`): get another from `{name}`"));
        }
        if self.time("nbf")?.is_some_and(|from| from > now.saturating_add(config.leeway_ms)) {
            return Err("the token is not good yet (`nbf`): wait, or set the clock of the host or of the provider".to_owned());
        }
        let user = self.claims.get(&config.user_claim).and_then(Value::as_str).filter(|user| is_end_user(user));
        let user = user.ok_or_else(|| {
            format!(
                "the claim `{}` of the token names no user: it must be a text of 1 to {MAX_END_USER} bytes without control \
                 characters",
                config.user_claim
            )
        })?;
        Ok(Claims { user: user.to_owned(), ends_at })
    }

    /// A time claim in ms. Fractions of a second are allowed (RFC 7519, section 2).
    fn time(&self, claim: &str) -> Result<Option<Timestamp>, String> {
        let Some(value) = self.claims.get(claim) else { return Ok(None) };
        let malformed = || format!("the claim `{claim}` of the token is no time in seconds: get another token");
        if let Some(seconds) = value.as_u64() {
            return Ok(Some(seconds.saturating_mul(1_000)));
        }
        let seconds = value.as_f64().filter(|seconds| (0.0..1e12).contains(seconds)).ok_or_else(malformed)?;
        Ok(Some(std::time::Duration::from_secs_f64(seconds).as_millis().try_into().unwrap_or(Timestamp::MAX)))
    }

    /// Verifies the signature with the key that the token names.
    pub(super) fn verify(&self, name: &KeyName, keys: &KeySet) -> Result<(), String> {
        let found = keys.find(name);
        if name.kid.is_none() && found.len() > 1 {
            return Err("the token names no key (`kid`), and several fit: get a token that names its key".to_owned());
        }
        let is_signed = found.into_iter().any(|key| {
            let verified = jsonwebtoken::crypto::verify(self.signature, self.signed.as_bytes(), key, in_library(name.algorithm));
            verified.unwrap_or(false)
        });
        if is_signed { Ok(()) } else { Err("the signature of the token is wrong: get another token".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> IdentityProviderConfig {
        let text = "[[identity_providers]]\nname = \"login\"\nissuer = \"i\"\naudiences = [\"a\", \"b\"]\nworkspace = \"w\"\n\
                    scopes = [\"runs:read\"]\njwks_file = \"k\"\nleeway_ms = 1000";
        agent_host_config::Config::parse(text, std::path::Path::new(".")).unwrap().identity_providers.remove(0)
    }

    fn encoded(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", part(header), part(claims))
    }

    fn good() -> Value {
        json!({ "iss": "i", "aud": "a", "exp": 100, "sub": "ada" })
    }

    fn judged(claims: &Value, now: Timestamp) -> Result<Claims, String> {
        let text = encoded(&json!({ "alg": "RS256" }), claims);
        Token::parse(&text).unwrap().claims(&config(), now)
    }

    #[test]
    fn a_token_is_good_from_its_beginning_to_its_end_with_leeway() {
        let mut claims = good();
        claims["nbf"] = json!(50);
        for (now, is_good) in [(48_999, false), (49_000, true), (100_999, true), (101_000, false)] {
            assert_eq!(judged(&claims, now).is_ok(), is_good, "{now}");
        }
        assert_eq!(judged(&claims, 60_000).unwrap(), Claims { user: "ada".to_owned(), ends_at: 101_000 });
        claims["exp"] = json!(100.5);
        assert_eq!(judged(&claims, 60_000).unwrap().ends_at, 101_500);
        claims["exp"] = json!(u64::MAX);
        assert_eq!(judged(&claims, 60_000).unwrap().ends_at, Timestamp::MAX);
    }

    #[test]
    fn claims_that_cannot_be_are_named() {
        let long = "x".repeat(MAX_END_USER + 1);
        for (claim, value, says) in [
            ("aud", json!("c"), "`aud`"),
            ("aud", json!(["c", 7]), "`aud`"),
            ("aud", json!([]), "`aud`"),
            ("aud", json!(null), "`aud`"),
            ("exp", json!(null), "`exp`"),
            ("exp", json!("100"), "`exp`"),
            ("exp", json!(-1), "`exp`"),
            ("exp", json!(1e300), "`exp`"),
            ("nbf", json!("50"), "`nbf`"),
            ("nbf", json!(null), "`nbf`"),
            ("sub", json!(""), "`sub`"),
            ("sub", json!(7), "`sub`"),
            ("sub", json!("a\nb"), "`sub`"),
            ("sub", json!(long), "`sub`"),
        ] {
            let mut claims = good();
            claims[claim] = value.clone();
            assert!(judged(&claims, 0).unwrap_err().contains(says), "{claim}: {value}");
        }
        for missing in ["aud", "exp", "sub"] {
            let mut claims = good();
            claims.as_object_mut().unwrap().remove(missing);
            assert!(judged(&claims, 0).unwrap_err().contains(missing), "{missing}");
        }
        let mut claims = good();
        claims["aud"] = json!(["c", "b"]);
        assert!(judged(&claims, 0).is_ok());
    }

    #[test]
    fn a_header_that_cannot_be_is_named() {
        let name = |header: Value| {
            let text = encoded(&header, &good());
            Token::parse(&text).unwrap().key_name(&config())
        };
        for (header, says) in [
            (json!({}), "`alg`"),
            (json!({ "alg": "none" }), "`alg`"),
            (json!({ "alg": "HS256" }), "`alg`"),
            (json!({ "alg": "PS256" }), "`alg`"),
            (json!({ "alg": "rs256" }), "`alg`"),
            (json!({ "alg": "RS256", "crit": [] }), "`crit`"),
            (json!({ "alg": "RS256", "crit": null }), "`crit`"),
            (json!({ "alg": "RS256", "typ": "logout+jwt" }), "`typ`"),
            (json!({ "alg": "RS256", "typ": 7 }), "`typ`"),
            (json!({ "alg": "RS256", "kid": 7 }), "`kid`"),
        ] {
            assert!(name(header.clone()).unwrap_err().contains(says), "{header}");
        }
        for kind in ["JWT", "jwt", "at+jwt", "application/at+JWT"] {
            assert_eq!(name(json!({ "alg": "ES256", "typ": kind, "kid": "k" })).unwrap().kid.as_deref(), Some("k"), "{kind}");
        }
        for text in ["..", "a.b.c", "e30.e30", "e30.W10.c2ln", "e30=.e30.c2ln"] {
            assert!(Token::parse(text).is_err(), "{text}");
        }
    }
}

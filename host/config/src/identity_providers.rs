//! `[[identity_providers]]` of the configuration: services whose tokens name end users.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use agent_host_protocol::Scope;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The name is part of the ids of conversations.
const MAX_NAME_BYTES: usize = 32;
/// As long as ids of events may be.
const MAX_WORKSPACE_BYTES: usize = 256;
/// Texts that a token has to repeat: longer ones would not fit into it.
const MAX_CLAIM_BYTES: usize = 1_024;
/// An audience is compared with each of a token.
const MAX_AUDIENCES: usize = 16;
/// A clock that is more than five minutes off is to be set.
const MAX_LEEWAY_MS: u64 = 5 * 60 * 1000;
/// A token shares the head of its request, 32 KiB, with other headers.
const MAX_TOKEN_BYTES: usize = 16 << 10;
const MIN_TOKEN_BYTES: usize = 256;
/// A key set of a hundred RSA keys with their certificates has less.
const MAX_KEY_SET_BYTES: usize = 4 << 20;
/// Requests wait for a fetch.
const MAX_FETCH_MS: u64 = 60 * 1000;
/// A new key is to be known soon, and requests with made-up keys are not to load the provider.
const REFETCH_MS: (u64, u64) = (100, 60 * 1000);
/// A key that the provider has taken back is used for so long at most.
const MAX_REFRESH_MS: u64 = 24 * 60 * 60 * 1000;
const MAX_STALE_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// The rights that an end user can have.
const SCOPES: [Scope; 4] = [Scope::EventsWrite, Scope::RunsRead, Scope::RunsControl, Scope::ActionsRespond];

/// A service whose signed tokens (JWT, RFC 7519) name end users, such as an OpenID provider. A request with such a token reaches
/// the agents, and there the threads of its user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityProviderConfig {
    /// Name for audit records and the ids of its users: 1 to 32 letters, digits, `.`, `_` or `-`. Under another name the same
    /// people are other users.
    pub name: String,
    /// The issuer, exactly as the claim `iss` of tokens has it.
    pub issuer: String,
    /// The audiences of this host: the claim `aud` of a token has one of them.
    pub audiences: Vec<String>,
    /// Workspace of the users.
    pub workspace: String,
    /// Rights of the users: `events:write`, `runs:read`, `runs:control`, `actions:respond`.
    pub scopes: Vec<Scope>,
    /// Address of the key set (JWKS): https, or http at a loopback address such as `http://127.0.0.1:8080/keys`. The name
    /// `localhost` needs https as each name does. Redirects are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// A file with the key set, instead of `jwks_url`. It is read again as often as a key set is fetched again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<PathBuf>,
    /// The claim that names the user: a text of 1 to 128 bytes that never belongs to another user of the provider.
    #[serde(default = "user_claim")]
    pub user_claim: String,
    /// Signature algorithms of the tokens.
    #[serde(default = "algorithms")]
    pub algorithms: Vec<TokenAlgorithm>,
    /// Milliseconds that the clocks of the host and the provider may differ, up to 5 minutes. A token is good for so long after
    /// its end (`exp`) and before its beginning (`nbf`).
    #[serde(default = "leeway_ms")]
    pub leeway_ms: u64,
    /// Bytes of a token at most, 256 to 16384.
    #[serde(default = "token_bytes")]
    pub token_bytes: usize,
    /// Bytes of the key set at most, up to 4 MiB. It may have 100 keys.
    #[serde(default = "key_set_bytes")]
    pub key_set_bytes: usize,
    /// Milliseconds that a fetch of the key set may take, up to a minute.
    #[serde(default = "fetch_ms")]
    pub fetch_ms: u64,
    /// Milliseconds between two fetches at least, from 100 to a minute, also when tokens name keys that the set does not have.
    #[serde(default = "refetch_ms")]
    pub refetch_ms: u64,
    /// Milliseconds until a key set is fetched again, up to a day.
    #[serde(default = "refresh_ms")]
    pub refresh_ms: u64,
    /// Milliseconds that the last key set is used beyond `refresh_ms` while the provider does not answer, up to a week.
    #[serde(default = "stale_ms")]
    pub stale_ms: u64,
}

/// A signature algorithm of tokens (RFC 7518). All are asymmetric: a host that verifies cannot sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[allow(missing_docs, clippy::upper_case_acronyms, reason = "names of RFC 7518")]
pub enum TokenAlgorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl TokenAlgorithm {
    /// Every one.
    pub const ALL: [Self; 9] =
        [Self::RS256, Self::RS384, Self::RS512, Self::PS256, Self::PS384, Self::PS512, Self::ES256, Self::ES384, Self::EdDSA];

    /// The name in tokens and key sets.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RS256 => "RS256",
            Self::RS384 => "RS384",
            Self::RS512 => "RS512",
            Self::PS256 => "PS256",
            Self::PS384 => "PS384",
            Self::PS512 => "PS512",
            Self::ES256 => "ES256",
            Self::ES384 => "ES384",
            Self::EdDSA => "EdDSA",
        }
    }
}

fn user_claim() -> String {
    "sub".to_owned()
}

fn algorithms() -> Vec<TokenAlgorithm> {
    vec![TokenAlgorithm::RS256, TokenAlgorithm::ES256]
}

const fn leeway_ms() -> u64 {
    30_000
}

const fn token_bytes() -> usize {
    8 << 10
}

const fn key_set_bytes() -> usize {
    256 << 10
}

const fn fetch_ms() -> u64 {
    5_000
}

const fn refetch_ms() -> u64 {
    5_000
}

const fn refresh_ms() -> u64 {
    10 * 60 * 1000
}

const fn stale_ms() -> u64 {
    60 * 60 * 1000
}

impl IdentityProviderConfig {
    /// Takes the path of the key set relative to `base`.
    pub(crate) fn relative_to(&mut self, base: &Path) {
        if let Some(path) = &mut self.jwks_file {
            *path = base.join(&*path);
        }
    }

    /// Checks the values. Reads no file.
    ///
    /// # Errors
    /// Names the value and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=MAX_NAME_BYTES).contains(&self.name.len()) || !self.name.chars().all(legal) {
            return Err(format!("`name` must have 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`"));
        }
        let text = |key: &str, text: &str, most: usize| {
            if (1..=most).contains(&text.len()) && !text.chars().any(char::is_control) {
                return Ok(());
            }
            Err(format!("`{key}` must have 1 to {most} bytes without control characters"))
        };
        text("issuer", &self.issuer, MAX_CLAIM_BYTES)?;
        text("user_claim", &self.user_claim, MAX_CLAIM_BYTES)?;
        text("workspace", &self.workspace, MAX_WORKSPACE_BYTES)?;
        if !(1..=MAX_AUDIENCES).contains(&self.audiences.len()) {
            return Err(format!(
                "`audiences` must have 1 to {MAX_AUDIENCES} entries: without one, tokens for every other service would be good here"
            ));
        }
        self.audiences.iter().try_for_each(|audience| text("audiences", audience, MAX_CLAIM_BYTES))?;
        if self.scopes.is_empty() {
            return Err(format!("`scopes` must name at least one of: {}", SCOPES.map(Scope::as_str).join(", ")));
        }
        if let Some(scope) = self.scopes.iter().find(|scope| !SCOPES.contains(scope)) {
            return Err(format!(
                "`scopes` has `{scope}`, which a token of an end user cannot give: an end user may have {}",
                SCOPES.map(Scope::as_str).join(", ")
            ));
        }
        if self.algorithms.is_empty() {
            let all = TokenAlgorithm::ALL.map(TokenAlgorithm::as_str).join(", ");
            return Err(format!("`algorithms` must name at least one of: {all}"));
        }
        match (&self.jwks_url, &self.jwks_file) {
            (Some(url), None) => check_url(url)?,
            (None, Some(_)) => {}
            _ => return Err("either `jwks_url` or `jwks_file` says where the keys are: write one of them".to_owned()),
        }
        let within = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{key}` must be between {least} and {most}")) }
        };
        within("leeway_ms", self.leeway_ms, 0, MAX_LEEWAY_MS)?;
        within("token_bytes", self.token_bytes as u64, MIN_TOKEN_BYTES as u64, MAX_TOKEN_BYTES as u64)?;
        within("key_set_bytes", self.key_set_bytes as u64, 1, MAX_KEY_SET_BYTES as u64)?;
        within("fetch_ms", self.fetch_ms, 1, MAX_FETCH_MS)?;
        within("refetch_ms", self.refetch_ms, REFETCH_MS.0, REFETCH_MS.1)?;
        within("refresh_ms", self.refresh_ms, self.refetch_ms, MAX_REFRESH_MS)?;
        within("stale_ms", self.stale_ms, 0, MAX_STALE_MS)
    }
}

/// Checks the address of a key set: the keys decide which tokens are good.
fn check_url(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| format!("`jwks_url` cannot be read: {error}"))?;
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Domain(_)) => false,
        None => return Err("`jwks_url` must begin with https://".to_owned()),
    };
    match url.scheme() {
        "https" => {}
        "http" if is_loopback => {}
        "http" => {
            return Err("`jwks_url` must begin with https://: over http anybody on the way could put in keys. On this machine, write the \
                        address, as in http://127.0.0.1:8080/keys; `localhost` is a name"
                .to_owned());
        }
        _ => return Err("`jwks_url` must begin with https://".to_owned()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("`jwks_url` has a password: a key set is public, take the password out".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Config;

    use super::*;

    const PROVIDER: &str = "[[identity_providers]]\nname = \"login\"\nissuer = \"https://login.example/\"\n\
                            audiences = [\"agents\"]\nworkspace = \"acme\"\nscopes = [\"runs:read\"]\n";

    fn parse(text: &str) -> Result<Vec<IdentityProviderConfig>, String> {
        let config = Config::parse(text, Path::new("/etc/agent-host"));
        config.map(|config| config.identity_providers).map_err(|error| error.to_string())
    }

    fn with(more: &str) -> Result<IdentityProviderConfig, String> {
        parse(&format!("{PROVIDER}{more}")).map(|mut providers| providers.remove(0))
    }

    #[test]
    fn an_entry_has_defaults_and_a_path_relative_to_the_file() {
        let provider = with("jwks_file = \"keys.json\"").unwrap();
        assert_eq!(provider.jwks_file.as_deref(), Some(Path::new("/etc/agent-host/keys.json")));
        assert_eq!((provider.user_claim.as_str(), provider.leeway_ms, provider.token_bytes), ("sub", 30_000, 8_192));
        assert_eq!(provider.algorithms, [TokenAlgorithm::RS256, TokenAlgorithm::ES256]);
    }

    #[test]
    fn keys_come_over_https_or_from_a_loopback_address() {
        let url = |url: &str| with(&format!("jwks_url = \"{url}\""));
        for good in [
            "https://login.example/keys",
            "https://localhost/keys",
            "http://127.0.0.1:8080/keys",
            "http://[::1]/keys",
            "http://127.1/k",
        ] {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://login.example/keys",
            "http://localhost:8080/keys",
            "http://127.0.0.1.evil.example/",
            "http://127.0.0.1@evil.example/",
            "http://10.0.0.1/",
            "http://[::2]/",
            "file:///keys",
            "https://a:b@login.example/",
            "keys",
        ] {
            assert!(url(bad).unwrap_err().contains("`jwks_url`"), "{bad}");
        }
    }

    #[test]
    fn problems_are_named() {
        let keys = "jwks_url = \"https://login.example/keys\"\n";
        for (more, says) in [
            ("leeway_ms = 300001", "leeway_ms"),
            ("token_bytes = 255", "token_bytes"),
            ("token_bytes = 16385", "token_bytes"),
            ("key_set_bytes = 0", "key_set_bytes"),
            ("fetch_ms = 0", "fetch_ms"),
            ("refetch_ms = 99", "refetch_ms"),
            ("refresh_ms = 4999", "refresh_ms"),
            ("stale_ms = 604800001", "stale_ms"),
            ("user_claim = \"\"", "user_claim"),
            ("algorithms = []", "algorithms"),
            ("algorithms = [\"HS256\"]", "HS256"),
            ("algorithms = [\"none\"]", "none"),
            ("jwks_file = \"k\"", "`jwks_file`"),
            ("secret = \"x\"", "secret"),
        ] {
            let error = with(&format!("{keys}{more}")).expect_err(more);
            assert!(error.contains(says), "{more}\n→ {error}");
        }
        for (from, to, says) in [
            ("\"login\"", "\"a:b\"", "`name`"),
            ("\"login\"", "\"\"", "`name`"),
            ("\"login\"", "\"x123456789012345678901234567890123\"", "`name`"),
            ("[\"agents\"]", "[]", "`audiences`"),
            ("[\"agents\"]", "[\"\"]", "`audiences`"),
            ("\"https://login.example/\"", "\"\"", "`issuer`"),
            ("\"acme\"", "\"\"", "`workspace`"),
            ("[\"runs:read\"]", "[]", "`scopes`"),
            ("[\"runs:read\"]", "[\"on_behalf_of\"]", "`on_behalf_of`"),
            ("[\"runs:read\"]", "[\"runs:read\", \"admin\"]", "`admin`"),
            ("[\"runs:read\"]", "[\"runs:execute\"]", "`runs:execute`"),
            ("[\"runs:read\"]", "[\"everything\"]", "everything"),
        ] {
            let error = parse(&format!("{}{keys}", PROVIDER.replacen(from, to, 1))).expect_err(to);
            assert!(error.contains(says), "{to}\n→ {error}");
        }
        assert!(with("").unwrap_err().contains("`jwks_url`"));
        let twice = |issuer: &str, name: &str| {
            let second = PROVIDER.replace("https://login.example/", issuer).replace("\"login\"", name);
            parse(&format!("{PROVIDER}{keys}{second}{keys}"))
        };
        assert!(twice("https://other.example/", "\"login\"").unwrap_err().contains("have the id `login`"));
        assert!(twice("https://login.example/", "\"other\"").unwrap_err().contains("issuer"));
        assert_eq!(twice("https://other.example/", "\"other\"").unwrap().len(), 2);
    }
}

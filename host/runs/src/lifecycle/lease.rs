//! Lease tokens and MCP tokens: each is good for one claim of one run, and dies with it. A lease token is for the executor; an MCP
//! token is for the agent that the executor runs, and reaches the MCP endpoint of the run alone.
//!
//! Tokens are not stored: a token contains the run, the number of the claim, and a code over both that only this host can
//! make. A token stays valid across restarts, and becomes invalid when the record of the run shows another claim.

use agent_host_ledger::{EntryWrite, Ledger};
use agent_host_protocol::{
    RunId,
    auth::{LEASE_PREFIX, MCP_PREFIX},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::record::HostError;

/// The entry of the key for codes.
pub(crate) const ENTRY: &str = "secret/lease";
/// Bytes of a code: nobody guesses one of 2^128.
const CODE: usize = 16;

/// The purpose of a token of a claim.
#[derive(Clone, Copy)]
pub(crate) enum ClaimToken {
    /// Requests of the executor.
    Lease,
    /// The MCP endpoint of the run.
    Mcp,
}

impl ClaimToken {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Lease => LEASE_PREFIX,
            Self::Mcp => MCP_PREFIX,
        }
    }

    /// The name in messages to clients.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease token",
            Self::Mcp => "MCP token",
        }
    }
}

/// The key for codes.
pub(crate) struct LeaseKey([u8; 32]);

impl LeaseKey {
    /// The key of this ledger; made at the first use.
    pub(crate) async fn of(ledger: &Ledger) -> Result<Self, HostError> {
        let stored_key = ledger.entry(ENTRY)?.and_then(|entry| serde_json::from_str::<String>(entry.get()).ok());
        let stored_key = stored_key.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok());
        if let Some(key) = stored_key {
            return Ok(Self(key));
        }
        let key = random::<32>()?;
        ledger.put_entries(&[EntryWrite::put(ENTRY, &URL_SAFE_NO_PAD.encode(key))?]).await?;
        Ok(Self(key))
    }

    /// The signature of a message, by a key that is made from this one for its purpose alone: what is signed for one is
    /// nothing for another, and no code of a claim.
    fn signature(&self, purpose: &str, message: &[u8]) -> blake3::Hash {
        let key = blake3::derive_key(&format!("agent-host 2026-11-22 signatures: {purpose}"), &self.0);
        blake3::keyed_hash(&key, message)
    }

    /// The code of a claim, by a key for the purpose of its token.
    fn code(&self, purpose: ClaimToken, run_id: RunId, claim: u32) -> [u8; CODE] {
        let key = match purpose {
            ClaimToken::Lease => self.0,
            ClaimToken::Mcp => blake3::derive_key("agent-host 2026-11-25 MCP tokens of claims", &self.0),
        };
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&run_id.to_bytes());
        hasher.update(&claim.to_be_bytes());
        let mut code = [0; CODE];
        hasher.finalize_xof().fill(&mut code);
        code
    }

    /// The token of a claim.
    pub(crate) fn token(&self, purpose: ClaimToken, run_id: RunId, claim: u32) -> String {
        let bytes = [&run_id.to_bytes()[..], &claim.to_be_bytes(), &self.code(purpose, run_id, claim)].concat();
        format!("{}{}", purpose.prefix(), URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The claim that a token was made for. The caller checks that the claim is still valid.
    pub(crate) fn claim_of(&self, purpose: ClaimToken, token: &str) -> Option<(RunId, u32)> {
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(purpose.prefix())?).ok()?;
        let (run_id, rest) = bytes.split_first_chunk::<16>()?;
        let (claim, code) = rest.split_first_chunk::<4>()?;
        let (run_id, claim) = (RunId::from_bytes(*run_id), u32::from_be_bytes(*claim));
        let expected_code = self.code(purpose, run_id, claim);
        let differs = code.iter().zip(expected_code).fold(code.len() ^ CODE, |differs, (a, b)| differs | usize::from(a ^ b));
        (differs == 0).then_some((run_id, claim))
    }
}

impl LeaseKey {
    /// The signature of a message, as text that may be part of a URL.
    pub(crate) fn sign(&self, purpose: &str, message: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(self.signature(purpose, message).as_bytes())
    }
}

pub(crate) fn is_signature(key: &LeaseKey, purpose: &str, message: &[u8], signature: &str) -> bool {
    let sent_code = URL_SAFE_NO_PAD.decode(signature).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    // Hashes compare in constant time.
    sent_code.is_some_and(|sent_code| blake3::Hash::from_bytes(sent_code) == key.signature(purpose, message))
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], HostError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| HostError::Internal(format!("there is no randomness: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_claim_and_cannot_be_made_up() {
        let (key, other) = (LeaseKey([1; 32]), LeaseKey([2; 32]));
        let run_id = RunId::new();
        for (purpose, other_purpose) in [(ClaimToken::Lease, ClaimToken::Mcp), (ClaimToken::Mcp, ClaimToken::Lease)] {
            let prefix = purpose.prefix();
            let token = key.token(purpose, run_id, 7);
            assert_eq!(key.claim_of(purpose, &token), Some((run_id, 7)));
            assert_eq!(other.claim_of(purpose, &token), None);
            for at in prefix.len()..token.len() {
                let mut forged = token.clone().into_bytes();
                forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
                assert_eq!(key.claim_of(purpose, &String::from_utf8(forged).unwrap()), None, "{at}");
            }
            let shortened = &token[..token.len() - 2];
            for text in ["", prefix, &format!("{prefix}AAAA"), shortened, &format!("{token}AAAA"), "ahk_x"] {
                assert_eq!(key.claim_of(purpose, text), None, "{text}");
            }
            // Neither as it is nor under the prefix of the other purpose.
            assert_eq!(key.claim_of(other_purpose, &token), None);
            let renamed = token.replacen(prefix, other_purpose.prefix(), 1);
            assert_eq!(key.claim_of(other_purpose, &renamed), None);
        }
    }

    #[test]
    fn a_signature_is_good_for_its_message_and_purpose() {
        let key = LeaseKey([1; 32]);
        let signature = URL_SAFE_NO_PAD.encode(key.signature("a", b"message").as_bytes());
        assert!(is_signature(&key, "a", b"message", &signature));
        assert!(!is_signature(&LeaseKey([2; 32]), "a", b"message", &signature));
        assert!(!is_signature(&key, "b", b"message", &signature));
        assert!(!is_signature(&key, "a", b"messagE", &signature));
        assert!(!is_signature(&key, "a", b"", &signature));
        for at in 0..signature.len() {
            let mut forged = signature.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(!is_signature(&key, "a", b"message", &String::from_utf8(forged).unwrap()), "{at}");
        }
        for text in ["", "A", &signature[1..], &format!("{signature}A"), &format!("{signature}="), "ä"] {
            assert!(!is_signature(&key, "a", b"message", text), "{text}");
        }
    }
}

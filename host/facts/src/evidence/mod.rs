//! Evidence: a run, or all turns of a thread, as JSON Lines that a stranger verifies.
//!
//! Each line is an object with a `type`, a part of the run, and `hash`: SHA-256 of the hash of the line before (32 bytes; zeros in
//! front of the first line) and the canonical JSON (RFC 8785) of the line without its `hash`. The hash of the last line is the *head*:
//! whoever has it can tell a changed file from the exported one.
//!
//! A record line has the digest of the record up to its event (`link`), which the host stored with the run when it wrote the event
//! ([`agent_host_protocol::RecordDigest`]): that digest covers the data byte for byte, so a ledger that was changed later shows.
//!
//! The evidence of a thread begins with a line of its own, and has that of each turn after it, in one chain.
//!
//! - [`Part`], [`Chain`]: lines are made; - [`Verifier`]: lines are verified, as a stream, in bounded memory.

mod canonical;
mod part;
#[cfg(test)]
mod tests;
mod verify;

use sha2::{Digest, Sha256};

pub use self::{
    part::{Chain, Completeness, EvidenceError, Header, Part, RecordState, ThreadHeader, VERSION},
    verify::{Fault, MAX_EVIDENCE_LINE_BYTES, Verdict, Verifier},
};

/// A hash of a line.
type Hash = [u8; 32];

/// The hash of a line behind another.
fn hash_after(before: &Hash, canonical: &[u8]) -> Hash {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(canonical);
    hash.finalize().into()
}

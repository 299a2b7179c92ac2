//! Hash slots: each workspace is in one, and the ids of what belongs to a workspace end with it.

use std::fmt;

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// Number of hash slots.
const SLOTS: u16 = 4_096;
/// Hexadecimal digits of a hash slot.
const DIGITS: usize = 3;

/// A hash slot, as three hexadecimal digits.
///
/// In a cluster, partitions share the slots. An id that ends with its slot says to which partition a request is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSlot(u16);

impl HashSlot {
    /// The slot of a workspace. What is of no workspace is in the first one.
    #[must_use]
    pub fn of_workspace(workspace: Option<&str>) -> Self {
        match workspace {
            None | Some("") => Self(0),
            Some(workspace) => Self(u16::try_from(xxh3_64(workspace.as_bytes()) % u64::from(SLOTS)).unwrap_or_default()),
        }
    }

    /// The slot at the end of an id.
    #[must_use]
    pub fn of_id(id: &str) -> Option<Self> {
        let digits = id.get(id.len().checked_sub(DIGITS)?..)?;
        let is_lower_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        digits.bytes().all(is_lower_hex).then(|| u16::from_str_radix(digits, 16).ok().map(Self))?
    }

    /// One of `parts` equal ranges of slots, by its number from 0.
    #[must_use]
    pub fn part_of(self, parts: u32) -> u32 {
        u32::try_from(u64::from(self.0) * u64::from(parts) / u64::from(SLOTS)).unwrap_or_default()
    }

    /// A new UUIDv7 that ends with the slot. The digits are of its random end, so that ids of later things sort later.
    pub(crate) fn new_uuid(self) -> Uuid {
        let id = Uuid::now_v7().as_u128();
        Uuid::from_u128(id / u128::from(SLOTS) * u128::from(SLOTS) + u128::from(self.0))
    }
}

impl fmt::Display for HashSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_ends_with_its_slot() {
        for workspace in [None, Some(""), Some("acme"), Some("globex")] {
            let slot = HashSlot::of_workspace(workspace);
            let id = slot.new_uuid();
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(HashSlot::of_id(&id.to_string()), Some(slot), "{id}");
            assert!(id.to_string().ends_with(&slot.to_string()), "{id} {slot}");
        }
        for none in ["", "ab", "xyz", "skill-ABC", "a\u{20ac}", "\u{20ac}ab"] {
            assert_eq!(HashSlot::of_id(none), None, "{none}");
        }
    }

    #[test]
    fn a_workspace_keeps_its_slot_over_versions() {
        let slots = ["acme", "globex", "initech", "w"].map(|id| HashSlot::of_workspace(Some(id)).to_string());
        assert_eq!(slots, ["8e1", "72f", "15e", "e29"], "the slots are part of the format");
    }
}

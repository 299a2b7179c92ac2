//! The partition of a workspace. Everything of a workspace is in one ledger: its conversations, and the facts that they share, such as
//! idempotency keys, state and quotas.
//!
//! A workspace is in one of 4,096 hash slots, and a partition has a range of them, so a cluster could give a part of a range to another partition
//! without moving the rest.

use xxhash_rust::xxh3::xxh3_64;

/// Number of hash slots.
const SLOTS: u64 = 4_096;

/// One of the partitions of a cluster. A ledger of its own is the only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    number: u32,
    of: u32,
}

impl Partition {
    /// The only partition.
    pub const ONLY: Self = Self { number: 0, of: 1 };

    /// The partition with this number, of so many.
    #[must_use]
    pub const fn new(number: u32, of: u32) -> Self {
        Self { number, of }
    }

    /// The partition of a workspace. The first one has what is of no workspace.
    #[must_use]
    pub fn of_workspace(workspace: Option<&str>, of: u32) -> Self {
        let slot = match workspace {
            None | Some("") => 0,
            Some(workspace) => xxh3_64(workspace.as_bytes()) % SLOTS,
        };
        Self { number: u32::try_from(slot * u64::from(of) / SLOTS).unwrap_or_default(), of }
    }

    /// The number, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// True for the partition with the keys, and with what is of no workspace.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.number == 0
    }

    /// True for a ledger that has everything.
    #[must_use]
    pub const fn is_only(self) -> bool {
        self.of <= 1
    }

    /// True if the workspace belongs to this partition.
    #[must_use]
    pub fn has(self, workspace: Option<&str>) -> bool {
        self.is_only() || Self::of_workspace(workspace, self.of) == self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workspace_has_one_partition_and_they_are_spread() {
        for of in [1, 2, 7, 64] {
            let mut counts = vec![0; of as usize];
            for id in 0..10_000 {
                let workspace = format!("workspace-{id}");
                let partition = Partition::of_workspace(Some(&workspace), of);
                counts[partition.number() as usize] += 1;
                let owners = (0..of).filter(|number| Partition::new(*number, of).has(Some(&workspace))).count();
                assert_eq!(owners, 1);
            }
            let mean = 10_000 / of;
            assert!(counts.iter().all(|count| *count > mean / 2 && *count < mean * 2), "{of}: {counts:?}");
        }
        assert!(Partition::of_workspace(None, 64).is_first() && Partition::of_workspace(Some(""), 64).is_first());
    }

    #[test]
    fn a_workspace_keeps_its_partition_over_versions() {
        let numbers = ["acme", "globex", "initech", "w"].map(|id| Partition::of_workspace(Some(id), 64).number());
        assert_eq!(numbers, [35, 28, 5, 56], "the numbers are part of the format");
    }
}

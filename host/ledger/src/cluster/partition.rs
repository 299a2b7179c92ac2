//! The partition of a workspace. Everything of a workspace is in one ledger: its conversations, and the facts that they share, such as
//! idempotency keys, state and quotas.
//!
//! A workspace is in one of 4,096 hash slots, and a partition has a range of them, so a cluster could give a part of a range to another partition
//! without moving the rest. The ids of what belongs to a workspace end with its slot.

use agent_host_protocol::HashSlot;

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

    /// The partition with a hash slot. The first one has what is of no workspace.
    #[must_use]
    pub fn of_slot(slot: HashSlot, of: u32) -> Self {
        Self { number: slot.part_of(of), of }
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
        self.is_only() || Self::of_slot(HashSlot::of_workspace(workspace), self.of) == self
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
                let partition = Partition::of_slot(HashSlot::of_workspace(Some(&workspace)), of);
                counts[partition.number() as usize] += 1;
                let owners = (0..of).filter(|number| Partition::new(*number, of).has(Some(&workspace))).count();
                assert_eq!(owners, 1);
            }
            let mean = 10_000 / of;
            assert!(counts.iter().all(|count| *count > mean / 2 && *count < mean * 2), "{of}: {counts:?}");
        }
        assert!([None, Some("")].iter().all(|none| Partition::new(0, 64).has(*none)));
    }

    #[test]
    fn a_workspace_keeps_its_partition_over_versions() {
        for (workspace, number) in [("acme", 35), ("globex", 28), ("initech", 5), ("w", 56)] {
            assert!(Partition::new(number, 64).has(Some(workspace)), "the numbers are part of the format");
        }
    }
}

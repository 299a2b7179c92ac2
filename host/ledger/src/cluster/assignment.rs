//! Which host is to own which partition.
//!
//! All hosts see one list of hosts, that of the database, and compute the same from it: each partition goes to the host with the largest hash of
//! both that has not its share yet (rendezvous hashing with bounded loads). No host has more than one partition more than another, and a host that
//! joins or leaves moves little beside its own share.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The host that is to own a partition. `hosts` are the ids of those that may, ordered and separated by spaces.
pub(crate) fn assigned(hosts: &str, partitions: u32, partition: u64) -> Option<&str> {
    let hosts: Vec<&str> = hosts.split_whitespace().collect();
    let share = (partitions as usize).div_ceil(hosts.len().max(1));
    // So many hosts have one more than the others.
    let mut larger = partitions as usize - (share - 1) * hosts.len().min(partitions as usize);
    let mut loads = vec![0; hosts.len()];
    for number in 0..u64::from(partitions) {
        let room = |load: usize| load + 1 < share || (load + 1 == share && larger > 0);
        let best = (0..hosts.len())
            .filter(|host| loads.get(*host).is_some_and(|load| room(*load)))
            .max_by_key(|host| hosts.get(*host).map(|id| xxh3_64_with_seed(id.as_bytes(), number)));
        let best = best?;
        let load = loads.get_mut(best)?;
        *load += 1;
        if *load == share {
            larger -= 1;
        }
        if number == partition {
            return hosts.get(best).copied();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(hosts: &[String], partitions: u32) -> Vec<String> {
        let list = hosts.join(" ");
        (0..u64::from(partitions)).map(|partition| assigned(&list, partitions, partition).unwrap().to_owned()).collect()
    }

    #[test]
    fn shares_differ_by_one_at_most_and_a_host_that_joins_moves_little() {
        for count in 1..=9 {
            let hosts: Vec<_> = (0..count).map(|number| format!("host-{}", number * 7919)).collect();
            for partitions in [1, 2, 4, 8, 13, 64] {
                let now = all(&hosts, partitions);
                let loads: Vec<_> = hosts.iter().map(|host| now.iter().filter(|owner| *owner == host).count()).collect();
                let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
                assert!(most - least <= 1, "{partitions} over {count}: {loads:?}");
                let more: Vec<_> = hosts.iter().cloned().chain(["host-new".to_owned()]).collect();
                let moved = all(&more, partitions).iter().zip(&now).filter(|(then, now)| then != now).count();
                let share = (partitions as usize).div_ceil(count + 1);
                assert!(moved <= 3 * share, "{partitions} over {count}: {moved} moved");
            }
        }
        assert_eq!(assigned("", 4, 0), None);
    }
}

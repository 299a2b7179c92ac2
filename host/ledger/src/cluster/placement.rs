//! Which hosts are to have which partition: one owns it, and some follow it, each with a copy.
//!
//! All hosts see one list of hosts, that of the database, and compute the same from it: each partition goes to the host with the largest hash of
//! both that has not its share yet (rendezvous hashing with bounded loads), and so do its followers, from the hosts that are left. No host owns more
//! than one partition more than another, and a host that joins or leaves moves little beside its own share.

use std::cmp::Reverse;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cluster::schema::FIRST_PARTITION;

/// Stands for copies of all partitions.
const ALL: &str = "*";

/// The list of the hosts that partitions are given to, for [`LiveHosts::of`]: `ID:NUMBER,NUMBER`, separated by spaces. A host of the version before says
/// only whether it has copies of all partitions.
macro_rules! live_hosts {
    () => {
        "coalesce((select string_agg(o.host_id || ':' || coalesce(o.copies, case when o.follows then '*' else '' end), ' ' \
         order by o.host_id) from agent_host.hosts o where not o.drained and o.lease_until > clock_timestamp()), '')"
    };
}
pub(super) use live_hosts;

/// The hosts that partitions are given to: those that are alive and not drained.
pub(super) struct LiveHosts<'a>(Vec<LiveHost<'a>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct LiveHost<'a> {
    id: &'a str,
    /// Numbers of the partitions of which it has copies that are not behind.
    copies: &'a str,
}

impl LiveHost<'_> {
    fn has(&self, partition: i64) -> bool {
        self.copies == ALL || self.copies.split(',').any(|number| number.parse() == Ok(partition))
    }

    fn hash(&self, partition: i64) -> u64 {
        xxh3_64_with_seed(self.id.as_bytes(), partition.unsigned_abs())
    }
}

impl<'a> LiveHosts<'a> {
    /// As the database lists them.
    pub(super) fn of(list: &'a str) -> Self {
        Self(
            list.split_whitespace()
                .map(|host| host.split_once(':').unwrap_or((host, "")))
                .map(|(id, copies)| LiveHost { id, copies })
                .collect(),
        )
    }

    /// The hosts that are to have a partition: the owner, and then so many followers.
    fn placed(&self, partitions: u32, partition: i64, followers: u32) -> Vec<LiveHost<'a>> {
        let mut placed = vec![Vec::new(); partitions as usize];
        let mut loads = vec![0; self.0.len()];
        for _ in 0..=followers.min(u32::try_from(self.0.len()).unwrap_or(u32::MAX)) {
            self.place_one_more(&mut placed, &mut loads);
        }
        usize::try_from(partition).ok().and_then(|number| placed.into_iter().nth(number)).unwrap_or_default()
    }

    /// Gives each partition to one more host, while there is another. `loads` are the numbers of partitions of the hosts.
    fn place_one_more(&self, placed: &mut [Vec<LiveHost<'a>>], loads: &mut [usize]) {
        let (hosts, copies) = (self.0.len(), placed.len() + loads.iter().sum::<usize>());
        let share = copies.div_ceil(hosts.max(1));
        // So many hosts have one more than the others.
        let mut larger = copies - (share - 1) * hosts.min(copies);
        for (number, placed) in (0..).zip(placed) {
            let is_full = |load: usize| load >= share || (load + 1 == share && larger == 0);
            let others = self.0.iter().zip(loads.iter_mut()).filter(|(host, _)| !placed.contains(host));
            // The hosts with room may all have the partition already.
            let best = others.min_by_key(|(host, load)| (if is_full(**load) { **load } else { 0 }, Reverse(host.hash(number))));
            let Some((host, load)) = best else { continue };
            *load += 1;
            if *load == share {
                larger = larger.saturating_sub(1);
            }
            placed.push(*host);
        }
    }

    /// The host that is to own a partition, where it has a copy of it.
    pub(super) fn owner(&self, partitions: u32, partition: i64) -> Option<&'a str> {
        let placed = self.placed(partitions, partition, 0);
        placed.first().filter(|host| host.has(partition)).map(|host| host.id)
    }

    /// The host that is to take a partition that nobody holds: one with a copy of it. `None` where no host says that it has one.
    pub(super) fn successor(&self, partitions: u32, partition: i64) -> Option<&'a str> {
        let with_copies = || self.0.iter().filter(|host| host.has(partition));
        self.owner(partitions, partition).or_else(|| with_copies().max_by_key(|host| host.hash(partition)).map(|host| host.id))
    }

    /// True where a host other than `this` has a copy of a partition.
    pub(super) fn has_copy_beside(&self, this: &str, partition: i64) -> bool {
        self.0.iter().any(|host| host.id != this && host.has(partition))
    }

    /// The place of the host `this` at a partition with so many followers.
    pub(super) fn place_of(&self, this: &str, partitions: u32, partition: i64, followers: u32) -> Place {
        if partition == FIRST_PARTITION || self.0.is_empty() {
            return Place::Wanted;
        }
        let placed = self.placed(partitions, partition, followers);
        if placed.iter().any(|host| host.id == this) {
            Place::Wanted
        } else if placed.iter().all(|host| host.has(partition)) && self.0.iter().any(|host| host.id == this) {
            Place::Spare
        } else {
            Place::Stopgap
        }
    }
}

/// The use of a copy of a partition at one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The host is to own the partition, or to follow it. Each is to follow the first one, which has the keys.
    Wanted,
    /// Other hosts are to have it, and one of them has no copy yet; or this host is drained, and may be back soon.
    Stopgap,
    /// The hosts that are to have it have copies.
    Spare,
}

/// The place with a list of hosts, which seldom changes.
#[derive(Debug, Default)]
pub(super) struct KnownPlace(Option<(String, Place)>);

impl KnownPlace {
    pub(super) fn with(&mut self, hosts: &str, place: impl FnOnce(&str) -> Place) -> Place {
        match &self.0 {
            Some((known, place)) if known == hosts => *place,
            _ => self.0.insert((hosts.to_owned(), place(hosts))).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(hosts: &[String]) -> String {
        hosts.iter().map(|host| format!("{host}:*")).collect::<Vec<_>>().join(" ")
    }

    fn owners(hosts: &[String], partitions: u32) -> Vec<String> {
        let list = list(hosts);
        let owner = |partition| LiveHosts::of(&list).owner(partitions, i64::from(partition)).unwrap().to_owned();
        (0..partitions).map(owner).collect()
    }

    #[test]
    fn shares_differ_by_one_at_most_and_a_host_that_joins_moves_little() {
        for count in 1..=9 {
            let hosts: Vec<_> = (0..count).map(|number| format!("host-{}", number * 7919)).collect();
            for partitions in [1, 2, 4, 8, 13, 64] {
                let now = owners(&hosts, partitions);
                let loads: Vec<_> = hosts.iter().map(|host| now.iter().filter(|owner| *owner == host).count()).collect();
                let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
                assert!(most - least <= 1, "{partitions} over {count}: {loads:?}");
                let more: Vec<_> = hosts.iter().cloned().chain(["host-new".to_owned()]).collect();
                let moved = owners(&more, partitions).iter().zip(&now).filter(|(then, now)| then != now).count();
                let share = (partitions as usize).div_ceil(count + 1);
                assert!(moved <= 3 * share, "{partitions} over {count}: {moved} moved");
            }
        }
        assert_eq!(LiveHosts::of("").owner(4, 0), None);
    }

    #[test]
    fn each_partition_has_its_followers_at_other_hosts_and_each_host_its_part_of_them() {
        for count in 1..=9_usize {
            let hosts: Vec<_> = (0..count).map(|number| format!("host-{}", number * 7919)).collect();
            let list = list(&hosts);
            let live = LiveHosts::of(&list);
            for (partitions, followers) in [(8, 0), (8, 1), (13, 2), (64, 1), (64, 20)] {
                let mut copies = vec![0; count];
                for partition in 0..i64::from(partitions) {
                    let placed = live.placed(partitions, partition, followers);
                    assert_eq!(placed.len(), count.min(followers as usize + 1));
                    assert!((1..placed.len()).all(|place| !placed[..place].contains(&placed[place])));
                    assert_eq!(live.owner(partitions, partition), Some(placed[0].id));
                    for (host, copies) in hosts.iter().zip(&mut copies) {
                        let is_placed = placed.iter().any(|placed| placed.id == host);
                        *copies += usize::from(is_placed);
                        let place = live.place_of(host, partitions, partition, followers);
                        assert_eq!(place == Place::Wanted, is_placed || partition == 0);
                    }
                }
                let mean = partitions as usize * count.min(followers as usize + 1) / count;
                assert!(copies.iter().all(|copies| copies.abs_diff(mean) <= 2), "{partitions} over {count}: {copies:?}");
            }
        }
    }

    #[test]
    fn a_host_without_a_copy_takes_nothing_and_keeps_others_from_leaving() {
        let placed = |list: &str| {
            let ids: Vec<_> = LiveHosts::of(list).placed(8, 3, 1).iter().map(|host| host.id.to_owned()).collect();
            <[String; 2]>::try_from(ids).unwrap()
        };
        let [owner, follower] = placed("a: b: c:");
        let third = ["a", "b", "c"].into_iter().find(|host| **host != owner && **host != follower).unwrap();
        let list = |of_owner: &str, of_follower: &str| format!("{owner}:{of_owner} {follower}:{of_follower} {third}:0,3");
        let (nothing, partly, all) = (list("0", "0"), list("0,33", "0,3"), list("3", "*"));
        for (list, owns, takes, place) in [
            (&nothing, None, Some(third), Place::Stopgap),
            (&partly, None, None, Place::Stopgap),
            (&all, Some(owner.as_str()), Some(owner.as_str()), Place::Spare),
        ] {
            let live = LiveHosts::of(list);
            assert_eq!(live.owner(8, 3), owns, "{list}");
            let successor = live.successor(8, 3).unwrap();
            assert!(takes.map_or(successor != owner, |takes| takes == successor), "{list}");
            assert_eq!(live.place_of(third, 8, 3, 1), place, "{list}");
            assert_eq!(live.place_of(&owner, 8, 3, 1), Place::Wanted);
            assert_eq!(live.place_of("drained", 8, 3, 1), Place::Stopgap);
            assert!(live.has_copy_beside(&owner, 3));
        }
        assert!(!LiveHosts::of("a:3 b:").has_copy_beside("a", 3));
        assert_eq!((LiveHosts::of("a: b:").successor(8, 3), LiveHosts::of("").place_of("a", 8, 3, 1)), (None, Place::Wanted));
    }
}

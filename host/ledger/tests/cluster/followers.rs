//! Copies: each partition has its owner and some followers, and the other hosts look on.

use std::{collections::BTreeMap, path::Path};

use agent_host_ledger::{ClusterOptions, drain_host};
use tempfile::TempDir;

use crate::{
    common::{postgres::shared, *},
    hosts::*,
    partitions::{Host, copy},
};

const PARTITIONS: u32 = 8;
const NAMES: [&str; 4] = ["a:1", "b:1", "c:1", "d:1"];

/// The partitions of which a host has files.
fn on_disk(dir: &Path) -> Vec<u32> {
    (0..PARTITIONS).filter(|partition| copy(dir, *partition).dir.exists()).collect()
}

/// True when each partition has as many copies as it is to have, which the files of the hosts are. Each host has one of the first.
fn copies_are(url: &str, hosts: &[(&str, &TempDir)], wanted: usize) -> bool {
    let status = status_of(url);
    let mut counts = BTreeMap::new();
    for host in &status.hosts {
        let (_, dir) = hosts.iter().find(|(name, _)| *name == host.advertise).unwrap();
        if on_disk(dir.path()) != host.copies || !host.partitions.iter().all(|owned| host.copies.contains(owned)) {
            return false;
        }
        host.copies.iter().for_each(|partition| *counts.entry(*partition).or_default() += 1);
    }
    let all = hosts.len();
    status.hosts.len() == all
        && (0..PARTITIONS).all(|number| counts.get(&number) == Some(if number == 0 { &all } else { &wanted }))
}

/// The rows of a partition, wherever it is.
async fn rows(hosts: &[Host], partition: u32) -> String {
    loop {
        if let Some(ledger) = hosts.iter().find_map(|host| host.ledger(partition)) {
            return exported(&ledger);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_partition_has_one_follower_beside_its_owner_whichever_hosts_come_and_go() {
    let dirs: [_; 4] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let start = |number: usize| Host::of(dirs[number].path(), &member(&url, NAMES[number]));
    let mut hosts = vec![start(0)];
    let before = hosts[0].write_to_all(PARTITIONS).await;
    hosts.extend((1..4).map(start));
    let named: Vec<_> = NAMES.into_iter().zip(&dirs).collect();
    let shares = |hosts: &[Host]| hosts.iter().all(|host| host.owns().len() == PARTITIONS as usize / hosts.len());
    until("four hosts share the partitions and their copies", || shares(&hosts) && copies_are(&url, &named, 2));

    // Two hosts leave at one moment, and with them both copies of some partitions: the next owners begin from the log.
    let left: Vec<_> = hosts.drain(2..).map(|host| std::thread::spawn(|| host.stop())).collect();
    left.into_iter().for_each(|host| host.join().unwrap());
    until("two hosts have everything", || shares(&hosts) && copies_are(&url, &named[..2], 2));
    // A host that comes back has what it left, and gives up what is not its own any more.
    hosts.push(start(2));
    until("three hosts share the copies", || copies_are(&url, &named[..3], 2));
    for (partition, before) in (0..PARTITIONS).zip(&before) {
        assert_eq!(rows(&hosts, partition).await, *before, "partition {partition}");
    }
    hosts.into_iter().for_each(Host::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drained_host_keeps_a_partition_until_another_one_has_a_copy() {
    let dirs: [_; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let alone = |name: &str| ClusterOptions { followers: 0, ..member(&url, name) };
    let first = Host::of(dirs[0].path(), &alone("a:1"));
    let before = first.write_to_all(PARTITIONS).await;
    let hosts = [first, Host::of(dirs[1].path(), &alone("b:1"))];
    let named: Vec<_> = NAMES.into_iter().zip(&dirs).collect();
    until("each host has its own partitions alone", || copies_are(&url, &named, 1));
    let server = member(&url, "x").server;
    let drained = tokio::task::spawn_blocking(move || drain_host(&server, "a:1")).await.unwrap().unwrap();
    assert_eq!(drained.active, ["b:1"], "{drained:?}");
    until("the other host has all partitions", || hosts[1].owns().len() == PARTITIONS as usize);
    for (partition, before) in (0..PARTITIONS).zip(&before) {
        assert_eq!(rows(&hosts, partition).await, *before, "partition {partition}");
    }
    assert!(on_disk(dirs[0].path()).len() > 1, "a drained host, which may be back soon, keeps its copies");
    hosts.into_iter().for_each(Host::stop);
}

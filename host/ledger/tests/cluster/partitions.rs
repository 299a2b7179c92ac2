//! Several partitions: each has an owner and a log of its own, hosts share them, and each moves by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use agent_host_ledger::{
    ClusterError, ClusterMember, ClusterOptions, Ledger, OpenError, Options, cluster_status, drain_host, init_cluster,
};
use parking_lot::Mutex;

use crate::{
    common::{postgres::shared, *},
    hosts::*,
};

const PARTITIONS: u32 = 6;

/// A host that follows or looks on at each partition, and serves those that it takes until it is to give one to another host.
pub struct Host {
    owned: Arc<Mutex<BTreeMap<u32, Ledger>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

pub fn copy(dir: &Path, partition: u32) -> Options {
    Options { cache_bytes: 4 << 20, ..host_options(&dir.join(partition.to_string())) }
}

impl Host {
    fn start(dir: &Path, url: &str, advertise: &str) -> Self {
        Self::of(dir, &member(url, advertise))
    }

    pub fn of(dir: &Path, cluster: &ClusterOptions) -> Self {
        let joined = ClusterMember::join(&host_options(dir), cluster).unwrap();
        let (owned, stop) = (Arc::<Mutex<BTreeMap<u32, Ledger>>>::default(), Arc::default());
        let threads = (0..joined.partitions()).map(|partition| {
            let (joined, options, owned, stop) = (joined.clone(), copy(dir, partition), Arc::clone(&owned), Arc::clone(&stop));
            std::thread::spawn(move || serve(&joined, partition, &options, &owned, &stop))
        });
        let threads = threads.collect();
        Self { owned, threads, stop }
    }

    pub fn owns(&self) -> Vec<u32> {
        self.owned.lock().keys().copied().collect()
    }

    pub fn ledger(&self, partition: u32) -> Option<Ledger> {
        self.owned.lock().get(&partition).cloned()
    }

    /// Waits until the host owns all partitions, writes a run to each, and gives their rows.
    pub async fn write_to_all(&self, partitions: u32) -> Vec<String> {
        until("the first host has all partitions", || self.owns().len() == partitions as usize);
        let mut written = Vec::new();
        for partition in 0..partitions {
            let ledger = self.ledger(partition).unwrap();
            let run = new_run(&ledger).await;
            finish(&ledger, run.run_no, 1).await;
            assert_eq!(run.run_no, 1, "each partition counts for itself");
            written.push(exported(&ledger));
        }
        written
    }

    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn serve(joined: &ClusterMember, partition: u32, options: &Options, owned: &Mutex<BTreeMap<u32, Ledger>>, stop: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_stopped = || stop.load(Ordering::Relaxed);
    while !is_stopped() {
        let has_copy = partition == 0 || options.dir.exists();
        if !has_copy && !joined.look_on(partition, &options.dir).unwrap().wait(is_stopped) {
            return;
        }
        let standby = match joined.follow(partition, options.clone()) {
            // A clone of the ledger is still with a test.
            Err(OpenError::AlreadyOpen { .. }) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            followed => followed.unwrap(),
        };
        let Some(ledger) = standby.activate(is_stopped, |_| ()).unwrap() else { continue };
        owned.lock().insert(partition, ledger.clone());
        while !is_stopped() && !ledger.gives_way() {
            std::thread::sleep(Duration::from_millis(10));
        }
        owned.lock().remove(&partition);
        runtime.block_on(ledger.close()).unwrap();
    }
}

/// The owner of each partition, as the database has it.
fn owners(url: &str) -> Vec<Option<String>> {
    status_of(url).partitions.into_iter().map(|partition| partition.owner).collect()
}

/// A batch whose number is taken ends the owner of its partition, and holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_of_several_partitions_are_written_together_and_each_is_fenced_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let database = cluster_of(shared(), 4);
    let url = shared().url(&database);
    let joined = ClusterMember::join(&host_options(dir.path()), &member(&url, "a:1")).unwrap();
    let owned = |partition| joined.follow(partition, copy(dir.path(), partition)).unwrap().activate(|| false, |_| ());
    let ledgers: Vec<Ledger> = (0..4).map(|partition| owned(partition).unwrap().unwrap()).collect();
    let writers: Vec<_> = ledgers
        .iter()
        .cloned()
        .map(|ledger| {
            tokio::spawn(async move {
                for _ in 0..50 {
                    new_run(&ledger).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let counts = shared().sql(&database, "select count(*) || ' ' || count(distinct xmin::text) from agent_host.log");
    let (batches, transactions) = counts.split_once(' ').unwrap();
    let [batches, transactions] = [batches, transactions].map(|count| count.parse::<u64>().unwrap());
    assert!(batches >= 4 && transactions < batches, "{batches} batches in {transactions} transactions");

    let taken = "insert into agent_host.log (p, seq, epoch, frame) select 0, max(seq) + 1, max(epoch) + 1, '' from agent_host.log where p = 0";
    shared().sql(&database, taken);
    let writes = ledgers.iter().map(|ledger| ledger.accept(accept(event(), Vec::new())));
    let written: Vec<bool> = futures_util::future::join_all(writes).await.iter().map(Result::is_ok).collect();
    assert_eq!(written, [false, true, true, true]);
    for ledger in &ledgers[1..] {
        new_run(ledger).await;
    }
}

/// Hosts that join get their share, one that ends in good order or is drained leaves it to the others, and no run is lost on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_share_the_partitions_and_each_keeps_its_rows_wherever_it_goes() {
    let dirs: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let database = cluster_of(shared(), PARTITIONS);
    let url = shared().url(&database);
    let first = Host::start(dirs[0].path(), &url, "a:1");
    let written: BTreeMap<_, _> = (0..PARTITIONS).zip(first.write_to_all(PARTITIONS).await).collect();
    assert_eq!(written.values().collect::<BTreeSet<_>>().len(), PARTITIONS as usize);

    let others = [Host::start(dirs[1].path(), &url, "b:1"), Host::start(dirs[2].path(), &url, "c:1")];
    let hosts = [&first, &others[0], &others[1]];
    until("each host has its share", || hosts.iter().all(|host| host.owns().len() == PARTITIONS as usize / hosts.len()));
    let of = |partition: u32| hosts.iter().find_map(|host| host.ledger(partition));
    for (partition, before) in &written {
        let rows = loop {
            // A partition may be on its way.
            if let Some(ledger) = of(*partition) {
                break exported(&ledger);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(rows, *before, "partition {partition}");
    }
    let owners_now: BTreeSet<_> = owners(&url).into_iter().flatten().collect();
    assert_eq!(owners_now.len(), hosts.len(), "{owners_now:?}");

    // A host that ends gives its partitions to those that are left; they stay where they are then.
    first.stop();
    let left = [&others[0], &others[1]];
    until("the others have all", || left.iter().all(|host| host.owns().len() == PARTITIONS as usize / left.len()));
    let outcome = tokio::task::spawn_blocking({
        let url = url.clone();
        move || drain_host(&member(&url, "x").server, "b:1")
    });
    let outcome = outcome.await.unwrap().unwrap();
    assert_eq!(outcome.active, ["c:1"], "{outcome:?}");
    until("one host has all", || others[1].owns().len() == PARTITIONS as usize && others[0].owns().is_empty());
    for (partition, before) in &written {
        assert_eq!(exported(&others[1].ledger(*partition).unwrap()), *before);
    }
    for host in others {
        host.stop();
    }
    assert!(status_of(&url).hosts.is_empty() && owners(&url).iter().all(Option::is_none));
}

/// A copy of a log that grows all the time never has all of it, and its host gets its share nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_joins_gets_its_share_of_what_is_written_to_all_the_time() {
    let dirs: [_; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let first = Host::start(dirs[0].path(), &url, "a:1");
    until("the first host has all partitions", || first.owns().len() == PARTITIONS as usize);
    let writers = (0..PARTITIONS).map(|partition| {
        let ledger = first.ledger(partition).unwrap();
        // Until the partition moves.
        tokio::spawn(async move { while ledger.accept(accept(event(), Vec::new())).await.is_ok() {} })
    });
    let writers: Vec<_> = writers.collect();
    let second = Host::start(dirs[1].path(), &url, "b:1");
    until("each host has its share", || second.owns().len() == PARTITIONS as usize / 2);
    first.stop();
    for writer in writers {
        writer.await.unwrap();
    }
    second.stop();
}

#[test]
fn a_copy_of_one_partition_is_none_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let url = shared().url(&cluster_of(shared(), 2));
    let joined = ClusterMember::join(&host_options(dir.path()), &member(&url, "a:1")).unwrap();
    let standby = joined.follow(0, copy(dir.path(), 0)).unwrap();
    drop(standby.activate(|| false, |_| ()).unwrap().unwrap());
    let error = joined.follow(1, copy(dir.path(), 0)).unwrap_err();
    assert!(error.to_string().contains("not a copy of this cluster's"), "{error}");
    joined.follow(1, copy(dir.path(), 1)).unwrap().activate(|| true, |_| ()).unwrap();
}

#[test]
fn a_cluster_has_a_number_of_partitions_within_bounds() {
    let server = member(&shared().url(&empty_database(shared())), "x").server;
    for asked in [0, 65] {
        let error = init_cluster(&server, None, asked).unwrap_err();
        assert!(matches!(error, ClusterError::Partitions { .. }), "{error}");
    }
    init_cluster(&server, None, 64).unwrap();
    assert_eq!(cluster_status(&server).unwrap().partitions.len(), 64);
}

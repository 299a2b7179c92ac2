//! Hosts of a cluster, in this process or in processes of their own.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use agent_host_ledger::{
    ClusterMember, ClusterOptions, ClusterStatus, Ledger, OpenError, Options, PartitionStatus, PostgresServer, Standby,
    StandbyWatch, StorageAddress, cluster_status, init_cluster,
};

use crate::common::postgres::Postgres;

/// A lease that tests can wait for.
pub const LEASE: Duration = Duration::from_secs(3);

/// A database with a cluster.
pub fn cluster(postgres: &Postgres) -> String {
    cluster_with(postgres, None)
}

/// A database with a cluster whose contents are in an object store.
pub fn cluster_with(postgres: &Postgres, blobs: Option<&StorageAddress>) -> String {
    let name = empty_database(postgres);
    init_cluster(&PostgresServer::parse(&postgres.url(&name), None).unwrap(), blobs, 1).unwrap();
    name
}

/// A database with a cluster of so many partitions.
pub fn cluster_of(postgres: &Postgres, partitions: u32) -> String {
    let name = empty_database(postgres);
    init_cluster(&PostgresServer::parse(&postgres.url(&name), None).unwrap(), None, partitions).unwrap();
    name
}

/// A database without a cluster.
pub fn empty_database(postgres: &Postgres) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let name = format!("cluster_{}", LAST.fetch_add(1, Ordering::Relaxed));
    postgres.create(&name);
    name
}

pub fn member(url: &str, advertise: &str) -> ClusterOptions {
    ClusterOptions {
        server: PostgresServer::parse(url, None).unwrap(),
        advertise: advertise.to_owned(),
        version: "test".to_owned(),
        lease: LEASE,
        followers: 1,
        blobs: None,
    }
}

pub fn host_options(dir: &Path) -> Options {
    Options { checkpoint_interval: Duration::from_millis(50), ..Options::new(dir.join("ledger")) }
}

/// The ledger, when this host has taken it over.
pub fn active(dir: &Path, url: &str, advertise: &str) -> Ledger {
    Standby::join(host_options(dir), &member(url, advertise)).unwrap().activate(|| false, |_| ()).unwrap().unwrap()
}

pub fn status_of(url: &str) -> ClusterStatus {
    cluster_status(&member(url, "x").server).unwrap()
}

/// The status of the first partition.
pub fn first_partition(url: &str) -> PartitionStatus {
    status_of(url).partitions.remove(0)
}

/// A host that follows in a thread, and takes over when it can.
pub struct Warm {
    pub watch: StandbyWatch,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Option<Ledger>, OpenError>>,
}

impl Warm {
    pub fn start(dir: &Path, url: &str, advertise: &str) -> Self {
        Self::start_with(host_options(dir), url, advertise)
    }

    pub fn start_with(options: Options, url: &str, advertise: &str) -> Self {
        Self::follow(Standby::join(options, &member(url, advertise)).unwrap())
    }

    /// The first partition, which a member follows.
    pub fn again(member: &ClusterMember, dir: &Path) -> Self {
        Self::follow(member.follow(0, host_options(dir)).unwrap())
    }

    pub fn follow(standby: Standby) -> Self {
        let (watch, stop) = (standby.watch(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || standby.activate(|| stopped.load(Ordering::Relaxed), |_| ()));
        Self { watch, stop, thread }
    }

    /// Waits until the copy has a batch.
    pub fn has(&self, batch: u64) {
        until("the copy has the batch", || self.watch.status().last_batch >= Some(batch));
    }

    /// The ledger, when the host has taken over.
    pub fn wait(self) -> Ledger {
        self.thread.join().unwrap().unwrap().unwrap()
    }

    /// The result of a host that nobody stops.
    pub fn result(self) -> Result<Option<Ledger>, OpenError> {
        self.thread.join().unwrap()
    }

    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().unwrap().unwrap().is_none());
    }
}

pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The last batch of the log.
pub fn last_batch(postgres: &Postgres, database: &str) -> u64 {
    postgres.sql(database, "select coalesce(max(seq), 0) from agent_host.log").parse().unwrap()
}

/// The rows of all tables of a closed copy, in the order of keys, as a backup of them has them.
pub fn rows(dir: &Path) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
    let path: PathBuf = dir.join("ledger/ledger.redb");
    let database = redb::Database::open(path).unwrap();
    let transaction = database.begin_read().unwrap();
    let mut rows = Vec::new();
    let mut names: Vec<String> = transaction.list_tables().unwrap().map(|table| table.name().to_owned()).collect();
    names.sort();
    for name in names {
        let table = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name)).unwrap();
        for row in table.iter().unwrap() {
            let (key, value) = row.unwrap();
            rows.push((name.clone(), key.value().to_vec(), value.value().to_vec()));
        }
    }
    rows
}

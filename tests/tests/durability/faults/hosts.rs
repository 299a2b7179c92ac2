//! Three hosts of a cluster, each behind networks that break: one before the database, one before its listener for hosts, one before that
//! for clients.

use std::{
    fs,
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{LEASE_MS, Member, World, cluster_command, command_line_of, lay_out},
    forwarding::SECRET,
    postgres::free_port,
    proxy::Proxy,
};

const HOSTS: usize = 3;
/// Small, so that the logs are trimmed and hosts begin from snapshots.
const SNAPSHOT_LOG_BYTES: u64 = 128 * 1024;
/// The file in the folder of a host that says by how many seconds its clock is off.
const CLOCK: &str = "clock";
/// The lines of a log that are shown.
const LINES: usize = 60;
/// Commits of so long are lost with a database.
const LOST: Duration = Duration::from_millis(300);
/// A host that nobody holds down is started again after so long at most.
const LOOK: Duration = Duration::from_millis(50);

/// A host, whichever process it is at the moment.
pub struct Place {
    pub member: Member,
    /// The network before the database.
    pub database: Proxy,
    /// The network before the listener for hosts.
    pub hosts: Proxy,
    /// The network before the listener for clients.
    pub clients: Proxy,
    /// The ports for clients and for hosts.
    ports: [u16; 2],
    /// Not started again when it has ended.
    is_held: bool,
}

/// The hosts, and what they need.
pub struct Hosts {
    pub world: World,
    pub places: Vec<Place>,
    pub partitions: u32,
    config: String,
    commands: TempDir,
    /// The number of processes that ended and were started again.
    pub restarts: usize,
}

/// Starts a host whose clock can be set.
fn start(dir: TempDir, url: &str, [port, listen]: [u16; 2], advertised: u16, config: &str) -> Member {
    let cluster = format!(
        "advertise = \"127.0.0.1:{advertised}\"\nlisten = \"127.0.0.1:{listen}\"\nsecret = {{ env = \"CLUSTER_SECRET\" }}\n\
         snapshot_log_bytes = {SNAPSHOT_LOG_BYTES}"
    );
    let (clock, library) = (dir.path().join(CLOCK), faketime());
    if !clock.exists() {
        fs::write(&clock, "+0").unwrap();
    }
    let variables = [
        ("CLUSTER_SECRET", SECRET),
        ("AGENT_HOST_LOG", "info"),
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
        ("FAKETIME_CACHE_DURATION", "1"),
        // Nobody can set the clock that counts from the start of the machine.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    Member::start_with(dir, url, port, &cluster, &variables, config)
}

/// The library that shows a process another time.
fn faketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap().flatten().map(|folder| folder.path());
    let found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.is_file());
    found.expect("libfaketime is missing: `apt-get install libfaketime`, or run the tests by `cargo xtask test`")
}

impl Hosts {
    /// Starts the hosts of a cluster with so many partitions, with more in the configuration of each.
    pub async fn start(partitions: u32, more: &str) -> Self {
        let world = World::with_partitions(partitions).await;
        let commands = tempfile::tempdir().unwrap();
        command_line_of(&world.url, commands.path());
        let config = format!("{}{more}", world.config);
        let places = (0..HOSTS).map(|_| {
            let (ports, database) = ([free_port(), free_port()], Proxy::start(world.postgres.port));
            let (hosts, clients) = (Proxy::start(ports[1]), Proxy::start(ports[0]));
            let member = start(lay_out(), &database.url(&world.url), ports, hosts.port, &config);
            Place { member, database, hosts, clients, ports, is_held: false }
        });
        let places = places.collect();
        Self { world, places, partitions, config, commands, restarts: 0 }
    }

    pub fn urls(&self) -> Vec<String> {
        self.places.iter().map(|place| format!("http://127.0.0.1:{}", place.clients.port)).collect()
    }

    /// The host that owns a partition, as the database has it.
    pub async fn active(&mut self, partition: u32) -> usize {
        let began = Instant::now();
        let sql = format!(
            "select h.advertise from agent_host.partitions p join agent_host.hosts h on h.host_id = p.owner and \
             h.incarnation = p.incarnation where h.lease_until > clock_timestamp() and p.p = {partition}"
        );
        loop {
            let owner = tokio::task::block_in_place(|| self.world.postgres.sql("agents", &sql));
            let is_owner = |place: &Place| owner == format!("127.0.0.1:{}", place.hosts.port);
            if let Some(active) = self.places.iter().position(is_owner) {
                return active;
            }
            assert!(began.elapsed() < PATIENCE, "no host owns partition {partition}: {}", self.logs());
            self.wait(LOOK).await;
        }
    }

    /// Waits, and starts again what has ended meanwhile.
    pub async fn wait(&mut self, time: Duration) {
        let began = Instant::now();
        loop {
            for place in 0..HOSTS {
                if !self.places[place].is_held && self.places[place].member.child.try_wait().unwrap().is_some() {
                    self.restarts += 1;
                    self.restart(place);
                }
            }
            let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else { return };
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Ends the process of a host, unless it has ended, and starts another one.
    pub fn restart(&mut self, at: usize) {
        self.restart_with(at, "");
    }

    /// As [`Self::restart`], with more in `[limits]`, with which the configuration ends.
    pub fn restart_with(&mut self, at: usize, more: &str) {
        let (url, config) = (self.world.url.clone(), format!("{}{more}", self.config));
        let place = &mut self.places[at];
        let dir = std::mem::replace(&mut place.member.dir, tempfile::tempdir().unwrap());
        let _ = place.member.child.kill();
        place.member.child.wait().unwrap();
        place.member = start(dir, &place.database.url(&url), place.ports, place.hosts.port, &config);
        place.is_held = false;
    }

    /// Sets the clock of a host, by so many seconds off that of the machine.
    pub fn set_clock(&self, at: usize, seconds: i64) {
        fs::write(self.places[at].member.dir.path().join(CLOCK), format!("{seconds:+}")).unwrap();
    }

    /// As [`Self::restart`], on an empty folder.
    pub fn begin_anew(&mut self, at: usize) {
        self.places[at].member.dir = lay_out();
        self.restart(at);
    }

    /// Waits until other hosts own all partitions.
    pub async fn has_left(&mut self, host: usize) {
        let began = Instant::now();
        for partition in 0..self.partitions {
            while self.active(partition).await == host {
                assert!(began.elapsed() < PATIENCE, "no other host takes partition {partition}: {}", self.logs());
                self.wait(LOOK).await;
            }
        }
    }

    /// Drains a host as soon as others can take its partitions.
    pub async fn give_away(&mut self, host: usize) {
        let began = Instant::now();
        while let Err(refused) = self.drain(host) {
            assert!(began.elapsed() < PATIENCE, "{refused}: {}", self.logs());
            self.wait(LOOK).await;
        }
    }

    /// The database is killed, and a standby is promoted. One that is not synchronous lacks the commits of the last moments, and who owns the
    /// partitions since.
    pub async fn promote_standby(&mut self, is_synchronous: bool) {
        let standby = tokio::task::block_in_place(|| self.world.postgres.standby());
        if is_synchronous {
            tokio::task::block_in_place(|| self.world.postgres.wait_for(&standby));
        } else {
            let owner = self.active(0).await;
            tokio::task::block_in_place(|| self.world.postgres.cut_off(&standby));
            // Takeovers are lost, too.
            self.give_away(owner).await;
            self.wait(LOST).await;
        }
        tokio::task::block_in_place(|| {
            self.world.postgres.kill();
            standby.promote();
        });
        self.world.url = self.world.url.replace(&format!(":{}/", self.world.postgres.port), &format!(":{}/", standby.port));
        for place in &self.places {
            place.database.switch(standby.port);
        }
        command_line_of(&self.world.url, self.commands.path());
        self.world.postgres = standby;
    }

    /// Stops all hosts and puts back what the database has lost of each partition, from the copy that has most, as an operator does.
    pub async fn repair(&mut self) {
        let (began, is_lost) = (Instant::now(), |partition: &Value| partition["lost"]["host"].is_string());
        while !self.status().iter().any(is_lost) {
            assert!(began.elapsed() < PATIENCE, "no host misses what was lost: {}", self.logs());
            self.wait(LOOK).await;
        }
        for at in 0..HOSTS {
            self.stop(at).await;
        }
        for partition in self.status().into_iter().filter(is_lost) {
            let host = partition["lost"]["host"].as_str().unwrap();
            let place = self.places.iter().find(|place| host == format!("127.0.0.1:{}", place.hosts.port)).unwrap();
            let words = ["repair", "--partition", &partition["partition"].to_string()];
            let repaired = tokio::task::block_in_place(|| cluster_command(place.member.dir.path(), &words));
            repaired.unwrap_or_else(|error| panic!("{partition}: {error}"));
        }
        for at in 0..HOSTS {
            self.restart(at);
        }
    }

    /// `kill -9`. The host stays down.
    pub fn kill(&mut self, at: usize) {
        self.places[at].is_held = true;
        self.places[at].member.signal(Signal::KILL);
    }

    /// Asks a host to end, and waits until it has. The host stays down.
    pub async fn end(&mut self, at: usize) {
        let status = self.stop(at).await;
        assert!(status.success(), "{status}: {}", self.places[at].member.log());
    }

    /// As [`Self::end`], for a host that may be about to end by itself.
    async fn stop(&mut self, at: usize) -> ExitStatus {
        self.places[at].is_held = true;
        self.places[at].member.signal(Signal::TERM);
        let began = Instant::now();
        loop {
            if let Some(status) = self.places[at].member.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the host does not end: {}", self.places[at].member.log());
            self.wait(LOOK).await;
        }
    }

    /// `agent-host cluster drain`. A host that has ended meanwhile or is alone cannot be drained.
    pub fn drain(&self, at: usize) -> Result<Value, String> {
        let address = format!("127.0.0.1:{}", self.places[at].hosts.port);
        tokio::task::block_in_place(|| cluster_command(self.commands.path(), &["drain", &address]))
    }

    /// The partitions, as `agent-host cluster status` shows them.
    pub fn status(&self) -> Vec<Value> {
        let status = tokio::task::block_in_place(|| cluster_command(self.commands.path(), &["status"]));
        status.unwrap_or_else(|error| panic!("{error}"))["partitions"].as_array().unwrap().clone()
    }

    /// The last batch of each partition.
    fn last_batches(&self) -> Vec<Value> {
        self.status().iter().map(|partition| partition["last_batch"].clone()).collect()
    }

    /// The ends of the logs.
    pub fn logs(&self) -> String {
        let end = |log: String| {
            let lines: Vec<_> = log.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        };
        self.places.iter().map(|place| format!("{}:\n{}\n", place.member.url, end(place.member.log()))).collect()
    }

    /// Ends all hosts, lets each copy take in the log to its end, and gives the folders of their data, each with the partitions that it has copies
    /// of: all hosts have one of the first, and two of each other. No host takes a partition meanwhile: the database says that another one has it.
    pub async fn copies(&mut self) -> Vec<(PathBuf, Vec<u32>)> {
        for at in 0..HOSTS {
            self.end(at).await;
        }
        let sql = "insert into agent_host.hosts (host_id, incarnation, advertise, version, lease_ms, started_at, lease_until, drained) \
                   values ('nobody', 1, '127.0.0.1:1', 'test', 3600000, clock_timestamp(), clock_timestamp() + interval '1 hour', true); \
                   update agent_host.partitions set owner = 'nobody', incarnation = 1, since = clock_timestamp()";
        self.world.postgres.sql("agents", sql);
        let last = self.last_batches();
        for at in 0..HOSTS {
            self.restart(at);
        }
        let began = Instant::now();
        let had = loop {
            // A warm host without an active one is not ready, and says how far its copies are.
            let mut found = Vec::new();
            for place in &self.places {
                found.push(place.batches().await);
            }
            let copies = |partition: usize| found.iter().filter(|batches| batches.get(partition) == last.get(partition)).count();
            let others = |partition: usize| found.iter().filter(|batches| batches.get(partition) == Some(&Value::Null)).count();
            let wanted = |partition: usize| if partition == 0 { HOSTS } else { 2 };
            if (0..last.len()).all(|number| copies(number) == wanted(number) && copies(number) + others(number) == HOSTS) {
                break found;
            }
            assert!(began.elapsed() < 2 * Duration::from_millis(LEASE_MS) + PATIENCE, "{found:?} of {last:?}: {}", self.logs());
            tokio::time::sleep(LOOK).await;
        };
        for at in 0..HOSTS {
            self.end(at).await;
        }
        assert_eq!(self.last_batches(), last, "a host took a partition from one that lives");
        let has =
            |batches: Vec<Value>| (0..).zip(batches).filter(|(_, batch)| !batch.is_null()).map(|(number, _)| number).collect();
        let folders = self.places.iter().map(|place| place.member.dir.path().join("data"));
        folders.zip(had.into_iter().map(has)).collect()
    }
}

/// With `FAULTS_LOGS`, the logs of a test that fails stay in this folder.
impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(folder) = std::env::var_os("FAULTS_LOGS").filter(|_| std::thread::panicking()) {
            for place in &self.places {
                fs::write(PathBuf::from(&folder).join(format!("host-{}.log", place.hosts.port)), place.member.log()).unwrap();
            }
        }
    }
}

impl Place {
    /// The last batches of its copies.
    async fn batches(&self) -> Vec<Value> {
        let Ok(answer) = reqwest::get(format!("{}/readyz", self.member.url)).await else { return Vec::new() };
        let readiness: Value = answer.json().await.unwrap_or_default();
        match readiness["partitions"].as_array() {
            Some(partitions) => partitions.iter().map(|partition| partition["last_batch"].clone()).collect(),
            None => vec![readiness["last_batch"].clone()],
        }
    }
}

//! Faults of every kind, in an order that a seed gives, while clients and executors work with any host of a cluster.

mod clients;
mod executors;
mod hosts;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_ledger::Partition;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use self::{
    clients::{Client, Sent},
    executors::Claims,
    hosts::{Hosts, Place},
};
use crate::{
    cluster::LEASE_MS,
    proxy::{Network, Proxy},
    support::{EndedRun, Random, in_order, lines_of},
    undisturbed::{Hit, conversations_go_on, is_as_undisturbed},
};

/// Longer than a host acts without its database, and than others wait for it.
const PAST_THE_LEASE: Duration = Duration::from_millis(LEASE_MS + 1_500);
/// Shorter than that.
const SHORT: Duration = Duration::from_millis(500);
/// A host sees after so long that its clock was set.
const CLOCK_READ: Duration = Duration::from_millis(1_200);
/// The hosts are left alone for up to so many ms between two faults.
const CALM_MS: u64 = 400;
/// A key is known at every host after so long.
const KEYS_KNOWN: Duration = Duration::from_secs(1);
const AGENTS: usize = 4;
/// Conversations of several agents, each in a workspace.
const CONVERSATIONS: usize = 2;
const LISTS: [&str; 4] = ["list-0", "list-1", "list-2", "list-3"];
const EXECUTORS: usize = 8;

/// A fault. Where it names no host, it hits the owner of a partition.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// `kill -9`. Other hosts take over.
    Killed,
    /// `kill -9`, and started again at once.
    KilledShortly,
    /// `kill -9` of another host, which is warm where there is one partition.
    OtherKilled,
    AllKilled,
    /// `kill -9`, and all that the host had is gone.
    FilesLost,
    Ended,
    Drained,
    /// Stopped by SIGSTOP past its lease, and continued.
    Paused,
    PausedShortly,
    /// The network before the database, past the lease or for a moment.
    Database(Network, Duration),
    /// An answer of the database is lost with its connection, again and again.
    AnswersLost,
    /// The network before the listener for hosts.
    Hosts(Network),
    /// The network before the listener for clients.
    Clients(Network),
    /// The host that takes the partition has a disk that is low, so it gives it away.
    DiskLow,
    /// `kill -9` of all processes of the database, which is started again.
    DatabaseKilled,
    /// The database is gone, and its standby is promoted: a synchronous one, or one without the last commits, which the operator puts back.
    Promoted {
        is_synchronous: bool,
    },
    /// The clock is off by so many seconds, and is set right.
    ClockOff(i64),
}

const FAULTS: [Fault; 26] = [
    Fault::Killed,
    Fault::KilledShortly,
    Fault::OtherKilled,
    Fault::AllKilled,
    Fault::FilesLost,
    Fault::Ended,
    Fault::Drained,
    Fault::Paused,
    Fault::PausedShortly,
    Fault::Database(Network::Cut, PAST_THE_LEASE),
    Fault::Database(Network::Cut, SHORT),
    Fault::Database(Network::Stalled, PAST_THE_LEASE),
    Fault::Database(Network::HalfOpen, PAST_THE_LEASE),
    Fault::Database(Network::Slow(Duration::from_millis(30)), SHORT),
    Fault::AnswersLost,
    Fault::Hosts(Network::Cut),
    Fault::Hosts(Network::Stalled),
    Fault::Hosts(Network::HalfOpen),
    Fault::Clients(Network::Cut),
    Fault::Clients(Network::HalfOpen),
    Fault::DiskLow,
    Fault::DatabaseKilled,
    Fault::Promoted { is_synchronous: true },
    Fault::Promoted { is_synchronous: false },
    Fault::ClockOff(300),
    Fault::ClockOff(-300),
];

impl Fault {
    /// True if it comes to its end while a network of another host is not whole.
    const fn may_have_company(self) -> bool {
        !matches!(self, Self::DiskLow | Self::Drained | Self::Ended | Self::Promoted { .. })
    }

    async fn happens(self, partition: u32, hosts: &mut Hosts) {
        let active = hosts.active(partition).await;
        match self {
            Self::Killed => {
                hosts.kill(active);
                hosts.wait(PAST_THE_LEASE).await;
                hosts.restart(active);
            }
            Self::KilledShortly => {
                hosts.kill(active);
                hosts.restart(active);
            }
            Self::OtherKilled => {
                let other = (active + 1) % hosts.places.len();
                hosts.kill(other);
                hosts.wait(SHORT).await;
                hosts.restart(other);
            }
            Self::AllKilled => {
                for at in 0..hosts.places.len() {
                    hosts.kill(at);
                }
                for at in 0..hosts.places.len() {
                    hosts.restart(at);
                }
            }
            Self::FilesLost => {
                hosts.kill(active);
                hosts.begin_anew(active);
            }
            Self::Ended => {
                hosts.end(active).await;
                hosts.wait(SHORT).await;
                hosts.restart(active);
            }
            // As before an upgrade of the host.
            Self::Drained => match hosts.drain(active) {
                Ok(_) => {
                    hosts.end(active).await;
                    hosts.restart(active);
                }
                Err(refused) => println!("not drained: {refused}"),
            },
            Self::Paused | Self::PausedShortly => {
                hosts.places[active].member.signal(Signal::STOP);
                hosts.wait(if self == Self::Paused { PAST_THE_LEASE } else { SHORT }).await;
                hosts.places[active].member.signal(Signal::CONT);
            }
            Self::Database(network, time) => {
                hosts.places[active].database.is(network);
                hosts.wait(time).await;
                hosts.places[active].database.is(Network::Whole);
            }
            Self::AnswersLost => {
                for _ in 0..8 {
                    hosts.places[active].database.loses_next(true);
                    hosts.wait(SHORT / 4).await;
                }
                hosts.places[active].database.loses_next(false);
            }
            Self::Hosts(network) => {
                hosts.places[active].hosts.is(network);
                hosts.wait(SHORT * 4).await;
                hosts.places[active].hosts.is(Network::Whole);
            }
            Self::Clients(network) => {
                hosts.places[active].clients.is(network);
                hosts.wait(SHORT * 2).await;
                hosts.places[active].clients.is(Network::Whole);
            }
            Self::DiskLow => {
                // The only host that can take partitions has a low disk, until another one is there.
                let (low, other) = ((active + 1) % hosts.places.len(), (active + 2) % hosts.places.len());
                hosts.kill(low);
                hosts.restart_with(low, "min_free_disk_bytes = 1000000000000000000\n");
                hosts.kill(other);
                hosts.give_away(active).await;
                hosts.restart(other);
                hosts.has_left(low).await;
                for at in [low, active] {
                    hosts.kill(at);
                    hosts.restart(at);
                }
            }
            Self::Promoted { is_synchronous } => {
                hosts.promote_standby(is_synchronous).await;
                if !is_synchronous {
                    hosts.repair().await;
                }
            }
            Self::DatabaseKilled => {
                tokio::task::block_in_place(|| {
                    hosts.world.postgres.kill();
                    hosts.world.postgres.restart();
                });
            }
            Self::ClockOff(seconds) => {
                hosts.set_clock(active, seconds);
                hosts.wait(PAST_THE_LEASE).await;
                hosts.set_clock(active, 0);
                hosts.wait(CLOCK_READ).await;
            }
        }
    }
}

/// A network of any host that is not whole during a fault.
struct Beside {
    at: usize,
    network: fn(&Place) -> &Proxy,
    state: Network,
}

impl Beside {
    fn new(random: &mut Random, hosts: &Hosts) -> Self {
        const NETWORKS: [fn(&Place) -> &Proxy; 3] = [|place| &place.database, |place| &place.hosts, |place| &place.clients];
        const STATES: [Network; 4] =
            [Network::Cut, Network::Stalled, Network::HalfOpen, Network::Slow(Duration::from_millis(30))];
        let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
        Self { at: below(hosts.places.len()), network: NETWORKS[below(NETWORKS.len())], state: STATES[below(STATES.len())] }
    }

    fn is(&self, hosts: &Hosts, state: Network) {
        (self.network)(&hosts.places[self.at]).is(state);
    }
}

fn shuffled(random: &mut Random) -> Vec<Fault> {
    let mut faults = FAULTS.to_vec();
    for at in (1..faults.len()).rev() {
        faults.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
    }
    // Once more, when the logs are trimmed.
    faults.push(Fault::FilesLost);
    faults
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_hosts_lose_and_repeat_nothing_whatever_fails() {
    let (seed, rounds) = (number("FAULTS_SEED", 20_261_128), number("FAULTS_ROUNDS", 1));
    println!("FAULTS_SEED={seed} FAULTS_ROUNDS={rounds}");
    let mut random = Random(seed);
    // Longer than a clock goes wrong.
    let binding = format!("{}[limits]\nrun_deadline_ms = 3600000\n", executors::binding());
    let mut hosts = Hosts::start(partitions_of(seed), &binding).await;
    for partition in 0..hosts.partitions {
        hosts.active(partition).await;
    }
    let urls = hosts.urls();
    let client = |n: usize| Client::new(urls.clone(), seed.wrapping_add(n as u64));
    let workspaces = workspaces(&client(0), hosts.partitions).await;
    // Of the workspace with this number, or of one before.
    let sender = |n: usize, workspace: usize| client(n).with(workspaces[workspace % workspaces.len()].clone());
    let probers: Vec<_> = (0..workspaces.len()).map(|n| sender(n, n)).collect();
    probe(&probers, "begin").await;

    let (stop, stop_executors) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let claims: Vec<_> = workspaces.iter().map(|_| Arc::<Claims>::default()).collect();
    let talk = |n: usize, long: usize| sender(n + 10, long).talk(n, long, Arc::clone(&stop));
    let agents: Vec<_> = (0..AGENTS).map(|n| tokio::spawn(talk(n, n % CONVERSATIONS))).collect();
    let give = |(n, list): (usize, &'static &'static str)| sender(n + 100, n).give_jobs(n, list, Arc::clone(&stop));
    let lists: Vec<_> = LISTS.iter().enumerate().map(|list| tokio::spawn(give(list))).collect();
    let execute =
        |n: usize| executors::execute(sender(n + 200, n), n, Arc::clone(&claims[n % claims.len()]), Arc::clone(&stop_executors));
    let executors: Vec<_> = (0..EXECUTORS).map(|n| tokio::spawn(execute(n))).collect();

    let (mut probes, mut longest) = (Vec::new(), (Duration::ZERO, None));
    'rounds: for round in 0..rounds {
        for fault in shuffled(&mut random) {
            let is_over = |tasks: &[JoinHandle<Vec<Sent>>]| tasks.iter().any(JoinHandle::is_finished);
            if is_over(&agents) || is_over(&lists) || executors.iter().any(JoinHandle::is_finished) {
                // A task that has failed says why below.
                break 'rounds;
            }
            hosts.wait(Duration::from_millis(random.below(CALM_MS))).await;
            let began = Instant::now();
            let beside = Some(Beside::new(&mut random, &hosts)).filter(|_| fault.may_have_company() && random.below(3) == 0);
            beside.iter().for_each(|beside| beside.is(&hosts, beside.state));
            let partition = u32::try_from(random.below(u64::from(hosts.partitions))).unwrap();
            fault.happens(partition, &mut hosts).await;
            beside.iter().for_each(|beside| beside.is(&hosts, Network::Whole));
            let healed = Instant::now();
            // Events of all workspaces are accepted again, while ended hosts are started.
            let key = format!("probe-{round}-{}", probes.len());
            let probe = probe(&probers, &key);
            tokio::pin!(probe);
            let events = loop {
                tokio::select! {
                    events = &mut probe => break events,
                    () = hosts.wait(SHORT / 10) => {}
                }
            };
            probes.push(events);
            let beside = beside.map_or(String::new(), |beside| format!(" beside {:?} at {}", beside.state, beside.at));
            println!("{fault:?}{beside}: {:?}, then {:?} until events were accepted", healed - began, healed.elapsed());
            if healed.elapsed() > longest.0 {
                longest = (healed.elapsed(), Some(fault));
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut messages, mut jobs) = (Vec::new(), Vec::new());
    for task in agents {
        messages.extend(ended(&mut hosts, task).await);
    }
    jobs.resize_with(workspaces.len(), Vec::new);
    for (n, task) in lists.into_iter().enumerate() {
        jobs[n % workspaces.len()].extend(ended(&mut hosts, task).await);
    }
    stop_executors.store(true, Ordering::Relaxed);
    for task in executors {
        ended(&mut hosts, task).await;
    }
    let status = hosts.status();
    assert!(status.iter().all(|partition| partition["lost"].is_null()), "{status:?}");
    let is_trimmed = |partition: &Value| partition["first_batch"].as_u64() > Some(1);
    assert!(status.iter().any(is_trimmed), "no log was ever trimmed: {status:?}");

    for (prober, event) in probes.iter().flat_map(|events| probers.iter().zip(events)) {
        prober.get(&format!("/api/v1/events/{event}")).await;
    }
    let (agents, mut lists) = (checked(&hosts, &messages).await, Vec::new());
    for (jobs, claims) in jobs.iter().zip(&claims) {
        let runs = checked(&hosts, jobs).await;
        are_in_order(&claims.all_jobs(), &runs);
        lists.extend(runs);
    }
    let counted = hosts.world.counted();
    let mut hit = Hit::default();
    for (task, run) in &agents {
        // Each resumption may have interrupted any call.
        let found = is_as_undisturbed(run, task, &hosts.world.model, &counted, |_| run.resumes());
        hit.in_doubt += found.in_doubt;
        hit.again += found.again;
    }
    conversations_go_on(&agents, &hosts.world.model);
    for list in LISTS {
        has_all_jobs(&lists, list);
    }
    let resumes: usize = agents.iter().map(|(_, run)| run.resumes()).sum();
    let (given, lost) = (claims.iter().map(|claims| claims.given()).sum::<usize>(), claims.iter().map(|claims| claims.lost()));
    println!(
        "{} runs of agents were resumed {resumes} times: {} tool calls in doubt, {} calls made again; {} jobs in {} claims, {} of them lost; \
         {} hosts started again; {:?} without a host that accepts, after {:?}",
        agents.len(),
        hit.in_doubt,
        hit.again,
        lists.len(),
        given,
        lost.sum::<usize>(),
        hosts.restarts,
        longest.0,
        longest.1,
    );
    assert!(resumes > 0 && hosts.restarts > 0 && given >= lists.len(), "the faults hardly disturbed anything");
    for place in &hosts.places {
        assert!(!place.member.log().contains("panicked at"), "{}", place.member.log());
    }
    let copies = hosts.copies().await;
    let mut count = 0;
    for partition in 0..hosts.partitions {
        let copies: Vec<_> =
            copies.iter().filter(|(_, has)| has.contains(&partition)).map(|(dir, _)| rows(dir, partition)).collect();
        let (first, others) = copies.split_first().unwrap();
        assert!(!others.is_empty(), "partition {partition} has one copy");
        for other in others {
            let differ = first.iter().zip(other).find(|(row, other)| row != other);
            let lengths = (first.len(), other.len());
            assert!(lengths.0 == lengths.1 && differ.is_none(), "copies of {partition} differ: {lengths:?} rows, {differ:?}");
        }
        count += first.len();
    }
    assert!(count > 100, "{count}");
}

/// An even seed is for a cluster with a partition for each of four workspaces, an odd one for one partition.
const fn partitions_of(seed: u64) -> u32 {
    if seed.is_multiple_of(2) { 4 } else { 1 }
}

/// A key of a workspace in each partition. Senders have none where there is one partition.
async fn workspaces(client: &Client, partitions: u32) -> Vec<Option<String>> {
    if partitions == 1 {
        return vec![None];
    }
    let mut keys = Vec::new();
    for partition in 0..partitions {
        let mut names = (0..).map(|n| format!("workspace-{n}"));
        let name = names.find(|name| Partition::new(partition, partitions).has(Some(name))).unwrap();
        keys.push(Some(client.make_key(&name).await));
    }
    // Every host knows the keys then.
    tokio::time::sleep(KEYS_KNOWN).await;
    keys
}

/// An event of each sender, which nobody answers.
async fn probe(probers: &[Client], key: &str) -> Vec<String> {
    futures_util::future::join_all(probers.iter().map(|prober| prober.probe(key))).await
}

/// The result of a task that needs hosts.
async fn ended<T>(hosts: &mut Hosts, mut task: JoinHandle<T>) -> T {
    loop {
        tokio::select! {
            result = &mut task => return result.unwrap_or_else(|error| panic!("{error}: {}", hosts.logs())),
            () = hosts.wait(SHORT) => {}
        }
    }
}

/// The runs of what was sent, in the order in which they were accepted. Every host shows the same, which is what the client was shown.
async fn checked(hosts: &Hosts, sent: &[Sent]) -> Vec<(String, EndedRun)> {
    let mut runs = Vec::new();
    for sent in sent {
        let run = sent.is_made_once().await;
        for place in &hosts.places {
            let events = place.member.events(&sent.run).await;
            assert!(events == sent.seen, "{}: {}\nwas shown\n{}", sent.task, lines_of(&events), lines_of(&sent.seen));
        }
        runs.push((sent.task.clone(), EndedRun::new(run, sent.seen.clone())));
    }
    runs.sort_by_key(|(_, run)| (run.run["conversation_id"].to_string(), run.run["turn"].as_u64()));
    runs
}

/// One run of the conversation came after the other, and each has added its job to the list once.
fn has_all_jobs(runs: &[(String, EndedRun)], list: &str) {
    let runs: Vec<_> = runs.iter().filter(|(_, run)| run.run["conversation_id"] == list).collect();
    assert!(!runs.is_empty());
    in_order(runs.iter().map(|(_, run)| run));
    let mut jobs = Vec::new();
    for (job, run) in runs {
        assert_eq!(run.run["status"], "completed", "{run}");
        jobs.push(json!(job));
        let shown: Value = serde_json::from_str(run.message_texts().last().unwrap()).unwrap();
        assert_eq!(shown, Value::from(jobs.clone()), "{run}");
    }
}

/// Each job is in the list of all jobs, once, and behind those whose runs ended before its own began.
fn are_in_order(all: &[String], runs: &[(String, EndedRun)]) {
    let time = |run: &EndedRun, name: &str| run.run[name].as_u64().unwrap();
    let runs: BTreeMap<_, _> = runs.iter().map(|(job, run)| (job, run)).collect();
    let mut newest = 0;
    for job in all {
        let run = runs.get(job).unwrap_or_else(|| panic!("{job} has no run"));
        assert!(newest <= time(run, "finished_at"), "{job} ended before another began that is before it: {all:?}");
        newest = newest.max(time(run, "created_at"));
    }
    let distinct: BTreeSet<_> = all.iter().collect();
    assert!(
        distinct.len() == all.len() && all.len() == runs.len(),
        "{} runs, and {} jobs in the list: {all:?}",
        runs.len(),
        all.len()
    );
}

/// The rows of all tables of a closed copy, by table and key. Rows of events are packed by each merge, and the bytes of workspaces count the
/// packed rows.
fn rows(data: &Path, partition: u32) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
    use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
    let mut rows = BTreeMap::new();
    let folder = if partition == 0 { "ledger".to_owned() } else { format!("ledger-{partition}") };
    let database = redb::Database::open(data.join(folder).join("ledger.redb")).unwrap();
    let transaction = database.begin_read().unwrap();
    let names = transaction.list_tables().unwrap().map(|table| table.name().to_owned());
    for name in names.filter(|name| !matches!(name.as_str(), "run_events" | "workspaces" | "meta")) {
        let table = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name)).unwrap();
        for row in table.iter().unwrap() {
            let (key, value) = row.unwrap();
            rows.insert((name.clone(), key.value().to_vec()), value.value().to_vec());
        }
    }
    rows
}

//! Hosts whose ledger has its log in PostgreSQL: beside one with a log in files, a warm one beside the active one, while the ledger is given
//! away, and after a kill.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    calls::{self, UNLIMITED},
    echo,
    postgres::{PASSWORD, Postgres, free_port},
    queue::OUTSIDE,
    session::{Report, Session},
    site::Site,
    usage,
};
use crate::{host::HostProcess, http::Client, process};

const PASSWORD_VARIABLE: &str = "BENCH_LEDGER_PASSWORD";
const SECRET_VARIABLE: &str = "BENCH_CLUSTER_SECRET";
const SECRET: &str = "a secret of benchmarks, of 32 bytes and more";
const DATABASE: &str = "bench";
/// Requests to the active host, and as many by the warm one.
const REQUESTS: u32 = 2_000;
/// Runs that are followed at both hosts, one after the other, and the time from the message to the event that is followed.
const FOLLOWED: u32 = 200;
const NAP_MS: u64 = 30;
/// Runs that executors claim.
const CLAIMED: &str = "4000";
const EXECUTORS: &str = "8";
/// Runs that are parked while the ledger moves, and clients that send them.
const PARKED: u64 = 100_000;
const SENDERS: u64 = 16;
/// Time for which they sleep.
const NIGHT_MS: u64 = 4 * 3_600_000;
/// Time for so many runs to park.
const PARKING: Duration = Duration::from_secs(600);
/// Partitions that hosts share, the workspaces in them, and the time until each host has its share: it is given one after the other.
const PARTITIONS: usize = 8;
const WORKSPACES: &str = "32";
const SHARING: Duration = Duration::from_secs(300);
/// A host keeps a partition that is to be another's for less than this.
const MOVING: Duration = Duration::from_secs(12);
/// Time for a warm host to reach the active one, and for a takeover.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    ledgers(session)?;
    rates(session)?;
    shared_rates(session)?;
    forwarding(session)?;
    following(session)?;
    claims(session)?;
    drain(session)?;
    takeover(session)?;
    parked(session)
}

/// The writes of echo runs to one ledger with its log in files, to one in PostgreSQL, and to eight there, without hosts.
fn ledgers(session: &mut Session) -> anyhow::Result<()> {
    const ONE: [&str; 2] = ["cluster.ledger.256.runs_per_second", "cluster.ledger.256.ratio"];
    const EIGHT: [&str; 2] = ["cluster.ledger.256.eight_partitions.runs_per_second", "cluster.ledger.256.eight_partitions.ratio"];
    if !session.wants(&[ONE[0], ONE[1], EIGHT[0], EIGHT[1]]) {
        return Ok(());
    }
    let rate = |session: &Session, name: &str, cluster: Option<&Site>| {
        let config = echo::site(session, &format!("{name}-files"))?.config();
        let cluster = cluster.map(Site::config);
        let mut arguments = vec!["ledgers", "--config", &config, "--in-flight", "256"];
        arguments.extend(cluster.iter().flat_map(|config| ["--cluster", config.as_str()]));
        let mut command = session.load_command(&arguments);
        Report::of(&process::output(command.envs(environment()))?)?.number("runs_per_second")
    };
    let alone = rate(session, "ledger-alone", None)?;
    for (names, partitions) in [(ONE, 1), (EIGHT, PARTITIONS)] {
        let name = format!("ledger-{partitions}");
        let cluster = Cluster::of(session, &name, None, binding("", echo::RUNNER), partitions)?;
        let rate = rate(session, &name, Some(&cluster.site(session, &name, free_port())?))?;
        session.record(names[0], rate)?;
        session.record(names[1], rate / alone)?;
    }
    Ok(())
}

/// Echo runs over HTTP of one host by itself, and of one with its log in PostgreSQL.
fn rates(session: &mut Session) -> anyhow::Result<()> {
    const RATE: &str = "cluster.echo.http.256.runs_per_second";
    const RATIO: &str = "cluster.echo.http.256.ratio";
    const HOST: &str = "cluster.echo.http.256.host_cpu_us_per_run";
    const DATABASE: &str = "cluster.echo.http.256.postgres_cpu_us_per_run";
    if !session.wants(&[RATE, RATIO, HOST, DATABASE]) {
        return Ok(());
    }
    let host = echo::site(session, "cluster-alone")?.start(session)?.host;
    let alone = echo::load(session, &host, "http", &["--in-flight", "256"])?;
    host.kill();
    let cluster = Cluster::new(session, "cluster-rate")?;
    let host = cluster.active(session, "cluster-rate")?;
    let (began, before) = (Instant::now(), usage::of_process(cluster.postgres_id()?)?);
    let report = echo::load(session, &host, "http", &["--in-flight", "256"])?;
    let cores = (usage::of_process(cluster.postgres_id()?)? - before) / began.elapsed().as_secs_f64();
    host.kill();
    let rate = report.number("runs_per_second")?;
    session.record(RATE, rate)?;
    session.record(RATIO, rate / alone.number("runs_per_second")?)?;
    session.record(HOST, report.number("cpu_us_per_run")?)?;
    session.record(DATABASE, cores * 1e6 / rate)
}

/// Echo runs of workspaces, over HTTP: of one host by itself, of one that owns eight partitions, and of three that share them on the same
/// cores.
fn shared_rates(session: &mut Session) -> anyhow::Result<()> {
    const ONE: [&str; 2] =
        ["cluster.echo.http.256.eight_partitions.runs_per_second", "cluster.echo.http.256.eight_partitions.ratio"];
    const THREE: [&str; 2] = ["cluster.echo.http.256.three_hosts.runs_per_second", "cluster.echo.http.256.three_hosts.ratio"];
    if !session.wants(&[ONE[0], ONE[1], THREE[0], THREE[1]]) {
        return Ok(());
    }
    let load = |session: &Session, url: &str, id: u32, also: &[Warm]| {
        let id = id.to_string();
        let mut arguments = vec!["http", "--address", url.trim_start_matches("http://"), "--pid", &id];
        arguments.extend(["--in-flight", "256", "--workspaces", WORKSPACES]);
        also.iter().for_each(|host| arguments.extend(["--also", host.url.trim_start_matches("http://")]));
        session.load(&arguments)?.number("runs_per_second")
    };
    let host = echo::site(session, "cluster-shared-alone")?.start(session)?.host;
    let alone = load(session, host.url(), host.id(), &[])?;
    host.kill();
    let cluster = Cluster::of(session, "cluster-shared", Some(session.echo.clone()), binding("", echo::RUNNER), PARTITIONS)?;
    let first = cluster.warm(session, "cluster-shared")?;
    cluster.is_shared_by(session, 1)?;
    let rate = load(session, &first.url, first.child.id(), &[])?;
    session.record(ONE[0], rate)?;
    session.record(ONE[1], rate / alone)?;
    let others = [cluster.warm(session, "cluster-shared-1")?, cluster.warm(session, "cluster-shared-2")?];
    cluster.is_shared_by(session, 3)?;
    let rate = load(session, &first.url, first.child.id(), &others)?;
    session.record(THREE[0], rate)?;
    session.record(THREE[1], rate / alone)
}

/// A small request to the active host, and by a warm one.
fn forwarding(session: &mut Session) -> anyhow::Result<()> {
    const LATENCY: &str = "cluster.forward.added_p50_ms";
    const CPU: &str = "cluster.forward.added_cpu_us";
    if !session.wants(&[LATENCY, CPU]) {
        return Ok(());
    }
    let cluster = Cluster::new(session, "cluster-forward")?;
    let active = cluster.active(session, "cluster-forward")?;
    let warm = cluster.warm(session, "cluster-forward-warm")?;
    let run = answered(&Client::new(active.url()), "forward")?;
    let path = format!("/api/v1/runs/{run}");
    let both = || Ok::<_, anyhow::Error>(usage::of_process(active.id())? + usage::of_process(warm.child.id())?);
    let measured = |url: &str| {
        let (client, before) = (Client::new(url), both()?);
        let mut times = Vec::new();
        for _ in 0..REQUESTS {
            let began = Instant::now();
            client.get(&path)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied().context("no request was sent")?;
        Ok::<_, anyhow::Error>((median, (both()? - before) * 1e6 / f64::from(REQUESTS)))
    };
    let (direct, direct_cpu) = measured(active.url())?;
    let (forwarded, forwarded_cpu) = measured(&warm.url)?;
    session.record(LATENCY, forwarded - direct)?;
    session.record(CPU, forwarded_cpu - direct_cpu)
}

/// An event of a run at a follower of the warm host, after it is at a follower of the active one.
fn following(session: &mut Session) -> anyhow::Result<()> {
    const ADDED: &str = "cluster.follow.added_p50_ms";
    if !session.wants(&[ADDED]) {
        return Ok(());
    }
    let component = session.calls.clone();
    let cluster = Cluster::with(session, "cluster-follow", Some(component), binding(UNLIMITED, calls::RUNNER))?;
    let active = cluster.active(session, "cluster-follow")?;
    let warm = cluster.warm(session, "cluster-follow-warm")?;
    let client = Client::new(active.url());
    let mut added = Vec::new();
    for _ in 0..FOLLOWED {
        let run = sleeps(&client, now_ms()? + NAP_MS)?;
        let awake = |url: String| {
            let path = format!("/api/v1/runs/{run}/events");
            thread::spawn(move || {
                let mut at = None;
                Client::new(&url).stream(&path, PATIENCE, |event| {
                    if event.data.contains("\"awake\"") {
                        at.get_or_insert_with(Instant::now);
                    }
                    Ok(())
                })?;
                at.context("the run did not wake up")
            })
        };
        let followers = [awake(active.url().to_owned()), awake(warm.url.clone())];
        let [direct, forwarded] =
            followers.map(|follower| follower.join().map_err(|_| anyhow::anyhow!("a follower has panicked")));
        let (direct, forwarded) = (direct??, forwarded??);
        let earlier = direct.saturating_duration_since(forwarded).as_secs_f64();
        added.push((forwarded.saturating_duration_since(direct).as_secs_f64() - earlier) * 1e3);
    }
    active.kill();
    added.sort_by(f64::total_cmp);
    session.record(ADDED, added.get(added.len() / 2).copied().context("no run was followed")?)
}

/// Claims of executors at three hosts, of which one is active.
fn claims(session: &mut Session) -> anyhow::Result<()> {
    const RATE: &str = "cluster.claims_per_second";
    if !session.wants(&[RATE]) {
        return Ok(());
    }
    let cluster = Cluster::with(session, "cluster-claims", None, format!("{OUTSIDE}lease_ms = 60000\n"))?;
    let active = cluster.active(session, "cluster-claims")?;
    let warm = [cluster.warm(session, "cluster-claims-1")?, cluster.warm(session, "cluster-claims-2")?];
    let mut arguments = vec!["claims", "--executors", EXECUTORS, "--runs", CLAIMED];
    for url in [active.url(), &warm[0].url, &warm[1].url] {
        arguments.extend(["--address", url.trim_start_matches("http://")]);
    }
    let report = session.load(&arguments)?;
    active.kill();
    session.record(RATE, report.number("claims_per_second")?)
}

/// From the request to drain a host with parked runs until another one has the ledger, and until that one has the runs.
fn parked(session: &mut Session) -> anyhow::Result<()> {
    const DRAIN: &str = "cluster.parked.100000.drain_ms";
    const READY: &str = "cluster.parked.100000.ready_ms";
    if !session.wants(&[DRAIN, READY]) {
        return Ok(());
    }
    let component = session.calls.clone();
    let config = binding(&format!("{UNLIMITED}park_after_ms = 100\n"), calls::RUNNER);
    let cluster = Cluster::with(session, "cluster-parked", Some(component), config)?;
    let port = free_port();
    let site = cluster.site(session, "cluster-parked", port)?;
    let active = site.start_in(session, &environment())?.host;
    let warm = cluster.warm(session, "cluster-parked-warm")?;
    let wake = now_ms()? + NIGHT_MS;
    let senders = (0..SENDERS).map(|_| {
        let client = Client::new(active.url());
        thread::spawn(move || (0..PARKED / SENDERS).try_for_each(|_| sleeps(&client, wake).map(drop)))
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.join().map_err(|_| anyhow::anyhow!("a client has panicked"))??;
    }
    let has_parked = |url: &str, within: Duration| {
        let (client, began) = (Client::new(url), Instant::now());
        loop {
            // A host between warm and active is not ready.
            let there = client.get("/readyz").ok().and_then(|ready| ready.get("parked_runs").and_then(Value::as_u64));
            if there == Some(PARKED) {
                return Ok(());
            }
            anyhow::ensure!(began.elapsed() < within, "{there:?} of {PARKED} runs are parked");
            thread::sleep(Duration::from_millis(20));
        }
    };
    has_parked(active.url(), PARKING)?;
    let mut command = Command::new(session.host_binary());
    command.args(["cluster", "drain", &format!("127.0.0.1:{port}"), "--json", "--config", &site.config()]).envs(environment());
    let began = Instant::now();
    let outcome: Value = serde_json::from_str(&process::output(&mut command)?)?;
    has_parked(&warm.url, PATIENCE)?;
    let ready = began.elapsed();
    active.kill();
    session.record(DRAIN, outcome.get("took_ms").and_then(Value::as_f64).context("no time")?)?;
    session.record(READY, ready.as_secs_f64() * 1e3)
}

/// Sends a message to a run that sleeps until a time. Gives the id of the run.
fn sleeps(client: &Client, until_ms: u64) -> anyhow::Result<String> {
    let task = json!({ "call": "timers.now", "times": 1, "until_ms": until_ms }).to_string();
    let event = json!({ "event_type": "message.received", "input": { "text": task } });
    run_of(&client.post("/api/v1/events", &[], &event)?)
}

fn now_ms() -> anyhow::Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// From the request to drain the active host until another one has the ledger, and the longest of the requests that a client of the drained
/// host sends meanwhile, one after the other.
fn drain(session: &mut Session) -> anyhow::Result<()> {
    const TOOK: &str = "cluster.drain_ms";
    const LONGEST: &str = "cluster.drain.longest_request_ms";
    if !session.wants(&[TOOK, LONGEST]) {
        return Ok(());
    }
    let cluster = Cluster::new(session, "cluster-drain")?;
    let port = free_port();
    let site = cluster.site(session, "cluster-drain", port)?;
    let config = site.config();
    let active = site.start_in(session, &environment())?.host;
    let _warm = cluster.warm(session, "cluster-drain-warm")?;
    let client = Client::new(active.url());
    answered(&client, "before")?;
    let mut command = Command::new(session.host_binary());
    command.args(["cluster", "drain", &format!("127.0.0.1:{port}"), "--json", "--config", &config]).envs(environment());
    let draining = command.stdout(Stdio::piped()).spawn()?;
    let asked = thread::spawn(move || draining.wait_with_output());
    let mut longest = Duration::ZERO;
    let mut sent = 0_u32;
    loop {
        // One more than until the ledger has moved.
        let is_last = asked.is_finished();
        let began = Instant::now();
        answered(&client, &format!("during-{sent}")).context("a request failed while the ledger moved")?;
        longest = longest.max(began.elapsed());
        sent += 1;
        if is_last {
            break;
        }
    }
    let output = asked.join().map_err(|_| anyhow::anyhow!("the command has panicked"))??;
    active.kill();
    anyhow::ensure!(output.status.success(), "the host was not drained");
    let outcome: Value = serde_json::from_slice(&output.stdout)?;
    session.record(TOOK, outcome.get("took_ms").and_then(Value::as_f64).context("no time")?)?;
    session.record(LONGEST, longest.as_secs_f64() * 1e3)
}

/// From the kill of the active host until the next event is accepted, sent to the warm one.
fn takeover(session: &mut Session) -> anyhow::Result<()> {
    const TAKEOVER: &str = "cluster.takeover_ms";
    if !session.wants(&[TAKEOVER]) {
        return Ok(());
    }
    let cluster = Cluster::new(session, "cluster-takeover")?;
    let active = cluster.active(session, "cluster-takeover")?;
    let warm = cluster.warm(session, "cluster-takeover-warm")?;
    let client = Client::new(&warm.url);
    answered(&client, "before")?;
    active.kill();
    let killed = Instant::now();
    while answered(&client, "after").is_err() {
        anyhow::ensure!(killed.elapsed() < PATIENCE, "no host has taken over within {} s", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(20));
    }
    session.record(TAKEOVER, killed.elapsed().as_secs_f64() * 1e3)
}

/// Sends an event, which is accepted once by its key. Gives the id of its run.
fn answered(client: &Client, key: &str) -> anyhow::Result<String> {
    let event = json!({ "event_type": "message.received", "input": { "text": "hello" } });
    run_of(&client.post("/api/v1/events", &[("Idempotency-Key", key)], &event)?)
}

fn run_of(accepted: &Value) -> anyhow::Result<String> {
    let run = accepted.pointer("/runs/0/run_id").and_then(Value::as_str);
    run.map(str::to_owned).with_context(|| format!("an event without a run: {accepted}"))
}

/// A PostgreSQL of its own, with a cluster.
struct Cluster {
    postgres: Postgres,
    url: String,
    /// The component of each host.
    component: Option<PathBuf>,
    /// The end of the configuration of each host.
    config: String,
}

/// A configuration with one binding for every event.
fn binding(limits: &str, runner: &str) -> String {
    format!("{limits}[[bindings]]\nid = \"bench\"\nrunner = \"{runner}\"\ndeadline_ms = 14400000\n")
}

/// A host that follows. Dropping it kills it.
struct Warm {
    child: Child,
    url: String,
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    /// A cluster whose hosts echo.
    fn new(session: &Session, name: &str) -> anyhow::Result<Self> {
        Self::with(session, name, Some(session.echo.clone()), binding("", echo::RUNNER))
    }

    fn with(session: &Session, name: &str, component: Option<PathBuf>, config: String) -> anyhow::Result<Self> {
        Self::of(session, name, component, config, 1)
    }

    fn of(session: &Session, name: &str, component: Option<PathBuf>, config: String, partitions: usize) -> anyhow::Result<Self> {
        let postgres = Postgres::start();
        postgres.create(DATABASE);
        let url = postgres.url(DATABASE).replace(&format!(":{PASSWORD}"), "");
        let cluster = Self { postgres, url, component, config };
        let site = cluster.site(session, &format!("{name}-init"), free_port())?;
        let mut init = Command::new(session.host_binary());
        init.args(["cluster", "init", "--partitions", &partitions.to_string(), "--config", &site.config()]).envs(environment());
        process::run(&mut init)?;
        Ok(cluster)
    }

    /// Waits until so many hosts own equal shares of the partitions, and none moves any more.
    fn is_shared_by(&self, session: &Session, hosts: usize) -> anyhow::Result<()> {
        let (site, began) = (self.site(session, &format!("cluster-status-{hosts}"), free_port())?, Instant::now());
        let (mut known, mut since) = (Vec::new(), Instant::now());
        loop {
            let mut command = Command::new(session.host_binary());
            command.args(["cluster", "status", "--json", "--config", &site.config()]).envs(environment());
            let status: Value = serde_json::from_str(&process::output(&mut command)?)?;
            let shares = status.get("hosts").and_then(Value::as_array).context("no hosts")?.iter();
            let owned = shares.map(|host| host.pointer("/partitions").and_then(Value::as_array).cloned().unwrap_or_default());
            let owned: Vec<_> = owned.collect();
            let is_equal = owned.iter().all(|share| (PARTITIONS / hosts..=PARTITIONS.div_ceil(hosts)).contains(&share.len()));
            if owned != known || owned.len() != hosts || !is_equal || owned.iter().map(Vec::len).sum::<usize>() != PARTITIONS {
                (known, since) = (owned, Instant::now());
            } else if since.elapsed() > MOVING {
                return Ok(());
            }
            anyhow::ensure!(began.elapsed() < SHARING, "the hosts do not share the partitions: {known:?}");
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn postgres_id(&self) -> anyhow::Result<u32> {
        Ok(u32::try_from(self.postgres.pid())?)
    }

    /// A site with another address than those before.
    fn site(&self, session: &Session, name: &str, port: u16) -> anyhow::Result<Site> {
        let config = format!(
            "ledger = \"{}\"\n[cluster]\nadvertise = \"127.0.0.1:{port}\"\nsecret = {{ env = \"{SECRET_VARIABLE}\" }}\n\
             password = {{ env = \"{PASSWORD_VARIABLE}\" }}\n{}",
            self.url, self.config
        );
        Site::holding(session, name, self.component.as_deref().as_slice(), &config)
    }

    fn active(&self, session: &Session, name: &str) -> anyhow::Result<HostProcess> {
        Ok(self.site(session, name, free_port())?.start_in(session, &environment())?.host)
    }

    /// A host that reaches the owners of all partitions, or owns them.
    fn warm(&self, session: &Session, name: &str) -> anyhow::Result<Warm> {
        let site = self.site(session, name, free_port())?;
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(session.host_binary());
        command.args(["serve", "--listen", &listen, "--config", &site.config()]).envs(environment());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let warm = Warm { child: command.spawn()?, url: format!("http://{listen}") };
        let (client, began) = (Client::new(&warm.url), Instant::now());
        while let Err(error) = client.get("/readyz") {
            anyhow::ensure!(began.elapsed() < PATIENCE, "the warm host does not reach the active one: {error:#}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(warm)
    }
}

fn environment() -> [(&'static str, &'static str); 2] {
    [(PASSWORD_VARIABLE, PASSWORD), (SECRET_VARIABLE, SECRET)]
}

//! `agent-host serve`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use agent_host_config::Config;
use agent_host_runs::{Host, HostProcess};
use agent_host_server::{ClusterClient, LocalClient, Server};
use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::{serve_cluster as cluster, standby::unless_in_use};
use crate::{
    address::AddressFile,
    args::Global,
    output::Output,
    progress::Progress,
    settings::{Settings, local_url},
    signals::{Hangups, INTERRUPTED, Signals},
};

/// Coding agents have so long to end before the host does; those that are deaf are killed meanwhile.
const AGENTS: Duration = Duration::from_secs(1);
/// Files that may be open beside connections: artifacts, components, what runs reach outside.
const OTHER_FILES: u64 = 4_096;
/// Runs that are active when the host is asked to end have so long to end by themselves.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Said when the first signal comes.
pub(super) const ENDING: &str = "ending: active runs have 5 seconds; a second signal ends at once";
/// Ending runs and writing the ledger may take so long. With the last bytes of connections (2 s) a shutdown takes
/// at most 10 seconds.
const SHUTDOWN: Duration = Duration::from_secs(8);

/// Serve events over HTTP
#[derive(Debug, Args)]
#[command(
    long_about = "Serve events over HTTP.\n\n\
        Loads the plugins directory and watches it, opens the ledger, resumes unfinished runs, and prints its \
        address and that of the chat page on standard output once it answers. The log goes to standard error.\n\n\
        SIGINT or SIGTERM ends it within 10 seconds: no new events, active runs get 5 seconds, and a run that is \
        not over then continues at the next start, as the `durability` of its binding says. A second signal ends the \
        host at once; nothing acknowledged is lost.\n\n\
        In a cluster ([server] ledger) the host first follows the ledger, until no other host holds it; meanwhile it forwards requests \
        to the active host, or answers 503 `partition_moving` where [cluster] secret is not set. A host that loses the ledger ends itself with code 75: start it again, and it follows. \
        One that `agent-host cluster drain` asks gives the ledger to another host, and follows.\n\n\
        SIGHUP reads the configuration again, as `agent-host config reload` does: all of it is taken, or nothing.",
    after_long_help = "Examples:\n  \
        agent-host serve\n  \
        agent-host serve --listen 8080 --plugins-dir ./plugins\n  \
        curl -H 'Content-Type: application/json' -H 'Prefer: wait=10' \\\n       \
        -d '{\"event_type\":\"message.received\",\"input\":{\"text\":\"hello\"}}' \\\n       \
        http://127.0.0.1:7070/api/v1/events"
)]
pub(crate) struct Serve {
    /// Address or port to listen at, instead of [server] listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub(crate) listen: Option<SocketAddr>,
}

/// An address, or a port of this machine alone.
fn listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| "write an address with a port, such as 127.0.0.1:7070 or [::1]:7070, or only a port".to_owned())
}

impl Serve {
    pub(crate) async fn execute(self, mut config: Config, global: Global, output: Output) -> anyhow::Result<ExitCode> {
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        raise_file_limit(config.limits.http_connections);
        let mut signals = Signals::listen().context("signals cannot be listened for")?;
        let hangups = Hangups::listen().context("signals cannot be listened for")?;
        let source = ReloadSource { global, given: self.listen, configured: config.listen, hangups };
        let Some(joined) = cluster::join(&mut config, output).await? else {
            let progress = Progress::spinner(output, "opening the ledger and loading plugins");
            let start = async || Host::start_with(config.clone(), super::compiler()).await;
            let host = tokio::select! {
                started = unless_in_use(start) => started?,
                () = signals.next() => return Ok(ExitCode::SUCCESS),
            };
            drop(progress);
            source.follow(host.process());
            serve_alone(host, signals, output).await?;
            return Ok(ExitCode::SUCCESS);
        };
        cluster::serve(joined, config, source, signals, output).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The place from where the configuration is read again.
pub(super) struct ReloadSource {
    global: Global,
    /// The address of the command line.
    given: Option<SocketAddr>,
    /// The address of the configuration, whose port may be 0.
    configured: SocketAddr,
    hangups: Hangups,
}

impl ReloadSource {
    /// Lets the process read the configuration again, when it is asked to, and at every SIGHUP.
    pub(super) fn follow(self, process: &HostProcess) {
        let Self { global, given, configured, hangups } = self;
        let listen = process.config().listen;
        process.set_reload_source(move || {
            let mut config = Settings::load(&global)?.config;
            config.listen = given.unwrap_or(config.listen);
            // A port that was free when the host began to follow.
            if config.listen == configured {
                config.listen = listen;
            }
            Ok(config)
        });
        tokio::spawn(reload_when_told(process.clone(), hangups));
    }
}

/// Serves by the routes of a host by itself, until a signal comes.
async fn serve_alone(host: Host, mut signals: Signals, output: Output) -> anyhow::Result<()> {
    warn_without_keys(&host);
    let server = match Server::bind(host.clone()).await {
        Ok(server) => server,
        Err(error) => {
            host.shutdown(Duration::ZERO).await;
            return Err(error.into());
        }
    };
    let url = local_url(server.local_addr());
    let started = write_address(&host, &url)
        .and_then(|address| Ok((address, Harnesses::start(&host, || server.local_client(), None, &url)?)));
    // The address is there until this function returns.
    let (_address, harnesses) = match started {
        Ok(started) => started,
        Err(error) => {
            host.shutdown(Duration::ZERO).await;
            return Err(error);
        }
    };
    say_listening(output, &url, None)?;
    let ending = host.clone();
    let served = server
        .serve(async move {
            signals.next().await;
            output.remark(ENDING);
            tokio::spawn(end_at_once(signals));
            harnesses.end_before(end(ending.shutdown(GRACE))).await;
        })
        .await;
    if served.is_err() {
        end(host.shutdown(GRACE)).await;
    }
    Ok(served?)
}

/// A second signal ends the process.
pub(super) async fn end_at_once(mut signals: Signals) {
    signals.next().await;
    std::process::exit(INTERRUPTED);
}

pub(super) fn warn_without_keys(host: &Host) {
    if !host.config().loopback_without_key && host.keys().is_empty() {
        tracing::warn!(
            "there is no API key, so no client can use the API: end the host, make a key with `agent-host keys create --scope \
             admin`, and start it again (or set [server] loopback_without_key = true)"
        );
    }
}

pub(super) fn write_address(host: &Host, url: &str) -> anyhow::Result<AddressFile> {
    AddressFile::write(&host.config().data_dir, url)
        .context("the address of the server cannot be written into the data directory")
}

/// Prints the address. `partition` is the one that the host owns from now on, where there are several.
pub(super) fn say_listening(output: Output, url: &str, partition: Option<u32>) -> anyhow::Result<()> {
    let page = format!("{url}/");
    let document = match partition {
        None => json!({ "listening": url, "page": page }),
        Some(partition) => json!({ "listening": url, "page": page, "partition": partition }),
    };
    output.result(&document, || match partition {
        None => format!("listening on {url}\nchat page: {page}\n"),
        Some(partition) => format!("listening on {url}: partition {partition} is this host's\n"),
    })?;
    Ok(())
}

/// The coding agents of the configuration, as executors of this host.
pub(super) struct Harnesses {
    #[cfg(target_os = "linux")]
    running: Vec<agent_host_harness::Harness>,
}

#[cfg(target_os = "linux")]
impl Harnesses {
    pub(super) fn start(
        host: &Host,
        client: impl FnOnce() -> LocalClient,
        cluster: Option<ClusterClient>,
        url: &str,
    ) -> anyhow::Result<Self> {
        use crate::harness_transport::LocalTransport;
        let transport = LocalTransport { host: host.clone(), client: client(), cluster, url: url.to_owned() };
        let running = super::harness::start(&host.config(), &(std::sync::Arc::new(transport) as _))?;
        Ok(Self { running })
    }

    /// Gives the runs of the agents back, and ends their processes.
    async fn end(self) {
        let ending = futures_util::future::join_all(self.running.into_iter().map(agent_host_harness::Harness::end));
        if tokio::time::timeout(SHUTDOWN, ending).await.is_err() {
            tracing::warn!("coding agents did not end in time; their processes are killed with the host");
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Harnesses {
    pub(super) fn start(host: &Host, _: impl FnOnce() -> LocalClient, _: Option<ClusterClient>, _: &str) -> anyhow::Result<Self> {
        anyhow::ensure!(host.config().harnesses.is_empty(), "[[harnesses]] need Linux: processes are confined by means of it");
        Ok(Self {})
    }

    async fn end(self) {}
}

impl Harnesses {
    /// Ends the agents, and the host as soon as they have ended or are deaf: it still takes back their runs.
    pub(super) async fn end_before(self, ending: impl Future<Output = ()>) {
        let mut agents = std::pin::pin!(self.end());
        if tokio::time::timeout(AGENTS, agents.as_mut()).await.is_err() {
            tokio::join!(agents, ending);
        } else {
            ending.await;
        }
    }
}

/// Lets the process open as many files as it may where so many connections could need it: shells give 1,024 to each, and
/// more only to who asks.
fn raise_file_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let files_needed = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let files_needed = maximum.map_or(files_needed, |maximum| files_needed.min(maximum));
    if current.is_some_and(|current| current < files_needed)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(files_needed), maximum })
    {
        tracing::debug!(%error, "the process opens no more files than before");
    }
}

/// Reloads the configuration at every SIGHUP. The log has the outcome.
async fn reload_when_told(process: HostProcess, mut hangups: Hangups) {
    loop {
        hangups.next().await;
        if let Err(error) = process.reload_again().await {
            tracing::error!("the configuration before still serves: {error}");
        }
    }
}

/// Waits for the end of the runs, so that streams close with the last event of their run, and of the ledger.
pub(super) async fn end(ending: impl Future<Output = ()>) {
    if tokio::time::timeout(SHUTDOWN, ending).await.is_err() {
        tracing::warn!("the host did not end in time; what it did not finish is recovered at the next start");
    }
}

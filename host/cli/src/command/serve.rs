//! `agent-host serve`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use agent_host_runs::{Config, Host};
use agent_host_server::Server;
use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::{
    output::Output,
    progress::Progress,
    settings::local_url,
    signals::{INTERRUPTED, Signals},
};

/// Runs that are active when the host is asked to end have so long to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// Ending runs and writing the ledger may take so long. With the last bytes of connections (2 s) a shutdown takes
/// at most 10 seconds.
const SHUTDOWN: Duration = Duration::from_secs(8);

/// Serve events over HTTP
#[derive(Debug, Args)]
#[command(
    long_about = "Serve events over HTTP.\n\n\
        Loads the plugins directory and watches it, opens the ledger, goes on with what was left, and prints one \
        line with its address on standard output once it answers. The log goes to standard error.\n\n\
        SIGINT or SIGTERM ends it within 10 seconds: no new events, active runs get 5 seconds, what then still \
        runs ends as failed with code host_restarted. A second signal ends it at once; nothing acknowledged is lost.",
    after_long_help = "Examples:\n  \
        agent-host serve\n  \
        agent-host serve --listen 8080 --plugins-dir ./plugins\n  \
        curl -H 'Content-Type: application/json' -H 'Prefer: wait=10' \\\n       \
        -d '{\"event_type\":\"message.received\",\"input\":{\"text\":\"hello\"}}' http://127.0.0.1:7070/api/v1/events"
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
    pub(crate) async fn execute(self, mut config: Config, output: Output) -> anyhow::Result<ExitCode> {
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        let mut signals = Signals::listen().context("signals cannot be listened for")?;
        let progress = Progress::spinner(output, "opening the ledger and loading plugins");
        let host = tokio::select! {
            host = Host::start(config) => host?,
            () = signals.next() => return Ok(ExitCode::SUCCESS),
        };
        drop(progress);
        let server = match Server::bind(host.clone()).await {
            Ok(server) => server,
            Err(error) => {
                host.shutdown(Duration::ZERO).await;
                return Err(error.into());
            }
        };
        let url = local_url(server.local_addr());
        output.result(&json!({ "listening": url }), || format!("listening on {url}\n"))?;

        let ending = host.clone();
        let served = server
            .serve(async move {
                signals.next().await;
                output.remark("ending: active runs have 5 seconds; a second signal ends at once");
                tokio::spawn(async move {
                    signals.next().await;
                    std::process::exit(INTERRUPTED);
                });
                end(&ending).await;
            })
            .await;
        if served.is_err() {
            end(&host).await;
        }
        served?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Ends the runs, so that streams close with the last event of their run, and the ledger.
async fn end(host: &Host) {
    if tokio::time::timeout(SHUTDOWN, host.shutdown(GRACE)).await.is_err() {
        tracing::warn!("the host did not end in time; what it did not finish is recovered at the next start");
    }
}

//! The commands of `cargo xtask bench` in release builds: each measures one thing and prints one line of JSON.
//!
//! The program is not a part of the host. Load over HTTP comes from a process of its own, like that of a client; the other
//! commands hold a host or a ledger in their own process.

mod agui;
mod allocations;
#[path = "../../../host/cli/src/allocator.rs"]
mod allocator;
mod arguments;
mod artifacts;
mod calls;
mod command;
mod commit;
mod connection;
mod count;
mod cpu;
mod deliveries;
mod deltas;
mod documents;
mod echo;
mod fill;
mod http;
mod in_process;
mod isolation;
mod journal;
mod knowledge;
mod ledgers;
mod merges;
mod model_server;
mod open;
mod outside;
mod parking;
mod people;
mod queue;
mod replay;
mod sample;
mod stages;
mod stream;
mod subscribers;
mod syscalls;
mod threads;
mod tool_server;
mod window;

use agent_host_runs::Config;
use clap::Parser;
use command::Command;
use serde::Serialize;
use syscalls::Syscalls;

/// As in the host, and counted where that is measured.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    // Hosts in this process are set up as the binary is.
    allocator::keep_freed_memory();
    // A generator of load that takes both cores would measure itself.
    let mut runtime = match command {
        Command::ToolServer => return tool_server::serve(),
        Command::Http { .. }
        | Command::Deltas { .. }
        | Command::Stream { .. }
        | Command::Artifacts { .. }
        | Command::Approval { .. }
        | Command::Steering { .. }
        | Command::Queue { .. }
        | Command::Claims { .. }
        | Command::Wake { .. }
        | Command::Subscribers { .. }
        | Command::Agui { .. }
        | Command::AguiRuns { .. }
        | Command::AguiTokens { .. }
        | Command::AguiReattach { .. }
        | Command::AguiThread { .. }
        | Command::AguiDeltas { .. }
        | Command::AguiHistory { .. }
        | Command::ThreadFill { .. }
        | Command::ThreadRead { .. }
        | Command::ThreadFollow { .. }
        | Command::Isolation { .. }
        | Command::CancelTree { .. }
        | Command::Deliveries { .. }
        | Command::ModelServer => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    // Before the threads of the runtime start: the kernel counts for threads that start later.
    let syscalls = match command {
        Command::CountEcho { .. } | Command::CountAgui { .. } => Syscalls::count(),
        _ => Syscalls::NotCounted,
    };
    runtime.enable_all().build()?.block_on(execute(command, syscalls))
}

async fn execute(command: Command, syscalls: Syscalls) -> anyhow::Result<()> {
    match command {
        Command::Http { target, load, history, also, workspaces } => {
            let addresses = [&[target.address][..], &also].concat();
            print(&http::load(&addresses, target.pid, load, history, workspaces).await?)
        }
        Command::InProcess { config, load } => print(&in_process::load(Config::load(&config)?, load).await?),
        Command::CountEcho { config, batch } => print(&count::echo(Config::load(&config)?, batch, syscalls).await?),
        Command::CountAgui { config, batch } => print(&count::agui(Config::load(&config)?, batch, syscalls).await?),
        Command::Stages { config, load } => print(&stages::measure(Config::load(&config)?, load).await?),
        Command::Merges { config, load } => print(&merges::measure(Config::load(&config)?, load).await?),
        Command::Deltas { target, in_flight, runs, deltas } => {
            print(&deltas::load(target.address, target.pid, in_flight, runs, deltas).await?)
        }
        Command::Stream { target, streams } => print(&stream::load(target.address, target.pid, streams).await?),
        Command::Calls { config, documents, calls } => print(&calls::measure(Config::load(&config)?, &calls, &documents).await?),
        Command::Knowledge { config, documents, passages, measure } => {
            print(&knowledge::measure(&Config::load(&config)?, &documents, passages, measure).await?)
        }
        Command::Artifacts { target, dir } => print(&artifacts::measure(target.address, &dir).await?),
        Command::JournalEcho { config, in_flight, pairs, measure } => {
            print(&journal::echo(Config::load(&config)?, in_flight, pairs, measure).await?)
        }
        Command::JournalCalls { config, calls } => print(&journal::calls(Config::load(&config)?, &calls).await?),
        Command::JournalWeight { config, of } => print(&journal::weight(Config::load(&config)?, of).await?),
        Command::Replay { config, call, times } => print(&replay::measure(Config::load(&config)?, &call, times).await?),
        Command::Parking { config, runs } => print(&parking::parking(Config::load(&config)?, runs).await?),
        Command::Restart { config } => print(&parking::restart(Config::load(&config)?).await?),
        Command::Approval { target, rounds, in_flight, each } => {
            print(&people::approval(target.address, rounds, in_flight, each).await?)
        }
        Command::Steering { target, rounds } => print(&people::steering(target.address, rounds).await?),
        Command::Children { config } => print(&people::children(Config::load(&config)?).await?),
        Command::Egress { config } => print(&outside::measure(Config::load(&config)?).await?),
        Command::Queue { target, load } => print(&queue::load(target.address, target.pid, load).await?),
        Command::Claims { address, executors, runs } => print(&queue::claims(&address, executors, runs).await?),
        Command::Wake { target, rounds } => print(&queue::wake(target.address, rounds).await?),
        Command::Subscribers { target, subscribers } => print(&subscribers::subscribe(target.address, subscribers).await?),
        Command::Agui { target, load } => print(&agui::load(target.address, target.pid, load).await?),
        Command::AguiRuns { address, batch } => print(&agui::runs(address, batch.in_flight, batch.runs).await?),
        Command::AguiTokens { target, streams, each } => print(&agui::tokens(target.address, streams, each).await?),
        Command::AguiReattach { target, rounds } => print(&agui::reattach(target.address, rounds).await?),
        Command::AguiThread { target, messages, rounds } => print(&agui::thread(target.address, messages, rounds).await?),
        Command::AguiDeltas { target, tokens, rounds } => print(&agui::deltas(target.address, tokens, rounds).await?),
        Command::AguiHistory { target, turns, rounds } => print(&agui::history(target.address, turns, rounds).await?),
        Command::ThreadFill { target, thread, facts, deltas } => {
            print(&threads::fill(target.address, &thread, facts, deltas).await?)
        }
        Command::ThreadRead { target, thread, rounds } => {
            print(&threads::read(target.address, target.pid, &thread, rounds).await?)
        }
        Command::ThreadFollow { target, thread, followed, followers, rounds } => {
            print(&threads::follow(target.address, &thread, followed, followers, rounds).await?)
        }
        Command::Isolation { target, attack, guests, measure } => {
            print(&isolation::measure(target.address, &attack, guests, measure).await?)
        }
        Command::CancelTree { target, text, runs } => print(&isolation::cancel_tree(target.address, &text, runs).await?),
        Command::Deliveries { events, in_flight } => print(&deliveries::measure(events, in_flight).await?),
        Command::ModelServer => model_server::serve().await,
        // The command needs no runtime.
        Command::ToolServer => tool_server::serve(),
        Command::Fill { config, runs } => print(&fill::fill(Config::load(&config)?, runs).await?),
        Command::Ledgers { config, cluster, load } => {
            let cluster = cluster.as_deref().map(Config::load).transpose()?;
            print(&ledgers::load(Config::load(&config)?, cluster, load).await?)
        }
        Command::Open { config } => print(&open::open(&Config::load(&config)?).await?),
        Command::Commit { dir } => print(&commit::measure(&dir)?),
    }
}

#[allow(clippy::print_stdout, reason = "the one line that the caller reads")]
fn print(report: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

//! `agent-host threads`.

use std::{process::ExitCode, time::Duration};

use agent_host_config::Config;
use agent_host_ledger::Ledger;
use agent_host_protocol::{Page, limits::MAX_PAGE};
use agent_host_runs::{
    ListedThread, Thread, Threads as Reader,
    facts::{Fact, TaskSnapshot, ThreadReadModel},
};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::runs::{Server, page_size};
use crate::{
    client::{Client, segment},
    failure::Failure,
    output::Output,
    source::Source,
    table::Table,
};

/// A stream that breaks is taken up again after this, so many times in a row.
const RECONNECT: Duration = Duration::from_secs(1);
const RECONNECTS: u32 = 5;

/// Read threads: conversations as streams of facts
///
/// Asks the server of --server. Without it, reads the ledger; if a server holds the ledger, asks
/// that server.
#[derive(Debug, Subcommand)]
pub(crate) enum Threads {
    List(List),
    Show(Show),
    Events(Events),
    Tasks(Tasks),
}

/// List threads
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// Threads of this workspace, where the ledger is read
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = MAX_PAGE, value_parser = page_size())]
    limit: u32,
}

/// The choice of a thread.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    #[command(flatten)]
    server: Server,
    /// The thread: a conversation, or a run without one
    #[arg(value_name = "THREAD")]
    thread: String,
    #[command(flatten)]
    place: ThreadPlace,
}

/// The place of a thread.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ThreadPlace {
    /// The conversation, where its id differs from that of the thread
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The workspace, where the ledger is read
    #[arg(long, value_name = "ID")]
    pub(crate) workspace: Option<String>,
}

/// A thread by its ids.
#[derive(Debug)]
pub(crate) struct ThreadName {
    pub(crate) thread: String,
    pub(crate) place: ThreadPlace,
}

impl ThreadName {
    /// The thread in the ledger.
    pub(crate) fn load(&self, ledger: &Ledger) -> anyhow::Result<(Reader, Thread)> {
        let reader = Reader::new(ledger.clone());
        let workspace = self.place.workspace.as_deref().unwrap_or_default();
        let (session, thread) = match &self.place.session {
            Some(session) if *session != self.thread => (session.as_str(), self.thread.as_str()),
            _ => (self.thread.as_str(), ""),
        };
        let thread = reader.find(workspace, session, thread)?;
        Ok((reader, thread))
    }

    /// The path of a part of the thread on a server.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("api/v1/threads/{}{rest}", segment(&self.thread))
    }

    /// The parameter that names the conversation.
    pub(crate) fn session(&self) -> (&'static str, Option<String>) {
        ("sessionId", self.place.session.clone())
    }
}

/// Show a thread: its status, what it waits for, its calls of tools
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    thread: Choice,
    /// The thread as it was after this fact
    #[arg(long, value_name = "N")]
    at: Option<u64>,
}

/// Show the facts of a thread
#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(flatten)]
    thread: Choice,
    /// Facts after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Show all facts, then each new one, on through later turns
    #[arg(long, conflicts_with = "limit")]
    follow: bool,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = MAX_PAGE, value_parser = page_size())]
    limit: u32,
}

/// Show a task of a thread: a child run, a subagent, or a turn with its attempts
#[derive(Debug, Args)]
pub(crate) struct Tasks {
    #[command(flatten)]
    thread: Choice,
    /// The task; all tasks of the thread if left out
    #[arg(value_name = "TASK")]
    task: Option<String>,
    /// The task as it was after this fact
    #[arg(long, value_name = "N")]
    at: Option<u64>,
}

impl Threads {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(list) => list.execute(config, output).await?,
            Self::Show(show) => show.execute(config, output).await?,
            Self::Events(events) => events.execute(config, output).await?,
            Self::Tasks(tasks) => tasks.execute(config, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A thread, from wherever it can be read.
struct ChosenThread {
    source: Source,
    name: ThreadName,
}

impl Choice {
    async fn open(self, config: &Config) -> anyhow::Result<ChosenThread> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        Ok(ChosenThread { source, name: ThreadName { thread: self.thread, place: self.place } })
    }
}

impl ChosenThread {
    async fn model(&self, at: Option<u64>) -> anyhow::Result<ThreadReadModel> {
        match &self.source {
            Source::Ledger(ledger) => {
                let (reader, thread) = self.name.load(ledger)?;
                Ok(reader.model(&thread, at)?)
            }
            Source::Server(client) => Ok(client.get(&self.name.path(""), &self.query(at)).await?),
        }
    }

    async fn task(&self, task: &str, at: Option<u64>) -> anyhow::Result<TaskSnapshot> {
        match &self.source {
            Source::Ledger(ledger) => {
                let (reader, thread) = self.name.load(ledger)?;
                let missing = || Failure::new("not_found", format!("this thread has no task `{task}`"));
                Ok(reader.task(&thread, task, at)?.ok_or_else(missing)?)
            }
            Source::Server(client) => {
                let path = self.name.path(&format!("/tasks/{}", segment(task)));
                Ok(client.get(&path, &self.query(at)).await?)
            }
        }
    }

    async fn facts(&self, after: u64, limit: u32) -> anyhow::Result<Page<Fact>> {
        match &self.source {
            Source::Ledger(ledger) => {
                let (reader, thread) = self.name.load(ledger)?;
                let limit = usize::try_from(limit)?;
                let mut items = reader.facts(&thread, after, limit + 1)?;
                let has_more = items.len() > limit;
                items.truncate(limit);
                let next = items.last().map_or(after, |fact| fact.sequence);
                Ok(Page { items, next_cursor: Some(next.to_string()), prev_cursor: None, has_more })
            }
            Source::Server(client) => {
                let query = [self.name.session(), ("after", Some(after.to_string())), ("limit", Some(limit.to_string()))];
                Ok(client.get(&self.name.path("/events"), &query).await?)
            }
        }
    }

    fn query(&self, at: Option<u64>) -> [(&'static str, Option<String>); 2] {
        [self.name.session(), ("at", at.map(|at| at.to_string()))]
    }
}

impl List {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let limit = usize::try_from(self.limit)?;
        let mut threads: Vec<ListedThread> = Vec::new();
        match Source::open(config, self.server.url.as_deref()).await? {
            Source::Ledger(ledger) => {
                let reader = Reader::new(ledger);
                let workspace = self.workspace.unwrap_or_default();
                let mut after = None;
                while threads.len() < limit {
                    let room = limit - threads.len();
                    let (found, next) = reader.list(after.as_ref(), room, |key| key.workspace() == workspace)?;
                    threads.extend(found);
                    after = next;
                    if after.is_none() {
                        break;
                    }
                }
            }
            Source::Server(client) => threads = threads_of(&client, limit).await?,
        }
        Ok(output.result(&threads, || {
            let mut table = Table::new(["THREAD", "SESSION", "WORKSPACE"]);
            for thread in &threads {
                let workspace = thread.workspace_id.clone().unwrap_or_default();
                table.row([thread.thread_id.clone(), thread.session_id.clone(), workspace]);
            }
            table.render()
        })?)
    }
}

/// The threads that a server lists.
async fn threads_of(client: &Client, limit: usize) -> anyhow::Result<Vec<ListedThread>> {
    let (mut threads, mut cursor) = (Vec::new(), None);
    while threads.len() < limit {
        let room = (limit - threads.len()).to_string();
        let page: Page<ListedThread> = client.get("api/v1/threads", &[("cursor", cursor), ("limit", Some(room))]).await?;
        threads.extend(page.items);
        cursor = page.next_cursor.filter(|_| page.has_more);
        if cursor.is_none() {
            break;
        }
    }
    Ok(threads)
}

impl Show {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let model = self.thread.open(config).await?.model(self.at).await?;
        Ok(output.result(&model, || text_of(&model))?)
    }
}

/// A read model, for people.
fn text_of(model: &ThreadReadModel) -> String {
    let status = serde_json::to_value(model.status).unwrap_or_default();
    let mut text = format!(
        "thread {} of session {}\nstatus {}, {} facts\n",
        model.thread_id,
        model.session_id,
        status.as_str().unwrap_or_default(),
        model.event_cursor
    );
    if let Some(turn) = &model.active_turn_id {
        text.push_str(&format!("active turn {turn}\n"));
    }
    for turn in &model.queued_turns {
        text.push_str(&format!("queued turn {} of {}\n", turn.turn_id, turn.agent));
    }
    for action in &model.pending_actions {
        text.push_str(&format!("waits for {}: {} ({})\n", action.action_id, action.title, action.action_type));
    }
    for call in &model.tool_calls {
        text.push_str(&format!("tool {} {}: {}\n", call.tool_name, call.tool_call_id, call.status));
    }
    if let Some(outcome) = &model.last_outcome {
        let category = outcome.failure_category.as_ref().map(|category| format!(": {category}")).unwrap_or_default();
        text.push_str(&format!("last turn {} {}{category}\n", outcome.turn_id, outcome.status));
        if let Some(hint) = &outcome.recovery_hint {
            text.push_str(&format!("{hint}\n"));
        }
    }
    text
}

impl Events {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let thread = self.thread.open(config).await?;
        let show = |fact: &Fact| output.result(fact, || line(fact));
        if !self.follow {
            let page = thread.facts(self.after, self.limit).await?;
            return Ok(output.result(&page, || {
                let mut text: String = page.items.iter().map(line).collect();
                if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
                    text.push_str(&format!("more: --after {cursor}\n"));
                }
                text
            })?);
        }
        let mut after = self.after;
        if let Source::Server(client) = &thread.source {
            return follow(client, &thread, after, show).await;
        }
        loop {
            let page = thread.facts(after, MAX_PAGE).await?;
            for fact in &page.items {
                show(fact)?;
                after = fact.sequence;
            }
            if !page.has_more {
                output.remark("no server runs this thread now: it goes on when one starts");
                return Ok(());
            }
        }
    }
}

/// Shows the facts of a thread as they come. A connection that breaks is taken up again.
async fn follow(
    client: &Client,
    thread: &ChosenThread,
    mut after: u64,
    show: impl Fn(&Fact) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut breaks = 0;
    loop {
        let query = [thread.name.session(), ("after", Some(after.to_string()))];
        let opened = client.lines(Method::GET, &thread.name.path("/events"), &query, None).await;
        let broken = match opened {
            Ok(mut lines) => loop {
                match lines.next().await {
                    Ok(Some(line)) => {
                        let not_a_fact = |error| Failure::new("broken_stream", format!("not a fact: {error}"));
                        let fact: Fact = serde_json::from_slice(&line).map_err(not_a_fact)?;
                        show(&fact)?;
                        (after, breaks) = (fact.sequence, 0);
                    }
                    Ok(None) => break Failure::new("broken_stream", "the server has ended the stream"),
                    Err(broken) => break broken,
                }
            },
            // The first connection shows a wrong thread or a missing server.
            Err(failure) if after == 0 && breaks == 0 => return Err(failure.into()),
            Err(failure) => failure,
        };
        breaks += 1;
        if breaks > RECONNECTS {
            return Err(broken.into());
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// A fact as a line.
fn line(fact: &Fact) -> String {
    let payload = serde_json::to_string(&fact.payload).unwrap_or_default();
    let payload = crate::text::one_line(&payload, 120);
    format!("{:>6}  {}  {:<22}  {payload}\n", fact.sequence, fact.timestamp, fact.kind.as_str())
}

impl Tasks {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let thread = self.thread.open(config).await?;
        let tasks = match self.task {
            Some(task) => vec![task],
            None => thread.model(self.at).await?.task_ids,
        };
        let mut found = Vec::with_capacity(tasks.len());
        for task in &tasks {
            found.push(thread.task(task, self.at).await?);
        }
        Ok(output.result(&found, || {
            let mut table = Table::new(["TASK", "STATUS", "ARTIFACTS", "OBJECTIVE"]);
            for task in &found {
                let objective = task.objective.clone().unwrap_or_default();
                table.row([task.task_id.clone(), task.status.clone(), task.artifact_refs.len().to_string(), objective]);
            }
            table.render()
        })?)
    }
}

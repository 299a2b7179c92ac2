//! The source of runs: a running server, or the ledger if no process holds it.

use std::{path::Path, sync::Arc};

use agent_host_config::Config;
use agent_host_ledger::{GroupBy, Ledger, OpenError, Options, RunFilter, Statistics, StatisticsQuery};
use agent_host_protocol::{EventId, Page, Run, RunEvent, RunId, RunLogPage, limits::MAX_PAGE};
use agent_host_runs::{JournaledCall, ListedRun, Recording, ledger_dir, with_excerpts};
use serde_json::{Value, value::RawValue};

use crate::{client::Client, failure::Failure, text::member};

/// Runs, from wherever they can be read.
pub(crate) enum Source {
    Server(Client),
    Ledger(Ledger),
}

impl Source {
    /// The named server; else the ledger; else, if a server holds the ledger, that server.
    pub(crate) async fn open(config: &Config, server: Option<&str>) -> anyhow::Result<Self> {
        if let Some(url) = server {
            return Ok(Self::Server(Client::new(url)?));
        }
        match open_existing(&ledger_dir(config, 0)) {
            Ok(ledger) => Ok(Self::Ledger(ledger)),
            Err(OpenError::AlreadyOpen { dir }) => {
                if let Some(client) = Client::local(config).await? {
                    return Ok(Self::Server(client));
                }
                let message = format!(
                    "another process has the ledger open ({}), and it is no server that answers: wait for its end, or stop it",
                    dir.display()
                );
                Err(Failure::new("ledger_in_use", message).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A page of runs, newest first, each with the beginnings of what it was asked and answered.
    pub(crate) async fn runs(&self, filter: &RunFilter, cursor: Option<&str>, limit: u32) -> anyhow::Result<Page<ListedRun>> {
        match self {
            Self::Ledger(ledger) => Ok(with_excerpts(ledger, ledger.runs_page(filter, cursor, limit)?)?),
            Self::Server(client) => {
                let query = [
                    ("status", filter.status.map(|status| status.to_string())),
                    ("runner_id", filter.runner_id.as_ref().map(ToString::to_string)),
                    ("binding_id", filter.binding_id.clone()),
                    ("conversation_id", filter.conversation_id.clone()),
                    ("workspace_id", filter.workspace_id.clone()),
                    ("event_id", filter.event_id.map(|id| id.to_string())),
                    ("parent_run_id", filter.parent_run_id.map(|id| id.to_string())),
                    ("excerpts", Some("true".to_owned())),
                    ("cursor", cursor.map(ToOwned::to_owned)),
                    ("limit", Some(limit.to_string())),
                ];
                Ok(client.get("api/v1/runs", &query).await?)
            }
        }
    }

    /// Runs, counted.
    pub(crate) async fn statistics(&self, filter: &StatisticsQuery) -> anyhow::Result<Statistics> {
        match self {
            Self::Ledger(ledger) => Ok(ledger.statistics(filter)?),
            Self::Server(client) => {
                let by = filter.group_by.map(|by| match by {
                    GroupBy::Runner => "runner".to_owned(),
                    GroupBy::Binding => "binding".to_owned(),
                });
                let query = [
                    ("since", filter.since.map(|at| at.to_string())),
                    ("until", filter.until.map(|at| at.to_string())),
                    ("runner_id", filter.runner_id.clone()),
                    ("binding_id", filter.binding_id.clone()),
                    ("queue", filter.queue.clone()),
                    ("workspace_id", filter.workspace_id.clone()),
                    ("group_by", by),
                ];
                Ok(client.get("api/v1/statistics", &query).await?)
            }
        }
    }

    pub(crate) async fn run(&self, id: RunId) -> anyhow::Result<Run> {
        match self {
            Self::Ledger(ledger) => {
                let record = ledger.run(id)?.ok_or_else(|| Failure::new("not_found", format!("there is no run {id}")))?;
                Ok(Arc::unwrap_or_clone(record.run))
            }
            Self::Server(client) => Ok(client.get(&format!("api/v1/runs/{id}"), &[]).await?),
        }
    }

    /// The text of an event; `None` if it has none, or was removed.
    pub(crate) async fn input(&self, id: EventId) -> anyhow::Result<Option<String>> {
        match self {
            Self::Ledger(ledger) => Ok(ledger.event(id)?.and_then(|record| record.event.envelope.input.text)),
            Self::Server(client) => match client.get::<Value>(&format!("api/v1/events/{id}"), &[]).await {
                Ok(event) => Ok(member(&event, "/input/text").as_str().map(ToOwned::to_owned)),
                Err(failure) if failure.code() == "not_found" => Ok(None),
                Err(failure) => Err(failure.into()),
            },
        }
    }

    /// The context of the run.
    pub(crate) async fn context(&self, id: RunId) -> anyhow::Result<Box<RawValue>> {
        match self {
            Self::Ledger(ledger) => {
                let none = || Failure::new("not_found", format!("run {id} has no context: its guest has not started"));
                Ok(ledger.context(id)?.ok_or_else(none)?)
            }
            Self::Server(client) => Ok(client.get(&format!("api/v1/runs/{id}/context"), &[]).await?),
        }
    }

    /// All that is needed to execute a run again.
    pub(crate) async fn recording(&self, id: RunId) -> anyhow::Result<Recording> {
        match self {
            Self::Ledger(ledger) => Ok(Recording::read(ledger, id)?),
            Self::Server(client) => client.recording(id).await,
        }
    }

    /// The host calls of a run, as far as they are recorded.
    pub(crate) async fn calls(&self, id: RunId) -> anyhow::Result<Vec<JournaledCall>> {
        let client = match self {
            Self::Ledger(ledger) => return Ok(agent_host_runs::journaled_calls(ledger, id, 0, u64::MAX)?),
            Self::Server(client) => client,
        };
        let (mut calls, mut cursor) = (Vec::new(), None);
        loop {
            let query = [("cursor", cursor), ("limit", Some(MAX_PAGE.to_string()))];
            let page: Page<JournaledCall> = client.get(&format!("api/v1/runs/{id}/journal"), &query).await?;
            calls.extend(page.items);
            cursor = page.next_cursor.filter(|_| page.has_more);
            if cursor.is_none() {
                return Ok(calls);
            }
        }
    }

    /// A page of the kept log of a run.
    pub(crate) async fn run_log(
        &self,
        config: &Config,
        id: RunId,
        after: Option<&str>,
        limit: u32,
    ) -> anyhow::Result<RunLogPage> {
        match self {
            Self::Ledger(_) => Ok(agent_host_runs::kept_run_log(&config.data_dir, id, after, limit)?),
            Self::Server(client) => {
                let query = [("after", after.map(ToOwned::to_owned)), ("limit", Some(limit.to_string()))];
                Ok(client.get(&format!("api/v1/runs/{id}/logs"), &query).await?)
            }
        }
    }

    /// A page of the events of a run.
    pub(crate) async fn events(&self, id: RunId, after: Option<&str>, limit: u32) -> anyhow::Result<Page<RunEvent>> {
        match self {
            Self::Ledger(ledger) => {
                self.run(id).await?;
                Ok(ledger.run_events(id, after, limit)?)
            }
            Self::Server(client) => {
                let query = [("after", after.map(ToOwned::to_owned)), ("limit", Some(limit.to_string()))];
                Ok(client.get(&format!("api/v1/runs/{id}/events"), &query).await?)
            }
        }
    }
}

/// The ledger in a directory. Reading makes none.
pub(crate) fn open_existing(dir: &Path) -> Result<Ledger, OpenError> {
    if !dir.join("ledger.redb").exists() {
        return Err(OpenError::NoLedger { dir: dir.to_owned() });
    }
    Options::new(dir).open()
}

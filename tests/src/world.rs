//! A host in this process, with a data directory and a plugins directory of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent_host_protocol::{Limits, PluginReport, Run, RunEvent, RunId, context::Conversation, event::Envelope};
use agent_host_runs::{BindingConfig, Config, Host, HostError};
use futures_util::TryStreamExt;
use serde_json::Value;
use tempfile::TempDir;

use crate::component;

/// Longer than anything takes on a machine that is not stuck; no test waits so long to pass.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A host and its directories.
pub struct World {
    /// The running host.
    pub host: Host,
    /// Directories: `data`, `plugins`.
    pub dir: TempDir,
}

/// Limits for tests: a small pool starts faster.
#[must_use]
pub fn limits() -> Limits {
    Limits { max_live_runs: 50, ..Limits::default() }
}

/// The configuration of a host in `dir` with these bindings.
#[must_use]
pub fn config(dir: &TempDir, limits: Limits, bindings: Vec<BindingConfig>) -> Config {
    let listen = ([127, 0, 0, 1], 0).into();
    Config { listen, loopback_without_key: true, limits, bindings, ..Config::default_in(dir.path()) }
}

/// A binding of every event to `plugin:…`.
#[must_use]
pub fn bound(runner: &str) -> BindingConfig {
    BindingConfig::for_runner(runner.parse().unwrap())
}

impl World {
    /// A host with these components in its plugins directory, and a binding of every event to the one runner.
    pub async fn new(components: &[&str], runner: &str) -> Self {
        Self::with(components, limits(), vec![bound(runner)]).await
    }

    /// A host with these components, limits and bindings.
    pub async fn with(components: &[&str], limits: Limits, bindings: Vec<BindingConfig>) -> Self {
        Self::configured(components, |config| Config { limits, bindings, ..config }).await
    }

    /// A host with these components and a changed configuration.
    pub async fn configured(components: &[&str], tell: impl FnOnce(Config) -> Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        for name in components {
            fs::copy(component(name), plugins.join(format!("{name}.wasm"))).unwrap();
        }
        let config = tell(config(&dir, limits(), Vec::new()));
        Self { host: Host::start(config).await.unwrap(), dir }
    }

    /// A host with these components and the text of a configuration; `lay_out` first makes files beside it.
    pub async fn from_text(components: &[&str], text: &str, lay_out: impl FnOnce(&Path)) -> Self {
        Self::configured(components, |config| {
            let dir = config.data_dir.parent().expect("the data directory is in the directory of the world").to_owned();
            lay_out(&dir);
            let parsed = Config::parse(text, &dir).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let limits = Limits { max_live_runs: config.limits.max_live_runs, ..parsed.limits };
            Config { listen: config.listen, loopback_without_key: config.loopback_without_key, limits, ..parsed }
        })
        .await
    }

    /// Stops the host and starts another one on the same directories.
    pub async fn restarted(self, limits: Limits, bindings: Vec<BindingConfig>) -> Self {
        self.host.shutdown(PATIENCE).await;
        let Self { host, dir } = self;
        drop(host);
        Self { host: Host::start(config(&dir, limits, bindings)).await.unwrap(), dir }
    }

    /// A file of the plugins directory.
    #[must_use]
    pub fn plugin(&self, file: &str) -> PathBuf {
        self.dir.path().join("plugins").join(file)
    }

    /// The report on a file of the plugins directory.
    #[must_use]
    pub fn report(&self, file: &str) -> Option<PluginReport> {
        self.host.plugins().into_iter().find(|report| report.file == file)
    }

    /// Sends an event and gives its one run, without waiting.
    pub async fn send(&self, envelope: Envelope) -> RunId {
        let accepted = self.host.accept(envelope, None).await.unwrap();
        assert_eq!(accepted.runs.len(), 1, "one binding, one run");
        accepted.runs[0]
    }

    /// Sends a message without a conversation, waits for the end of its run, and gives the run.
    pub async fn say(&self, text: &str) -> EndedRun {
        self.ended(self.send(Envelope::message(text, "api")).await).await
    }

    /// Likewise in a conversation.
    pub async fn say_in(&self, conversation: &str, text: &str) -> EndedRun {
        self.ended(self.send(in_conversation(conversation, text)).await).await
    }

    /// Waits for the end of a run.
    pub async fn ended(&self, id: RunId) -> EndedRun {
        let run = self.host.wait(id, PATIENCE).await.unwrap();
        assert!(run.status.is_terminal(), "the run did not end: {run:?}");
        let events = self.events(id).await.unwrap();
        assert_eq!(run.last_sequence, events.len() as u64);
        EndedRun { run: Arc::unwrap_or_clone(run), events }
    }

    /// All events of a run that has ended, as a follower gets them.
    pub async fn events(&self, id: RunId) -> Result<Vec<RunEvent>, HostError> {
        tokio::time::timeout(PATIENCE, self.host.follow(id, 0)?.try_collect()).await.expect("the run ends")
    }
}

/// A message in a conversation.
#[must_use]
pub fn in_conversation(conversation: &str, text: &str) -> Envelope {
    let conversation = Conversation { conversation_id: Some(conversation.to_owned()), ..Conversation::default() };
    Envelope { conversation: Some(conversation), ..Envelope::message(text, "api") }
}

/// A run that has ended, and its events.
#[derive(Debug)]
pub struct EndedRun {
    /// The run.
    pub run: Run,
    /// All of its events.
    pub events: Vec<RunEvent>,
}

impl EndedRun {
    /// The types of the events, in order.
    #[must_use]
    pub fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.kind.as_str()).collect()
    }

    /// The text of all deltas.
    #[must_use]
    pub fn streamed(&self) -> String {
        let deltas = self.events.iter().filter(|event| event.kind == "message.delta");
        deltas.map(|event| event.data_value()["chunk"]["content"].as_str().unwrap().to_owned()).collect()
    }

    /// The text of the last completed message.
    #[must_use]
    pub fn answer_text(&self) -> String {
        let message = self.events.iter().rev().find(|event| event.kind == "message.completed");
        message.map(|event| event.data_value()["message"]["content"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// The code with which it failed.
    #[must_use]
    pub fn failure(&self) -> &str {
        self.run.failure.as_ref().map_or("", |failure| failure.code.as_str())
    }

    /// The `data` of the last event.
    #[must_use]
    pub fn end(&self) -> Value {
        self.events.last().unwrap().data_value()
    }
}

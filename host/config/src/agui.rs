//! `[agui]` of the configuration: how agents answer clients of AG-UI.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{bindings::BindingConfig, name::is_name};

/// Milliseconds that adjacent pieces of an answer are held at most, to be sent as one: more would be seen as stuttering.
const MAX_COALESCE_MS: u64 = 1_000;
/// Longest time that a run goes on without its client, in ms: it is paid for. `on_disconnect = "detach"` has no limit.
const MAX_GRACE_MS: u64 = 60 * 60 * 1000;
/// Largest number of messages in one snapshot, which is built in memory.
const MAX_HISTORY_MESSAGES: u32 = 10_000;
/// Largest body of a request for a run: it is read as it arrives, and a message of it is in memory.
const MAX_BODY_BYTES: usize = 1 << 30;
/// Bytes of a file that a message names by its address.
const MAX_FETCH_BYTES: u64 = 1 << 30;
/// Largest time limit for fetching a file, in ms: the sender of the message waits for it.
const MAX_FETCH_MS: u64 = 10 * 60 * 1000;
/// Longest validity of a signed address, in ms: a week, as object stores allow.
const MAX_URL_TTL_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Answers to clients of the AG-UI protocol. Each binding that has a runner is an agent, by its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AguiConfig {
    /// The answer to a run for a thread whose active run has not ended.
    pub busy: BusyThread,
    /// The fate of a run whose client disconnects while it streams.
    pub on_disconnect: OnDisconnect,
    /// Milliseconds that a run goes on after its last client disconnected, up to an hour: a client that comes back within
    /// them finds its run. 0 cancels at once.
    pub disconnect_grace_ms: u64,
    /// The answer to messages that a client sends as history, and that this host has not seen in the thread.
    pub foreign_history: ForeignHistory,
    /// Adjacent pieces of one message are sent as one where they come within so many milliseconds, 0 to 1000. The first
    /// piece is never held; 0 holds none.
    pub coalesce_ms: u64,
    /// Bytes of a request for a run, up to 1 GiB: clients send the history of a thread with each run, and pictures in it. The
    /// strict profile takes 256 KiB in any case.
    pub body_bytes: usize,
    /// Messages that a snapshot of a thread has at most, the newest ones, 1 to 10000.
    pub history_messages: u32,
    /// Hosts whose files messages may name by their address, such as `media.example.com` or `*.example.com`. The host
    /// fetches them when a message comes, over public addresses alone. Without any, messages carry their files in them or
    /// name uploads.
    pub fetch_hosts: Vec<String>,
    /// Bytes of such a file at most, up to 1 GiB. `limits.artifact_bytes` counts as well.
    pub fetch_bytes: u64,
    /// Milliseconds that fetching such a file may take, up to 10 minutes.
    pub fetch_ms: u64,
    /// Agents, by the ids of their bindings, whose `/agents/{agent}/run` takes and gives what the strict profile of
    /// `/api/v1/agent` does.
    pub strict_agents: Vec<String>,
    /// The one agent of `/api/v1/agent`.
    pub api: AgentApiConfig,
}

impl Default for AguiConfig {
    fn default() -> Self {
        Self {
            busy: BusyThread::default(),
            on_disconnect: OnDisconnect::default(),
            disconnect_grace_ms: 30_000,
            foreign_history: ForeignHistory::default(),
            coalesce_ms: 25,
            body_bytes: 32 << 20,
            history_messages: 1_000,
            fetch_hosts: Vec::new(),
            fetch_bytes: 8 << 20,
            fetch_ms: 10_000,
            strict_agents: Vec::new(),
            api: AgentApiConfig::default(),
        }
    }
}

/// The answer to a run for a thread whose active run has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BusyThread {
    /// A run whose client has left is cancelled, and the new run begins. A run that a client watches, or that was asked for
    /// without a stream, stays, and the request is refused.
    #[default]
    ReplaceAbandoned,
    /// The request is refused, with the id of the active run.
    Reject,
    /// The run waits in line behind the active one, as runs of events do.
    Queue,
    /// The message becomes input of the active run, where its runner takes input; otherwise the request is refused.
    Steer,
}

impl BusyThread {
    /// The treatment of a run that begins a branch of the thread: it neither waits behind the active run nor becomes its input,
    /// since it changes what that run has answered.
    #[must_use]
    pub const fn of_branch(self) -> Self {
        match self {
            Self::Queue | Self::Steer => Self::Reject,
            other => other,
        }
    }
}

/// The fate of a run whose client disconnects while it streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// The run continues to its end, and the client can reconnect to it.
    Detach,
    /// The run is cancelled when `disconnect_grace_ms` is over, unless a client watches it by then.
    #[default]
    Cancel,
}

/// The answer to messages that a client sends as history, and that the host has not seen in the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForeignHistory {
    /// The request is refused: what a client says that an agent has said is not history.
    #[default]
    Refuse,
    /// Such parts are ignored.
    Ignore,
    /// A thread that the host does not know may begin with the history of the client. The transcript marks it as claimed by
    /// the client, and runners can tell it from what the host has seen. In threads that the host knows, such parts are ignored.
    Accept,
}

/// The one agent of `/api/v1/agent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentApiConfig {
    /// The binding that answers `/api/v1/agent`. Without it those routes say how to turn them on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Strictness of the check of requests.
    pub profile: AgentProfile,
    /// Milliseconds that the signed address of an attachment is valid, from a second to a week.
    pub url_ttl_ms: u64,
}

impl Default for AgentApiConfig {
    fn default() -> Self {
        Self { agent: None, profile: AgentProfile::default(), url_ttl_ms: 15 * 60 * 1000 }
    }
}

/// Strictness of the check of requests to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentProfile {
    /// Each rule of the profile counts.
    #[default]
    Strict,
    /// All requests that AG-UI allows are accepted.
    Plain,
}

impl AguiConfig {
    /// Longest delay for joining adjacent pieces of one message.
    #[must_use]
    pub const fn coalesce(&self) -> Duration {
        Duration::from_millis(self.coalesce_ms)
    }

    /// True if requests to an agent are checked against the strict profile, at `/agents/{agent}/run`.
    #[must_use]
    pub fn is_strict(&self, agent: &str) -> bool {
        self.strict_agents.iter().any(|strict| strict == agent)
    }

    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self, bindings: &[BindingConfig]) -> Result<(), String> {
        if self.coalesce_ms > MAX_COALESCE_MS {
            return Err(format!("`coalesce_ms` must be between 0 and {MAX_COALESCE_MS}"));
        }
        if self.disconnect_grace_ms > MAX_GRACE_MS {
            return Err(format!("`disconnect_grace_ms` must be between 0 and {MAX_GRACE_MS} (an hour)"));
        }
        if !(1..=MAX_BODY_BYTES).contains(&self.body_bytes) {
            return Err(format!("`body_bytes` must be between 1 and {MAX_BODY_BYTES} (1 GiB)"));
        }
        if !(1..=MAX_HISTORY_MESSAGES).contains(&self.history_messages) {
            return Err(format!("`history_messages` must be between 1 and {MAX_HISTORY_MESSAGES}"));
        }
        for host in &self.fetch_hosts {
            agent_host_protocol::hosts::check(host).map_err(|problem| format!("`fetch_hosts`: {problem}"))?;
        }
        if !(1..=MAX_FETCH_BYTES).contains(&self.fetch_bytes) {
            return Err(format!("`fetch_bytes` must be between 1 and {MAX_FETCH_BYTES} (1 GiB)"));
        }
        if !(1..=MAX_FETCH_MS).contains(&self.fetch_ms) {
            return Err(format!("`fetch_ms` must be between 1 and {MAX_FETCH_MS} (10 minutes)"));
        }
        if !(1_000..=MAX_URL_TTL_MS).contains(&self.api.url_ttl_ms) {
            return Err(format!("`api.url_ttl_ms` must be between 1000 and {MAX_URL_TTL_MS} (a week)"));
        }
        let strict = self.strict_agents.iter().map(|agent| ("strict_agents", agent));
        let named = strict.chain(self.api.agent.iter().map(|agent| ("api.agent", agent)));
        for (key, agent) in named {
            if !is_name(agent) || !bindings.iter().any(|binding| binding.id == *agent) {
                return Err(format!("`{key}` names the agent `{agent}`, and no `[[bindings]]` entry has that id"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    const BINDING: &str = "[[bindings]]\nid = \"support\"\nrunner = \"plugin:a/b/c\"\n";

    fn parse(agui: &str) -> Result<AguiConfig, String> {
        let text = format!("{agui}\n{BINDING}");
        Config::parse(&text, Path::new("/etc")).map(|config| config.agui).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_that_says_nothing_has_the_defaults() {
        let config = parse("").unwrap();
        assert_eq!(config, AguiConfig::default());
        assert_eq!((config.coalesce(), config.history_messages, config.fetch_ms), (Duration::from_millis(25), 1_000, 10_000));
        assert_eq!((config.busy, config.on_disconnect), (BusyThread::ReplaceAbandoned, OnDisconnect::Cancel));
        assert_eq!((config.foreign_history, config.api.profile), (ForeignHistory::Refuse, AgentProfile::Strict));
        assert_eq!((config.fetch_bytes, config.api.url_ttl_ms, config.api.agent), (8_388_608, 900_000, None));
    }

    #[test]
    fn a_full_section_is_read() {
        let config = parse(
            r#"
            [agui]
            busy = "queue"
            on_disconnect = "detach"
            disconnect_grace_ms = 0
            foreign_history = "ignore"
            coalesce_ms = 0
            history_messages = 10000
            fetch_hosts = ["*.example.com", "media.example.com:8443"]
            fetch_bytes = 1
            fetch_ms = 600000
            strict_agents = ["support"]

            [agui.api]
            agent = "support"
            profile = "plain"
            url_ttl_ms = 1000
            "#,
        )
        .unwrap();
        assert_eq!((config.busy, config.on_disconnect), (BusyThread::Queue, OnDisconnect::Detach));
        assert_eq!((config.foreign_history, config.api.profile), (ForeignHistory::Ignore, AgentProfile::Plain));
        assert!(config.is_strict("support") && !config.is_strict("other"));
        assert_eq!(config.api.agent.as_deref(), Some("support"));
        assert_eq!(config.fetch_hosts.len(), 2);
    }

    #[test]
    fn problems_are_named() {
        for (text, says) in [
            ("busy = \"wait\"", "busy"),
            ("on_disconnect = \"stop\"", "on_disconnect"),
            ("disconnect_grace_ms = 3600001", "disconnect_grace_ms"),
            ("foreign_history = \"trust\"", "foreign_history"),
            ("coalesce_ms = 1001", "coalesce_ms"),
            ("body_bytes = 0", "body_bytes"),
            ("body_bytes = 1073741825", "body_bytes"),
            ("history_messages = 0", "history_messages"),
            ("history_messages = 10001", "history_messages"),
            ("fetch_hosts = [\"https://example.com/\"]", "fetch_hosts"),
            ("fetch_bytes = 0", "fetch_bytes"),
            ("fetch_bytes = 1073741825", "fetch_bytes"),
            ("fetch_ms = 0", "fetch_ms"),
            ("fetch_ms = 600001", "fetch_ms"),
            ("strict_agents = [\"nobody\"]", "`nobody`"),
            ("api = { agent = \"nobody\" }", "api.agent"),
            ("api = { profile = \"loose\" }", "profile"),
            ("api = { url_ttl_ms = 999 }", "api.url_ttl_ms"),
            ("api = { url_ttl_ms = 604800001 }", "api.url_ttl_ms"),
            ("agents = []", "agents"),
        ] {
            let error = parse(&format!("[agui]\n{text}")).expect_err(text);
            assert!(error.contains(says), "{text}\n→ {error}");
        }
    }
}

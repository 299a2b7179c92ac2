//! `agent-host keys`.

use std::{collections::BTreeSet, fs, process::ExitCode};

use agent_host_config::Config;
use agent_host_ledger::{OpenError, Options};
use agent_host_protocol::{Page, Principal, Scope, limits::MAX_PAGE, time};
use agent_host_runs::{Key, Keys as KeyRing, NewKey, ledger_dir};
use anyhow::Context;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::runs::Server;
use crate::{client::Client, failure::Failure, output::Output, source, styled::StyledText, table::Table};

/// Make, list and revoke API keys
///
/// Asks the server that --server names, with the admin key of --key. Without --server, and where no host runs, works on the
/// ledger itself: this is how the first key is made.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    Create(Create),
    List(List),
    Revoke(Revoke),
}

/// Make a key, and show it this once
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  \
    agent-host keys create --scope admin\n  \
    agent-host keys create --name chat --scope events:write --scope runs:read --workspace acme --expires-in 90d \\\n      \
        --requests-per-minute 60 --tokens-per-day 200000\n\n\
    Scopes: events:write, runs:read, runs:control, runs:execute, actions:respond, on_behalf_of, admin (all of them).")]
pub(crate) struct Create {
    #[command(flatten)]
    server: Server,
    /// Name for the record [default: the scopes]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Right of the key; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = scope)]
    scopes: Vec<Scope>,
    /// Restrict the key to this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Validity, such as 30m, 12h or 90d
    #[arg(long, value_name = "DURATION", value_parser = milliseconds)]
    expires_in: Option<u64>,
    /// Most requests in a minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_minute: Option<u32>,
    /// Most tokens of models that runs for the key use on a day (UTC)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tokens_per_day: Option<u64>,
}

/// List keys, the oldest first; no secret is shown
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
}

/// Revoke a key: requests with it are refused from now on, and its streams end
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    server: Server,
    /// The id of the key, as `keys list` shows it: no secret
    #[arg(value_name = "ID", value_parser = key_id)]
    id: String,
}

fn scope(name: &str) -> Result<Scope, String> {
    Scope::from_name(name).ok_or_else(|| format!("one of: {}", Scope::ALL.map(Scope::as_str).join(", ")))
}

/// A key id that is safe in a path.
fn key_id(text: &str) -> Result<String, String> {
    let is_id = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    if is_id { Ok(text.to_owned()) } else { Err("the id of a key has letters and digits: `agent-host keys list`".to_owned()) }
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let wrong = || "write a number and a unit, such as 30s, 30m, 12h or 90d".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let factor: u64 = match unit {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return Err(wrong()),
    };
    let count: u64 = text.strip_suffix(unit).and_then(|count| count.parse().ok()).ok_or_else(wrong)?;
    count.checked_mul(factor).filter(|ms| *ms > 0).ok_or_else(wrong)
}

/// A key that was just made.
#[derive(Deserialize)]
struct CreatedKey {
    #[serde(flatten)]
    key: Key,
    token: String,
}

impl Keys {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Create(create) => create.execute(config, output).await?,
            Self::List(list) => list.execute(config, output).await?,
            Self::Revoke(revoke) => revoke.execute(config, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The place of the keys.
enum KeyStore {
    Server(Client),
    Ledger(agent_host_ledger::Ledger, KeyRing),
}

/// The requirement that a ledger exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ledger {
    Existing,
    NewOrExisting,
}

impl KeyStore {
    async fn open(config: &Config, server: &Server, which: Ledger) -> anyhow::Result<Self> {
        if let Some(url) = &server.url {
            return Ok(Self::Server(Client::new(url)?));
        }
        if let Some(cluster) = config.cluster.as_ref() {
            let ledger = super::standby::take_now(config).await?.ok_or_else(|| {
                let message = format!(
                    "a host of the cluster is active: name it with --server, or stop the hosts first (this one is {})",
                    cluster.advertise
                );
                Failure::new("ledger_in_use", message)
            })?;
            let keys = KeyRing::open(&ledger)?;
            return Ok(Self::Ledger(ledger, keys));
        }
        let dir = ledger_dir(config, 0);
        let opened = match which {
            Ledger::Existing => source::open_existing(&dir),
            // The first key is made before the host has ever run.
            Ledger::NewOrExisting => {
                let data = &config.data_dir;
                fs::create_dir_all(data).with_context(|| format!("{} cannot be made", data.display()))?;
                Options::new(&dir).open()
            }
        };
        match opened {
            Ok(ledger) => {
                let keys = KeyRing::open(&ledger)?;
                Ok(Self::Ledger(ledger, keys))
            }
            Err(OpenError::AlreadyOpen { .. }) => {
                let why = "another process has the ledger open, so keys are made by its server";
                Ok(Self::Server(Client::running(config, None, why).await?))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Every user who can write the ledger has all rights.
fn operator() -> Principal {
    Principal { name: "operator".to_owned(), ..Principal::loopback() }
}

/// Makes the first key of a host that does not run, with all rights; gives the key itself.
pub(super) async fn create_admin(config: &Config) -> anyhow::Result<String> {
    match KeyStore::open(config, &Server { url: None }, Ledger::NewOrExisting).await? {
        KeyStore::Server(client) => {
            let message = format!("{} has the data directory and runs: make a key with `agent-host keys create`", client.url());
            Err(Failure::new("ledger_in_use", message).into())
        }
        KeyStore::Ledger(ledger, keys) => {
            let new_key = NewKey {
                name: "first".to_owned(),
                scopes: BTreeSet::from([Scope::Admin]),
                workspace: None,
                expires_in_ms: None,
                requests_per_minute: None,
                tokens_per_day: None,
            };
            let (_, token) = keys.create(&ledger, &operator(), new_key).await?;
            ledger.close().await?;
            Ok(token)
        }
    }
}

impl Create {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let scopes: BTreeSet<Scope> = self.scopes.into_iter().collect();
        let name = self.name.unwrap_or_else(|| name_of(&scopes));
        let (key, token) = match KeyStore::open(config, &self.server, Ledger::NewOrExisting).await? {
            KeyStore::Server(client) => {
                let new_key = [
                    ("name", Some(json!(name))),
                    ("scopes", Some(json!(scopes))),
                    ("workspace", self.workspace.map(Value::from)),
                    ("expires_in_ms", self.expires_in.map(Value::from)),
                    ("requests_per_minute", self.requests_per_minute.map(Value::from)),
                    ("tokens_per_day", self.tokens_per_day.map(Value::from)),
                ];
                let new_key: Map<String, Value> =
                    new_key.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
                let created: CreatedKey = client.ask(Method::POST, "api/v1/keys", &[], Some(&Value::Object(new_key))).await?;
                (created.key, created.token)
            }
            KeyStore::Ledger(ledger, keys) => {
                let new_key = NewKey {
                    name,
                    scopes,
                    workspace: self.workspace,
                    expires_in_ms: self.expires_in,
                    requests_per_minute: self.requests_per_minute,
                    tokens_per_day: self.tokens_per_day,
                };
                let created = keys.create(&ledger, &operator(), new_key).await?;
                ledger.close().await?;
                created
            }
        };
        let mut output_value = serde_json::to_value(&key)?;
        if let Some(members) = output_value.as_object_mut() {
            members.insert("token".to_owned(), token.clone().into());
        }
        output.remark(&format!("key {} is made; this is the only time that it is shown:", key.key_id));
        Ok(output.result(&output_value, || format!("{token}\n"))?)
    }
}

/// A name for a key that was given none: its scopes, as far as they fit.
fn name_of(scopes: &BTreeSet<Scope>) -> String {
    let names: Vec<_> = scopes.iter().map(|scope| scope.as_str().replace(':', "-")).collect();
    names.join(".").chars().take(64).collect()
}

impl List {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let keys = match KeyStore::open(config, &self.server, Ledger::Existing).await? {
            KeyStore::Ledger(_, keys) => keys.list(&operator(), None, usize::MAX),
            KeyStore::Server(client) => {
                let (mut all, mut cursor) = (Vec::new(), None);
                loop {
                    let query = [("cursor", cursor), ("limit", Some(MAX_PAGE.to_string()))];
                    let page: Page<Key> = client.get("api/v1/keys", &query).await?;
                    all.extend(page.items);
                    cursor = page.next_cursor.filter(|_| page.has_more);
                    if cursor.is_none() {
                        break all;
                    }
                }
            }
        };
        Ok(output.result(&json!({ "items": keys }), || table_of(&keys, time::now()))?)
    }
}

fn table_of(keys: &[Key], now: time::Timestamp) -> StyledText {
    if keys.is_empty() {
        return "there is no key: agent-host keys create --scope admin\n".into();
    }
    let mut table = Table::new(["ID", "NAME", "SCOPES", "WORKSPACE", "LIMITS", "CREATED", "STATE"]);
    for key in keys {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(at), _) => format!("revoked {}", time::display(at)),
            (None, Some(at)) if at <= now => format!("expired {}", time::display(at)),
            (None, Some(at)) => format!("good until {}", time::display(at)),
            (None, None) => "good".to_owned(),
        };
        let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let workspace = key.workspace.clone().unwrap_or_else(|| "all".to_owned());
        let created = time::display(key.created_at);
        table.row([key.key_id.clone(), key.name.clone(), scopes.join(" "), workspace, limits_of(key), created, state]);
    }
    table.render()
}

/// The limits of a key, such as `60 requests/min, 1200 of 5000 tokens today`.
fn limits_of(key: &Key) -> String {
    let requests = key.requests_per_minute.map(|limit| format!("{limit} requests/min"));
    let tokens = key.tokens_per_day.map(|limit| format!("{} of {limit} tokens today", key.tokens_today.unwrap_or(0)));
    let limits: Vec<_> = requests.into_iter().chain(tokens).collect();
    if limits.is_empty() { "-".to_owned() } else { limits.join(", ") }
}

impl Revoke {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let key: Key = match KeyStore::open(config, &self.server, Ledger::Existing).await? {
            KeyStore::Server(client) => client.ask(Method::DELETE, &format!("api/v1/keys/{}", self.id), &[], None).await?,
            KeyStore::Ledger(ledger, keys) => {
                let revoked = keys.revoke(&ledger, &operator(), &self.id).await;
                let revoked = revoked.map_err(|error| Failure::new(error.code(), error.to_string()))?;
                ledger.close().await?;
                revoked
            }
        };
        Ok(output.result(&key, || format!("key {} ({}) is revoked\n", key.key_id, key.name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, ms) in [("30s", 30_000), ("5m", 300_000), ("12h", 43_200_000), ("90d", 7_776_000_000)] {
            assert_eq!(milliseconds(text), Ok(ms), "{text}");
        }
        for text in ["", "d", "0d", "-1d", "1.5h", "10", "1w", "99999999999999999999d", "1ä"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_says_which_keys_are_good() {
        let key = |name: &str, expires_at, revoked_at| Key {
            key_id: format!("id-{name}"),
            name: name.to_owned(),
            scopes: [Scope::RunsRead].into(),
            workspace: None,
            created_at: 0,
            expires_at,
            revoked_at,
            requests_per_minute: None,
            tokens_per_day: None,
            tokens_today: None,
        };
        let keys = [key("a", None, None), key("b", Some(5), None), key("c", Some(50), None), key("d", None, Some(1))];
        let table = table_of(&keys, 10).to_string();
        let state = |line: &str| ["good until", "expired", "revoked", "good"].into_iter().find(|state| line.contains(state));
        let states: Vec<_> = table.lines().skip(1).map(state).collect();
        assert_eq!(states, [Some("good"), Some("expired"), Some("good until"), Some("revoked")], "{table}");
        assert!(table_of(&[], 0).to_string().contains("keys create"));
        let limited =
            Key { requests_per_minute: Some(60), tokens_per_day: Some(5000), tokens_today: Some(1200), ..key("e", None, None) };
        let table = table_of(&[limited], 10).to_string();
        assert!(table.contains("60 requests/min, 1200 of 5000 tokens today"), "{table}");
    }
}

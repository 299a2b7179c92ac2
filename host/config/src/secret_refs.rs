//! All secrets that a configuration names.

use crate::{access_key::AccessKey, file::Config, mcp_servers::EnvValue, secret::SecretRef};

impl Config {
    /// Every reference to a secret, with its place for a person, such as ``model `gpt`: `api_key` ``.
    #[must_use]
    pub fn secret_refs(&self) -> Vec<(String, &SecretRef)> {
        let models =
            self.models.iter().filter_map(|model| Some((format!("model `{}`: `api_key`", model.id), model.api_key.as_ref()?)));
        let access_keys = self.models.iter().flat_map(|model| {
            let secrets = model.access_key.iter().flat_map(AccessKey::secrets);
            secrets.map(|(key, secret)| (format!("model `{}`: `access_key.{key}`", model.id), secret))
        });
        let servers = self.mcp_servers.iter().flat_map(|server| {
            let values = [("env", &server.env), ("headers", &server.headers)].into_iter();
            values.flat_map(move |(key, values)| secrets_of(format!("MCP server `{}`: `{key}.", server.id), values))
        });
        let harnesses =
            self.harnesses.iter().flat_map(|harness| secrets_of(format!("harness `{}`: `env.", harness.id), &harness.env));
        let http = self.http_secrets.iter().map(|secret| (format!("HTTP secret `{}`: `value`", secret.name), &secret.value));
        let actions = self.action_hooks.iter().map(|hook| (format!("action hook {}: `secret`", hook.url), &hook.secret));
        let approvers = self.approvers.iter().map(|approver| (format!("approver `{}`: `token`", approver.id), &approver.token));
        let sources =
            self.webhook_sources.iter().map(|source| (format!("webhook source `{}`: `secret`", source.name), &source.secret));
        let webhooks = self.webhooks.iter().map(|hook| (format!("webhook `{}`: `secret`", hook.name), &hook.secret));
        let telemetry = self.telemetry.headers.iter().map(|(name, secret)| (format!("telemetry: `headers.{name}`"), secret));
        let cluster = self.cluster.iter().flat_map(|cluster| {
            let secrets = [("password", &cluster.password), ("secret", &cluster.secret)];
            secrets.into_iter().filter_map(|(key, secret)| Some((format!("cluster: `{key}`"), secret.as_ref()?)))
        });
        let services = models.chain(access_keys).chain(servers).chain(harnesses).chain(http).chain(actions);
        services.chain(approvers).chain(sources).chain(webhooks).chain(telemetry).chain(cluster).collect()
    }
}

/// The secrets among the values of an environment or of headers.
fn secrets_of<'a>(
    place: String,
    values: impl IntoIterator<Item = (&'a String, &'a EnvValue)>,
) -> impl Iterator<Item = (String, &'a SecretRef)> {
    values.into_iter().filter_map(move |(name, value)| match value {
        EnvValue::Secret(secret) => Some((format!("{place}{name}`"), secret)),
        EnvValue::Plain(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use serde_json::Value;

    use super::*;
    use crate::file::schema;

    const ALL: &str = r#"
        [[models]]
        id = "m"
        provider = "openai"
        base_url = "https://m.example/v1"
        api_key = { env = "MODEL" }
        [[models]]
        id = "signed"
        provider = "bedrock"
        base_url = "https://bedrock-runtime.eu-west-1.amazonaws.com"
        access_key = { id = { env = "KEY_ID" }, secret = { env = "KEY_SECRET" }, session_token = { file = "session" } }
        [[mcp_servers]]
        id = "local"
        command = "tool"
        env = { KEY = { env = "TOOL" }, PLAIN = "x" }
        [[mcp_servers]]
        id = "remote"
        url = "https://tools.example/mcp"
        headers = { Authorization = { file = "token" } }
        [[harnesses]]
        id = "plugin:acme/claude/default"
        preset = "claude-code"
        env = { KEY = { env = "AGENT" } }
        [[http_secrets]]
        name = "crm"
        hosts = ["crm.example"]
        value = { env = "CRM" }
        [[action_hooks]]
        actions = ["issue.*"]
        url = "https://hook.example/act"
        secret = { env = "ACT" }
        [[approvers]]
        id = "alice"
        token = { env = "ALICE" }
        [[webhook_sources]]
        name = "git"
        secret = { env = "GIT" }
        signature = "github"
        event_type = "git.push"
        [[webhooks]]
        name = "results"
        url = "https://hook.example/results"
        secret = { env = "RESULTS" }
        [server]
        ledger = "postgres://agent_host@db/agent_host"
        [cluster]
        advertise = "10.0.0.7:7071"
        password = { env = "DATABASE" }
        secret = { env = "CLUSTER" }
        [telemetry]
        otlp_endpoint = "http://127.0.0.1:4318"
        headers = { x-key = { env = "TRACES" } }
    "#;

    /// True if a part of the schema refers to secrets, by itself or by what it refers to.
    fn has_secrets(part: &Value, definitions: &Value, seen: &mut BTreeSet<String>) -> bool {
        match part {
            Value::Object(members) => members.iter().any(|(key, value)| match (key.as_str(), value.as_str()) {
                ("$ref", Some("#/$defs/SecretRef")) => true,
                ("$ref", Some(path)) => {
                    let name = path.trim_start_matches("#/$defs/").to_owned();
                    seen.insert(name.clone()) && has_secrets(&definitions[&name], definitions, seen)
                }
                _ => has_secrets(value, definitions, seen),
            }),
            Value::Array(items) => items.iter().any(|item| has_secrets(item, definitions, seen)),
            _ => false,
        }
    }

    #[test]
    fn every_secret_that_a_file_can_name_is_found() {
        let config = Config::parse(ALL, Path::new("/etc/agent")).unwrap();
        let found: Vec<_> = config.secret_refs().into_iter().map(|(place, secret)| format!("{place}: {secret}")).collect();
        for (place, secret) in [
            ("model `m`: `api_key`", "the environment variable `MODEL`"),
            ("model `signed`: `access_key.id`", "the environment variable `KEY_ID`"),
            ("model `signed`: `access_key.secret`", "the environment variable `KEY_SECRET`"),
            ("model `signed`: `access_key.session_token`", "the file /etc/agent/session"),
            ("MCP server `local`: `env.KEY`", "the environment variable `TOOL`"),
            ("MCP server `remote`: `headers.Authorization`", "the file /etc/agent/token"),
            ("harness `plugin:acme/claude/default`: `env.KEY`", "the environment variable `AGENT`"),
            ("HTTP secret `crm`: `value`", "the environment variable `CRM`"),
            ("action hook https://hook.example/act: `secret`", "the environment variable `ACT`"),
            ("approver `alice`: `token`", "the environment variable `ALICE`"),
            ("webhook source `git`: `secret`", "the environment variable `GIT`"),
            ("webhook `results`: `secret`", "the environment variable `RESULTS`"),
            ("telemetry: `headers.x-key`", "the environment variable `TRACES`"),
            ("cluster: `password`", "the environment variable `DATABASE`"),
            ("cluster: `secret`", "the environment variable `CLUSTER`"),
        ] {
            assert!(found.contains(&format!("{place}: {secret}")), "{place} is missing: {found:#?}");
        }
        assert_eq!(found.len(), 15, "{found:#?}");
        let schema = schema();
        let sections = schema["properties"].as_object().unwrap().iter();
        let with_secrets = sections.filter(|(_, section)| has_secrets(section, &schema["$defs"], &mut BTreeSet::new()));
        let names: Vec<_> = with_secrets.map(|(name, _)| name.as_str()).collect();
        let known = [
            "action_hooks",
            "approvers",
            "cluster",
            "harnesses",
            "http_secrets",
            "mcp_servers",
            "models",
            "telemetry",
            "webhook_sources",
            "webhooks",
        ];
        assert_eq!(names, known, "a section with secrets is not looked at");
    }
}

//! `agent-host config check`: what a configuration says, and what this machine lacks for it.

use std::{collections::BTreeMap, path::Path};

use agent_host_config::{Config, section_names};
use agent_host_protocol::{PluginReport, PluginStatus, RunnerId, RunnerManifest};
use agent_host_providers::secret::Secret;
use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value};

use super::runners;
use crate::{failure::Failure, output::Output, settings::Settings};

/// Keys of `[server]`, which the configuration has at its top.
const SERVER: [&str; 7] = ["listen", "loopback_without_key", "cors_origins", "data_dir", "plugins_dir", "backup_dir", "ledger"];

/// The outcome of a check.
#[derive(Debug, Serialize)]
struct Report {
    /// The file; absent where the defaults are in effect.
    file: Option<String>,
    /// The sections that the file has: entries of a list, keys of a table.
    sections: BTreeMap<String, Section>,
    /// Secrets and runners that are missing on this machine. Empty where the configuration works.
    problems: Vec<String>,
    /// The values in effect, in the shape of the file, so that a part of them can be copied there.
    config: Value,
}

/// The size of a section.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Section {
    Entries(usize),
    Keys(usize),
}

pub(super) async fn check(settings: &Settings, output: Output) -> anyhow::Result<()> {
    let Settings { config, file } = settings;
    let mut problems = missing_secrets(config);
    problems.extend(missing_runners(config, output).await?);
    let report = Report {
        file: file.as_ref().map(|file| file.display().to_string()),
        sections: file.as_ref().map(|file| sections(file)).transpose()?.unwrap_or_default(),
        problems,
        config: effective(config)?,
    };
    output.result(&report, || text(&report))?;
    if report.problems.is_empty() {
        return Ok(());
    }
    let message = format!("this machine lacks what the configuration names:\n- {}", report.problems.join("\n- "));
    Err(Failure::new("incomplete_config", message).into())
}

fn text(report: &Report) -> String {
    let mut text = match &report.file {
        Some(file) => format!("# {file} can be read; its sections:\n"),
        None => "# no file: the defaults are in effect\n".to_owned(),
    };
    for (name, section) in &report.sections {
        let (count, one, many) = match section {
            Section::Entries(count) => (count, "entry", "entries"),
            Section::Keys(count) => (count, "key", "keys"),
        };
        text.push_str(&format!("#   {name}: {count} {}\n", if *count == 1 { one } else { many }));
    }
    let toml = toml::to_string_pretty(&report.config).unwrap_or_else(|error| format!("cannot be shown as TOML: {error}\n"));
    text + "# in effect:\n\n" + &toml
}

/// The sections that a file has.
fn sections(file: &Path) -> anyhow::Result<BTreeMap<String, Section>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let table: toml::Table = toml::from_str(&text)?;
    let sizes = table.into_iter().filter_map(|(name, section)| match section {
        toml::Value::Array(entries) => Some((name, Section::Entries(entries.len()))),
        toml::Value::Table(keys) => Some((name, Section::Keys(keys.len()))),
        _ => None,
    });
    Ok(sizes.collect())
}

/// All sections with the values in effect.
fn effective(config: &Config) -> anyhow::Result<Value> {
    let Value::Object(mut members) = serde_json::to_value(config)? else { return Ok(Value::Null) };
    let server: Map<_, _> = SERVER.iter().filter_map(|name| members.remove_entry(*name)).collect();
    members.insert("server".to_owned(), server.into());
    let sections = section_names();
    members.retain(|name, _| sections.contains(name));
    Ok(without_null(members.into()))
}

/// A value without members that are absent: TOML has no `null`.
fn without_null(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let present = members.into_iter().filter(|(_, value)| !value.is_null());
            present.map(|(name, value)| (name, without_null(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(without_null).collect(),
        value => value,
    }
}

/// The secrets that cannot be read, with their places. No text has a secret.
fn missing_secrets(config: &Config) -> Vec<String> {
    let problem = |(place, secret)| Secret::read(secret).err().map(|error| format!("{place}: {error}"));
    config.secret_refs().into_iter().filter_map(problem).collect()
}

/// The bindings whose runner is not there, or does not take their configuration.
async fn missing_runners(config: &Config, output: Output) -> anyhow::Result<Vec<String>> {
    let mut manifests = config.external_manifests();
    let is_external = |id: &RunnerId| manifests.iter().any(|manifest| manifest.id == *id);
    let mut plugins = Vec::new();
    // Components are compiled only where a binding needs one.
    if config.plugins_dir.is_dir() && config.bindings.iter().any(|binding| !is_external(&binding.runner)) {
        let installed = runners::inspect_all(config, output).await?;
        (plugins, manifests) = (installed.plugins, installed.runners);
    }
    Ok(problems_of_bindings(config, &plugins, &manifests))
}

fn problems_of_bindings(config: &Config, plugins: &[PluginReport], manifests: &[RunnerManifest]) -> Vec<String> {
    let mut problems = Vec::new();
    for binding in &config.bindings {
        let (id, runner) = (&binding.id, &binding.runner);
        if let Some(manifest) = manifests.iter().find(|manifest| manifest.id == *runner) {
            if let Err(misfits) = manifest.check_config(binding.config.clone()) {
                problems.push(format!("binding `{id}`: its configuration does not fit {runner}: {}", misfits.join("; ")));
            }
            continue;
        }
        // The manifest comes with an executor.
        if config.executor_runners.iter().any(|entry| entry.runner_ids.names(runner.as_str())) {
            continue;
        }
        let refused = plugins.iter().filter(|plugin| plugin.status == PluginStatus::Refused);
        let refused: Vec<_> = refused.map(|plugin| plugin.file.as_str()).collect();
        let hint = if refused.is_empty() {
            String::new()
        } else {
            format!("; refused, see `agent-host runners` for why: {}", refused.join(", "))
        };
        problems.push(format!(
            "binding `{id}`: no component of {} has the runner {runner}, and it is neither an external runner nor a harness{hint}",
            config.plugins_dir.display()
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("/etc/agent")).unwrap()
    }

    #[test]
    fn the_values_in_effect_are_a_configuration_with_every_section() {
        let config = config(
            "[server]\nlisten = \"127.0.0.1:1\"\nledger = \"postgres://h.example/d\"\n[cluster]\nadvertise = \"h:1\"\n[[webhooks]]\nname = \"w\"\nurl = \"https://h.example/r\"\nsecret = { env = \"W\" }\n\
             [[schedules]]\nid = \"s\"\nevery_ms = 60000\nevent = { event_type = \"tick\" }\n",
        );
        let shown = effective(&config).unwrap();
        let missing: Vec<_> = section_names().into_iter().filter(|name| shown.get(name).is_none()).collect();
        assert!(missing.is_empty(), "sections are not shown: {missing:?}");
        let toml = toml::to_string_pretty(&shown).unwrap();
        assert_eq!(Config::parse(&toml, Path::new("/etc/agent")).unwrap(), config, "{toml}");
    }

    #[test]
    fn sections_of_the_file_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent-host.toml");
        std::fs::write(&file, "[server]\nlisten = \"127.0.0.1:1\"\n[[bindings]]\nid = \"a\"\n[[bindings]]\nid = \"b\"\n")
            .unwrap();
        let report = Report {
            file: Some("f".to_owned()),
            sections: sections(&file).unwrap(),
            problems: Vec::new(),
            config: json!({ "server": { "listen": "127.0.0.1:1" } }),
        };
        insta::assert_snapshot!(text(&report), @r#"
        # f can be read; its sections:
        #   bindings: 2 entries
        #   server: 1 key
        # in effect:

        [server]
        listen = "127.0.0.1:1"
        "#);
    }

    #[test]
    fn a_secret_that_is_not_there_is_named_with_its_place() {
        let config = config(
            "[[models]]\nid = \"m\"\nprovider = \"openai\"\napi_key = { env = \"AGENT_HOST_NO_SUCH_KEY\" }\n\
             [[approvers]]\nid = \"alice\"\ntoken = { file = \"nothing\" }\n",
        );
        let missing = missing_secrets(&config);
        assert_eq!(missing.len(), 2, "{missing:#?}");
        assert!(missing[0].starts_with("model `m`: `api_key`: the environment variable `AGENT_HOST_NO_SUCH_KEY` is not set"));
        assert!(missing[1].starts_with("approver `alice`: `token`: the secret in /etc/agent/nothing cannot be read"));
    }

    #[test]
    fn a_runner_is_a_component_an_external_one_a_harness_or_of_an_executor() {
        let config = config(
            "[[bindings]]\nid = \"gone\"\nrunner = \"plugin:a/gone/default\"\n\
             [[bindings]]\nid = \"there\"\nrunner = \"plugin:a/there/default\"\n\
             [[bindings]]\nid = \"coder\"\nrunner = \"plugin:a/coder/default\"\n\
             [[bindings]]\nid = \"later\"\nrunner = \"plugin:b/later/default\"\n\
             [[harnesses]]\nid = \"plugin:a/coder/default\"\npreset = \"claude-code\"\n\
             [[executor_runners]]\nrunner_ids = [\"plugin:b/*\"]\n",
        );
        let runner = json!({ "id": "plugin:a/there/default", "name": "default", "author": "a", "plugin": "there", "version": "1.0.0", "label": {} });
        let mut manifests: Vec<RunnerManifest> = vec![serde_json::from_value(runner).unwrap()];
        manifests.extend(config.external_manifests());
        let refused: PluginReport =
            serde_json::from_value(json!({ "file": "old.wasm", "status": "refused", "size_bytes": 1, "runners": [] })).unwrap();
        let problems = problems_of_bindings(&config, &[refused], &manifests);
        assert_eq!(
            problems,
            [
                "binding `gone`: no component of /etc/agent/plugins has the runner plugin:a/gone/default, and it is neither an external \
              runner nor a harness; refused, see `agent-host runners` for why: old.wasm"
            ]
        );
    }
}

//! Resolution of a runner's short name.

use agent_host_protocol::{PluginReport, PluginStatus, RunnerId};

use crate::failure::Failure;

/// The one runner that `name` can mean: a whole id, the end of one such as `echo/default`, or a plugin with one
/// runner such as `echo`.
pub(crate) fn resolve(name: &str, plugins: &[PluginReport]) -> Result<RunnerId, Failure> {
    let mut served: Vec<&RunnerId> = plugins
        .iter()
        .filter(|plugin| plugin.status == PluginStatus::Ready || plugin.serves_previous)
        .flat_map(|plugin| &plugin.runners)
        .map(|runner| &runner.id)
        .collect();
    served.sort();
    served.dedup();
    if let Some(id) = served.iter().find(|id| id.as_str() == name) {
        return Ok((*id).clone());
    }
    let by_end: Vec<_> = served.iter().filter(|id| is_end(id.as_str(), name)).collect();
    let by_plugin: Vec<_> = served.iter().filter(|id| is_end(id.plugin(), name)).collect();
    match (by_end.as_slice(), by_plugin.as_slice()) {
        ([id], _) | ([], [id]) => Ok((**id).clone()),
        ([], []) => Err(Failure::new("runner_not_found", unknown(name, &served, plugins))),
        (several, []) | ([], several) | (several, _) => Err(Failure::new(
            "runner_ambiguous",
            format!("`{name}` can mean several runners:\n{}", list(several.iter().map(|id| id.as_str()))),
        )),
    }
}

/// True if `name` can mean this runner.
pub(crate) fn can_mean(name: &str, id: &RunnerId) -> bool {
    is_end(id.as_str(), name) || is_end(id.plugin(), name)
}

/// True if `end` is a suffix of `id` at a `/` or `:`.
fn is_end(id: &str, end: &str) -> bool {
    id.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', ':']))
}

fn unknown(name: &str, served: &[&RunnerId], plugins: &[PluginReport]) -> String {
    let mut message = format!("no runner is called `{name}`");
    if served.is_empty() {
        message.push_str("; the plugins directory has none that can run");
    } else {
        message.push_str("; there are:\n");
        message.push_str(&list(served.iter().map(|id| id.as_str())));
    }
    let refused: Vec<_> =
        plugins.iter().filter(|plugin| plugin.status == PluginStatus::Refused).map(|plugin| plugin.file.as_str()).collect();
    if !refused.is_empty() {
        message.push_str(&format!("\nrefused, see `agent-host runners` for why: {}", refused.join(", ")));
    }
    message
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    items.map(|item| format!("  {item}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plugin(file: &str, status: &str, ids: &[&str]) -> PluginReport {
        let runners: Vec<_> = ids
            .iter()
            .map(|id| json!({ "id": id, "name": "n", "author": "a", "plugin": "p", "version": "1.0.0", "label": {} }))
            .collect();
        serde_json::from_value(json!({ "file": file, "status": status, "size_bytes": 1, "runners": runners })).unwrap()
    }

    fn plugins() -> Vec<PluginReport> {
        vec![
            plugin("echo.wasm", "ready", &["plugin:acme/echo/default"]),
            plugin("bots.wasm", "ready", &["plugin:acme/bots/default", "plugin:acme/bots/other"]),
            plugin("old.wasm", "refused", &["plugin:acme/old/default"]),
        ]
    }

    fn check(name: &str, expect: Result<&str, &str>) {
        let found = resolve(name, &plugins()).map_err(|failure| failure.to_string());
        assert_eq!(found.as_ref().map(RunnerId::as_str).map_err(String::as_str), expect, "{name}");
    }

    #[test]
    fn a_name_that_can_mean_one_runner_is_enough() {
        check("plugin:acme/echo/default", Ok("plugin:acme/echo/default"));
        check("acme/bots/other", Ok("plugin:acme/bots/other"));
        check("echo/default", Ok("plugin:acme/echo/default"));
        check("other", Ok("plugin:acme/bots/other"));
        check("echo", Ok("plugin:acme/echo/default"));
        check("acme/echo", Ok("plugin:acme/echo/default"));
    }

    #[test]
    fn a_name_that_can_mean_several_or_none_shows_what_there_is() {
        check("default", Err("`default` can mean several runners:\n  plugin:acme/bots/default\n  plugin:acme/echo/default"));
        check("bots", Err("`bots` can mean several runners:\n  plugin:acme/bots/default\n  plugin:acme/bots/other"));
        let message = resolve("cho", &plugins()).unwrap_err().to_string();
        insta::assert_snapshot!(message, @r"
        no runner is called `cho`; there are:
          plugin:acme/bots/default
          plugin:acme/bots/other
          plugin:acme/echo/default
        refused, see `agent-host runners` for why: old.wasm
        ");
        assert!(resolve("old", &plugins()).is_err());
        assert!(resolve("x", &[]).unwrap_err().to_string().contains("has none"));
    }
}

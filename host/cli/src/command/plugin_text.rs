//! Plugins as people read them.

use std::fmt::Write;

use agent_host_protocol::{
    ImportReport, ImportVerdict, PluginReport, PluginStatus, Refusal, RunnerManifest, manifest::Permissions,
};
use serde_json::Value;

use crate::{
    styled::StyledText,
    table::Table,
    text::{self, bytes, duration_ms},
};

/// All plugins, one row a runner; then, for each refused file, why and what to do.
pub(crate) fn table(plugins: &[PluginReport]) -> StyledText {
    let mut table = Table::new(["FILE", "STATUS", "RUNNER", "VERSION", "SIZE"]);
    for plugin in plugins {
        let row = |runner: String, version: String| {
            [plugin.file.clone(), status(plugin).to_owned(), runner, version, bytes(plugin.size_bytes)]
        };
        if plugin.runners.is_empty() {
            table.row(row("-".to_owned(), "-".to_owned()));
        }
        for runner in &plugin.runners {
            table.row(row(runner.id.to_string(), runner.version.to_string()));
        }
    }
    with_refusals(table, plugins)
}

/// All plugins, one row each: compiled now, or from the cache; then, for each refused file, why and what to do.
pub(crate) fn compiled(plugins: &[PluginReport]) -> StyledText {
    let mut table = Table::new(["FILE", "STATUS", "CODE", "TOOK", "SIZE"]);
    for plugin in plugins {
        let code = match plugin.status {
            PluginStatus::Refused => "-",
            _ if plugin.from_cache => "there already",
            _ => "compiled",
        };
        let took = plugin.load_ms.map_or_else(|| "-".to_owned(), duration_ms);
        table.row([plugin.file.clone(), status(plugin).to_owned(), code.to_owned(), took, bytes(plugin.size_bytes)]);
    }
    with_refusals(table, plugins)
}

fn with_refusals(table: Table, plugins: &[PluginReport]) -> StyledText {
    let mut output = table.render();
    for plugin in plugins {
        if let Some(refusal) = &plugin.refusal {
            let file = text::one_line(&plugin.file, 200);
            output.push_str(&format!("\n{file}\n{}", refusal_text(refusal, &plugin.imports)));
        }
    }
    output
}

const fn status(plugin: &PluginReport) -> &'static str {
    match (plugin.status, plugin.serves_previous) {
        (PluginStatus::Ready, _) => "ready",
        (PluginStatus::Loading, _) => "loading",
        (PluginStatus::Refused, false) => "refused",
        (PluginStatus::Refused, true) => "refused, old version serves",
    }
}

/// The reason of a refusal, import by import if imports are the reason.
fn refusal_text(refusal: &Refusal, imports: &[ImportReport]) -> String {
    let mut output = format!("  {}: {}\n  fix: {}\n", refusal.code.as_str(), indent(&refusal.message), indent(&refusal.fix));
    if imports.iter().any(|import| !import.verdict.is_fine()) {
        output.push_str(&import_lines(imports));
    }
    output
}

fn import_lines(imports: &[ImportReport]) -> String {
    let mut output = String::new();
    let width = imports.iter().map(|import| import.name.chars().count()).max().unwrap_or(0);
    for import in imports {
        let _ = writeln!(output, "  {:width$}  {}", import.name, verdict(import.verdict));
        if let Some(fix) = &import.fix {
            // An admitted import needs no remedy, but perhaps a note.
            let what = if import.verdict.is_fine() { "note" } else { "fix" };
            let _ = writeln!(output, "  {:width$}  {what}: {}", "", indent(fix));
        }
    }
    output
}

fn indent(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

const fn verdict(verdict: ImportVerdict) -> &'static str {
    match verdict {
        ImportVerdict::Provided => "provided",
        ImportVerdict::Inert => "provided, and has nothing in it",
        ImportVerdict::Undeclared => "not declared by the manifest",
        ImportVerdict::Unknown => "unknown to this host",
        ImportVerdict::NewerVersion => "newer than this host has",
        ImportVerdict::OtherVersion => "another major version than this host has",
        ImportVerdict::Mismatch => "has other functions or types in this host",
        _ => "see --json",
    }
}

/// All details of a file.
pub(crate) fn details(plugin: &PluginReport) -> String {
    let mut fields =
        vec![("file", plugin.file.clone()), ("status", status(plugin).to_owned()), ("size", bytes(plugin.size_bytes))];
    fields.extend(plugin.digest.clone().map(|digest| ("digest", digest)));
    fields.extend(plugin.load_ms.map(|ms| ("checked in", duration_ms(ms))));
    let mut output = text::fields(fields);
    if let Some(refusal) = &plugin.refusal {
        let _ = write!(output, "\nrefused\n{}", refusal_text(refusal, &[]));
    }
    if !plugin.imports.is_empty() {
        let _ = write!(output, "\nimports\n{}", import_lines(&plugin.imports));
    }
    for runner in &plugin.runners {
        let _ = write!(output, "\nrunner {} {}\n{}", runner.id, runner.version, text::fields(runner_fields(runner)));
    }
    output
}

fn runner_fields(runner: &RunnerManifest) -> Vec<(&'static str, String)> {
    let mut fields = vec![("  label", text::one_line(runner.label.fallback(), 200))];
    fields.extend(runner.description.as_ref().map(|description| ("  description", text::one_line(description.fallback(), 400))));
    fields.push(("  can", capabilities(runner)));
    let interfaces: Vec<_> = runner.interfaces().iter().map(|interface| interface.as_str()).collect();
    fields.push(("  interfaces", join_names(&interfaces)));
    fields.push(("  at most granted", permissions(&runner.permissions)));
    let form: Vec<_> = runner
        .config_schema
        .iter()
        .map(|item| format!("{}: {}{}", item.name, item.kind, if item.required { ", required" } else { "" }))
        .collect();
    fields.push(("  configuration", if form.is_empty() { "anything".to_owned() } else { text::one_line(&form.join("; "), 400) }));
    fields
}

/// The capabilities that it claims.
fn capabilities(runner: &RunnerManifest) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(&runner.capabilities) else { return "-".to_owned() };
    let claimed: Vec<_> =
        all.iter().filter(|(_, claimed)| **claimed == Value::Bool(true)).map(|(name, _)| name.as_str()).collect();
    join_names(&claimed)
}

/// The permissions that are not empty, each with its values. A grant is a subset of them, narrowed by binding and scope.
fn permissions(permissions: &Permissions) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(permissions) else { return "-".to_owned() };
    let open = all.iter().filter_map(|(name, allowed)| match allowed {
        Value::Bool(true) => Some(name.clone()),
        Value::Array(items) if !items.is_empty() => {
            let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            Some(format!("{name} ({})", items.join(", ")))
        }
        _ => None,
    });
    let open: Vec<String> = open.collect();
    if open.is_empty() { "nothing".to_owned() } else { text::one_line(&open.join("; "), 1000) }
}

fn join_names(names: &[&str]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plugin(more: Value) -> PluginReport {
        let mut report = json!({ "file": "echo.wasm", "status": "ready", "size_bytes": 131_500 });
        report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(report).unwrap()
    }

    fn echo() -> PluginReport {
        plugin(json!({
            "digest": "sha256:00ff",
            "load_ms": 340,
            "imports": [
                { "name": "agent-host:runner/state@1.0.0", "verdict": "provided" },
                { "name": "wasi:cli/exit@0.2.0", "verdict": "inert" },
            ],
            "runners": [{
                "id": "plugin:agent-host/echo/default", "name": "default", "author": "agent-host", "plugin": "echo", "version": "0.1.0",
                "label": { "en": "Echo" }, "capabilities": { "streaming": true },
                "permissions": { "state": ["conversation"], "history": ["page"], "interactions": true },
                "config_schema": [{ "type": "string", "name": "prefix", "label": {}, "required": true }],
            }],
        }))
    }

    fn refused_plugin() -> PluginReport {
        plugin(json!({
            "file": "bad.wasm", "status": "refused",
            "refusal": { "code": "unknown_import", "message": "it imports what the host does not have", "fix": "build it without sockets" },
            "imports": [
                { "name": "agent-host:runner/log@1.0.0", "verdict": "provided" },
                { "name": "wasi:sockets/tcp@0.2.0", "verdict": "unknown", "fix": "remove the import" },
            ],
        }))
    }

    #[test]
    fn plugins_are_a_table_and_refusals_are_explained() {
        insta::assert_snapshot!(table(&[echo(), refused_plugin()]), @r"
        FILE       STATUS   RUNNER                          VERSION  SIZE
        echo.wasm  ready    plugin:agent-host/echo/default  0.1.0    128.4 KiB
        bad.wasm   refused  -                               -        128.4 KiB

        bad.wasm
          unknown_import: it imports what the host does not have
          fix: build it without sockets
          agent-host:runner/log@1.0.0  provided
          wasi:sockets/tcp@0.2.0       unknown to this host
                                       fix: remove the import
        ");
    }

    #[test]
    fn compiled_plugins_are_a_table_with_the_origin_of_their_code() {
        let cached = plugin(json!({ "file": "b.wasm", "from_cache": true, "load_ms": 12 }));
        insta::assert_snapshot!(compiled(&[echo(), cached, refused_plugin()]), @r"
        FILE       STATUS   CODE           TOOK    SIZE
        echo.wasm  ready    compiled       340 ms  128.4 KiB
        b.wasm     ready    there already  12 ms   128.4 KiB
        bad.wasm   refused  -              -       128.4 KiB

        bad.wasm
          unknown_import: it imports what the host does not have
          fix: build it without sockets
          agent-host:runner/log@1.0.0  provided
          wasi:sockets/tcp@0.2.0       unknown to this host
                                       fix: remove the import
        ");
    }

    #[test]
    fn an_import_with_a_note_is_admitted_without_a_remedy() {
        let handler = "wasi:http/outgoing-handler@0.2.4";
        let import = json!({ "name": handler, "verdict": "provided", "fix": "runs of it cannot be resumed" });
        insta::assert_snapshot!(details(&plugin(json!({ "imports": [import] }))), @r"
        file    echo.wasm
        status  ready
        size    128.4 KiB

        imports
          wasi:http/outgoing-handler@0.2.4  provided
                                            note: runs of it cannot be resumed
        ");
    }

    #[test]
    fn a_plugin_is_shown_with_all_that_it_may_do() {
        insta::assert_snapshot!(details(&echo()), @r"
        file        echo.wasm
        status      ready
        size        128.4 KiB
        digest      sha256:00ff
        checked in  340 ms

        imports
          agent-host:runner/state@1.0.0  provided
          wasi:cli/exit@0.2.0            provided, and has nothing in it

        runner plugin:agent-host/echo/default 0.1.0
          label            Echo
          can              event_context, self_managed_context, streaming
          interfaces       history, state, interactions, timers
          at most granted  history (page); interactions; state (conversation)
          configuration    prefix: string, required
        ");
        insta::assert_snapshot!(details(&refused_plugin()), @r"
        file    bad.wasm
        status  refused
        size    128.4 KiB

        refused
          unknown_import: it imports what the host does not have
          fix: build it without sockets

        imports
          agent-host:runner/log@1.0.0  provided
          wasi:sockets/tcp@0.2.0       unknown to this host
                                       fix: remove the import
        ");
    }
}

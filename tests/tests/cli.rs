//! The command line of the real binary.

use std::{fs, path::Path, process::Output};

use agent_host_tests::{Process, component, process};
use serde_json::Value;

fn folder(components: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    for name in components {
        fs::copy(component(name), dir.path().join("plugins").join(format!("{name}.wasm"))).unwrap();
    }
    dir
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    process::command(dir).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_runner_answers_without_a_server_and_the_ledger_shows_it() {
    let dir = folder(&["echo", "hostile"]);
    let said = run(dir.path(), &["run", "echo/default", "hello there", "--conversation", "c"]);
    assert!(said.status.success() && text(&said).contains("hello there"), "{said:?}");
    let said = run(dir.path(), &["run", "plugin:agent-host/echo/default", "again", "--conversation", "c"]);
    assert!(text(&said).contains("turn 2"), "{said:?}");

    fs::write(dir.path().join("input.txt"), "from a file").unwrap();
    let said = run(dir.path(), &["run", "echo/default", "--file", "input.txt"]);
    assert!(text(&said).contains("from a file"), "{said:?}");

    let failed = run(dir.path(), &["run", "test/hostile", "trap"]);
    assert_eq!(failed.status.code(), Some(1), "a run that fails is not success: {failed:?}");
    let unknown = run(dir.path(), &["run", "nobody", "hi"]);
    assert!(!unknown.status.success());
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("plugin:agent-host/echo/default"),
        "it says what there is: {unknown:?}"
    );

    let runs = json(&run(dir.path(), &["--json", "runs", "list"]));
    assert_eq!(runs["items"].as_array().unwrap().len(), 4, "{runs:#}");
    let id = runs["items"][3]["run_id"].as_str().unwrap();
    let shown = json(&run(dir.path(), &["--json", "runs", "show", id]));
    assert_eq!(shown["status"], "completed");
    let events = run(dir.path(), &["runs", "events", id]);
    assert!(text(&events).contains("run.completed"), "{events:?}");
}

#[test]
fn a_file_is_inspected_before_it_is_trusted() {
    let dir = folder(&[]);
    let echo = component("echo");
    let report = json(&run(dir.path(), &["--json", "inspect", echo.to_str().unwrap()]));
    assert_eq!(report["status"], "ready");
    assert_eq!(report["runners"][0]["id"], "plugin:agent-host/echo/default");
    assert!(report["size_bytes"].as_u64().unwrap() < 150 * 1024, "the example stays under 150 KiB");
    let bad = component("manifest_undeclared");
    let refused = run(dir.path(), &["inspect", bad.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("declare the permission `state`"), "{refused:?}");
    let absent = run(dir.path(), &["inspect", "nothing.wasm"]);
    assert!(!absent.status.success());
}

#[test]
fn runners_lists_what_is_there_and_what_is_wrong() {
    let dir = folder(&["echo", "unknown_import", "manifest_twin"]);
    let listed = run(dir.path(), &["runners"]);
    let shown = text(&listed);
    assert!(listed.status.success());
    for part in ["plugin:agent-host/echo/default", "example:unknown/thing", "unknown_import.wasm", "manifest_twin.wasm"] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
}

#[test]
fn the_ledger_is_checked_counted_compacted_and_exported() {
    let dir = folder(&["echo"]);
    let none = run(dir.path(), &["ledger", "check"]);
    assert!(!none.status.success(), "there is none yet: {none:?}");
    for n in 0..3 {
        assert!(run(dir.path(), &["run", "echo/default", &format!("message {n}"), "--conversation", "c"]).status.success());
    }
    assert!(run(dir.path(), &["ledger", "check"]).status.success());
    let stats = json(&run(dir.path(), &["--json", "ledger", "stats"]));
    assert!(stats.to_string().contains("run_events"), "{stats:#}");
    assert!(run(dir.path(), &["ledger", "compact"]).status.success());
    let exported = run(dir.path(), &["ledger", "export"]);
    let lines: Vec<Value> = text(&exported).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["table"] == "run").count(), 3, "{lines:#?}");
    assert!(run(dir.path(), &["ledger", "export", "--out", "ledger.jsonl"]).status.success());
    assert_eq!(fs::read_to_string(dir.path().join("ledger.jsonl")).unwrap().lines().count(), lines.len());
    assert!(run(dir.path(), &["ledger", "check"]).status.success(), "it is sound after being compacted");
}

#[test]
fn two_hosts_cannot_have_one_ledger_and_runs_are_asked_of_the_one_that_has_it() {
    let host = Process::start(&["echo"], "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n");
    let second = run(host.dir.path(), &["ledger", "check"]);
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another agent-host"), "{second:?}");
    let listed = run(host.dir.path(), &["--json", "runs", "list", "--server", &host.url]);
    assert_eq!(json(&listed)["items"], serde_json::json!([]), "{listed:?}");
}

#[test]
fn completions_and_configuration() {
    let dir = folder(&[]);
    assert!(text(&run(dir.path(), &["completions", "bash"])).contains("agent-host"));
    assert!(run(dir.path(), &["config", "check"]).status.success());
    assert_eq!(run(dir.path(), &["dance"]).status.code(), Some(2));
}

#[test]
fn a_knowledge_base_is_filled_searched_and_emptied() {
    let dir = folder(&[]);
    let path = |name: &str| dir.path().join(name);
    fs::write(path("agent-host.toml"), "[[knowledge_bases]]\nid = \"docs\"\nname = \"Manuals\"\n").unwrap();
    fs::create_dir(path("manuals")).unwrap();
    fs::write(path("manuals/anvil.md"), "# Anvils\n\nAn anvil can be returned within thirty days.\n").unwrap();
    fs::write(path("manuals/rocket.html"), "<title>Rockets</title><p>Rockets fly far &amp; high.</p>").unwrap();
    fs::write(path("manuals/host.txt"), "代理主机是运行智能体的最佳平台。").unwrap();
    fs::write(path("manuals/broken.pdf"), "no PDF at all").unwrap();

    let added = run(dir.path(), &["--json", "knowledge", "add", "docs", "manuals", "--meta", "year=2024"]);
    assert_eq!(added.status.code(), Some(1), "one file cannot be read, and it says so: {added:?}");
    let report = json(&added);
    assert_eq!((&report["added"], report["failed"].as_array().unwrap().len()), (&Value::from(3), 1), "{report:#}");
    assert!(report["failed"][0].to_string().contains("broken.pdf"), "{report:#}");

    fs::remove_file(path("manuals/broken.pdf")).unwrap();
    fs::write(path("manuals/anvil.md"), "# Anvils\n\nAn anvil can be returned within sixty days.\n").unwrap();
    let again = json(&run(dir.path(), &["--json", "knowledge", "add", "docs", "manuals", "--meta", "year=2024"]));
    assert_eq!((&again["updated"], &again["unchanged"]), (&Value::from(1), &Value::from(2)), "{again:#}");

    let found = json(&run(dir.path(), &["--json", "knowledge", "search", "docs", "returning an anvil"]));
    assert_eq!(found["hits"][0]["metadata"]["title"], "Anvils", "{found:#}");
    assert!(found["hits"][0]["text"].as_str().unwrap().contains("sixty days"), "the change was taken: {found:#}");
    let chinese = json(&run(dir.path(), &["--json", "knowledge", "search", "docs", "智能体", "--top-k", "1"]));
    assert_eq!(chinese["hits"][0]["metadata"]["path"], "host.txt", "{chinese:#}");
    let filtered = json(&run(dir.path(), &["--json", "knowledge", "search", "docs", "anvil", "--filters", r#"{"year": 1999}"#]));
    assert_eq!(filtered["hits"], serde_json::json!([]), "{filtered:#}");

    let listed = run(dir.path(), &["knowledge", "list", "docs"]);
    assert!(text(&listed).contains("rocket.html"), "{listed:?}");
    let removed = json(&run(dir.path(), &["--json", "knowledge", "remove", "docs", "manuals/rocket.html", "nothing.md"]));
    assert_eq!((removed["removed"].as_array().unwrap().len(), &removed["not_found"][0]), (1, &Value::from("nothing.md")));
    let bases = json(&run(dir.path(), &["--json", "knowledge", "list"]));
    assert_eq!(bases["knowledge_bases"][0]["documents"], 2, "{bases:#}");

    let unknown = run(dir.path(), &["--json", "knowledge", "search", "recipes", "cake"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("\"not_found\""), "{unknown:?}");
}

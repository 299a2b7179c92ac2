//! The command line of the real binary.

use std::{fs, path::Path, process::Output};

use agent_host_tests::{Process, component, process, world::PATIENCE};
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
    let printed = run(dir.path(), &["run", "echo/default", "hello there", "--conversation", "c"]);
    assert!(printed.status.success() && text(&printed).contains("hello there"), "{printed:?}");
    let printed = run(dir.path(), &["run", "plugin:agent-host/echo/default", "again", "--conversation", "c"]);
    assert!(text(&printed).contains("turn 2"), "{printed:?}");

    fs::write(dir.path().join("input.txt"), "from a file").unwrap();
    let printed = run(dir.path(), &["run", "echo/default", "--file", "input.txt"]);
    assert!(text(&printed).contains("from a file"), "{printed:?}");

    let failed = run(dir.path(), &["run", "test/hostile", "trap"]);
    assert_eq!(failed.status.code(), Some(1), "a run that fails is not success: {failed:?}");
    let panicked = run(dir.path(), &["run", "test/hostile", "panic"]);
    let words = complaint(&panicked);
    assert!(
        words.contains("hostile.rs:") && words.contains("\n  hostile was asked to panic"),
        "the place and the message: {words}"
    );
    let unknown = run(dir.path(), &["run", "nobody", "hi"]);
    assert!(!unknown.status.success());
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("plugin:agent-host/echo/default"),
        "it says what there is: {unknown:?}"
    );

    let runs = json(&run(dir.path(), &["--json", "runs", "list"]));
    assert_eq!(runs["items"].as_array().unwrap().len(), 5, "{runs:#}");
    let failed = runs["items"][0]["run_id"].as_str().unwrap();
    let shown = text(&run(dir.path(), &["runs", "show", failed]));
    assert!(shown.contains("\nlog\n  ") && shown.contains("\n  hostile was asked to panic\n"), "{shown}");
    assert!(text(&run(dir.path(), &["runs", "events", failed])).contains(": hostile was asked to panic"), "in one line");
    let id = runs["items"][4]["run_id"].as_str().unwrap();
    let shown = json(&run(dir.path(), &["--json", "runs", "show", id]));
    assert_eq!(shown["status"], "completed");
    let shown = text(&run(dir.path(), &["runs", "show", id]));
    let (_, texts) = shown.split_once("\ninput\n  hello there\n\noutput\n  ").unwrap_or_else(|| panic!("its texts: {shown}"));
    assert!(texts.contains("hello there"), "the answer: {shown}");
    let listed = text(&run(dir.path(), &["runs", "list"]));
    let (heading, rows) = listed.split_once('\n').unwrap();
    let column = heading.find("BINDING").unwrap();
    assert!(rows.lines().all(|row| row[column..].starts_with("cli ")), "each row has its binding: {listed}");
    assert!(heading.contains("QUESTION") && rows.lines().any(|row| row.matches("hello there").count() == 2), "{listed}");
    assert_eq!(runs["items"][4]["question"], "hello there");
    assert!(runs["items"][4]["answer"].as_str().unwrap().contains("hello there"), "{runs:#}");
    let events = run(dir.path(), &["runs", "events", id]);
    assert!(text(&events).contains("run.completed"), "{events:?}");
}

#[test]
fn an_error_is_printed_once() {
    let dir = folder(&[]);
    let printed = complaint(&run(dir.path(), &["--config", "nothing.toml", "config", "check"]));
    assert_eq!(printed.matches("No such file").count(), 1, "{printed}");
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
    assert!(stats["journal"]["rows"].as_u64() >= Some(3) && stats["journal"]["share"].as_f64() > Some(0.0), "{stats:#}");
    assert_eq!((&stats["parked_runs"], &stats["active_in_memory"]), (&Value::from(0), &Value::from(0)), "{stats:#}");
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
fn a_command_finds_the_server_that_has_the_data_directory_and_no_other_program() {
    let config = "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n";
    let host = Process::start(&["echo"], config);
    let made = run(host.dir.path(), &["runs", "create", "--binding", "echo", "hello there", "--wait"]);
    assert!(made.status.success() && text(&made).contains("hello there"), "{made:?}");
    // The edited file names the port of another program, which would get the key.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let file = format!("[server]\nlisten = \"{}\"\n{config}", other.local_addr().unwrap());
    fs::write(host.dir.path().join("agent-host.toml"), file).unwrap();
    let listed = json(&run(host.dir.path(), &["--json", "runs", "list"]));
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed:#}");
    let dir = host.kill();
    assert!(dir.path().join("data/server.address").exists(), "a crash leaves the file");
    let none = complaint(&run(dir.path(), &["--json", "--key", "secret", "runs", "create", "--binding", "echo", "hi"]));
    assert!(none.contains("\"no_server\""), "{none}");
    assert!(other.accept().is_err(), "nobody has connected to the other program");
}

#[test]
fn a_run_that_is_made_is_waited_for_or_streamed() {
    let config = "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n\
                  [[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\n";
    let host = Process::start(&["echo", "hostile"], config);
    let create = |more: &[&str]| run(host.dir.path(), &[&["runs", "create", "--server", &host.url], more].concat());
    for how in ["--wait", "--stream"] {
        let made = create(&["--binding", "echo", "hello there", how]);
        assert!(made.status.success() && text(&made).contains("hello there"), "{how}: {made:?}");
        let failed = create(&["--binding", "hostile", "panic", how]);
        assert!(complaint(&failed).contains("hostile was asked to panic"), "{how}: {failed:?}");
    }
    let waited = lines(&create(&["--binding", "echo", "hi", "--wait", "--json"]));
    assert!(waited.len() == 1 && waited[0]["status"] == "completed", "the run alone: {waited:#?}");
    let streamed = lines(&create(&["--binding", "echo", "hi", "--stream", "--json"]));
    let (last, events) = streamed.split_last().unwrap();
    assert!(last["status"] == "completed" && events.last().unwrap()["type"] == "run.completed", "{streamed:#?}");
    let made = json(&create(&["--binding", "echo", "hi", "--json"]));
    assert_ne!(made["run_id"], last["run_id"], "without either, the run is only made: {made:#}");
}

#[test]
fn a_binding_runs_alone_and_on_the_server_that_has_the_directory() {
    let config = "[[bindings]]\nid = \"shout\"\nrunner = \"plugin:agent-host/echo/default\"\nconfig = { prefix = \"> \" }\n";
    let dir = folder(&["echo"]);
    fs::write(dir.path().join("agent-host.toml"), config).unwrap();
    let alone = run(dir.path(), &["run", "--binding", "shout", "hello there"]);
    assert!(alone.status.success() && text(&alone).contains("> hello there"), "its configuration: {alone:?}");
    let unknown = complaint(&run(dir.path(), &["--json", "run", "--binding", "whisper", "hi"]));
    assert!(unknown.contains("whisper"), "{unknown}");

    let host = Process::start(&["echo"], config);
    let served =
        lines(&run(host.dir.path(), &["--json", "run", "--binding", "shout", "hi", "--config-json", "{\"prefix\":\"! \"}"]));
    let ended = served.last().unwrap();
    assert!(ended["status"] == "completed" && ended["binding_id"] == "shout", "{served:#?}");
    let listed = json(&run(host.dir.path(), &["--json", "runs", "list", "--server", &host.url]));
    assert_eq!(listed["items"][0]["run_id"], ended["run_id"], "the server has made it: {listed:#}");
}

/// A run of echo without a server; its id.
fn echoed(dir: &Path, arguments: &[&str]) -> String {
    assert!(run(dir, &[&["run", "echo/default"], arguments].concat()).status.success());
    newest(dir)
}

fn newest(dir: &Path) -> String {
    json(&run(dir, &["--json", "runs", "list", "--limit", "1"]))["items"][0]["run_id"].as_str().unwrap().to_owned()
}

fn lines(output: &Output) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_is_executed_again_from_its_journal_without_effect() {
    let dir = folder(&["echo", "hostile"]);
    let id = echoed(dir.path(), &["hello there", "--conversation", "c"]);

    let replayed = run(dir.path(), &["replay", &id]);
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(text(&replayed), "the same: 2 calls, then run.completed\n");
    let report = json(&run(dir.path(), &["--json", "replay", &id]));
    assert_eq!((&report["calls"], &report["ending"]["ending"]), (&Value::from(2), &Value::from("same")), "{report:#}");

    let traced = run(dir.path(), &["replay", &id, "--trace"]);
    let shown = text(&traced);
    for part in ["    1  history.page", "    2  results.emit", "-> up to event ", "the same: 2 calls"] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let listed = text(&run(dir.path(), &["runs", "journal", &id]));
    assert!(listed.lines().count() == 2 && shown.starts_with(&listed), "the same lines, without executing:\n{listed}");
    let traced = lines(&run(dir.path(), &["--json", "replay", &id, "--trace"]));
    assert_eq!(traced[..2], lines(&run(dir.path(), &["--json", "runs", "journal", &id])), "{traced:#?}");
    assert_eq!((&traced[0]["function"], &traced[2]["calls"]), (&Value::from("history.page"), &Value::from(2)));

    let part = run(dir.path(), &["replay", &id, "--until", "1", "--trace"]);
    assert!(part.status.success() && text(&part).contains("the same as far as it was executed: 1 call\n"), "{part:?}");
    assert!(!text(&part).contains("results.emit"), "{part:?}");

    // No effect was repeated: there is no other run, and the next turn is the second.
    assert_eq!(newest(dir.path()), id);
    let next = run(dir.path(), &["run", "echo/default", "again", "--conversation", "c"]);
    assert!(text(&next).contains("turn 2"), "{next:?}");

    assert_eq!(run(dir.path(), &["run", "test/hostile", "trap"]).status.code(), Some(1));
    let failed = run(dir.path(), &["replay", &newest(dir.path())]);
    assert!(failed.status.success() && text(&failed).contains("then run.failed (runner.trapped)"), "{failed:?}");
}

#[test]
fn a_recording_is_a_regression_test_of_another_build() {
    let dir = folder(&["echo"]);
    // One run that reads the history, and one that only answers.
    let asks = echoed(dir.path(), &["hello there", "--conversation", "c"]);
    let answers = echoed(dir.path(), &["hello there"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let save = |id: &str, name: &str| {
        let path = elsewhere.path().join(name);
        let saved = run(dir.path(), &["runs", "record", id, "--out", path.to_str().unwrap()]);
        assert!(saved.status.success() && text(&saved).contains("calls, "), "{saved:?}");
        let again = run(dir.path(), &["runs", "record", id, "-o", path.to_str().unwrap()]);
        assert!(complaint(&again).contains("cannot be written"), "a file that is there stays: {again:?}");
        let printed = json(&run(dir.path(), &["runs", "record", id]));
        assert_eq!(printed, serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap());
    };
    save(&asks, "asks.json");
    save(&answers, "answers.json");

    // Without a data directory, the component has to come from elsewhere.
    let none = run(elsewhere.path(), &["--json", "replay", "asks.json"]);
    let error = complaint(&none);
    assert!(error.contains("\"no_component\"") && error.contains("--component"), "{error}");
    assert!(!elsewhere.path().join("data").exists(), "replaying makes no data directory");
    let plugins = dir.path().join("plugins");
    let found = run(elsewhere.path(), &["replay", "asks.json", "--plugins-dir", plugins.to_str().unwrap()]);
    assert!(found.status.success(), "{found:?}");
    let (echo, twin) = (component("echo"), component("manifest_twin"));
    let named = run(elsewhere.path(), &["replay", "asks.json", "--component", echo.to_str().unwrap()]);
    assert!(named.status.success() && text(&named).starts_with("the same: 2 calls"), "{named:?}");

    // The twin has the same id, and answers at once.
    let twin = twin.to_str().unwrap();
    let other = run(elsewhere.path(), &["replay", "asks.json", "--component", twin, "--trace"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let shown = text(&other);
    for part in [
        ">    ",
        "different at call 1: results.emit instead of history.page\n",
        "  recorded\n    history.page {",
        "  now\n    results.emit [",
        "ok twin",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let other = run(elsewhere.path(), &["replay", "answers.json", "--component", twin]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let shown = text(&other);
    for part in ["different at call 1: another request of results.emit\n", "message.completed", "hello there", "ok twin"] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let report = json(&run(elsewhere.path(), &["--json", "replay", "answers.json", "--component", twin]));
    assert_eq!((&report["calls"], &report["ending"]["call"]), (&Value::from(0), &Value::from(1)), "{report:#}");

    let suite = run(elsewhere.path(), &["replay", "asks.json", "answers.json", "--component", echo.to_str().unwrap()]);
    assert!(suite.status.success(), "{suite:?}");
    assert_eq!(
        text(&suite),
        "asks.json: the same: 2 calls, then run.completed\nanswers.json: the same: 1 call, then run.completed\n\
         2 the same, 0 different, 0 not executed\n"
    );
    fs::write(elsewhere.path().join("broken.json"), "{}").unwrap();
    let suite = run(elsewhere.path(), &["--json", "replay", "asks.json", "broken.json", "--component", twin]);
    assert_eq!(suite.status.code(), Some(1));
    let suite = lines(&suite);
    assert_eq!(suite[0]["report"]["ending"]["ending"], "diverged", "{suite:#?}");
    assert_eq!(suite[1]["error"]["code"], "invalid_recording", "{suite:#?}");
    assert_eq!(suite[2], serde_json::json!({ "same": 0, "different": 1, "failed": 1 }));
}

#[tokio::test]
async fn a_request_that_differs_is_pointed_at() {
    let host = Process::start(&["caller"], "[[bindings]]\nid = \"caller\"\nrunner = \"plugin:test/caller/default\"\n");
    let steps = serde_json::json!([
        { "call": "state.set", "scope": "runner", "key": "a", "value": [1, 2] },
        { "call": "state.get", "scope": "runner", "key": "a" },
        { "call": "storage.get", "area": "plugin", "key": "nothing" },
    ]);
    let event = serde_json::json!({ "event_type": "test.steps", "data": { "steps": steps } });
    let request = reqwest::Client::new().post(host.url("/api/v1/events")).header("prefer", "wait=30").json(&event);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let id = answer["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let dir = tokio::task::spawn_blocking(move || host.terminate()).await.unwrap();

    let replayed = run(dir.path(), &["replay", &id]);
    assert_eq!(text(&replayed), "the same: 4 calls, then run.completed\n", "{replayed:?}");
    // The recording contains the input of the runner, so a script with other steps is in it too.
    let mut recording = json(&run(dir.path(), &["runs", "record", &id]));
    let step = recording.pointer_mut("/context/event/data/steps/1/key").unwrap_or_else(|| panic!("the script is not there"));
    *step = "b".into();
    fs::write(dir.path().join("other.json"), recording.to_string()).unwrap();
    let other = run(dir.path(), &["replay", "other.json", "--trace"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let shown = text(&other);
    for part in [
        "different at call 2: another request of state.get\n",
        "they differ first at /1\n  recorded  \"a\"\n  now       \"b\"\n",
        "      1  state.set ",
        "      2  state.get                 [\"runner\",\"a\",null]  -> [1,2]\n",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    assert!(!shown.contains("storage.get"), "the trace ends there:\n{shown}");
    let before = run(dir.path(), &["replay", "other.json", "--until", "1"]);
    assert!(before.status.success(), "the first call is the same: {before:?}");
}

#[test]
fn a_run_that_cannot_be_replayed_has_a_reason() {
    let dir = folder(&["echo"]);
    let id = echoed(dir.path(), &["hi"]);
    let failed = |arguments: &[&str]| complaint(&run(dir.path(), &[&["--json"], arguments].concat()));
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for arguments in [&["replay", unknown][..], &["runs", "journal", unknown], &["runs", "record", unknown]] {
        assert!(failed(arguments).contains("\"not_found\""), "{arguments:?}");
    }
    assert!(failed(&["replay", "nothing.json"]).contains("neither the id of a run nor a file"));
    fs::write(dir.path().join("not.json"), "{\"format\":1}").unwrap();
    assert!(failed(&["replay", "not.json"]).contains("\"invalid_recording\""));
    let hostile = component("hostile");
    let other = failed(&["replay", &id, "--component", hostile.to_str().unwrap()]);
    assert!(other.contains("\"runner_not_found\"") && other.contains("plugin:agent-host/echo/default"), "{other}");
    let refused = component("manifest_traps");
    assert!(failed(&["replay", &id, "--component", refused.to_str().unwrap()]).contains("\"component_refused\""));
    assert!(failed(&["fork", &id, "--at", "0"]).contains("\"no_server\""));
}

#[test]
fn a_run_branches_off_from_another_of_a_running_host() {
    let host = Process::start(&["echo"], "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n");
    let dir = host.dir.path();
    let body = r#"{"event_type":"message.received","conversation":{"conversation_id":"c"},"input":{"text":"hello there"}}"#;
    let http = reqwest::Client::new();
    let answer: Value = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let request =
            http.post(host.url("/api/v1/events")).header("prefer", "wait=30").header("content-type", "application/json");
        request.body(body).send().await.unwrap().json().await.unwrap()
    });
    let id = answer["runs"][0]["run_id"].as_str().unwrap().to_owned();
    let ask = |arguments: &[&str]| run(dir, &[arguments, &["--server", &host.url]].concat());

    assert_eq!(text(&ask(&["replay", &id])), "the same: 2 calls, then run.completed\n");
    assert_eq!(text(&ask(&["runs", "journal", &id])).lines().count(), 2);
    assert_eq!(json(&ask(&["runs", "record", &id]))["run"]["run_id"], id.as_str());

    let forked = ask(&["fork", &id, "--at", "1", "--input", "something else", "--config-json", r#"{"prefix":"> "}"#, "--follow"]);
    assert!(forked.status.success() && text(&forked).contains("> something else"), "{forked:?}");
    let forked = ask(&["fork", &id, "--at", "0"]);
    assert!(forked.status.success() && text(&forked).contains("agent-host runs events "), "{forked:?}");
    let forked = json(&ask(&["--json", "fork", &id, "--at", "1"]));
    assert_eq!((&forked["metadata"]["forked_from"], &forked["metadata"]["forked_at"]), (&Value::from(&*id), &Value::from(1)));
    let shown = text(&ask(&["runs", "show", forked["run_id"].as_str().unwrap()]));
    assert!(shown.contains(&format!("{id}, after call 1")), "{shown}");
    assert!(complaint(&ask(&["fork", &id, "--at", "9"])).contains("the run has 2 calls"));
}

#[test]
fn actions_of_a_run_are_found_and_answered() {
    let config = r#"
[[action_hooks]]
actions = ["issue.*"]
url = "http://127.0.0.1:9/"
secret = { env = "NOBODY_SETS_THIS" }

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
resources = { platform_api = ["issue.close"] }
"#;
    let host = Process::start(&["asks"], config);
    let ask = |arguments: &[&str]| run(host.dir.path(), &[arguments, &["--server", &host.url]].concat());
    let asked = || {
        let began = std::time::Instant::now();
        loop {
            let open = json(&ask(&["--json", "actions", "list"]));
            if let Some(first) = open["items"].as_array().unwrap().first() {
                return first["action_id"].as_str().unwrap().to_owned();
            }
            assert!(began.elapsed() < PATIENCE, "nothing is asked");
        }
    };
    assert_eq!(text(&ask(&["actions", "list"])), "there are no open actions\n");
    let http = reqwest::Client::new();
    let steps = "act issue.close {\"n\":4} {} ;; ask choice - Which? {\"enum\":[1,2]}";
    let event = serde_json::json!({ "event_type": "message.received", "input": { "text": steps } });
    let answer: Value = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { http.post(host.url("/api/v1/events")).json(&event).send().await.unwrap().json().await.unwrap() });
    let id = answer["runs"][0]["run_id"].as_str().unwrap();

    let action = asked();
    let listed = text(&ask(&["actions", "list"]));
    assert!(listed.contains(&action) && listed.contains("issue.close {\"n\":4}"), "{listed}");
    let shown = text(&ask(&["actions", "show", &action]));
    for line in ["status     open\n", "action     issue.close\n", "target     {\"n\":4}\n", "decisions  approve or deny\n"] {
        assert!(shown.contains(line), "{line} is missing:\n{shown}");
    }
    let wrong = complaint(&ask(&["actions", "respond", &action, "skip"]));
    assert!(wrong.contains("`approve` or `deny`"), "{wrong}");
    let denied = ask(&["actions", "respond", &action, "deny", "--reason", "too late"]);
    assert!(denied.status.success() && text(&denied).contains("is answered"), "{denied:?}");
    // The other name of the same command.
    let again = complaint(&ask(&["--json", "runs", "respond", &action, "approve"]));
    assert!(again.contains("\"already_answered\"") && again.contains("`deny`"), "{again}");

    let question = asked();
    let unfit = complaint(&ask(&["actions", "respond", &question, "submit", "--answer", "3"]));
    assert!(unfit.contains("does not fit"), "{unfit}");
    let printed = json(&ask(&["--json", "runs", "respond", &question, "submit", "--answer", "2"]));
    assert_eq!((&printed["answered"]["answer"], &printed["resolved"]["outcome"]), (&Value::from(2), &Value::from("submitted")));
    let events = text(&ask(&["runs", "events", id, "--follow"]));
    for part in [
        format!("action.requested       {action}  issue.close {{\"n\":4}}\n"),
        format!("action.answered        {action}  deny: too late\n"),
        format!("action.resolved        {action}  denied: too late\n"),
        format!("action.requested       {question}  Which?\n"),
        format!("action.answered        {question}  submit: 2\n"),
    ] {
        assert!(events.contains(&part), "{part} is missing:\n{events}");
    }
    let listed = text(&ask(&["actions", "list", "--run", id]));
    assert!(listed.contains(" denied ") && listed.contains(" submitted "), "{listed}");
    assert_eq!(text(&ask(&["actions", "list"])), "there are no open actions\n");

    let dir = folder(&[]);
    let none = complaint(&run(dir.path(), &["--json", "actions", "list", "--server", "http://127.0.0.1:9"]));
    assert!(none.contains("\"unreachable\""), "{none}");
}

#[test]
fn a_run_without_a_terminal_says_what_it_asks_and_who_could_answer() {
    let dir = folder(&["asks"]);
    let ran = run(dir.path(), &["run", "test/asks", "ask confirmation 50 Sure?"]);
    assert!(ran.status.success() && text(&ran).contains("expired"), "{ran:?}");
    let printed = String::from_utf8_lossy(&ran.stderr);
    assert!(printed.contains("the run asks: Sure?") && printed.contains("agent-host actions respond"), "{printed}");

    let ran = run(dir.path(), &["--json", "run", "test/asks", "ask confirmation 50 Sure?"]);
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    let events = lines(&ran);
    assert!(events.iter().any(|event| event["type"] == "action.requested" && event["data"]["title"] == "Sure?"), "{events:#?}");

    let late = run(dir.path(), &["run", "test/asks", "ask confirmation - Sure?", "--timeout", "1"]);
    assert_eq!(late.status.code(), Some(1), "nobody answers, and its deadline passes: {late:?}");
    assert!(String::from_utf8_lossy(&late.stderr).contains("timeout"), "{late:?}");
}

#[test]
fn completions_and_configuration() {
    let dir = folder(&[]);
    assert!(text(&run(dir.path(), &["completions", "bash"])).contains("agent-host"));
    assert!(run(dir.path(), &["config", "check"]).status.success());
    assert_eq!(run(dir.path(), &["dance"]).status.code(), Some(2));
}

#[test]
fn a_configuration_is_checked_with_what_the_machine_has_for_it() {
    let dir = folder(&["echo"]);
    let file = dir.path().join("agent-host.toml");
    let echo = "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n";
    fs::write(&file, echo).unwrap();
    let good = json(&run(dir.path(), &["--json", "config", "check"]));
    assert_eq!(
        (&good["problems"], &good["sections"]),
        (&serde_json::json!([]), &serde_json::json!({ "bindings": { "entries": 1 } }))
    );
    for section in ["webhooks", "schedules", "webhook_sources", "telemetry", "skills", "egress", "approvers", "agui", "harnesses"]
    {
        assert!(good["config"].get(section).is_some(), "{section} is not shown: {good:#}");
    }
    let more = "[[bindings]]\nid = \"gone\"\nrunner = \"plugin:acme/gone/default\"\n\
                [[models]]\nid = \"m\"\nprovider = \"openai\"\napi_key = { env = \"AGENT_HOST_NO_SUCH_KEY\" }\n";
    fs::write(&file, format!("{echo}{more}")).unwrap();
    let printed = run(dir.path(), &["config", "check"]);
    let shown = text(&printed);
    assert!(shown.contains("#   bindings: 2 entries\n#   models: 1 entry\n"), "{shown}");
    let words = complaint(&printed);
    for part in ["binding `gone`: ", "model `m`: `api_key`: the environment variable `AGENT_HOST_NO_SUCH_KEY` is not set"] {
        assert!(words.contains(part), "{part} is missing: {words}");
    }
    assert!(!words.contains("binding `echo`"), "{words}");

    let schema = json(&run(dir.path(), &["config", "schema"]));
    assert_eq!(schema["properties"]["bindings"]["type"], "array", "{schema:#}");
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

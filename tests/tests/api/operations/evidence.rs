//! Evidence and conformance, through the command line and over HTTP.

use std::{fs, path::Path, process::Output};

use agent_host_tests::{Process, component, process};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::support::{ASKS, Guarded};

fn run(dir: &Path, arguments: &[&str]) -> Output {
    process::command(dir).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A folder with a run of echo; the id of the run.
fn echoed() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    fs::copy(component("echo"), dir.path().join("plugins/echo.wasm")).unwrap();
    let said = run(dir.path(), &["run", "echo/default", "hello there", "--conversation", "c"]);
    assert!(said.status.success(), "{said:?}");
    let runs = json_of(&run(dir.path(), &["--json", "runs", "list"]));
    let id = runs["items"][0]["run_id"].as_str().unwrap().to_owned();
    (dir, id)
}

fn lines(file: &str) -> Vec<Value> {
    file.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn a_run_is_exported_and_verified_and_every_change_is_named() {
    let (dir, id) = echoed();
    let export = |name: &str| run(dir.path(), &["--json", "evidence", "export", &id, "-o", name]);
    let saved = export("a.jsonl");
    assert!(saved.status.success(), "{saved:?}");
    let saved = json_of(&saved);
    let file = fs::read_to_string(dir.path().join("a.jsonl")).unwrap();
    let parts = lines(&file);
    assert_eq!(saved["bytes"], json!(file.len()));
    let kinds: Vec<_> = parts.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..5], ["header", "run", "grant", "event", "record"], "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"end"));
    let header = &parts[0]["header"];
    assert_eq!(
        (&header["run_id"], &header["conversation_id"], &header["status"]),
        (&json!(id), &json!("c"), &json!("completed"))
    );
    assert!(header["component"].as_str().unwrap().starts_with("sha256:"), "{header:#}");
    assert_eq!(header["completeness"]["record"], "whole", "{header:#}");
    let shown = json_of(&run(dir.path(), &["--json", "runs", "show", &id]));
    assert_eq!((&shown["record_digest"], shown["record_digest"].is_string()), (&header["record_digest"], true));
    assert_eq!(parts[parts.len() - 1]["hash"], saved["verdict"]["head"]);

    // Twice the same file; a file that is there stays.
    assert!(export("b.jsonl").status.success());
    assert_eq!(fs::read_to_string(dir.path().join("b.jsonl")).unwrap(), file);
    let again = export("a.jsonl");
    assert!(again.status.code() == Some(1) && String::from_utf8_lossy(&again.stderr).contains("cannot be written"), "{again:?}");
    assert_eq!(text(&run(dir.path(), &["evidence", "export", &id])), file, "standard output has the lines alone");

    let verify = |content: &str| {
        fs::write(dir.path().join("c.jsonl"), content).unwrap();
        run(dir.path(), &["--json", "evidence", "verify", "c.jsonl"])
    };
    let good = verify(&file);
    assert!(good.status.success() && json_of(&good)["head"] == saved["verdict"]["head"], "{good:?}");
    let in_record = kinds.iter().position(|kind| *kind == "record").unwrap() + 1;
    let without_line = |number: usize| {
        let kept = file.lines().enumerate().filter(|(index, _)| index + 1 != number);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    for (changed, line, code) in [
        (file.replacen("hello there", "hello THERE", 1), 4, "hash"),
        (without_line(in_record), in_record, "hash"),
        (without_line(kinds.len()), kinds.len(), "torn"),
        (file.replacen("\"status\":\"completed\"", "\"status\":\"failed\"", 1), 1, "hash"),
        ("hello\n".to_owned(), 1, "json"),
    ] {
        let refused = verify(&changed);
        let verdict = json_of(&refused);
        assert_eq!(refused.status.code(), Some(1), "{verdict:#}");
        assert_eq!((&verdict["fault"]["line"], &verdict["fault"]["code"]), (&json!(line), &json!(code)), "{verdict:#}");
    }
    let unknown = run(dir.path(), &["--json", "evidence", "export", "01890a5d-ac96-774b-bcce-b302099a8057", "-o", "d.jsonl"]);
    assert!(
        unknown.status.code() == Some(1) && String::from_utf8_lossy(&unknown.stderr).contains("\"not_found\""),
        "{unknown:?}"
    );
    assert!(!dir.path().join("d.jsonl").exists());
}

#[test]
fn a_thread_is_exported_with_all_of_its_turns() {
    let (dir, first) = echoed();
    let said = run(dir.path(), &["run", "echo/default", "and again", "--conversation", "c"]);
    assert!(said.status.success(), "{said:?}");
    let saved = run(dir.path(), &["--json", "evidence", "export", "c", "-o", "thread.jsonl"]);
    assert!(saved.status.success(), "{saved:?}");
    let file = fs::read_to_string(dir.path().join("thread.jsonl")).unwrap();
    let parts = lines(&file);
    let thread = &parts[0]["thread"];
    assert_eq!((&parts[0]["type"], &thread["thread_id"], &thread["turns"][0]), (&json!("thread"), &json!("c"), &json!(first)));
    let headers: Vec<_> = parts.iter().filter(|line| line["type"] == "header").map(|line| &line["header"]["run_id"]).collect();
    assert_eq!(json!(headers), thread["turns"], "{thread:#}");
    assert_eq!(headers.len(), 2);
    // Facts are numbered through the thread, without a gap.
    let numbers: Vec<_> =
        parts.iter().filter(|line| line["type"] == "fact").map(|line| line["fact"]["sequence"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());

    // The whole first turn is taken out.
    let end = parts.iter().position(|line| line["type"] == "end").unwrap();
    let left = file.lines().enumerate().filter(|(index, _)| *index == 0 || *index > end);
    fs::write(dir.path().join("less.jsonl"), left.map(|(_, line)| format!("{line}\n")).collect::<String>()).unwrap();
    let refused = run(dir.path(), &["--json", "evidence", "verify", "less.jsonl"]);
    assert_eq!((refused.status.code(), &json_of(&refused)["fault"]["line"]), (Some(1), &json!(2)), "{refused:?}");
    let unknown = run(dir.path(), &["--json", "evidence", "export", "nothing"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no thread `nothing`"), "{unknown:?}");
}

/// Replaces text of the same length in a table of a ledger that no host has open; gives the number of replaced rows.
fn change_rows(dir: &Path, table: &'static str, from: &str, to: &str) -> usize {
    let table = TableDefinition::<&[u8], &[u8]>::new(table);
    let database = Database::open(dir.join("data/ledger/ledger.redb")).unwrap();
    let rows: Vec<(Vec<u8>, Vec<u8>)> = {
        let rows = database.begin_read().unwrap().open_table(table).unwrap();
        rows.iter().unwrap().map(|row| row.unwrap()).map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).collect()
    };
    let (transaction, mut changed) = (database.begin_write().unwrap(), 0);
    {
        let mut open = transaction.open_table(table).unwrap();
        for (key, mut value) in rows {
            let found = value.windows(from.len()).position(|part| part == from.as_bytes());
            if let Some(at) = found {
                value[at..at + from.len()].copy_from_slice(to.as_bytes());
                open.insert(key.as_slice(), value.as_slice()).unwrap();
                changed += 1;
            }
        }
    }
    transaction.commit().unwrap();
    changed
}

#[test]
fn a_ledger_that_was_changed_shows() {
    let (dir, id) = echoed();
    // Closing the ledger merges its log into the file.
    assert!(run(dir.path(), &["ledger", "compact"]).status.success());
    assert!(run(dir.path(), &["evidence", "export", &id, "-o", "before.jsonl"]).status.success());
    // A run that has ended in one batch has one row for all of it.
    let change = |from: &str, to: &str| -> usize {
        ["run_ends", "run_events"].into_iter().map(|table| change_rows(dir.path(), table, from, to)).sum()
    };
    assert_eq!(change("hello there", "hello THERE"), 1);
    let exported = run(dir.path(), &["--json", "evidence", "export", &id, "-o", "after.jsonl"]);
    assert_eq!(exported.status.code(), Some(1), "{exported:?}");
    let fault = &json_of(&exported)["verdict"]["fault"];
    assert!(fault["code"] == "record" && fault["message"].as_str().unwrap().contains("the ledger was changed"), "{fault:#}");
    let verified = run(dir.path(), &["evidence", "verify", "after.jsonl"]);
    assert!(verified.status.code() == Some(1) && text(&verified).contains("the ledger was changed"), "{verified:?}");
    assert!(run(dir.path(), &["evidence", "verify", "before.jsonl"]).status.success());
    let check = run(dir.path(), &["ledger", "check"]);
    assert!(!check.status.success() && text(&check).contains("its record has another digest"), "{check:?}");
    // The event that the run answers is covered too.
    assert_eq!(change("hello THERE", "hello there"), 1);
    assert!(run(dir.path(), &["ledger", "check"]).status.success());
    assert_eq!(change_rows(dir.path(), "events", "hello there", "hello THERE"), 1);
    assert_eq!(run(dir.path(), &["evidence", "export", &id]).status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_is_read_with_the_rights_to_the_run_and_compared_with_the_server() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let (_, id) = host.send(&host.root, "say hello").await;
    host.until(&id, "completed").await;
    let path = format!("/api/v1/runs/{id}/evidence");
    let answer = host.get(&host.root, &path).await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    assert_eq!(answer.headers["content-disposition"], format!("attachment; filename=\"run-{id}.evidence.jsonl\"").as_str());
    let parts = lines(&answer.text);
    assert!(parts.iter().any(|line| line["type"] == "fact" && line["fact"]["type"] == "turn.completed"), "{parts:#?}");
    assert_eq!(parts.last().unwrap()["type"], "end");

    // As reading the run: no key, a key without the scope, and a key of another workspace do not see it.
    host.ask(None, Method::GET, &path, None).await.is(401, "unauthenticated");
    let writer = host.key(&["events:write"], None).await;
    host.get(&writer, &path).await.is(403, "forbidden");
    let foreign = host.key(&["runs:read"], Some("elsewhere")).await;
    host.get(&foreign, &path).await.is(404, "not_found");
    host.get(&host.root, "/api/v1/runs/01890a5d-ac96-774b-bcce-b302099a8057/evidence").await.is(404, "not_found");

    let dir = tempfile::tempdir().unwrap();
    let (url, root) = (host.url(""), host.root.clone());
    let on_server = |arguments: &[&str]| {
        let output = process::command(dir.path()).args(arguments).args(["--server", &url, "--key", &root]).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        output
    };
    let saved = on_server(&["evidence", "export", &id, "-o", "run.jsonl"]);
    assert!(saved.status.success() && text(&saved).contains("verified: "), "{saved:?}");
    assert_eq!(fs::read_to_string(dir.path().join("run.jsonl")).unwrap(), answer.text);
    let same = on_server(&["evidence", "verify", "run.jsonl"]);
    assert!(same.status.success() && text(&same).contains("the server has the same evidence"), "{same:?}");

    // A file of another ledger, whose run has the same id, is told apart from the server's.
    let (_, other) = host.send(&host.root, "say hello").await;
    host.until(&other, "completed").await;
    assert!(on_server(&["evidence", "export", &other, "-o", "other.jsonl"]).status.success());
    let record = |name: &str| lines(&fs::read_to_string(dir.path().join(name)).unwrap())[0]["header"]["record_digest"].clone();
    assert_ne!(record("run.jsonl"), record("other.jsonl"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_of_a_run_that_goes_on_says_so_and_stays_behind() {
    let host = Guarded::small(&["asks"], "", ASKS);
    let (_, id) = host.send(&host.root, "ask confirmation - Really").await;
    host.until(&id, "waiting").await;
    let dir = tempfile::tempdir().unwrap();
    let (url, root) = (host.url(""), host.root.clone());
    let on_server = |arguments: &[&str]| {
        process::command(dir.path()).args(arguments).args(["--server", &url, "--key", &root]).output().unwrap()
    };
    let saved = on_server(&["--json", "evidence", "export", &id, "-o", "run.jsonl"]);
    assert_eq!(json_of(&saved)["verdict"]["header"]["completeness"]["ended"], false, "{saved:?}");
    host.post(&host.root, &format!("/api/v1/runs/{id}/cancel"), &json!({})).await.good();
    host.until(&id, "cancelled").await;
    let compared = on_server(&["--json", "evidence", "verify", "run.jsonl"]);
    let compared_json = json_of(&compared);
    assert_eq!(compared.status.code(), Some(1), "{compared_json:#}");
    assert_eq!(
        (&compared_json["verified"], &compared_json["server"]["same"]),
        (&json!(true), &json!(false)),
        "{compared_json:#}"
    );
    assert_eq!(compared_json["server"]["line"], 1, "the header has another status");
}

/// A log of one turn in which a tool is called.
fn log() -> String {
    let event = |sequence: u64, kind: &str, mut payload: Value| {
        payload["source"] = json!("host");
        let mut event = json!({
            "schemaVersion": "lime-runtime-event/v0.1", "runtimeId": "other", "sessionId": "c1", "threadId": "c1", "turnId": "t1",
            "eventId": format!("e{sequence}"), "sequence": sequence, "timestamp": "2026-11-22T10:00:00Z", "type": kind,
        });
        for name in ["toolCallId", "stepId"] {
            if let Some(id) = payload.get(name) {
                event[name] = id.clone();
            }
        }
        event["payload"] = payload;
        format!("{event}\n")
    };
    [
        event(1, "turn.submitted", json!({})),
        event(2, "turn.started", json!({})),
        event(3, "run.status", json!({ "phase": "acting" })),
        event(4, "tool.started", json!({ "toolCallId": "k1", "stepId": "s1", "toolName": "search" })),
        event(5, "tool.result", json!({ "toolCallId": "k1", "stepId": "s1", "outputPreview": "x" })),
        event(6, "turn.completed", json!({})),
        event(7, "snapshot.updated", json!({ "status": "completed" })),
    ]
    .concat()
}

#[test]
fn conformance_names_rule_line_and_event_and_needs_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("good.jsonl"), log()).unwrap();
    // A configuration that is not valid does not matter.
    fs::write(dir.path().join("agent-host.toml"), "not = [valid").unwrap();
    let good = run(dir.path(), &["conformance", "good.jsonl", "--expect", "tool-success"]);
    assert!(good.status.success(), "{good:?}");
    assert_eq!(text(&good), "7 events, 1 turns: conforms\n");

    fs::write(dir.path().join("bad.jsonl"), log().replace("tool.started", "tool.args")).unwrap();
    let bad = run(dir.path(), &["--json", "conformance", "bad.jsonl"]);
    let report = json_of(&bad);
    assert_eq!((bad.status.code(), &report["conforms"]), (Some(1), &json!(false)), "{report:#}");
    let first = &report["findings"][0];
    assert_eq!(
        (&first["rule"], &first["line"], &first["event_id"]),
        (&json!("tool.not_started"), &json!(4), &json!("e4")),
        "{report:#}"
    );
    let shown = text(&run(dir.path(), &["conformance", "bad.jsonl"]));
    assert!(
        shown.starts_with("tool.not_started  line 4  e4\n") && shown.contains("\n  fix: Write `tool.started` first.\n"),
        "{shown}"
    );

    let other = run(dir.path(), &["conformance", "good.jsonl", "--expect", "hitl-action"]);
    assert!(other.status.code() == Some(1) && text(&other).contains("expect.missing"), "{other:?}");
    assert_eq!(run(dir.path(), &["conformance", "good.jsonl", "--expect", "everything"]).status.code(), Some(2));
    let absent = run(dir.path(), &["conformance", "nothing.jsonl"]);
    assert!(absent.status.code() == Some(1) && String::from_utf8_lossy(&absent.stderr).contains("cannot be read"), "{absent:?}");

    // From standard input, torn in the middle of a line, with a read model that is not that of the log.
    let mut child = process::command(dir.path());
    child.args(["conformance", "-", "--open", "--read-model", "model.json"]).stdin(std::process::Stdio::piped());
    fs::write(dir.path().join("model.json"), json!({ "status": "idle", "eventCursor": "9" }).to_string()).unwrap();
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let log = log();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &log.as_bytes()[..log.len() - 40]).unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(1));
    for code in ["line.torn  line 7", "readmodel.field", "readmodel.cursor"] {
        assert!(shown.contains(code), "{code} is not in\n{shown}");
    }
    fs::write(dir.path().join("model.json"), "{\"a\":1,\"a\":2}").unwrap();
    let doubled = run(dir.path(), &["conformance", "good.jsonl", "--read-model", "model.json"]);
    assert!(String::from_utf8_lossy(&doubled.stderr).contains("stands twice"), "{doubled:?}");
}

#[test]
fn the_process_of_a_host_has_its_evidence_after_a_restart() {
    let host = Process::start(&["echo"], "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n");
    let url = host.url.clone();
    let made = json_of(&run(host.dir.path(), &["--json", "runs", "create", "--binding", "echo", "hi", "--server", &url]));
    let id = made["run_id"].as_str().unwrap().to_owned();
    let followed = run(host.dir.path(), &["runs", "events", &id, "--follow", "--server", &url]);
    assert!(text(&followed).contains("run.completed"), "{followed:?}");
    let live = text(&run(host.dir.path(), &["evidence", "export", &id, "--server", &url]));
    let dir = host.kill();
    let offline = run(dir.path(), &["evidence", "export", &id]);
    assert!(offline.status.success() && text(&offline) == live, "{offline:?}");
}

//! Over stdio.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use agent_host_providers::{
    secret::SecretRef,
    tools::{CallOptions, EnvValue, McpServerStatus, ToolContent, Tools},
};
use serde_json::{Value, json};

use crate::tools::{
    LONG, call, call_with_progress, codes,
    server::{config, counted},
    start, text, until, until_status,
};

fn is_alive(pid: &str) -> bool {
    assert!(pid.parse::<u32>().is_ok(), "not a process id: {pid:?}");
    // A process that ended and that nobody waited for yet is not alive.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn tools_are_listed_over_pages_and_called() {
    let tools = start(&[config("test", "")]).await;
    let names: Vec<String> = tools.list().iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(names.len(), 17, "{names:?} {:?}", tools.reports());
    assert!(names.is_sorted());
    let add = tools.get("test__add").unwrap();
    assert_eq!((add.server(), add.remote_name(), add.detail.name.as_str()), ("test", "add", "test__add"));
    assert_eq!(add.detail.description.as_deref(), Some("does add"));
    assert_eq!((add.detail.read_only, add.detail.idempotent, add.detail.destructive), (Some(true), Some(true), Some(false)));
    assert_eq!(add.detail.parameters["required"], json!(["a", "b"]));

    let sum = call(&tools, "test__add", json!({ "a": 1, "b": 2 })).await.unwrap();
    assert_eq!((text(&sum), sum.structured.clone(), sum.is_error), ("3", Some(json!({ "sum": 3.0 })), false));
    let report = &tools.reports()[0];
    assert_eq!((report.status, report.tools, report.restarts, &report.problem), (McpServerStatus::Ready, 17, 0, &None));
    tools.shutdown().await;
}

#[tokio::test]
async fn parameters_are_checked_before_the_call() {
    let tools = start(&[config("test", "")]).await;
    let error = call(&tools, "test__add", json!({ "a": "one", "c": 1 })).await.unwrap_err();
    assert_eq!(codes(&error), ("invalid_argument", "invalid_parameters"));
    let violations = error.details.unwrap()["violations"].clone();
    assert!(violations.as_array().unwrap().iter().any(|violation| violation["path"] == "/a"), "{violations}");
    for (name, parameters, expected) in [
        ("test__env", json!([1]), ("invalid_argument", "invalid_parameters")),
        ("test__nothing", json!({}), ("not_found", "tool_not_found")),
        ("nobody__add", json!({}), ("not_found", "tool_not_found")),
        ("add", json!({}), ("not_found", "tool_not_found")),
    ] {
        assert_eq!(codes(&call(&tools, name, parameters).await.unwrap_err()), expected, "{name}");
    }
    call(&tools, "test__env", Value::Null).await.unwrap();
    tools.shutdown().await;
}

#[tokio::test]
async fn a_failed_tool_is_a_result_and_a_refused_call_is_an_error() {
    let tools = start(&[config("test", "")]).await;
    let failed = call(&tools, "test__fail", json!({})).await.unwrap();
    assert!(failed.is_error && text(&failed) == "it did not work");
    let error = call(&tools, "test__refuse", json!({})).await.unwrap_err();
    assert_eq!(codes(&error), ("runtime_error", "tool_failed"));
    assert_eq!(error.details.unwrap()["rpc_code"], -32000);
    let error = call(&tools, "test__refuse", json!({ "code": -32602 })).await.unwrap_err();
    assert_eq!(codes(&error), ("invalid_argument", "invalid_parameters"));
    let error = call(&tools, "test__bad", json!({})).await.unwrap_err();
    assert_eq!(codes(&error), ("runtime_error", "tool_protocol_error"));
    assert_eq!(text(&call(&tools, "test__garbage", json!({})).await.unwrap()), "after garbage");
    tools.shutdown().await;
}

#[tokio::test]
async fn progress_arrives_in_order_and_not_too_often() {
    let tools = start(&[config("test", "")]).await;
    let (result, seen) = call_with_progress(&tools, "test__slow", json!({ "steps": 5, "ms": 100 })).await;
    assert_eq!(text(&result.unwrap()), "done");
    assert!(!seen.is_empty() && seen.iter().map(|p| p.progress).is_sorted(), "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.progress, last.total, last.message.as_deref()), (5.0, Some(5.0), Some("step 5 ")));

    let began = Instant::now();
    let (result, seen) = call_with_progress(&tools, "test__slow", json!({ "steps": 300, "ms": 1 })).await;
    result.unwrap();
    let most = began.elapsed().as_millis() / 50 + 2;
    assert!(seen.len() as u128 <= most, "{} reports, at most {most}", seen.len());
    assert_eq!(seen.last().unwrap().progress, 300.0);
    tools.shutdown().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_ends_and_the_server_is_told() {
    let mut slow = config("test", "");
    slow.call_timeout_ms = 300;
    slow.max_concurrent = 1;
    let tools = start(&[slow]).await;
    let error = call(&tools, "test__hang", json!({})).await.unwrap_err();
    assert_eq!(codes(&error), ("deadline_exceeded", "tool_timeout"));
    // The run's deadline counts as well, and the one place for calls is free again.
    let began = Instant::now();
    let options = CallOptions { deadline: Instant::now() + Duration::from_millis(50), progress: None };
    let error = tools.call("test__hang", json!({}), options).await.unwrap_err();
    assert_eq!(codes(&error), ("deadline_exceeded", "tool_timeout"));
    assert!(began.elapsed() < Duration::from_millis(250), "{:?}", began.elapsed());
    // A call that is dropped is cancelled too.
    let dropped = tokio::time::timeout(Duration::from_millis(100), call(&tools, "test__hang", json!({}))).await;
    assert!(dropped.is_err());
    until("telling the server", async || {
        let cancelled = call(&tools, "test__cancelled", json!({})).await.unwrap();
        serde_json::from_str::<Vec<u64>>(text(&cancelled)).unwrap().len() == 3
    })
    .await;
    assert_eq!(tools.reports()[0].restarts, 0, "it answers still, so it is left alone");
    tools.shutdown().await;
}

#[tokio::test]
async fn a_server_that_crashes_is_started_again_and_calls_meanwhile_fail_at_once() {
    let tools = start(&[config("test", "")]).await;
    let first = call(&tools, "test__pid", json!({})).await.unwrap();
    let error = call(&tools, "test__crash", json!({})).await.unwrap_err();
    assert_eq!((codes(&error), error.retryable), (("runtime_error", "tool_server_unavailable"), true));
    let began = Instant::now();
    let mut refused = None;
    until("coming back", async || match call(&tools, "test__pid", json!({})).await {
        Ok(now) => now != first,
        Err(error) => {
            refused = Some(error);
            false
        }
    })
    .await;
    let error = refused.expect("it cannot be back at once");
    assert_eq!((codes(&error), error.retryable), (("runtime_error", "tool_server_unavailable"), true), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(200), "it waits before it starts again");
    let report = &tools.reports()[0];
    assert_eq!((report.status, report.restarts, report.tools), (McpServerStatus::Ready, 1, 17));
    tools.shutdown().await;
}

#[tokio::test]
async fn the_wait_between_starts_grows() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let tools = start(&[counted("test", "exit", &starts)]).await;
    let report = &tools.reports()[0];
    assert_eq!(report.status, McpServerStatus::Failed);
    assert!(report.problem.as_ref().unwrap().contains("exit status: 3"), "{report:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let count = fs::read_to_string(&starts).unwrap().lines().count();
    // 0.2, 0.4, 0.8, 1.6 s and up to twice that with jitter.
    assert!((2..=5).contains(&count), "{count}");
    assert!(tools.list().is_empty());
    tools.shutdown().await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_is_given_up_in_time() {
    let configs = ["silent", "rubbish", "endless"].map(|mode| {
        let mut config = config(mode, mode);
        config.start_timeout_ms = 3_000;
        config
    });
    let began = Instant::now();
    let tools = start(&configs).await;
    for report in tools.reports() {
        assert_eq!((report.status, report.tools), (McpServerStatus::Failed, 0), "{report:?}");
        assert!(report.problem.is_some(), "{report:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    tools.shutdown().await;
}

#[tokio::test]
async fn a_program_that_is_not_there_and_a_configuration_that_cannot_be_used_say_so() {
    let mut missing = config("missing", "");
    missing.command = Some("/nowhere/server".into());
    let mut secret = config("secret", "");
    secret.env.insert("TOKEN".into(), EnvValue::Secret(SecretRef::Env("AGENT_HOST_NO_SUCH_VARIABLE".into())));
    let broken = config("a__b", "");
    let tools = start(&[missing, secret, broken, config("same", ""), config("same", "")]).await;
    let problems: Vec<String> = tools.reports().into_iter().map(|report| report.problem.unwrap_or_default()).collect();
    assert!(problems[0].contains("/nowhere/server"), "{problems:?}");
    assert!(problems[1].contains("AGENT_HOST_NO_SUCH_VARIABLE"), "{problems:?}");
    assert!(problems[2].contains("`id`"), "{problems:?}");
    assert!(problems[3].is_empty() && problems[4].contains("same id"), "{problems:?}");
    call(&tools, "same__pid", json!({})).await.unwrap();
    tools.shutdown().await;
}

#[tokio::test]
async fn changed_tools_are_read_again_once() {
    let tools = start(&[config("test", "")]).await;
    assert!(tools.get("test__new").is_none() && tools.get("test__huge").is_some());
    call(&tools, "test__change", json!({ "times": 200 })).await.unwrap();
    until("reading the tools again", async || tools.get("test__new").is_some()).await;
    assert!(tools.get("test__huge").is_none(), "it was removed");
    assert_eq!(codes(&call(&tools, "test__huge", json!({})).await.unwrap_err()), ("not_found", "tool_not_found"));
    tokio::time::sleep(Duration::from_millis(700)).await;
    let lists: u64 = text(&call(&tools, "test__lists", json!({})).await.unwrap()).parse().unwrap();
    assert!(lists <= 3 * 2, "200 notifications led to {lists} requests of two pages each");
    tools.shutdown().await;
}

#[tokio::test]
async fn a_server_that_knows_only_the_newest_protocol_is_spoken_to_in_it() {
    let tools = start(&[config("test", "modern")]).await;
    until_status(&tools, McpServerStatus::Ready).await;
    assert_eq!(text(&call(&tools, "test__add", json!({ "a": 1, "b": 2 })).await.unwrap()), "3");
    call(&tools, "test__change", json!({})).await.unwrap();
    until("reading the tools again", async || tools.get("test__new").is_some()).await;
    tools.shutdown().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_and_the_server_stays() {
    let tools = start(&[config("test", "")]).await;
    let pid = call(&tools, "test__pid", json!({})).await.unwrap();
    for bytes in [(1 << 20) + 1, 8 << 20, 100 << 20] {
        let error = call(&tools, "test__huge", json!({ "bytes": bytes })).await.unwrap_err();
        assert_eq!(codes(&error), ("payload_too_large", "tool_output_too_large"), "{error}");
        assert_eq!(error.details.unwrap()["limit"], 1 << 20);
    }
    assert!(memory() < 600 << 20, "{} bytes", memory());
    let fits = call(&tools, "test__huge", json!({ "bytes": 1_000_000 })).await.unwrap();
    assert_eq!(text(&fits).len(), 1_000_000);
    assert_eq!(call(&tools, "test__pid", json!({})).await.unwrap(), pid, "it was not started again");
    tools.shutdown().await;
}

#[tokio::test]
async fn a_flood_does_not_fill_the_memory_or_stall_other_servers() {
    // The memory of a process is that of all its tests, so this one has a process of its own.
    if std::env::var_os(ALONE).is_none() {
        let name = "tools::stdio::a_flood_does_not_fill_the_memory_or_stall_other_servers";
        let mut alone = tokio::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").kill_on_drop(true).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said:?}");
        return;
    }
    let tools = start(&[config("flood", ""), config("calm", "")]).await;
    let before = memory();
    let flood = call_with_progress(&tools, "flood__flood", json!({ "times": 20_000 }));
    let calm = async {
        for _ in 0..20 {
            let began = Instant::now();
            call(&tools, "calm__add", json!({ "a": 1, "b": 1 })).await.unwrap();
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
    };
    let ((result, seen), ()) = tokio::join!(flood, calm);
    assert_eq!(text(&result.unwrap()), "flooded");
    assert!(seen.iter().all(|progress| progress.message.as_ref().unwrap().len() <= 1024), "messages are cut");
    let grown = memory().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes more after a flood of 40 MB");
    tools.shutdown().await;
}

/// Name of the variable that a test sets for itself in a process of its own.
const ALONE: &str = "AGENT_HOST_TEST_ALONE";

/// Resident memory in bytes; 0 where the system does not say.
fn memory() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[tokio::test]
async fn a_server_gets_nothing_of_the_environment_and_no_secret_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("token"), "canary-7d1f\n").unwrap();
    let mut with_secret = config("test", "");
    with_secret.env.insert("TOKEN".into(), EnvValue::Secret(SecretRef::File("token".into())));
    with_secret.env.insert("PLAIN".into(), EnvValue::Plain("shown".into()));
    with_secret.relative_to(folder.path());
    let mut fails = with_secret.clone();
    fails.id = "fails".into();
    fails.env.extend(config("fails", "exit").env);
    let (log, _logging) = captured_log();
    let tools = start(&[with_secret, fails]).await;
    call(&tools, "test__ask", json!({})).await.unwrap();

    let env: BTreeMap<String, String> = serde_json::from_str(text(&call(&tools, "test__env", json!({})).await.unwrap())).unwrap();
    let allowed = ["PATH", "HOME", "LANG", "TMPDIR", "TOKEN", "PLAIN", "MCP_TEST_MODE"];
    // libtest and the loader may set some of their own.
    let foreign: Vec<&String> = env.keys().filter(|name| !allowed.contains(&name.as_str())).collect();
    assert!(std::env::var("CARGO_MANIFEST_DIR").is_ok() && !env.contains_key("CARGO_MANIFEST_DIR"), "{foreign:?}");
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!((env["TOKEN"].as_str(), env["PLAIN"].as_str()), ("[secret]", "shown"));

    let mut reports = vec![format!("{:?}", call(&tools, "test__refuse", json!({})).await.unwrap_err())];
    reports.push(format!("{:?}", call_with_progress(&tools, "test__slow", json!({ "steps": 1, "ms": 60 })).await));
    reports.push(format!("{:?}", call(&tools, "test__crash", json!({})).await.unwrap_err()));
    reports.push(serde_json::to_string(&tools.reports()).unwrap());
    reports.push(format!("{tools:?}"));
    tools.shutdown().await;
    reports.push(String::from_utf8(log.lock().unwrap().clone()).unwrap());
    for words in &reports {
        assert!(!words.contains("canary"), "{words}");
    }
    assert!(
        reports[0].contains("[secret]") && reports[1].contains("[secret]") && reports[3].contains("cannot start with [secret]"),
        "{reports:?}"
    );
    // The output of a server is in the log if it explains why the server is away, and otherwise only at `trace`.
    assert!(reports[5].contains("cannot start with [secret]"), "the log was captured: {}", reports[5]);
    assert!(!reports[5].contains("stderr: "), "{}", reports[5]);
}

/// Captures the log of this thread, rmcp's lines included. Not at `trace`: rmcp logs whole messages there, which a host
/// must not allow.
fn captured_log() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    struct Writer(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || Writer(writer.clone()))
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

#[tokio::test]
async fn requests_of_a_server_to_the_host_are_declined() {
    let tools = start(&[config("test", "")]).await;
    let answers = call(&tools, "test__ask", json!({})).await.unwrap();
    let answers: Value = serde_json::from_str(text(&answers)).unwrap();
    for what in ["sampling", "roots", "other"] {
        assert_eq!(answers[what]["error"]["code"], -32601, "{what}: {answers}");
    }
    assert_eq!(answers["elicitation"]["result"]["action"], "decline", "{answers}");
    assert_eq!(answers["ping"]["result"], json!({}), "{answers}");
    tools.shutdown().await;
}

#[tokio::test]
async fn tools_that_cannot_be_used_are_left_out_or_refused_and_the_others_stay() {
    let tools = start(&[config("test", "bad-tools"), config("endless", "endless-list")]).await;
    let names: Vec<String> = tools.list().iter().filter(|tool| tool.server() == "test").map(|tool| tool.name.clone()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(names.contains(&"test__twice".into()) && !names.contains(&"test__large".into()), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("test__a_b_")).count(), 2, "{names:?}");
    let report = &tools.reports()[0];
    assert!(report.status == McpServerStatus::Ready && report.problem.as_ref().unwrap().contains("left out"), "{report:?}");
    assert_eq!(tools.get("test__wordy").unwrap().detail.description.as_ref().unwrap().len(), 4096);
    let error = call(&tools, "test__broken", json!({ "a": 1 })).await.unwrap_err();
    assert_eq!(codes(&error), ("runtime_error", "invalid_tool_schema"));
    let endless = &tools.reports()[1];
    assert_eq!((endless.status, endless.tools), (McpServerStatus::Ready, 100), "{endless:?}");
    tools.shutdown().await;
}

#[tokio::test]
async fn only_the_tools_on_the_list_are_offered() {
    let mut some = config("test", "");
    some.tools = Some(vec!["pid".into(), "ca*".into()]);
    let tools = start(&[some]).await;
    assert_eq!(tools.list().iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["test__cancelled", "test__pid"]);
    assert_eq!(codes(&call(&tools, "test__env", json!({})).await.unwrap_err()), ("not_found", "tool_not_found"));
    tools.shutdown().await;
}

#[tokio::test]
async fn calls_run_at_the_same_time_within_the_bound() {
    let mut two = config("test", "");
    two.max_concurrent = 2;
    let tools = start(&[two]).await;
    let began = Instant::now();
    let calls = (0..4).map(|_| call(&tools, "test__slow", json!({ "steps": 1, "ms": 300 })));
    for result in futures_util::future::join_all(calls).await {
        result.unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(600), "two at a time: {:?}", began.elapsed());
    tools.shutdown().await;
}

#[tokio::test]
async fn a_server_ends_with_all_that_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let tools = start(&[counted("good", "", &starts), counted("bad", "stubborn", &starts)]).await;
    let child = text(&call(&tools, "good__spawn", json!({})).await.unwrap()).to_owned();
    let pids: Vec<String> = fs::read_to_string(&starts).unwrap().lines().map(str::to_owned).collect();
    assert!(pids.len() == 2 && is_alive(&child));
    let began = Instant::now();
    tools.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for pid in pids.iter().chain([&child]) {
        until("the end of a process", async || !is_alive(pid)).await;
    }
    let error = call(&tools, "good__pid", json!({})).await.unwrap_err();
    assert_eq!(codes(&error), ("runtime_error", "tool_server_unavailable"));
}

#[tokio::test]
async fn dropped_tools_take_their_servers_along() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let tools: Tools = start(&[counted("test", "", &starts)]).await;
    let pid = fs::read_to_string(&starts).unwrap().trim().to_owned();
    assert!(is_alive(&pid));
    drop(tools);
    until("the end of the server", async || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_server_that_hangs_altogether_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let mut config = counted("test", "", &starts);
    (config.call_timeout_ms, config.start_timeout_ms) = (500, 5_000);
    let tools = start(&[config]).await;
    let pid = fs::read_to_string(&starts).unwrap().trim().to_owned();
    let stopped = std::process::Command::new("kill").args(["-STOP", &pid]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(codes(&call(&tools, "test__pid", json!({})).await.unwrap_err()), ("deadline_exceeded", "tool_timeout"));
    until_status(&tools, McpServerStatus::Restarting).await;
    until_status(&tools, McpServerStatus::Ready).await;
    assert_ne!(text(&call(&tools, "test__pid", json!({})).await.unwrap()), pid);
    until("the end of the old one", async || !is_alive(&pid)).await;
    tools.shutdown().await;
}

#[tokio::test]
async fn calls_to_one_server_are_answered_to_whom_they_belong() {
    let tools = start(&[config("test", "")]).await;
    let calls = (0..64).map(|n| {
        let tools = tools.clone();
        async move {
            let sum = call(&tools, "test__add", json!({ "a": n, "b": 1000 })).await.unwrap();
            assert_eq!(sum.content, [ToolContent::Text((n + 1000).to_string())]);
        }
    });
    tokio::time::timeout(LONG, futures_util::future::join_all(calls)).await.unwrap();
    tools.shutdown().await;
}

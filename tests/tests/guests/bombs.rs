//! Components that are made to keep a compiler busy: they are refused, and stop nobody else.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_host_tests::{bomb::bomb, process, support::Host};
use serde_json::Value;

/// The report on a file, once there is one.
async fn report(host: &Host, file: &str) -> Value {
    let began = Instant::now();
    loop {
        let plugins = host.get("/api/v1/runners").await["plugins"].clone();
        if let Some(report) = plugins.as_array().unwrap().iter().find(|report| report["file"] == file) {
            return report.clone();
        }
        assert!(began.elapsed() < Duration::from_secs(240), "there is no report on {file}: {plugins}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Status, code and `Retry-After` of the answer to a request for a runner that no file has.
async fn unknown_runner(host: &Host) -> (u16, String, Option<String>) {
    let body = serde_json::json!({ "runner_id": "plugin:test/nobody/default", "input": { "text": "hi" } });
    let url = format!("{}/api/v1/runs", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let problem: Value = answer.json().await.unwrap();
    let after = headers.get("retry-after").map(|after| after.to_str().unwrap().to_owned());
    (status, problem["code"].as_str().unwrap_or_default().to_owned(), after)
}

fn drop_in(dir: &Path, file: &str, bytes: &[u8]) {
    let plugins = dir.join("plugins");
    std::fs::write(plugins.join(".new"), bytes).unwrap();
    std::fs::rename(plugins.join(".new"), plugins.join(file)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_too_much_for_the_compiler_stops_nobody() {
    let config = |limits: &str| {
        format!(
            "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n[limits]\nmax_live_runs = 50\n{limits}"
        )
    };
    let mut host = Host::limited(&["echo"], &config("compile_ms = 4000\nplugins_wait_ms = 2000\nrunner_wait_ms = 500\n"));
    assert_eq!(report(&host, "echo.wasm").await["status"], "ready");
    host.terminate();

    // The host serves while a compiler is busy.
    drop_in(host.dir(), "bomb.wasm", &bomb(240));
    let began = Instant::now();
    host.revive();
    let ready: Value = reqwest::get(format!("{}/readyz", *host.urls().borrow())).await.unwrap().json().await.unwrap();
    assert_eq!(ready["ready"], false, "{ready}");
    assert!(ready["problems"].to_string().contains("plugins are still being compiled"), "{ready}");
    assert_eq!(host.take("hi").await.run["status"], "completed");
    // A runner that nobody knows yet may be in the file that is compiled.
    let compiling = unknown_runner(&host).await;
    assert_eq!((compiling.0, compiling.1.as_str(), compiling.2.as_deref()), (503, "runner_compiling", Some("5")));
    let refused = report(&host, "bomb.wasm").await;
    let unknown = unknown_runner(&host).await;
    assert_eq!((unknown.0, unknown.1.as_str(), unknown.2), (404, "runner_not_found", None));
    assert_eq!(refused["refusal"]["code"], "compile_timeout", "{refused} after {:?}", began.elapsed());
    assert!(refused["refusal"]["fix"].as_str().unwrap().contains("limits.compile_ms"), "{refused}");

    // It is not tried again: the host is ready at once.
    host.terminate();
    host.revive();
    assert_eq!(host.get("/readyz").await["ready"], true);
    let refused = report(&host, "bomb.wasm").await;
    assert!(refused["refusal"]["message"].as_str().unwrap().ends_with("as the host has seen before"), "{refused}");

    // Neither time nor memory is without bounds.
    host.terminate();
    host.reconfigure(|_| config("compile_memory_bytes = 67108864\n"));
    drop_in(host.dir(), "bomb.wasm", &bomb(241));
    host.revive();
    let refused = report(&host, "bomb.wasm").await;
    assert_eq!(refused["refusal"]["code"], "compile_memory", "{refused}");
    assert_eq!(host.take("hi").await.run["status"], "completed");
    host.check();
}

#[test]
fn the_command_of_the_compiler_is_of_no_use_to_people() {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).arg("compile-component").output().unwrap();
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), "the host starts this command");
    assert!(output.stdout.is_empty());
}

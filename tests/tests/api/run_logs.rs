//! The kept logs of runs.

use agent_host_tests::{Process, world::PATIENCE};
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::support::{Guarded, cli, run};

const HOSTILE: &str = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\n";

/// The texts of a page.
fn texts(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap()).collect()
}

/// The whole stream of a log, from a cursor.
async fn streamed(host: &Guarded, token: &str, path: &str, last: Option<&str>) -> String {
    let mut request = host.http.get(host.url(path)).bearer_auth(token).header("accept", "text/event-stream").timeout(PATIENCE);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    answer.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_log_of_a_run_is_paged_followed_and_seen_by_its_workspace_only() {
    let host = Guarded::small(&["hostile"], "", HOSTILE);
    let own = host.key(&["events:write", "runs:read"], Some("acme")).await;
    let other = host.key(&["events:write", "runs:read"], Some("other")).await;
    let writer = host.key(&["events:write"], Some("acme")).await;
    let (_, id) = host.send(&own, "log-flood 3").await;
    host.until(&id, "completed").await;
    let path = format!("/api/v1/runs/{id}/logs");

    let streamed_log = streamed(&host, &own, &path, None).await;
    assert_eq!(streamed_log.matches("event: line").count(), 3, "{streamed_log}");
    assert!(streamed_log.contains("event: end") && streamed_log.contains("\"status\":\"completed\""), "{streamed_log}");
    let rest = streamed(&host, &own, &path, Some("2")).await;
    assert!(rest.contains("line 2 x") && !rest.contains("line 1 x"), "{rest}");

    let page = host.get(&own, &path).await.good();
    let begins: Vec<_> = texts(&page).iter().map(|text| text.split(" x").next().unwrap().to_owned()).collect();
    assert_eq!(begins, ["line 0", "line 1", "line 2"]);
    assert_eq!((&page["items"][0]["no"], &page["items"][0]["source"]), (&json!(1), &json!("info")));
    assert_eq!((&page["has_more"], &page["dropped_lines"]), (&json!(false), &json!(0)));
    let first = host.get(&own, &format!("{path}?limit=1")).await.good();
    assert_eq!((texts(&first).len(), &first["has_more"]), (1, &json!(true)));
    let next = host.get(&own, &format!("{path}?after={}", first["next_cursor"].as_str().unwrap())).await.good();
    assert_eq!(texts(&next), texts(&page)[1..]);
    host.get(&own, &format!("{path}?after=nonsense")).await.is(400, "invalid_cursor");

    // Another workspace, another scope, nobody.
    host.get(&other, &path).await.is(404, "not_found");
    let refused = host.http.get(host.url(&path)).bearer_auth(&other).header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(refused.status(), 404);
    host.get(&writer, &path).await.is(403, "forbidden");
    host.ask(None, Method::GET, &path, None).await.is(401, "unauthenticated");
    // The list has excerpts for who asks for them.
    let plain = host.get(&own, "/api/v1/runs").await.good();
    assert!(plain["items"][0].get("question").is_none(), "{plain}");
    let listed = host.get(&own, "/api/v1/runs?excerpts=true").await.good();
    assert_eq!((&listed["items"][0]["question"], &listed["items"][0]["answer"]), (&json!("log-flood 3"), &json!("ok 3")));
    host.get(&own, "/api/v1/runs?excerpts=maybe").await.is(400, "invalid_argument");
    // A run without a log has an empty one.
    let (_, silent) = host.send(&own, "ok nothing").await;
    host.until(&silent, "completed").await;
    let page = host.get(&own, &format!("/api/v1/runs/{silent}/logs")).await.good();
    assert_eq!((texts(&page), &page["dropped_lines"]), (vec![], &json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_log_of_a_run_survives_restarts_and_is_read_without_a_server() {
    let host = Guarded::small(&["hostile"], "", HOSTILE);
    let (_, id) = host.send(&host.root, "panic").await;
    host.until(&id, "failed").await;
    let printed = run(host.process.dir.path(), &["runs", "logs", &id, "--follow"], &[("AGENT_HOST_KEY", &host.root)]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("stderr") && printed.contains("hostile was asked to panic"), "{printed}");

    let Guarded { process, root, .. } = host;
    let dir = process.terminate();
    let shown = run(dir.path(), &["runs", "logs", &id], &[]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout), printed, "from the files: {shown:?}");
    let line = run(dir.path(), &["--json", "runs", "logs", &id], &[]);
    let line: Value = serde_json::from_slice(line.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&line["no"], &line["source"]), (&json!(1), &json!("stderr")));

    let process = Process::start_as(dir, "", HOSTILE);
    let again = run(process.dir.path(), &["runs", "logs", &id], &[("AGENT_HOST_KEY", &root)]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), printed, "{again:?}");
    let unknown = "00000000-0000-7000-8000-000000000000";
    assert!(!run(process.dir.path(), &["runs", "logs", unknown], &[("AGENT_HOST_KEY", &root)]).status.success());
    let dir = process.kill();
    assert_eq!(cli(dir.path(), &["--json", "runs", "show", &id])["status"], "failed");
}

//! The log: whose each line is, and nothing of what is said.

use serde_json::{Value, json};

use crate::watch::{
    host::Host,
    services::{Model, Tools, agent},
};

/// In everything that is said, and in no line of the log.
const MARK: &str = "quokka-5521";

#[tokio::test]
async fn content_is_not_in_the_log() {
    let (model, tools) = (
        Model::start(json!({ "at": format!("{MARK}-parameter") }), &format!("{MARK}-answer")).await,
        Tools::start(&format!("{MARK}-result")).await,
    );
    for args in [&["--log", "debug", "--log-format", "json"][..], &["--log", "debug"]] {
        let host = Host::start(&["local_agent"], &agent(&model, &tools, ""), args).await;
        let run = host.say(&format!("{MARK}-question"), &[]).await;
        assert_eq!(run["output"]["content"], format!("{MARK}-answer"), "{run:#}");
        let events = host.get(&format!("/api/v1/runs/{}/events?limit=100", run["run_id"].as_str().unwrap())).await.to_string();
        for word in ["parameter", "result", "answer"] {
            assert!(events.contains(&format!("{MARK}-{word}")), "it was said: {events}");
        }
        let (_, log) = host.end().await;
        assert!(log.contains("DEBUG"), "{log}");
        assert!(!log.contains(MARK), "{log}");
    }
}

#[tokio::test]
async fn a_service_that_quotes_what_it_was_sent_does_not_put_it_in_the_log() {
    let refusing = axum::Router::new().route(
        "/v1/chat/completions",
        axum::routing::post(async |body: String| {
            (
                axum::http::StatusCode::SERVICE_UNAVAILABLE,
                json!({ "error": { "message": format!("too much: {body}") } }).to_string(),
            )
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, refusing).await.unwrap() });
    let config = format!(
        "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nbase_url = \"http://{url}/v1\"\nmax_retries = 1\n\
         [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n"
    );
    let host = Host::start(&["local_agent"], &config, &["--log", "debug"]).await;
    assert_eq!(host.say(&format!("{MARK}-question"), &[]).await["status"], "failed");
    let (_, log) = host.end().await;
    assert!(log.contains("asking the provider again") && log.contains("provider_unavailable"), "{log}");
    assert!(!log.contains(MARK), "{log}");
}

#[tokio::test]
async fn a_model_without_its_key_is_a_problem_of_those_that_use_it() {
    let models = "[[models]]\nid = \"used\"\nprovider = \"openai\"\napi_key = { env = \"AGENT_HOST_NO_SUCH_KEY\" }\n\
                  [[models]]\nid = \"unused\"\nprovider = \"openai\"\napi_key = { env = \"AGENT_HOST_NO_SUCH_KEY\" }\n";
    let config = format!(
        "{models}[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n\
         [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\nresources = {{ model_ids = [\"used\"] }}\n"
    );
    let host = Host::start(&["echo", "local_agent"], &config, &[]).await;
    let ready = host.get("/readyz").await.to_string();
    assert!(ready.contains("model `used` is not ready") && ready.contains("model `unused` is not ready"), "{ready}");
    let (_, log) = host.end().await;
    assert_eq!(log.matches("model `used` is not ready").count(), 1, "once: {log}");
    assert!(!log.contains("model `unused`"), "{log}");
}

/// The lines of a log in JSON.
fn lines(log: &str) -> Vec<Value> {
    // Messages of the command to its operator are no lines of the log.
    let lines = log.lines().filter(|line| !line.starts_with("ending: "));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[tokio::test]
async fn a_line_says_whose_it_is() {
    // As the configuration says, without the command line.
    let config = "[telemetry]\nlog_format = \"json\"\n[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Host::start(&["steps"], config, &["--log", "debug"]).await;
    let event = json!({ "event_type": "message.received", "input": { "text": "say hello" } });
    let answer = host.http.post(host.url("/api/v1/events")).header("x-request-id", "req-7").header("prefer", "wait=60");
    let answer = answer.json(&event).send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "req-7");
    let answer: Value = answer.json().await.unwrap();
    let run = &answer["runs"][0];
    let other = host.http.get(host.url("/healthz")).header("x-request-id", "not an id").send().await.unwrap();
    assert_eq!(other.headers()["x-request-id"].len(), 36, "one that could break a log is not taken");
    let (_, log) = host.end().await;
    let lines = lines(&log);
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string()));
    let answered = lines.iter().find(|line| line["message"] == "answered" && line["request_id"] == "req-7");
    let answered = answered.unwrap_or_else(|| panic!("{log}"));
    assert_eq!((&answered["route"], &answered["status"]), (&json!("/api/v1/events"), &json!(200)), "{answered}");
    let of_run: Vec<_> = lines.iter().filter(|line| line["run_id"] == run["run_id"]).collect();
    assert!(of_run.iter().any(|line| line["message"] == "the run has ended"), "{log}");
    for line in of_run {
        assert_eq!((&line["runner_id"], &line["binding_id"]), (&json!("plugin:test/steps/default"), &json!("hostile")), "{line}");
        // The run continues in a task of its own; its lines still name the request that began it.
        assert_eq!((&line["request_id"], &line["route"]), (&json!("req-7"), &json!("/api/v1/events")), "{line}");
    }
}

#[tokio::test]
async fn a_line_of_text_says_whose_it_is() {
    let config = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Host::start(&["steps"], config, &["--log", "debug"]).await;
    let run = host.say("say hello", &[("x-request-id", "req-8")]).await;
    let (_, log) = host.end().await;
    let line = |message: &str| {
        let found = log.lines().find(|line| line.contains("req-8") && line.contains(message));
        found.unwrap_or_else(|| panic!("{message}: {log}"))
    };
    let request = "DEBUG request{request_id=\"req-8\" method=\"POST\" route=\"/api/v1/events\"}:";
    assert!(line(": answered ").contains(&format!("{request} agent_host_server::")), "{log}");
    let run_id = run["run_id"].as_str().unwrap();
    let run =
        format!("{request}run{{run_id={run_id} runner_id=plugin:test/steps/default binding_id=\"hostile\"}}: agent_host_runs::");
    assert!(line(": the run has ended ").contains(&run), "{log}");
}

#[tokio::test]
async fn a_stream_token_is_in_no_line() {
    let config = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Host::start(&["steps"], config, &["--log", "debug"]).await;
    let run = host.say("say hello", &[]).await;
    let wanted = json!({ "run_id": run["run_id"] });
    let made: Value = host.http.post(host.url("/api/v1/stream-tokens")).json(&wanted).send().await.unwrap().json().await.unwrap();
    let token = made["token"].as_str().unwrap_or_else(|| panic!("{made}"));
    // Once as it should be used, once where it is refused.
    for path in [made["url"].as_str().unwrap(), &format!("/api/v1/runs?access_token={token}")] {
        let request = host.http.get(host.url(path)).header("accept", "text/event-stream").header("x-request-id", "by-token");
        request.send().await.unwrap().text().await.unwrap();
    }
    let (_, log) = host.end().await;
    assert!(log.matches("by-token").count() >= 2, "{log}");
    assert!(!log.contains(&token[4..40]) && !log.contains("access_token"), "{log}");
}

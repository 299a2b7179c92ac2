//! `/metrics`: what is counted, and that all of it is documented.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::json;

use crate::watch::{
    host::Host,
    services::{Model, Tools, agent},
};

/// A page, read: the families with their types, and the samples with their values.
struct Page {
    families: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page for a client that accepts this; its media type is to be `media_type`.
async fn scraped(host: &Host, accept: &str, media_type: &str) -> String {
    let answer = host.http.get(host.url("/metrics")).header("accept", accept).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (200, &media_type.parse().unwrap()), "{accept}");
    answer.text().await.unwrap()
}

impl Page {
    async fn of(host: &Host) -> Self {
        let text = scraped(host, "application/openmetrics-text; version=1.0.0", OPEN_METRICS).await;
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
        let (mut families, mut samples) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(families.insert(name.to_owned(), kind.to_owned()), None, "{name} is there twice");
            } else if !line.starts_with('#') {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let name = sample.split('{').next().unwrap();
                assert!(families.keys().any(|family| name.starts_with(family.as_str())), "{line} is of no family");
                assert_eq!(samples.insert(sample.to_owned(), value.parse().unwrap()), None, "{sample} is there twice");
            }
        }
        Self { families, samples }
    }

    /// The value of a sample, 0 where it is not there.
    fn value(&self, sample: &str) -> f64 {
        self.samples.get(sample).copied().unwrap_or_default()
    }
}

const AGENT: &str = "runner=\"plugin:agent-host/local-agent/default\",binding=\"agent\"";

#[tokio::test]
async fn metrics_count_the_work_of_a_host() {
    let (model, tools) = (Model::start(json!({}), "answer").await, Tools::start("result").await);
    let host = Host::start(&["local_agent", "steps"], &agent(&model, &tools, ""), &[]).await;
    let before = Page::of(&host).await;
    let mut stream = None;
    for turn in 0..3 {
        let run = host.say("hello", &[]).await;
        assert_eq!(run["status"], "completed", "{run:#}");
        if turn == 0 {
            let url = host.url(&format!("/api/v1/runs/{}/events", run["run_id"].as_str().unwrap()));
            stream = Some(host.http.get(url).header("accept", "text/event-stream").send().await.unwrap());
        }
    }
    // To its end, which is the end of the run.
    assert!(stream.unwrap().text().await.unwrap().contains("run.completed"));
    assert_eq!(host.http.get(host.url("/api/v1/runs/0/nothing")).send().await.unwrap().status(), 404);
    let after = Page::of(&host).await;
    let grew = |sample: &str| after.value(sample) - before.value(sample);
    for (sample, by) in [
        ("agent_host_events_accepted_total", 3.0),
        (&*format!("agent_host_runs_created_total{{{AGENT}}}"), 3.0),
        (&format!("agent_host_runs_started_total{{{AGENT}}}"), 3.0),
        (&format!("agent_host_runs_ended_total{{{AGENT},status=\"completed\"}}"), 3.0),
        (&format!("agent_host_run_duration_seconds_count{{{AGENT}}}"), 3.0),
        (&format!("agent_host_run_duration_seconds_bucket{{le=\"+Inf\",{AGENT}}}"), 3.0),
        (&format!("agent_host_run_queue_wait_seconds_count{{{AGENT}}}"), 3.0),
        ("agent_host_host_calls_total{function=\"models.stream\",outcome=\"ok\"}", 6.0),
        ("agent_host_host_call_duration_seconds_count{function=\"models.stream\"}", 6.0),
        ("agent_host_model_calls_total{model=\"chat\",operation=\"stream\",outcome=\"ok\"}", 6.0),
        ("agent_host_model_call_duration_seconds_count{model=\"chat\",operation=\"stream\"}", 6.0),
        ("agent_host_model_tokens_total{model=\"chat\",direction=\"input\"}", 72.0),
        ("agent_host_model_tokens_total{model=\"chat\",direction=\"output\"}", 42.0),
        ("agent_host_tool_calls_total{tool=\"t__look\",outcome=\"ok\"}", 3.0),
        ("agent_host_tool_call_duration_seconds_count{tool=\"t__look\"}", 3.0),
        ("agent_host_http_requests_total{route=\"/api/v1/events\",method=\"POST\",status=\"2xx\"}", 3.0),
        ("agent_host_http_request_duration_seconds_count{route=\"/api/v1/events\",method=\"POST\"}", 3.0),
        ("agent_host_http_requests_total{route=\"/api/v1/runs/{id}/events\",method=\"GET\",status=\"2xx\"}", 1.0),
        ("agent_host_http_requests_total{route=\"unknown\",method=\"GET\",status=\"4xx\"}", 1.0),
        ("agent_host_spans_lost_total", 0.0),
    ] {
        assert_eq!(grew(sample), by, "{sample} of {:#?}", after.samples);
    }
    for sample in ["agent_host_results_emitted_total", "agent_host_ledger_batches_total", "agent_host_ledger_rows_total"] {
        assert!(grew(sample) > 0.0, "{sample}");
    }
    for (sample, value) in [
        ("agent_host_plugins{status=\"ready\"}", 2.0),
        ("agent_host_plugins{status=\"refused\"}", 0.0),
        ("agent_host_runs{state=\"live\"}", 0.0),
        ("agent_host_runs{state=\"parked\"}", 0.0),
        ("agent_host_actions_open", 0.0),
        ("agent_host_http_streams_open", 0.0),
        (&*format!("agent_host_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0),
    ] {
        assert_eq!(after.samples.get(sample), Some(&value), "{sample} of {:#?}", after.samples);
    }
    for sample in
        ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds", "agent_host_ledger_disk_free_bytes"]
    {
        assert!(after.value(sample) > 0.0, "{sample}");
    }
    // Ids of runs are no labels, nor are conversations.
    let is_id = |text: &str| text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').any(|word| word.len() == 36);
    assert!(after.samples.keys().all(|sample| !is_id(sample) && !sample.contains("c-1")), "{:#?}", after.samples);
}

#[tokio::test]
async fn a_page_has_the_form_that_the_client_accepts() {
    let host = Host::start(&[], "", &[]).await;
    // Prometheus as it asks today, one that knows the old form alone, `curl`, and a client that takes neither.
    let newest = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    scraped(&host, newest, OPEN_METRICS).await;
    scraped(&host, "*/*", PROMETHEUS).await;
    scraped(&host, "text/*", PROMETHEUS).await;
    scraped(&host, "text/html", PROMETHEUS).await;

    let text = scraped(&host, "text/plain;version=0.0.4", PROMETHEUS).await;
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    // Each family has one type and a text, under the name of its samples.
    let (mut types, mut texts) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert_eq!(types.insert(name, kind), None, "{name} is there twice");
        } else if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            assert!(help.split(' ').count() > 1, "{line}");
            assert_eq!(texts.insert(name, help), None, "{name} is there twice");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part).filter(|it| types.contains_key(it)));
            let kind = types.get(family.unwrap_or(name)).unwrap_or_else(|| panic!("{line} is of no family"));
            assert_eq!(*kind == "histogram", family.is_some(), "{line}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{line}");
        }
    }
    assert_eq!(types.keys().collect::<Vec<_>>(), texts.keys().collect::<Vec<_>>());
    // Both forms have the same families.
    let page = Page::of(&host).await;
    let named = |(name, kind): (&String, &String)| if kind == "counter" { format!("{name}_total") } else { name.clone() };
    assert_eq!(types.into_keys().map(str::to_owned).collect::<BTreeSet<_>>(), page.families.iter().map(named).collect());
}

#[tokio::test]
async fn a_run_that_waits_on_disk_is_among_the_numbers() {
    let config = "[limits]\npark_after_ms = 100\n[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Host::start(&["steps"], config, &[]).await;
    let event = json!({ "event_type": "message.received", "input": { "text": "sleep 600000" } });
    let answer = host.http.post(host.url("/api/v1/events")).json(&event).send().await.unwrap();
    let answer: serde_json::Value = answer.json().await.unwrap();
    let id = answer["runs"][0]["run_id"].as_str().unwrap();
    host.until(id, "waiting").await;
    let parked = async || Page::of(&host).await.value("agent_host_runs{state=\"parked\"}");
    while parked().await < 1.0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let cancelled = host.http.post(host.url(&format!("/api/v1/runs/{id}/cancel"))).send().await.unwrap();
    assert!(cancelled.status().is_success());
    host.until(id, "cancelled").await;
    let steps = "runner=\"plugin:test/steps/default\",binding=\"steps\"";
    while Page::of(&host).await.value(&format!("agent_host_runs_ended_total{{{steps},status=\"cancelled\"}}")) < 1.0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(parked().await, 0.0);
}

#[tokio::test]
async fn every_family_is_documented_and_no_other() {
    let host = Host::start(&[], "", &[]).await;
    let page = Page::of(&host).await;
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATIONS-metrics.md")).unwrap();
    let documented: BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let name = cells.next()?.trim().trim_end_matches('`').to_owned();
            Some((name, cells.next()?.trim().to_owned()))
        })
        .collect();
    // Documented by the name that queries have.
    let name = |(family, kind): (&String, &String)| {
        (if kind == "counter" { format!("{family}_total") } else { family.clone() }, kind.clone())
    };
    let families: BTreeSet<_> = page.families.iter().map(name).collect();
    assert_eq!(documented, families);
}

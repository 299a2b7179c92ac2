//! Traces: from the client's to the model's, in spans that say what was done and not what was said.

use std::time::{Duration, Instant};

use agent_host_tests::{OutsideServer, world::PATIENCE};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use serde_json::{Value, json};

use crate::watch::{
    host::Host,
    services::{Collector, Model, Tools, agent, attribute, hex},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found = named(spans, name);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(found.len(), 1, "`{name}` among {names:?}");
    found[0]
}

/// The names of what a span is in, from the inside.
fn above<'a>(spans: &'a [Span], span: &'a Span) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut at = span;
    while let Some(parent) = spans.iter().find(|other| other.span_id == at.parent_span_id) {
        names.push(parent.name.as_str());
        at = parent;
    }
    names
}

#[track_caller]
fn says(span: &Span, attributes: &Value) {
    for (name, value) in attributes.as_object().unwrap() {
        assert_eq!(attribute(&span.attributes, name).as_ref(), Some(value), "`{name}` of {span:#?}");
    }
}

fn exporting(collector: &Collector, more: &str) -> String {
    format!("[telemetry]\notlp_endpoint = \"{}\"\n{more}\n", collector.url)
}

#[tokio::test]
async fn a_trace_goes_from_the_client_through_the_run_to_the_model_and_the_tool() {
    let (collector, model, tools) = (
        Collector::start().await,
        Model::start(json!({ "at": "secretive" }), "secretive answer").await,
        Tools::start("secretive").await,
    );
    let more = "service_name = \"agents-of-acme\"\nresource = { \"deployment.environment.name\" = \"test\" }\n\
                headers = { authorization = { file = \"token\" } }";
    let host = Host::start(&["local_agent"], &agent(&model, &tools, &exporting(&collector, more)), &[]).await;
    let run = host.say("secretive question", &[("traceparent", PARENT), ("tracestate", "acme=7")]).await;
    assert_eq!((&run["status"], &run["output"]["content"]), (&json!("completed"), &json!("secretive answer")), "{run:#}");
    let id = run["run_id"].as_str().unwrap();
    let context = host.get(&format!("/api/v1/runs/{id}/context")).await;
    assert_eq!(context["runtime"]["trace_id"], TRACE, "the runner sees the trace");
    host.end().await;

    let spans = collector.spans();
    let spans: Vec<_> = spans.into_iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let request = one(&spans, "POST /api/v1/events");
    assert_eq!(hex(&request.parent_span_id), "b7ad6b7169203331");
    assert_eq!((request.kind(), request.trace_state.as_str()), (SpanKind::Server, "acme=7"));
    says(request, &json!({ "http.request.method": "POST", "http.route": "/api/v1/events", "http.response.status_code": 200 }));

    let invoked = one(&spans, "invoke_agent local-agent");
    assert_eq!(above(&spans, invoked), ["accept event", "POST /api/v1/events"]);
    says(
        invoked,
        &json!({
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": "plugin:agent-host/local-agent/default",
            "gen_ai.agent.name": "local-agent",
            "gen_ai.conversation.id": "c-1",
            "agent_host.run.id": id,
            "agent_host.binding.id": "agent",
            "agent_host.run.execution": "first",
            "agent_host.run.status": "completed",
        }),
    );
    assert!(invoked.links.is_empty());

    let chats = named(&spans, "chat gpt-test");
    assert_eq!(chats.len(), 2, "one asks for the tool, one answers");
    for (chat, reason) in chats.iter().zip(["tool-calls", "stop"]) {
        assert_eq!(above(&spans, chat)[..2], ["models.stream", "invoke_agent local-agent"]);
        assert_eq!(chat.kind(), SpanKind::Client);
        says(
            chat,
            &json!({
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "gpt-test",
                "gen_ai.response.finish_reasons": [reason],
                "gen_ai.usage.input_tokens": 12,
                "gen_ai.usage.output_tokens": 7,
                "server.address": "127.0.0.1",
            }),
        );
    }
    let sent = chats.iter().map(|chat| Some(format!("00-{TRACE}-{}-01", hex(&chat.span_id)))).collect::<Vec<_>>();
    assert_eq!(model.seen.header("traceparent"), sent, "the model server can go on with it");
    assert_eq!(model.seen.header("tracestate"), [Some("acme=7".to_owned()), Some("acme=7".to_owned())]);

    let tool = one(&spans, "execute_tool t__look");
    assert!(above(&spans, tool).contains(&"invoke_agent local-agent"), "{:?}", above(&spans, tool));
    says(
        tool,
        &json!({
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "t__look",
            "gen_ai.tool.call.id": "call-1",
            "gen_ai.tool.type": "function",
        }),
    );
    assert_eq!(tools.seen.header("traceparent"), [Some(format!("00-{TRACE}-{}-01", hex(&tool.span_id)))]);

    assert!(!collector.has("secretive"), "what is said is in no span");
    let resource = collector.resource();
    assert_eq!(attribute(&resource, "service.name"), Some(json!("agents-of-acme")));
    assert_eq!(attribute(&resource, "deployment.environment.name"), Some(json!("test")));
    assert!(collector.headers().iter().all(|headers| headers["authorization"] == "Bearer collector-token"));
}

#[tokio::test]
async fn spans_contain_content_if_the_operator_wants_it() {
    let (collector, model, tools) =
        (Collector::start().await, Model::start(json!({ "at": "place" }), "the answer").await, Tools::start("the result").await);
    let config = agent(&model, &tools, &exporting(&collector, "capture_content = true"));
    let host = Host::start(&["local_agent"], &config, &[]).await;
    assert_eq!(host.say("the question", &[]).await["status"], "completed");
    host.end().await;
    let spans = collector.spans();
    let chats = named(&spans, "chat gpt-test");
    let text = |span: &Span, name: &str| attribute(&span.attributes, name).unwrap().as_str().unwrap().to_owned();
    let asked: Value = serde_json::from_str(&text(chats[0], "gen_ai.input.messages")).unwrap();
    let question = asked.as_array().unwrap().last().unwrap();
    assert_eq!(question, &json!({ "role": "user", "parts": [{ "type": "text", "content": "the question" }] }));
    assert!(text(chats[1], "gen_ai.output.messages").contains("the answer"));
    let tool = one(&spans, "execute_tool t__look");
    assert_eq!(text(tool, "gen_ai.tool.call.arguments"), json!({ "at": "place" }).to_string());
    assert!(text(tool, "gen_ai.tool.call.result").contains("the result"));
    // A trace that began here: the spans of the request are at its root.
    assert!(one(&spans, "POST /api/v1/events").parent_span_id.is_empty());
}

#[tokio::test]
async fn a_run_that_comes_back_is_a_span_of_its_own_with_a_link() {
    let collector = Collector::start().await;
    let config = format!(
        "{}[limits]\npark_after_ms = 200\n[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n",
        exporting(&collector, "")
    );
    let host = Host::start(&["steps"], &config, &[]).await;
    let run = host.say("say began; sleep 1500; say done", &[("traceparent", PARENT)]).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    host.end().await;
    let spans = collector.spans();
    let accepted = one(&spans, "accept event");
    let mut executions = named(&spans, "invoke_agent steps");
    executions.sort_by_key(|span| span.start_time_unix_nano);
    let [first, second] = &*executions else { panic!("{executions:#?}") };
    for (span, execution, status) in [(first, "first", "parked"), (second, "woken", "completed")] {
        assert_eq!(hex(&span.trace_id), TRACE);
        says(span, &json!({ "agent_host.run.execution": execution, "agent_host.run.status": status }));
    }
    assert!(first.links.is_empty());
    assert_eq!(second.links.iter().map(|link| &link.span_id).collect::<Vec<_>>(), [&accepted.span_id]);
    // No span is open while the run is on disk.
    let gap = second.start_time_unix_nano.saturating_sub(first.end_time_unix_nano);
    assert!(gap > Duration::from_millis(500).as_nanos() as u64, "{gap} ns between the executions");
}

#[tokio::test]
async fn a_failure_is_seen_by_its_code() {
    let collector = Collector::start().await;
    // No server listens at this address.
    let config = format!(
        "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmax_retries = 0\n{}\
         [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n",
        exporting(&collector, "")
    );
    let host = Host::start(&["local_agent"], &config, &[]).await;
    assert_eq!(host.say("hello", &[]).await["status"], "failed");
    host.end().await;
    let spans = collector.spans();
    assert!(!named(&spans, "chat chat").is_empty());
    for span in named(&spans, "chat chat") {
        says(span, &json!({ "error.type": "provider_unavailable" }));
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
    assert_eq!(one(&spans, "invoke_agent local-agent").status.as_ref().unwrap().code(), StatusCode::Error);
}

#[tokio::test]
async fn unsampled_traces_are_not_sent_and_stay_unsampled() {
    let (collector, model, tools) =
        (Collector::start().await, Model::start(json!({}), "answer").await, Tools::start("result").await);
    let config = agent(&model, &tools, &exporting(&collector, "sample_ratio = 0.0"));
    let host = Host::start(&["local_agent"], &config, &[]).await;
    assert_eq!(host.say("hello", &[]).await["status"], "completed");
    assert_eq!(host.say("hello", &[("traceparent", &PARENT.replace("-01", "-00"))]).await["status"], "completed");
    for sent in model.seen.header("traceparent") {
        assert!(sent.as_ref().is_some_and(|sent| sent.ends_with("-00")), "{sent:?}");
    }
    // The decision of the trace's beginner holds.
    let before = model.seen.count();
    assert_eq!(host.say("hello", &[("traceparent", PARENT)]).await["status"], "completed");
    assert!(model.seen.header("traceparent")[before..].iter().all(|sent| sent.as_ref().unwrap().ends_with("-01")));
    host.end().await;
    assert!(collector.spans().iter().all(|span| hex(&span.trace_id) == TRACE));
    one(&collector.spans(), "invoke_agent local-agent");
}

#[tokio::test]
async fn without_spans_of_its_own_a_host_hands_a_trace_on() {
    let (model, tools) = (Model::start(json!({}), "answer").await, Tools::start("result").await);
    let host = Host::start(&["local_agent"], &agent(&model, &tools, ""), &[]).await;
    let run = host.say("hello", &[("traceparent", PARENT), ("tracestate", "acme=7")]).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    assert_eq!(run["metadata"]["traceparent"], PARENT, "{run:#}");
    for seen in [&model.seen, &tools.seen] {
        assert!(seen.count() > 0);
        assert!(
            seen.header("traceparent").iter().all(|sent| sent.as_deref() == Some(PARENT)),
            "{:?}",
            seen.header("traceparent")
        );
        assert!(seen.header("tracestate").iter().all(|sent| sent.as_deref() == Some("acme=7")));
    }
    let before = model.seen.count();
    let run = host.say("hello", &[("traceparent", "00-nonsense")]).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    assert!(model.seen.header("traceparent")[before..].iter().all(Option::is_none), "what is malformed is not handed on");
}

#[tokio::test]
async fn strangers_learn_of_a_trace_only_where_the_operator_says_so() {
    for propagates in [false, true] {
        let outside = OutsideServer::start().await;
        let config = format!(
            "[telemetry]\npropagate_egress = {propagates}\n[egress]\nallow_addresses = [\"127.0.0.1\"]\n\
             [[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\n\
             resources = {{ http_hosts = [\"{}\"] }}\n",
            outside.authority
        );
        let host = Host::start(&["outside"], &config, &[]).await;
        let steps = format!("get {}; send GET {} traceparent: mine", outside.url("ok/1"), outside.url("ok/2"));
        let run = host.say(&steps, &[("traceparent", PARENT)]).await;
        assert_eq!(run["status"], "completed", "{run:#}");
        let seen = outside.seen();
        assert_eq!(seen[0].header("traceparent"), propagates.then_some(PARENT));
        assert_eq!(seen[1].header("traceparent"), Some("mine"), "what a run says itself stays");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nothing() {
    let (model, tools) = (Model::start(json!({}), "answer").await, Tools::start("result").await);
    // A collector that accepts connections and never answers, and a missing one.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (endpoint, is_silent) in [(silent.local_addr().unwrap().to_string(), true), ("127.0.0.1:9".to_owned(), false)] {
        let more = format!("[telemetry]\notlp_endpoint = \"http://{endpoint}\"\n");
        let host = Host::start(&["local_agent"], &agent(&model, &tools, &more), &["--log", "warn"]).await;
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(host.say("hello", &[]).await["status"], "completed");
        }
        assert!(began.elapsed() < PATIENCE / 3, "{:?} for twenty runs", began.elapsed());
        if !is_silent {
            let lost = async || {
                let page = host.http.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
                !page.contains("agent_host_spans_lost_total 0\n")
            };
            while !lost().await {
                assert!(began.elapsed() < PATIENCE, "nothing is lost");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let (took, log) = host.end().await;
        assert!(took < Duration::from_secs(12), "{took:?} to the end");
        if !is_silent {
            assert_eq!(log.matches("the collector refuses traces").count(), 1, "it is said once: {log}");
        }
    }
}

//! Captures of other frameworks, through the proxy.

use reqwest::{Method, header::LOCATION};

use crate::openapi::conversation::Talk;

pub async fn imports(talk: &Talk) {
    let import = |query: &str, kind: &str, body: &'static str| {
        talk.request(Method::POST, &format!("/api/v1/imports?{query}")).header("content-type", kind).body(body)
    };
    let capture = "{\"type\":\"text-delta\",\"id\":\"a\",\"delta\":\"hel\"}\n{\"type\":\"finish\",\"finishReason\":\"stop\"}\n";
    let query = "form=ai-sdk&name=a.jsonl&conversation_id=imported&thread_id=t&workspace_id=w";
    let made = talk.send(import(query, "application/x-ndjson", capture)).await;
    assert_eq!((made.status, made.body["status"].as_str()), (201, Some("completed")), "{:#}", made.body);
    let again = talk.send(import(query, "application/x-ndjson", capture)).await;
    assert_eq!((again.status, &again.headers[LOCATION]), (200, &made.headers[LOCATION]), "{:#}", again.body);
    talk.get(made.headers[LOCATION].to_str().unwrap(), 200).await;
    for (query, kind, body, status) in [
        ("", "application/x-ndjson", capture, 400),
        ("form=of-tomorrow", "application/x-ndjson", capture, 400),
        ("form=mcp&thread_id=t", "application/x-ndjson", capture, 400),
        ("form=mcp", "application/x-ndjson", "{", 400),
        ("form=mcp", "text/plain", capture, 415),
    ] {
        assert_eq!(talk.send(import(query, kind, body)).await.status, status, "{query} {kind}");
    }
}

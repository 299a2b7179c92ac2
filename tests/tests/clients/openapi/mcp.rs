//! The transport of MCP through the proxy.

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::openapi::conversation::Talk;

/// A session at an endpoint, from its beginning to its end.
pub async fn endpoint(talk: &Talk, path: &str, token: &str) {
    let request = |method: Method, session: &str| -> RequestBuilder {
        let request = talk.request(method, path).header("accept", "application/json, text/event-stream");
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        if session.is_empty() { request } else { request.header("mcp-session-id", session) }
    };
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "a test", "version": "1" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let begun = talk.send(request(Method::POST, "").json(&initialize)).await;
    assert_eq!(begun.status, 200, "{:#}", begun.body);
    let session = begun.headers["mcp-session-id"].to_str().unwrap();
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(talk.send(request(Method::POST, session).json(&notification)).await.status, 202);
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    let listed = talk.send(request(Method::POST, session).json(&list)).await;
    assert!(listed.status == 200 && listed.body.as_str().unwrap().contains("inputSchema"), "{:#}", listed.body);
    assert_eq!(talk.send(request(Method::POST, "none").json(&list)).await.status, 404);
    assert_eq!(talk.send(request(Method::POST, session).body("x")).await.status, 415);
    assert_eq!(talk.send(request(Method::GET, "none")).await.status, 404);
    // The proxy waits for the end of the stream, which is that of the session.
    let (followed, ended) = tokio::join!(talk.send(request(Method::GET, session)), async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        talk.send(request(Method::DELETE, session)).await
    });
    assert_eq!((followed.status, ended.status), (200, 202), "{:#}", followed.body);
}

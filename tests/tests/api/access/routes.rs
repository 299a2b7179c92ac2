//! Every route of the server: who may use it, and what a key of one workspace sees of another through it.
//!
//! [`ROUTES`] is compared with the router, so a new route comes with a line here.

use std::collections::{BTreeMap, BTreeSet};

use agent_host_tests::world::PATIENCE;
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::support::{AGENT, Answer, Guarded};

/// The object that the `{…}` of a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// The path has no parameter.
    Nothing,
    /// The path has no parameter and belongs to the whole host: closed to a key of one workspace.
    Host,
    Event,
    Run,
    Action,
    Artifact,
    Executor,
    Key,
    /// A thread, and a run of it that has the same id. Each workspace has its own thread of a name, so one of another is not
    /// refused: nobody has spoken in it.
    Thread,
}

/// A route: method, path, what it names, the scope that it needs (none: it is open; [`LEASE`]), a body, and what else than
/// success it answers who may use it.
type Route = (&'static str, &'static str, Names, &'static str, &'static str, &'static [u16]);

/// In place of a scope: the token of the claim of that one run, which no key replaces.
const LEASE: &str = "lease";

/// In an order in which all of them work: what ends a thing comes last.
const ROUTES: &[Route] = &[
    ("GET", "/healthz", Names::Nothing, "", "", &[]),
    ("GET", "/readyz", Names::Nothing, "", "", &[]),
    ("GET", "/api/v1/openapi.json", Names::Nothing, "", "", &[]),
    ("GET", "/metrics", Names::Host, "runs:read", "", &[]),
    ("POST", "/api/v1/config/reload", Names::Host, "admin", "", &[]),
    ("POST", "/api/v1/backup", Names::Host, "admin", r#"{"to":"tried"}"#, &[409]),
    ("GET", "/api/v1/statistics", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/executors/statistics", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/audit", Names::Host, "admin", "", &[]),
    ("POST", "/api/v1/hooks/{name}", Names::Nothing, "", "{}", &[404]),
    ("GET", "/api/v1/webhook-sources", Names::Nothing, "admin", "", &[]),
    ("GET", "/api/v1/schedules", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/api/v1/events", Names::Nothing, "events:write", r#"{"event_type":"nobody.listens"}"#, &[]),
    ("GET", "/api/v1/events", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/events/{id}", Names::Event, "runs:read", "", &[]),
    ("GET", "/api/v1/runners", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/runs", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/api/v1/runs", Names::Nothing, "runs:control", r#"{"binding_id":"asks","input":{"text":"say x"}}"#, &[]),
    // Without a form it is refused, after the scope.
    ("POST", "/api/v1/imports", Names::Nothing, "runs:execute", "{}", &[400]),
    ("GET", "/api/v1/runs/{id}", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/context", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/grant", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/audit", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/events", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/logs", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/journal", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/recording", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/evidence", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/runs/{id}/actions", Names::Run, "runs:read", "", &[]),
    ("POST", "/api/v1/runs/{id}/fork", Names::Run, "runs:control", r#"{"at":0}"#, &[]),
    ("GET", "/api/v1/actions", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/actions/{id}", Names::Action, "runs:read", "", &[]),
    ("POST", "/api/v1/actions/{id}/respond", Names::Action, "actions:respond", r#"{"decision":"decline"}"#, &[]),
    ("POST", "/api/v1/runs/{id}/cancel", Names::Run, "runs:control", "", &[409]),
    ("GET", "/api/v1/threads", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/api/v1/threads/{id}", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/threads/{id}/events", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/threads/{id}/tasks/{task}", Names::Run, "runs:read", "", &[]),
    ("GET", "/api/v1/threads/{id}/evidence", Names::Run, "runs:read", "", &[]),
    // A thread of each workspace: the first turn creates it.
    ("POST", "/api/v1/threads/{id}/turns", Names::Nothing, "events:write", TURN, &[]),
    // The run may have ended.
    ("POST", "/api/v1/threads/{id}/turns/{turn}/cancel", Names::Run, "runs:control", "", &[409]),
    // The scope is that of another turn.
    ("POST", "/api/v1/threads/{id}/actions/{action}/respond", Names::Action, "actions:respond", DECLINES, &[409]),
    // The run may not have ended yet, is no dead letter, and has no webhook.
    ("POST", "/api/v1/runs/{id}/retry", Names::Run, "runs:control", "", &[409]),
    ("GET", "/api/v1/dead-letters", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/api/v1/dead-letters/{id}/requeue", Names::Run, "runs:control", "", &[404, 409]),
    ("GET", "/api/v1/deliveries", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/api/v1/deliveries/{run_id}/{webhook}/retry", Names::Run, "runs:control", "", &[404]),
    ("POST", "/api/v1/runs/{id}/start", Names::Run, LEASE, "", &[]),
    ("POST", "/api/v1/runs/{id}/renew", Names::Run, LEASE, "", &[]),
    ("POST", "/api/v1/runs/{id}/release", Names::Run, LEASE, "", &[]),
    ("POST", "/api/v1/runs/{id}/append", Names::Run, LEASE, r#"{"first":1,"results":[{"type":"x.y","data":{}}]}"#, &[]),
    ("POST", "/api/v1/runs/{id}/finalize", Names::Run, LEASE, r#"{"status":"completed"}"#, &[]),
    ("POST", "/api/v1/runs/{id}/calls/{function}", Names::Run, LEASE, "{}", &[]),
    ("POST", "/api/v1/runs/{id}/calls/artifacts", Names::Run, LEASE, "{}", &[]),
    ("GET", "/api/v1/runs/{id}/calls/artifacts/{artifact_id}", Names::Run, LEASE, "", &[]),
    ("HEAD", "/api/v1/runs/{id}/calls/artifacts/{artifact_id}", Names::Run, LEASE, "", &[]),
    ("POST", "/mcp/runs/{id}", Names::Run, LEASE, "{}", &[]),
    ("GET", "/mcp/runs/{id}", Names::Run, LEASE, "", &[]),
    ("DELETE", "/mcp/runs/{id}", Names::Run, LEASE, "", &[]),
    // No client of MCP asks so.
    ("POST", "/mcp", Names::Nothing, "events:write", "{}", &[406]),
    ("GET", "/mcp", Names::Nothing, "events:write", "", &[406]),
    ("DELETE", "/mcp", Names::Nothing, "events:write", "", &[400]),
    ("POST", "/api/v1/executors", Names::Nothing, "runs:execute", r#"{"name":"made"}"#, &[]),
    ("GET", "/api/v1/executors", Names::Nothing, "runs:read", "", &[]),
    // Executors claim, and a key does not, whatever it may.
    ("POST", "/api/v1/claims", Names::Nothing, "runs:execute", "{}", &[403]),
    ("GET", "/api/v1/executors/{id}", Names::Executor, "runs:read", "", &[]),
    ("POST", "/api/v1/executors/{id}/heartbeat", Names::Executor, "runs:execute", "", &[]),
    ("GET", "/api/v1/executors/{id}/events", Names::Executor, "runs:execute", "", &[]),
    ("DELETE", "/api/v1/executors/{id}", Names::Executor, "runs:execute", "", &[]),
    ("POST", "/api/v1/artifacts", Names::Nothing, "events:write", r#"{"a":1}"#, &[]),
    ("GET", "/api/v1/artifacts/{id}", Names::Artifact, "runs:read", "", &[]),
    ("HEAD", "/api/v1/artifacts/{id}", Names::Artifact, "runs:read", "", &[]),
    ("GET", "/api/v1/artifacts/{id}/metadata", Names::Artifact, "runs:read", "", &[]),
    ("GET", "/api/v1/keys", Names::Nothing, "admin", "", &[]),
    ("POST", "/api/v1/keys", Names::Nothing, "admin", r#"{"name":"made","scopes":["runs:read"]}"#, &[]),
    ("DELETE", "/api/v1/keys/{id}", Names::Key, "admin", "", &[]),
    // Nobody has spoken in the thread.
    ("POST", "/api/v1/stream-tokens", Names::Nothing, "runs:read", r#"{"thread_id":"of-nobody"}"#, &[404]),
    ("GET", "/", Names::Nothing, "", "", &[]),
    ("GET", "/chat/{file}", Names::Nothing, "", "", &[]),
    ("GET", "/docs", Names::Nothing, "", "", &[]),
    // The name of a file of the other page.
    ("GET", "/docs/{file}", Names::Nothing, "", "", &[404]),
    ("GET", "/agents", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/agents/{agent}/capabilities", Names::Nothing, "runs:read", "", &[]),
    ("GET", "/agents/{agent}/threads", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/agents/{agent}/run", Names::Nothing, "events:write", SAYS, &[]),
    ("POST", "/agents/{agent}/connect", Names::Nothing, "runs:read", LOOKS, &[]),
    ("GET", "/agents/{agent}/threads/{thread}", Names::Thread, "runs:read", "", &[]),
    ("GET", "/agents/{agent}/threads/{thread}/runs/{run}/events", Names::Thread, "runs:read", "", &[]),
    ("POST", "/api/v1/agent/runs", Names::Nothing, "events:write", SAYS_TOO, &[]),
    ("GET", "/api/v1/agent/runs/{threadId}/events", Names::Thread, "runs:read", "", &[]),
    ("GET", "/api/v1/agent/history", Names::Nothing, "runs:read", "", &[]),
    ("POST", "/api/v1/agent/attachments", Names::Nothing, "events:write", IMAGE, &[]),
    ("GET", "/api/v1/agent/attachments/signed-url", Names::Artifact, "runs:read", "", &[]),
    // The signature replaces the key, and this one is invalid.
    ("GET", "/api/v1/agent/attachments/{id}", Names::Artifact, "", "", &[403]),
    ("POST", "/agents/{agent}/threads/{thread}/runs/{run}/cancel", Names::Thread, "runs:control", "", &[]),
    ("POST", "/api/v1/agent/runs/{threadId}/cancel", Names::Thread, "runs:control", "", &[]),
    // The run may not have ended yet.
    ("DELETE", "/agents/{agent}/threads/{thread}", Names::Thread, "runs:control", "", &[409]),
    ("DELETE", "/api/v1/agent/threads/{threadId}", Names::Thread, "runs:control", "", &[409]),
    ("DELETE", "/api/v1/agent/sessions/{threadId}", Names::Thread, "runs:control", "", &[409]),
    ("POST", "/api/v1/pipeline/queries", Names::Nothing, "admin", QUERY, &[]),
];

/// A message to an agent.
const SAYS: &str = r#"{"threadId":"said","runId":"said-1","messages":[{"id":"m-1","role":"user","content":"say x"}]}"#;
/// A turn of a thread.
const TURN: &str = r#"{"agent":"asks","input":{"text":"say x"},"queueIfBusy":true}"#;
/// An answer to an action of another turn.
const DECLINES: &str = r#"{"decision":"decline","actionScope":{"sessionId":"s","threadId":"t","turnId":"u"}}"#;
/// A request that follows without a message.
const LOOKS: &str = r#"{"threadId":"said","runId":"looked-1","messages":[]}"#;
const SAYS_TOO: &str = r#"{"threadId":"said-too","runId":"said-1","messages":[{"id":"m-1","role":"user","content":"say x"}]}"#;
const QUERY: &str = r#"{"query":{"user_message":"say x"},"runner_id":"plugin:test/asks/default"}"#;
/// A form with an image.
const IMAGE: &str = concat!(
    "--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.gif\"\r\ncontent-type: image/gif\r\n\r\n",
    "GIF89a\x01\0\x01\0\r\n--edge--\r\n",
);

const SCOPES: [&str; 7] =
    ["events:write", "runs:read", "runs:control", "runs:execute", "actions:respond", "on_behalf_of", "admin"];

/// The routes that the router has, each with the scopes that it says it needs: it cannot have one without describing it.
async fn routed(host: &Guarded) -> BTreeMap<(String, String), BTreeSet<String>> {
    let document = host.ask(None, Method::GET, "/api/v1/openapi.json", None).await.good();
    let mut found = BTreeMap::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in
            operations.as_object().unwrap().iter().filter(|(_, operation)| operation["responses"].is_object())
        {
            let security = operation["security"].as_array().cloned().unwrap_or_default();
            let scopes = security.iter().filter_map(|one| one["bearer"].as_array()).flatten();
            let scopes = scopes.map(|scope| scope.as_str().unwrap().to_owned()).collect();
            found.insert((method.to_uppercase(), path.clone()), scopes);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_route_is_in_the_table() {
    let host = Guarded::small(&[], "", "");
    let known: BTreeMap<_, _> =
        ROUTES.iter().map(|(method, path, _, scope, ..)| (((*method).to_owned(), (*path).to_owned()), *scope)).collect();
    let routed = routed(&host).await;
    let missing: Vec<_> = routed.keys().filter(|route| !known.contains_key(*route)).collect();
    let gone: Vec<_> = known.keys().filter(|route| !routed.contains_key(*route)).collect();
    assert!(missing.is_empty(), "routes without a line in ROUTES, so nobody has tried them with a foreign key: {missing:?}");
    assert!(gone.is_empty(), "routes that the router does not have: {gone:?}");
    for (route, scope) in known {
        let needed: BTreeSet<String> =
            Some(scope).filter(|scope| !["", LEASE].contains(scope)).map(str::to_owned).into_iter().collect();
        assert_eq!(routed[&route], needed, "{route:?} is described with another scope than it needs");
    }
}

/// The objects of one workspace.
struct Workspace {
    name: &'static str,
    key: String,
    event: String,
    run: String,
    action: String,
    artifact: String,
    executor: String,
    /// Of a key that does nothing.
    key_id: String,
    /// In which an agent has asked something.
    thread: String,
}

impl Workspace {
    async fn new(host: &Guarded, name: &'static str) -> Self {
        let key = host.key(&SCOPES, Some(name)).await;
        let (event, run) = host.send(&key, "ask form - name").await;
        host.until(&run, "waiting").await;
        let actions = host.get(&key, &format!("/api/v1/runs/{run}/actions")).await.good();
        let action = actions["items"][0]["action_id"].as_str().unwrap().to_owned();
        let upload = host.http.post(host.url("/api/v1/artifacts?name=secret.txt")).bearer_auth(&key).body(format!("of {name}"));
        let artifact = Answer::of(upload.send().await.unwrap()).await.good()["artifact_id"].as_str().unwrap().to_owned();
        // Made by the key of the workspace, so it is one of the workspace.
        let made =
            host.post(&key, "/api/v1/keys", &json!({ "name": format!("of-{name}"), "scopes": ["runs:read"] })).await.good();
        assert_eq!(made["workspace"], name);
        let key_id = made["key_id"].as_str().unwrap().to_owned();
        let executor = host.post(&key, "/api/v1/executors", &json!({ "name": format!("of-{name}") })).await.good();
        let executor = executor["executor_id"].as_str().unwrap().to_owned();
        let thread = format!("thread-of-{name}");
        let asked = json!({ "id": "m-1", "role": "user", "content": format!("ask form - what_only_{name}_knows") });
        let input = json!({ "threadId": thread, "runId": thread, "messages": [asked] });
        let stream = host.post(&key, "/agents/asks/run", &input).await;
        assert!(stream.text.contains("RUN_FINISHED"), "{stream:#?}");
        Self { name, key, event, run, action, artifact, executor, key_id, thread }
    }

    fn id(&self, names: Names) -> &str {
        match names {
            Names::Nothing | Names::Host => "",
            Names::Event => &self.event,
            Names::Run => &self.run,
            Names::Action => &self.action,
            Names::Artifact => &self.artifact,
            Names::Executor => &self.executor,
            Names::Key => &self.key_id,
            Names::Thread => &self.thread,
        }
    }

    fn ids(&self) -> [&str; 8] {
        [&self.event, &self.run, &self.action, &self.artifact, &self.executor, &self.key_id, &self.thread, self.name]
    }

    /// The thread, as the workspace sees it.
    async fn opened(&self, host: &Guarded) -> Value {
        host.get(&self.key, &format!("/agents/asks/threads/{}", self.thread)).await.good()
    }
}

/// A well-formed id of no object.
fn nobodys(names: Names) -> &'static str {
    match names {
        Names::Nothing | Names::Host => "",
        Names::Event | Names::Run | Names::Artifact | Names::Executor => "01890a5d-ac96-774b-bcce-b302099a8057",
        Names::Action => "01890a5d-ac96-774b-bcce-b302099a8057.3",
        Names::Key => "0000000000000000",
        Names::Thread => "thread-of-nobody",
    }
}

/// The code of a problem on this path: there are names of their own under `/api/v1/agent`.
fn code_on(path: &str, code: &'static str) -> &'static str {
    if !path.starts_with("/api/v1/agent/") {
        return code;
    }
    match code {
        "unauthenticated" => "AUTH_UNAUTHORIZED",
        "forbidden" => "AGENT_FORBIDDEN",
        "not_found" if path.contains("/attachments/") => "AGENT_ATTACHMENT_NOT_FOUND",
        "not_found" => "AGENT_SESSION_NOT_FOUND",
        other => other,
    }
}

/// Checks the answer about an object of another workspace, or a missing one.
#[track_caller]
fn is_not_there(route: &Route, answer: &Answer) {
    let (method, path, names, scope, ..) = route;
    match (*method, *scope, *names) {
        ("HEAD", LEASE, _) => assert_eq!(answer.status, 401),
        (_, LEASE, _) => answer.is(401, "unauthenticated"),
        ("HEAD", ..) => assert_eq!(answer.status, 404),
        (_, "", Names::Artifact) => answer.is(403, "AGENT_ATTACHMENT_SIGNATURE_INVALID"),
        // The same id names another thread here, which is empty or deleted.
        ("DELETE", _, Names::Thread) => assert_eq!(answer.status, 204, "{path}: {answer:#?}"),
        ("GET", _, Names::Thread) if path.ends_with("{thread}") => {
            assert_eq!((answer.status, &answer.json["messages"]), (200, &json!([])), "{path}: {answer:#?}");
            assert_eq!(answer.json["pendingInterrupts"], json!([]), "{path}: {answer:#?}");
        }
        _ => answer.is(404, code_on(path, "not_found")),
    }
}

/// Sends what the route takes, and gives the answer, a stream without what it says.
async fn send(host: &Guarded, key: Option<&str>, route: &Route, id: &str) -> Answer {
    let (method, path, _, _, body, _) = route;
    // An action has the id of its run in it, and the run is a thread of its own.
    let thread = if path.ends_with("/turns") { "started" } else { id.split('.').next().unwrap_or_default() };
    let path = path.replace("/threads/{id}", &format!("/threads/{thread}"));
    let path = path.replace("{task}", id).replace("{turn}", id).replace("{action}", id);
    let path = path.replace("{id}", id).replace("{run_id}", id).replace("{function}", "state.get");
    let path = path.replace("{artifact_id}", nobodys(Names::Artifact)).replace("{webhook}", "nobody").replace("{name}", "nobody");
    let path = path.replace("{agent}", "asks").replace("{thread}", id).replace("{run}", id).replace("{file}", "page.js");
    let query = match path.as_str() {
        path if path.starts_with("/api/v1/agent/runs/{threadId}/") => format!("?runId={id}"),
        path if path.ends_with("/signed-url") => format!("?bucket=artifacts&path={id}"),
        path if path.starts_with("/api/v1/agent/attachments/") => "?expires=4102444800000&signature=of-nobody".to_owned(),
        _ => String::new(),
    };
    let path = format!("{}{query}", path.replace("{threadId}", id));
    let mut request = host.http.request(method.parse().unwrap(), host.url(&path)).timeout(PATIENCE);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if !body.is_empty() {
        let kind = if *body == IMAGE { "multipart/form-data; boundary=edge" } else { "application/json" };
        request = request.header("content-type", kind).body(*body);
    }
    let answer = request.send().await.unwrap();
    if answer.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream") {
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        return Answer { status, headers, text: String::new(), json: Value::Null };
    }
    Answer::of(answer).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_of_another_workspace_are_not_found() {
    let host = Guarded::small(&["asks"], "", AGENT);
    let (ours, theirs) = (Workspace::new(&host, "amber-ws").await, Workspace::new(&host, "birch-ws").await);
    // Of no workspace at all: a key of one sees that as little.
    let (event, run) = host.send(&host.root, "say hello").await;
    for path in [format!("/api/v1/events/{event}"), format!("/api/v1/runs/{run}")] {
        host.get(&ours.key, &path).await.is(404, "not_found");
    }

    for (own, foreign) in [(&ours, &theirs), (&theirs, &ours)] {
        for route in ROUTES {
            let (method, path, names, ..) = route;
            if *names == Names::Host {
                send(&host, Some(&own.key), route, "").await.is(403, "forbidden");
                continue;
            }
            if *names == Names::Nothing {
                if *method == "GET" {
                    let shown = send(&host, Some(&own.key), route, "").await;
                    assert!(shown.status == 200 || route.5.contains(&shown.status), "{path}");
                    for id in foreign.ids() {
                        assert!(!shown.text.contains(id), "{path} shows {id} of {} to {}", foreign.name, own.name);
                    }
                }
                continue;
            }
            let refused = send(&host, Some(&own.key), route, foreign.id(*names)).await;
            is_not_there(route, &refused);
            // The answer equals that for an unknown id.
            let never = send(&host, Some(&own.key), route, nobodys(*names)).await;
            let of = |answer: &Answer, id: &str| answer.text.replace(id, "ID");
            assert_eq!(of(&refused, foreign.id(*names)), of(&never, nobodys(*names)), "{method} {path}");
        }
        // Following is a form of reading.
        let stream = host.http.get(host.url(&format!("/api/v1/runs/{}/events", foreign.run))).bearer_auth(&own.key);
        assert_eq!(stream.header("accept", "text/event-stream").send().await.unwrap().status(), 404);
        for filter in [format!("workspace_id={}", foreign.name), format!("event_id={}", foreign.event)] {
            let page = host.get(&own.key, &format!("/api/v1/runs?{filter}")).await.good();
            assert_eq!(page["items"], json!([]), "{filter}");
        }
        // Nor does a client that looks on, or asks for what was said, see the thread of that name elsewhere.
        let looks = json!({ "threadId": foreign.thread, "runId": "looked-on", "messages": [] });
        let seen = host.post(&own.key, "/agents/asks/connect", &looks).await;
        assert!(seen.text.contains("RUN_FINISHED") && !seen.text.contains("knows"), "{seen:#?}");
        let history = format!("/api/v1/agent/history?threadId={}", foreign.thread);
        host.get(&own.key, &history).await.is(404, "AGENT_SESSION_NOT_FOUND");
        // A key of another workspace cannot answer its question.
        let asked = foreign.opened(&host).await["pendingInterrupts"][0]["id"].clone();
        let resume = json!([{ "interruptId": asked, "status": "cancelled" }]);
        let answers = json!({ "threadId": foreign.thread, "runId": "answered", "messages": [], "resume": resume });
        host.post(&own.key, "/agents/asks/run", &answers).await.is(422, "unknown_interrupt");
        host.post(&own.key, "/api/v1/agent/runs", &answers).await.is(422, "AGENT_INTERRUPT_UNKNOWN");
    }
    // The objects of the other workspace are unchanged.
    for workspace in [&ours, &theirs] {
        host.until(&workspace.run, "waiting").await;
        let thread = workspace.opened(&host).await;
        assert!(thread.to_string().contains(&format!("what_only_{}_knows", workspace.name)), "{thread:#}");
        assert_eq!(thread["pendingInterrupts"].as_array().unwrap().len(), 1, "{thread:#}");
        let keys = host.get(&workspace.key, "/api/v1/keys").await.good();
        let key = keys["items"].as_array().unwrap().iter().find(|key| key["key_id"] == *workspace.key_id).unwrap();
        assert!(key.get("revoked_at").is_none(), "{key}");
    }
    // Every key has all rights in its own workspace: the refusals were about ownership.
    for workspace in [&ours, &theirs] {
        for route in ROUTES.iter().filter(|route| route.2 != Names::Host) {
            let answer = send(&host, Some(&workspace.key), route, workspace.id(route.2)).await;
            let good = (200..300).contains(&answer.status) || route.5.contains(&answer.status);
            assert!(good || route.3 == LEASE && answer.status == 401, "{route:?}: {answer:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_belong_to_the_workspace_of_their_key() {
    let host = Guarded::small(&["asks"], "", AGENT);
    let (ours, theirs) = (Workspace::new(&host, "amber-ws").await, Workspace::new(&host, "birch-ws").await);
    let shown = host.get(&ours.key, &format!("/api/v1/runs/{}", ours.run)).await.good();
    assert_eq!(shown["workspace_id"], "amber-ws");

    let event = |workspace: Option<&str>, attachments: Value| {
        json!({
            "event_type": "nobody.listens",
            "conversation": { "conversation_id": "c1", "workspace_id": workspace },
            "input": { "text": "x", "attachments": attachments },
        })
    };
    host.post(&ours.key, "/api/v1/events", &event(Some("amber-ws"), json!([]))).await.good();
    let refused = host.post(&ours.key, "/api/v1/events", &event(Some("birch-ws"), json!([]))).await;
    refused.is(403, "forbidden");
    assert_eq!(refused.json["field"], "conversation.workspace_id");
    let upload = host.http.post(host.url("/api/v1/artifacts?workspace_id=birch-ws")).bearer_auth(&ours.key).body("x");
    Answer::of(upload.send().await.unwrap()).await.is(403, "forbidden");
    let elsewhere = json!({ "name": "a", "scopes": ["runs:read"], "workspace": "birch-ws" });
    host.post(&ours.key, "/api/v1/keys", &elsewhere).await.is(403, "forbidden");

    // Artifacts of an event must belong to its workspace.
    let named = |artifact: &str| json!([{ "artifact_id": artifact, "media_type": "text/plain" }]);
    host.post(&ours.key, "/api/v1/events", &event(None, named(&ours.artifact))).await.good();
    let foreign = host.post(&ours.key, "/api/v1/events", &event(None, named(&theirs.artifact))).await;
    let never = host.post(&ours.key, "/api/v1/events", &event(None, named(nobodys(Names::Artifact)))).await;
    foreign.is(400, "invalid_argument");
    assert_eq!(foreign.text.replace(&theirs.artifact, "ID"), never.text.replace(nobodys(Names::Artifact), "ID"));

    // The same idempotency key is another one in another workspace.
    let once = async |key: &str, text: &str| {
        let body = json!({ "event_type": "nobody.listens", "input": { "text": text } });
        let request = host.http.post(host.url("/api/v1/events")).bearer_auth(key).header("idempotency-key", "k1").json(&body);
        Answer::of(request.send().await.unwrap()).await
    };
    let first = once(&ours.key, "a").await;
    let again = once(&ours.key, "a").await;
    assert_eq!(
        (&again.json["event_id"], &again.headers["idempotency-replayed"]),
        (&first.json["event_id"], &"true".parse().unwrap())
    );
    for other in [&theirs.key, &host.root] {
        let answer = once(other, "a").await;
        assert_eq!(answer.status, 202);
        assert!(answer.json["event_id"] != first.json["event_id"] && !answer.headers.contains_key("idempotency-replayed"));
    }
    once(&ours.key, "b").await.is(422, "idempotency_conflict");

    // Open actions come in pages of what is one's own.
    for _ in 0..3 {
        for key in [&theirs.key, &ours.key] {
            let (_, run) = host.send(key, "ask form - name").await;
            host.until(&run, "waiting").await;
        }
    }
    let (mut seen, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = host.get(&ours.key, &format!("/api/v1/actions?limit=1{cursor}")).await.good();
        for action in page["items"].as_array().unwrap() {
            let run = host.get(&host.root, &format!("/api/v1/runs/{}", action["run_id"].as_str().unwrap())).await.good();
            assert_eq!(run["workspace_id"], "amber-ws");
            assert!(seen.insert(action["action_id"].as_str().unwrap().to_owned()));
        }
        if page["has_more"] == false {
            break;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
    assert_eq!(seen.len(), 5);
    let all = host.get(&host.root, "/api/v1/actions?limit=100").await.good();
    assert_eq!(all["items"].as_array().unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_does_what_its_scopes_say_and_nothing_else() {
    let host = Guarded::small(&["asks"], "", AGENT);
    let mut keys = Vec::new();
    for scope in SCOPES {
        keys.push((scope, host.key(&[scope], None).await));
    }
    for route in ROUTES {
        let (method, path, names, needs, _, or) = route;
        let id = nobodys(*names);
        let nobody = send(&host, None, route, id).await;
        let guessed = send(&host, Some("ahk_0000000000000000_nonsense"), route, id).await;
        if needs.is_empty() {
            assert!([nobody.status, guessed.status].iter().all(|status| *status == 200 || or.contains(status)), "{path}");
            continue;
        }
        for answer in [nobody, guessed] {
            let code = code_on(path, "unauthenticated");
            if *method == "HEAD" { assert_eq!(answer.status, 401) } else { answer.is(401, code) }
        }
        for (scope, key) in &keys {
            let answer = send(&host, Some(key), route, id).await;
            if *needs == LEASE {
                assert_eq!(answer.status, 401, "{method} {path} with {scope}");
            } else if scope == needs || *scope == "admin" {
                let expected = match names {
                    Names::Nothing | Names::Host => answer.status < 300,
                    Names::Thread => answer.status < 300 || answer.status == 404,
                    _ => answer.status == 404,
                };
                assert!(expected || or.contains(&answer.status), "{method} {path} with {scope}: {answer:#?}");
            } else if *method == "HEAD" {
                assert_eq!(answer.status, 403);
            } else {
                answer.is(403, code_on(path, "forbidden"));
                let detail = answer.json["detail"].as_str().unwrap();
                assert!(detail.contains(needs) || or.contains(&403), "{method} {path}: {detail}");
            }
        }
    }
    // An unknown caller does not learn whether a path exists.
    host.ask(None, Method::GET, "/api/v1/nothing", None).await.is(401, "unauthenticated");
    host.ask(None, Method::GET, "/nothing", None).await.is(401, "unauthenticated");
    host.ask(None, Method::GET, "/api/v1/agent/nothing", None).await.is(401, "unauthenticated");
    host.get(&host.root, "/api/v1/nothing").await.is(404, "not_found");
    host.ask(Some(&host.root), Method::PUT, "/api/v1/runs", None).await.is(405, "method_not_allowed");
}

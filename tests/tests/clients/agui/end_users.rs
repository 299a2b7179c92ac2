//! End users: whoever a key asks for has threads of its own, and reaches nothing else.

use agent_host_tests::{Process, process};
use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::agui::{
    scenarios::PIXEL,
    support::{Host, View, Wire, config, input, plain, problem, sound, upload, with},
};

/// One who asks: a key, and an end user where it names one.
#[derive(Clone, Copy)]
struct Asker<'a>(&'a str, Option<&'a str>);

async fn send(host: &Host, Asker(key, user): Asker<'_>, method: Method, path: &str, body: Option<&Value>) -> Response {
    let mut request = host.http.request(method, host.url(path)).bearer_auth(key);
    if let Some(user) = user {
        request = request.header("x-end-user", user);
    }
    if let Some(body) = body {
        request = request.header("accept", "text/event-stream").json(body);
    }
    request.send().await.unwrap()
}

async fn says(host: &Host, asker: Asker<'_>, thread: &str, run: &str, script: Value) -> View {
    let answer = send(host, asker, Method::POST, "/agents/stage/run", Some(&input(thread, run, &script))).await;
    let events = Wire::open(answer).await.rest().await;
    sound(&events, thread, run);
    View::of(&events)
}

async fn json_of(host: &Host, asker: Asker<'_>, path: &str) -> Value {
    let answer = send(host, asker, Method::GET, path, None).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.json().await.unwrap()
}

/// A host with a key of a workspace that may ask for end users, and one that may not.
async fn host() -> (Host, String, String) {
    let dir = Process::lay_out(&["stage"]);
    let key = |more: &[&str]| {
        let scopes = ["events:write", "runs:read", "runs:control", "actions:respond"];
        let scopes = scopes.iter().chain(more).flat_map(|scope| ["--scope", scope]);
        let mut made = process::command(dir.path());
        let made = made.args(["keys", "create", "--workspace", "w", "--json"]).args(scopes).output().unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
        plain(&made["token"])
    };
    let (may, may_not) = (key(&["on_behalf_of"]), key(&[]));
    let config = config("[agui.api]\nagent = \"stage\"\nprofile = \"plain\"", "");
    (Host::lives_in(dir, "", &config).await, may, may_not)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_users_of_a_key_have_threads_of_their_own() {
    let (host, may, may_not) = host().await;
    let [ada, bob, operator] = [Asker(&may, Some("ada")), Asker(&may, Some("bob")), Asker(&may, None)];
    let secret = json!([{ "do": "say", "text": "A secret of Ada." }, { "do": "artifact", "text": "hers", "shown": true }, { "do": "input" }]);
    let view = says(&host, ada, "same", "r1", secret).await;
    assert!(
        view.texts("assistant").iter().any(|text| text.contains("\"ada\"")),
        "the runner sees who it is: {:?}",
        view.texts("assistant")
    );
    // Under the same ids another user has another thread, and sees nothing of the first.
    let view = says(&host, bob, "same", "r1", json!([{ "do": "history" }, { "do": "say", "text": "Bob's." }])).await;
    assert!(!format!("{:?}", view.texts("assistant")).contains("secret"));
    for path in
        ["/agents/stage/threads/same", "/api/v1/agent/history?threadId=same", "/api/v1/agent/history", "/agents/stage/threads"]
    {
        let (hers, his) = (json_of(&host, ada, path).await.to_string(), json_of(&host, bob, path).await.to_string());
        assert!(!his.contains("Ada"), "{path}: {his}");
        assert!(hers.contains("same") && his.contains("same"), "{path}");
    }
    assert!(json_of(&host, ada, "/api/v1/agent/history").await.to_string().contains("A secret of Ada."));
    // The operator's own thread of that name is a third one, and the operator sees the runs of all.
    assert_eq!(json_of(&host, operator, "/agents/stage/threads/same").await["messages"], json!([]));
    let runs = json_of(&host, operator, "/api/v1/runs").await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 2, "{runs:#}");
    // Runs, cancelling and deleting: those of another are not there.
    let answer = send(&host, bob, Method::POST, "/agents/stage/threads/hers/runs/r1/cancel", None).await;
    assert_eq!(problem(answer).await.0, 404);
    assert_eq!(send(&host, bob, Method::DELETE, "/agents/stage/threads/same", None).await.status(), 204);
    assert!(json_of(&host, ada, "/agents/stage/threads/same").await.to_string().contains("A secret of Ada."));
    // Artifacts: those of own threads.
    let artifact = runs_artifact(&host, operator).await;
    let path = format!("/api/v1/artifacts/{artifact}");
    assert_eq!(send(&host, ada, Method::GET, &path, None).await.status(), 200);
    assert_eq!(problem(send(&host, bob, Method::GET, &path, None).await).await.0, 404);
    // Nothing else is for end users: no route that lists or shows what others said.
    for (method, path) in [
        (Method::GET, "/api/v1/runs"),
        (Method::GET, "/api/v1/events"),
        (Method::GET, "/api/v1/actions"),
        (Method::GET, "/api/v1/runners"),
        (Method::POST, "/api/v1/artifacts"),
        (Method::GET, "/api/v1/nothing"),
    ] {
        let (status, response) = problem(send(&host, ada, method, path, None).await).await;
        assert_eq!((status, &response["code"]), (403, &json!("forbidden")), "{path}: {response}");
    }
    // A key without the scope names nobody, and ids are checked.
    let refused = send(&host, Asker(&may_not, Some("ada")), Method::GET, "/agents", None).await;
    let (status, response) = problem(refused).await;
    assert_eq!((status, response["detail"].as_str().unwrap().contains("on_behalf_of")), (403, true), "{response}");
    for wrong in ["", "x".repeat(129).as_str()] {
        assert_eq!(problem(send(&host, Asker(&may, Some(wrong)), Method::GET, "/agents", None).await).await.0, 400, "{wrong}");
    }
}

/// The id of the artifact that the first run has made.
async fn runs_artifact(host: &Host, operator: Asker<'_>) -> String {
    let runs = json_of(host, operator, "/api/v1/runs").await;
    for run in runs["items"].as_array().unwrap() {
        let events = json_of(host, operator, &format!("/api/v1/runs/{}/events?limit=100", plain(&run["run_id"]))).await;
        let made = events["items"].as_array().unwrap().iter().find(|event| event["type"] == "artifact.created");
        if let Some(made) = made {
            return plain(&made["data"]["artifact"]["artifact_id"]);
        }
    }
    panic!("no run has made an artifact: {runs:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_an_end_user_is_named_and_signed_by_that_user_alone() {
    let (host, may, _) = host().await;
    let [ada, bob] = [Asker(&may, Some("ada")), Asker(&may, Some("bob"))];
    let request = host.http.post(host.url("/api/v1/agent/attachments")).bearer_auth(&may).header("x-end-user", "ada");
    let kept = upload(request, &BASE64_STANDARD.decode(PIXEL).unwrap()).await;
    let (path, url) = (plain(&kept["path"]), plain(&kept["url"]));
    let sign = format!("/api/v1/agent/attachments/signed-url?bucket=artifacts&path={path}");
    // The address is the same in its window, and known content is not sent again.
    assert_eq!(plain(&json_of(&host, ada, &sign).await["url"]).split("expires").count(), 2);
    assert_eq!(problem(send(&host, bob, Method::GET, &sign, None).await).await.0, 404);
    let first = host.http.get(host.url(&url)).send().await.unwrap();
    let etag = first.headers()["etag"].clone();
    let again = host.http.get(host.url(&url)).header("if-none-match", etag).send().await.unwrap();
    assert_eq!((first.status().as_u16(), again.status().as_u16()), (200, 304));
    assert_eq!(again.headers()["cross-origin-resource-policy"], "cross-origin");
    // By its bare id, nobody names it; by the address, who was given it.
    let id = path.split('.').next().unwrap().to_owned();
    let named = |value: &str, kind: &str| {
        let image = json!([{ "type": "image", "source": { "type": kind, "value": value } }]);
        with(
            input(&format!("t-{kind}"), "r", &json!([])),
            json!({ "messages": [{ "id": "u", "role": "user", "content": image }] }),
        )
    };
    for (user, value, kind, status) in [(bob, &id, "file", 422), (ada, &id, "file", 422), (ada, &url, "url", 200)] {
        let answer = send(&host, user, Method::POST, "/agents/stage/run", Some(&named(value, kind))).await;
        assert_eq!(answer.status(), status, "{kind}");
    }
    // The method that the path does not take is refused in the form of the profile.
    let (status, response) = problem(send(&host, ada, Method::PUT, "/api/v1/agent/history", None).await).await;
    assert_eq!(
        (status, &response["code"], &response["instance"]),
        (405, &json!("AGENT_METHOD_NOT_ALLOWED"), &json!("/api/v1/agent/history"))
    );
}

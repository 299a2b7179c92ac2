//! Users of several providers and of keys in one workspace: none has or sees what belongs to another.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Who, World,
    provider::{KeyServer, Pair, claims, entry},
};
use crate::agui::{
    scenarios::PIXEL,
    support::{plain, problem, upload},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_name_at_two_providers_and_a_key_is_three_users() {
    let (rsa, ec) = (Pair::rsa("login-1"), Pair::ec("other-1"));
    let (login, other) = (KeyServer::start(&[&rsa]).await, KeyServer::start(&[&ec]).await);
    let world = World::start(&[entry("login", &login.url()), entry("other", &other.url())].concat()).await;
    let users = [
        ("idp:login:ada", Who::token(&rsa.by_library(&claims("login", "ada")))),
        ("idp:other:ada", Who::token(&ec.by_library(&claims("other", "ada")))),
        ("ada", Who::named(&world.key, "ada")),
        ("idp:login:bob", Who::token(&rsa.token(&claims("login", "bob")))),
    ];
    let only = |text: &str, own: &str| {
        for (name, _) in &users {
            assert_eq!(text.contains(&format!("A secret of {name}.")), *name == own, "{own} and {name}: {text}");
        }
    };
    for (name, who) in &users {
        world.says(who, "same", "r1", json!([{ "do": "say", "text": format!("A secret of {name}.") }])).await;
    }
    for (name, who) in &users {
        let view = world.says(who, "same", "r2", json!([{ "do": "input" }, { "do": "history" }])).await;
        let texts = view.texts("assistant").join("\n");
        assert!(texts.contains(&format!("\"{name}\"")), "the runner sees who it is: {texts}");
        only(&texts, name);
        for path in ["/agents/stage/threads/same", "/api/v1/agent/history?threadId=same", "/api/v1/agent/history"] {
            only(&world.json(who, path).await.to_string(), name);
        }
        let threads = world.json(who, "/agents/stage/threads").await;
        assert_eq!(threads["threads"].as_array().map(Vec::len), Some(1), "{threads}");
    }
    // Deleting takes one's own.
    let [(_, ada), .., (_, bob)] = &users;
    assert_eq!(world.send(bob, Method::DELETE, "/agents/stage/threads/same", None).await.status(), 204);
    assert!(world.json(ada, "/agents/stage/threads/same").await.to_string().contains("A secret of idp:login:ada."));
    assert_eq!(world.json(bob, "/agents/stage/threads/same").await["messages"], json!([]));
    records_name_the_user(&world).await;
}

/// The audit says who asked, as it does for keys; the operator sees the runs of all, and nobody a token.
async fn records_name_the_user(world: &World) {
    let operator = Who::token(&world.operator);
    let mut audit = Value::Null;
    // The record of a request may be written a moment after its answer.
    for _ in 0..50 {
        audit = world.json(&operator, "/api/v1/audit?limit=100").await;
        if audit["items"].as_array().unwrap().iter().any(|row| row["action"] == "agents.forget") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let forgot = audit["items"].as_array().unwrap().iter().find(|row| row["action"] == "agents.forget");
    let forgot = forgot.unwrap_or_else(|| panic!("{audit:#}"));
    let expected = json!({ "kind": "identity_provider", "id": "login", "name": "bob", "end_user": "idp:login:bob" });
    assert_eq!(forgot["details"]["principal"], expected);
    let runs = world.json(&operator, "/api/v1/runs").await;
    assert!(runs["items"].as_array().unwrap().len() >= 6, "{runs:#}");
    for run in runs["items"].as_array().unwrap() {
        let events = world.json(&operator, &format!("/api/v1/runs/{}/events?limit=100", plain(&run["run_id"]))).await.to_string();
        assert!(!events.contains("eyJ"), "a token is in the record: {events}");
    }
    assert!(!audit.to_string().contains("eyJ"), "a token is in the audit: {audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_has_the_scopes_of_its_provider_and_names_its_own_user() {
    let ec = Pair::ec("k");
    let server = KeyServer::start(&[&ec]).await;
    let reader = entry("reader", &server.url())
        .replace("\"events:write\", \"runs:read\", \"runs:control\", \"actions:respond\"", "\"runs:read\"");
    let named = entry("named", &format!("{}\nuser_claim = \"login\"", server.url()));
    let world = World::start(&[entry("login", &server.url()), reader, named].concat()).await;
    let token = ec.token(&claims("login", "ada"));
    // Neither another user nor one of another provider, by whatever credential.
    for (who, status, says) in [
        (Who { token: token.clone(), header: Some("bob") }, 403, "on_behalf_of"),
        (Who { token: token.clone(), header: Some("ada") }, 403, "on_behalf_of"),
        (Who::named(&world.key, "idp:login:ada"), 400, "idp:"),
        (Who::named(&world.operator, "idp:login:ada"), 400, "idp:"),
    ] {
        let (found, body) = problem(world.send(&who, Method::GET, "/agents", None).await).await;
        assert_eq!((found, plain(&body["detail"]).contains(says)), (status, true), "{body}");
    }
    // Only the routes of agents.
    for (method, path) in [
        (Method::GET, "/api/v1/runs"),
        (Method::GET, "/api/v1/keys"),
        (Method::GET, "/api/v1/audit"),
        (Method::POST, "/api/v1/events"),
        (Method::POST, "/api/v1/config/reload"),
        (Method::POST, "/api/v1/artifacts"),
    ] {
        let (status, body) = problem(world.send(&Who::token(&token), method, path, None).await).await;
        assert_eq!((status, &body["code"]), (403, &json!("forbidden")), "{path}: {body}");
    }
    let reader = Who::token(&ec.token(&claims("reader", "ada")));
    assert_eq!(world.send(&reader, Method::GET, "/agents", None).await.status(), 200);
    let run = crate::agui::support::input("t", "r", &json!([]));
    let (status, body) = problem(world.send(&reader, Method::POST, "/agents/stage/run", Some(&run)).await).await;
    assert_eq!((status, plain(&body["detail"]).contains("events:write")), (403, true), "{body}");
    // The claim that names the user.
    let named = |more: Value| ec.token(&super::provider::with(claims("named", "ignored"), more));
    let who = Who::token(&named(json!({ "login": "grace" })));
    let view = world.says(&who, "t", "r", json!([{ "do": "input" }])).await;
    assert!(view.texts("assistant").join("").contains("\"idp:named:grace\""));
    assert_eq!(world.status(&named(json!({}))).await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_belongs_to_the_user_of_its_token() {
    let ec = Pair::ec("k");
    let server = KeyServer::start(&[&ec]).await;
    let world = World::start(&[entry("login", &server.url()), entry("other", &server.url())].concat()).await;
    let [ada, bob, namesake] =
        [("login", "ada"), ("login", "bob"), ("other", "ada")].map(|(provider, user)| ec.token(&claims(provider, user)));
    let request = world.host.http.post(world.host.url("/api/v1/agent/attachments")).bearer_auth(&ada);
    let kept = upload(request, &BASE64_STANDARD.decode(PIXEL).unwrap()).await;
    let sign = format!("/api/v1/agent/attachments/signed-url?bucket=artifacts&path={}", plain(&kept["path"]));
    world.json(&Who::token(&ada), &sign).await;
    for stranger in [Who::token(&bob), Who::token(&namesake), Who::named(&world.key, "ada")] {
        assert_eq!(problem(world.send(&stranger, Method::GET, &sign, None).await).await.0, 404);
    }
}

//! Tokens of identity providers, with real keys and a real server of keys: whose request is it, and when is it refused.

mod keys;
mod provider;
mod refusals;
mod streams;
mod users;

use agent_host_tests::{Process, process};
use reqwest::{Method, Response, header::HeaderMap};
use serde_json::Value;

use crate::agui::support::{Host, View, Wire, config, input, plain, problem, sound};

/// Further settings of the agents.
const API: &str = "[agui.api]\nagent = \"stage\"\nprofile = \"plain\"";

/// A host with these providers, a key of the workspace that may ask for end users, and a key of an operator.
struct World {
    host: Host,
    key: String,
    operator: String,
}

impl World {
    async fn start(providers: &str) -> Self {
        let dir = Process::lay_out(&["stage"]);
        let make = |arguments: &[&str]| {
            let made = process::command(dir.path()).args(["keys", "create", "--json"]).args(arguments).output().unwrap();
            let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
            plain(&made["token"])
        };
        let scopes = ["events:write", "runs:read", "runs:control", "actions:respond", "on_behalf_of"];
        let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
        let key = make(&["--workspace", "w"].into_iter().chain(scopes).collect::<Vec<_>>());
        let operator = make(&["--scope", "admin"]);
        let host = Host::lives_in(dir, "", &format!("{}{providers}", config(API, ""))).await;
        Self { host, key, operator }
    }

    /// Takes other providers.
    async fn reload(&self, providers: &str) {
        let file = format!("[server]\nlisten = \"127.0.0.1:0\"\n\n{}{providers}", config(API, ""));
        std::fs::write(self.host.process().dir.path().join("agent-host.toml"), file).unwrap();
        let answer =
            self.host.http.post(self.host.url("/api/v1/config/reload")).bearer_auth(&self.operator).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    }

    async fn send(&self, who: &Who, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.host.http.request(method, self.host.url(path)).bearer_auth(&who.token);
        if let Some(user) = who.header {
            request = request.header("x-end-user", user);
        }
        if let Some(body) = body {
            request = request.header("accept", "text/event-stream").json(body);
        }
        request.send().await.unwrap()
    }

    /// The status of the simplest request of an end user.
    async fn status(&self, token: &str) -> u16 {
        self.send(&Who::token(token), Method::GET, "/agents", None).await.status().as_u16()
    }

    /// The refusal of the simplest request of an end user.
    async fn refusal(&self, token: &str) -> (u16, HeaderMap, Value) {
        let answer = self.send(&Who::token(token), Method::GET, "/agents", None).await;
        let headers = answer.headers().clone();
        let (status, body) = problem(answer).await;
        (status, headers, body)
    }

    /// A refusal that leaves open whether the token is good.
    async fn is_unavailable(&self, token: &str, provider: &str) {
        let (status, headers, body) = self.refusal(token).await;
        assert_eq!((status, &body["code"]), (503, &"unavailable".into()), "{body}");
        let seconds: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
        assert!(plain(&body["detail"]).contains(&format!("`{provider}`")), "{body}");
        assert!(!headers.contains_key("www-authenticate"), "the token is not to be thrown away");
    }

    async fn json(&self, who: &Who, path: &str) -> Value {
        let answer = self.send(who, Method::GET, path, None).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    async fn says(&self, who: &Who, thread: &str, run: &str, script: Value) -> View {
        let answer = self.send(who, Method::POST, "/agents/stage/run", Some(&input(thread, run, &script))).await;
        let events = Wire::open(answer).await.rest().await;
        sound(&events, thread, run);
        View::of(&events)
    }
}

/// A sender: a key or a token, and the end user that its header names.
struct Who {
    token: String,
    header: Option<&'static str>,
}

impl Who {
    fn token(token: &str) -> Self {
        Self { token: token.to_owned(), header: None }
    }

    fn named(key: &str, user: &'static str) -> Self {
        Self { token: key.to_owned(), header: Some(user) }
    }
}

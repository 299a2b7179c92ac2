//! A secret goes where it may, and is nowhere else: not with the guest, not in what is kept, not in the log.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use agent_host_tests::{OutsideServer, World, component, process, world::PATIENCE};
use reqwest::Client;
use serde_json::{Value, json};

use crate::outside::{is_in_no_file, is_not_in, is_refused, take};

/// In every canary, and in nothing else.
const MARK: &str = "k4n4rY";
const FILE: &str = "tok-k4n4rY-from-a-file-5f1d";
const ENV: &str = "tok-k4n4rY-from-the-environment-77ab";

/// Secrets for `outside` and for elsewhere, and a binding that has some of them.
fn config(runner: &str, outside: &OutsideServer, hosts: &[&str], granted: &[&str]) -> String {
    format!(
        r#"
[egress]
allow_addresses = ["127.0.0.1", "::1"]

[[http_secrets]]
name = "here"
value = {{ file = "canary" }}
hosts = ["{authority}"]

[[http_secrets]]
name = "too"
value = {{ env = "OUTSIDE_CANARY" }}
hosts = ["127.0.0.1:*"]

[[http_secrets]]
name = "elsewhere"
value = {{ file = "canary" }}
hosts = ["api.example.com", "127.0.0.1:1"]

[[http_secrets]]
name = "lost"
value = {{ file = "there-is-no-such-file" }}
hosts = ["127.0.0.1:*"]

[[bindings]]
id = "outside"
runner = "plugin:test/{runner}"
resources = {{ http_hosts = {}, http_secrets = {} }}
"#,
        json!(hosts),
        json!(granted),
        authority = outside.authority,
    )
}

async fn world(runner: &str, outside: &OutsideServer, hosts: &[&str], granted: &[&str]) -> World {
    let component = runner.split('/').next().unwrap().replace('-', "_");
    World::from_text(&[&component], &config(runner, outside, hosts, granted), |dir| fs::write(dir.join("canary"), FILE).unwrap())
        .await
}

/// Ends the host, and looks at all that it has kept.
async fn is_clean(world: World) {
    let data = world.dir.path().join("data");
    world.host.shutdown(PATIENCE).await;
    assert!(is_in_no_file(MARK, &data) > 2);
}

#[tokio::test]
async fn a_secret_that_comes_back_is_taken_out_wherever_it_is() {
    let outside = OutsideServer::start().await;
    let world = world("outside/default", &outside, &[&outside.authority], &["here"]).await;
    let with = |path: &str| format!("send GET {} authorization: Bearer {{{{secret:here}}}}", outside.url(path));
    let steps = [
        format!("{}; rest", with("echo")),
        format!("{}; rest", with("split/authorization")),
        format!("{}; read 3; read 3; rest", with("split/authorization/slowly")),
        format!("{}; headers; rest", with("header/authorization")),
        // A request without the secret: the server may remember it from before.
        format!("send GET {} x-remembered: {FILE}; rest", outside.url("split/x-remembered")),
    ];
    // A text of the guest itself is no secret, and is part of its requests, which are not checked here.
    let (ours, theirs) = steps.split_at(4);
    let step_outcomes = take(&world, &ours.join("; ")).await;
    for path in ["echo", "split/authorization", "header/authorization"] {
        assert_eq!(outside.visits(path)[0].header("authorization"), Some(&*format!("Bearer {FILE}")), "the host put it in");
    }
    assert!(!json!(step_outcomes).to_string().contains(MARK), "{step_outcomes:#?}");
    let shown = "Bearer [secret here]";
    let echoed = step_outcomes[1].as_str().unwrap();
    assert!(echoed.contains(&format!("authorization: {shown}")), "{echoed}");
    assert_eq!(step_outcomes[3], shown);
    let slowly: String = step_outcomes[5..8].iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(slowly, shown, "the same, however it is read");
    assert_eq!(step_outcomes[9]["x-said"], shown);
    assert!(step_outcomes[9]["set-cookie"].as_str().unwrap().ends_with(shown), "{}", step_outcomes[9]);
    is_clean(world).await;

    let world = crate::outside::secrets::world("outside/default", &outside, &[&outside.authority], &[]).await;
    let step_outcomes = take(&world, &theirs.join("; ")).await;
    assert!(!step_outcomes[1].as_str().unwrap().contains(MARK), "a secret of this server is known to it: {step_outcomes:?}");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_secret_goes_to_its_hosts_and_with_whom_it_was_granted() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let by_name = other.url("echo").replace("127.0.0.1", "localhost");
    let hosts = [&*outside.authority, &other.authority, "localhost:*"];
    let world = world("outside/default", &outside, &hosts, &["here", "elsewhere", "lost"]).await;
    let with = |url: &str, secret: &str| format!("send GET {url} x-key: {{{{secret:{secret}}}}}");
    let url = outside.url("echo");
    for (step, code, details_code) in [
        (with(&url, "too"), "unauthorized", "secret_not_granted"),
        (with(&url, "no-such-secret"), "unauthorized", "secret_not_granted"),
        (with(&url, ""), "unauthorized", "secret_not_granted"),
        (with(&url, "here}}{{secret:too"), "unauthorized", "secret_not_granted"),
        (with(&url, "elsewhere"), "unauthorized", "secret_not_for_host"),
        (with(&other.url("echo"), "here"), "unauthorized", "secret_not_for_host"),
        (with(&by_name, "here"), "unauthorized", "secret_not_for_host"),
        (with(&url, "lost"), "runtime_error", "secret_missing"),
        (format!("send GET {url} x-key: {{{{secret:here"), "invalid_argument", "invalid_request"),
    ] {
        let step_outcomes = take(&world, &step).await;
        is_refused(&step_outcomes[0], code, details_code);
    }
    assert!(outside.seen().is_empty() && other.seen().is_empty(), "nothing went out");

    // Secrets are replaced in headers only.
    let step_outcomes =
        take(&world, &format!("send POST {} x-a: 1 | {{{{secret:here}}}}; rest", outside.url("echo?a={{secret:here}}"))).await;
    assert_eq!(step_outcomes[0], 200);
    assert_eq!(outside.seen()[0].body, "{{secret:here}}");
    assert!(!outside.seen()[0].path.contains(MARK));

    // A redirect to another host goes without it.
    let redirect = outside.url(&format!("redirect/307/{}", other.url("echo/redirected")));
    let step_outcomes = take(&world, &format!("{} & authorization: Basic own; rest", with(&redirect, "here"))).await;
    assert_eq!(step_outcomes[0], 200, "{step_outcomes:?}");
    let redirected = &other.visits("echo/redirected")[0];
    assert_eq!((redirected.header("x-key"), redirected.header("authorization")), (None, None), "{redirected:#?}");
    is_clean(world).await;
}

#[tokio::test]
async fn wasi_http_has_secrets_by_the_same_rules() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let world = world("wasi-http/default", &outside, &[&outside.authority, &other.authority], &["here"]).await;
    let with = |url: String, secret: &str| format!("send GET {url} authorization: Bearer {{{{secret:{secret}}}}}");
    let steps = [
        format!("{}; rest", with(outside.url("split/authorization"), "here")),
        with(outside.url("echo"), "too"),
        with(other.url("echo"), "here"),
    ];
    let step_outcomes = take(&world, &steps.join("; ")).await;
    assert_eq!(outside.seen()[0].header("authorization"), Some(&*format!("Bearer {FILE}")));
    assert_eq!(step_outcomes[1], "Bearer [secret here]");
    for refused in &step_outcomes[2..] {
        assert!(refused["error"].as_str().is_some_and(|error| error.contains("HttpRequestDenied")), "{step_outcomes:?}");
    }
    assert_eq!((outside.seen().len(), other.seen().len()), (1, 0));
    is_clean(world).await;
}

/// The real binary with its most verbose log. Dropping the value kills it.
struct Loud(Child);

impl Drop for Loud {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_secrets(dir: &Path) -> Command {
    let mut command = process::command(dir);
    command.env("AGENT_HOST_LOG", "trace").env("OUTSIDE_CANARY", ENV);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_secret_is_in_what_the_host_says_or_keeps() {
    let outside = OutsideServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("plugins")).unwrap();
    fs::copy(component("outside"), at("plugins").join("outside.wasm")).unwrap();
    fs::create_dir(at("keys")).unwrap();
    fs::write(at("canary"), FILE).unwrap();
    let text = config("outside/default", &outside, &[&outside.authority], &["*"]);
    fs::write(at("agent-host.toml"), format!("[server]\nlisten = \"127.0.0.1:0\"\nloopback_without_key = true\n{text}")).unwrap();
    let log = at("log.txt");
    let mut command = with_secrets(dir.path());
    command.args(["serve", "--json"]).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let mut host = Loud(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(host.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let step_outcomes: Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}\n{}", fs::read_to_string(&log).unwrap()));
    let url = step_outcomes["listening"].as_str().unwrap().to_owned();

    let with = |path: &str| format!("{} x-one: {{{{secret:here}}}} & x-two: Bearer {{{{secret:too}}}}", outside.url(path));
    let redirect = format!("redirect/307/{}", outside.url("split/x-one/redirected"));
    let steps = [
        format!("send GET {}; rest", with("echo")),
        format!("send POST {} | body; rest", with("split/x-two")),
        format!("send GET {}; headers; rest", with("header/x-one")),
        format!("send GET {}; rest", with(&redirect)),
        format!("send GET {}; rest", with("broken")),
        format!("send GET {}", with("silent")),
    ];
    let http = Client::new();
    let event = json!({ "event_type": "message.received", "input": { "text": steps.join("; ") } });
    let request = http.post(format!("{url}/api/v1/events")).header("prefer", "wait=50").json(&event);
    let accepted: Value = request.send().await.unwrap().json().await.unwrap();
    let run = accepted["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{accepted:#}")).to_owned();
    for canary in [FILE, ENV] {
        assert!(outside.seen().iter().any(|visit| visit.headers.contains(canary)), "{canary} was not sent");
    }

    for path in
        ["", "/events?limit=100", "/context", "/grant", "/audit?limit=100", "/journal?limit=100", "/recording", "/actions"]
    {
        let answer = http.get(format!("{url}/api/v1/runs/{run}{path}")).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let body = answer.text().await.unwrap();
        is_not_in(MARK, path, body.as_bytes());
        if path.is_empty() {
            assert!(body.contains("\"completed\""), "{body}");
        }
        if path.starts_with("/events") {
            assert!(body.contains("x-one") && body.contains("connection_closed"), "the requests were not made: {body}");
        }
    }
    for path in ["/readyz", "/api/v1/runs", "/api/v1/runners"] {
        let body = http.get(format!("{url}{path}")).send().await.unwrap().text().await.unwrap();
        is_not_in(MARK, path, body.as_bytes());
        assert!(path != "/readyz" || body.contains("lost"), "the secret that is not there is named: {body}");
    }
    let file = at("recording.json");
    for arguments in [
        &["runs", "record", &run, "--out", file.to_str().unwrap()][..],
        &["runs", "record", &run],
        &["runs", "journal", &run],
        &["runs", "show", &run, "--json"],
        &["config", "check", "--json"],
    ] {
        let output = with_secrets(dir.path()).args(arguments).env("AGENT_HOST_SERVER", &url).output().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        // A secret that is not there is something to complain about.
        assert!(output.status.success() || arguments[0] == "config", "{arguments:?}: {}", String::from_utf8_lossy(&shown));
        is_not_in(MARK, &arguments.join(" "), &shown);
    }
    is_not_in(MARK, "the recording", &fs::read(&file).unwrap());
    assert!(fs::read_to_string(&file).unwrap().contains("{{secret:here}}"), "the recording has the placeholder");

    for ended in [false, true] {
        if ended {
            let id = rustix::process::Pid::from_child(&host.0);
            rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
            let began = Instant::now();
            while host.0.try_wait().unwrap().is_none() {
                assert!(began.elapsed() < PATIENCE, "the host does not end");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        assert!(is_in_no_file(MARK, &at("data")) > 2);
    }
    let log = fs::read(&log).unwrap();
    assert!(log.len() > 1000, "the log says all that it can");
    is_not_in(MARK, "the log", &log);
}

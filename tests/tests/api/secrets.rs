//! A secret is where it is sent, and nowhere else: a canary is planted in every place that a secret can come from, every
//! service repeats what it was given, the log says all that it can, and then everything is searched.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use agent_host_tests::{component, process, world::PATIENCE};
use reqwest::Client;
use serde_json::{Value, json};

/// In every canary, and in nothing else.
const MARK: &str = "k4n4rY";

/// The canaries, by where they come from.
const MODEL_FILE: &str = "sk-k4n4rY-model-from-a-file-5f1d";
const MODEL_ENV: &str = "sk-k4n4rY-model-from-the-environment-77ab";
const TOOL_FILE: &str = "tok-k4n4rY-tool-from-a-file-90ee";
const TOOL_ENV: &str = "tok-k4n4rY-tool-from-the-environment-13c0";
const HEADER_FILE: &str = "Bearer hdr-k4n4rY-header-from-a-file-4242";
const HEADER_ENV: &str = "hdr-k4n4rY-header-from-the-environment-8d8d";

/// A server of models and of MCP that repeats the secrets that it is given in all that it says. Keeps the requests.
fn parrot() -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().map(Result::unwrap) {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || drop(repeat(stream, &kept)));
        }
    });
    (url, seen)
}

fn repeat(mut stream: TcpStream, kept: &Mutex<String>) -> std::io::Result<()> {
    let mut request = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        request.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    kept.lock().unwrap().push_str(&request);
    let secrets: Vec<_> = request
        .lines()
        .filter(|line| line.contains(MARK))
        .map(|line| line.split_once(": ").map_or(line, |(_, value)| value).to_owned())
        .collect();
    let secret = secrets.join(" and ");
    let error = |message: &str| json!({ "error": { "message": message, "code": secret, "type": secret } }).to_string();
    let model = serde_json::from_slice::<Value>(&body).unwrap_or_default()["model"].as_str().unwrap_or_default().to_owned();
    let plain = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nx-secret: {secret}\r\nwww-authenticate: Bearer error=\"{secret}\"\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let event = |value: Value| format!("data: {value}\n\n");
    let streamed = |pieces: Vec<String>| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        format!("{head}{}data: [DONE]\n\n", pieces.concat())
    };
    let delta =
        |delta: Value, finish: Value| event(json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] }));
    let answer = match model.as_str() {
        "refuses" => plain("400 Bad Request", &error(&format!("cannot use Authorization: {secret}"))),
        "denies" => plain("401 Unauthorized", &error(&format!("Incorrect API key provided: {secret}"))),
        "fails" => plain("500 Internal Server Error", &format!("<html>{secret}</html>")),
        "breaks" => streamed(vec![event(json!({ "error": { "message": format!("lost with {secret}") } }))]),
        // Piece by piece, and in the parameters of a call.
        "says" => {
            let key = secret.trim_start_matches("Bearer ");
            let mut pieces: Vec<_> = key
                .chars()
                .map(|c| delta(json!({ "content": c.to_string(), "reasoning_content": c.to_string() }), Value::Null))
                .collect();
            let function = json!({ "name": "env__tell", "arguments": json!({ "key": key }).to_string() });
            let calls = json!([{ "index": 0, "id": key, "type": "function", "function": function }]);
            pieces.push(delta(json!({ "tool_calls": calls }), Value::Null));
            pieces.push(delta(json!({}), json!("tool_calls")));
            streamed(pieces)
        }
        // A tool server that lets nobody in.
        _ => plain("401 Unauthorized", &error(&secret)),
    };
    stream.write_all(answer.as_bytes())?;
    stream.flush()
}

/// The real binary, with everything in its log.
struct Loud {
    child: Child,
    url: String,
}

impl Drop for Loud {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_secrets(dir: &Path) -> std::process::Command {
    let mut command = process::command(dir);
    command.env("AGENT_HOST_LOG", "trace").env("MODEL_KEY", MODEL_ENV).env("TOOL_KEY", TOOL_ENV).env("HEADER_KEY", HEADER_ENV);
    command
}

fn serve(dir: &Path, log: &Path) -> Loud {
    let mut command = with_secrets(dir);
    command.args(["serve", "--json"]).stdout(Stdio::piped()).stderr(fs::File::create(log).unwrap());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let log_line: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
        panic!("the host did not start ({error}): {line:?}\n{}", fs::read_to_string(log).unwrap());
    });
    Loud { child, url: log_line["listening"].as_str().unwrap().to_owned() }
}

/// The place of a canary in these bytes.
fn canary(bytes: &[u8]) -> Option<String> {
    let place = bytes.windows(MARK.len()).position(|window| window == MARK.as_bytes())?;
    let around = &bytes[place.saturating_sub(200)..bytes.len().min(place + 100)];
    Some(String::from_utf8_lossy(around).into_owned())
}

#[track_caller]
fn clean(what: &str, bytes: &[u8]) {
    if let Some(around) = canary(bytes) {
        panic!("a secret is in {what}: …{around}…");
    }
}

/// Every file below a folder; gives how many there are.
fn clean_files(dir: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            count += clean_files(&entry.path());
        } else {
            clean(&entry.path().display().to_string(), &fs::read(entry.path()).unwrap());
            count += 1;
        }
    }
    count
}

#[tokio::test]
async fn no_secret_is_anywhere_but_where_it_is_sent() {
    let (parrot, seen) = parrot();
    let server = env!("CARGO_BIN_EXE_mcp-server");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("plugins")).unwrap();
    fs::copy(component("caller"), at("plugins").join("caller.wasm")).unwrap();
    fs::create_dir(at("keys")).unwrap();
    for (name, key) in [("model", MODEL_FILE), ("tool", TOOL_FILE), ("header", HEADER_FILE)] {
        fs::write(at("keys").join(name), format!("{key}\n")).unwrap();
    }

    let mut text = String::from("[server]\nlisten = \"127.0.0.1:0\"\nloopback_without_key = true\n");
    let misdeeds = ["refuses", "denies", "fails", "breaks", "says"];
    for model in misdeeds {
        for (from, reference) in [("file", r#"{ file = "keys/model" }"#), ("env", r#"{ env = "MODEL_KEY" }"#)] {
            text += &format!(
                "[[models]]\nid = \"{model}-{from}\"\nmodel = \"{model}\"\nprovider = \"openai\"\nbase_url = \"{parrot}/v1\"\napi_key = {reference}\nmax_retries = 1\n"
            );
        }
    }
    text += &format!(
        r#"
[[models]]
id = "reranks"
type = "rerank"
provider = "jina"
model = "refuses"
base_url = "{parrot}/v1"
api_key = {{ env = "MODEL_KEY" }}

[[models]]
id = "embeds"
type = "embedding"
provider = "openai"
model = "refuses"
base_url = "{parrot}/v1"
api_key = {{ file = "keys/model" }}

[[mcp_servers]]
id = "env"
command = "{server}"
env = {{ CANARY = {{ env = "TOOL_KEY" }} }}

[[mcp_servers]]
id = "file"
command = "{server}"
env = {{ CANARY = {{ file = "keys/tool" }} }}

[[mcp_servers]]
id = "web"
url = "{parrot}/mcp"
headers = {{ Authorization = {{ file = "keys/header" }}, X-Key = {{ env = "HEADER_KEY" }} }}

[[bindings]]
id = "main"
runner = "plugin:test/caller/default"
resources = {{ tool_names = ["*"] }}
"#
    );
    fs::write(at("agent-host.toml"), &text).unwrap();

    let log = at("log.txt");
    let mut host = serve(dir.path(), &log);
    let http = Client::new();
    let mut steps = Vec::new();
    for model in misdeeds {
        for from in ["file", "env"] {
            for call in ["models.stream", "models.invoke"] {
                steps.push(json!({ "call": call, "model": format!("{model}-{from}") }));
            }
        }
    }
    steps.push(json!({ "call": "models.rerank", "model": "reranks" }));
    steps.push(json!({ "call": "models.embed", "model": "embeds" }));
    let tools = steps.len();
    for from in ["file", "env"] {
        for tool in ["refuse", "tell", "fail", "crash", "refuse"] {
            steps.push(json!({ "call": "tools.call", "tool": format!("{from}__{tool}") }));
        }
    }
    let event = json!({
        "event_type": "test.main",
        "conversation": { "conversation_id": "c" },
        "actor": { "actor_type": "user", "actor_id": "a" },
        "data": { "steps": steps },
    });
    let accepted = http.post(format!("{}/api/v1/events", host.url)).json(&event).send().await.unwrap();
    let accepted: Value = accepted.json().await.unwrap();
    let run = accepted["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{accepted:#}")).to_owned();
    let began = Instant::now();
    loop {
        let record: Value = http.get(format!("{}/api/v1/runs/{run}", host.url)).send().await.unwrap().json().await.unwrap();
        if record["status"] == "completed" {
            break;
        }
        assert!(record["status"] == "running" || record["status"] == "created", "{record:#}");
        assert!(began.elapsed() < PATIENCE, "{record:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // The secrets were where they belong, or nothing here would mean anything.
    {
        let seen = seen.lock().unwrap();
        for canary in [MODEL_FILE, MODEL_ENV, HEADER_FILE, HEADER_ENV] {
            assert!(seen.contains(canary), "{canary} was not sent");
        }
    }

    // All that a client can see.
    let event_id = accepted["event_id"].as_str().unwrap();
    let paths = [
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events?limit=100"),
        format!("/api/v1/runs/{run}/context"),
        format!("/api/v1/runs/{run}/grant"),
        format!("/api/v1/runs/{run}/audit?limit=100"),
        format!("/api/v1/events/{event_id}"),
        "/api/v1/runs".to_owned(),
        "/api/v1/runners".to_owned(),
        "/readyz".to_owned(),
        "/healthz".to_owned(),
    ];
    for path in paths {
        let answer = http.get(format!("{}{path}", host.url)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        clean(&path, format!("{:?}", answer.headers()).as_bytes());
        let body = answer.text().await.unwrap();
        clean(&path, body.as_bytes());
        if path.contains("/events?") {
            let page: Value = serde_json::from_str(&body).unwrap();
            let items = page["items"].as_array().unwrap();
            assert_eq!(page["has_more"], false, "all of them are looked at");
            let answer = items.iter().find(|event| event["type"] == "test.answer").unwrap();
            let outcomes = answer["data"]["outcomes"].as_array().unwrap();
            assert_eq!(outcomes.len(), tools + 10);
            // The message is complete except for the secret.
            assert!(outcomes[0]["message"].as_str().unwrap().contains("cannot use Authorization"), "{}", outcomes[0]);
            assert!(body.contains("is not good enough") && body.contains("my key is"), "{body}");
        }
    }

    // The output of the command line.
    for arguments in [&["config", "check"][..], &["config", "check", "--json"], &["runs", "list", "--json"], &["runners"]] {
        let mut command = with_secrets(dir.path());
        let output = command.args(arguments).env("AGENT_HOST_SERVER", &host.url).output().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&shown));
        clean(&arguments.join(" "), &shown);
    }

    // The files while the host runs, and after its end.
    for ended in [false, true] {
        if ended {
            let id = rustix::process::Pid::from_child(&host.child);
            rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
            let began = Instant::now();
            let status = loop {
                if let Some(status) = host.child.try_wait().unwrap() {
                    break status;
                }
                assert!(began.elapsed() < PATIENCE, "the host does not end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!(status.success(), "the host ended with {status}");
        }
        assert!(clean_files(&at("data")) > 2);
    }
    let log = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert!(log.len() > 1000 && log.contains("TRACE"), "the log says all that it can");
    let lines: Vec<_> = log.lines().filter(|line| line.contains(MARK)).collect();
    assert!(lines.is_empty(), "a secret is in the log:\n{}", lines.join("\n"));
}

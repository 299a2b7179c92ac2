//! `plugin:test/outside/default` (any host) and `plugin:test/outside/narrow` (few of them) send requests, and say after each
//! step what came of it: an event `x.step` with `step` and `outcome`. The steps are separated by `;`:
//!
//! `get URL`, `post URL TEXT`, `within MS URL` (a GET that may take so long), `send METHOD URL NAME: VALUE & NAME: VALUE | BODY`
//! (headers and body may be left out), and of the response that came last and is still held: `read N` (so many bytes, or all
//! that there are), `rest`, `headers`, `drop`. Beside them `sleep MS` and `say TEXT`.
//!
//! A refusal has `code`, `details_code`, `retryable` and `message`.

use std::time::Duration;

use agent_host_sdk::contract::agent_host::runner::results;
use agent_host_sdk::contract::{CustomResult, RunResult};
use agent_host_sdk::http::{Request, Response};
use agent_host_sdk::serde_json::{Map, Value, from_str, json};
use agent_host_sdk::{ApiError, Completion, Context, Failure, Manifest, Runner};

/// Bytes that one call asks for.
const READ_BYTES: u32 = 64 * 1024;
/// Longest text that is reported unchanged, in bytes.
const TEXT_BYTES: usize = 4096;

struct Outside;
struct Narrow;

impl Runner for Outside {
    fn manifest() -> Manifest {
        Manifest::new("test", "outside").label("en", "Outside").http_hosts(["*:*"])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        take_steps(&ctx)
    }
}

impl Runner for Narrow {
    const NAME: &'static str = "narrow";

    fn manifest() -> Manifest {
        Manifest::new("test", "outside").label("en", "Narrow").http_hosts([
            "127.0.0.1:*",
            "*.example.com",
            "API.example.org:8443",
        ])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        take_steps(&ctx)
    }
}

agent_host_sdk::export!(Outside, Narrow);

fn take_steps(ctx: &Context) -> Result<Completion, Failure> {
    let (mut held, mut outcomes) = (Vec::new(), Vec::new());
    for step in ctx.text().split(';').map(str::trim) {
        let outcome = take(ctx, &mut held, step)?;
        let data = json!({ "step": step, "outcome": outcome }).to_string();
        results::emit(&[RunResult::Other(CustomResult { type_: "x.step".to_owned(), data })]).map_err(ApiError::from)?;
        outcomes.push(outcome);
    }
    ctx.reply(&Value::from(outcomes).to_string())?;
    Ok(Completion::stop())
}

fn take(ctx: &Context, held: &mut Vec<Response>, step: &str) -> Result<Value, Failure> {
    let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
    let two = || rest.split_once(' ').ok_or_else(|| usage(step));
    let last = || held.last().ok_or_else(|| usage(step));
    Ok(match word {
        "get" => sent(held, &Request::get(rest)),
        "post" => {
            let (url, text) = two()?;
            sent(held, &Request::post(url).body(text))
        }
        "within" => {
            let (ms, url) = two()?;
            sent(held, &Request::get(url).timeout(Duration::from_millis(ms.parse()?)))
        }
        "send" => sent(held, &request(rest).ok_or_else(|| usage(step))?),
        "read" => read(last()?, rest.parse()?),
        "rest" => read(last()?, usize::MAX),
        "headers" => last()?.headers().into_iter().map(|(name, value)| (name, value.into())).collect::<Map<_, _>>().into(),
        "drop" => held.pop().map(|_| Value::Null).ok_or_else(|| usage(step))?,
        "sleep" => {
            std::thread::sleep(Duration::from_millis(rest.parse()?));
            Value::Null
        }
        "say" => {
            ctx.reply(rest)?;
            rest.into()
        }
        _ => return Err(usage(step)),
    })
}

/// `METHOD URL NAME: VALUE & NAME: VALUE | BODY`.
fn request(text: &str) -> Option<Request> {
    let (head, body) = text.split_once(" | ").unwrap_or((text, ""));
    let mut parts = head.splitn(3, ' ');
    let mut request = Request::new(parts.next()?, parts.next()?).body(body);
    for header in parts.next().into_iter().flat_map(|headers| headers.split(" & ")) {
        let (name, value) = header.split_once(": ")?;
        request = request.header(name, value);
    }
    Some(request)
}

fn sent(held: &mut Vec<Response>, request: &Request) -> Value {
    match request.send() {
        Ok(response) => {
            let status = response.status();
            held.push(response);
            status.into()
        }
        Err(error) => refused(error),
    }
}

/// At most this many bytes of the response.
fn read(response: &Response, most: usize) -> Value {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let left = u32::try_from(most - bytes.len()).unwrap_or(READ_BYTES);
        match response.read(left.min(READ_BYTES)) {
            Ok(more) if more.is_empty() => break,
            Ok(more) => bytes.extend_from_slice(&more),
            Err(error) => {
                let mut refused = refused(error);
                if let Some(members) = refused.as_object_mut() {
                    members.insert("after".to_owned(), bytes.len().into());
                }
                return refused;
            }
        }
    }
    if bytes.len() > TEXT_BYTES {
        return json!([bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()]);
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn refused(error: ApiError) -> Value {
    let details: Value = error.details.as_deref().and_then(|text| from_str(text).ok()).unwrap_or_default();
    let (code, retryable, message) = (error.code.as_str(), error.retryable, error.message.as_str());
    json!({ "code": code, "details_code": details.get("code"), "retryable": retryable, "message": message })
}

fn usage(step: &str) -> Failure {
    Failure::new("usage", format!("there is no step `{step}`, or not now"))
}

//! `plugin:test/wasi-http/default` sends its requests by `wasi:http`, like a library that does not know this host. After
//! each step it reports the outcome: an event `x.step` with `step` and `outcome`. The steps are separated by `;`:
//!
//! `get URL`, `post URL TEXT`, `send METHOD URL NAME: VALUE & NAME: VALUE`, `two URL URL` (on their way at the same time; gives
//! which of them was answered first, and both answers), and of the response that came last: `read` (what comes next),
//! `rest`. `hurry MS URL` waits so long for the first byte. Beside them `sleep MS`.

use std::time::Duration;

use agent_host_sdk::contract::agent_host::runner::results;
use agent_host_sdk::contract::{CustomResult, RunResult};
use agent_host_sdk::serde_json::{Value, json};
use agent_host_sdk::{ApiError, Completion, Context, Failure, Manifest, Runner};
use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest,
    RequestOptions, Scheme,
};
use wasip2::io::poll::poll;
use wasip2::io::streams::{InputStream, StreamError};

struct WasiHttp;

impl Runner for WasiHttp {
    fn manifest() -> Manifest {
        Manifest::new("test", "wasi-http").label("en", "WASI HTTP").http_hosts(["*:*"])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let (mut held, mut outcomes) = (None, Vec::new());
        for step in ctx.text().split(';').map(str::trim) {
            let outcome = take(&mut held, step)?;
            let data = json!({ "step": step, "outcome": outcome }).to_string();
            results::emit(&[RunResult::Other(CustomResult { type_: "x.step".to_owned(), data })]).map_err(ApiError::from)?;
            outcomes.push(outcome);
        }
        ctx.reply(&Value::from(outcomes).to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(WasiHttp);

/// An open response. Resources of another one are dropped first.
struct OpenResponse {
    stream: InputStream,
    _body: IncomingBody,
    response: IncomingResponse,
}

fn take(held: &mut Option<OpenResponse>, step: &str) -> Result<Value, Failure> {
    let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
    let two = || rest.split_once(' ').ok_or_else(|| usage(step));
    let (method, url, headers, text, ms) = match word {
        "get" => (Method::Get, rest, "", "", None),
        "post" => {
            let (url, text) = two()?;
            (Method::Post, url, "", text, None)
        }
        "hurry" => {
            let (ms, url) = two()?;
            (Method::Get, url, "", "", Some(ms.parse()?))
        }
        "send" => {
            let (method, rest) = two()?;
            let (url, headers) = rest.split_once(' ').unwrap_or((rest, ""));
            (named(method), url, headers, "", None)
        }
        "two" => return both(two()?).ok_or_else(|| usage(step)),
        "read" => return Ok(read(held.as_ref().ok_or_else(|| usage(step))?, false)),
        "rest" => return Ok(read(held.as_ref().ok_or_else(|| usage(step))?, true)),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(rest.parse()?));
            return Ok(Value::Null);
        }
        _ => return Err(usage(step)),
    };
    *held = None;
    let future = match sent(&method, url, headers, text, ms).ok_or_else(|| usage(step))? {
        Ok(future) => future,
        Err(error) => return Ok(refused(&error)),
    };
    Ok(match answered(&future) {
        Ok(response) => {
            let status = response.response.status();
            *held = Some(response);
            status.into()
        }
        Err(error) => refused(&error),
    })
}

fn named(method: &str) -> Method {
    match method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        other => Method::Other(other.to_owned()),
    }
}

/// Sends a request without waiting; nothing where it cannot be built.
fn sent(
    method: &Method,
    url: &str,
    headers: &str,
    text: &str,
    ms: Option<u64>,
) -> Option<Result<FutureIncomingResponse, ErrorCode>> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let fields = Fields::new();
    for header in headers.split(" & ").filter(|header| !header.is_empty()) {
        let (name, value) = header.split_once(": ")?;
        fields.append(name, value.as_bytes()).ok()?;
    }
    let request = OutgoingRequest::new(fields);
    request.set_method(method).ok()?;
    request.set_scheme(Some(if scheme == "https" { &Scheme::Https } else { &Scheme::Http })).ok()?;
    request.set_authority(Some(authority)).ok()?;
    request.set_path_with_query(Some(path)).ok()?;
    let options = RequestOptions::new();
    options.set_first_byte_timeout(ms.map(|ms| ms * 1_000_000)).ok()?;
    let body = request.body().ok()?;
    let future = match handle(request, Some(options)) {
        Ok(future) => future,
        Err(error) => return Some(Err(error)),
    };
    if !text.is_empty() {
        let stream = body.write().ok()?;
        // After a refusal, the response has the reason.
        let _ = stream.blocking_write_and_flush(text.as_bytes());
    }
    let _ = OutgoingBody::finish(body, None);
    Some(Ok(future))
}

/// Waits for the head of a response.
fn answered(future: &FutureIncomingResponse) -> Result<OpenResponse, ErrorCode> {
    let lost = |why: &str| ErrorCode::InternalError(Some(why.to_owned()));
    future.subscribe().block();
    let response = future.get().ok_or_else(|| lost("it is ready, and there is none"))?;
    let response = response.map_err(|()| lost("it was taken"))??;
    let body = response.consume().map_err(|()| lost("its body was taken"))?;
    let stream = body.stream().map_err(|()| lost("its stream was taken"))?;
    Ok(OpenResponse { stream, _body: body, response })
}

/// The request that was answered first of two, and both answers.
fn both((one, other): (&str, &str)) -> Option<Value> {
    let get = |url: &str| sent(&Method::Get, url, "", "", None);
    let (one, other) = match (get(one)?, get(other)?) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(error), _) | (_, Err(error)) => return Some(refused(&error)),
    };
    let first = {
        let waits = [one.subscribe(), other.subscribe()];
        poll(&[&waits[0], &waits[1]])
    };
    let answer_of = |future: &FutureIncomingResponse| match answered(future) {
        Ok(held) => read(&held, true),
        Err(error) => refused(&error),
    };
    // The one that is there already is read before the other is waited for.
    let (one, other) = if first.first() == Some(&1) {
        let other = answer_of(&other);
        (answer_of(&one), other)
    } else {
        let one = answer_of(&one);
        (one, answer_of(&other))
    };
    Some(json!({ "first": first, "said": [one, other] }))
}

/// The next piece, or all pieces.
fn read(held: &OpenResponse, all: bool) -> Value {
    let mut bytes = Vec::new();
    loop {
        match held.stream.blocking_read(64 * 1024) {
            Ok(more) => bytes.extend_from_slice(&more),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => {
                // `http-error-code` has no code for it in wasmtime 48, so this is the text.
                return json!({ "error": error.to_debug_string(), "after": bytes.len() });
            }
        }
        if !all && !bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn refused(error: &ErrorCode) -> Value {
    json!({ "error": format!("{error:?}") })
}

fn usage(step: &str) -> Failure {
    Failure::new("usage", format!("there is no step `{step}`, or not now"))
}

//! `plugin:agent-host/http-agent/default` forwards a message to a remote agent over HTTP, and streams back the answer.
//! The remote agent needs no SDK: it accepts a POST with `{"input", "thread_id", "run_id"}` and answers with server-sent
//! events (`data: text` or `data: {"delta": "text"}`, and `data: [DONE]` at the end) or with plain text.
//!
//! Worth copying: the handling of a secret. The code writes `{{secret:NAME}}`; the host inserts the secret into the
//! request, only for the hosts that the operator named for it.

use agent_host_sdk::http::{Request, Response};
use agent_host_sdk::json::from_str;
use agent_host_sdk::serde_json::json;
use agent_host_sdk::{Capabilities, Completion, Context, Failure, FormItem, Manifest, MessageWriter, Runner};
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// Configuration of a binding: the fields of the form below.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    url: String,
    secret: Option<String>,
    format: Format,
}

/// Format of the remote answer.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Sse,
    Text,
}

struct HttpAgent;

impl Runner for HttpAgent {
    fn manifest() -> Manifest {
        Manifest::new("agent-host", "http-agent")
            .label("en", "HTTP agent")
            .label("zh-Hans", "HTTP 智能体")
            .description("en", "Forwards to an agent elsewhere, and streams back what it says.")
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            // The remote host is known only to the operator: the manifest allows any host, and the binding names one.
            .http_hosts(["*:*"])
            .form(FormItem::string("url").label("en", "URL of the agent").required())
            .form(
                FormItem::string("secret")
                    .label("en", "Name of the secret")
                    .description("en", "Sent as a bearer token. Empty: none is sent."),
            )
            .form(
                FormItem::select("format")
                    .label("en", "How it answers")
                    .option("sse", "Server-sent events")
                    .option("text", "Text")
                    .default("sse"),
            )
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let config: Config = ctx.config()?;
        if config.url.is_empty() {
            return Err(Failure::new("http_agent.no_url", "configure the `url` of the agent in the binding"));
        }
        // An error before the first byte fails the run: with the code of the host (`unauthorized` for a host that is not
        // granted), or with `http_status` and the beginning of the body.
        let response = request(&ctx, &config).send()?.error_for_status()?;

        let mut out = ctx.message();
        match config.format {
            Format::Sse => stream_events(response, &mut out)?,
            Format::Text => {
                for piece in response.pieces() {
                    out.write(&piece?)?;
                    out.flush_words()?;
                }
            }
        }
        if out.text().trim().is_empty() {
            return Err(Failure::new("http_agent.no_answer", "the agent ended without saying anything").retryable());
        }
        out.finish()?;
        Ok(Completion::stop())
    }
}

fn request(ctx: &Context, config: &Config) -> Request {
    // The ids tell the remote agent which conversation and run the request belongs to. If the remote agent answers
    // repeated requests of a run only once, add `.idempotency_key(ctx.run_id())`: the host then repeats a request that
    // was cut off by a crash.
    let thread = ctx.conversation().and_then(|conversation| conversation.thread_id.as_deref()).or(ctx.conversation_id());
    let accept = match config.format {
        Format::Sse => "text/event-stream",
        Format::Text => "text/plain",
    };
    let request = Request::post(&config.url)
        .header("accept", accept)
        .json(json!({"input": ctx.text(), "thread_id": thread, "run_id": ctx.run_id()}));
    match config.secret.as_deref() {
        Some(secret) if !secret.is_empty() => request.bearer_secret(secret),
        _ => request,
    }
}

/// Event with a JSON object as data.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamData {
    delta: Option<String>,
    error: Option<String>,
}

/// Writes the text of the events. If the connection breaks, the text so far has been emitted, and the message is not
/// completed.
fn stream_events(response: Response, out: &mut MessageWriter) -> Result<(), Failure> {
    for event in response.events() {
        let event = event?;
        if event.data == "[DONE]" {
            break;
        }
        // Data that starts with `{` but does not parse is text.
        let object = if event.data.starts_with('{') { from_str::<StreamData>(&event.data).ok() } else { None };
        match object {
            Some(StreamData { error: Some(why), .. }) => return Err(other_side(&why)),
            _ if event.event == "error" => return Err(other_side(&event.data)),
            Some(StreamData { delta: Some(text), .. }) => out.write(&text)?,
            // Unknown kind of event.
            Some(_) => {}
            None => out.write(&event.data)?,
        }
        out.flush_words()?;
    }
    Ok(())
}

fn other_side(why: &str) -> Failure {
    Failure::new("http_agent.failed", format!("the agent failed: {why}"))
}

agent_host_sdk::export!(HttpAgent);

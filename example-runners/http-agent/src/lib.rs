//! `plugin:agent-host/http-agent/default` forwards a message to an agent that answers over HTTP, and streams back what comes.
//! The agent elsewhere needs no SDK: it takes a POST with `{"input", "thread_id", "run_id"}` and answers with server-sent
//! events (`data: text` or `data: {"delta": "text"}`, and `data: [DONE]` at the end) or with plain text.
//!
//! What to copy: a secret that this code never sees. It writes `{{secret:NAME}}`, and the host puts the secret in on the way
//! out, only for the hosts that the operator named for it.

use agent_host_sdk::http::{Request, Response};
use agent_host_sdk::json::from_str;
use agent_host_sdk::serde_json::json;
use agent_host_sdk::{Capabilities, Completion, Context, Failure, FormItem, Manifest, MessageWriter, Runner};
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// What a binding may configure: the fields of the form below.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    url: String,
    secret: Option<String>,
    format: Format,
}

/// How the other side answers.
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
            // Where the other side is, only the operator knows: any host here, and the binding names the one.
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
        // What goes wrong before the first byte fails the run: with the code of the host (`unauthorized` for a host that is
        // not granted), or with `http_status` and what the other side said.
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
    // By this the other side knows which conversation and which run it is. If it answers a run only once, however often it is
    // asked, add `.idempotency_key(ctx.run_id())`: then a request that was cut off when the host died is made again.
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

/// An event whose data is a JSON object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    delta: Option<String>,
    error: Option<String>,
}

/// Writes what the events say. If the connection breaks, what came was seen, and the message is not completed.
fn stream_events(response: Response, out: &mut MessageWriter) -> Result<(), Failure> {
    for event in response.events() {
        let event = event?;
        if event.data == "[DONE]" {
            break;
        }
        // Text that only looks like an object is text.
        let object = if event.data.starts_with('{') { from_str::<Said>(&event.data).ok() } else { None };
        match object {
            Some(Said { error: Some(why), .. }) => return Err(other_side(&why)),
            _ if event.event == "error" => return Err(other_side(&event.data)),
            Some(Said { delta: Some(text), .. }) => out.write(&text)?,
            // A kind of event that this runner does not know.
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

//! A small client of the host's API.

use std::{
    io::{BufRead, BufReader},
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use ureq::{Agent, Body, http::Response};

/// An answer that takes longer than this does not come.
const ANSWER: Duration = Duration::from_secs(60);

/// Talks to one host.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    base: String,
}

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    pub(crate) event: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn new(base: &str) -> Self {
        let config = Agent::config_builder().timeout_global(Some(ANSWER)).http_status_as_error(false).proxy(None).build();
        Self { agent: config.into(), base: base.to_owned() }
    }

    /// Reads JSON; an answer that is not a success is an error with the problem in it.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.agent.get(self.url(path)).call();
        json(answer.with_context(|| format!("GET {path}"))?).with_context(|| format!("GET {path}"))
    }

    /// Sends JSON, reads JSON.
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> anyhow::Result<Value> {
        let mut request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send(body.to_string());
        json(answer.with_context(|| format!("POST {path}"))?).with_context(|| format!("POST {path}"))
    }

    /// Reads server-sent events, each as it comes, to the end of the stream.
    pub(crate) fn stream(
        &self,
        path: &str,
        within: Duration,
        each: impl FnMut(StreamEvent) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let request = self.agent.get(self.url(path)).header("Accept", "text/event-stream");
        let answer = request.config().timeout_global(Some(within)).build().call().with_context(|| format!("GET {path}"))?;
        if !answer.status().is_success() {
            return json(answer).map(drop);
        }
        events(BufReader::new(answer.into_body().into_reader()), each).with_context(|| format!("the stream of {path} broke off"))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

fn json(mut answer: Response<Body>) -> anyhow::Result<Value> {
    let status = answer.status();
    let text = answer.body_mut().read_to_string()?;
    anyhow::ensure!(status.is_success(), "the host answers {status}: {text}");
    serde_json::from_str(&text).with_context(|| format!("the host answers what is not JSON: {text}"))
}

/// The events of a stream (WHATWG HTML, section 9.2.6), as far as the host uses it.
fn events(stream: impl BufRead, mut each: impl FnMut(StreamEvent) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut event = StreamEvent::default();
    for line in stream.lines() {
        let line = line?;
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.event),
            "data" if event.data.is_empty() => value.clone_into(&mut event.data),
            "data" => {
                event.data.push('\n');
                event.data.push_str(value);
            }
            "" if line.is_empty() && !event.data.is_empty() => each(std::mem::take(&mut event))?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_event_by_event() {
        let stream = "retry: 1000\n\n: keep-alive\n\nid: a\nevent: message.delta\ndata: {\"a\":1}\n\nevent:x\ndata:1\ndata: 2\n\ndata: cut off";
        let mut read = Vec::new();
        events(stream.as_bytes(), |event| {
            read.push((event.event, event.data));
            Ok(())
        })
        .unwrap();
        assert_eq!(read, [("message.delta".to_owned(), "{\"a\":1}".to_owned()), ("x".to_owned(), "1\n2".to_owned())]);
    }
}

//! A model server: streamed chat completions in the form of OpenAI, as far as the host uses them. Each token of an answer
//! contains the time of its sending and is sent in a packet of its own, as models do.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::{MissedTickBehavior, interval},
};

/// The character before the time in a token, which occurs nowhere else in an event of a run.
pub(crate) const MARK: char = '@';
/// Digits of the time.
pub(crate) const DIGITS: usize = 16;
/// A request of the benchmarks has a few hundred bytes.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// The address of the server; the one line that it prints.
#[derive(Debug, Serialize)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
}

/// The request in the last message, besides the name of a call, which belongs to the guest.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct ModelTask {
    /// Number of tokens.
    times: usize,
    /// Time between two of them; zero is as fast as it can.
    #[serde(default)]
    pace_us: u64,
}

/// Answers until the input of this process ends, so that the server does not outlive its starter.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    crate::print(&Listening { address: listener.local_addr()? })?;
    let (mut input, mut nowhere) = (tokio::io::stdin(), tokio::io::sink());
    tokio::select! {
        ended = tokio::io::copy(&mut input, &mut nowhere) => ended.map(drop).map_err(Into::into),
        broken = accept(&listener) => broken,
    }
}

async fn accept(listener: &TcpListener) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // A connection that the host closes ends with an error, which is ignored.
        tokio::spawn(answer_all(stream));
    }
}

/// Answers the requests of a connection one after the other.
async fn answer_all(stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(body) = request(&mut stream).await? {
        answer(&mut stream, &task_of(&body)?).await?;
    }
    Ok(())
}

/// The body of the next request; none where the connection ends.
pub(crate) async fn request(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Option<Vec<u8>>> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            if line.trim_end().is_empty() {
                break;
            }
            // The line with the method.
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    anyhow::ensure!(length <= MAX_REQUEST_BYTES, "a request of {length} bytes is none of the benchmarks");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(body))
}

fn task_of(body: &[u8]) -> anyhow::Result<ModelTask> {
    let body: Value = serde_json::from_slice(body)?;
    let last = body.get("messages").and_then(Value::as_array).and_then(|messages| messages.last());
    let text = last.and_then(|message| message.get("content")?.as_str()).context("the request ends with no text")?;
    Ok(serde_json::from_str(text)?)
}

async fn answer(stream: &mut BufReader<TcpStream>, task: &ModelTask) -> anyhow::Result<()> {
    stream.write_all(HEAD.as_bytes()).await?;
    let mut pace = (task.pace_us > 0).then(|| interval(Duration::from_micros(task.pace_us)));
    if let Some(pace) = &mut pace {
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    for _ in 0..task.times {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        stream.write_all(chunk(&token(now_us())).as_bytes()).await?;
    }
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    let end = format!("{}{}0\r\n\r\n", chunk(&end.to_string()), chunk("[DONE]"));
    Ok(stream.write_all(end.as_bytes()).await?)
}

fn token(us: u64) -> String {
    format!(
        r#"{{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":{},"model":"bench","choices":[{{"index":0,"delta":{{"content":"{MARK}{us:0DIGITS$} "}},"logprobs":null,"finish_reason":null}}]}}"#,
        us / 1_000_000
    )
}

/// A server-sent event as a chunk of an HTTP body.
fn chunk(data: &str) -> String {
    // `data: `, and two line feeds.
    let length = data.len() + 8;
    format!("{length:x}\r\ndata: {data}\n\n\r\n")
}

/// Microseconds since 1970: the same clock for every process of this machine.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_says_what_is_wanted() {
        let text = json!({ "call": "relay", "times": 3 }).to_string();
        let body = json!({ "messages": [{ "content": "no" }, { "content": text }] }).to_string();
        assert_eq!(task_of(body.as_bytes()).unwrap(), ModelTask { times: 3, pace_us: 0 });
        assert!(task_of(br#"{"messages":[]}"#).is_err());
    }

    #[tokio::test]
    async fn answers_are_streams_of_tokens() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { accept(&listener).await });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let text = json!({ "times": 5, "pace_us": 10 }).to_string();
        let body = json!({ "messages": [{ "role": "user", "content": text }] }).to_string();
        let request = format!("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches(MARK).count(), 5, "{answer}");
        assert!(answer.starts_with(HEAD) && answer.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{answer}");
        let (_, token) = answer.split_once(MARK).unwrap();
        let sent: u64 = token[..DIGITS].parse().unwrap();
        assert!(now_us() - sent < 60_000_000);
    }
}

//! Requests to the outside: those of guests, and those of the same client without the host, to the same server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use agent_host_runs::{Config, Host};
use anyhow::Context;
use futures_util::future::try_join_all;
use reqwest::Client;
use serde::Serialize;
use serde_json::json;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{in_process, journal::median, model_server};

/// Requests that are under way at one time: one of each run, or of each client.
const AT_ONCE: usize = 16;
/// Requests of each of them: enough that what a run itself costs is lost in them.
const REQUESTS: usize = 200;
/// Bytes of a response, and of the body of a `POST`.
const BODY_BYTES: usize = 1024;
/// Turns, each with requests of all three kinds.
const TURNS: usize = 9;
/// Time limit for the end of the host.
const END: Duration = Duration::from_secs(30);

/// The measured values; medians of turns.
#[derive(Debug, Serialize)]
pub(crate) struct Egress {
    get_per_second: f64,
    post_per_second: f64,
    direct_per_second: f64,
    /// Time of a `GET` of a guest over that of the client alone.
    ratio: f64,
}

/// The sender of requests.
#[derive(Debug, Clone, Copy)]
enum Sender {
    Guests(&'static str),
    Client,
}

/// Measures a host in this process. The server is in it too: it is the same for all, and takes from all the same.
pub(crate) async fn measure(config: Config) -> anyhow::Result<Egress> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let bench = Bench { address: listener.local_addr()?, host: Host::start(config).await?, client: client()? };
    let mut server = JoinSet::new();
    server.spawn(serve(listener));
    let senders = [Sender::Client, Sender::Guests("GET"), Sender::Guests("POST")];
    // The first of a process fill caches.
    for sender in senders {
        bench.rate(sender, 0).await?;
    }
    let (mut rates, mut ratios) = ([const { Vec::new() }; 3], Vec::new());
    for turn in 1..=TURNS {
        let mut of_turn = Vec::new();
        for (sender, rates) in senders.into_iter().zip(&mut rates) {
            let rate = bench.rate(sender, turn).await?;
            rates.push(rate);
            of_turn.push(rate);
        }
        if let [direct, get, _] = of_turn.as_slice() {
            ratios.push(direct / get);
        }
    }
    bench.host.shutdown(END).await;
    let [direct, get, post] = rates.map(median);
    Ok(Egress { get_per_second: get, post_per_second: post, direct_per_second: direct, ratio: median(ratios) })
}

struct Bench {
    host: Host,
    address: SocketAddr,
    client: Client,
}

impl Bench {
    /// Requests a second, all of them waited for.
    async fn rate(&self, sender: Sender, turn: usize) -> anyhow::Result<f64> {
        let url = format!("http://{}/", self.address);
        let began = Instant::now();
        match sender {
            Sender::Client => clients(&self.client, &url).await?,
            Sender::Guests(method) => self.guests(method, &url, turn).await?,
        }
        Ok((AT_ONCE * REQUESTS) as f64 / began.elapsed().as_secs_f64())
    }

    async fn guests(&self, method: &str, url: &str, turn: usize) -> anyhow::Result<()> {
        let body_bytes = if method == "POST" { BODY_BYTES } else { 0 };
        let task = json!({ "do": "send", "method": method, "url": url, "body_bytes": body_bytes, "times": REQUESTS }).to_string();
        let name = |guest| format!("{method}-{turn}-{guest}");
        let runs = (0..AT_ONCE).map(|guest| in_process::run(&self.host, in_process::message(&task, name(guest))));
        try_join_all(runs).await.map(drop)
    }
}

/// The client that the host has, with the default of its library for connections that are kept open.
fn client() -> reqwest::Result<Client> {
    Client::builder().no_proxy().tcp_nodelay(true).http1_only().build()
}

/// Requests without the host.
async fn clients(client: &Client, url: &str) -> anyhow::Result<()> {
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, url) = (client.clone(), url.to_owned());
        workers.spawn(async move {
            for _ in 0..REQUESTS {
                let response = client.get(&url).header("accept", "application/json").send().await?.error_for_status()?;
                let read = response.bytes().await?.len();
                anyhow::ensure!(read == BODY_BYTES, "the response has {read} bytes");
            }
            anyhow::Ok(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.context("a client broke off")??;
    }
    Ok(())
}

/// Answers every request with the same bytes.
async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    let response = response();
    loop {
        let (stream, _) = listener.accept().await?;
        // A connection that its client closes ends with an error, which is ignored.
        tokio::spawn(answer_all(stream, response.clone()));
    }
}

async fn answer_all(stream: TcpStream, response: Vec<u8>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while model_server::request(&mut stream).await?.is_some() {
        stream.write_all(&response).await?;
    }
    Ok(())
}

fn response() -> Vec<u8> {
    let mut response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {BODY_BYTES}\r\n\r\n").into_bytes();
    let head = response.len();
    response.resize(head + BODY_BYTES, b' ');
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_request_is_answered() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(serve(listener));
        let client = client().unwrap();
        clients(&client, &url).await.unwrap();
        let posted = client.post(&url).body(vec![b' '; BODY_BYTES]).send().await.unwrap();
        assert_eq!(posted.bytes().await.unwrap().len(), BODY_BYTES);
    }
}

//! A server in the world outside that does what its visitors ask of it, and counts them.
//!
//! The first word of the path says how it answers; the rest is free, and distinguishes requests:
//!
//! - `ok/…` the path, at once; `after/MS/…` the same, so much later; `status/CODE/…` with this status.
//! - `bytes/N/…` so many bytes; `pieces/N/MS/…` so many pieces, with so much time between; `endless/…` pieces without end.
//! - `held/…` the path, when it is released; `halves/…` one half ([`HALF`]) at once, the other when it is released.
//! - `broken/…` announces more than it sends; `silent/…` takes the request and hangs up.
//! - `redirect/CODE/URL`; `circle/…` to itself.
//! - `echo/…` the headers and the body of the request; `split/HEADER/…` the value of a header, in two pieces;
//!   `header/HEADER/…` the value of a header, in a header.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::world::PATIENCE;

/// Bytes of each half of `halves`.
pub const HALF: usize = 500;

/// The running server.
pub struct OutsideServer {
    /// `127.0.0.1:PORT`.
    pub authority: String,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Visit>>,
    /// True if held requests are answered at once.
    released: watch::Sender<bool>,
    /// The text of `halves`.
    halves: Mutex<u8>,
}

/// A request that has come, its body included.
#[derive(Debug, Clone)]
pub struct Visit {
    /// Such as `GET`.
    pub method: String,
    /// With its query.
    pub path: String,
    /// The lines of its headers.
    pub headers: String,
    /// Body of the request.
    pub body: String,
    /// When, in milliseconds since 1970.
    pub at: u64,
}

impl Visit {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

impl OutsideServer {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared { seen: Mutex::default(), released: watch::Sender::new(true), halves: Mutex::new(b'a') });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                // A client that goes away is no failure of the server.
                tokio::spawn(async move { drop(serving.serve(stream).await) });
            }
        });
        Self { authority, shared }
    }

    /// An address of it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.authority)
    }

    /// Port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Lets those wait who ask for `held` and `halves`.
    pub fn hold(&self) {
        self.shared.released.send_replace(false);
    }

    /// Answers those that wait, and all others.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Changes the text of `halves`.
    pub fn change(&self) {
        *self.shared.halves.lock().unwrap() += 1;
    }

    /// All that have come.
    #[must_use]
    pub fn seen(&self) -> Vec<Visit> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The requests to a path.
    #[must_use]
    pub fn visits(&self, path: &str) -> Vec<Visit> {
        let path = format!("/{path}");
        self.seen().into_iter().filter(|visit| visit.path == path).collect()
    }

    /// The number of requests to a path.
    #[must_use]
    pub fn times(&self, path: &str) -> usize {
        self.visits(path).len()
    }

    /// Waits until so many have come to a path.
    pub async fn until(&self, path: &str, times: usize) {
        let visits = async {
            while self.times(path) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let visits = tokio::time::timeout(PATIENCE, visits).await;
        assert!(visits.is_ok(), "{} have come to {path}, not {times}", self.times(path));
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(visit) = receive(&mut stream).await? else { return Ok(()) };
        self.seen.lock().unwrap().push(visit.clone());
        let path = visit.path.trim_start_matches('/');
        let (word, rest) = path.split_once('/').unwrap_or((path, ""));
        let (argument, more) = rest.split_once('/').unwrap_or((rest, ""));
        let number = || argument.parse::<usize>().unwrap_or_default();
        let stream = &mut stream;
        match word {
            "after" => {
                tokio::time::sleep(Duration::from_millis(number() as u64)).await;
                whole(stream, "200 OK", path.as_bytes()).await
            }
            "status" => whole(stream, argument, path.as_bytes()).await,
            "bytes" => whole(stream, "200 OK", &vec![b'x'; number()]).await,
            "pieces" => {
                let pause = more.split('/').next().and_then(|ms| ms.parse().ok()).unwrap_or_default();
                begin(stream, "200 OK\r\ntransfer-encoding: chunked").await?;
                for n in 1..=number() {
                    chunk(stream, &format!("piece {n}\n")).await?;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                chunk(stream, "").await
            }
            "endless" => {
                begin(stream, "200 OK\r\ntransfer-encoding: chunked").await?;
                loop {
                    chunk(stream, &"and so on ".repeat(400)).await?;
                }
            }
            "held" => {
                self.wait(stream).await?;
                whole(stream, "200 OK", path.as_bytes()).await
            }
            "halves" => {
                let half = vec![*self.halves.lock().unwrap(); HALF];
                begin(stream, &format!("200 OK\r\ncontent-length: {}", 2 * HALF)).await?;
                stream.write_all(&half).await?;
                self.wait(stream).await?;
                stream.write_all(&half).await
            }
            "broken" => {
                begin(stream, "200 OK\r\ncontent-length: 1000").await?;
                stream.write_all(&[b'x'; 100]).await
            }
            "silent" => Ok(()),
            "redirect" => whole(stream, &format!("{argument} Elsewhere\r\nlocation: {more}"), b"").await,
            "circle" => whole(stream, &format!("302 Elsewhere\r\nlocation: /{path}"), b"").await,
            "echo" => whole(stream, "200 OK", format!("{}\n\n{}", visit.headers, visit.body).as_bytes()).await,
            "split" => {
                let value = visit.header(argument).unwrap_or_default();
                let (one, other) = value.split_at(value.len() / 2);
                begin(stream, "200 OK\r\ntransfer-encoding: chunked").await?;
                chunk(stream, one).await?;
                tokio::time::sleep(Duration::from_millis(30)).await;
                chunk(stream, other).await?;
                chunk(stream, "").await
            }
            "header" => {
                let value = visit.header(argument).unwrap_or_default();
                whole(stream, &format!("200 OK\r\nx-said: {value}\r\nset-cookie: token={value}"), b"").await
            }
            _ => whole(stream, "200 OK", path.as_bytes()).await,
        }?;
        stream.shutdown().await
    }

    /// Waits until it may go on, or nobody waits for it any more.
    async fn wait(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut released = self.released.subscribe();
        tokio::select! {
            _ = released.wait_for(|released| *released) => Ok(()),
            _ = stream.read_u8() => Err(std::io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

/// Starts a server that answers every request with `200 OK` and `{}`, and returns its port. The server is the webhook of a
/// platform, and a host that runs call over HTTP.
pub async fn serve_empty_objects() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // Requests are small: one read has the whole of each.
                let _ = stream.read(&mut [0; 16 * 1024]).await;
                let answer =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

async fn begin(stream: &mut TcpStream, status: &str) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n").as_bytes()).await
}

async fn whole(stream: &mut TcpStream, status: &str, body: &[u8]) -> std::io::Result<()> {
    begin(stream, &format!("{status}\r\ncontent-length: {}", body.len())).await?;
    stream.write_all(body).await
}

async fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await
}

/// A request with its whole body; nothing where there is none.
async fn receive(stream: &mut TcpStream) -> std::io::Result<Option<Visit>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (line, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
    let mut words = line.split(' ');
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let mut visit = Visit {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        headers: headers.to_owned(),
        body: String::new(),
        at: u64::try_from(at).unwrap(),
    };
    let length = visit.header("content-length").and_then(|length| length.parse::<usize>().ok());
    let chunked = visit.header("transfer-encoding").is_some();
    let is_whole = |body: &[u8]| match length {
        Some(length) => body.len() >= length,
        None => !chunked || body.ends_with(b"0\r\n\r\n"),
    };
    while !is_whole(&bytes[end + 4..]) {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    visit.body = String::from_utf8_lossy(&bytes[end + 4..]).into_owned();
    Ok(Some(visit))
}

//! An address that stays when the host behind it does not, and that cuts connections on demand: a request with
//! `x-cut-after: N` gets N events of its stream, and then the connection is gone.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The running proxy; it ends with the test.
pub struct Proxy {
    address: SocketAddr,
    upstream: watch::Sender<String>,
}

/// The number of events that the client receives of the answer to its present request.
type Cut = Arc<Mutex<Option<usize>>>;

impl Proxy {
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (upstream, watched) = watch::channel(host(upstream));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = watched.borrow().clone();
                tokio::spawn(serve(client, upstream));
            }
        });
        Self { address, upstream }
    }

    /// New connections go there.
    pub fn leads_to(&self, upstream: &str) {
        self.upstream.send_replace(host(upstream));
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

fn host(url: &str) -> String {
    url.trim_start_matches("http://").to_owned()
}

async fn serve(client: TcpStream, upstream: String) {
    // Without a server, the client finds the connection closed.
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let cut = Cut::default();
    // The first end closes both: the other half is dropped with its connection.
    tokio::select! {
        () = requests(from_client, to_server, Arc::clone(&cut)) => {}
        () = answers(from_server, to_client, cut) => {}
    }
}

async fn requests(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, cut: Cut) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = client.read(&mut bytes).await {
        let text = &bytes[..read];
        if [&b"POST "[..], b"GET ", b"DELETE "].iter().any(|method| text.starts_with(method)) {
            *cut.lock().unwrap() = cut_after(text);
        }
        if server.write_all(text).await.is_err() {
            return;
        }
    }
}

/// The number of bytes after which the request asks for a cut: its header `x-cut-after`.
fn cut_after(request: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let (head, _) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let line = head.lines().find_map(|line| line.strip_prefix("x-cut-after:"))?;
    line.trim().parse().ok()
}

async fn answers(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, cut: Cut) {
    let mut bytes = vec![0; 64 * 1024];
    // The received part of an event.
    let mut event = Vec::new();
    while let Ok(read @ 1..) = server.read(&mut bytes).await {
        for (at, byte) in bytes[..read].iter().enumerate() {
            event.push(*byte);
            if !event.ends_with(b"\n\n") {
                continue;
            }
            // Comments keep the connection alive, and are no events.
            let is_event = memchr::memmem::find(&event, b"data: ").is_some();
            event.clear();
            let is_last = {
                let mut cut = cut.lock().unwrap();
                match cut.as_mut() {
                    Some(left) if is_event => {
                        *left -= 1;
                        *left == 0
                    }
                    _ => false,
                }
            };
            if is_last {
                let _ = client.write_all(&bytes[..=at]).await;
                let _ = client.shutdown().await;
                return;
            }
        }
        if client.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

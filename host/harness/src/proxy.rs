//! The proxy of a sandbox: the one way from its processes to the network.
//!
//! The proxy speaks HTTP/1.1 on a socket that the sandbox has as a file: `CONNECT` for a tunnel, and requests with a whole `http` URL.
//! [`Egress`] judges every destination; a refusal is `403` with the setting that would allow it, and a result of the run
//! (`harness.network`). The proxy adds no credentials and looks into no tunnel but that to the host of the run: requests to the host say
//! that they come by a proxy (`Via`), so that the host does not take the agent for a user of this machine (`loopback_without_key`).

use std::{
    collections::BTreeSet,
    convert::Infallible,
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::{
    body::Incoming,
    service::service_fn,
    upgrade::{OnUpgrade, on},
};
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener, UnixStream},
    task::JoinHandle,
};

use crate::{
    egress::{Egress, EgressError},
    relay::{self, Answer, Connection, plain},
    results::{BesideTurn, cut},
};

/// Destinations of one run whose refusal is recorded, each once.
const MAX_RECORDED: usize = 50;
/// Longest name of a host that is recorded or shown.
const MAX_HOST: usize = 253;

/// The proxy of one run. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Proxy {
    socket: PathBuf,
    egress: Arc<Egress>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Starts to serve at `socket`, in a folder that no agent can write to. `harness` is named where a destination is refused.
    pub(crate) fn start(socket: PathBuf, egress: Egress, harness: String, record: Option<BesideTurn>) -> io::Result<Self> {
        let listener = listen(&socket)?;
        let egress = Arc::new(egress);
        let refusals = Refusals { harness, record, recorded: Mutex::default() };
        let judge = Arc::new(Judge { egress: Arc::clone(&egress), refusals });
        let serving = tokio::spawn(relay::serve(listener, move |stream| attend(stream, Arc::clone(&judge))));
        Ok(Self { socket, egress, serving })
    }

    /// The file of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ports of this machine that the proxy connects to.
    pub(crate) fn local_ports(&self) -> &BTreeSet<u16> {
        self.egress.local_ports()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
        // A socket that is left behind is replaced by the next run of this name.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Listens at a path of any length: the name of a socket has at most 107 bytes, so that its folder is named by an open file.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket has a name and a folder"));
    };
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixListener::bind(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

/// The rules of a proxy, and the record of what they refuse.
#[derive(Debug)]
struct Judge {
    egress: Arc<Egress>,
    refusals: Refusals,
}

#[derive(Debug)]
struct Refusals {
    harness: String,
    /// `None` for an examination, which has no record.
    record: Option<BesideTurn>,
    recorded: Mutex<BTreeSet<(String, u16)>>,
}

impl Judge {
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Answer> {
        let problem = match self.egress.connect(host, port).await {
            Ok(stream) => {
                // Small messages are not held back.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(problem) => problem,
        };
        let host = cut(host, MAX_HOST);
        let Some(code) = problem.refusal() else {
            return Err(plain(StatusCode::BAD_GATEWAY, format!("{host}:{port}: {problem}")));
        };
        self.refusals.record(host, port, code).await;
        Err(plain(StatusCode::FORBIDDEN, self.refusals.text(host, port, &problem)))
    }
}

impl Refusals {
    async fn record(&self, host: &str, port: u16, code: &str) {
        let Some(record) = &self.record else { return };
        let is_new = {
            let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            recorded.len() < MAX_RECORDED && recorded.insert((host.to_owned(), port))
        };
        if is_new {
            record.add("harness.network", json!({ "host": host, "port": port, "allowed": false, "reason": code })).await;
        }
    }

    fn text(&self, host: &str, port: u16, problem: &EgressError) -> String {
        let harness = &self.harness;
        let fix = match problem {
            EgressError::AddressNotAllowed => format!(
                "`[egress] allow_addresses` allows more addresses, and `connect_ports` of the harness `{harness}` ports of this \
                 machine from 1024 on"
            ),
            _ => format!(
                "`connect_hosts` of the harness `{harness}` allows it, or `resources.http_hosts` of the binding together with \
                 `permissions.http_hosts` of the harness"
            ),
        };
        format!("agent-host does not connect to {host}:{port}: {problem}; {fix}")
    }
}

/// The tunnel that a connection becomes.
type Tunnel = Arc<Mutex<Option<(OnUpgrade, TunnelEnd)>>>;

/// The other end of a tunnel.
enum TunnelEnd {
    /// A destination, to which bytes go as they are.
    Bytes(TcpStream),
    /// The host of the run on this machine: each request is passed on by itself.
    OwnHost(SocketAddr),
}

/// Serves one connection.
async fn attend(stream: Connection<UnixStream>, judge: Arc<Judge>) {
    let tunnel = Tunnel::default();
    let service = service_fn(|request| {
        let (judge, tunnel) = (Arc::clone(&judge), Arc::clone(&tunnel));
        async move { Ok::<_, Infallible>(answer(request, &judge, &tunnel).await) }
    });
    // The program has gone, or has sent what is no HTTP; nobody is there to be told.
    let _ = relay::http_server().serve_connection(stream, service).with_upgrades().await;
    let taken = tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((upgrade, end)) = taken else { return };
    let Ok(inside) = upgrade.await else { return };
    match end {
        TunnelEnd::Bytes(mut outside) => {
            let _ = copy_bidirectional(&mut TokioIo::new(inside), &mut outside).await;
        }
        TunnelEnd::OwnHost(outside) => relay::serve_host(inside, outside).await,
    }
}

async fn answer(request: Request<Incoming>, judge: &Judge, tunnel: &Tunnel) -> Answer {
    let uri = request.uri();
    let is_connect = request.method() == Method::CONNECT;
    let default_port = (uri.scheme_str() == Some("http")).then_some(80);
    let port = uri.port_u16().or(default_port);
    let (Some(host), Some(port)) = (uri.host().filter(|host| !host.is_empty()).map(ToOwned::to_owned), port) else {
        let text = "send CONNECT HOST:PORT, or a request with a whole URL of `http`; `https` goes by CONNECT";
        return plain(StatusCode::BAD_REQUEST, text.to_owned());
    };
    if !is_connect && uri.scheme_str() != Some("http") {
        return plain(StatusCode::BAD_REQUEST, "a URL of this proxy is one of `http`; `https` goes by CONNECT".to_owned());
    }
    if !is_connect {
        return pass_on(request, (&host, port), judge).await;
    }
    let outside = match judge.connect(&host, port).await {
        Ok(outside) => outside,
        Err(refusal) => return refusal,
    };
    let end = match outside.peer_addr() {
        Ok(peer) if judge.egress.is_own_host(peer) => TunnelEnd::OwnHost(peer),
        Ok(_) => TunnelEnd::Bytes(outside),
        // It has gone already.
        Err(error) => return relay::bad_gateway(&host, port, &error.to_string()),
    };
    *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some((on(request), end));
    Response::new(Either::Left(Full::default()))
}

/// Passes a request on to the destination, if that is allowed.
async fn pass_on(request: Request<Incoming>, (host, port): (&str, u16), judge: &Judge) -> Answer {
    match judge.connect(host, port).await {
        Ok(outside) => relay::forward(request, outside).await.unwrap_or_else(|error| relay::bad_gateway(host, port, &error)),
        Err(refusal) => refusal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_host_config::AddressRules;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::timeout,
    };

    use super::*;
    use crate::relay::{MAX_CONNECTIONS, MAX_HEAD};

    /// A proxy that reaches one port of this machine, with its folder.
    fn proxy(port: u16) -> (tempfile::TempDir, Proxy) {
        proxy_of(&[port], "")
    }

    fn proxy_of(ports: &[u16], base_url: &str) -> (tempfile::TempDir, Proxy) {
        let dir = tempfile::tempdir().unwrap();
        // Longer than the name of a socket may be.
        let deep = dir.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let rules = Arc::new(AddressRules::new(&["127.0.0.2".to_owned()]).unwrap());
        let egress = Egress::new(["127.0.0.2:*".to_owned()].iter(), rules, ports, base_url);
        let proxy = Proxy::start(deep.join("socket"), egress, "plugin:acme/coder/default".to_owned(), None).unwrap();
        (dir, proxy)
    }

    async fn connect(proxy: &Proxy) -> UnixStream {
        let dir = std::fs::File::open(proxy.socket().parent().unwrap()).unwrap();
        UnixStream::connect(format!("/proc/self/fd/{}/socket", dir.as_raw_fd())).await.unwrap()
    }

    async fn said(proxy: &Proxy, request: &str) -> String {
        let mut stream = connect(proxy).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.unwrap().unwrap();
        text
    }

    /// A server that answers each connection with the head that it got, and its port.
    async fn server() -> u16 {
        server_at("127.0.0.1:0").await
    }

    async fn server_at(address: &str) -> u16 {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let answer = format!("HTTP/1.1 200 OK\r\nKeep-Alive: 1\r\nContent-Length: {}\r\n\r\n", head.len());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    stream.write_all(&head).await.unwrap();
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn requests_and_tunnels_reach_what_is_allowed_and_nothing_else() {
        let port = server().await;
        let (_dir, proxy) = proxy(port);
        let request =
            format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n\r\nGET /in HTTP/1.1\r\nConnection: close\r\n\r\n");
        let tunnel = said(&proxy, &request).await;
        assert!(tunnel.starts_with("HTTP/1.1 200 OK\r\n") && tunnel.contains("GET /in HTTP/1.1\r\n"), "{tunnel}");
        let request = format!(
            "GET http://u:p@127.0.0.1:{port}/path?q=1 HTTP/1.1\r\nHost: another.example\r\nProxy-Authorization: Basic eA==\r\n\
             Connection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 1\r\n\r\n"
        );
        let passed = said(&proxy, &request).await.to_ascii_lowercase();
        assert!(passed.contains("get /path?q=1 http/1.1\r\n") && passed.contains("x-kept: 1\r\n"), "{passed}");
        assert!(passed.contains(&format!("host: 127.0.0.1:{port}\r\n")) && !passed.contains("another.example"), "{passed}");
        assert!(!passed.contains("proxy-auth") && !passed.contains("x-hop: 1") && !passed.contains("keep-alive: 1"), "{passed}");
        assert!(passed.contains("via: 1.1 agent-host\r\n"), "{passed}");
        // The second request of a connection is judged like the first.
        let request = format!(
            "GET http://localhost:{port}/one HTTP/1.1\r\nHost: x\r\n\r\n\
             GET http://example.com/two HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
        );
        let two = said(&proxy, &request).await;
        assert!(two.contains("GET /one HTTP/1.1\r\n") && !two.contains("GET /two"), "{two}");
        assert!(two.contains("HTTP/1.1 403 Forbidden\r\n") && two.contains("does not connect to example.com:80"), "{two}");
        for (request, expect) in [
            ("CONNECT example.com:443 HTTP/1.1\r\nConnection: close\r\n\r\n", "403 Forbidden"),
            ("CONNECT example.com HTTP/1.1\r\nConnection: close\r\n\r\n", "400 Bad Request"),
            ("GET /path HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "400 Bad Request"),
            ("GET https://localhost/ HTTP/1.1\r\nConnection: close\r\n\r\n", "400 Bad Request"),
            ("GET ftp://localhost:21/ HTTP/1.1\r\nConnection: close\r\n\r\n", "400 Bad Request"),
            ("\x16\x03\x01 no HTTP\r\n\r\n", "400 Bad Request"),
        ] {
            let answer = said(&proxy, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {expect}\r\n")), "{request:?}: {answer}");
        }
    }

    #[tokio::test]
    async fn the_host_of_the_run_is_told_that_requests_come_by_a_proxy() {
        let port = server().await;
        let (_dir, proxy) = proxy_of(&[port], &format!("http://localhost:{port}"));
        let request = format!(
            "CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nGET /one HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n\
             POST /two HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close, Via\r\nVia: none\r\n\r\n"
        );
        let said = said(&proxy, &request).await.to_ascii_lowercase();
        assert!(said.contains("get /one http/1.1\r\n") && said.contains("post /two http/1.1\r\n"), "{said}");
        assert!(said.contains(&format!("host: localhost:{port}\r\n")), "{said}");
        assert_eq!(said.matches("via: 1.1 agent-host\r\n").count(), 2, "{said}");
        // By another name that a rule allows, it is the same host.
        let everywhere = server_at("0.0.0.0:0").await;
        let (_dir, other) = proxy_of(&[], &format!("http://localhost:{everywhere}"));
        let request =
            format!("CONNECT 127.0.0.2:{everywhere} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let by_name = self::said(&other, &request).await.to_ascii_lowercase();
        assert!(by_name.contains("get / http/1.1\r\n") && by_name.contains("via: 1.1 agent-host\r\n"), "{by_name}");
        for inner in ["CONNECT 127.0.0.1:1 HTTP/1.1\r\nConnection: close\r\n\r\n", "\x16\x03\x01 no HTTP\r\n\r\n"] {
            let answer = self::said(&proxy, &format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n{inner}")).await;
            assert!(answer.contains("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_head_and_the_connections_of_a_run_have_bounds() {
        let port = server().await;
        let (_dir, proxy) = proxy(port);
        let large =
            format!("GET http://localhost:{port}/ HTTP/1.1\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(4 * MAX_HEAD));
        let mut stream = connect(&proxy).await;
        // The proxy may close before the end of it.
        let _ = stream.write_all(large.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");

        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(connect(&proxy).await);
        }
        let mut waiting = connect(&proxy).await;
        waiting.write_all(b"CONNECT x:1 HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        timeout(Duration::from_millis(300), waiting.read_to_string(&mut text)).await.unwrap_err();
        idle.truncate(1);
        timeout(Duration::from_secs(20), waiting.read_to_string(&mut text)).await.unwrap().unwrap();
        assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
        let socket = proxy.socket().to_owned();
        drop(proxy);
        assert!(!socket.exists());
        timeout(Duration::from_secs(20), idle[0].read_u8()).await.unwrap().unwrap_err();
    }
}

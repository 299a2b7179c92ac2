//! Against real servers on this machine, which say exactly the bytes that a test wants.

mod redirects;
mod secrets;
mod streams;

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_protocol::{ApiError, ErrorCode, http::HttpRequest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, rustls};

use super::{resolve::Lookup, *};
use crate::secret::SecretRef;

const CANARY: &str = "canary-0123456789-secret";

// ---- Servers.

/// The behaviour of a server after reading a request.
enum Act {
    Say(Vec<u8>),
    Pause(u64),
    /// Until the client is gone.
    Repeat(Vec<u8>),
}

type Answer = Arc<dyn Fn(&str) -> Vec<Act> + Send + Sync>;

/// A server on a free port of the machine.
struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }

    fn last(&self) -> String {
        self.seen.lock().last().cloned().unwrap()
    }
}

async fn serve(answer: impl Fn(&str) -> Vec<Act> + Send + Sync + 'static) -> Server {
    serve_at("127.0.0.1:0", None, Arc::new(answer)).await
}

async fn serve_tls(answer: impl Fn(&str) -> Vec<Act> + Send + Sync + 'static) -> Server {
    let cert = rustls::pki_types::CertificateDer::from(include_bytes!("testdata/cert.der").as_slice());
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(include_bytes!("testdata/key.der").as_slice());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key.into())
        .unwrap();
    serve_at("127.0.0.1:0", Some(TlsAcceptor::from(Arc::new(config))), Arc::new(answer)).await
}

async fn serve_at(address: &str, tls: Option<TlsAcceptor>, answer: Answer) -> Server {
    let listener = TcpListener::bind(address).await.unwrap();
    let server = Server { port: listener.local_addr().unwrap().port(), seen: Arc::default(), connections: Arc::default() };
    let (seen, connections) = (Arc::clone(&server.seen), Arc::clone(&server.connections));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.fetch_add(1, Ordering::Relaxed);
            let (seen, answer, tls) = (Arc::clone(&seen), Arc::clone(&answer), tls.clone());
            tokio::spawn(async move {
                match tls {
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            talk(stream, seen, answer).await;
                        }
                    }
                    None => talk(stream, seen, answer).await,
                }
            });
        }
    });
    server
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Mutex<Vec<String>>>, answer: Answer) {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let chunked = head.contains("transfer-encoding: chunked");
            if (chunked && body.ends_with("0\r\n\r\n")) || (!chunked && body.len() >= length.unwrap_or(0)) {
                break;
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&buffer[..read]),
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    seen.lock().push(request.clone());
    for act in answer(&request) {
        match act {
            Act::Pause(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Act::Say(bytes) => {
                if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
            Act::Repeat(bytes) => while stream.write_all(&bytes).await.is_ok() {},
        }
    }
    let _ = stream.shutdown().await;
}

fn say(bytes: impl AsRef<[u8]>) -> Act {
    Act::Say(bytes.as_ref().to_vec())
}

fn ok(body: &str) -> Vec<Act> {
    vec![say(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()))]
}

fn redirect_to(status: u16, location: &str) -> Vec<Act> {
    vec![say(format!("HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"))]
}

// ---- Names.

/// Names with the answers that they give, one after the other; the last is repeated.
#[derive(Debug, Default)]
struct Names(Mutex<HashMap<String, Vec<Vec<IpAddr>>>>, AtomicUsize);

impl Names {
    fn new(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        let names = names.iter().map(|(name, answers)| ((*name).to_owned(), answers.iter().map(parse).collect()));
        Arc::new(Self(Mutex::new(names.collect()), AtomicUsize::new(0)))
    }
}

impl Lookup for Names {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let mut names = self.0.lock();
        let answer = match names.get_mut(&name) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::Error::other("no such name")),
        };
        Box::pin(async { answer })
    }
}

// ---- Requests.

fn local() -> EgressConfig {
    EgressConfig { allow_addresses: vec!["127.0.0.0/8".into()], ..EgressConfig::default() }
}

fn open(config: &EgressConfig) -> Egress {
    Egress::open(config, &[]).unwrap()
}

struct EgressWithFiles {
    egress: Egress,
    _files: Vec<tempfile::NamedTempFile>,
}

/// With secrets (name, value, host).
fn with_secrets(secrets: &[(&str, &str, &str)], lookup: Arc<dyn Lookup>) -> EgressWithFiles {
    let (mut configs, mut files) = (Vec::new(), Vec::new());
    for (name, value, host) in secrets {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), value).unwrap();
        configs.push(HttpSecretConfig {
            name: (*name).into(),
            value: SecretRef::File(file.path().into()),
            hosts: vec![(*host).to_owned()],
        });
        files.push(file);
    }
    let root = reqwest::Certificate::from_der(include_bytes!("testdata/cert.der")).unwrap();
    EgressWithFiles { egress: Egress::build(&local(), &configs, lookup, vec![root]).unwrap(), _files: files }
}

fn get(url: impl Into<String>) -> HttpRequest {
    HttpRequest { method: "GET".into(), url: url.into(), headers: Vec::new(), body: Vec::new(), timeout_ms: None }
}

fn with(mut request: HttpRequest, name: &str, value: &str) -> HttpRequest {
    request.headers.push((name.into(), value.into()));
    request
}

fn any() -> AllowedOwned {
    AllowedOwned { hosts: vec!["*:*".into()], secrets: vec!["api".into(), "other".into()] }
}

fn hosts(hosts: &[&str]) -> AllowedOwned {
    AllowedOwned { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..any() }
}

fn bounds() -> Bounds {
    Bounds { deadline: Instant::now() + Duration::from_secs(20), request_bytes: 1 << 20, response_bytes: 1 << 20 }
}

async fn send(egress: &Egress, request: &HttpRequest) -> Result<Response, ApiError> {
    egress.send(request, &any().as_ref(), &bounds()).await
}

async fn body(response: &mut Response) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    loop {
        let piece = response.read(1000).await?;
        if piece.is_empty() {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        assert!(piece.len() <= 1000);
        bytes.extend(piece);
    }
}

async fn text(egress: &Egress, request: &HttpRequest) -> Result<String, ApiError> {
    body(&mut send(egress, request).await?).await
}

#[track_caller]
fn refused<T>(result: Result<T, ApiError>, code: &str) -> ApiError {
    let error = result.err().unwrap_or_else(|| panic!("{code} was expected"));
    assert_eq!(error.details.as_ref().unwrap()["code"], code, "{error:?}");
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    error
}

// ---- Reaching hosts.

#[tokio::test]
async fn a_request_goes_out_as_it_was_made_and_the_response_comes_back() {
    let server = serve(|_| {
        vec![say(b"HTTP/1.1 201 Created\r\nX-One: 1\r\nx-one: 2\r\nx-odd: \xff\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")]
    })
    .await;
    let mut request = with(with(get(server.url("/a%20b?q=1#frag")), "X-Two", "1"), "x-two", "2 {{secret}} {secret:api}");
    request.method = "POST".into();
    request.body = b"{{secret:api}}".to_vec();
    let mut response = send(&open(&local()), &request).await.unwrap();
    assert_eq!(response.head().status, 201);
    let values =
        |name: &str| response.head().headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
    assert_eq!(values("x-one"), ["1", "2"]);
    assert_eq!(values("x-odd"), ["\u{fffd}"]);
    assert_eq!(response.read(2).await.unwrap(), b"ab");
    assert_eq!(body(&mut response).await.unwrap(), "cde");
    assert!(response.read(1).await.unwrap().is_empty(), "the end stays the end");
    assert_eq!(response.read(0).await.unwrap_err().code, ErrorCode::InvalidArgument);
    let seen = server.last();
    assert!(seen.starts_with("POST /a%20b?q=1 HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("x-two: 1\r\n") && seen.contains("x-two: 2 {{secret}} {secret:api}\r\n"), "{seen}");
    assert!(seen.contains(concat!("user-agent: agent-host/", env!("CARGO_PKG_VERSION"))), "{seen}");
    assert!(seen.ends_with("\r\n\r\n{{secret:api}}"), "a body is plain text: {seen}");
    assert!(!seen.contains("accept-encoding"), "{seen}");

    let _ = send(&open(&local()), &with(get(server.url("/")), "User-Agent", "mine")).await.unwrap();
    assert!(server.last().contains("user-agent: mine\r\n"));
    let _ = send(&open(&local()), &HttpRequest { method: "POST".into(), ..get(server.url("/")) }).await.unwrap();
    assert!(server.last().contains("content-length: 0\r\n"));
}

#[tokio::test]
async fn only_hosts_that_are_allowed_are_reached() {
    let server = serve(|_| ok("in")).await;
    let egress = open(&local());
    let port = server.port;
    for (patterns, expect) in [
        (vec![format!("127.0.0.1:{port}")], true),
        (vec!["*:*".into()], true),
        (vec!["bad pattern".into(), "127.0.0.1:*".into()], true),
        (vec!["127.0.0.1".into()], false),
        (vec!["localhost:*".into()], false),
        (vec!["*:443".into()], false),
        (vec!["bad pattern".into()], false),
        (vec![], false),
    ] {
        let allowed = AllowedOwned { hosts: patterns.clone(), secrets: Vec::new() };
        let request = get(server.url("/"));
        let checked = egress.check(&request, &allowed.as_ref());
        let sent = egress.send(&request, &allowed.as_ref(), &bounds()).await;
        if expect {
            checked.unwrap();
            assert_eq!(sent.unwrap().head().status, 200, "{patterns:?}");
        } else {
            assert_eq!(refused(checked, "host_not_allowed"), refused(sent, "host_not_allowed"), "{patterns:?}");
        }
    }
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn a_file_is_fetched_from_the_named_hosts_alone() {
    let server = serve(|request| match request.split(' ').nth(1) {
        Some("/file") => ok("content"),
        Some("/gone") => vec![say("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")],
        Some("/near") => redirect_to(302, "/file"),
        Some("/far") => redirect_to(302, "http://localhost:1/file"),
        Some("/inside") => redirect_to(307, "http://169.254.169.254/latest"),
        Some("/large") => ok(&"x".repeat(1001)),
        _ => vec![say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"), Act::Pause(5_000)],
    })
    .await;
    let egress = open(&local());
    let only = [format!("127.0.0.1:{}", server.port)];
    let everywhere = ["*:*".to_owned()];
    let fetch = async |path: &str, hosts: &[String]| {
        let deadline = Instant::now() + Duration::from_millis(1_500);
        let mut response = egress.fetch(&server.url(path), hosts, 1_000, deadline).await?;
        Ok::<_, ApiError>((response.head().status, body(&mut response).await?))
    };
    assert_eq!(fetch("/file", &only).await.unwrap(), (200, "content".to_owned()));
    let seen = server.last().to_ascii_lowercase();
    assert!(seen.starts_with("get /file ") && seen.contains("accept-encoding: identity\r\n"), "{seen}");
    assert_eq!(fetch("/near", &only).await.unwrap(), (200, "content".to_owned()));
    assert_eq!(fetch("/gone", &only).await.unwrap().0, 404);
    refused(fetch("/file", &[]).await, "host_not_allowed");
    refused(fetch("/file", &["example.com".to_owned()]).await, "host_not_allowed");
    refused(fetch("/far", &only).await, "redirect_not_allowed");
    refused(fetch("/inside", &everywhere).await, "address_not_allowed");
    refused(fetch("/large", &only).await, "response_too_large");
    refused(fetch("/slow", &only).await, "http_timeout");
    let closed = open(&EgressConfig::default());
    let deadline = Instant::now() + Duration::from_secs(5);
    refused(closed.fetch(&server.url("/file"), &everywhere, 1_000, deadline).await, "address_not_allowed");
    for url in ["file:///etc/passwd", "data:,x", "http://user@127.0.0.1/", "/relative", ""] {
        refused(egress.fetch(url, &everywhere, 1_000, deadline).await, "invalid_request");
    }
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_in_every_spelling() {
    let server = serve(|_| ok("in")).await;
    let (closed, port) = (open(&EgressConfig::default()), server.port);
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0x7f000001",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "①②⑦.0.0.1",
        "0.0.0.0",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "10.0.0.1",
        "localhost",
    ] {
        let request = get(format!("http://{host}:{port}/"));
        let error = refused(send(&closed, &request).await, "address_not_allowed");
        assert_eq!((error.code, error.retryable), (ErrorCode::Unauthorized, false), "{host}");
        if host != "localhost" {
            refused(closed.check(&request, &any().as_ref()), "address_not_allowed");
        }
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
    let open = open(&local());
    for host in ["localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"] {
        assert_eq!(text(&open, &get(format!("http://{host}:{port}/"))).await.unwrap(), "in", "{host}");
    }
    refused(send(&open, &get(format!("http://169.254.169.254:{port}/"))).await, "address_not_allowed");
}

#[tokio::test]
async fn a_url_in_another_spelling_is_judged_by_what_it_means() {
    let server = serve(|_| ok("in")).await;
    let (egress, port) = (open(&local()), server.port);
    let allowed = hosts(&["127.0.0.1:*"]);
    for host in ["2130706433", "0x7f.1", "127.1"] {
        egress.check(&get(format!("http://{host}:{port}/")), &allowed.as_ref()).unwrap();
    }
    refused(egress.check(&get(format!("http://[::ffff:127.0.0.1]:{port}/")), &allowed.as_ref()), "host_not_allowed");
    refused(egress.check(&get("http://api.example.com\\@evil.net/"), &hosts(&["evil.net:*"]).as_ref()), "host_not_allowed");
    egress.check(&get("HTTPS://API.Example.com"), &hosts(&["api.example.com"]).as_ref()).unwrap();
    egress.check(&get("https://bücher.example"), &hosts(&["xn--bcher-kva.example"]).as_ref()).unwrap();
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_connected_to() {
    let server = serve(|_| ok("right")).await;
    let metadata: &[&str] = &["169.254.169.254"];
    let names = Names::new(&[
        // A name with an allowed address first and a forbidden one afterwards, as in DNS rebinding.
        ("turns.test", &[&["127.0.0.1"], metadata]),
        ("mixed.test", &[&["169.254.169.254", "10.0.0.1", "127.0.0.1", "::1"]]),
        ("bad.test", &[metadata]),
        ("empty.test", &[&[]]),
    ]);
    let egress = Egress::build(&local(), &[], names.clone(), Vec::new()).unwrap();
    let url = |name: &str| format!("http://{name}:{}/", server.port);
    assert_eq!(text(&egress, &get(url("turns.test"))).await.unwrap(), "right");
    assert_eq!(names.1.load(Ordering::Relaxed), 1, "the name is asked for once");
    refused(send(&egress, &get(url("turns.test"))).await, "address_not_allowed");
    assert_eq!(text(&egress, &get(url("mixed.test"))).await.unwrap(), "right");
    refused(send(&egress, &get(url("bad.test"))).await, "address_not_allowed");
    refused(send(&egress, &get(url("empty.test"))).await, "dns_failed");
    let error = refused(send(&egress, &get(format!("{}?key=canary", url("none.test")))).await, "dns_failed");
    assert_eq!((error.code, error.retryable), (ErrorCode::RuntimeError, true));
    assert_eq!(server.seen().len(), 2);
}

// ---- What is sent.

#[tokio::test]
async fn malformed_requests_are_refused_before_anything_is_sent() {
    let egress = open(&local());
    let request = || get("http://127.0.0.1:9/");
    let method = |method: &str| HttpRequest { method: method.into(), ..request() };
    let long = "a".repeat(9 << 10);
    for bad in [
        get(""),
        get("/path"),
        get("ftp://127.0.0.1/"),
        get("file:///etc/passwd"),
        get("http://user@127.0.0.1/"),
        get("http://user:canary@127.0.0.1/"),
        get("http://:canary@127.0.0.1/"),
        get("http://127.0.0.1:0/"),
        get("http://127.0.0.1:99999/"),
        get("http://[::1/"),
        get("http:///"),
        get(format!("http://127.0.0.1/{long}")),
        get(format!("http://127.0.0.1/{}", "ü".repeat(2 << 10))),
        method(""),
        method("GET /"),
        method("G\r\nET"),
        method("CONNECT"),
        method("connect"),
        method("TRACE"),
        method(&long),
        with(request(), "", "x"),
        with(request(), "a b", "x"),
        with(request(), "a\r\nb", "x"),
        with(request(), ":authority", "x"),
        with(request(), "x-a", "b\r\nx-injected: 1"),
        with(request(), "x-a", "b\nc"),
        with(request(), "x-a", "b\0c"),
        with(request(), "x-a", "{{secret:api"),
        with(request(), "x-a", &"b".repeat(33 << 10)),
        with(request(), "Host", "evil.example"),
        with(request(), "Content-Length", "0"),
        with(request(), "Transfer-Encoding", "chunked"),
        with(request(), "Connection", "close"),
        with(request(), "Keep-Alive", "timeout=5"),
        with(request(), "Upgrade", "websocket"),
        with(request(), "TE", "trailers"),
        with(request(), "Trailer", "x"),
        with(request(), "Expect", "100-continue"),
        with(request(), "Proxy-Authorization", "x"),
        with(request(), "proxy-connection", "x"),
        (0..101).fold(request(), |request, _| with(request, "x-a", "b")),
    ] {
        let error = refused(egress.check(&bad, &any().as_ref()), "invalid_request");
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert_eq!(refused(send(&egress, &bad).await, "invalid_request"), error, "{bad:?}");
    }
    let large = HttpRequest { method: "PUT".into(), body: vec![0; (1 << 20) + 1], ..request() };
    assert_eq!(refused(send(&egress, &large).await, "request_too_large").code, ErrorCode::PayloadTooLarge);
}

// ---- What comes back.

#[tokio::test]
async fn bodies_and_heads_without_end_are_cut_off() {
    let server = serve(|request| {
        let head = say("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        match request.split(' ').nth(1).unwrap() {
            "/endless" => vec![head, Act::Repeat(vec![b'x'; 10_000])],
            "/drip" => vec![head, say("first"), Act::Pause(60_000)],
            "/silent" => vec![Act::Pause(60_000)],
            "/half-head" => vec![say("HTTP/1.1 200 OK\r\nx-a: b\r\n"), Act::Pause(60_000)],
            "/endless-head" => {
                vec![say("HTTP/1.1 200 OK\r\n"), Act::Repeat(b"x-a: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n".to_vec())]
            }
            "/endless-line" => vec![say("HTTP/1.1 200 OK\r\nx-a: "), Act::Repeat(vec![b'b'; 10_000])],
            "/large-head" => vec![say(format!("HTTP/1.1 200 OK\r\nx-a: {}\r\n\r\n", "b".repeat(65 << 10)))],
            "/many-headers" => vec![say(format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-a: b\r\n".repeat(101)))],
            "/garbage" => vec![say("SSH-2.0-OpenSSH\r\n\r\n")],
            "/short" => vec![say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")],
            _ => vec![],
        }
    })
    .await;
    let egress = open(&local());
    let url = |path: &str| get(server.url(path));

    let mut endless = send(&egress, &url("/endless")).await.unwrap();
    let error = refused(body(&mut endless).await, "response_too_large");
    assert_eq!((error.code, error.details.unwrap()["limit"].as_u64()), (ErrorCode::PayloadTooLarge, Some(1 << 20)));
    refused(endless.read(1).await, "response_too_large");

    let started = Instant::now();
    let soon = || Bounds { deadline: Instant::now() + Duration::from_millis(300), ..bounds() };
    let mut drip = egress.send(&url("/drip"), &any().as_ref(), &soon()).await.unwrap();
    assert_eq!(drip.read(100).await.unwrap(), b"first");
    let error = refused(drip.read(100).await, "http_timeout");
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    refused(egress.send(&url("/silent"), &any().as_ref(), &soon()).await, "http_timeout");
    refused(egress.send(&url("/half-head"), &any().as_ref(), &soon()).await, "http_timeout");
    refused(send(&egress, &HttpRequest { timeout_ms: Some(100), ..url("/silent") }).await, "http_timeout");
    assert!(started.elapsed() < Duration::from_secs(10));

    for path in ["/endless-head", "/endless-line", "/large-head", "/many-headers"] {
        let error = refused(send(&egress, &url(path)).await, "response_head_too_large");
        assert_eq!(error.code, ErrorCode::RuntimeError, "{path}");
    }
    refused(send(&egress, &url("/garbage")).await, "invalid_response");
    let error = refused(text(&egress, &url("/short")).await, "connection_closed");
    assert!(error.retryable);
    refused(send(&egress, &url("/closed?key=canary")).await, "connection_closed");
}

#[tokio::test]
async fn why_there_is_no_connection_is_said() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let egress = open(&local());
    let error = refused(send(&egress, &get(format!("http://127.0.0.1:{closed}/?key=canary"))).await, "connect_failed");
    assert_eq!((error.code, error.retryable), (ErrorCode::RuntimeError, true));

    let tls = serve_tls(|_| ok("in")).await;
    let url = format!("https://127.0.0.1:{}/?key=canary", tls.port);
    let error = refused(send(&egress, &get(&url)).await, "tls_failed");
    assert!(error.retryable, "its certificate is not known");
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let no_tls = format!("https://{}/", plain.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    refused(send(&egress, &get(no_tls)).await, "tls_failed");
    let names = Names::new(&[("three.test", &[&["127.0.0.1"]]), ("one.test", &[&["127.0.0.1"]])]);
    let kept = with_secrets(&[], names);
    assert_eq!(text(&kept.egress, &get(url)).await.unwrap(), "in");
    assert_eq!(text(&kept.egress, &get(format!("https://one.test:{}/", tls.port))).await.unwrap(), "in");
    refused(send(&kept.egress, &get(format!("https://three.test:{}/", tls.port))).await, "tls_failed");
}

#[test]
fn the_documentation_has_every_error() {
    let table = include_str!("mod.rs").lines().skip_while(|line| !line.starts_with("//! | `details.code`")).skip(2);
    let rows: Vec<&str> = table.take_while(|line| line.starts_with("//! |")).collect();
    assert_eq!(rows.len(), Category::ALL.len());
    for (category, row) in Category::ALL.into_iter().zip(rows) {
        let (code, retryable) = category.kind();
        let retryable = if retryable { "yes" } else { "no" };
        assert!(row.starts_with(&format!("//! | `{}` | `{code}` | {retryable} |", category.as_str())), "{row}");
    }
}

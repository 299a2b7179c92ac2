//! Requests of agents that are passed on: to a server, or to the host of the run.
//!
//! Requests to the host say that they were passed on (`Via`): the host does not take an agent for a user of this machine
//! (`loopback_without_key`).

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, UPGRADE, VIA},
};
use http_body_util::{Either, Full};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1 as client,
    rt::{Read, Write},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Mutex,
    task::JoinSet,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::activity::{Activity, Watched};

/// Connections of one run at one time; more wait.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Largest head of a request or a response, in bytes.
pub(crate) const MAX_HEAD: usize = 64 * 1024;
/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(60);
/// Time without a byte in any direction after which a connection is closed. A model may think for long before it answers.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// The value of `Via` in requests that are passed on (RFC 9110, section 7.6.3).
const PASSED_ON: HeaderValue = HeaderValue::from_static("1.1 agent-host");
/// Headers of one connection, which are not passed on.
const OF_CONNECTION: [HeaderName; 6] = [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, UPGRADE];
/// Further ones, which have no constant.
const OF_CONNECTION_TOO: [&str; 2] = ["keep-alive", "proxy-connection"];

/// The answer to an agent.
pub(crate) type Answer = Response<Either<Full<Bytes>, Driven>>;

/// A connection of an agent. It ends when nothing was sent on it for long.
pub(crate) type Connection<S> = TokioIo<Watched<S>>;

/// The way to accept connections.
pub(crate) trait Listener {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Waits for the next one.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let stream = self.accept().await?.0;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Accepts connections and attends to them. Dropping the future closes them all.
pub(crate) async fn serve<L: Listener, A: Future<Output = ()> + Send + 'static>(
    listener: L,
    attend: impl Fn(Connection<L::Stream>) -> A,
) {
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    let activity = Activity::default();
                    let attended = attend(TokioIo::new(Watched { stream, activity: activity.clone() }));
                    connections.spawn(async move {
                        tokio::select! {
                            () = attended => {}
                            () = activity.is_over(IDLE) => {}
                        }
                    });
                }
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// The server side of a connection of an agent.
pub(crate) fn http_server() -> server::Builder {
    let mut builder = server::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(MAX_HEAD).half_close(true);
    builder
}

/// Passes the requests of a connection on to the host of the run, by one connection after the other.
pub(crate) async fn serve_host(stream: impl Read + Write + Unpin, host: SocketAddr) {
    let line = Mutex::new(None);
    let service = service_fn(|request| {
        let line = &line;
        async move { Ok::<_, Infallible>(answer_of_host(request, host, &mut *line.lock().await).await) }
    });
    // The program has gone, or has sent what is no HTTP; nobody is there to be told.
    let _ = http_server().serve_connection(stream, service).await;
}

/// A connection to a server.
struct Line {
    sender: client::SendRequest<Incoming>,
    driver: AbortOnDropHandle<()>,
}

impl Line {
    async fn new(outside: TcpStream) -> Result<Self, String> {
        let shaken = client::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(outside)).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            // An error is that of the request or of its body.
            let _ = connection.await;
        }));
        Ok(Self { sender, driver })
    }
}

/// The answer of the host of the run.
async fn answer_of_host(request: Request<Incoming>, host: SocketAddr, line: &mut Option<Line>) -> Answer {
    if request.method() == Method::CONNECT || request.uri().authority().is_some() {
        return plain(StatusCode::BAD_REQUEST, "a request to the host has a path and no URL".to_owned());
    }
    let answered = async {
        let mut request = passed_on(request)?;
        loop {
            let kept = line.take();
            let is_kept = kept.is_some();
            let mut open = match kept {
                Some(open) => open,
                None => Line::new(connect(host).await.map_err(|error| error.to_string())?).await?,
            };
            // An error is that of the request as well.
            let _ = open.sender.ready().await;
            match open.sender.try_send_request(request).await {
                Ok(response) => {
                    *line = Some(open);
                    return Ok(answer(response, None));
                }
                Err(mut error) => match error.take_message() {
                    // The host had closed a connection that was idle: the request was not sent.
                    Some(unsent) if is_kept => request = unsent,
                    _ => return Err(error.into_error().to_string()),
                },
            }
        }
    };
    let answered: Result<Answer, String> = answered.await;
    answered.unwrap_or_else(|error| bad_gateway(&host.ip().to_string(), host.port(), &error))
}

async fn connect(host: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(host).await?;
    // Small messages are not held back.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request to the server that it is for, on a connection of its own.
pub(crate) async fn forward(request: Request<Incoming>, outside: TcpStream) -> Result<Answer, String> {
    let request = passed_on(request)?;
    let Line { mut sender, driver } = Line::new(outside).await?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(answer(response, Some(driver)))
}

/// A request as the server gets it.
fn passed_on(request: Request<Incoming>) -> Result<Request<Incoming>, String> {
    let (mut head, body) = request.into_parts();
    // The server is the one that was judged, whatever the header said.
    if let Some(authority) = head.uri.authority() {
        // Credentials before the host are for a header, which the program has set or not.
        let named = authority.as_str().rsplit('@').next().unwrap_or_default();
        head.headers.insert(HOST, HeaderValue::from_str(named).map_err(|error| error.to_string())?);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse::<Uri>().map_err(|error| error.to_string())?;
    of_one_connection(&mut head.headers);
    head.headers.append(VIA, PASSED_ON);
    Ok(Request::from_parts(head, body))
}

/// The answer of a server, received by `driver` where the connection has no other owner.
fn answer(response: Response<Incoming>, driver: Option<AbortOnDropHandle<()>>) -> Answer {
    let (mut head, body) = response.into_parts();
    of_one_connection(&mut head.headers);
    Response::from_parts(head, Either::Right(Driven { body, _driver: driver }))
}

/// Removes the headers that are about one connection.
fn of_one_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
    for name in OF_CONNECTION_TOO {
        headers.remove(name);
    }
}

/// An answer of the host's side of the connection.
pub(crate) fn plain(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(text + "\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// The answer where a server is not reached.
pub(crate) fn bad_gateway(host: &str, port: u16, error: &str) -> Answer {
    plain(StatusCode::BAD_GATEWAY, format!("{host}:{port}: {error}"))
}

/// The body of an answer, and the task that receives it. With the body, the task ends.
pub(crate) struct Driven {
    body: Incoming,
    _driver: Option<AbortOnDropHandle<()>>,
}

impl Body for Driven {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

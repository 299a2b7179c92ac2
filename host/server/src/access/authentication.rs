//! Admission: a request without a known principal is refused.
//!
//! The middleware covers every path, unknown ones included, except the few that [`is_open`] names. The rights of the caller
//! are checked by each route.

use std::{collections::BTreeSet, net::IpAddr};

use agent_host_config::Config;
use agent_host_protocol::{
    Principal, PrincipalKind, Scope,
    auth::{MAX_END_USER, PROVIDER_USER_PREFIX, executor_of, is_end_user},
};
use agent_host_runs::Validity;
use axum::{
    body::{Body, HttpBody},
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;

use super::{
    identity::{Identities, Judgement, TokenUser, TokenValidity, Verdict},
    stream_token::{self, Holder},
};
use crate::{
    app::App,
    http::{
        Problem, ProblemCode,
        connections::Peer,
        forwarded::{ForwardedRequest, Locality, RequestPart},
        headers::{self, SEC_FETCH_SITE},
        workspaces::is_of_workspaces,
    },
};

/// Paths that need nobody to be known: the health of the process, the description of the API, its page and the chat page, which have
/// no facts of runs, and what the routes themselves hold against a signature.
const OPEN: &[(Method, &str)] = &[
    (Method::GET, "/"),
    (Method::HEAD, "/"),
    (Method::GET, "/chat/{file}"),
    (Method::HEAD, "/chat/{file}"),
    (Method::GET, "/api/v1/agent/attachments/{id}"),
    (Method::HEAD, "/api/v1/agent/attachments/{id}"),
    (Method::GET, "/docs"),
    (Method::HEAD, "/docs"),
    (Method::GET, "/docs/{file}"),
    (Method::HEAD, "/docs/{file}"),
    (Method::GET, "/api/v1/openapi.json"),
    (Method::HEAD, "/api/v1/openapi.json"),
    (Method::GET, "/healthz"),
    (Method::HEAD, "/healthz"),
    (Method::GET, "/readyz"),
    (Method::HEAD, "/readyz"),
    (Method::POST, "/api/v1/hooks/{name}"),
];

/// Headers that a proxy adds. Behind a proxy, every request has an address of this machine.
const FORWARDED: [HeaderName; 3] =
    [HeaderName::from_static("forwarded"), HeaderName::from_static("via"), HeaderName::from_static("x-real-ip")];
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Names the end user for whom a key with the scope `on_behalf_of` asks.
pub(crate) const END_USER: HeaderName = HeaderName::from_static("x-end-user");

/// The time that a sender is welcome for.
#[derive(Clone)]
pub(crate) enum Welcome {
    /// As long as its key is good.
    Key(Validity),
    /// As long as its token is good.
    Token(TokenValidity),
}

impl Welcome {
    async fn ended(self) {
        match self {
            Self::Key(key) => key.ended().await,
            Self::Token(token) => token.ended().await,
        }
    }

    fn over(&self) -> Problem {
        match self {
            Self::Key(_) => unknown("the key of this request was revoked or has expired"),
            Self::Token(token) => token.over(),
        }
    }
}

/// Judges the token of an identity provider, where a request has one and needs a sender: the first step of its admission, which may
/// wait.
pub(crate) fn judge_token(app: &App, identities: &Identities, request: &Request) -> Option<Verdict> {
    let mut headers = request.headers().get_all(header::AUTHORIZATION).iter();
    let token = bearer(headers.next()?)?;
    if headers.next().is_some() || is_open(request) {
        return None;
    }
    identities.judge(app, token)
}

/// Names the sender of a request to the routes. `token` is the judgement of its token, where it has one of an identity provider. Returns
/// the time that the sender is welcome for, where that has an end.
pub(crate) fn admit(app: &App, request: &mut Request, token: Option<Judgement>) -> Result<Option<Welcome>, Problem> {
    // Routes that are open may have a parameter of this name.
    let stream_token = if is_open(request) { None } else { stream_token::take(request)? };
    let known = match (token, stream_token) {
        (Some(judgement), _) => judgement.map(of_provider),
        (None, Some(text)) => of_stream_token(app, request, &text),
        (None, None) => principal_of(app, request).map(|principal| of_key(app, principal)),
    };
    let known = known.and_then(|(principal, welcome)| Ok((of_end_user(principal, request)?, welcome)));
    let (principal, welcome) = match (known, is_open(request)) {
        (Ok(known), _) => known,
        (Err(_), true) => return Ok(None),
        (Err(problem), false) => return Err(problem),
    };
    if !app.host.serves(&principal) && is_of_workspaces(request.uri().path()) {
        let detail =
            "the host that was asked does not know yet of which workspace the sender is: send the request again in a moment";
        return Err(Problem::new(ProblemCode::PartitionMoving, detail));
    }
    if !is_open(request)
        && let Err((wait, limit)) = app.host.keys().take_request(&principal)
    {
        let detail = format!(
            "the key `{}` may send {limit} requests in a minute: wait for `Retry-After`, or use a key with a larger `requests_per_minute`",
            principal.name
        );
        return Err(Problem::new(ProblemCode::RateLimited, detail).retry_after(wait));
    }
    request.extensions_mut().insert(principal);
    if let Some(Welcome::Token(validity)) = &welcome {
        request.extensions_mut().insert(validity.clone());
    }
    Ok(welcome)
}

fn of_provider(TokenUser { principal, validity }: TokenUser) -> (Principal, Option<Welcome>) {
    (principal, Some(Welcome::Token(validity)))
}

fn of_key(app: &App, principal: Principal) -> (Principal, Option<Welcome>) {
    let welcome = app.host.welcome(&principal).map(Welcome::Key);
    (principal, welcome)
}

/// The sender for whom a stream token was made, as long as its own credential is good.
fn of_stream_token(app: &App, request: &Request, text: &str) -> Result<(Principal, Option<Welcome>), Problem> {
    let (holder, end_user) = stream_token::judge(app, request, text)?;
    let (principal, welcome) = match holder {
        Holder::Loopback => (trusted(app, request)?, None),
        Holder::Key(id) => of_key(app, app.host.key_holder(&id).ok_or_else(stream_token::orphaned)?),
        Holder::User { provider, issuer, user, ends_at } => {
            of_provider(TokenUser::known(&app.host, &provider, &issuer, &user, ends_at).ok_or_else(stream_token::orphaned)?)
        }
    };
    Ok((Principal { end_user: principal.end_user.or(end_user), ..principal }, welcome))
}

/// The principal, on behalf of the end user that the request names. An end user reaches the routes of agents alone.
fn of_end_user(mut principal: Principal, request: &Request) -> Result<Principal, Problem> {
    let mut named = request.headers().get_all(&END_USER).iter();
    if let Some(user) = named.next() {
        let user = user.to_str().ok().filter(|user| is_end_user(user));
        let Some(user) = user.filter(|_| named.next().is_none()) else {
            let detail = format!("`X-End-User` is one id of 1 to {MAX_END_USER} visible ASCII characters");
            return Err(Problem::invalid("X-End-User", detail));
        };
        if user.starts_with(PROVIDER_USER_PREFIX) {
            let detail = format!(
                "`X-End-User` begins with `{PROVIDER_USER_PREFIX}`, as the ids of users of identity providers do: such a user comes \
                 with a token of the provider"
            );
            return Err(Problem::invalid("X-End-User", detail));
        }
        if principal.end_user.is_some() || !principal.may(Scope::OnBehalfOf) {
            let detail = format!(
                "`{}` may not ask for an end user: that needs a key with the scope `{}`",
                principal.name,
                Scope::OnBehalfOf
            );
            return Err(Problem::forbidden("X-End-User", detail));
        }
        principal.end_user = Some(user.to_owned());
    }
    if principal.end_user.is_none() || is_for_end_users(request) || is_open(request) {
        return Ok(principal);
    }
    let detail = "requests of end users reach /agents, /api/v1/agent, /api/v1/stream-tokens and the artifacts of their threads: use a key of an operator, \
                  without `X-End-User`";
    Err(Problem::new(ProblemCode::Forbidden, detail))
}

/// True if a route knows end users: all that it shows is a thread of theirs.
fn is_for_end_users(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    path == "/agents"
        || path == "/api/v1/stream-tokens"
        || path.starts_with("/agents/")
        || path.starts_with("/api/v1/agent/")
        || reads && path.starts_with("/api/v1/artifacts/{id}")
}

/// An answer for as long as its request is welcome: a request that takes its time ends with the key or the token that it came
/// by, and so does an answer that is a stream.
pub(crate) async fn while_welcome(welcome: Option<Welcome>, answering: impl Future<Output = Response>) -> Response {
    let Some(welcome) = welcome else { return answering.await };
    let response = tokio::select! {
        biased;
        response = answering => response,
        () = welcome.clone().ended() => return welcome.over().into_response(),
    };
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(welcome.ended()))))
}

fn is_open(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    OPEN.iter().any(|(method, open)| request.method() == method && path == Some(*open))
}

/// The principal of a request: by its token; without a token by its address, if the configuration trusts this machine.
fn principal_of(app: &App, request: &Request) -> Result<Principal, Problem> {
    if let Some(RequestPart::Registration { credential }) = request.extensions().get() {
        // The first partition has admitted its registration.
        let id = executor_of(credential).unwrap_or_default().to_owned();
        let (scopes, name) = (BTreeSet::new(), id.clone());
        return Ok(Principal { kind: PrincipalKind::Executor(id), name, scopes, workspace: None, end_user: None });
    }
    let mut headers = request.headers().get_all(header::AUTHORIZATION).iter();
    match (headers.next(), headers.next()) {
        (Some(value), None) => {
            let token = bearer(value).ok_or_else(|| unknown("`Authorization` is to be `Bearer KEY`"))?;
            Ok(app.host.principal_of(token)?)
        }
        (Some(_), Some(_)) => Err(unknown("`Authorization` is there twice")),
        (None, _) => trusted(app, request),
    }
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    headers::bearer(value).filter(|token| !token.is_empty())
}

fn trusted(app: &App, request: &Request) -> Result<Principal, Problem> {
    let config = app.host.config();
    if !config.loopback_without_key {
        let first = if app.host.keys().is_empty() {
            "; this host has no key yet: stop it, make one with `agent-host keys create --scope admin`, and start it again"
        } else {
            ""
        };
        return Err(unknown(format!("send a key, as `Authorization: Bearer KEY`{first}")));
    }
    let why = match request.extensions().get::<ForwardedRequest>() {
        // The host that the client asked has judged, by its own configuration.
        Some(forwarded) if forwarded.locality == Locality::ThisMachine => None,
        Some(_) => Some("only the machine of a host itself is let in"),
        None => {
            let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
            distrust(&config, app.local_addr.ip(), peer, request.headers(), request.uri())
        }
    };
    match why {
        None => Ok(Principal::loopback()),
        Some(why) => Err(unknown(format!("send a key, as `Authorization: Bearer KEY`: without one, {why}"))),
    }
}

/// The relation of a request to the machine of this host, which another host is told when the request is forwarded. `here` is the
/// address of the listener that took it.
pub(crate) fn locality(config: &Config, here: IpAddr, request: &Request) -> Locality {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let is_trusted = config.loopback_without_key && distrust(config, here, peer, request.headers(), request.uri()).is_none();
    if is_trusted { Locality::ThisMachine } else { Locality::Elsewhere }
}

/// The reason why a request without a key is not trusted as one of this machine. Pages in a browser on this machine can
/// send requests to this address under a foreign name that resolves to it, so names and origins are checked, not the
/// address alone.
fn distrust(config: &Config, here: IpAddr, peer: Option<IpAddr>, headers: &HeaderMap, uri: &Uri) -> Option<&'static str> {
    if !here.is_loopback() || !peer.is_some_and(|peer| peer.is_loopback()) {
        return Some("only this machine itself is let in");
    }
    let forwarded = |name: &HeaderName| FORWARDED.contains(name) || name.as_str().starts_with(FORWARDED_PREFIX);
    if headers.keys().any(forwarded) {
        return Some("requests through a proxy need a key");
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    if hosts.next().is_some() || !host.as_ref().is_some_and(is_here) || uri.authority().is_some_and(|named| !is_here(named)) {
        return Some("`Host` must be localhost or a loopback address");
    }
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    if origins.peek().is_none() && headers.get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site") {
        return Some("pages of other sites are not let in");
    }
    if !origins.all(|origin| is_own_origin(origin, host.as_ref()) || is_allowed_origin(config, origin)) {
        return Some("pages of other sites and ports are not let in: `[server] cors_origins` names those that are");
    }
    None
}

/// True if a name means this machine, independently of name servers.
fn is_here(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_loopback = address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    !authority.as_str().contains('@') && (host.eq_ignore_ascii_case("localhost") || is_loopback)
}

/// True for pages of this host itself: a program that serves pages at another port of this machine is somebody else.
fn is_own_origin(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    // A host speaks no TLS; what stands before it is a proxy, and named.
    let own = uri.as_ref().filter(|uri| uri.scheme_str() == Some("http")).and_then(Uri::authority).zip(host);
    let port = |authority: &Authority| authority.port_u16().unwrap_or(80);
    own.is_some_and(|(origin, host)| is_here(origin) && port(origin) == port(host))
}

/// True if the configuration allows pages of this origin.
pub(crate) fn is_allowed_origin(config: &Config, origin: &HeaderValue) -> bool {
    config.cors_origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}

fn unknown(why: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::Unauthenticated, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn config() -> Config {
        let text = "[server]\nloopback_without_key = true\ncors_origins = [\"https://app.example\"]";
        Config::parse(text, std::path::Path::new(".")).unwrap()
    }

    fn is_in(headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        distrust(&config(), HERE, Some(HERE), &headers, &Uri::from_static("/api/v1/runs")).is_none()
    }

    #[test]
    fn this_machine_is_let_in_under_its_own_names() {
        for host in ["localhost", "LocalHost:7070", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070"] {
            assert!(is_in(&[("host", host)]), "{host}");
            assert!(is_in(&[("host", host), ("origin", &format!("http://{host}"))]), "{host}");
        }
        assert!(is_in(&[("host", "localhost"), ("origin", "https://app.example")]));
        assert!(is_in(&[("host", "localhost:7070"), ("origin", "http://127.0.0.1:7070")]));
        assert!(!is_in(&[("host", "localhost:7070"), ("origin", "http://localhost:3000")]), "another program of this machine");
        assert!(!is_in(&[("host", "localhost:7070"), ("origin", "http://localhost")]));
        assert!(!is_in(&[("host", "localhost"), ("origin", "https://localhost")]));
    }

    #[test]
    fn other_names_proxies_and_pages_are_not() {
        assert!(!is_in(&[]));
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "[::2]",
            "",
            "10.0.0.1",
        ] {
            assert!(!is_in(&[("host", host)]), "{host}");
        }
        assert!(!is_in(&[("host", "localhost"), ("host", "evil.example")]));
        for (name, value) in [
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "localhost"),
            ("x-real-ip", "127.0.0.1"),
            ("via", "1.1 proxy"),
            ("origin", "null"),
            ("origin", "https://evil.example"),
            ("origin", "http://localhost.evil.example"),
            ("origin", "https://app.example.evil.example"),
            ("sec-fetch-site", "cross-site"),
        ] {
            assert!(!is_in(&[("host", "localhost"), (name, value)]), "{name}: {value}");
        }
        let headers: HeaderMap = [(header::HOST, HeaderValue::from_static("localhost"))].into_iter().collect();
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        let uri = Uri::from_static("/");
        assert!(distrust(&config(), HERE, Some(HERE), &headers, &uri).is_none());
        assert!(distrust(&config(), HERE, Some(elsewhere), &headers, &uri).is_some());
        assert!(distrust(&config(), elsewhere, Some(HERE), &headers, &uri).is_some());
        assert!(distrust(&config(), HERE, None, &headers, &uri).is_some());
        assert!(distrust(&config(), HERE, Some(HERE), &headers, &Uri::from_static("http://evil.example/")).is_some());
    }

    #[test]
    fn a_token_is_a_bearer() {
        let of = |text: &str| bearer(&text.parse().unwrap()).map(str::to_owned);
        assert_eq!(of("Bearer ahk_1").as_deref(), Some("ahk_1"));
        assert_eq!(of("bearer  ahk_1 ").as_deref(), Some("ahk_1"));
        for none in ["Basic YTpi", "Bearer", "Bearer ", "ahk_1"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}

//! Stream tokens: addresses of one stream of events that a browser can open without a header.
//!
//! The `EventSource` of browsers sends no `Authorization`, so a credential for it is part of the address. A stream token is good for the
//! stream of one run or one thread, for some minutes, and for nothing else. It is not stored: it has its holder, its stream and its
//! end, signed by a key of the ledger. It has the rights that its holder has when the stream is opened, and ends with the credential of
//! the holder: the key, or the token of the identity provider. Once open, a stream outlives its token, and not that credential.

use agent_host_protocol::{Principal, PrincipalKind, RunId, Timestamp, auth::STREAM_PREFIX, time};
use axum::{
    extract::{MatchedPath, Request},
    http::{Method, Uri, header},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::identity::TokenValidity;
use crate::{
    app::App,
    http::{Problem, ProblemCode, Query, percent, query::ACCESS_TOKEN},
};

/// The purpose of the signatures.
const PURPOSE: &str = "a stream token";
/// Longest text that is read: ids of a thread, a run and an end user, each escaped and encoded.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// The stream that a token opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StreamName {
    /// The events of a run, by the id of the host.
    Run(RunId),
    /// The facts of a thread; `session` where the conversation has another id.
    Thread { thread: String, session: Option<String> },
    /// The AG-UI events of a run of a thread of the agents, by the `runId` of the client.
    AgentRun { thread: String, run: String },
}

/// The credential that a token stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holder {
    /// This machine, where the configuration trusts it when the stream is opened.
    Loopback,
    /// The key with this id.
    Key(String),
    /// A user of an identity provider, until the end of the token that named the user.
    User { provider: String, issuer: String, user: String, ends_at: Timestamp },
}

/// The signed part of a token.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claims {
    holder: Holder,
    /// The end user for whom a key asks.
    end_user: Option<String>,
    stream: StreamName,
    expires_at: Timestamp,
}

impl Holder {
    /// The holder of a new token; `None` for credentials that have no streams. `validity` is that of the token of an identity provider.
    fn of(principal: &Principal, validity: Option<&TokenValidity>) -> Option<Self> {
        match &principal.kind {
            PrincipalKind::Loopback => Some(Self::Loopback),
            PrincipalKind::Key(id) => Some(Self::Key(id.clone())),
            PrincipalKind::IdentityProvider(provider) => validity.map(|validity| Self::User {
                provider: provider.clone(),
                issuer: validity.issuer().to_owned(),
                user: principal.name.clone(),
                ends_at: validity.ends_at(),
            }),
            PrincipalKind::Executor(_) | PrincipalKind::Approver(_) | PrincipalKind::Lease => None,
        }
    }
}

/// A token for a stream that the principal may read, which the caller has checked.
pub(crate) fn make(
    app: &App,
    principal: &Principal,
    validity: Option<&TokenValidity>,
    stream: StreamName,
    expires_at: Timestamp,
) -> Result<String, Problem> {
    let holder = Holder::of(principal, validity).ok_or_else(|| {
        let detail = "stream tokens are made for API keys and for users of identity providers: ask with one of these";
        Problem::new(ProblemCode::Forbidden, detail)
    })?;
    // The user of a provider follows from its name.
    let end_user = principal.end_user.clone().filter(|_| !matches!(holder, Holder::User { .. }));
    let claims = serde_json::to_vec(&Claims { holder, end_user, stream, expires_at }).map_err(Problem::internal)?;
    let signature = app.host.sign(PURPOSE, &claims);
    Ok(format!("{STREAM_PREFIX}{}.{signature}", BASE64_URL_SAFE_NO_PAD.encode(claims)))
}

/// Takes the token out of the address of a request, so that nothing behind this sees it.
pub(crate) fn take(request: &mut Request) -> Result<Option<String>, Problem> {
    let Some((token, rest)) = split(request.uri())? else { return Ok(None) };
    if request.headers().contains_key(header::AUTHORIZATION) {
        let detail = "a request has one credential: leave out `Authorization` or `access_token`";
        return Err(Problem::invalid(ACCESS_TOKEN, detail));
    }
    *request.uri_mut() = rest;
    Ok(Some(token))
}

/// The token of an address, and the address without it.
fn split(uri: &Uri) -> Result<Option<(String, Uri)>, Problem> {
    let named = |pair: &str| pair.split_once('=').filter(|(name, _)| *name == ACCESS_TOKEN).map(|(_, value)| value.to_owned());
    let pairs = || uri.query().unwrap_or_default().split('&');
    let mut tokens = pairs().filter_map(named);
    let Some(token) = tokens.next() else { return Ok(None) };
    if tokens.next().is_some() {
        return Err(Problem::invalid(ACCESS_TOKEN, "`access_token` is there twice"));
    }
    let query = pairs().filter(|pair| named(pair).is_none()).collect::<Vec<_>>().join("&");
    let path = if query.is_empty() { uri.path().to_owned() } else { format!("{}?{query}", uri.path()) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().map_err(Problem::internal)?);
    Ok(Some((token, Uri::from_parts(parts).map_err(Problem::internal)?)))
}

/// The holder of the token of a request, and the end user for whom it asks. The caller checks that the credential of the holder is good.
pub(crate) fn judge(app: &App, request: &Request, token: &str) -> Result<(Holder, Option<String>), Problem> {
    let claims = read(token, |claims, signature| app.host.is_signed(PURPOSE, claims, signature));
    let Claims { holder, end_user, stream, expires_at } = claims.ok_or_else(|| {
        Problem::invalid_token("`access_token` is no stream token of this host: get one by `POST /api/v1/stream-tokens`")
    })?;
    if time::now() >= expires_at {
        return Err(Problem::invalid_token("the stream token has expired: get another by `POST /api/v1/stream-tokens`"));
    }
    if requested(request).as_ref() == Some(&stream) {
        return Ok((holder, end_user));
    }
    let detail = "the stream token is for another stream: it opens the `url` that came with it, and nothing else";
    Err(Problem::forbidden(ACCESS_TOKEN, detail))
}

/// The holder that a token names. The token counts for nothing before [`judge`].
pub(crate) fn holder_of(token: &str) -> Option<Holder> {
    read(token, |_, _| true).map(|claims| claims.holder)
}

/// The key or the user of a token is no longer known.
pub(crate) fn orphaned() -> Problem {
    Problem::invalid_token(
        "the key of the stream token was revoked or has expired, or its identity provider was changed: get another by \
         `POST /api/v1/stream-tokens`",
    )
}

/// The claims of a token, where its signature is good.
fn read(token: &str, is_signed: impl Fn(&[u8], &str) -> bool) -> Option<Claims> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let (claims, signature) = token.strip_prefix(STREAM_PREFIX)?.split_once('.')?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    if !is_signed(&claims, signature) {
        return None;
    }
    serde_json::from_slice(&claims).ok()
}

/// The stream that a request is for; `None` for other routes.
fn requested(request: &Request) -> Option<StreamName> {
    if request.method() != Method::GET {
        return None;
    }
    stream_of(request.extensions().get::<MatchedPath>()?.as_str(), request.uri())
}

fn stream_of(route: &str, uri: &Uri) -> Option<StreamName> {
    let mut query = Query::parse(uri.query()).ok()?;
    match route {
        "/api/v1/runs/{id}/events" => Some(StreamName::Run(segment(uri, 4)?.parse().ok()?)),
        "/api/v1/threads/{id}/events" => Some(StreamName::thread(segment(uri, 4)?, query.text("sessionId"))),
        "/agents/{agent}/threads/{thread}/runs/{run}/events" => {
            Some(StreamName::AgentRun { thread: segment(uri, 4)?, run: segment(uri, 6)? })
        }
        "/api/v1/agent/runs/{threadId}/events" => {
            Some(StreamName::AgentRun { thread: segment(uri, 5)?, run: query.text("runId")? })
        }
        _ => None,
    }
}

/// A segment of a path, decoded. The path begins with a slash, so the first one is empty.
fn segment(uri: &Uri, at: usize) -> Option<String> {
    String::from_utf8(percent::decode(uri.path().split('/').nth(at)?)?).ok()
}

impl StreamName {
    /// The facts of a thread. A conversation is its own thread where no other is named.
    pub(crate) fn thread(thread: String, session: Option<String>) -> Self {
        let session = session.filter(|session| *session != thread);
        Self::Thread { thread, session }
    }

    /// The address of the stream, below that of the host. `agent` is the agent of a run of the agents.
    pub(crate) fn path(&self, agent: &str) -> String {
        let encode = percent::encode;
        match self {
            Self::Run(id) => format!("/api/v1/runs/{id}/events"),
            Self::Thread { thread, session: None } => format!("/api/v1/threads/{}/events", encode(thread)),
            Self::Thread { thread, session: Some(session) } => {
                format!("/api/v1/threads/{}/events?sessionId={}", encode(thread), encode(session))
            }
            Self::AgentRun { thread, run } => {
                format!("/agents/{}/threads/{}/runs/{}/events", encode(agent), encode(thread), encode(run))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        let stream = StreamName::thread("t".to_owned(), None);
        Claims { holder: Holder::Key("k".to_owned()), end_user: Some("ana".to_owned()), stream, expires_at: 7 }
    }

    #[test]
    fn a_token_is_read_where_its_signature_is_that_of_its_claims() {
        let bytes = serde_json::to_vec(&claims()).unwrap();
        let is_signed = |claims: &[u8], signature: &str| claims == bytes && signature == "sig";
        let text = BASE64_URL_SAFE_NO_PAD.encode(&bytes);
        assert_eq!(read(&format!("aht_{text}.sig"), is_signed), Some(claims()));
        let changed = BASE64_URL_SAFE_NO_PAD.encode(String::from_utf8(bytes.clone()).unwrap().replace("ana", "bob"));
        for bad in [
            String::new(),
            "aht_".to_owned(),
            format!("aht_{text}"),
            format!("{text}.sig"),
            format!("ahk_{text}.sig"),
            format!("aht_{text}.gis"),
            format!("aht_{changed}.sig"),
            format!("aht_{}.sig", "A".repeat(MAX_TOKEN_BYTES)),
        ] {
            assert_eq!(read(&bad, is_signed), None, "{bad}");
        }
        // What is signed and has another form is none either.
        assert_eq!(read("aht_e30.sig", |_, _| true), None);
    }

    #[test]
    fn a_token_is_taken_out_of_the_address() {
        for (from, token, to) in [
            ("/a?access_token=x", "x", "/a"),
            ("/a?after=1&access_token=x&limit=2", "x", "/a?after=1&limit=2"),
            ("http://h/a?access_token=", "", "http://h/a"),
        ] {
            let (taken, rest) = split(&from.parse().unwrap()).unwrap().unwrap();
            assert_eq!((taken.as_str(), rest.to_string().as_str()), (token, to), "{from}");
        }
        for none in ["/a", "/a?b=access_token", "/a?access_tokens=1", "/a?access_token"] {
            assert!(split(&none.parse().unwrap()).unwrap().is_none(), "{none}");
        }
        assert!(split(&"/a?access_token=x&access_token=y".parse().unwrap()).is_err());
    }

    #[test]
    fn the_address_of_a_stream_names_it() {
        let run = RunId::new();
        let agent_run = StreamName::AgentRun { thread: "t/1 ä".to_owned(), run: "r?1".to_owned() };
        for (route, stream) in [
            ("/api/v1/runs/{id}/events", StreamName::Run(run)),
            ("/api/v1/threads/{id}/events", StreamName::thread("t&x".to_owned(), None)),
            ("/api/v1/threads/{id}/events", StreamName::thread("t".to_owned(), Some("s=1".to_owned()))),
            ("/agents/{agent}/threads/{thread}/runs/{run}/events", agent_run.clone()),
        ] {
            let uri: Uri = stream.path("a b").parse().unwrap();
            assert_eq!(stream_of(route, &uri), Some(stream), "{uri}");
            assert_eq!(stream_of("/api/v1/runs/{id}", &uri), None);
        }
        let uri = "/api/v1/agent/runs/t%2F1%20%C3%A4/events?runId=r%3F1".parse().unwrap();
        assert_eq!(stream_of("/api/v1/agent/runs/{threadId}/events", &uri), Some(agent_run));
        assert_eq!(StreamName::thread("t".to_owned(), Some("t".to_owned())), StreamName::thread("t".to_owned(), None));
    }
}

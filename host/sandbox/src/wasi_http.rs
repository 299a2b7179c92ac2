//! `wasi:http`, for runners whose libraries know nothing else: `types` and `outgoing-handler`.
//!
//! `wasi:http` uses the same gate as `http` of the contract: requests go to [`HttpCalls::http_outgoing`], and this module
//! opens no connection. A run without a grant of `http` is linked too, and all its requests are refused.
//!
//! Requests, bodies and their order of readiness are not journaled. Runs of a component that imports `wasi:http` therefore
//! cannot be resumed, and only for them [`crate::wasi`] waits for real readiness.
//!
//! [`HttpCalls::http_outgoing`]: crate::HttpCalls::http_outgoing

use std::time::Duration;

use agent_host_protocol::{ApiError, ErrorCode, Interface};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use serde_json::Value;
use tokio::time::timeout;
use wasmtime::{
    StoreContextMut,
    component::{Linker, Resource},
};
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttp, WasiHttpHooks, WasiHttpView,
    p2::bindings::http::{
        outgoing_handler,
        types::{
            self, ErrorCode as WasiErrorCode, FutureIncomingResponse, HostOutgoingRequest, HostRequestOptions, Method,
            OutgoingRequest,
        },
    },
};

use crate::{
    calls::{HostCalls, HttpBody},
    guest::Guest,
};

/// The interfaces as `wasmtime-wasi-http` names them. To a guest every 0.2 is the same.
const TYPES: &str = "wasi:http/types@0.2.12";
const HANDLER: &str = "wasi:http/outgoing-handler@0.2.12";

/// A method of a guest's own.
const MAX_METHOD_BYTES: usize = 64;
/// Host and port. A name has at most 253 bytes.
const MAX_AUTHORITY_BYTES: usize = 512;
/// Path and query.
const MAX_PATH_BYTES: usize = 16 * 1024;
/// Largest piece of a body, in bytes. At most two pieces wait until the request takes them.
const BODY_CHUNK_BYTES: usize = 64 * 1024;

/// The state of `wasi:http` for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutgoingHttp {
    Allowed,
    Refused,
}

/// Links `wasi:http`.
pub(crate) fn link(linker: &mut Linker<Guest>, http: OutgoingHttp) -> wasmtime::Result<()> {
    types::add_to_linker::<_, WasiHttp>(linker, &types::LinkOptions::default(), Guest::http)?;
    linker.allow_shadowing(true);
    bound(linker)?;
    linker.allow_shadowing(false);
    match http {
        OutgoingHttp::Allowed => outgoing_handler::add_to_linker::<_, WasiHttp>(linker, Guest::http),
        OutgoingHttp::Refused => linker.instance(HANDLER)?.func_wrap_async("handle", |store, (request, options)| {
            Box::new(async move { Ok((refused(store, request, options).await?,)) })
        }),
    }
}

/// Puts bounds on the texts of a request, which the implementation takes at any length.
fn bound(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    type SetResult = wasmtime::Result<(Result<(), ()>,)>;
    type Store<'a> = StoreContextMut<'a, Guest>;

    let mut types = linker.instance(TYPES)?;
    types.func_wrap(
        "[method]outgoing-request.set-method",
        |mut store: Store<'_>, (request, method): (Resource<OutgoingRequest>, Method)| -> SetResult {
            if matches!(&method, Method::Other(name) if name.len() > MAX_METHOD_BYTES) {
                return Ok((Err(()),));
            }
            Ok((store.data_mut().http().set_method(request, method)?,))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-authority",
        |mut store: Store<'_>, (request, authority): (Resource<OutgoingRequest>, Option<String>)| -> SetResult {
            if authority.as_ref().is_some_and(|authority| authority.len() > MAX_AUTHORITY_BYTES) {
                return Ok((Err(()),));
            }
            Ok((store.data_mut().http().set_authority(request, authority)?,))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-path-with-query",
        |mut store: Store<'_>, (request, path): (Resource<OutgoingRequest>, Option<String>)| -> SetResult {
            if path.as_ref().is_some_and(|path| path.len() > MAX_PATH_BYTES) {
                return Ok((Err(()),));
            }
            Ok((store.data_mut().http().set_path_with_query(request, path)?,))
        },
    )
}

/// `outgoing-handler.handle` of a run that was not granted `http`.
async fn refused(
    mut store: StoreContextMut<'_, Guest>,
    request: Resource<OutgoingRequest>,
    options: Option<Resource<types::RequestOptions>>,
) -> wasmtime::Result<Result<Resource<FutureIncomingResponse>, WasiErrorCode>> {
    let guest = store.data_mut();
    HostOutgoingRequest::drop(&mut guest.http(), request)?;
    if let Some(options) = options {
        HostRequestOptions::drop(&mut guest.http(), options)?;
    }
    // WASI has no room for the text of the refusal, so it is only recorded.
    let _ = guest.calls.refuse(Interface::Http, "wasi-outgoing-handler.handle").await;
    Ok(Err(WasiErrorCode::HttpRequestDenied))
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> wasmtime_wasi_http::WasiHttpCtxView<'_> {
        wasmtime_wasi_http::WasiHttpCtxView { hooks: &mut self.calls, table: &mut self.handles, ctx: &mut self.http }
    }
}

/// The result of `send_request`: the response, and the future that a connection of its own would need.
type SendResult = (http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

impl WasiHttpHooks for Box<dyn HostCalls> {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<SendResult, Error>> + Send> {
        let options = options.unwrap_or_default();
        let request = request.map(|body| -> HttpBody { body.map_err(Into::into).boxed_unsync() });
        // WASI has no time for the whole of a request, so that is the host's.
        let response = self.http_outgoing(request);
        Box::new(async move {
            let response = match until_first_byte(options) {
                None => response.await,
                Some(beginning) => timeout(beginning, response).await.map_err(|_| Error::HttpResponseTimeout)?,
            };
            let response = response.map_err(|error| error_code(&error))?;
            let response = response.map(|body| arriving(body, options.between_bytes_timeout));
            let nothing: Box<dyn Future<Output = Result<(), Error>> + Send> = Box::new(std::future::ready(Ok(())));
            Ok((response, nothing))
        })
    }

    /// The host of a request is that of its address, also after a redirect.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_CHUNK_BYTES
    }
}

/// Time limit until the beginning of the response. Connecting is part of it and has no limit of its own.
fn until_first_byte(options: RequestOptions) -> Option<Duration> {
    let connecting = options.connect_timeout.unwrap_or_default();
    options.first_byte_timeout.map(|first_byte| first_byte.saturating_add(connecting))
}

/// A body on its way to the guest. After an error there is nothing more of it.
fn arriving(body: HttpBody, between: Option<Duration>) -> WasiBody {
    let frames = stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        let frame = match between {
            None => body.frame().await,
            Some(between) => match timeout(between, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return Some((Err(Error::ConnectionReadTimeout), None)),
            },
        };
        match frame? {
            Ok(frame) => Some((Ok(frame), Some(body))),
            Err(error) => Some((Err(body_error(error.as_ref())), None)),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

fn body_error(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Error {
    error.downcast_ref::<ApiError>().map_or_else(|| Error::InternalError(Some(error.to_string())), error_code)
}

/// The WASI error of a refusal: by the code in its details if WASI has one for it, else by its own code. Any other refusal
/// is an internal error with the text of the refusal.
fn error_code(error: &ApiError) -> Error {
    let detail = |name: &str| error.details.as_ref().and_then(|details| details.get(name));
    let size = detail("size").and_then(Value::as_u64);
    match detail("code").and_then(Value::as_str).unwrap_or(error.code.as_str()) {
        "dns_failed" => Error::DnsError { rcode: Some(error.message.clone()), info_code: None },
        "address_not_allowed" => Error::DestinationIpProhibited,
        "connect_failed" => Error::ConnectionRefused,
        "connection_closed" => Error::ConnectionTerminated,
        "tls_failed" => Error::TlsCertificateError,
        "too_many_redirects" => Error::LoopDetected,
        "request_too_large" => Error::HttpRequestBodySize(size),
        "response_head_too_large" => Error::HttpResponseHeaderSectionSize(None),
        "invalid_response" => Error::HttpProtocolError,
        "http_requests_at_once" => Error::ConnectionLimitReached,
        _ => match error.code {
            ErrorCode::Unauthorized => Error::HttpRequestDenied,
            ErrorCode::DeadlineExceeded => Error::HttpResponseTimeout,
            ErrorCode::PayloadTooLarge => Error::HttpResponseBodySize(size),
            _ => Error::InternalError(Some(error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_host_protocol::Limits;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use http_body_util::{Full, combinators::UnsyncBoxBody};
    use wasmtime::AsContextMut;
    use wasmtime_wasi_http::p2::bindings::http::types::{HostFields, HostFutureIncomingResponse};

    use super::*;
    use crate::{
        calls::NoRun,
        engine::GuestEngine,
        guest::PollWait,
        world::{GuestClock, World},
    };

    fn guest(limits: &Limits) -> Guest {
        let world = World::new(limits, GuestClock::new(0), [0; 32]);
        Guest::new(limits, PollWait::ForReadiness, world, Box::new(NoRun), Arc::new(NoRun))
    }

    fn request(guest: &mut Guest) -> Resource<OutgoingRequest> {
        let fields = HostFields::new(&mut guest.http()).unwrap();
        let request = HostOutgoingRequest::new(&mut guest.http(), fields).unwrap();
        let again = || Resource::new_borrow(request.rep());
        guest.http().set_authority(again(), Some("example.org:443".to_owned())).unwrap().unwrap();
        guest.http().set_path_with_query(again(), Some("/a?b".to_owned())).unwrap().unwrap();
        request
    }

    #[test]
    fn the_bounds_stand_before_functions_that_are_there() {
        let engine = GuestEngine::new(&Limits { max_live_runs: 2, ..Limits::default() }).unwrap();
        let mut linker = Linker::new(&engine.wasmtime);
        types::add_to_linker::<_, WasiHttp>(&mut linker, &types::LinkOptions::default(), Guest::http).unwrap();
        assert!(bound(&mut linker).is_err(), "nothing is defined twice: `wasmtime-wasi-http` names its interface otherwise now");
        outgoing_handler::add_to_linker::<_, WasiHttp>(&mut linker, Guest::http).unwrap();
        let twice = linker.instance(HANDLER).unwrap().func_wrap("handle", |_, (): ()| Ok(()));
        assert!(twice.is_err());
    }

    #[tokio::test]
    async fn refusals_of_the_gate_are_denials() {
        let mut guest = guest(&Limits::default());
        let request = request(&mut guest);
        let future = outgoing_handler::Host::handle(&mut guest.http(), request, None).unwrap();
        let again = || Resource::new_borrow(future.rep());
        let pollable = HostFutureIncomingResponse::subscribe(&mut guest.http(), again()).unwrap();
        crate::wasi::block(&mut guest, pollable).await.unwrap();
        let outcome = HostFutureIncomingResponse::get(&mut guest.http(), again()).unwrap();
        assert!(matches!(outcome, Some(Ok(Err(WasiErrorCode::HttpRequestDenied)))), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_refused_interface_takes_the_request_and_denies_it() {
        let limits = Limits { max_live_runs: 2, ..Limits::default() };
        let engine = GuestEngine::new(&limits).unwrap();
        let mut store = crate::run::store(&engine.wasmtime, guest(&limits), &limits);
        let request = request(store.data_mut());
        let options = HostRequestOptions::new(&mut store.data_mut().http()).unwrap();
        let (request_rep, with) = (request.rep(), options.rep());
        let answer = refused(store.as_context_mut(), request, Some(options)).await.unwrap();
        assert!(matches!(answer, Err(WasiErrorCode::HttpRequestDenied)));
        let handles = &store.data().handles;
        assert!(handles.get::<OutgoingRequest>(&Resource::new_borrow(request_rep)).is_err());
        assert!(handles.get::<RequestOptions>(&Resource::new_borrow(with)).is_err());
    }

    /// A body of these pieces.
    fn body(pieces: Vec<Result<&'static str, ApiError>>) -> HttpBody {
        let frames = pieces.into_iter().map(|piece| match piece {
            Ok(text) => {
                let frame = Full::new(Bytes::from_static(text.as_bytes())).frame().now_or_never().unwrap().unwrap();
                Ok(frame.unwrap_or_else(|never| match never {}))
            }
            Err(error) => Err(error.into()),
        });
        UnsyncBoxBody::new(StreamBody::new(stream::iter(frames)))
    }

    #[tokio::test]
    async fn a_body_arrives_until_its_error() {
        let too_large = ApiError::too_large("the response", 11, 10);
        let mut body = arriving(body(vec![Ok("one"), Ok("two"), Err(too_large), Ok("three")]), None);
        let mut next = async || body.frame().await.map(|frame| frame.map(|frame| frame.into_data().unwrap()));
        assert_eq!(next().await.unwrap().unwrap(), "one");
        assert_eq!(next().await.unwrap().unwrap(), "two");
        assert!(matches!(next().await, Some(Err(Error::HttpResponseBodySize(Some(11))))));
        assert!(next().await.is_none());
    }

    #[tokio::test]
    async fn a_body_that_says_nothing_is_given_up() {
        let silent: HttpBody = UnsyncBoxBody::new(StreamBody::new(stream::pending()));
        let mut body = arriving(silent, Some(Duration::from_millis(5)));
        assert!(matches!(body.frame().await, Some(Err(Error::ConnectionReadTimeout))));
        assert!(body.frame().await.is_none());
    }

    #[test]
    fn refusals_have_a_word_of_wasi() {
        let error_of = |code: &str| error_code(&ApiError::new(ErrorCode::from(code), "so it is"));
        assert!(matches!(error_of("unauthorized"), Error::HttpRequestDenied));
        assert!(matches!(error_of("deadline_exceeded"), Error::HttpResponseTimeout));
        assert!(matches!(error_of("payload_too_large"), Error::HttpResponseBodySize(None)));
        assert!(matches!(error_of("connect_failed"), Error::ConnectionRefused));
        assert!(matches!(error_of("dns_failed"), Error::DnsError { rcode: Some(text), .. } if text == "so it is"));
        assert!(matches!(error_of("rate_limited"), Error::InternalError(Some(text)) if text == "rate_limited: so it is"));
        let mut error = ApiError::new(ErrorCode::RuntimeError, "nobody listens");
        error.details = Some(serde_json::json!({ "code": "connect_failed" }));
        assert!(matches!(error_code(&error), Error::ConnectionRefused));
        let mut error = ApiError::unauthorized("not this host");
        error.details = Some(serde_json::json!({ "code": "host_not_allowed" }));
        assert!(matches!(error_code(&error), Error::HttpRequestDenied), "a code without a word of its own");
    }

    #[test]
    fn connecting_is_part_of_the_wait_for_the_first_byte() {
        let seconds = |n: Option<u64>| n.map(Duration::from_secs);
        for (connect, first_byte, expected) in
            [(None, None, None), (Some(1), None, None), (None, Some(2), Some(2)), (Some(1), Some(2), Some(3))]
        {
            let (connect_timeout, first_byte_timeout) = (seconds(connect), seconds(first_byte));
            let options = RequestOptions { connect_timeout, first_byte_timeout, between_bytes_timeout: None };
            assert_eq!(until_first_byte(options), seconds(expected));
        }
    }
}

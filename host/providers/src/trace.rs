//! Traces: the context of a trace as it comes and goes in headers (W3C Trace Context), and the spans of this process.
//!
//! The present context is that of `opentelemetry`, which belongs to the polled future. A context exists in two cases: this
//! process makes spans ([`install`]), or the sender of a request is in a trace, which is then propagated although this
//! process adds no spans. Otherwise every function here reads one place in memory.

use std::{
    borrow::Cow,
    fmt::Write as _,
    future::Future,
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context, KeyValue,
    global::BoxedTracer,
    trace::{FutureExt, SpanBuilder, Status, TraceContextExt, TraceState, Tracer},
};
pub use opentelemetry::{
    Context as TraceContext, KeyValue as Attribute,
    trace::{Link, SpanContext, SpanId, SpanKind, TraceFlags, TraceId},
};

/// The header with the context of a trace.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with additions of vendors.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `tracestate` that is handed on. The specification asks for 512 characters at least.
const MAX_TRACESTATE: usize = 512;

struct InstalledTracer {
    tracer: BoxedTracer,
    captures_content: bool,
}

static INSTALLED: OnceLock<InstalledTracer> = OnceLock::new();

/// Starts making spans with this tracer; with `captures_content`, spans contain content. A process has one tracer: returns
/// `false` if there is one already.
pub fn install(tracer: BoxedTracer, captures_content: bool) -> bool {
    INSTALLED.set(InstalledTracer { tracer, captures_content }).is_ok()
}

/// Spans that were made and could not be sent.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Counts spans that could not be sent.
pub fn note_lost(spans: u64) {
    LOST.fetch_add(spans, Ordering::Relaxed);
}

/// The number of spans that could not be sent since the start.
#[must_use]
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// True if this process makes spans.
#[must_use]
pub fn is_on() -> bool {
    INSTALLED.get().is_some()
}

/// True if spans contain content: messages, parameters and results of tools.
#[must_use]
pub fn captures_content() -> bool {
    INSTALLED.get().is_some_and(|installed| installed.captures_content)
}

/// The context of a trace in a request. A malformed context is ignored, as the specification says.
#[must_use]
pub fn of(headers: &HeaderMap) -> Option<SpanContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let states: Vec<_> = headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
    parse(parent.to_str().ok()?.trim(), Some(&states.join(",")))
}

/// The context in the two headers of it.
#[must_use]
pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    // Later versions may say more; this one does not.
    if version == "00" && parts.next().is_some() {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = tracestate.map(str::trim).filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE);
    let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let context = SpanContext::new(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags, true, state);
    context.is_valid().then_some(context)
}

/// A context as the header `traceparent` has it.
#[must_use]
pub fn traceparent(context: &SpanContext) -> String {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    let mut text = String::with_capacity(55);
    let _infallible = write!(text, "00-{}-{}-{:02x}", context.trace_id(), context.span_id(), flags.to_u8());
    text
}

/// A context as the header `tracestate` has it.
#[must_use]
pub fn tracestate(context: &SpanContext) -> Option<String> {
    Some(context.trace_state().header()).filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE)
}

/// The present context; `None` outside of a trace.
#[must_use]
pub fn current() -> Option<SpanContext> {
    Context::map_current(|context| {
        let span = context.span();
        let context = span.span_context();
        context.is_valid().then(|| context.clone())
    })
}

/// The headers that propagate the present context, for services that the operator has configured.
#[must_use]
pub fn headers() -> HeaderMap {
    current().map(|context| headers_of(&context)).unwrap_or_default()
}

/// The headers that hand on a context.
#[must_use]
pub fn headers_of(context: &SpanContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(parent) = HeaderValue::try_from(traceparent(context)) {
        headers.insert(TRACEPARENT, parent);
        if let Some(state) = tracestate(context).and_then(|state| HeaderValue::try_from(state).ok()) {
            headers.insert(TRACESTATE, state);
        }
    }
    headers
}

/// The parent context of spans that belong to `remote`.
#[must_use]
pub fn remote(context: Option<SpanContext>) -> Context {
    match context {
        Some(context) => Context::new().with_remote_span_context(context),
        None => Context::new(),
    }
}

/// An open span, which ends when dropped; without spans in this process, it only propagates its trace.
#[derive(Debug, Default)]
pub struct Span {
    context: Option<Context>,
    /// True if there is a span to end.
    is_span: bool,
}

impl Span {
    /// A span that is not recorded.
    #[must_use]
    pub const fn nothing() -> Self {
        Self { context: None, is_span: false }
    }

    /// Begins a span in what this happens in.
    pub fn start<N: Into<Cow<'static, str>>>(
        kind: SpanKind,
        name: impl FnOnce() -> N,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        if !is_on() {
            // The present context stays.
            return Self::nothing();
        }
        Self::start_in(&Context::current(), kind, name, attributes)
    }

    /// Begins a span in `parent`.
    pub fn start_in<N: Into<Cow<'static, str>>>(
        parent: &Context,
        kind: SpanKind,
        name: impl FnOnce() -> N,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        Self::start_linked(parent, Vec::new(), kind, name, attributes)
    }

    /// Begins a span in `parent` that others have led to as well.
    pub fn start_linked<N: Into<Cow<'static, str>>>(
        parent: &Context,
        links: Vec<Link>,
        kind: SpanKind,
        name: impl FnOnce() -> N,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        let Some(installed) = INSTALLED.get() else {
            let is_in_trace = parent.span().span_context().is_valid();
            return Self { context: is_in_trace.then(|| parent.clone()), is_span: false };
        };
        let builder = SpanBuilder::from_name(name()).with_kind(kind).with_attributes(attributes()).with_links(links);
        let span = installed.tracer.build_with_context(builder, parent);
        Self { context: Some(parent.with_span(span)), is_span: true }
    }

    /// True if the span is recorded, so that costly attributes are worth computing.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.is_span && self.context.as_ref().is_some_and(|context| context.span().is_recording())
    }

    /// The trace that it hands on.
    #[must_use]
    pub fn span_context(&self) -> Option<SpanContext> {
        self.context.as_ref().map(|context| context.span().span_context().clone())
    }

    /// Says more of it.
    pub fn set(&self, attributes: impl FnOnce() -> Vec<KeyValue>) {
        if self.is_recording()
            && let Some(context) = &self.context
        {
            context.span().set_attributes(attributes());
        }
    }

    /// Marks the span as failed: `kind` is a code of few values, never a message.
    pub fn failed(&self, kind: &str) {
        if self.is_recording()
            && let Some(context) = &self.context
        {
            let span = context.span();
            span.set_attribute(KeyValue::new("error.type", kind.to_owned()));
            span.set_status(Status::error(kind.to_owned()));
        }
    }

    /// Lets something happen in it.
    pub fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        match &self.context {
            Some(context) => Either::Left(future.with_context(context.clone())),
            None => Either::Right(future),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.is_span
            && let Some(context) = &self.context
        {
            context.span().end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn received_text_is_passed_on() {
        let context = parse(PARENT, Some("vendor=1,other=2")).unwrap();
        assert!(context.is_remote() && context.is_sampled());
        let headers = headers_of(&context);
        assert_eq!(headers[TRACEPARENT], PARENT);
        assert_eq!(headers[TRACESTATE], "vendor=1,other=2");
        assert_eq!(of(&headers), Some(context));
    }

    #[test]
    fn flags_that_nobody_knows_are_not_handed_on() {
        let unsampled = parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe", None).unwrap();
        assert_eq!(traceparent(&unsampled), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert!(parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later", None).is_some());
    }

    #[test]
    fn malformed_trace_headers_are_ignored() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse(text, None), None, "{text}");
        }
        let mut twice = headers_of(&parse(PARENT, None).unwrap());
        twice.append(TRACEPARENT, HeaderValue::from_static(PARENT));
        assert_eq!(of(&twice), None);
    }

    #[test]
    fn a_state_that_cannot_be_read_does_not_cost_the_trace() {
        let long = format!("vendor={}", "x".repeat(MAX_TRACESTATE));
        for state in ["no equals sign", &long] {
            let context = parse(PARENT, Some(state)).unwrap();
            assert_eq!(tracestate(&context), None, "{state}");
        }
    }

    #[tokio::test]
    async fn without_spans_a_trace_is_handed_on_all_the_same() {
        assert!(headers().is_empty());
        let parent = remote(parse(PARENT, None));
        let span = Span::start_in(&parent, SpanKind::Internal, || "x", Vec::new);
        assert!(!span.is_recording());
        let seen = span.within(async {
            let inner = Span::start(SpanKind::Client, || "y", Vec::new);
            inner.within(async { headers() }).await
        });
        assert_eq!(seen.await[TRACEPARENT], PARENT);
        assert!(headers().is_empty(), "it does not stay behind");
    }
}

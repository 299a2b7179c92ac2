//! The description of the API (OpenAPI 3.1), made from the routes themselves.
//!
//! A route cannot be without one: the table of routes takes handlers only with their `#[utoipa::path]`. Refusals of a
//! route are declared with [`refusals!`], by problem code; statuses and their bodies follow from it.

mod examples;
mod shared;
mod tidy;

use std::collections::BTreeMap;

use agent_host_protocol::limits::{MAX_PAGE, MIN_PAGE};
use agent_host_runs::Action;
use axum::http::StatusCode;
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{
        ArrayBuilder, ContentBuilder, HeaderBuilder, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref,
        RefOr, Required, ResponseBuilder, Schema, SchemaFormat, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
        schema::{AdditionalProperties, ComponentsBuilder, KnownFormat, SchemaType},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
        server::ServerBuilder,
        tag::TagBuilder,
    },
};

pub(crate) use self::tidy::tidy;
use crate::http::{
    Id, PathId, ProblemCode,
    query::{ACCESS_TOKEN, DEFAULT_PAGE},
};

/// The codes that every route may answer.
const ALWAYS: &[ProblemCode] = &[
    ProblemCode::InvalidArgument,
    ProblemCode::Unauthenticated,
    ProblemCode::Forbidden,
    ProblemCode::RateLimited,
    ProblemCode::Internal,
    ProblemCode::Unavailable,
];
/// The codes of routes with a JSON body.
pub(crate) const JSON: &[ProblemCode] =
    &[ProblemCode::InvalidJson, ProblemCode::UnsupportedMediaType, ProblemCode::PayloadTooLarge, ProblemCode::RequestTimeout];
/// The codes of routes that write.
pub(crate) const WRITE: &[ProblemCode] = &[ProblemCode::ShuttingDown, ProblemCode::InsufficientStorage];
/// The codes of routes that begin a run of any runner.
pub(crate) const BEGIN: &[ProblemCode] = &[
    ProblemCode::WorkspaceFull,
    ProblemCode::NotFound,
    ProblemCode::RunnerNotFound,
    ProblemCode::RunnerCompiling,
    ProblemCode::TokenBudgetExhausted,
    ProblemCode::InvalidConfig,
    ProblemCode::QueueFull,
];

/// The media type of a problem document.
const PROBLEM: &str = "application/problem+json";
/// The extension that lists the problem codes of a response; of an operation, by status.
const CODES: &str = "x-problem-codes";

/// Declares what a route refuses with, beside what every route may: `refusals!(Name = [GROUP, …] + [Code, …])`, the groups
/// with their `+` where there are any. `Name` then stands among the `responses` of `#[utoipa::path]`.
macro_rules! refusals {
    ($name:ident = [$($group:ident),* $(,)?] + [$($code:ident),* $(,)?]) => {
        enum $name {}

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                $crate::openapi::problems(&[$($crate::openapi::$group),*], &[$($crate::http::ProblemCode::$code),*])
            }
        }
    };
    ($name:ident = [$($code:ident),* $(,)?]) => {
        $crate::openapi::refusals!($name = [] + [$($code),*]);
    };
}
pub(crate) use refusals;

/// A response for each status, with the codes that it may have.
pub(crate) fn problems(groups: &[&[ProblemCode]], own: &[ProblemCode]) -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    // In the order of the list, whatever the order of the declaration.
    let declared =
        |code: &ProblemCode| ALWAYS.contains(code) || own.contains(code) || groups.iter().any(|group| group.contains(code));
    by_status(ProblemCode::ALL.iter().copied().filter(declared), ProblemCode::status, problem)
}

/// Responses by status, each with its codes in their order.
pub(crate) fn by_status<C>(
    codes: impl Iterator<Item = C>,
    status: impl Fn(C) -> StatusCode,
    response: impl Fn(u16, &[C]) -> utoipa::openapi::Response,
) -> BTreeMap<String, RefOr<utoipa::openapi::Response>>
where
    C: Copy,
{
    let mut by_status: BTreeMap<u16, Vec<C>> = BTreeMap::new();
    for code in codes {
        by_status.entry(status(code).as_u16()).or_default().push(code);
    }
    by_status.into_iter().map(|(status, codes)| (status.to_string(), RefOr::T(response(status, &codes)))).collect()
}

fn problem(status: u16, codes: &[ProblemCode]) -> utoipa::openapi::Response {
    let described = codes.iter().map(|code| (code.as_str(), code.description()));
    let mut response = refusal(&Problem::name(), described);
    if codes.iter().any(|code| code.passes()) {
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
        let after = HeaderBuilder::new().schema(Some(seconds)).description(Some("Seconds after which another try may succeed."));
        response = response.header("Retry-After", after.build());
    }
    if status == StatusCode::UNAUTHORIZED.as_u16() {
        let how = HeaderBuilder::new().description(Some("Credentials of requests."));
        response = response.header("WWW-Authenticate", how.build());
    }
    response.build()
}

/// A response with a problem document of this schema, and with the codes that it may have, each with its meaning. [`tidy`] makes the
/// responses of one status into one of the whole document.
pub(crate) fn refusal<'a>(schema: &str, codes: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> ResponseBuilder {
    let described: Vec<String> = codes.clone().map(|(code, meaning)| format!("`{code}`: {meaning}")).collect();
    let codes: Vec<&str> = codes.map(|(code, _)| code).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
    ResponseBuilder::new()
        .description(described.join("\n\n"))
        .content(PROBLEM, content)
        .extensions(Some([(CODES, codes)].into_iter().collect()))
}

/// The problem document (RFC 9457), as a schema.
pub(crate) enum Problem {}

impl PartialSchema for Problem {
    fn schema() -> RefOr<Schema> {
        let text = |description: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(description));
        let status = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(400)).maximum(Some(599));
        let retryable = ObjectBuilder::new().schema_type(Type::Boolean);
        let document = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("An error (RFC 9457). Programs decide by `code`."))
            .property("type", ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["about:blank"])))
            .property("title", text("The phrase of the status."))
            .property("status", status.description(Some("The status of the answer.")))
            .property("detail", text("The error and its remedy, for a person."))
            .property("code", Ref::from_schema_name(Code::name()))
            .property("message", text("The same as `detail`, under the name of the protocol."))
            .property("field", text("The parameter, header or member of the body that is wrong, where one is."))
            .property(
                "fields",
                ArrayBuilder::new()
                    .items(text("A key of the configuration."))
                    .description(Some("Several of them, of a configuration.")),
            )
            .property("action", Ref::from_schema_name(Action::name()))
            .property(
                "retryable",
                retryable.description(Some("For refusals of the gate of a run: true if the same request may succeed later.")),
            )
            .property(
                "details",
                ObjectBuilder::new()
                    .schema_type(SchemaType::AnyValue)
                    .description(Some("Of the same: the facts of it, such as a limit.")),
            );
        let document = ["type", "title", "status", "detail", "code"].into_iter().fold(document, ObjectBuilder::required);
        document.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for Problem {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Code::name().into_owned(), Code::schema()));
        schemas.push((Action::name().into_owned(), Action::schema()));
        Action::schemas(schemas);
    }
}

/// Every problem code, as a schema.
enum Code {}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let codes = ProblemCode::ALL;
        let row = |code: &ProblemCode| format!("- `{}` ({}): {}", code.as_str(), code.status().as_u16(), code.description());
        let described: Vec<String> = codes.iter().map(row).collect();
        let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(codes.iter().map(|code| code.as_str())));
        schema.description(Some(described.join("\n"))).into()
    }
}

impl ToSchema for Code {
    fn name() -> std::borrow::Cow<'static, str> {
        "ProblemCode".into()
    }
}

/// The `{id}` of a path that names something by a UUID.
impl<T: PathId + ToSchema> IntoParams for Id<T> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let id = ParameterBuilder::new().name("id").parameter_in(ParameterIn::Path).required(Required::True);
        vec![id.description(Some(format!("Names the {}.", T::WHAT))).schema(Some(T::schema())).build()]
    }
}

/// The parameters of a route that answers pages: `cursor` and `limit`.
pub(crate) enum PageParams {}

impl IntoParams for PageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![cursor("cursor", "`next_cursor` of the page before."), limit()]
    }
}

/// The parameters of a route that answers events of a run: `after` and `limit`.
pub(crate) enum AfterParams {}

impl IntoParams for AfterParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![cursor("after", "A cursor of this sequence: what follows it is answered."), limit()]
    }
}

/// The parameters that name a thread: `id` of the path and `sessionId`.
pub(crate) enum ThreadParams {}

impl IntoParams for ThreadParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let text = || Some(ObjectBuilder::new().schema_type(Type::String));
        let id = ParameterBuilder::new().name("id").parameter_in(ParameterIn::Path).required(Required::True);
        let session = ParameterBuilder::new().name("sessionId").parameter_in(ParameterIn::Query);
        let session = session.description(Some("The conversation, where its id differs from that of the thread."));
        vec![
            id.description(Some("The thread; its first turn creates it.")).schema(text()).build(),
            session.schema(text()).build(),
        ]
    }
}

/// The parameters of a route that answers a stream as well: `after`, and the header of a client that reconnects.
pub(crate) enum FollowParams {}

impl IntoParams for FollowParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let last = ParameterBuilder::new().name("Last-Event-ID").parameter_in(ParameterIn::Header);
        let last = last.description(Some("Of a stream: the `id` of the last item that was seen. It wins over `after`."));
        let text = ObjectBuilder::new().schema_type(Type::String);
        vec![cursor("after", "Of a stream: the cursor of an item, after which it begins."), last.schema(Some(text)).build()]
    }
}

/// The content of an artifact, as the schema of an answer: any bytes of any media type, so JSON is not looked into.
pub(crate) enum Bytes {}

impl PartialSchema for Bytes {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some("Bytes, as they are.")).into()
    }
}

impl ToSchema for Bytes {}

/// The same, as the schema of a body.
pub(crate) enum Upload {}

impl PartialSchema for Upload {
    fn schema() -> RefOr<Schema> {
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(binary)).description(Some("Bytes, as they are.")).into()
    }
}

impl ToSchema for Upload {}

/// A text in a path that the ledger knows or not.
pub(crate) fn named(name: &str, what: &str) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let id = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
    id.description(Some(what)).schema(Some(text)).build()
}

fn cursor(name: &str, what: &str) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let cursor = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(Required::False);
    cursor.description(Some(what)).schema(Some(text)).build()
}

fn limit() -> Parameter {
    let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(MIN_PAGE)).maximum(Some(MAX_PAGE));
    let number = number.default(Some(DEFAULT_PAGE.into()));
    let limit = ParameterBuilder::new().name("limit").parameter_in(ParameterIn::Query).required(Required::False);
    limit.description(Some("Items on the page, at most.")).schema(Some(number)).build()
}

/// The document before any route is in it. `problems` are the schemas of documents of other dialects.
pub(crate) fn empty(problems: impl IntoIterator<Item = (String, RefOr<Schema>)>) -> OpenApi {
    let info =
        InfoBuilder::new().title("Agent Host").version(env!("CARGO_PKG_VERSION")).description(Some(DESCRIPTION)).license(Some(
            LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).identifier(Some(env!("CARGO_PKG_LICENSE"))).build(),
        ));
    let mut schemas = vec![(Problem::name().into_owned(), Problem::schema())];
    Problem::schemas(&mut schemas);
    schemas.extend(problems);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(KEYS));
    let stream_token = ApiKeyValue::with_description(ACCESS_TOKEN, STREAM_TOKENS);
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("bearer", SecurityScheme::Http(bearer.build()))
        .security_scheme("stream_token", SecurityScheme::ApiKey(ApiKey::Query(stream_token)));
    let tags = TAGS.iter().map(|(name, what)| TagBuilder::new().name(*name).description(Some(*what)).build());
    let server = ServerBuilder::new().url("/").description(Some("The host that gives this document.")).build();
    OpenApiBuilder::new().info(info).servers(Some([server])).components(Some(components.build())).tags(Some(tags)).build()
}

const DESCRIPTION: &str = "A host for sandboxed agent runners. Times are Unix milliseconds, sizes are bytes, and a member that is absent \
     means the same as one that is `null`. Errors are problem documents (RFC 9457) with a `code`. The scopes that an operation needs stand \
     with its security requirement. The guide is docs/API.md.";

const KEYS: &str = "An API key (`ahk_…`), the credential of an executor (`ahx_…`), the token of one claim (`ahl_…`) or of its MCP endpoint (`ahm_…`), or a token (JWT) of an \
     identity provider, which names an end user.";

const STREAM_TOKENS: &str = "A token of `POST /api/v1/stream-tokens`, for the stream that it was made for.";

/// The parts of the API, in the order in which they are shown.
pub(crate) const TAGS: &[(&str, &str)] = &[
    ("events", "An event from outside, and the run that answers it."),
    ("agents", "Agents that front ends talk to, as AG-UI 1.0 has it."),
    ("agent", "One agent, in the profile that answers with 202."),
    ("chat", "A page for trying an agent."),
    ("runs", "One execution of one runner for one event."),
    ("threads", "A conversation as a stream of facts, and what a front end does in it."),
    ("queue", "Runs that executors claim and execute."),
    ("mcp", "The Model Context Protocol: what a run was granted, for its agent; and agents as tools."),
    ("actions", "Questions and actions of runs, for people."),
    ("artifacts", "Bytes that events, messages and tools refer to."),
    ("deliveries", "Results on their way to webhooks."),
    ("keys", "Security."),
    ("host", "The host itself."),
];

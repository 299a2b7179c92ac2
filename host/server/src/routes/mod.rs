//! The routes, one module for each resource, and the table of them.

mod accepted;
mod actions;
mod artifacts;
mod audit;
mod calls;
mod chat;
mod claims;
mod create;
mod deliveries;
mod docs;
mod document;
mod download;
mod events;
mod evidence;
mod executors;
mod feed;
mod health;
mod hooks;
mod imports;
mod keys;
mod mcp;
mod metrics;
mod operations;
mod output;
mod page;
mod pipeline;
mod replay;
mod run_logs;
mod run_stream;
mod runners;
mod runs;
mod schedules;
mod statistics;
mod stream_tokens;
mod threads;

use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::document::openapi;
pub(crate) use self::executors::ExecutorStatistics;
use crate::{
    agents::{
        list,
        profile::{self, errors::AgentProblem},
        routes as agents,
    },
    app::App,
    openapi::empty,
};

/// Every route of the server, with its description: a handler without one does not compile here.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(empty([(AgentProblem::name().into_owned(), AgentProblem::schema())]))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(document::document))
        .routes(routes!(metrics::show))
        .routes(routes!(events::list, events::accept))
        .routes(routes!(events::show))
        .routes(routes!(runners::list))
        .routes(routes!(runs::list, create::create))
        .routes(routes!(runs::show))
        .routes(routes!(runs::context))
        .routes(routes!(runs::grant))
        .routes(routes!(runs::audit))
        .routes(routes!(runs::events))
        .routes(routes!(run_logs::logs))
        .routes(routes!(evidence::evidence))
        .routes(routes!(replay::journal))
        .routes(routes!(replay::recording))
        .routes(routes!(replay::fork))
        .routes(routes!(runs::cancel))
        .routes(routes!(create::retry))
        .routes(routes!(create::dead_letters))
        .routes(routes!(create::requeue))
        .routes(routes!(executors::list, executors::register))
        .routes(routes!(executors::show, executors::deregister))
        .routes(routes!(executors::statistics))
        .routes(routes!(executors::heartbeat))
        .routes(routes!(executors::news))
        .routes(routes!(claims::claim))
        .routes(routes!(claims::start))
        .routes(routes!(claims::renew))
        .routes(routes!(claims::release))
        .routes(routes!(claims::append))
        .routes(routes!(claims::finalize))
        .routes(routes!(imports::import))
        .routes(routes!(calls::call))
        .routes(routes!(calls::create_artifact))
        .routes(routes!(calls::artifact))
        .routes(routes!(mcp::message, mcp::follow, mcp::end))
        .routes(routes!(mcp::agents_message, mcp::agents_follow, mcp::agents_end))
        .routes(routes!(actions::of_run))
        .routes(routes!(actions::open))
        .routes(routes!(actions::show))
        .routes(routes!(actions::respond))
        .routes(routes!(threads::read::list))
        .routes(routes!(threads::read::show))
        .routes(routes!(threads::read::task))
        .routes(routes!(threads::read::evidence))
        .routes(routes!(threads::events::events))
        .routes(routes!(threads::act::start))
        .routes(routes!(threads::act::cancel))
        .routes(routes!(threads::act::respond))
        .routes(routes!(statistics::statistics))
        .routes(routes!(audit::audit))
        .routes(routes!(operations::reload))
        .routes(routes!(operations::backup))
        .routes(routes!(artifacts::upload))
        .routes(routes!(artifacts::content, artifacts::head))
        .routes(routes!(artifacts::metadata))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(stream_tokens::create_stream_token))
        .routes(routes!(schedules::schedules))
        .routes(routes!(hooks::webhook_sources))
        .routes(routes!(hooks::hook))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::retry))
        .routes(routes!(agents::agents))
        .routes(routes!(agents::capabilities))
        .routes(routes!(agents::run))
        .routes(routes!(agents::connect))
        .routes(routes!(list::threads))
        .routes(routes!(agents::show, agents::forget))
        .routes(routes!(agents::events))
        .routes(routes!(agents::cancel))
        .routes(routes!(profile::runs::start_agent_run))
        .routes(routes!(profile::runs::agent_run_events))
        .routes(routes!(profile::runs::cancel_agent_run))
        .routes(routes!(profile::runs::delete_agent_thread))
        .routes(routes!(profile::runs::delete_agent_session))
        .routes(routes!(profile::history::history))
        .routes(routes!(profile::attachments::upload_attachment))
        .routes(routes!(profile::attachments::sign_attachment))
        .routes(routes!(profile::attachments::attachment_content))
        .routes(routes!(pipeline::pipeline_query))
        .routes(routes!(chat::page))
        .routes(routes!(chat::file))
        .routes(routes!(docs::docs))
        .routes(routes!(docs::docs_file))
}

//! The host calls of a component that is only asked for its manifests: there is no run, so each call is refused.

use agent_host_protocol::{
    ApiError, Interface, Page, RunEvent, RunId, Timestamp,
    artifact::ArtifactMetadata,
    ask::{ActionOutcome, Answer},
    child::RunSummary,
    context::{EventContext, KnowledgeBaseResource, SteeringInput},
    http::HttpRequest,
    knowledge::KnowledgeHit,
    manifest::{StateScope, StorageArea},
    model::{ModelResponse, RerankHit},
    tool::{ToolDetail, ToolOutput},
    transcript::TranscriptItem,
};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{
    ActionRequest, ArtifactCalls, AskedQuestion, Batch, ChatMessages, ChatRequest, ChildCalls, EventCalls, HistoryCalls,
    HttpBody, HttpCalls, InteractionCalls, KnowledgeCalls, LogSource, ModelCalls, PageRequest, PlatformCalls, Refusals,
    ResultCalls, RunLog, StartRequest, StateCalls, SteeringCalls, StorageCalls, TimeCalls, ToolCalls, ToolRequest,
};
use crate::handles::{ArtifactReader, ArtifactWriter, HttpResponse, ResponseStream};

/// An implementation for a guest that makes no calls.
pub(crate) struct NoRun;

fn not_a_run() -> ApiError {
    ApiError::unauthorized("there is no run: the component was only asked for its manifests")
}

macro_rules! refused {
    ($($calls:ident { $($name:ident($($argument:ty),*) -> $answer:ty;)* })*) => {$(
        impl $calls for NoRun {$(
            fn $name(&mut self, $(_: $argument),*) -> BoxFuture<'_, Result<$answer, ApiError>> {
                Box::pin(async { Err(not_a_run()) })
            }
        )*}
    )*};
}

refused! {
    ResultCalls {
        emit(Batch) -> u64;
    }
    ModelCalls {
        model_invoke(String, ChatRequest) -> ModelResponse;
        model_stream(String, ChatRequest) -> Box<dyn ResponseStream>;
        model_rerank(String, String, Vec<String>, Option<u32>) -> Vec<RerankHit>;
        model_embed(String, Vec<String>) -> Vec<Vec<f32>>;
        model_count_tokens(String, ChatMessages) -> u64;
    }
    KnowledgeCalls {
        knowledge_list() -> Vec<KnowledgeBaseResource>;
        knowledge_retrieve(String, String, u32, Option<String>) -> Vec<KnowledgeHit>;
    }
    HistoryCalls {
        history_page(PageRequest) -> Page<TranscriptItem>;
        history_search(String, Option<String>, u32) -> Vec<TranscriptItem>;
    }
    EventCalls {
        event_get(String) -> EventContext;
        event_page(Option<String>, Vec<String>, u32) -> Page<EventContext>;
    }
    ArtifactCalls {
        artifact_metadata(String) -> ArtifactMetadata;
        artifact_read_range(String, u64, u32) -> Vec<u8>;
        artifact_open(String) -> Box<dyn ArtifactReader>;
        artifact_create(String, Option<String>) -> Box<dyn ArtifactWriter>;
    }
    StateCalls {
        state_get(StateScope, String) -> Option<Value>;
        state_set(StateScope, String, String) -> ();
        state_delete(StateScope, String) -> ();
        state_list_keys(StateScope, Option<String>, u32) -> Vec<String>;
    }
    StorageCalls {
        storage_get(StorageArea, String) -> Option<Vec<u8>>;
        storage_set(StorageArea, String, Vec<u8>) -> ();
        storage_delete(StorageArea, String) -> ();
        storage_list(StorageArea, Option<String>, u32) -> Vec<String>;
    }
    PlatformCalls {
        platform_request_action(ActionRequest) -> ActionOutcome;
    }
    InteractionCalls {
        interaction_ask(AskedQuestion) -> Answer;
    }
    SteeringCalls {
        steering_pull(u32, u32) -> Vec<SteeringInput>;
    }
    ChildCalls {
        run_start(StartRequest) -> RunId;
        run_wait_any(Vec<String>, u32) -> Option<RunSummary>;
        run_get(String) -> RunSummary;
        run_list(Option<String>, u32) -> Vec<RunSummary>;
        run_events_page(String, Option<String>, u32) -> Page<RunEvent>;
        run_cancel(String, String) -> ();
    }
}

impl HttpCalls for NoRun {
    fn http_send(&mut self, _: HttpRequest) -> BoxFuture<'_, Result<Box<dyn HttpResponse>, ApiError>> {
        Box::pin(async { Err(not_a_run()) })
    }

    fn http_outgoing(&mut self, _: http::Request<HttpBody>) -> BoxFuture<'static, Result<http::Response<HttpBody>, ApiError>> {
        Box::pin(async { Err(not_a_run()) })
    }
}

impl ToolCalls for NoRun {
    fn tool_detail(&mut self, _: String) -> BoxFuture<'_, Result<ToolDetail, ApiError>> {
        Box::pin(async { Err(not_a_run()) })
    }

    fn tool_call(&mut self, _: ToolRequest) -> BoxFuture<'_, Result<ToolOutput, ApiError>> {
        Box::pin(async { Err(not_a_run()) })
    }

    fn tool_call_many(&mut self, calls: Vec<ToolRequest>) -> BoxFuture<'_, Vec<Result<ToolOutput, ApiError>>> {
        Box::pin(async move { calls.iter().map(|_| Err(not_a_run())).collect() })
    }
}

impl TimeCalls for NoRun {
    fn now(&mut self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async { 0 })
    }

    fn sleep_until(&mut self, _: Timestamp) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async { Err(not_a_run()) })
    }

    /// The time does not pass here, so who waits for it is given up.
    fn wait_until(&mut self, _: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

impl Refusals for NoRun {
    fn refuse(&mut self, _: Interface, _: &'static str) -> BoxFuture<'_, ApiError> {
        Box::pin(async { not_a_run() })
    }
}

impl RunLog for NoRun {
    fn write(&self, _: LogSource, _: &[u8]) {}
}

//! The state behind one guest: what its host calls reach.

mod closed;
mod requests;

use agent_host_protocol::{ApiError, Limits};
use rustc_hash::FxHashMap;
use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::WasiHttpCtx;

use crate::{
    bindings::{
        artifacts, events, history, http, interactions, knowledge, log, manifest, models, platform, results, runs, state,
        steering, storage, timers, tools, types,
    },
    calls::{ActionRequest, Batch, ChatMessages, ChatRequest, HostCalls, SharedLog},
    convert,
    handles::{Reader, Response, Responses, Writer},
    limits::GuestLimits,
    wasi_context,
    world::World,
};

/// The data of one store.
pub(crate) struct Guest {
    /// Made when the guest first calls WASI: most runners never do.
    wasi: Option<WasiCtx>,
    pub(crate) http: WasiHttpCtx,
    pub(crate) handles: ResourceTable,
    /// Due time of each timer that the guest can poll, in nanoseconds of its monotonic clock, by handle.
    pub(crate) timers: FxHashMap<u32, u64>,
    pub(crate) waiting: PollWait,
    pub(crate) limits: GuestLimits,
    pub(crate) world: World,
    pub(crate) calls: Box<dyn HostCalls>,
    log: SharedLog,
}

/// The wait of a guest that polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollWait {
    /// Timers of its own clock. All other pollables are ready, so two executions of one run poll alike.
    ForTimers,
    /// Timers, and real readiness: responses, and streams of bodies.
    ForReadiness,
}

impl Guest {
    pub(crate) fn new(limits: &Limits, waiting: PollWait, world: World, calls: Box<dyn HostCalls>, log: SharedLog) -> Self {
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(limits.guest_handles);
        let (http, limits) = (wasi_context::http(), GuestLimits::new(&world));
        Self { wasi: None, http, handles, timers: FxHashMap::default(), waiting, limits, world, calls, log }
    }

    /// The implementation of an interface that the run was granted.
    pub(crate) fn open(&mut self) -> GrantedInterface<'_> {
        GrantedInterface(self)
    }

    /// The implementation of an interface that the run was not granted.
    pub(crate) fn not_granted(&mut self) -> RefusedInterface<'_> {
        RefusedInterface(self)
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let ctx = self.wasi.get_or_insert_with(|| wasi_context::inert(&self.world, &self.log));
        WasiCtxView { ctx, table: &mut self.handles }
    }
}

/// The way through to [`HostCalls`].
pub(crate) struct GrantedInterface<'a>(&'a mut Guest);

/// An implementation that only refuses, independently of the gate behind it.
pub(crate) struct RefusedInterface<'a>(&'a mut Guest);

/// Links an interface to [`GrantedInterface`].
pub(crate) struct LinkGranted;
/// Links an interface to [`RefusedInterface`].
pub(crate) struct LinkRefused;

impl HasData for LinkGranted {
    type Data<'a> = GrantedInterface<'a>;
}

impl HasData for LinkRefused {
    type Data<'a> = RefusedInterface<'a>;
}

/// The result of a host function of the contract: an answer, a refusal, or (the outer one) a trap.
type Answer<T> = wasmtime::Result<Result<T, types::ApiError>>;

fn answer<T>(result: Result<T, ApiError>) -> Answer<T> {
    Ok(result.map_err(convert::error_out))
}

// ---- what every run has ----

impl types::Host for GrantedInterface<'_> {}
impl manifest::Host for GrantedInterface<'_> {}
impl crate::bindings::context::Host for GrantedInterface<'_> {}

impl results::Host for GrantedInterface<'_> {
    async fn emit(&mut self, batch: Vec<results::RunResult>) -> Answer<u64> {
        answer(self.0.calls.emit(Batch::new(batch)).await)
    }
}

impl log::Host for GrantedInterface<'_> {
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let source = requests::log_level(level);
        self.0.log.write(source, message.as_bytes());
        self.0.log.write(source, b"\n");
        Ok(())
    }
}

// ---- what a run may be granted ----

fn texts<T, U>(result: Result<Vec<T>, ApiError>, out: impl Fn(T) -> U) -> Answer<Vec<U>> {
    answer(result.map(|all| all.into_iter().map(out).collect()))
}

impl GrantedInterface<'_> {
    /// A handle to what a call gave. A guest that holds more than it may is broken, as with any other handle.
    fn handle<T: Send + 'static>(&mut self, given: Result<T, ApiError>) -> Answer<Resource<T>> {
        match given {
            Ok(value) => Ok(Ok(self.0.handles.push(value)?)),
            Err(error) => answer(Err(error)),
        }
    }
}

impl models::Host for GrantedInterface<'_> {
    async fn invoke(&mut self, model_id: String, request: models::Request) -> Answer<models::Response> {
        let response = self.0.calls.model_invoke(model_id, ChatRequest::new(request)).await;
        answer(response.map(convert::response_out))
    }

    async fn stream(&mut self, model_id: String, request: models::Request) -> Answer<Resource<Responses>> {
        let stream = self.0.calls.model_stream(model_id, ChatRequest::new(request)).await;
        self.handle(stream.map(Responses))
    }

    async fn rerank(
        &mut self,
        model_id: String,
        query: String,
        documents: Vec<String>,
        top_k: Option<u32>,
    ) -> Answer<Vec<models::RerankHit>> {
        texts(self.0.calls.model_rerank(model_id, query, documents, top_k).await, convert::rerank_out)
    }

    async fn embed(&mut self, model_id: String, input: Vec<String>) -> Answer<Vec<Vec<f32>>> {
        answer(self.0.calls.model_embed(model_id, input).await)
    }

    async fn count_tokens(&mut self, model_id: String, messages: Vec<types::Message>) -> Answer<u64> {
        answer(self.0.calls.model_count_tokens(model_id, ChatMessages::new(messages)).await)
    }
}

impl models::HostResponseStream for GrantedInterface<'_> {
    async fn next(&mut self, stream: Resource<Responses>) -> Answer<Vec<models::Chunk>> {
        let stream = self.0.handles.get_mut(&stream)?;
        texts(stream.0.next().await, convert::chunk_out)
    }

    async fn drop(&mut self, stream: Resource<Responses>) -> wasmtime::Result<()> {
        self.0.handles.delete(stream)?;
        Ok(())
    }
}

impl tools::Host for GrantedInterface<'_> {
    async fn get_detail(&mut self, tool_name: String) -> Answer<tools::ToolDetail> {
        answer(self.0.calls.tool_detail(tool_name).await.map(convert::tool_detail_out))
    }

    async fn call(&mut self, call: types::ToolCall) -> Answer<tools::ToolOutput> {
        answer(self.0.calls.tool_call(requests::tool_request(call)).await.map(convert::tool_output_out))
    }

    async fn call_many(
        &mut self,
        calls: Vec<types::ToolCall>,
    ) -> wasmtime::Result<Vec<Result<tools::ToolOutput, types::ApiError>>> {
        let calls = calls.into_iter().map(requests::tool_request).collect();
        let outcomes = self.0.calls.tool_call_many(calls).await;
        Ok(outcomes.into_iter().map(|outcome| outcome.map(convert::tool_output_out).map_err(convert::error_out)).collect())
    }
}

impl knowledge::Host for GrantedInterface<'_> {
    async fn list(&mut self) -> Answer<Vec<knowledge::KnowledgeBaseResource>> {
        texts(self.0.calls.knowledge_list().await, convert::knowledge_base_out)
    }

    async fn retrieve(
        &mut self,
        kb_id: String,
        query: String,
        top_k: u32,
        filters: Option<String>,
    ) -> Answer<Vec<knowledge::Hit>> {
        texts(self.0.calls.knowledge_retrieve(kb_id, query, top_k, filters).await, convert::hit_out)
    }
}

impl history::Host for GrantedInterface<'_> {
    async fn page(&mut self, request: history::PageRequest) -> Answer<history::TranscriptPage> {
        answer(self.0.calls.history_page(requests::page_request(request)).await.map(convert::page_out))
    }

    async fn search(&mut self, query: String, filters: Option<String>, top_k: u32) -> Answer<Vec<history::TranscriptItem>> {
        texts(self.0.calls.history_search(query, filters, top_k).await, convert::transcript_item_out)
    }
}

impl events::Host for GrantedInterface<'_> {
    async fn get(&mut self, event_id: String) -> Answer<events::Event> {
        answer(self.0.calls.event_get(event_id).await.map(convert::event_out))
    }

    async fn page(&mut self, before: Option<String>, event_types: Vec<String>, limit: u32) -> Answer<events::EventPage> {
        answer(self.0.calls.event_page(before, event_types, limit).await.map(convert::event_page_out))
    }
}

impl artifacts::Host for GrantedInterface<'_> {
    async fn metadata(&mut self, artifact_id: String) -> Answer<artifacts::ArtifactMetadata> {
        let metadata = self.0.calls.artifact_metadata(artifact_id).await;
        answer(metadata.map(convert::artifact_metadata_out))
    }

    async fn read_range(&mut self, artifact_id: String, offset: u64, length: u32) -> Answer<Vec<u8>> {
        answer(self.0.calls.artifact_read_range(artifact_id, offset, length).await)
    }

    async fn open(&mut self, artifact_id: String) -> Answer<Resource<Reader>> {
        let reader = self.0.calls.artifact_open(artifact_id).await;
        self.handle(reader.map(Reader))
    }

    async fn create(&mut self, media_type: String, name: Option<String>) -> Answer<Resource<Writer>> {
        let writer = self.0.calls.artifact_create(media_type, name).await;
        self.handle(writer.map(Writer))
    }
}

impl artifacts::HostReader for GrantedInterface<'_> {
    async fn read(&mut self, reader: Resource<Reader>, max_bytes: u32) -> Answer<Vec<u8>> {
        answer(self.0.handles.get_mut(&reader)?.0.read(max_bytes).await)
    }

    async fn drop(&mut self, reader: Resource<Reader>) -> wasmtime::Result<()> {
        self.0.handles.delete(reader)?;
        Ok(())
    }
}

impl artifacts::HostWriter for GrantedInterface<'_> {
    async fn write(&mut self, writer: Resource<Writer>, bytes: Vec<u8>) -> Answer<()> {
        answer(self.0.handles.get_mut(&writer)?.0.write(bytes).await)
    }

    async fn finish(&mut self, writer: Resource<Writer>) -> Answer<types::ArtifactRef> {
        let writer = self.0.handles.delete(writer)?;
        answer(writer.0.finish().await.map(convert::artifact_out))
    }

    async fn drop(&mut self, writer: Resource<Writer>) -> wasmtime::Result<()> {
        self.0.handles.delete(writer)?;
        Ok(())
    }
}

impl state::Host for GrantedInterface<'_> {
    async fn get(&mut self, scope: state::StateScope, key: String) -> Answer<Option<String>> {
        let value = self.0.calls.state_get(convert::scope(scope), key).await;
        answer(value.map(|value| value.map(|value| value.to_string())))
    }

    async fn set(&mut self, scope: state::StateScope, key: String, value: String) -> Answer<()> {
        answer(self.0.calls.state_set(convert::scope(scope), key, value).await)
    }

    async fn delete(&mut self, scope: state::StateScope, key: String) -> Answer<()> {
        answer(self.0.calls.state_delete(convert::scope(scope), key).await)
    }

    async fn list_keys(&mut self, scope: state::StateScope, prefix: Option<String>, limit: u32) -> Answer<Vec<String>> {
        answer(self.0.calls.state_list_keys(convert::scope(scope), prefix, limit).await)
    }
}

impl storage::Host for GrantedInterface<'_> {
    async fn get(&mut self, area: storage::StorageArea, key: String) -> Answer<Option<Vec<u8>>> {
        answer(self.0.calls.storage_get(convert::area(area), key).await)
    }

    async fn set(&mut self, area: storage::StorageArea, key: String, value: Vec<u8>) -> Answer<()> {
        answer(self.0.calls.storage_set(convert::area(area), key, value).await)
    }

    async fn delete(&mut self, area: storage::StorageArea, key: String) -> Answer<()> {
        answer(self.0.calls.storage_delete(convert::area(area), key).await)
    }

    async fn list(&mut self, area: storage::StorageArea, prefix: Option<String>, limit: u32) -> Answer<Vec<String>> {
        answer(self.0.calls.storage_list(convert::area(area), prefix, limit).await)
    }
}

impl timers::Host for GrantedInterface<'_> {
    async fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.0.calls.now().await)
    }

    async fn sleep_until(&mut self, at: u64) -> Answer<()> {
        answer(self.0.calls.sleep_until(at).await)
    }
}

impl platform::Host for GrantedInterface<'_> {
    async fn request_action(&mut self, action: String, target: String, payload: String) -> Answer<platform::ActionOutcome> {
        let outcome = self.0.calls.platform_request_action(ActionRequest { action, target, payload }).await;
        answer(outcome.map(convert::action_outcome_out))
    }
}

impl interactions::Host for GrantedInterface<'_> {
    async fn ask(&mut self, question: interactions::Question) -> Answer<interactions::Answer> {
        answer(self.0.calls.interaction_ask(requests::question(question)).await.map(convert::answer_out))
    }
}

impl steering::Host for GrantedInterface<'_> {
    async fn pull(&mut self, limit: u32, wait_ms: u32) -> Answer<Vec<steering::SteeringInput>> {
        texts(self.0.calls.steering_pull(limit, wait_ms).await, convert::steering_out)
    }
}

impl runs::Host for GrantedInterface<'_> {
    async fn start(&mut self, request: runs::StartRequest) -> Answer<String> {
        answer(self.0.calls.run_start(requests::start_request(request)).await.map(|run_id| run_id.to_string()))
    }

    async fn wait_any(&mut self, run_ids: Vec<String>, wait_ms: u32) -> Answer<Option<runs::RunSummary>> {
        let ended = self.0.calls.run_wait_any(run_ids, wait_ms).await;
        answer(ended.map(|ended| ended.map(convert::run_summary_out)))
    }

    async fn get(&mut self, run_id: String) -> Answer<runs::RunSummary> {
        answer(self.0.calls.run_get(run_id).await.map(convert::run_summary_out))
    }

    async fn list(&mut self, parent_run_id: Option<String>, limit: u32) -> Answer<Vec<runs::RunSummary>> {
        texts(self.0.calls.run_list(parent_run_id, limit).await, convert::run_summary_out)
    }

    async fn events_page(&mut self, run_id: String, after: Option<String>, limit: u32) -> Answer<runs::RunEventPage> {
        answer(self.0.calls.run_events_page(run_id, after, limit).await.map(convert::run_event_page_out))
    }

    async fn cancel(&mut self, run_id: String, reason: String) -> Answer<()> {
        answer(self.0.calls.run_cancel(run_id, reason).await)
    }
}

impl http::Host for GrantedInterface<'_> {
    async fn send(&mut self, request: http::Request) -> Answer<Resource<Response>> {
        let response = self.0.calls.http_send(convert::http_request(request)).await;
        self.handle(response.map(Response))
    }
}

/// Status and headers arrived with the response, so reading them is no host call: the values never change.
impl http::HostResponse for GrantedInterface<'_> {
    async fn status(&mut self, response: Resource<Response>) -> wasmtime::Result<u16> {
        Ok(self.0.handles.get(&response)?.0.head().status)
    }

    async fn headers(&mut self, response: Resource<Response>) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.0.handles.get(&response)?.0.head().headers.clone())
    }

    async fn read(&mut self, response: Resource<Response>, max_bytes: u32) -> Answer<Vec<u8>> {
        answer(self.0.handles.get_mut(&response)?.0.read(max_bytes).await)
    }

    async fn drop(&mut self, response: Resource<Response>) -> wasmtime::Result<()> {
        self.0.handles.delete(response)?;
        Ok(())
    }
}

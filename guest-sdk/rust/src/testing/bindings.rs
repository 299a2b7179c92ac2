//! Functions of the contract, answered by the scripted host of this thread. Names and signatures are those of
//! `wit-bindgen`, so that the SDK can call either.

use super::scripted::with;
use crate::contract::agent_host::runner::types::ApiError;

type Answer<T> = Result<T, ApiError>;

pub(crate) mod results {
    use super::*;
    use crate::contract::RunResult;

    pub(crate) fn emit(results: &[RunResult]) -> Answer<u64> {
        with("results.emit", |host| host.emit(results))
    }
}

pub(crate) mod log {
    use crate::log::Level;

    pub(crate) fn write(level: Level, message: &str) {
        super::super::scripted::with_any("log.write", |host| host.log.push((level, message.to_owned())));
    }
}

pub(crate) mod timers {
    use super::*;

    pub(crate) fn now() -> u64 {
        with("timers.now", |host| host.now)
    }

    pub(crate) fn sleep_until(at: u64) -> Answer<()> {
        with("timers.sleep-until", |host| host.sleep_until(at))
    }
}

pub(crate) mod models {
    use std::cell::RefCell;

    use super::*;
    use crate::contract::{Chunk, Message, Request, RerankHit, Response};

    /// Rest of a scripted stream; the last item may be an error.
    #[derive(Debug)]
    pub(crate) struct ResponseStream(RefCell<std::vec::IntoIter<Answer<Chunk>>>);

    impl ResponseStream {
        pub(crate) fn next(&self) -> Answer<Vec<Chunk>> {
            let chunk = self.0.borrow_mut().next();
            with("models.stream.next", |host| host.alive("models.stream.next"))?;
            chunk.into_iter().collect()
        }
    }

    pub(crate) fn invoke(model_id: &str, request: &Request) -> Answer<Response> {
        with("models.invoke", |host| host.invoke(model_id, request))
    }

    pub(crate) fn stream(model_id: &str, request: &Request) -> Answer<ResponseStream> {
        let chunks = with("models.stream", |host| host.stream(model_id, request))?;
        Ok(ResponseStream(RefCell::new(chunks.into_iter())))
    }

    pub(crate) fn rerank(model_id: &str, query: &str, documents: &[String], top_k: Option<u32>) -> Answer<Vec<RerankHit>> {
        with("models.rerank", |host| host.rerank(model_id, query, documents, top_k))
    }

    pub(crate) fn embed(model_id: &str, texts: &[String]) -> Answer<Vec<Vec<f32>>> {
        with("models.embed", |host| host.embed(model_id, texts))
    }

    pub(crate) fn count_tokens(model_id: &str, messages: &[Message]) -> Answer<u64> {
        with("models.count-tokens", |host| host.count_tokens(model_id, messages))
    }
}

pub(crate) mod tools {
    use super::*;
    use crate::contract::{ToolCall, ToolDetail, ToolOutput};

    pub(crate) fn get_detail(name: &str) -> Answer<ToolDetail> {
        with("tools.get-detail", |host| host.tool_detail(name))
    }

    pub(crate) fn call(call: &ToolCall) -> Answer<ToolOutput> {
        with("tools.call", |host| host.tool_call("tools.call", call))
    }

    pub(crate) fn call_many(calls: &[ToolCall]) -> Vec<Answer<ToolOutput>> {
        with("tools.call-many", |host| calls.iter().map(|call| host.tool_call("tools.call-many", call)).collect())
    }
}

pub(crate) mod knowledge {
    use super::*;
    use crate::contract::{Hit, KnowledgeBaseResource};

    pub(crate) fn list() -> Answer<Vec<KnowledgeBaseResource>> {
        with("knowledge.list", |host| host.knowledge_list())
    }

    pub(crate) fn retrieve(kb_id: &str, query: &str, top_k: u32, filters: Option<&str>) -> Answer<Vec<Hit>> {
        with("knowledge.retrieve", |host| host.retrieve(kb_id, query, top_k, filters))
    }
}

pub(crate) mod history {
    use super::*;
    use crate::contract::{PageRequest, TranscriptItem, TranscriptPage};

    pub(crate) fn page(request: &PageRequest) -> Answer<TranscriptPage> {
        with("history.page", |host| host.history_page(request))
    }

    pub(crate) fn search(query: &str, filters: Option<&str>, top_k: u32) -> Answer<Vec<TranscriptItem>> {
        with("history.search", |host| host.history_search(query, filters, top_k))
    }
}

pub(crate) mod events {
    use super::*;
    use crate::contract::{Event, EventPage};

    pub(crate) fn get(event_id: &str) -> Answer<Event> {
        with("events.get", |host| host.event_get(event_id))
    }

    pub(crate) fn page(before: Option<&str>, event_types: &[String], limit: u32) -> Answer<EventPage> {
        with("events.page", |host| host.event_page(before, event_types, limit))
    }
}

pub(crate) mod artifacts {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::contract::{ArtifactMetadata, ArtifactRef};

    #[derive(Debug)]
    pub(crate) struct Reader {
        content: Vec<u8>,
        at: Cell<usize>,
    }

    impl Reader {
        pub(crate) fn read(&self, max_bytes: u32) -> Answer<Vec<u8>> {
            with("artifacts.reader.read", |host| host.alive("artifacts.reader.read"))?;
            let rest = self.content.get(self.at.get()..).unwrap_or_default();
            let part: Vec<u8> = rest.iter().copied().take(max_bytes as usize).collect();
            self.at.set(self.at.get() + part.len());
            Ok(part)
        }
    }

    #[derive(Debug)]
    pub(crate) struct Writer {
        media_type: String,
        name: Option<String>,
        content: RefCell<Vec<u8>>,
    }

    impl Writer {
        pub(crate) fn write(&self, bytes: &[u8]) -> Answer<()> {
            with("artifacts.writer.write", |host| host.alive("artifacts.writer.write"))?;
            self.content.borrow_mut().extend_from_slice(bytes);
            Ok(())
        }

        pub(crate) fn finish(this: Self) -> Answer<ArtifactRef> {
            with("artifacts.writer.finish", |host| {
                host.alive("artifacts.writer.finish")?;
                Ok(host.keep_artifact(&this.media_type, this.name.as_deref(), this.content.into_inner()))
            })
        }
    }

    pub(crate) fn metadata(artifact_id: &str) -> Answer<ArtifactMetadata> {
        with("artifacts.metadata", |host| host.artifact_metadata(artifact_id))
    }

    pub(crate) fn read_range(artifact_id: &str, offset: u64, length: u32) -> Answer<Vec<u8>> {
        with("artifacts.read-range", |host| {
            let content = host.artifact_content("artifacts.read-range", artifact_id)?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            Ok(content.into_iter().skip(from).take(length as usize).collect())
        })
    }

    pub(crate) fn open(artifact_id: &str) -> Answer<Reader> {
        let content = with("artifacts.open", |host| host.artifact_content("artifacts.open", artifact_id))?;
        Ok(Reader { content, at: Cell::new(0) })
    }

    pub(crate) fn create(media_type: &str, name: Option<&str>) -> Answer<Writer> {
        with("artifacts.create", |host| host.artifact_create())?;
        Ok(Writer { media_type: media_type.to_owned(), name: name.map(str::to_owned), content: RefCell::default() })
    }
}

pub(crate) mod state {
    use super::*;
    use crate::contract::StateScope;

    pub(crate) fn get(scope: StateScope, key: &str) -> Answer<Option<String>> {
        with("state.get", |host| {
            host.state_pass("state.get", scope)?;
            Ok(host.state.get(&(scope as u8, key.to_owned())).cloned())
        })
    }

    pub(crate) fn set(scope: StateScope, key: &str, value: &str) -> Answer<()> {
        with("state.set", |host| {
            host.state_pass("state.set", scope)?;
            host.state_write(scope, key, value)
        })
    }

    pub(crate) fn delete(scope: StateScope, key: &str) -> Answer<()> {
        with("state.delete", |host| {
            host.state_pass("state.delete", scope)?;
            host.state.remove(&(scope as u8, key.to_owned()));
            Ok(())
        })
    }

    pub(crate) fn list_keys(scope: StateScope, prefix: Option<&str>, limit: u32) -> Answer<Vec<String>> {
        with("state.list-keys", |host| {
            host.state_pass("state.list-keys", scope)?;
            Ok(super::keys(host.state.keys(), scope as u8, prefix, limit))
        })
    }
}

pub(crate) mod storage {
    use super::*;
    use crate::contract::StorageArea;

    pub(crate) fn get(area: StorageArea, key: &str) -> Answer<Option<Vec<u8>>> {
        with("storage.get", |host| {
            host.storage_pass("storage.get", area)?;
            Ok(host.storage.get(&(area as u8, key.to_owned())).cloned())
        })
    }

    pub(crate) fn set(area: StorageArea, key: &str, value: &[u8]) -> Answer<()> {
        with("storage.set", |host| {
            host.storage_pass("storage.set", area)?;
            host.storage.insert((area as u8, key.to_owned()), value.to_vec());
            Ok(())
        })
    }

    pub(crate) fn delete(area: StorageArea, key: &str) -> Answer<()> {
        with("storage.delete", |host| {
            host.storage_pass("storage.delete", area)?;
            host.storage.remove(&(area as u8, key.to_owned()));
            Ok(())
        })
    }

    pub(crate) fn list(area: StorageArea, prefix: Option<&str>, limit: u32) -> Answer<Vec<String>> {
        with("storage.list", |host| {
            host.storage_pass("storage.list", area)?;
            Ok(super::keys(host.storage.keys(), area as u8, prefix, limit))
        })
    }
}

pub(crate) mod platform {
    use super::*;
    use crate::contract::ActionOutcome;

    pub(crate) fn request_action(action: &str, target: &str, payload: &str) -> Answer<ActionOutcome> {
        with("platform.request-action", |host| host.request_action(action, target, payload))
    }
}

pub(crate) mod interactions {
    use super::*;
    use crate::contract::{AskedQuestion, QuestionAnswer};

    pub(crate) fn ask(question: &AskedQuestion) -> Answer<QuestionAnswer> {
        with("interactions.ask", |host| host.ask(question))
    }
}

pub(crate) mod steering {
    use super::*;
    use crate::contract::SteeringInput;

    pub(crate) fn pull(limit: u32, wait_ms: u32) -> Answer<Vec<SteeringInput>> {
        with("steering.pull", |host| host.pull(limit, wait_ms))
    }
}

pub(crate) mod runs {
    use super::*;
    use crate::contract::{RunEventPage, RunSummary, StartRequest};

    pub(crate) fn start(request: &StartRequest) -> Answer<String> {
        with("runs.start", |host| host.start_run(request))
    }

    pub(crate) fn wait_any(run_ids: &[String], wait_ms: u32) -> Answer<Option<RunSummary>> {
        with("runs.wait-any", |host| host.wait_any(run_ids, wait_ms))
    }

    pub(crate) fn get(run_id: &str) -> Answer<RunSummary> {
        with("runs.get", |host| host.get_run(run_id))
    }

    pub(crate) fn list(parent_run_id: Option<&str>, limit: u32) -> Answer<Vec<RunSummary>> {
        with("runs.list", |host| host.list_runs(parent_run_id, limit))
    }

    pub(crate) fn events_page(run_id: &str, after: Option<&str>, limit: u32) -> Answer<RunEventPage> {
        with("runs.events-page", |host| host.run_events(run_id, after, limit))
    }

    pub(crate) fn cancel(run_id: &str, reason: &str) -> Answer<()> {
        with("runs.cancel", |host| host.cancel_run(run_id, reason))
    }
}

pub(crate) mod http {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;
    use crate::contract::HttpRequest;

    /// Scripted response: its head, and the rest of its body.
    #[derive(Debug)]
    pub(crate) struct Response {
        status: u16,
        headers: Vec<(String, String)>,
        chunks: RefCell<VecDeque<Result<Vec<u8>, crate::ApiError>>>,
    }

    impl Response {
        pub(crate) fn status(&self) -> u16 {
            with("http.response.status", |_| self.status)
        }

        pub(crate) fn headers(&self) -> Vec<(String, String)> {
            with("http.response.headers", |_| self.headers.clone())
        }

        pub(crate) fn read(&self, max_bytes: u32) -> Answer<Vec<u8>> {
            with("http.response.read", |host| host.alive("http.response.read"))?;
            let mut chunks = self.chunks.borrow_mut();
            let mut chunk = match chunks.pop_front() {
                Some(chunk) => chunk?,
                None => return Ok(Vec::new()),
            };
            if chunk.len() > max_bytes as usize {
                chunks.push_front(Ok(chunk.split_off(max_bytes as usize)));
            }
            Ok(chunk)
        }
    }

    pub(crate) fn send(request: &HttpRequest) -> Answer<Response> {
        let reply = with("http.send", |host| host.send(request))?;
        Ok(Response { status: reply.status, headers: reply.headers, chunks: RefCell::new(reply.chunks.into()) })
    }
}

fn keys<'k>(all: impl Iterator<Item = &'k (u8, String)>, place: u8, prefix: Option<&str>, limit: u32) -> Vec<String> {
    let prefix = prefix.unwrap_or_default();
    let here = all.filter(|(at, key)| *at == place && key.starts_with(prefix));
    here.map(|(_, key)| key.clone()).take(limit as usize).collect()
}

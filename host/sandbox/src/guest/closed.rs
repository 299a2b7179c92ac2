//! Refusals: the interfaces that a run was not granted.

use agent_host_protocol::Interface;
use wasmtime::component::Resource;

use super::{Answer, RefusedInterface, answer};
use crate::{
    bindings::{
        artifacts, events, history, http, interactions, knowledge, models, platform, runs, state, steering, storage, timers,
        tools, types,
    },
    convert,
    handles::{Reader, Response, Responses, Writer},
};

impl RefusedInterface<'_> {
    async fn refuse<T>(&mut self, interface: Interface, function: &'static str) -> Answer<T> {
        answer(Err(self.0.calls.refuse(interface, function).await))
    }
}

/// Every function of an interface, each refused under its name in the contract.
macro_rules! closed {
    ($($interface:ident: $trait:path { $($name:ident = $function:literal ($($argument:ty),*) -> $answer:ty;)* })*) => {$(
        impl $trait for RefusedInterface<'_> {$(
            async fn $name(&mut self, $(_: $argument),*) -> Answer<$answer> {
                self.refuse(Interface::$interface, $function).await
            }
        )*}
    )*};
}

closed! {
    Models: models::Host {
        invoke = "invoke"(String, models::Request) -> models::Response;
        stream = "stream"(String, models::Request) -> Resource<Responses>;
        rerank = "rerank"(String, String, Vec<String>, Option<u32>) -> Vec<models::RerankHit>;
        embed = "embed"(String, Vec<String>) -> Vec<Vec<f32>>;
        count_tokens = "count-tokens"(String, Vec<types::Message>) -> u64;
    }
    Knowledge: knowledge::Host {
        list = "list"() -> Vec<knowledge::KnowledgeBaseResource>;
        retrieve = "retrieve"(String, String, u32, Option<String>) -> Vec<knowledge::Hit>;
    }
    History: history::Host {
        page = "page"(history::PageRequest) -> history::TranscriptPage;
        search = "search"(String, Option<String>, u32) -> Vec<history::TranscriptItem>;
    }
    Events: events::Host {
        get = "get"(String) -> events::Event;
        page = "page"(Option<String>, Vec<String>, u32) -> events::EventPage;
    }
    Artifacts: artifacts::Host {
        metadata = "metadata"(String) -> artifacts::ArtifactMetadata;
        read_range = "read-range"(String, u64, u32) -> Vec<u8>;
        open = "open"(String) -> Resource<Reader>;
        create = "create"(String, Option<String>) -> Resource<Writer>;
    }
    State: state::Host {
        get = "get"(state::StateScope, String) -> Option<String>;
        set = "set"(state::StateScope, String, String) -> ();
        delete = "delete"(state::StateScope, String) -> ();
        list_keys = "list-keys"(state::StateScope, Option<String>, u32) -> Vec<String>;
    }
    Storage: storage::Host {
        get = "get"(storage::StorageArea, String) -> Option<Vec<u8>>;
        set = "set"(storage::StorageArea, String, Vec<u8>) -> ();
        delete = "delete"(storage::StorageArea, String) -> ();
        list = "list"(storage::StorageArea, Option<String>, u32) -> Vec<String>;
    }
    Platform: platform::Host {
        request_action = "request-action"(String, String, String) -> platform::ActionOutcome;
    }
    Interactions: interactions::Host {
        ask = "ask"(interactions::Question) -> interactions::Answer;
    }
    Steering: steering::Host {
        pull = "pull"(u32, u32) -> Vec<steering::SteeringInput>;
    }
    Runs: runs::Host {
        start = "start"(runs::StartRequest) -> String;
        wait_any = "wait-any"(Vec<String>, u32) -> Option<runs::RunSummary>;
        get = "get"(String) -> runs::RunSummary;
        list = "list"(Option<String>, u32) -> Vec<runs::RunSummary>;
        events_page = "events-page"(String, Option<String>, u32) -> runs::RunEventPage;
        cancel = "cancel"(String, String) -> ();
    }
    Http: http::Host {
        send = "send"(http::Request) -> Resource<Response>;
    }
}

impl tools::Host for RefusedInterface<'_> {
    async fn get_detail(&mut self, _: String) -> Answer<tools::ToolDetail> {
        self.refuse(Interface::Tools, "get-detail").await
    }

    async fn call(&mut self, _: types::ToolCall) -> Answer<tools::ToolOutput> {
        self.refuse(Interface::Tools, "call").await
    }

    /// One refusal for each call, so that the number of outcomes matches the number of calls.
    async fn call_many(
        &mut self,
        calls: Vec<types::ToolCall>,
    ) -> wasmtime::Result<Vec<Result<tools::ToolOutput, types::ApiError>>> {
        let refusal = convert::error_out(self.0.calls.refuse(Interface::Tools, "call-many").await);
        Ok(calls.iter().map(|_| Err(refusal.clone())).collect())
    }
}

impl timers::Host for RefusedInterface<'_> {
    /// The time is no secret, and the function has no way to refuse.
    async fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.0.calls.now().await)
    }

    async fn sleep_until(&mut self, _: u64) -> Answer<()> {
        self.refuse(Interface::Timers, "sleep-until").await
    }
}

/// Methods of resources that a refused interface never creates. The engine refuses a forged handle first; a handle that
/// arrived here would be invalid.
fn no_such_handle<T>() -> wasmtime::Result<T> {
    Err(wasmtime::Error::msg("the guest used a handle that the host never gave"))
}

impl models::HostResponseStream for RefusedInterface<'_> {
    async fn next(&mut self, _: Resource<Responses>) -> Answer<Vec<models::Chunk>> {
        no_such_handle()
    }

    async fn drop(&mut self, _: Resource<Responses>) -> wasmtime::Result<()> {
        no_such_handle()
    }
}

impl artifacts::HostReader for RefusedInterface<'_> {
    async fn read(&mut self, _: Resource<Reader>, _: u32) -> Answer<Vec<u8>> {
        no_such_handle()
    }

    async fn drop(&mut self, _: Resource<Reader>) -> wasmtime::Result<()> {
        no_such_handle()
    }
}

impl artifacts::HostWriter for RefusedInterface<'_> {
    async fn write(&mut self, _: Resource<Writer>, _: Vec<u8>) -> Answer<()> {
        no_such_handle()
    }

    async fn finish(&mut self, _: Resource<Writer>) -> Answer<types::ArtifactRef> {
        no_such_handle()
    }

    async fn drop(&mut self, _: Resource<Writer>) -> wasmtime::Result<()> {
        no_such_handle()
    }
}

impl http::HostResponse for RefusedInterface<'_> {
    async fn status(&mut self, _: Resource<Response>) -> wasmtime::Result<u16> {
        no_such_handle()
    }

    async fn headers(&mut self, _: Resource<Response>) -> wasmtime::Result<Vec<(String, String)>> {
        no_such_handle()
    }

    async fn read(&mut self, _: Resource<Response>, _: u32) -> Answer<Vec<u8>> {
        no_such_handle()
    }

    async fn drop(&mut self, _: Resource<Response>) -> wasmtime::Result<()> {
        no_such_handle()
    }
}

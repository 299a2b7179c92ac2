//! From the name of a function to the function.

use agent_host_protocol::{
    ApiError, ErrorCode,
    Interface::{
        Artifacts, Events, History, Http, Interactions, Knowledge, Models, Platform, Runs, State, Steering, Storage, Tools,
    },
    http::HttpRequest,
};
use agent_host_sandbox::{
    ActionRequest, ArtifactCalls, AskedQuestion, ChatRequest, ChildCalls, EventCalls, HistoryCalls, HttpCalls, InteractionCalls,
    KnowledgeCalls, ModelCalls, PageRequest, PlatformCalls, StartInput, StartRequest, StateCalls, SteeringCalls, StorageCalls,
    ToolCalls, ToolRequest,
};
use serde_json::{json, value::RawValue};

use super::{
    Answer, CallError, Function,
    answers::{self as give, base64},
    arguments::{self as get, bytes},
};
use crate::calls::{
    RunCalls,
    runs::{RunEventsWanted, RunsWanted},
};

/// JSON as the gate takes it.
fn text(json: Box<RawValue>) -> String {
    Box::<str>::from(json).into_string()
}

fn tool(get::Tool { call_id, tool_name, parameters }: get::Tool) -> ToolRequest {
    ToolRequest { call_id, tool_name, parameters: text(parameters) }
}

/// Reads the arguments of one function, calls it, and says what its answer is.
macro_rules! function {
    ($function:expr, $body:expr, $arguments:pat, |$answer:pat_param| $given:expr, $call:expr) => {{
        let name = format!("{}.{}", $function.interface, $function.name);
        let $arguments = get::read(&name, $body)?;
        let $answer = $call?;
        Answer::of(&$given)
    }};
}

impl RunCalls {
    /// Calls a function of an interface that the gate has opened.
    pub(super) async fn dispatch(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match (function.interface, function.name) {
            (Models, _) => self.call_model(function, body).await,
            (Tools, _) => self.call_tool(function, body).await,
            (Knowledge | History | Events, _) => self.call_past(function, body).await,
            (Artifacts, _) => self.call_artifact(function, body).await,
            (State | Storage, _) => self.call_memory(function, body).await,
            (Platform | Interactions | Steering, _) => self.call_people(function, body).await,
            (Runs, _) => self.call_run(function, body).await,
            (Http, _) => self.call_http(body).await,
            (interface, name) => Err(give::not_here(interface, name).into()),
        }
    }

    async fn call_model(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match function.name {
            "invoke" => {
                let (model_id, request) = get::read::<get::Model>("models.invoke", body)?.request()?;
                Answer::of(&self.model_invoke(model_id, ChatRequest::sent(request)).await?)
            }
            "rerank" => function!(
                function,
                body,
                get::Rerank { model_id, query, documents, top_k },
                |hits| give::Hits { hits },
                self.model_rerank(model_id, query, documents, top_k).await
            ),
            "embed" => function!(
                function,
                body,
                get::Embed { model_id, texts },
                |vectors| give::Vectors { vectors },
                self.model_embed(model_id, texts).await
            ),
            "count-tokens" => {
                let (model_id, counted) = get::read::<get::Count>("models.count-tokens", body)?.request()?;
                Answer::of(&give::Tokens { tokens: self.count_tokens(model_id, counted).await? })
            }
            name => Err(give::not_here(Models, name).into()),
        }
    }

    async fn call_tool(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match function.name {
            "get-detail" => {
                function!(function, body, get::Detail { tool_name }, |detail| detail, self.tool_detail(tool_name).await)
            }
            "call" => function!(function, body, call, |output| output, self.tool_call(tool(call)).await),
            "call-many" => function!(
                function,
                body,
                get::Tools { calls },
                |outcomes| outcomes,
                self.call_tools(calls.into_iter().map(tool).collect()).await
            ),
            name => Err(give::not_here(Tools, name).into()),
        }
    }

    async fn call_tools(&mut self, calls: Vec<ToolRequest>) -> Result<give::Outcomes, ApiError> {
        if calls.is_empty() {
            return Err(ApiError::invalid_argument("there are no `calls`"));
        }
        let outcomes = self.tool_call_many(calls).await;
        Ok(give::Outcomes { outcomes: outcomes.into_iter().map(give::Outcome::from).collect() })
    }

    async fn call_past(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match (function.interface, function.name) {
            (Knowledge, "list") => {
                function!(function, body, get::Nothing {}, |items| give::Items { items }, self.knowledge_list().await)
            }
            (Knowledge, "retrieve") => function!(
                function,
                body,
                get::Retrieve { kb_id, query, top_k, filters },
                |hits| give::Hits { hits },
                self.knowledge_retrieve(kb_id, query, top_k, filters.map(text)).await
            ),
            (History, "page") => function!(
                function,
                body,
                get::History { conversation_id, thread_id, before, after, limit, direction, include_artifacts },
                |page| page,
                {
                    let conversation_id = self.named_conversation(conversation_id, thread_id);
                    self.history_page(PageRequest { conversation_id, before, after, limit, direction, include_artifacts }).await
                }
            ),
            (History, "search") => function!(
                function,
                body,
                get::Search { query, filters, top_k },
                |items| give::Items { items },
                self.history_search(query, filters.map(text), top_k).await
            ),
            (Events, "get") => function!(function, body, get::Event { event_id }, |event| event, self.event_get(event_id).await),
            (Events, "page") => function!(
                function,
                body,
                get::Events { before, event_types, limit },
                |page| page,
                self.event_page(before, event_types, limit).await
            ),
            (interface, name) => Err(give::not_here(interface, name).into()),
        }
    }

    async fn call_artifact(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match function.name {
            "metadata" => function!(
                function,
                body,
                get::Artifact { artifact_id },
                |metadata| metadata,
                self.artifact_metadata(artifact_id).await
            ),
            "read-range" => function!(
                function,
                body,
                get::Range { artifact_id, offset, length },
                |content| give::Content { content: base64(&content) },
                self.artifact_read_range(artifact_id, offset, length).await
            ),
            "create" => {
                let get::Create { media_type, name, content } = get::read("artifacts.create", body)?;
                let content = bytes("content", &content)?;
                let mut writer = self.artifact_create(media_type, name).await?;
                if !content.is_empty() {
                    writer.write(content).await?;
                }
                Answer::of(&writer.finish().await?)
            }
            name => Err(give::not_here(Artifacts, name).into()),
        }
    }

    async fn call_memory(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match (function.interface, function.name) {
            (State, "get") => function!(
                function,
                body,
                get::State { scope, key },
                |value| give::Found { value },
                self.state_get(scope, key).await
            ),
            (State, "set") => function!(
                function,
                body,
                get::SetState { scope, key, value },
                |()| give::Done {},
                self.state_set(scope, key, text(value)).await
            ),
            (State, "delete") => {
                function!(function, body, get::State { scope, key }, |()| give::Done {}, self.state_delete(scope, key).await)
            }
            (State, "list-keys") => function!(
                function,
                body,
                get::StateKeys { scope, prefix, limit },
                |keys| give::Keys { keys },
                self.state_list_keys(scope, prefix, limit).await
            ),
            (Storage, "get") => function!(
                function,
                body,
                get::Storage { area, key },
                |value| give::Bytes { value: value.map(|value: Vec<u8>| base64(&value)) },
                self.storage_get(area, key).await
            ),
            (Storage, "set") => function!(
                function,
                body,
                get::SetStorage { area, key, value },
                |()| give::Done {},
                self.storage_set(area, key, bytes("value", &value)?).await
            ),
            (Storage, "delete") => {
                function!(function, body, get::Storage { area, key }, |()| give::Done {}, self.storage_delete(area, key).await)
            }
            (Storage, "list") => function!(
                function,
                body,
                get::StorageKeys { area, prefix, limit },
                |keys| give::Keys { keys },
                self.storage_list(area, prefix, limit).await
            ),
            (interface, name) => Err(give::not_here(interface, name).into()),
        }
    }

    async fn call_people(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match (function.interface, function.name) {
            (Platform, "request-action") => function!(
                function,
                body,
                get::Action { action, target, payload },
                |outcome| give::of_action(outcome),
                self.platform_request_action(ActionRequest { action, target: text(target), payload: text(payload) }).await
            ),
            (Interactions, "ask") => function!(
                function,
                body,
                get::Ask { kind, title, description, answer_schema, expires_at },
                |answer| give::of_question(answer),
                self.interaction_ask(AskedQuestion {
                    kind,
                    title,
                    description,
                    answer_schema: answer_schema.map(text),
                    expires_at,
                })
                .await
            ),
            (Steering, "pull") => function!(
                function,
                body,
                get::Pull { limit, wait_ms },
                |inputs| give::Inputs { inputs },
                self.steering_pull(limit, wait_ms).await
            ),
            (interface, name) => Err(give::not_here(interface, name).into()),
        }
    }

    async fn call_run(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        match function.name {
            "start" => function!(
                function,
                body,
                get::Start { runner_id, input, objective, config },
                |run_id| give::Started { run_id },
                self.run_start(StartRequest { runner_id, input: StartInput::sent(input), objective, config: config.map(text) })
                    .await
            ),
            "wait-any" => function!(
                function,
                body,
                get::WaitAny { run_ids, wait_ms },
                |run| give::Ended { run },
                self.run_wait_any(run_ids, wait_ms).await
            ),
            "get" => function!(function, body, get::Run { run_id }, |run| run, self.run_get(run_id).await),
            "list" => function!(
                function,
                body,
                get::RunList { parent_run_id, statuses, before, limit },
                |page| page,
                self.list_runs(RunsWanted { parent_run_id, statuses, before, limit }, |page| page).await
            ),
            "events-page" => function!(
                function,
                body,
                get::RunEvents { run_id, before, after, limit, direction },
                |page| page,
                self.run_events_between(RunEventsWanted { run_id, before, after, limit, direction }).await
            ),
            "cancel" => function!(
                function,
                body,
                get::Cancel { run_id, reason },
                |()| give::Done {},
                self.run_cancel(run_id, reason).await
            ),
            name => Err(give::not_here(Runs, name).into()),
        }
    }

    /// The response whole: it is read as a guest reads it, and bounded by what one answer may be.
    async fn call_http(&mut self, body: &[u8]) -> Result<Answer, CallError> {
        let get::Request { method, url, headers, body, text, timeout_ms } = get::read("http.send", body)?;
        let body = match (body, text) {
            (None, None) => Vec::new(),
            (Some(body), None) => bytes("body", &body)?,
            (None, Some(text)) => text.into_bytes(),
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid_argument("a request has a `body` (Base64) or a `text`, not both").into());
            }
        };
        let mut response = self.http_send(HttpRequest { method, url, headers, body, timeout_ms }).await?;
        let limit = self.run.limits.host_call_bytes;
        let mut content = Vec::new();
        loop {
            let piece = response.read(u32::MAX).await?;
            if piece.is_empty() {
                break;
            }
            if content.len() + piece.len() > limit {
                let refusal = ApiError::new(
                    ErrorCode::PayloadTooLarge,
                    format!("the response has more than {limit} bytes, the limit of one that is given whole"),
                );
                return Err(ApiError { details: Some(json!({ "limit": limit })), ..refusal }.into());
            }
            content.extend_from_slice(&piece);
        }
        Answer::of(&give::Response::new(response.head().clone(), content))
    }
}
